"""MLflow's pyfunc: the backend's verbs.

Runs on: worker.

Invariant: MLflow is given a folder on this machine and asks no server; what the model gets has the names, the order and the types of its
signature, and its own ``params``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sparkinfer.backends.numpy import BACKEND as ARRAYS
from sparkinfer.backends.numpy import to_arrays
from sparkinfer.engine.batch import Fault
from sparkinfer.engine.conform import conform, is_ragged
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.engine.signature import check_inputs
from sparkinfer.exceptions import ConfigError, ModelLoadError, SchemaError
from sparkinfer.schema import NUMERIC, TensorSpec

if TYPE_CHECKING:
    from types import ModuleType

    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed, Inputs
    from sparkinfer.engine.contracts import ModelPlan, PrepareStep, TensorInfo
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["BACKEND"]


class PyfuncBackend:
    """Answers ``Backend``."""

    name = "pyfunc"

    def resolve_device(self, device: str) -> str:
        """Give ``"cpu"``: MLflow chooses the device of what it loads.

        Raises:
            ConfigError: a card was asked for by name.
        """
        if device not in ("auto", "cpu"):
            msg = (
                f"device is {device!r}, but MLflow puts a pyfunc on its device itself (MLFLOW_DEFAULT_PREDICTION_DEVICE): leave device out"
            )
            raise ConfigError(msg)
        return "cpu"

    def card_count(self) -> int:
        """Give 0."""
        return 0

    def card_memory_bytes(self, device: str) -> int | None:
        """Give ``None``."""
        del device
        return None

    def feed(
        self, source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
    ) -> AbstractContextManager[Iterator[Fed]]:
        """Prepare the batches ahead of the model, as for a Python model."""
        return ARRAYS.feed(source, prepare, config, device, meter)

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> PyfuncLoaded:
        """Have MLflow load the model.

        Raises:
            ModelLoadError: it cannot be loaded here.
        """
        del device, threads
        mark_framework_used()
        folder = str(files["model"])
        _forget_other_code(folder)
        try:
            model = _mlflow_pyfunc().load_model(folder, suppress_warnings=True)
        except Exception as error:
            msg = (
                f"{plan.label} cannot be loaded here by MLflow ({type(error).__name__}: {error}). The packages that it was logged with stand in "
                f"its requirements.txt"
            )
            raise ModelLoadError(msg) from error
        return PyfuncLoaded(model, plan)


BACKEND = PyfuncBackend()


def _mlflow_pyfunc() -> ModuleType:
    """Import MLflow as late as this: it starts a thread, and loader processes are forked before the model is loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow 3.17 warns of type hints of its own
        return import_module("mlflow.pyfunc")


_code_folders: set[str] = set()  # of models that were loaded in this process


def _forget_other_code(folder: str) -> None:
    """Let this model's own code be imported where an earlier model brought modules of the same names.

    MLflow puts a model's ``code`` folder on ``sys.path`` and leaves it there, so that a new version of the model would run on the modules
    of the old one (seen in 3.17). What the old one has imported, it keeps.
    """
    for other in _code_folders - {folder}:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__dict__", {}).get("__file__")  # asked directly, a lazy module may import
            if file and Path(file).is_relative_to(other):
                del sys.modules[name]
        sys.path[:] = [entry for entry in sys.path if not Path(entry).is_relative_to(other)]
        _code_folders.discard(other)
    _code_folders.add(folder)


class PyfuncLoaded:
    """A pyfunc in memory; answers ``LoadedModel``."""

    def __init__(self, model: Any, plan: ModelPlan) -> None:
        """Keep MLflow's model, and what it takes."""
        self._model = model
        self._plan = plan

    def predict(self, inputs: Inputs) -> Any:
        """Call the model once; gives arrays: one, a list, or a dict by name.

        Raises:
            Fault: the inputs are not what the model's signature says.
        """
        return _given_back(self._model.predict(_given(self._plan, inputs), params=self._plan.options["params"]))

    def device_peak_bytes(self) -> None:
        """Give nothing: what MLflow loads may be of any framework."""

    def device_bytes(self) -> None:
        """Give nothing, likewise."""

    def release(self) -> None:
        """Let go of the model."""
        self._model = None


def _given(plan: ModelPlan, inputs: Inputs) -> Any:
    """Make what the model is called with."""
    infos = plan.inputs
    if infos is None:
        return next(iter(inputs.arrays.values())) if inputs.style == "single" else _frame(inputs.arrays)
    try:
        check_inputs(plan, inputs.style, list(inputs.arrays))
    except ConfigError as error:  # names that preprocess gave: the driver could not know them
        raise Fault(SchemaError, str(error)) from error
    if inputs.style == "named":
        pairs = [(info, inputs.arrays[info.name]) for info in infos if info.name in inputs.arrays]
    else:
        pairs = list(zip(infos, inputs.arrays.values(), strict=False))
    arrays = {info.name: _cast(array, info) for info, array in pairs}
    if plan.options["layout"] == "columns":
        frame = _frame(arrays)
        return frame if plan.options["named"] else frame.set_axis(range(len(frame.columns)), axis="columns")
    return arrays if plan.options["named"] else next(iter(arrays.values()))


def _cast(array: Any, info: TensorInfo) -> Any:
    """Give an input the signature's type, and a flat array its shape; text, times and rows of unequal length stay what they are."""
    if info.dtype not in NUMERIC or (isinstance(array, np.ndarray) and is_ragged(array)):
        return array
    return conform(array, info.name, TensorSpec(info.dtype, info.shape or None))[info.name]


def _frame(arrays: Mapping[str, Any]) -> pd.DataFrame:
    """Make a frame whose columns keep their types; an input of more than one axis is a column of arrays."""
    return pd.DataFrame({name: _series(array) for name, array in arrays.items()})


def _series(array: Any) -> pd.Series[Any]:
    if np.ndim(array) > 1:
        return pd.Series(list(array), dtype=object)
    return pd.Series(array, dtype=array.dtype if array.dtype == object else None)  # pandas 3 would make text of its own, with NaN for None


def _given_back(result: Any) -> Any:
    """Give arrays; a frame whose columns have no names is one array."""
    if isinstance(result, pd.DataFrame) and not all(isinstance(name, str) for name in result.columns):
        return result.to_numpy()
    return to_arrays(result)
