"""One output column to Arrow, in exactly its declared type.

Runs on: worker.

Invariant: no value is changed by a cast, but for floats, which are rounded to the narrower type; ``NaN`` stays ``NaN``, and only
``None``, ``NaT`` and masked values become null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkinfer.engine.batch import Fault
from sparkinfer.engine.conform import as_array, inexact, objects
from sparkinfer.exceptions import OutputError
from sparkinfer.schema import to_ddl

__all__ = ["encode_column", "is_rows_of_dicts", "leading_axis", "rows_told", "told", "transposed"]

_DAYS = 2**31  # what a date counts, in int32
_MOST_ITEMS = 2**31 - 1  # what the int32 offsets of Spark's lists and texts can count


def encode_column(values: Any, data_type: pa.DataType, name: str, rows: int) -> pa.Array:
    """Give one column in its declared type.

    Args:
        values: ``(rows,)`` or ``(rows, 1)`` for single values, ``(rows, d1, ...)`` for arrays as deep; object arrays and lists with an
            item a row, which may differ in length; for a struct a mapping of its fields, a tuple of them in order, or dicts.
        data_type: what was declared.
        name: the column's, for messages.
        rows: how many there must be.

    Raises:
        Fault: a value or the shape does not fit the declared type; it has the row.
    """
    target = _Target(name, data_type)
    if types.is_struct(data_type):
        return _structs(values, target, rows)
    array = _column(values)
    if array.ndim == 0 or len(array) != rows:
        raise _misfit(target, f"{rows_told(array, leading_axis(array))}, expected {rows} rows")
    if types.is_list(data_type):
        return _lists(array, target)
    if array.ndim > 1 and all(axis == 1 for axis in array.shape[1:]):
        array = array.reshape(rows)
    if array.ndim > 1:
        raise _misfit(
            target, f"arrays of shape {array.shape[1:]} of {_kind(array)} in each row: declare an array, or reduce it in postprocess"
        )
    return _values(array, target)


@dataclass(frozen=True)
class _Target:
    """What is to be filled, and how messages call it."""

    name: str
    type: pa.DataType

    def item(self) -> _Target:
        return _Target(self.name, self.type.value_type)


def _misfit(target: _Target, found: str, row: int | None = None) -> Fault:
    return Fault(OutputError, f"output column {target.name!r} is declared {to_ddl(target.type)}, found {found}", row=row)


def _structs(values: Any, target: _Target, rows: int) -> pa.Array:
    fields = [target.type.field(i) for i in range(target.type.num_fields)]
    missing = None
    if is_rows_of_dicts(values):
        missing = np.array([row is None for row in values])
        values = transposed(values)
    if isinstance(values, Mapping) and all(field.name in values for field in fields):
        parts = [values[field.name] for field in fields]
    elif isinstance(values, tuple) and len(values) == len(fields):
        parts = list(values)
    elif not isinstance(values, tuple) and leading_axis(values) == rows and all(row is None for row in values):
        return pa.nulls(rows, target.type)
    else:
        came = f"a dict of {', '.join(map(str, values))}" if isinstance(values, Mapping) else told(values)
        raise _misfit(target, f"{came}: give a dict with the fields {', '.join(field.name for field in fields)}")
    children = [encode_column(part, field.type, f"{target.name}.{field.name}", rows) for part, field in zip(parts, fields, strict=True)]
    gone = 0 if missing is None else int(missing.sum())
    for field, child in zip(fields, children, strict=True):
        if not field.nullable and child.null_count > gone:
            raise _misfit(target, f"a null in its field {field.name!r}, which is declared NOT NULL")
    return pa.StructArray.from_arrays(children, fields=fields, mask=pa.array(missing) if gone else None)


def _lists(array: np.ndarray, target: _Target) -> pa.Array:
    if array.dtype.kind == "O" and array.ndim == 1:
        return _lists_of_rows(array, target)
    if array.ndim == 1 and not len(array):  # an empty list tells no rank
        return pa.array([], target.type)
    if array.ndim == 1:
        raise _misfit(target, f"scalars of {_kind(array)}: declare {to_ddl(target.type.value_type)}, or give arrays")
    rows, width = array.shape[:2]
    items = array.reshape(rows * width, *array.shape[2:])
    owner: Callable[[int], int] = lambda item: item // width  # noqa: E731 - where a row's items end is all that differs
    return _listed(items, np.arange(rows + 1, dtype=np.int64) * width, None, target, owner)


def _lists_of_rows(array: np.ndarray, target: _Target) -> pa.Array:
    """Chain rows that are arrays, lists or ``None``, of any length."""
    missing = _missing(array)
    rows = [None if gone else _column(row) for row, gone in zip(array, missing, strict=True)]
    for number, row in enumerate(rows):
        if row is not None and row.ndim == 0:
            raise _misfit(target, f"the scalar {array[number]!r}", number)
    present = [row for row in rows if row is not None and len(row)]
    offsets = np.concatenate(([0], np.cumsum([0 if row is None else len(row) for row in rows], dtype=np.int64)))
    alike = len({(row.shape[1:], row.dtype.kind) for row in present}) == 1
    join = np.ma.concatenate if any(isinstance(row, np.ma.MaskedArray) for row in present) else np.concatenate
    items = join(present) if alike else objects(item for row in present for item in row)
    return _listed(items, offsets, missing, target, lambda item: int(np.searchsorted(offsets, item, side="right")) - 1)


def _listed(items: np.ndarray, offsets: np.ndarray, missing: np.ndarray | None, target: _Target, owner: Callable[[int], int]) -> pa.Array:
    """Put a list's offsets around its items; one buffer each."""
    if offsets[-1] > _MOST_ITEMS:
        raise _misfit(
            target, f"{offsets[-1]} items in one batch, more than Arrow's lists can count ({_MOST_ITEMS}): make batch_size smaller"
        )
    inner = target.item()
    try:
        values = encode_column(items, inner.type, inner.name, len(items))
    except Fault as fault:
        text = fault.text.replace(f"declared {to_ddl(inner.type)},", f"declared {to_ddl(target.type)},", 1)
        raise Fault(fault.kind, text, row=None if fault.row is None else owner(fault.row)) from fault.__cause__
    mask = pa.array(missing) if missing is not None and missing.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=target.type, mask=mask)


