"""Arrays as tensors and back, without a copy where torch allows it.

Runs on: worker, loader workers.

Invariant: no value is changed: integers that torch computes little with are widened exactly, or refused.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from sparkinfer.engine.batch import Fault
from sparkinfer.exceptions import OutputError, SchemaError

__all__ = ["map_tensors", "plain_dtype", "plain_structure", "to_arrays", "to_plain", "to_tensor"]

_WIDER = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}  # torch has these types, but hardly an operator for them
_NO_NUMPY = {torch.bfloat16, *(getattr(torch, n) for n in dir(torch) if n.startswith("float8_"))}

with warnings.catch_warnings():  # torch tells once a process that a read-only array (Arrow memory) may be written to: the model guards it
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"\0", dtype=np.uint8))


def to_tensor(array: Any) -> Any:
    """Give an array as a tensor that shares its memory; text and bytes (object arrays) as a list.

    Raises:
        Fault: a ``uint64`` value does not fit int64.
    """
    if isinstance(array, (torch.Tensor, list)):
        return array
    array = np.asarray(array)
    if array.dtype.kind in "OUS":
        return array.tolist()
    if array.dtype.kind in "mM":
        array = array.view(np.int64)
    elif wider := _WIDER.get(array.dtype.name):
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise Fault(SchemaError, f"the value {array.max()} does not fit int64, the widest integer that torch computes with")
        array = array.astype(wider)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    return torch.from_numpy(array)


def to_arrays(result: Any) -> Any:
    """Give what a model returned as NumPy arrays: one, a list, or a dict.

    Mappings, dataclasses and named tuples (also Hugging Face's ``ModelOutput``) become dicts, without their ``None`` entries.

    Raises:
        Fault: something in it is no tensor.
    """
    result = plain_structure(result)
    if isinstance(result, dict):
        return {name: _to_array(value, f" under {name!r}") for name, value in result.items()}
    if isinstance(result, list):
        return [_to_array(value, f" at position {i}") for i, value in enumerate(result)]
    return _to_array(result, "")


def plain_structure(result: Any) -> Any:
    """Give what a model returned as a dict or a list of its parts, or as it is; without the entries of a dict that are ``None``."""
    if isinstance(result, (torch.Tensor, np.ndarray)):
        return result
    if dataclasses.is_dataclass(result) and not isinstance(result, (type, Mapping)):
        result = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        result = dict(zip(result._fields, result, strict=True))
    if isinstance(result, Mapping):
        return {str(name): value for name, value in result.items() if value is not None}
    return list(result) if isinstance(result, (tuple, list)) else result


def _to_array(value: Any, where: str) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, torch.Tensor):
        text = f"the model gave a {type(value).__name__}{where}, expected a tensor: return tensors only, one, a tuple or a dict of them"
        raise Fault(OutputError, text)
    array: np.ndarray = to_plain(value).cpu().numpy()
    return array


def to_plain(value: torch.Tensor) -> torch.Tensor:
    """Give a tensor as NumPy can have it once it is on the host."""
    tensor = value.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return plain_dtype(tensor).resolve_conj().resolve_neg()


def map_tensors(function: Callable[[torch.Tensor], Any], result: Any) -> Any:
    """Apply a function to the tensors of a plain structure; what is no tensor stays."""
    if isinstance(result, dict):
        return {name: map_tensors(function, value) for name, value in result.items()}
    if isinstance(result, list):
        return [map_tensors(function, value) for value in result]
    return function(result) if isinstance(result, torch.Tensor) else result


def plain_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """Widen a type that NumPy does not have."""
    return tensor.float() if tensor.dtype in _NO_NUMPY else tensor
