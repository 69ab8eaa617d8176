"""OpenVINO, on the CPU: the backend's verbs, and how a model becomes OpenVINO's own files.

Runs on: worker; ``convert`` on the driver.

Invariant: OpenVINO's CPU computes float64 as float32, int64 as int32, and the remainder of integers in float32 (seen in 2026.4): models with
the first, and with answers of the second, are refused, and so are an input's values beyond 2**24. Files are read by OpenVINO's core, and never
by its ``convert_model``, which sends statistics of its use to its makers (seen in 2026.4).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkinfer.backends.exported import Exported, feed_name, first_line, missing, ordered, structured
from sparkinfer.backends.numpy import BACKEND as NUMPY
from sparkinfer.engine.batch import Fault
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.exceptions import ConfigError, ModelLoadError, SchemaError

try:
    import openvino
except ImportError as error:
    raise missing(error, "openvino", "openvino") from error

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed, Inputs
    from sparkinfer.engine.contracts import ModelPlan, PrepareStep
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["BACKEND", "convert", "refuse_wide"]

_WIDE = ("int64", "uint32", "uint64")
_EXACT = 2**24  # the largest integer up to which float32 holds every one


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

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> OpenVinoLoaded:
        """Compile the model for this machine's CPU.

        Raises:
            ModelLoadError: this version of OpenVINO cannot read or compile it.
        """
        del device
        mark_framework_used()
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
        try:
            core = _core()
            compiled = core.compile_model(core.read_model(*_alike(files["graph"], files["weights"])), "CPU", settings)
        except Exception as error:
            msg = (
                f"{plan.label}, converted for OpenVINO, cannot be compiled here by openvino {openvino.__version__} ({type(error).__name__}: {error}): "
                "install the driver's version on the workers"
            )
            raise ModelLoadError(msg) from error
        return OpenVinoLoaded(compiled, plan.options["exported"])


BACKEND = OpenVinoBackend()


@lru_cache(maxsize=1)
def _core() -> openvino.Core:
    """Give the process's one core, which is never let go.

    Its CPU plugin gives the thread that first compiles a stack of its own for signals, and takes that memory back with the last core, in whichever
    thread that ends: the next SIGCHLD then ends the process with a segmentation fault (seen in 2026.4 on a CPU with AMX).
    """
    return openvino.Core()


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
        for one, array in zip(self._exported.inputs, arrays, strict=True):
            _refuse_large(one.name, array)
        fed = {feed_name(position): array for position, array in enumerate(arrays)}
        with self._busy:  # two threads of a driver may share the model, and a request is one call's
            self._request.infer({name: openvino.Tensor(fed[name], shared_memory=False) for name in self._names})
            # copies: the next call writes into the request's own memory
            answers = [np.array(self._request.get_output_tensor(position).data) for position in range(self._outputs)]
        return structured(self._exported, answers)

    def device_peak_bytes(self) -> None:
        """Give nothing: it is on the CPU."""

    def device_bytes(self) -> None:
        """Give nothing, likewise."""

    def release(self) -> None:
        """Let go of the model."""
        self._request = None


def _refuse_large(name: str, array: np.ndarray) -> None:
    if array.dtype.name not in (*_WIDE, "int32") or not array.size:
        return
    wrong = (array > _EXACT) | (array < -_EXACT)
    if wrong.any():
        place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        text = (
            f"input {name!r} has the value {array[place]}, and OpenVINO computes some integers as float32, which is exact up to 2**24 only: leave optimize "
            "out, or take another engine"
        )
        raise Fault(SchemaError, text, row=place[0])


def refuse_wide(doubles: bool, answers: Sequence[tuple[str, str]]) -> None:  # noqa: FBT001 - a fact, told once
    """Refuse a model that OpenVINO would compute in a narrower type.

    Args:
        doubles: there is a float64 anywhere in the model.
        answers: names and NumPy types of its outputs.

    Raises:
        ModelLoadError: names what it is.
    """
    if doubles:
        msg = "the model computes in float64, and OpenVINO in float32: leave optimize out, or make the model float32"
        raise ModelLoadError(msg)
    wide = [(name, dtype) for name, dtype in answers if dtype in _WIDE]
    if wide:
        msg = f"output {wide[0][0]!r} is {wide[0][1]}, and OpenVINO computes it as int32: leave optimize out, or return floats and make integers in postprocess"
        raise ModelLoadError(msg)


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
        found = _core().read_model(source)
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
        msg = f"OpenVINO {openvino.__version__} cannot take the model ({first_line(error)})"
        raise ModelLoadError(msg) from error


def _output(found: Any, name: str) -> Any:
    for one in found.outputs:
        if name in one.get_names():
            return one.node.input_value(0)
    msg = f"the output {name!r} got lost"
    raise ValueError(msg)