# --- single values -----------------------------------------------------------------------------------------------------


def _values(array: np.ndarray, target: _Target) -> pa.Array:
    missing = _missing(array)
    if not missing.any():
        return _present(_typed(array), target)
    places = np.flatnonzero(~missing)
    try:
        values = _present(_typed(np.ma.getdata(array)[places]), target)
    except Fault as fault:
        row = None if fault.row is None else int(places[fault.row])
        raise Fault(fault.kind, fault.text, row=row) from fault.__cause__
    return values.take(pa.array(np.cumsum(~missing) - 1, mask=missing))


def _present(array: np.ndarray, target: _Target) -> pa.Array:
    """Encode values none of which is missing."""
    kind = array.dtype.kind
    data_type = target.type
    if not len(array):
        return pa.array([], data_type)
    if types.is_string(data_type) or types.is_binary(data_type):
        return _text(array, target)
    if types.is_boolean(data_type) and kind == "b":
        return pa.array(array)  # packed into bits, so a copy
    if (types.is_integer(data_type) or types.is_floating(data_type)) and kind in "iuf":
        return _numbers(array, target)
    if types.is_temporal(data_type) and kind == "M":
        return _moments(array, target)
    if (types.is_temporal(data_type) and kind == "O") or (types.is_decimal(data_type) and kind in "iufO"):
        return _by_arrow(array, target)
    raise _misfit(target, f"{_kind(array)}, such as {array[0]!r}: convert it in postprocess", 0)


def _numbers(array: np.ndarray, target: _Target) -> pa.Array:
    dtype = np.dtype(target.type.to_pandas_dtype())
    where = inexact(array, dtype)
    if where is not None:
        raise _misfit(
            target, f"{array[where]} ({array.dtype}), which it cannot hold: declare a wider type, or round in postprocess", where[0]
        )
    with np.errstate(over="ignore"):  # beyond the narrower float is infinity
        return pa.array(array.astype(dtype))  # always a copy: rows wait for their chunk, and a model may write its next answer here


def _text(array: np.ndarray, target: _Target) -> pa.Array:
    wanted = str if types.is_string(target.type) else bytes
    values = array.tolist()
    for row, value in enumerate(values):
        if isinstance(value, (bytes, bytearray)):
            try:
                values[row] = bytes(value) if wanted is bytes else value.decode()  # TensorFlow gives text as bytes
            except UnicodeDecodeError as error:
                raise _misfit(target, f"bytes that are no UTF-8: {value[:20]!r}", row) from error
        elif not isinstance(value, wanted):
            raise _misfit(target, f"{type(value).__name__} {value!r}: convert it in postprocess", row)
    try:
        encoded = pa.array(values, target.type)
    except UnicodeEncodeError as error:
        row = next(row for row, value in enumerate(values) if not _is_utf8(value))
        raise _misfit(target, f"a text that UTF-8 cannot hold ({error}): encode(errors='replace') it in postprocess", row) from error
    if isinstance(encoded, pa.ChunkedArray):
        raise _misfit(target, "more than 2 GiB in one batch, which Arrow cannot hold in one column: make batch_size smaller")
    return encoded


