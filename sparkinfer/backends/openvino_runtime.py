"""OpenVINO, on the CPU: the backend's verbs, and how a model becomes OpenVINO's own files.

Runs on: worker; ``convert`` on the driver.

Invariant: nothing is computed in a type that is narrower than the model's own. Files are read by OpenVINO's core, and never by its
``convert_model``, which sends statistics of its use to its makers (seen in 2026.4).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkinfer.backends.exported import Exported, feed_name, ordered, structured
from sparkinfer.backends.numpy import BACKEND as NUMPY
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.exceptions import ConfigError, MissingDependencyError, ModelLoadError

try:
    import openvino
except ModuleNotFoundError as error:
    if error.name != "openvino":
        raise
    _TEXT = "the package 'openvino', which runs the exported model, is not installed here: pip install 'sparkinfer[openvino]'"
    raise MissingDependencyError(_TEXT) from error

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed, Inputs
    from sparkinfer.engine.contracts import ModelPlan, PrepareStep
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["BACKEND", "convert"]


class OpenVinoBackend:
    """Answers ``Backend``."""

    name = "openvino_runtime"

    def resolve_device(self, device: str) -> str:
        """Give ``"cpu"``.

        Raises:
            ConfigError: a card was asked for by name.
        """
        if device not in ("auto", "cpu"):
            msg = f"device is {device!r}, but optimize='openvino' runs on the CPU: leave device out, or leave optimize out"
            raise ConfigError(msg)
        return "cpu"

    def feed(
        self, source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
    ) -> AbstractContextManager[Iterator[Fed]]:
        """Prepare the batches ahead of the model, as for a Python model."""
        return NUMPY.feed(source, prepare, config, device, meter)

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> OpenVinoLoaded:
        """Compile the model for this machine's CPU.

        Raises:
            ModelLoadError: this version of OpenVINO cannot read or compile it.
        """
        del device
        mark_framework_used()
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
        try:
            core = openvino.Core()
            compiled = core.compile_model(core.read_model(*_alike(files["graph"], files["weights"])), "CPU", settings)
        except Exception as error:
            msg = (
                f"{plan.label}, converted for OpenVINO, cannot be compiled here by openvino {openvino.__version__} ({type(error).__name__}: {error}): "
                "install the driver's version on the workers"
            )
            raise ModelLoadError(msg) from error
        return OpenVinoLoaded(compiled, plan.options["exported"])


BACKEND = OpenVinoBackend()


def _alike(graph: str | bytes, weights: str | bytes) -> tuple[str | bytes, str | bytes]:
    """Give both by path, from where OpenVINO maps the weights, or both by content: it takes no mixture."""
    if isinstance(graph, str) and isinstance(weights, str):
        return graph, weights
    read = (Path(found).read_bytes() if isinstance(found, str) else found for found in (graph, weights))
    return next(read), next(read)


class OpenVinoLoaded:
    """A compiled model; answers ``LoadedModel``."""

    def __init__(self, compiled: Any, exported: Exported) -> None:
        """Keep the model, one request, and the names of the inputs that it has."""
        self._request = compiled.create_infer_request()
        self._busy = Lock()
        self._exported = exported
        self._names = [one.any_name for one in compiled.inputs]
        self._outputs = len(compiled.outputs)

    def predict(self, inputs: Inputs) -> Any:
        """Run the model once."""
        arrays = ordered(self._exported, inputs)
        fed = {feed_name(position): array for position, array in enumerate(arrays)}
        with self._busy:  # two threads of a driver may share the model, and a request is one call's
            self._request.infer({name: openvino.Tensor(fed[name], shared_memory=False) for name in self._names})
            # copies: the next call writes into the request's own memory
            answers = [np.array(self._request.get_output_tensor(position).data) for position in range(self._outputs)]
        return structured(self._exported, answers)

    def device_peak_bytes(self) -> None:
        """Give nothing: it is on the CPU."""

    def release(self) -> None:
        """Let go of the model."""
        self._request = None


def convert(source: str | bytes, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[bytes, bytes]:
    """Convert a model into OpenVINO's graph and weights.

    Args:
        source: an ONNX model's bytes, or the path of a frozen TensorFlow graph.
        inputs: the names that the source's inputs have, in order; OpenVINO's get ``feed_name``'s.
        outputs: the names that the source's outputs have, in order.

    Raises:
        ModelLoadError: OpenVINO cannot take it.
    """
    try:
        found = openvino.Core().read_model(source)
        for position, name in enumerate(inputs):
            for one in found.inputs:
                if name in {known.partition(":")[0] for known in one.get_names()}:
                    one.get_tensor().set_names({feed_name(position)})
        made = openvino.Model([_output(found, name) for name in outputs], found.get_parameters(), "sparkinfer")
        made.validate_nodes_and_infer_types()
        with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
            path = Path(folder) / "model.xml"
            openvino.save_model(made, path, compress_to_fp16=False)
            return path.read_bytes(), path.with_suffix(".bin").read_bytes()
    except Exception as error:
        msg = f"OpenVINO {openvino.__version__} cannot take the model ({type(error).__name__}: {str(error).strip().splitlines()[0]})"
        raise ModelLoadError(msg) from error


def _output(found: Any, name: str) -> Any:
    for one in found.outputs:
        if name in one.get_names():
            return one.node.input_value(0)
    msg = f"the output {name!r} got lost"
    raise ValueError(msg)
