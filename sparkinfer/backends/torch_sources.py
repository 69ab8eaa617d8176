"""Reading PyTorch models: weights, factories, archives; the same on the driver, which checks, and on the workers.

Runs on: both.

Invariant: no file is unpickled unless the user said ``trust_pickle``; what is read is on the CPU, in evaluation mode.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from sparkinfer.artifacts import WORDS, local_path, sniff
from sparkinfer.backends.torch_pt2 import hidden_code
from sparkinfer.exceptions import MissingDependencyError, ModelLoadError, SparkInferError
from sparkinfer.pickling import dumps, loads

__all__ = [
    "build",
    "build_empty",
    "freeze",
    "mismatch",
    "read_export",
    "read_pickled_module",
    "read_plain",
    "read_script",
    "read_weights",
    "thaw",
]

Source = str | bytes  # a local path, or the content


def read_weights(source: Source) -> dict[str, torch.Tensor]:
    """Read named tensors, memory-mapped where the format allows it.

    Raises:
        ModelLoadError: it is no safetensors file and no state_dict.
    """
    found = read_plain(source)
    if isinstance(found, Mapping) and found and all(isinstance(v, torch.Tensor) for v in found.values()):
        return {str(name): tensor for name, tensor in found.items()}
    inside = [k for k, v in found.items() if isinstance(v, Mapping)] if isinstance(found, Mapping) else []
    hint = f" It looks like a training checkpoint: save its part {inside[0]!r} alone" if inside else ""
    msg = f"{_shown(source)} holds {_shape_of(found)}, expected a state_dict: names and tensors.{hint}"
    raise ModelLoadError(msg)


def read_plain(source: Source) -> Any:
    """Read tensors and plain containers of them; nothing that runs code.

    Raises:
        ModelLoadError: it holds more, or is another kind of file.
    """
    if _is_safetensors(source):
        return _read_safetensors(source)
    if isinstance(source, str) and (kind := sniff(source)) not in ("torch_save", "torch_legacy"):
        msg = f"{_shown(source)} is {WORDS[kind]}, expected a safetensors file or a state_dict written by torch.save"
        raise ModelLoadError(msg)
    try:
        if isinstance(source, bytes):
            return torch.load(io.BytesIO(source), weights_only=True, map_location="cpu")
        mapped = sniff(source) == "torch_save"  # the format before torch 1.6 cannot be mapped
        return torch.load(source, weights_only=True, map_location="cpu", mmap=mapped)
    except Exception as error:
        msg = (
            f"{_shown(source)} holds more than tensors, so torch refuses it with weights_only=True ({_first_line(error)}). Save the weights "
            "alone: torch.save(model.state_dict(), path), or safetensors"
        )
        raise ModelLoadError(msg) from error


def _shown(source: Source) -> str:
    return repr(source) if isinstance(source, str) else f"the content that came by value ({len(source)} bytes)"


def _is_safetensors(source: Source) -> bool:
    return source[8:9] == b"{" if isinstance(source, bytes) else sniff(source) == "safetensors"


def _read_safetensors(source: Source) -> dict[str, torch.Tensor]:
    try:  # only for those who use it: not every torch brings it
        from safetensors import SafetensorError  # noqa: PLC0415
        from safetensors.torch import load, load_file  # noqa: PLC0415
    except ImportError as error:
        msg = "the package 'safetensors' is not installed here: pip install 'sparkinfer[torch]'"
        raise MissingDependencyError(msg) from error
    try:
        found: dict[str, torch.Tensor] = load(source) if isinstance(source, bytes) else load_file(source)
    except SafetensorError as error:
        msg = f"{_shown(source)} is a damaged safetensors file ({error}): copy it again"
        raise ModelLoadError(msg) from error
    return found


def _shape_of(found: object) -> str:
    if isinstance(found, Mapping):
        return f"a {type(found).__name__} of {', '.join(f'{k}: {type(v).__name__}' for k, v in list(found.items())[:4]) or 'nothing'}"
    return f"a {type(found).__name__}"


def build_empty(factory: Callable[[], Any], label: str) -> nn.Module | None:
    """Build the module on the meta device, where tensors have shapes and no memory; ``None`` if its code needs real ones."""
    try:
        with torch.device("meta"):
            module = factory()
    except Exception:  # noqa: BLE001 - the caller builds it for real, and then the user's own error is told
        return None
    return _checked(module, label)


def build(factory: Callable[[], Any], weights: Mapping[str, torch.Tensor] | None, label: str) -> nn.Module:
    """Build a factory's module and give it its weights; without memory of its own where its code allows that.

    Raises:
        ModelLoadError: the factory raised, gave no module, or the weights do not fit.
    """
    if weights is None:
        return _built(factory, label)
    module = build_empty(factory, label)
    if module is not None:
        _refuse_mismatch(module, weights, label)
        expected = module.state_dict()
        fitting = {name: tensor.to(expected[name].dtype) for name, tensor in _with_tied(module, weights).items()}
        module.load_state_dict(fitting, assign=True)
        if not any(tensor.is_meta for tensor in _tensors(module)):
            return module
    module = _built(factory, label)  # a buffer outside the state_dict, or a plain attribute, is only filled by real code
    _refuse_mismatch(module, weights, label)
    module.load_state_dict(_with_tied(module, weights))
    return module


def _built(factory: Callable[[], Any], label: str) -> nn.Module:
    try:
        module = factory()
    except SparkInferError:
        raise
    except Exception as error:
        msg = f"the factory of {label} raised {type(error).__name__}: {_first_line(error)}"
        raise ModelLoadError(msg) from error
    return _checked(module, label)


def _checked(module: object, label: str) -> nn.Module:
    if not isinstance(module, nn.Module):
        msg = f"the factory of {label} gave a value of type {type(module).__name__}, expected an nn.Module. Other models go by PythonModel(load)"
        raise ModelLoadError(msg)
    return module


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        for value in vars(part).values():
            held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
            yield from (item for item in held if isinstance(item, torch.Tensor))


def _with_tied(module: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Add the names that safetensors leaves out because they share a tensor with another name."""
    first_name: dict[int, str] = {}
    parts = module.state_dict(keep_vars=True)
    for name, tensor in parts.items():
        if name in weights:
            first_name.setdefault(id(tensor), name)
    tied = {name: weights[first_name[id(t)]] for name, t in parts.items() if name not in weights and id(t) in first_name}
    return {**weights, **tied}


