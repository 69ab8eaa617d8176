"""MLflow's signatures, as ``TensorInfo``.

Runs on: driver (standard library only).

Invariant: an input without a name is called ``input``, an output without one ``prediction`` (``_1``, ``_2``, ... where there are several).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sparkinfer.engine.contracts import TensorInfo

__all__ = ["Layout", "inputs_of", "layout_of", "outputs_of"]

Layout = Literal["columns", "tensors", "none"]
Spec = Mapping[str, Any]  # as MLflow writes it, such as {"type": "double", "name": "a", "required": True}

_COLUMN_TYPES = {
    "boolean": "bool",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "binary": "bytes",
    "datetime": "datetime",
}


def layout_of(specs: Sequence[Spec] | None) -> Layout:
    """Say what a signature's side is made of."""
    if not specs:
        return "none"
    return "tensors" if specs[0]["type"] == "tensor" else "columns"


def inputs_of(specs: Sequence[Spec] | None) -> tuple[TensorInfo, ...] | None:
    """Read a signature's inputs."""
    return _infos(specs, "input")


def outputs_of(specs: Sequence[Spec] | None) -> tuple[TensorInfo, ...] | None:
    """Read a signature's outputs."""
    return _infos(specs, "prediction")


def _infos(specs: Sequence[Spec] | None, unnamed: str) -> tuple[TensorInfo, ...] | None:
    if not specs:
        return None
    names = [unnamed] if len(specs) == 1 else [f"{unnamed}_{number}" for number in range(1, len(specs) + 1)]
    return tuple(_info(spec, str(spec.get("name") or name)) for spec, name in zip(specs, names, strict=True))


def _info(spec: Spec, name: str) -> TensorInfo:
    if spec["type"] == "tensor":
        tensor = spec["tensor-spec"]
        axes = tuple(None if axis < 0 else int(axis) for axis in tensor["shape"][1:])
        return TensorInfo(name, _tensor_dtype(str(tensor["dtype"])), axes)
    dtype, shape = _column_type(spec)
    return TensorInfo(name, dtype, shape, optional=spec.get("required") is False or spec.get("optional") is True)


def _tensor_dtype(dtype: str) -> str:
    """Name a tensor's type; text is ``str`` there, or ``object``, which says nothing of what it holds."""
    return "string" if dtype.startswith("str") else "bytes" if dtype.startswith("bytes") else dtype


def _column_type(spec: Spec) -> tuple[str, tuple[int | None, ...] | None]:
    kind = spec["type"]
    if kind == "array":
        dtype, shape = _column_type(spec["items"])
        return dtype, None if shape is None else (None, *shape)
    if kind == "sparkml_vector":
        return "float64", (None,)
    return (_COLUMN_TYPES[kind], ()) if kind in _COLUMN_TYPES else ("object", None)
