"""A PyTorch model compiled ahead of time by AOTInductor, on the CPU: the backend's verbs.

Runs on: worker.

Invariant: nothing is compiled here: the machine code comes from the driver, in a package that this library made there; it sees no length
that it was not compiled for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sparkinfer.backends.exported import Exported, ordered, structured
from sparkinfer.backends.torch_feed import feed
from sparkinfer.backends.torch_values import to_arrays
from sparkinfer.engine.batch import Fault
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.exceptions import ConfigError, ModelLoadError, SchemaError

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed, Inputs
    from sparkinfer.engine.contracts import ModelPlan, PrepareStep
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["BACKEND"]

_ASSUMED = (
    2  # torch.export takes a free axis for at least that, and code compiled for it gave wrong answers to one row (EfficientNet, torch 2.13)
)


class TorchAotBackend:
    """Answers ``Backend``."""

    name = "torch_aot"

    def resolve_device(self, device: str) -> str:
        """Give ``"cpu"``, for which the model was compiled.

        Raises:
            ConfigError: a card was asked for by name.
        """
        if device not in ("auto", "cpu"):
            msg = f"device is {device!r}, but optimize='aot' compiles for the CPU: leave device out, or leave optimize out"
            raise ConfigError(msg)
        return "cpu"

    def feed(
        self, source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
    ) -> AbstractContextManager[Iterator[Fed]]:
        """Prepare the batches ahead of the model, by a ``DataLoader``."""
        return feed(source, prepare, config, device, meter)

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> AotLoaded:
        """Load the package.

        Raises:
            ModelLoadError: the machine code does not fit this worker's torch or system.
        """
        del device
        mark_framework_used()
        try:
            with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
                found = files["model"]
                path = Path(folder) / "model.pt2" if isinstance(found, bytes) else Path(found)
                if isinstance(found, bytes):
                    path.write_bytes(found)
                model = torch._inductor.aoti_load_package(str(path))  # noqa: SLF001 - documented under this name
        except Exception as error:
            msg = (
                f"{plan.label}, compiled on the driver, cannot be loaded here by torch {torch.__version__} ({type(error).__name__}: {error}): the "
                "workers need the driver's torch, and a processor with the instructions of the driver's"
            )
            raise ModelLoadError(msg) from error
        return AotLoaded(model, plan.options["exported"], threads)


BACKEND = TorchAotBackend()


class AotLoaded:
    """A compiled model; answers ``LoadedModel``."""

    def __init__(self, model: Any, exported: Exported, threads: int) -> None:
        """Keep the model, and the threads that it is to run on."""
        self._model = model
        self._exported = exported
        self._threads = threads

    def predict(self, inputs: Inputs) -> Any:
        """Run the model once.

        Raises:
            Fault: a free axis has the length 1 or 0.
        """
        if torch.get_num_threads() != self._threads:  # the process's, and another model may have had its own
            torch.set_num_threads(self._threads)
        arrays = ordered(self._exported, inputs)
        self._refuse_short(arrays)
        rows = len(arrays[0])
        with torch.inference_mode():
            # copies: Arrow's memory is not aligned as the code wants it; and a single row goes twice, by _ASSUMED
            answers = self._model(*(torch.tensor(array if rows > 1 else np.repeat(array, 2, axis=0)) for array in arrays))
            found = [answer[:rows] for answer in to_arrays(tuple(answers))] if rows == 1 else to_arrays(tuple(answers))
            return structured(self._exported, found)

    def _refuse_short(self, arrays: Sequence[np.ndarray]) -> None:
        for one, array in zip(self._exported.inputs, arrays, strict=True):
            for axis, size in enumerate(one.shape, 1):
                if size is None and array.shape[axis] < _ASSUMED:
                    text = (
                        f"input {one.name!r} has the length {array.shape[axis]}, and optimize='aot' compiles for lengths of at least {_ASSUMED}: pad it, "
                        "or take another engine"
                    )
                    raise Fault(SchemaError, text)

    def device_peak_bytes(self) -> None:
        """Give nothing: it is on the CPU."""

    def release(self) -> None:
        """Let go of the model."""
        self._model = None
