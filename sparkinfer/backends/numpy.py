"""Python models: NumPy arrays in, arrays out.

Runs on: worker.

Invariant: no framework is imported here; what the user's model gives back is turned into NumPy by what it can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkinfer.engine.batch import Fed
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.engine.pool import prepare_in_processes
from sparkinfer.engine.prefetch import Gate, read_ahead
from sparkinfer.engine.room import fed_bytes, shares
from sparkinfer.exceptions import ConfigError, ModelLoadError, SparkInferError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Inputs
    from sparkinfer.engine.contracts import ModelPlan, PrepareStep
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["BACKEND", "to_arrays"]


class NumpyBackend:
    """Answers ``Backend``."""

    name = "numpy"

    def resolve_device(self, device: str) -> str:
        """Give ``"cpu"``: a Python model chooses its device itself.

        Raises:
            ConfigError: a card was asked for by name.
        """
        if device not in ("auto", "cpu"):
            msg = f"device is {device!r}, but a PythonModel puts itself on its device: choose it in load(), and leave device out"
            raise ConfigError(msg)
        return "cpu"

    def card_count(self) -> int:
        """Give 0."""
        return 0

    def card_memory_bytes(self, device: str) -> int | None:
        """Give ``None``."""
        del device
        return None

    @contextmanager
    def feed(
        self, source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
    ) -> Iterator[Iterator[Fed]]:
        """Prepare the batches ahead of the model, on a thread or in loader processes."""
        del device
        with ExitStack() as stack:
            made: Iterator[Fed] = (Fed(batch, prepare(batch.data)) for batch in source)
            ahead_bytes = config.max_in_flight_bytes
            if config.num_workers:
                out_bytes, ahead_bytes = shares(ahead_bytes, config.num_workers, config.prefetch_batches)
                limits: dict[str, Any] = {"timeout_seconds": config.preprocess_timeout_seconds, "most_bytes": out_bytes}
                made = stack.enter_context(prepare_in_processes(source, prepare, config.num_workers, depth=1, **limits))
            if config.prefetch_batches:
                made = stack.enter_context(read_ahead(made, config.prefetch_batches, meter, Gate(ahead_bytes, fed_bytes)))
            yield made

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> PythonLoaded:
        """Call the user's loading function.

        Raises:
            ModelLoadError: it raised, or gave nothing that can be called.
        """
        del files, device, threads
        mark_framework_used()  # for all that is known here, the user's model is one
        load = loads(plan.payload, f"the loader of {plan.label}")
        try:
            model = load()
        except SparkInferError:
            raise
        except Exception as error:
            msg = f"the loader of {plan.label} raised {type(error).__name__}: {error}"
            raise ModelLoadError(msg) from error
        return PythonLoaded(model, _predict_of(model, plan.label))


BACKEND = NumpyBackend()


def _predict_of(model: Any, label: str) -> Callable[..., Any]:
    predict: Any = getattr(model, "predict", None)
    if callable(predict) and not isinstance(model, type):
        return predict  # type: ignore[no-any-return]
    if callable(model):
        return model  # type: ignore[no-any-return]
    msg = f"the loader of {label} gave a {type(model).__name__}, expected a function of arrays, or an object with predict()"
    raise ModelLoadError(msg)


class PythonLoaded:
    """A user's model in memory; answers ``LoadedModel``."""

    def __init__(self, model: Any, predict: Callable[..., Any]) -> None:
        """Keep the model, for its ``close()``, and its function."""
        self._model = model
        self._predict: Callable[..., Any] | None = predict

    def predict(self, inputs: Inputs) -> Any:
        """Call the model once."""
        if self._predict is None:
            msg = "the model was released"
            raise RuntimeError(msg)
        if inputs.style == "named":
            return to_arrays(self._predict(**inputs.arrays))
        return to_arrays(self._predict(*inputs.arrays.values()))

    def device_peak_bytes(self) -> None:
        """Give nothing: a Python model's device is its own matter."""

    def device_bytes(self) -> None:
        """Give nothing, likewise."""

    def release(self) -> None:
        """Call the model's ``close()``, if it has one, and let go of it."""
        model, self._model, self._predict = self._model, None, None
        close = getattr(model, "close", None)
        if callable(close):
            close()


def to_arrays(result: Any) -> Any:
    """Turn a framework's tensors into NumPy, also inside a mapping or a sequence; leave everything else as it is."""
    if hasattr(result, "iloc") and hasattr(result, "columns"):  # a pandas DataFrame: outputs by name
        result = dict(result.items())
    if isinstance(result, Mapping):
        return {name: _to_array(value) for name, value in result.items()}
    if isinstance(result, tuple):
        return tuple(_to_array(value) for value in result)
    if isinstance(result, list) and any(hasattr(value, "__array__") for value in result):
        return [_to_array(value) for value in result]
    return _to_array(result)


def _to_array(value: Any) -> Any:
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a torch tensor
        value = value.detach().cpu()
    return np.asarray(value) if hasattr(value, "__array__") and not isinstance(value, np.ndarray) else value
