"""PyTorch models on the driver: what the source is, whether it can be read, and what travels.

Runs on: driver.

Invariant: what a worker would refuse is refused here, in a sentence that names the ways out.
"""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sparkinfer.artifacts import WORDS, check_pin, fingerprint_of, local_path, memory_file, model_file, sniff
from sparkinfer.backends.torch_sources import (
    build,
    build_empty,
    freeze,
    mismatch,
    read_export,
    read_pickled_module,
    read_plain,
    read_script,
    read_weights,
)
from sparkinfer.engine.contracts import ModelPlan, TensorInfo
from sparkinfer.exceptions import ConfigError, ModelLoadError
from sparkinfer.models import required_arguments
from sparkinfer.pickling import dumps

if TYPE_CHECKING:
    from sparkinfer.models import TorchModel

__all__ = ["describe"]


def describe(model: TorchModel) -> ModelPlan:
    """Read and check a model.

    Raises:
        ModelLoadError: the file is missing, of another kind, runs code when read, or does not fit the factory.
        ConfigError: the source is no model, or cannot travel.
    """
    source = model.source
    if model.weights is not None and (isinstance(source, (nn.Module, str, os.PathLike)) or not callable(source)):
        msg = f"{model}: weights go with a factory, TorchModel(MyNet, weights=path), but the source is {_kind_of(source)}"
        raise ConfigError(msg)
    if isinstance(source, (str, os.PathLike)):
        return _describe_path(model)
    if model.sha256 is not None and model.weights is None:
        msg = f"{model}: sha256 pins a file's content, but no file is given"
        raise ConfigError(msg)
    if isinstance(source, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return _describe_bytes(model, "script", _script_bytes(source), _script_options(source))
    if isinstance(source, torch.export.ExportedProgram):
        return _describe_bytes(model, "export", _export_bytes(source), _export_options(source))
    if isinstance(source, nn.Module):
        return _describe_module(model, getattr(source, "_orig_mod", source))  # torch.compile's wrapper cannot travel, what it wraps can
    if callable(source) and not _is_keras(source):
        return _describe_factory(model, source)
    msg = f"TorchModel's source is {_kind_of(source)}, expected an nn.Module, a class or function that makes one, or a path. Other models go by PythonModel(load)"
    raise ConfigError(msg)


def _is_keras(source: object) -> bool:
    """Tell a Keras model, which is callable, from a factory; by name, since TensorFlow need not be here."""
    return any(kind.__module__.partition(".")[0] in ("keras", "tf_keras") for kind in type(source).__mro__)


def _kind_of(source: object) -> str:
    if _is_keras(source):
        return "a Keras model (which TensorFlowModel takes)"
    return f"the path {os.fspath(source)!r}" if isinstance(source, (str, os.PathLike)) else f"a {type(source).__name__}"


def _plan(model: TorchModel, kind: str, **told: Any) -> ModelPlan:
    payload: bytes = told.get("payload", b"")
    hashes = [file.sha256 for file in told.get("files", ())]
    fingerprint = fingerprint_of("torch", kind, payload, *hashes)
    return ModelPlan(backend="torch", kind=kind, fingerprint=fingerprint, label=repr(model), ship=model.ship, **told)


# --- a path


def _describe_path(model: TorchModel) -> ModelPlan:
    path = str(local_path(model.source))
    file = model_file("model", path)
    file = check_pin(file, model.sha256)
    kind = sniff(path)
    if kind == "torch_export":
        program = read_export(path, trust_pickle=model.trust_pickle)
        return _plan(model, "export", files=(file,), **_export_options(program, trust_pickle=model.trust_pickle))
    if kind == "torch_script":
        return _plan(model, "script", files=(file,), **_script_options(read_script(path)))
    if kind in ("torch_save", "torch_legacy", "pickle", "safetensors"):
        _refuse_weights_alone(path, kind)
        if not model.trust_pickle:
            msg = (
                f"{path!r} is {WORDS[kind]} and holds a whole module, whose reading runs the code that is in it. Ways out: the weights alone "
                f"with a factory, TorchModel(MyNet, weights='weights.safetensors') (or a state_dict); torch.export.save(...) and the .pt2 file; "
                f"or, if you trust the file, TorchModel({os.fspath(model.source)!r}, trust_pickle=True)"
            )
            raise ModelLoadError(msg)
        return _plan(model, "pickle", files=(file,), **_module_options(read_pickled_module(path, str(model))))
    msg = f"{path!r} is not a torch file but {WORDS[kind]}. Expected a torch.export archive (.pt2), TorchScript, or a factory with weights{_other_way(kind)}"
    raise ModelLoadError(msg)


def _other_way(kind: str) -> str:
    return ". Is it meant for TensorFlowModel?" if kind in ("saved_model", "keras", "hdf5") else ""


def _refuse_weights_alone(path: str, kind: str) -> None:
    if kind == "pickle":
        return
    try:
        read_plain(path)
    except ModelLoadError:
        if kind == "safetensors":
            raise
        return  # there is code in it
    weights = read_weights(path)
    few = ", ".join(list(weights)[:3])
    msg = f"{path!r} holds weights without a model ({len(weights)} tensors: {few}, ...). Give the code too: TorchModel(MyNet, weights={path!r})"
    raise ModelLoadError(msg)


# --- in memory


def _describe_bytes(model: TorchModel, kind: str, content: bytes, options: dict[str, Any]) -> ModelPlan:
    return _plan(model, kind, files=(memory_file("model", content, ".pt"),), **options)


def _describe_module(model: TorchModel, module: nn.Module) -> ModelPlan:
    code, tensors = freeze(module, repr(model))
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    file = memory_file("weights", buffer.getvalue(), ".pt")
    return _plan(model, "module", payload=code, files=(file,), **_module_options(module))


def _describe_factory(model: TorchModel, factory: Callable[[], Any]) -> ModelPlan:
    needed = required_arguments(factory)
    if needed:
        msg = f"{model}: the factory is called without arguments, but it needs {', '.join(map(repr, needed))}. Give TorchModel(lambda: {factory.__name__}(...))"
        raise ConfigError(msg)
    payload = dumps(factory, f"the factory of {model}")
    if model.weights is None:
        if isinstance(factory, type) and issubclass(factory, torch.nn.Module):
            msg = (
                f"{model}: a class without weights would be another, untrained network in every worker. Give weights=path, the trained module "
                "itself, or a function that makes the module and loads its weights"
            )
            raise ConfigError(msg)
        return _plan(model, "factory", payload=payload)
    file = model_file("weights", model.weights)
    file = check_pin(file, model.sha256)
    weights = read_weights(str(file.path))
    module = build_empty(factory, repr(model))
    if module is None:
        module = build(factory, None, repr(model))
    if difference := mismatch(module, weights):
        msg = f"{file.path!r} does not fit the module of {model}: {difference}. Is it of another model, or saved with a prefix?"
        raise ModelLoadError(msg)
    return _plan(model, "factory", payload=payload, files=(file,), **_module_options(module))


def _script_bytes(module: Any) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


def _export_bytes(program: Any) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


# --- what the model says of itself


def _module_options(module: nn.Module) -> dict[str, Any]:
    told: dict[str, Any] = {"float_dtype": _float_dtype(module)}
    with suppress(TypeError, ValueError):  # no signature: nothing is known
        told["options"] = {"forward": _forward(module.forward)}
    return told


def _forward(function: Callable[..., Any]) -> tuple[int, int | None, list[str]]:
    """Give the least and the most number of arguments, and their names, those that are needed first."""
    parameters = list(inspect.signature(function).parameters.values())
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in named if p.default is p.empty]
    most = len(named) if len(named) == len(parameters) else None
    return len(needed), most, needed + [p.name for p in named if p.default is not p.empty]