def _is_utf8(value: Any) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _moments(array: np.ndarray, target: _Target) -> pa.Array:
    unit = "datetime64[D]" if types.is_date(target.type) else "datetime64[us]"
    moments = array.astype(unit)
    odd = moments.astype(array.dtype) != array
    if types.is_date(target.type):
        odd |= np.abs(moments.astype(np.int64)) >= _DAYS
    if odd.any():
        row = int(odd.argmax())
        raise _misfit(target, f"{array[row]}, which is finer than {unit[11:-1]}, or too far from 1970: change it in postprocess", row)
    return pa.array(moments).cast(pa.timestamp("us") if unit.endswith("[us]") else target.type).cast(target.type)


def _by_arrow(array: np.ndarray, target: _Target) -> pa.Array:
    """Leave decimals, and Python's own dates, to Arrow's exact conversion."""
    try:
        if array.dtype.kind in "iu":  # Arrow asks for room for the widest integer first
            return pa.array(array).cast(pa.decimal128(38, target.type.scale)).cast(target.type)
        return pa.array(array.tolist(), target.type) if array.dtype.kind == "O" else pa.array(array).cast(target.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _misfit(target, f"{_kind(array)}, which does not fit ({error})") from error


# --- arrays of anything ------------------------------------------------------------------------------------------------


def _column(values: Any) -> np.ndarray:
    """Make an array with a leading axis of rows; an object array where the rows are text, or differ in shape."""
    if isinstance(values, (list, tuple)):
        if any(row is None or isinstance(row, (str, bytes, Mapping)) for row in values):
            return objects(values)
        try:
            return as_array(values)
        except ValueError:  # rows of unequal length
            return objects(values)
    if hasattr(values, "isna") and not isinstance(values.dtype, np.dtype):  # pandas' own dtypes, whose NA NumPy would take for NaN
        return np.asarray(values.to_numpy(dtype=object))
    return as_array(values)


def _typed(array: np.ndarray) -> np.ndarray:
    """Give an object array of numbers, booleans or NumPy's dates their own dtype."""
    if array.dtype.kind != "O" or not len(array):
        return array
    numbers = (bool, int, float, np.generic)
    if any(not isinstance(value, numbers) or isinstance(value, (str, bytes)) for value in array):
        return array
    booleans = {isinstance(value, (bool, np.bool_)) for value in array}
    return np.asarray(array.tolist()) if len(booleans) == 1 else array


def _missing(array: np.ndarray) -> np.ndarray:
    if isinstance(array, np.ma.MaskedArray):
        return np.asarray(np.ma.getmaskarray(array))
    if array.dtype.kind == "M":
        return np.asarray(np.isnat(array))
    if array.dtype.kind == "O":  # pandas' own missing value too, known by its name: pandas need not be imported
        return np.array([value is None or type(value).__name__ in ("NAType", "NaTType") for value in array], dtype=bool)
    return np.zeros(len(array), dtype=bool)


# --- what came -----------------------------------------------------------------------------------------------------------


def is_rows_of_dicts(values: Any) -> bool:
    """Say whether there is a dict for each row; single rows may be ``None``."""
    if not isinstance(values, list) and not (isinstance(values, np.ndarray) and values.dtype.kind == "O" and values.ndim == 1):
        return False
    return any(isinstance(row, Mapping) for row in values)


def transposed(rows: Sequence[Any]) -> dict[Any, list[Any]]:
    """Turn dicts of values into a dict of columns; a row that is ``None`` is null in each."""
    keys = next(list(row) for row in rows if row is not None)
    for number, row in enumerate(rows):
        if row is not None and not (isinstance(row, Mapping) and set(row) == set(keys)):
            came = ", ".join(map(str, row)) if isinstance(row, Mapping) else repr(row)
            raise Fault(OutputError, f"expected a dict of {', '.join(map(str, keys))}, as in the rows before, found {came}", row=number)
    return {key: [None if row is None else row[key] for row in rows] for key in keys}


def leading_axis(value: Any) -> int | None:
    """Count the rows of an array, a tensor or a list; ``None`` for what has none."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(value) if isinstance(value, (list, tuple)) else None


def rows_told(value: Any, found: int | None) -> str:
    """Tell what ``leading_axis`` found, or what came instead of rows."""
    if found is not None:
        return str(found)
    return "None" if value is None else f"a scalar ({told(value)})"


def told(value: Any) -> str:
    """Tell dtype and shape, or the type of what has none."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None:
        return type(value).__name__
    return f"{dtype} of shape {tuple(shape)}"


def _kind(array: np.ndarray) -> str:
    return type(array.flat[0]).__name__ if array.dtype.kind == "O" and array.size else str(array.dtype)
