"""Exporting a TensorFlow or Keras model for another engine, once, on the driver.

Runs on: driver.

Invariant: what is exported is the loaded model itself, called as the library calls it, with a free batch axis.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from sparkinfer.artifacts import memory_file
from sparkinfer.backends.exported import Exported, ExportedInput, feed_name, flat, structure_of
from sparkinfer.exceptions import ModelLoadError

if TYPE_CHECKING:
    from sparkinfer.backends.tensorflow import TensorFlowLoaded
    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.contracts import ModelFile

__all__ = ["AUTO", "IN_PLACE", "export", "undisturbed", "unsuited"]

AUTO = ("openvino", "xla")
"""What ``optimize="auto"`` tries, in this order."""

IN_PLACE = ("xla",)
"""What needs no file: it happens where the model is loaded."""


def unsuited(engine: str, inputs: Inputs, free: Mapping[str, frozenset[int]]) -> str:
    """Say why ``"auto"`` does not even try an engine; nothing if it does."""
    if any(np.asarray(array).dtype.kind in "iu" for array in inputs.arrays.values()):
        return "an id that an embedding does not have would get zeros or another id's row, where TensorFlow raises"
    if engine == "xla" and any(free.values()):
        return "XLA would compile the model anew for every length of the input"
    return ""


def undisturbed() -> AbstractContextManager[None]:
    """Do nothing: TensorFlow's threads are set once a process, before its first operation."""
    return nullcontext()


def export(
    loaded: TensorFlowLoaded, engine: str, inputs: Inputs, free: Mapping[str, frozenset[int]], answer: Any
) -> tuple[str, tuple[ModelFile, ...], Exported]:
    """Export a model; as ``torch_optimize.export``.

    Raises:
        ModelLoadError: the model cannot be exported; names the first cause.
        MissingDependencyError: OpenVINO is not installed.
    """
    from sparkinfer.backends.openvino_runtime import convert, refuse_wide  # noqa: PLC0415 - only for this engine

    del engine
    structure, names = structure_of(answer)
    tensors = loaded.tensors(inputs)
    _refuse_other(tensors, answer)
    by_position = dict(zip(tensors, inputs.arrays, strict=True))
    shapes = {name: _shape(tensor, free.get(by_position[name], frozenset())) for name, tensor in tensors.items()}
    with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
        path = Path(folder) / "model.pb"
        outputs, doubles = _freeze(loaded, inputs.style, {name: (shapes[name], tensor.dtype) for name, tensor in tensors.items()}, path)
        refuse_wide(doubles, [(name, array.dtype.name) for name, array in zip(names, flat(answer), strict=True)])
        graph, weights = convert(str(path), [feed_name(i) for i in range(len(tensors))], outputs)
    exported = Exported(
        style=inputs.style,
        inputs=tuple(
            ExportedInput(by_position[name], tensor.dtype.name, shapes[name], casts_floats=loaded.casts_floats(name))
            for name, tensor in tensors.items()
        ),
        structure=structure,
        names=names,
    )
    return "openvino_runtime", (memory_file("graph", graph, ".xml"), memory_file("weights", weights, ".bin")), exported


def _refuse_other(tensors: Mapping[str, tf.Tensor], answer: Any) -> None:
    texts = [name for name, tensor in tensors.items() if tensor.dtype == tf.string]
    if texts:
        msg = f"the input {texts[0]!r} is text or bytes, and an exported model takes numbers only"
        raise ModelLoadError(msg)
    parts = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, tuple) else [answer]
    if not all(isinstance(part, np.ndarray) and part.dtype.kind in "biuf" for part in parts):
        msg = "the model answers with text or with outputs inside outputs, and an exported model gives numbers, one array an output"
        raise ModelLoadError(msg)


def _freeze(loaded: TensorFlowLoaded, style: Any, specs: Mapping[str, tuple[Any, Any]], path: Path) -> tuple[list[str], bool]:
    """Write the model as one graph with its variables as constants; gives the outputs' names, and whether it has a float64 anywhere."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2  # noqa: PLC0415 - offered nowhere else

    def call(*given: tf.Tensor) -> Any:
        answer = loaded.runner(style, dict(zip(specs, given, strict=True)))
        parts = (
            [part for part in answer.values() if part is not None]
            if isinstance(answer, Mapping)
            else answer
            if isinstance(answer, (list, tuple))
            else [answer]
        )
        return tuple(tf.cast(part, tf.float32) if part.dtype == tf.bfloat16 else tf.identity(part) for part in parts)

    try:
        with tf.device("/CPU:0"):
            given = [tf.TensorSpec((None, *shape), dtype, name=feed_name(i)) for i, (shape, dtype) in enumerate(specs.values())]
            frozen = convert_variables_to_constants_v2(tf.function(call).get_concrete_function(*given))
        path.write_bytes(frozen.graph.as_graph_def().SerializeToString())
    except Exception as error:
        msg = f"TensorFlow cannot write the model as one graph ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]})"
        raise ModelLoadError(msg) from error
    doubles = any(tensor.dtype.base_dtype == tf.float64 for operation in frozen.graph.get_operations() for tensor in operation.outputs)
    return [str(tensor.name) for tensor in frozen.outputs], doubles


def _shape(tensor: tf.Tensor, free: frozenset[int]) -> tuple[int | None, ...]:
    return tuple(None if axis in free else size for axis, size in enumerate(tensor.shape.as_list()) if axis)