def _float_dtype(module: nn.Module) -> str | None:
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    return str(dtype).removeprefix("torch.") if dtype in (torch.float16, torch.float32, torch.float64) else None


def _script_options(module: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if isinstance(module, torch.jit.ScriptModule):
        if not hasattr(module, "forward"):
            msg = "the TorchScript module has no forward method: script one that has, or wrap it by PythonModel(load)"
            raise ModelLoadError(msg)
        told["float_dtype"] = _float_dtype(module)
    function: Any = module.forward if isinstance(module, torch.jit.ScriptModule) else module
    arguments = [a for a in function.schema.arguments if a.name != "self"]
    needed = [a.name for a in arguments if not a.has_default_value()]
    names = needed + [a.name for a in arguments if a.has_default_value()]
    return {**told, "options": {"forward": (len(needed), len(arguments), names)}}


def _export_options(program: Any, *, trust_pickle: bool = False) -> dict[str, Any]:
    """Tell an exported program's inputs, where they are tensors that stand side by side (and not in a list or a dict)."""
    if trained := [str(node.target) for node in program.graph.nodes if _trains(node)]:
        msg = (
            f"the program was exported in training mode ({trained[0]} is in it, switched on), which cannot be switched off afterwards: call "
            "model.eval() before torch.export.export(model, ...)"
        )
        raise ModelLoadError(msg)
    module = program.module()
    options: dict[str, Any] = {"forward": _forward(module.forward), "trust_pickle": trust_pickle}
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    names = list(program.graph_signature.user_inputs)
    values: list[Any] = [nodes[name].meta.get("val") if name in nodes else None for name in names]
    told: dict[str, Any] = {"options": options, "float_dtype": _float_dtype(module)}
    parameters = options["forward"][2]
    if len(names) == len(parameters) and all(isinstance(value, torch.Tensor) and value.ndim for value in values):
        told["inputs"] = tuple(_info(name, value) for name, value in zip(parameters, values, strict=True))
        if isinstance(values[0].shape[0], int):
            options["rows"] = values[0].shape[0]  # exported for one batch size only
    return told


def _trains(node: Any) -> bool:
    name = str(node.target)
    if name in ("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default"):
        return len(node.args) > 2 and node.args[2] is True
    return name == "aten.batch_norm.default" and len(node.args) > 5 and node.args[3] is not None and node.args[5] is True


def _info(name: str, value: Any) -> TensorInfo:
    shape = tuple(size if isinstance(size, int) else None for size in value.shape[1:])  # a free axis is a torch.SymInt
    return TensorInfo(name, str(value.dtype).removeprefix("torch."), shape)