def mismatch(module: nn.Module, weights: Mapping[str, torch.Tensor]) -> str:
    """Tell how weights differ from what a module needs, in names and shapes; nothing if they fit."""
    expected = module.state_dict()
    given = _with_tied(module, weights)
    missing = [name for name in expected if name not in given]
    unexpected = [name for name in given if name not in expected]
    shapes = [
        f"{name} is {tuple(given[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in given and given[name].shape != tensor.shape
    ]
    told = (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
    return "; ".join(f"{len(names)} {word}: {_few(names)}" for word, names in told if names)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _refuse_mismatch(module: nn.Module, weights: Mapping[str, torch.Tensor], label: str) -> None:
    if difference := mismatch(module, weights):
        msg = f"the weights do not fit the module of {label}: {difference}. Are they of another model, or saved with a prefix?"
        raise ModelLoadError(msg)


def read_export(source: Source, *, trust_pickle: bool) -> Any:
    """Read a torch.export archive; gives the ``ExportedProgram``.

    Raises:
        ModelLoadError: it would run code and is not trusted, or it cannot be read.
    """
    try:
        found = [] if trust_pickle else hidden_code(source if isinstance(source, str) else io.BytesIO(source))
        if not found:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch's own old spellings
                return torch.export.load(source if isinstance(source, str) else io.BytesIO(source))
    except Exception as error:
        msg = (
            f"{_shown(source)} is no torch.export archive that torch {torch.__version__} can read ({type(error).__name__}: "
            f"{_first_line(error)}). Export it again with this version, or give a factory and weights"
        )
        raise ModelLoadError(msg) from error
    msg = (
        f"{_shown(source)} would run code when it is read: {_few(found)}. Export the model without such objects with torch.export; give a "
        "factory and weights (safetensors); or, if you trust the file, TorchModel(..., trust_pickle=True)"
    )
    raise ModelLoadError(msg)


def read_script(source: Source) -> Any:
    """Read TorchScript; torch reads it in C++, without Python's pickle.

    Raises:
        ModelLoadError: it cannot be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.13 says that TorchScript is deprecated; the user's file is what it is
            module: Any = torch.jit.load(source if isinstance(source, str) else io.BytesIO(source), map_location="cpu")  # type: ignore[no-untyped-call]
            return module
    except Exception as error:
        msg = f"{_shown(source)} is no TorchScript that torch {torch.__version__} can read ({type(error).__name__}: {_first_line(error)})"
        raise ModelLoadError(msg) from error


def read_pickled_module(source: Source, label: str) -> nn.Module:
    """Unpickle a whole module from a file that the user trusts.

    Raises:
        ModelLoadError: it holds something else, or code that it needs is missing.
    """
    try:
        found = torch.load(source if isinstance(source, str) else io.BytesIO(source), weights_only=False, map_location="cpu")
    except Exception as error:
        msg = f"{label} cannot be unpickled ({type(error).__name__}: {_first_line(error)}): the code of its classes must be importable here"
        raise ModelLoadError(msg) from error
    if not isinstance(found, nn.Module):
        msg = f"{label} holds {_shape_of(found)}, expected a whole nn.Module. Give a state_dict as weights: TorchModel(MyNet, weights=path)"
        raise ModelLoadError(msg)
    return found


def freeze(module: nn.Module, label: str) -> tuple[bytes, list[torch.Tensor]]:
    """Take a module apart: its code, pickled, and its tensors; shared tensors stay shared. The module is not changed."""
    places: dict[int, int] = {}
    tensors: list[torch.Tensor] = []

    def place(obj: object) -> object:
        if not isinstance(obj, torch.Tensor) or type(obj) not in (torch.Tensor, nn.Parameter):
            return None  # a subclass knows best how it is pickled
        if id(obj) not in places:
            places[id(obj)] = len(tensors)
            tensors.append(obj)
        return places[id(obj)], type(obj) is nn.Parameter, obj.requires_grad

    code = dumps(module, label, persistent_id=place)
    return code, [tensor.detach() for tensor in tensors]


def thaw(code: bytes, source: Source, label: str) -> nn.Module:
    """Put a module together again, its tensors memory-mapped."""
    if isinstance(source, bytes):
        tensors = torch.load(io.BytesIO(source), weights_only=True, map_location="cpu")
    else:
        tensors = torch.load(local_path(source), weights_only=True, map_location="cpu", mmap=True)
    made: dict[int, torch.Tensor] = {}

    def fetch(pid: tuple[int, bool, bool]) -> torch.Tensor:
        index, is_parameter, requires_grad = pid
        if index not in made:
            tensor = tensors[index]
            made[index] = nn.Parameter(tensor, requires_grad=requires_grad) if is_parameter else tensor
        return made[index]

    module: nn.Module = loads(code, label, persistent_load=fetch)
    return module


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
