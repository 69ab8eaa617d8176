"""Describe a Keras model, in a file or in memory: what it takes, and what must travel.

Runs on: driver.

Invariant: no code that lies in a file is run unless the user says ``trust_pickle=True``; the user's model is not changed.
"""

from __future__ import annotations

import inspect
import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from sparkinfer.artifacts import WORDS, Kind, driver_folder, fingerprint_of, model_file
from sparkinfer.backends.tensorflow_arrays import float_dtype
from sparkinfer.backends.tensorflow_precision import computes
from sparkinfer.backends.tensorflow_trust import code_in_keras_file, config_of
from sparkinfer.engine.contracts import ModelFile, ModelPlan, TensorInfo
from sparkinfer.exceptions import ModelLoadError
from sparkinfer.pickling import dumps

if TYPE_CHECKING:
    from sparkinfer.models import TensorFlowModel

__all__ = ["describe_file", "describe_object", "struct_names"]

_BY_VALUE_BYTES = 1_000_000  # a smaller model that only exists in memory travels inside the plan


def describe_file(model: TensorFlowModel, path: Path, file: ModelFile, kind: Kind) -> ModelPlan:
    """Describe a ``.keras`` or ``.h5`` file; it is loaded once here, so that what is wrong with it shows on the driver.

    Raises:
        ModelLoadError: it holds code and is not trusted, or weights only, or Keras cannot load it.
    """
    endings = (".keras",) if kind == "keras" else (".h5", ".hdf5")
    if not path.name.endswith(endings):
        msg = f"{model}: {str(path)!r} is {WORDS[kind]} by its content, which Keras reads by the file's name: rename it to end in {' or '.join(endings)}"
        raise ModelLoadError(msg)
    if not model.trust_pickle:
        _refuse_code(model, path, kind)
    try:
        loaded = keras.models.load_model(path, compile=False, safe_mode=not model.trust_pickle)
    except Exception as error:
        msg = (
            f"{model}: Keras cannot load {str(path)!r} ({type(error).__name__}: {_first_line(error)}). If it has classes of your own, "
            "import them before (registered by @keras.saving.register_keras_serializable()), or give the model object"
        )
        raise ModelLoadError(msg) from error
    plan = _keras_plan(model, loaded, kind, trusted=model.trust_pickle)
    return replace(plan, fingerprint=fingerprint_of("keras", file.sha256, plan.payload), files=(file,))


def _refuse_code(model: TensorFlowModel, path: Path, kind: Kind) -> None:
    try:
        config = config_of(path, kind)
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        msg = f"{model}: the architecture in {str(path)!r} cannot be read ({type(error).__name__}: {_first_line(error)}): it may have been cut short"
        raise ModelLoadError(msg) from error
    if config is None:
        msg = (
            f"{model}: {str(path)!r} holds weights without the model. Build the model, call model.load_weights({str(path)!r}), "
            "and give the model object"
        )
        raise ModelLoadError(msg)
    layers = [str(found.get("name", "?")) for found in _code_layers(config)]
    if layers:
        msg = (
            f"{model}: {str(path)!r} holds Python code as bytes, in the Lambda layer {', '.join(map(repr, layers))}, and reading it "
            "would run it. Export the model as a SavedModel (model.export(directory)), or write the layer as a class registered by "
            "@keras.saving.register_keras_serializable(), or say trust_pickle=True if you trust the file"
        )
        raise ModelLoadError(msg)
    if (found := code_in_keras_file(config, path, kind)) is not None:
        msg = (
            f"{model}: {str(path)!r} holds {found}: reading it would reach out of the model. Import classes and functions of your own before "
            "(registered by @keras.saving.register_keras_serializable()), export the model as a SavedModel (model.export(directory)), or say "
            "trust_pickle=True if you trust the file"
        )
        raise ModelLoadError(msg)


def _code_layers(config: object) -> Iterator[dict[str, Any]]:
    """Find the configurations of the layers that hold marshalled code: Keras 3 says ``__lambda__``, Keras 2 a type beside it."""
    if isinstance(config, dict):
        values = [value for value in config.values() if isinstance(value, dict)]
        if any(value.get("class_name") == "__lambda__" for value in values) or "lambda" in (
            config.get("function_type"),
            config.get("output_shape_type"),
        ):
            yield config
            return
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            yield from _code_layers(value)


def describe_object(model: TensorFlowModel, source: keras.Model) -> ModelPlan:
    """Describe a model in memory; it is saved, and loaded once here to see that nothing was lost.

    Raises:
        ModelLoadError: it has no weights yet, or cannot be saved and loaded again.
    """
    if not source.built:
        msg = f"{model} has no weights yet: call it once on a batch, or build it (model.build(shape))"
        raise ModelLoadError(msg)
    state = fingerprint_of(_config(model, source), *map(_bytes_of, source.get_weights()))
    file = _saved(model, source, state)
    # after the saving: Keras looks at a class's __annotations__ then, which adds them to the class and so to its pickle
    plan = _keras_plan(model, source, "keras_object", trusted=True)
    return replace(plan, fingerprint=fingerprint_of("keras", state, plan.payload), files=(file,))


