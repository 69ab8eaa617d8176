"""ONNX Runtime, on the CPU: the backend's verbs.

Runs on: worker.

Invariant: the session runs on the CPU with as many threads as it was given, and answers in the structure of the model that it was
exported from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from sparkinfer.backends.exported import Exported, feed_name, missing, ordered, structured
from sparkinfer.backends.numpy import BACKEND as NUMPY
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.exceptions import ConfigError, ModelLoadError

try:
    import onnxruntime
except ImportError as error:
    raise missing(error, "onnxruntime", "onnx") from error

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed, Inputs
    from sparkinfer.engine.contracts import ModelPlan, PrepareStep
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["BACKEND"]

_ERRORS_ONLY = 3  # of the runtime's log levels: it warns of graphs that it could not simplify


class OnnxBackend:
    """Answers ``Backend``."""

    name = "onnx_runtime"

    def resolve_device(self, device: str) -> str:
        """Give ``"cpu"``.

        Raises:
            ConfigError: a card was asked for by name.
        """
        if device not in ("auto", "cpu"):
            msg = f"device is {device!r}, but optimize='onnxruntime' runs on the CPU: leave device out, or leave optimize out"
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
        return NUMPY.feed(source, prepare, config, device, meter)

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> OnnxLoaded:
        """Make the session.

        Raises:
            ModelLoadError: this version of ONNX Runtime cannot read the file.
        """
        del device
        mark_framework_used()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # several workers share a host's cores
        try:
            session = onnxruntime.InferenceSession(files["model"], sess_options=options, providers=["CPUExecutionProvider"])
        except Exception as error:
            msg = (
                f"{plan.label}, exported as ONNX, cannot be loaded here by onnxruntime {onnxruntime.__version__} ({type(error).__name__}: {error}): "
                "install the driver's version on the workers"
            )
            raise ModelLoadError(msg) from error
        return OnnxLoaded(session, plan.options["exported"])


BACKEND = OnnxBackend()


class OnnxLoaded:
    """A session; answers ``LoadedModel``."""

    def __init__(self, session: Any, exported: Exported) -> None:
        """Keep the session, and the names of the inputs that it has: the export drops those that the model does not look at."""
        self._session = session
        self._exported = exported
        self._names = [one.name for one in session.get_inputs()]

    def predict(self, inputs: Inputs) -> Any:
        """Run the model once."""
        arrays = ordered(self._exported, inputs)
        fed = {feed_name(position): array for position, array in enumerate(arrays)}
        return structured(self._exported, self._session.run(None, {name: fed[name] for name in self._names}))

    def device_peak_bytes(self) -> None:
        """Give nothing: it is on the CPU."""

    def device_bytes(self) -> None:
        """Give nothing, likewise."""

    def release(self) -> None:
        """Let go of the session."""
        self._session = None
