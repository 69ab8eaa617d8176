"""Which column types can become a model's input at all: the driver's half of ``columns.decode``.

Runs on: driver.

Invariant: a type that passes here is one that ``decode`` knows; values (ragged rows, nulls) are for the workers to judge.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pyarrow import types as arrow

from sparkinfer.engine.columns import is_ml_vector, refusal
from sparkinfer.exceptions import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkinfer.schema import TensorSpec

__all__ = ["check_type"]

_TEXT = (arrow.is_string, arrow.is_large_string, arrow.is_binary, arrow.is_large_binary, arrow.is_fixed_size_binary)


def check_type(data_type: pa.DataType, column: str, spec: TensorSpec | None, *, function: Literal["row", "batch"] | None) -> None:
    """Refuse a column that can never be decoded, or never fit what was declared for it.

    Args:
        data_type: as the column arrives.
        column: its name, for the message.
        spec: what was declared to reach the model.
        function: what stands between the column and the model, if anything; then ``spec`` says nothing of the column.

    Raises:
        SchemaError: names the column, its type, and what to do.
    """
    problem = refusal(data_type, per_row=function == "row")
    if problem is not None:
        msg = f"the column {column!r} {problem}"
        raise SchemaError(msg)
    if spec is not None and function is None and (is_ml_vector(data_type) or not arrow.is_struct(data_type)):
        _check_spec(data_type, column, spec)


def _check_spec(data_type: pa.DataType, column: str, spec: TensorSpec) -> None:
    depth, item = _innermost(data_type)
    text = any(is_kind(item) for is_kind in _TEXT)
    if spec.dtype is not None and text != (spec.dtype in ("string", "bytes")):
        msg = (
            f"the column {column!r} is {data_type}, and its TensorSpec asks for {spec.dtype}: text and bytes become numbers only by a "
            "preprocess; numbers become text by a cast in Spark"
        )
        raise SchemaError(msg)
    if depth == 0 and spec.shape and math.prod(axis or 1 for axis in spec.shape) != 1:
        msg = (
            f"the column {column!r} is {data_type}, one value a row, and its TensorSpec asks for the shape {spec.shape}: give an array "
            "column, or a preprocess"
        )
        raise SchemaError(msg)
    if depth and spec.shape == ():
        msg = f"the column {column!r} is {data_type}, and its TensorSpec asks for the shape (), one value a row: give its shape, or None"
        raise SchemaError(msg)


def _innermost(data_type: pa.DataType) -> tuple[int, pa.DataType]:
    """Give how many axes an array column has, and the type of its items."""
    if is_ml_vector(data_type):
        return 1, data_type.field("values").type.value_type
    if arrow.is_list(data_type) or arrow.is_large_list(data_type) or arrow.is_fixed_size_list(data_type):
        depth, item = _innermost(data_type.value_type)
        return depth + 1, item
    return 0, data_type