def _config(model: TensorFlowModel, source: keras.Model) -> str:
    try:
        return json.dumps(_plain(keras.saving.serialize_keras_object(source)), sort_keys=True, default=repr)
    except Exception as error:
        raise _not_saved(model, error) from error


def _plain(config: object) -> object:
    """Leave out what Keras numbers anew each time, and what only training needs."""
    if isinstance(config, dict):
        dropped = ("shared_object_id", "compile_config")
        return {str(key): _plain(value) for key, value in config.items() if key not in dropped}
    return [_plain(value) for value in config] if isinstance(config, (list, tuple)) else config


def _bytes_of(weights: Any) -> bytes:
    return f"{weights.dtype}{weights.shape}".encode() + np.ascontiguousarray(weights).tobytes()


def _saved(model: TensorFlowModel, source: keras.Model, state: str) -> ModelFile:
    """Write the model once for each state of its weights: the time in the archive would make each copy another file."""
    path = driver_folder() / f"{state}.keras"
    if not path.exists():
        draft = path.with_suffix(".draft.keras")
        try:
            source.save(draft)
            loaded = keras.models.load_model(draft, compile=False, safe_mode=False, custom_objects=_own_code(source))
            _compare(source.get_weights(), loaded.get_weights())
        except Exception as error:
            raise _not_saved(model, error) from error
        draft.rename(path)
    file = model_file("model", path)
    return replace(file, path=None, content=path.read_bytes()) if file.size_bytes < _BY_VALUE_BYTES else file


def _compare(before: list[np.ndarray], after: list[np.ndarray]) -> None:
    """A class that builds its layers late can lose weights on the way, with no more than a warning (seen in Keras 3.15)."""
    if len(before) != len(after) or not all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
        msg = "the weights were not the same after saving and loading"
        raise ValueError(msg)


def _not_saved(model: TensorFlowModel, error: Exception) -> ModelLoadError:
    return ModelLoadError(
        f"{model} cannot be saved and loaded again as .keras ({type(error).__name__}: {_first_line(error)}). Give your own classes "
        "get_config() and build(), or export the model (model.export(directory)) and give the directory, or wrap it as PythonModel(load)"
    )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")


def _keras_plan(model: TensorFlowModel, loaded: keras.Model, kind: str, *, trusted: bool) -> ModelPlan:
    custom = _own_code(loaded)
    struct = getattr(loaded, "input", None)  # a subclassed model does not know its inputs
    inputs = None if struct is None else _infos(struct_names(struct), _struct_tensors(struct))
    outputs = None if struct is None else _infos(_output_names(loaded), _struct_tensors(loaded.output))
    return ModelPlan(
        backend="tensorflow",
        kind=kind,
        fingerprint="",
        label=repr(model),
        payload=dumps(custom, f"the classes of {model}") if custom else b"",
        ship=model.ship,
        options={
            "trusted": trusted,
            "ordered": not isinstance(struct, dict),
            "one_input": isinstance(loaded, keras.Sequential),
            "computes": computes(loaded),
        },
        inputs=inputs,
        outputs=outputs,
        float_dtype=str(loaded.variable_dtype) if inputs is None else float_dtype(inputs),
    )


def _own_code(model: keras.Model) -> dict[str, Any]:
    """The classes and functions in the model that Keras does not bring, by the name under which Keras asks for them."""
    layers = list(model._flatten_layers())  # noqa: SLF001 - no public way sees the layers of a subclassed model at any depth
    found: list[Any] = [type(layer) for layer in layers]
    for layer in layers:
        for name, part in vars(layer).items():
            if inspect.isfunction(part) and not hasattr(type(layer), name):  # one named as a method is Keras's wrapper of it
                found.append(part)
            elif hasattr(part, "get_config"):  # an initializer, a regularizer, a constraint
                found.append(type(part))
    own = [part for part in found if not str(part.__module__).startswith(("keras.", "tensorflow.")) and part.__name__ != "<lambda>"]
    return {keras.saving.get_registered_name(part): part for part in own}


def struct_names(struct: Any) -> list[str]:
    """Name the inputs or outputs of a functional model: by their keys, or else by the layers that made them.

    An input that was given no name has one as a tensor (``keras_tensor_7``) that is another one after loading; its layer's stays.
    """
    if isinstance(struct, dict):
        return [str(name) for name in struct]
    tensors = struct if isinstance(struct, (list, tuple)) else [struct]
    return [str(tensor._keras_history.operation.name) for tensor in tensors]  # noqa: SLF001 - Keras names the maker nowhere else


def _struct_tensors(struct: Any) -> list[Any]:
    """Give them in the names' order; ``model.inputs`` has those of a dict in the order of its keys (seen in Keras 3.15)."""
    if isinstance(struct, dict):
        return list(struct.values())
    return list(struct) if isinstance(struct, (list, tuple)) else [struct]


def _output_names(model: keras.Model) -> list[str]:
    return struct_names(model.output) if isinstance(model.output, dict) else [str(name) for name in model.output_names]


def _infos(names: list[str], tensors: Iterable[Any]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name, str(tensor.dtype), tuple(tensor.shape[1:])) for name, tensor in zip(names, tensors, strict=True))
