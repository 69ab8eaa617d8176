"""Describe a TensorFlow model: what its source is, and what a SavedModel says of itself.

Runs on: driver.

Invariant: of a SavedModel only the protocol buffer is read, never the graph or the variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from sparkinfer.artifacts import WORDS, check_pin, fingerprint_of, local_path, model_file, sniff
from sparkinfer.backends.tensorflow_arrays import float_dtype
from sparkinfer.backends.tensorflow_keras import describe_file, describe_object
from sparkinfer.backends.tensorflow_trust import code_in_graph
from sparkinfer.engine.contracts import ModelFile, ModelPlan, TensorInfo
from sparkinfer.exceptions import ConfigError, ModelLoadError, nearest

if TYPE_CHECKING:
    from sparkinfer.models import TensorFlowModel

__all__ = ["describe"]

_SERVING = "serving_default"


def describe(model: TensorFlowModel) -> ModelPlan:
    """Read and check a model.

    Args:
        model: its ``source`` is a path (a SavedModel directory, ``.keras``, ``.h5``) or a Keras model.

    Raises:
        ModelLoadError: it is missing, of another kind, holds code, has no such signature, or cannot be saved.
        ConfigError: an argument does not fit this kind of source.
    """
    source = model.source
    if isinstance(source, keras.Model):
        _only_for(model, "signature", "a SavedModel", model.signature)
        _only_for(model, "sha256", "a file or directory", model.sha256)
        return describe_object(model, source)
    if not isinstance(source, (str, os.PathLike)):
        msg = (
            f"{model}: the source is {type(source).__name__}, expected a path or a Keras model. Write a tf.Module or a function with "
            "tf.saved_model.save(module, directory, signatures=...) and give the directory, or wrap it as PythonModel(load)"
        )
        raise ModelLoadError(msg)
    path = local_path(source)
    file = check_pin(model_file("model", path), model.sha256)  # before anything looks into it
    kind = sniff(source)
    if kind not in ("saved_model", "keras", "hdf5"):
        msg = f"{model}: {os.fspath(source)!r} is {WORDS[kind]}, expected a SavedModel directory, a .keras archive or a Keras .h5 file"
        raise ModelLoadError(msg)
    if kind == "saved_model":
        return _describe_saved_model(model, path, file)
    _only_for(model, "signature", "a SavedModel", model.signature)
    return describe_file(model, path, file, kind)


def _only_for(model: TensorFlowModel, argument: str, kind: str, value: object) -> None:
    if value is not None:
        msg = f"{model}: {argument}={value!r} belongs to {kind}, which this is not: leave it out"
        raise ConfigError(msg)


def _describe_saved_model(model: TensorFlowModel, path: Path, file: ModelFile) -> ModelPlan:
    graph = _serving_graph(model, path)
    if not model.trust_pickle:
        _refuse_code(model, path, graph)
    signatures = {name: value for name, value in graph.signature_def.items() if not name.startswith("__")}
    name = _signature(model, sorted(signatures))
    inputs = tuple(_proto_info(key, value) for key, value in sorted(signatures[name].inputs.items()))
    outputs = tuple(_proto_info(key, value) for key, value in sorted(signatures[name].outputs.items()))
    return ModelPlan(
        backend="tensorflow",
        kind="saved_model",
        fingerprint=fingerprint_of("saved_model", file.sha256, name),
        label=repr(model),
        files=(file,),
        ship=model.ship,
        options={
            "signature": name,
            "tags": tuple(graph.meta_info_def.tags),
            "ordered": False,  # the protocol buffer keeps them as a map
            "tf_keras": _needs_tf_keras(model, graph),
            **_fixed_rows(signatures[name].inputs.values()),
        },
        inputs=inputs,
        outputs=outputs,
        float_dtype=float_dtype(inputs),
    )


def _refuse_code(model: TensorFlowModel, path: Path, graph: Any) -> None:
    other = [name for name in ("saved_model.cpb", "saved_model.pbtxt") if (path / name).exists()]
    found = [f"the operation {name}" for name in code_in_graph(graph)] + [
        f"{name} beside its saved_model.pb, which may be another" for name in other
    ]
    if found:
        msg = (
            f"{model} holds {', '.join(found)}: it could run Python, write files or speak to other machines. Export it without, or say "
            "trust_pickle=True if you trust where it comes from"
        )
        raise ModelLoadError(msg)


def _serving_graph(model: TensorFlowModel, path: Path) -> Any:
    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString((path / "saved_model.pb").read_bytes())
    except Exception as error:
        msg = f"{model}: {str(path / 'saved_model.pb')!r} cannot be read ({error}): it may have been cut short in a copy"
        raise ModelLoadError(msg) from error
    graphs = {tuple(graph.meta_info_def.tags): graph for graph in saved.meta_graphs}
    if not graphs:
        msg = f"{model}: {str(path / 'saved_model.pb')!r} holds no graph: it may have been cut short in a copy"
        raise ModelLoadError(msg)
    return graphs.get((tf.saved_model.SERVING,)) or next(iter(graphs.values()))


def _signature(model: TensorFlowModel, there: list[str]) -> str:
    if not there:
        msg = f"{model} has no signature that could be called: save it with tf.saved_model.save(module, path, signatures=...)"
        raise ModelLoadError(msg)
    asked = model.signature
    if asked is None and _SERVING not in there and len(there) == 1:
        return there[0]
    name = asked or _SERVING
    if name not in there:
        hint = nearest(name, there) if asked else "Choose one by signature=."
        msg = f"{model} has no signature {name!r}, but {', '.join(map(repr, there))}. {hint}"
        raise ModelLoadError(msg)
    return name


def _proto_info(name: str, proto: Any) -> TensorInfo:
    shape = None if proto.tensor_shape.unknown_rank else tuple(tf.TensorShape(proto.tensor_shape).as_list()[1:])
    return TensorInfo(name, tf.as_dtype(proto.dtype).name, shape)


def _fixed_rows(protos: Iterable[Any]) -> dict[str, int]:
    """Give the one batch size that a signature was traced for, where all its inputs have the same."""
    sizes = {proto.tensor_shape.dim[0].size if proto.tensor_shape.dim else -1 for proto in protos}
    rows = sizes.pop() if len(sizes) == 1 else -1
    return {"rows": rows} if rows > 0 else {}


def _needs_tf_keras(model: TensorFlowModel, graph: Any) -> bool:
    """Whether there is an optimizer of Keras 2 inside, which TensorFlow cannot restore without that Keras (seen in 2.21)."""
    nodes = graph.object_graph_def.nodes
    needed = any(node.user_object.identifier == "optimizer" and node.slot_variables for node in nodes)
    if needed and find_spec("tf_keras") is None:
        msg = (
            f"{model} was saved by Keras 2 with its training optimizer inside, which this TensorFlow ({tf.__version__}) cannot restore "
            "(it fails with: no attribute 'add_slot'). Install tf_keras here and on the workers, or export the model again "
            "without its optimizer"
        )
        raise ModelLoadError(msg)
    return needed
