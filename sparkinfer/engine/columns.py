"""Arrow columns to arrays: zero-copy where no null and no cast forces a copy.

Runs on: worker, on the read-ahead thread or in a loader process; ``is_ml_vector`` on the driver too.

Invariant: row ``i`` of the array is row ``i`` of the column, also where the column is a slice of a larger one; no Python object is
made for a row, but for text, bytes and rows of unequal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkinfer.engine.batch import Fault
from sparkinfer.engine.conform import conform, cut_rows, is_ragged, objects, stack_rows, uneven
from sparkinfer.exceptions import SchemaError

__all__ = [
    "bad_nulls",
    "conform",
    "cut_rows",
    "decode",
    "decode_rows",
    "describe_null",
    "is_ml_vector",
    "stack_rows",
    "whole_numbers",
]

Nulls = Literal["refuse", "pass"]

# How pyspark.ml's VectorUDT lies in Arrow: type 0 is sparse, type 1 is dense (without size and indices)
_ML_VECTOR = {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}


def is_ml_vector(data_type: pa.DataType) -> bool:
    """Say whether this is how Spark sends a ``pyspark.ml`` vector."""
    if not types.is_struct(data_type) or data_type.num_fields != len(_ML_VECTOR):
        return False
    fields = {field.name: field.type for field in (data_type.field(i) for i in range(data_type.num_fields))}
    return list(fields) == list(_ML_VECTOR) and all(
        types.is_list(fields[name]) and fields[name].value_type == wanted.value_type if types.is_list(wanted) else fields[name] == wanted
        for name, wanted in _ML_VECTOR.items()
    )


# --- nulls -------------------------------------------------------------------------------------------------------------


def bad_nulls(column: pa.Array) -> np.ndarray | None:
    """Find the rows that are null, or hold a null at any depth; in an ML vector only the whole row counts.

    Returns:
        ``(rows,)`` bool, or ``None`` where there is none, which costs no look at the values.
    """
    column = _plain(column)
    masks = [column.is_null().to_numpy(zero_copy_only=False)] if column.null_count else []
    if _is_list(column.type) and len(column):
        offsets, items = _items(column)
        inside = bad_nulls(items)
        if inside is not None:
            count = np.concatenate(([0], np.cumsum(inside)))[offsets - offsets[0]]
            masks.append(count[1:] > count[:-1])
    elif types.is_struct(column.type) and not is_ml_vector(column.type):
        masks += [mask for i in range(column.type.num_fields) if (mask := bad_nulls(column.field(i))) is not None]
    return np.logical_or.reduce(masks) if masks else None


def describe_null(column: pa.Array, row: int) -> str:
    """Say where in a bad row the null is, such as ``field 'b' is null``."""
    return _null_place(_plain(column.slice(row, 1)), "")


def _null_place(one: pa.Array, field: str) -> str:
    if one.null_count:
        return f"field {field!r} is null" if field else "the value is null"
    if types.is_struct(one.type):
        bad = next(i for i in range(one.type.num_fields) if bad_nulls(one.field(i)) is not None)
        name = one.type.field(bad).name
        return _null_place(one.field(bad), f"{field}.{name}" if field else name)
    return f"there is a null inside the array of field {field!r}" if field else "there is a null inside the array"


# --- one array a column ------------------------------------------------------------------------------------------------


def decode(column: pa.Array, name: str, *, ragged: bool = False, nulls: Nulls = "refuse") -> np.ndarray | dict[str, np.ndarray]:
    """Give a column's values as one array.

    Args:
        column: of any type that ``column_types.check_type`` lets through.
        name: the column's, for messages.
        ragged: rows of unequal length are allowed.
        nulls: ``"refuse"``: the caller has seen to it that there is none. ``"pass"``: in text and bytes they become ``None``, in
            floats ``NaN``, in dates and timestamps ``NaT``.

    Returns:
        ``(rows, ...)``. Numbers keep their dtype, decimals become float64, dates ``datetime64[D]``, timestamps ``datetime64[us]``
        (UTC), text and bytes object arrays, arrays and ML vectors one axis more for each level. Rows of unequal length come as an
        object array ``(rows,)`` of arrays. A struct gives a dict of its fields, those of nested structs as ``a.b``.

    Raises:
        Fault: the type cannot be handed over, rows differ in length, or a null has no place in its type.
    """
    column = _plain(column)
    if types.is_struct(column.type) and not is_ml_vector(column.type):
        return _fields(column, name, ragged=ragged, nulls=nulls)
    return _array(column, name, ragged=ragged, nulls=nulls)


def _fields(column: pa.Array, name: str, *, ragged: bool, nulls: Nulls) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for i, child in enumerate(column.flatten()):  # unlike field(), with the struct's own nulls
        field = column.type.field(i).name
        values = decode(child, f"{name}.{field}", ragged=ragged, nulls=nulls)
        arrays |= {f"{field}.{inner}": array for inner, array in values.items()} if isinstance(values, dict) else {field: values}
    return arrays


def _array(column: pa.Array, name: str, *, ragged: bool, nulls: Nulls) -> np.ndarray:
    problem = refusal(column.type)
    if problem is not None:
        raise Fault(SchemaError, f"the column {problem}", column=name)
    if not _is_nested(column.type):
        return _flat(column, name)
    if column.null_count:
        text = "an array that is null cannot be handed to a model: say on_null='null', fill it with coalesce(), or filter it before"
        raise Fault(SchemaError, text, column=name, row=_first_null(column))
    if is_ml_vector(column.type):
        return _vectors(column, name, ragged=ragged)
    if not len(column):
        return np.empty((0,) * (_depth(column.type) + 1), dtype=_flat(pa.array([], _leaf(column.type)), name).dtype)
    offsets, items = _items(column)
    try:
        values = _array(_plain(items), name, ragged=ragged, nulls=nulls)
    except Fault as fault:
        raise _of_row(fault, np.repeat(np.arange(len(column)), np.diff(offsets))) from fault.__cause__
    return _fold(values, offsets, name, ragged=ragged)


def _flat(column: pa.Array, name: str) -> np.ndarray:
    if column.null_count and (types.is_integer(column.type) or types.is_boolean(column.type)):
        text = (
            f"a null cannot be handed to a model as {column.type}: say on_null='null', cast the column to double (the null becomes NaN), "
            "or fill it with coalesce()"
        )
        raise Fault(SchemaError, text, column=name, row=_first_null(column))
    if types.is_decimal(column.type):
        column = column.cast(pa.float64())
    elif types.is_date64(column.type):
        column = column.cast(pa.date32())
    elif types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"), safe=False)  # Spark's own unit; with a zone, the values are UTC already
    try:
        values: np.ndarray = column.to_numpy(zero_copy_only=False)  # copies nothing where the buffer will do
    except (ValueError, pa.ArrowException) as error:
        raise _unreadable(column, name) from error
    return values


def _python_values(column: pa.Array, name: str) -> list[object]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise _unreadable(column, name) from error


def _unreadable(column: pa.Array, name: str) -> Fault:
    """Tell of the first value that Python cannot hold, though Spark can."""
    row = next((row for row in range(len(column)) if not _readable(column[row])), None)
    if types.is_temporal(column.type):
        text = "the value lies outside of the years 1 to 9999, which are all that Python has: filter it before, or cast the column to a number or a string"
    elif row is None or not types.is_string(column.type):
        text = "a text in it is no UTF-8: decode() it in Spark, or hand it over as binary"
    else:
        begun = bytes(column[row].as_buffer())[:20]
        text = f"the text is no UTF-8 (it begins with {begun!r}): hand the column over as binary, or decode() it in Spark before"
    return Fault(SchemaError, text, column=name, row=row)


def _readable(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (ValueError, OverflowError):
        return False
    return True


def whole_numbers(column: pa.Array, name: str) -> pa.Array:
    """Make decimals, in arrays too, int64 as they are: by way of float64 the digits beyond the sixteenth would change.

    Raises:
        Fault: one is no whole number, or larger than int64 holds; it has the row.
    """
    if not types.is_decimal(_leaf(column.type)):
        return column
    wanted = _with_leaf(column.type, pa.int64())
    column = column.take(pa.array(np.arange(len(column))))  # Arrow casts a list's items outside of the slice too (seen in 25.0)
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        row = next((row for row in range(len(column)) if not _castable(column.take(pa.array([row])), wanted)), None)
        raise Fault(
            SchemaError, f"the column is {column.type} and asked for as integers, but holds another number ({error})", column=name, row=row
        ) from error


def _castable(one: pa.Array, wanted: pa.DataType) -> bool:
    try:
        one.cast(wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _vectors(column: pa.Array, name: str, *, ragged: bool) -> np.ndarray:
    """Lay out ML vectors side by side, sparse ones filled with zeros."""
    kinds, sizes, indices, values = (column.field(i) for i in range(4))
    sparse = kinds.to_numpy(zero_copy_only=False) == 0
    offsets, items = _items(values) if len(column) else (np.zeros(1, np.int64), pa.array([], pa.float64()))
    numbers = items.to_numpy()
    if not sparse.any():
        return _fold(numbers, offsets, name, ragged=ragged)
    lengths = np.diff(offsets)
    owner = np.repeat(np.arange(len(column)), lengths)
    place = np.arange(len(numbers)) - (offsets[:-1] - offsets[0])[owner]
    place[sparse[owner]] = indices.flatten().to_numpy()  # flatten drops the dense rows' nulls
    ends = np.concatenate(([0], np.cumsum(np.where(sparse, sizes.fill_null(0).to_numpy(), lengths))))
    dense = np.zeros(ends[-1])
    dense[ends[owner] + place] = numbers
    return _fold(dense, ends, name, ragged=ragged)


def _fold(items: np.ndarray, offsets: np.ndarray, name: str, *, ragged: bool) -> np.ndarray:
    """Cut the items into rows: one more axis where the rows are of one length."""
    lengths = np.diff(offsets)
    width = int(lengths[0]) if len(lengths) else 0
    odd = lengths != width
    if not odd.any() and not is_ragged(items):
        return items.reshape(len(lengths), width, *items.shape[1:])
    if not ragged:
        row = int(odd.argmax())
        raise uneven(width, int(lengths[row]), row, name)
    ends = (offsets - offsets[0]).tolist()
    return objects(items[start:end] for start, end in pairwise(ends))


# --- one value a row ---------------------------------------------------------------------------------------------------


def decode_rows(column: pa.Array, name: str) -> Sequence[object]:
    """Give one Python value a row, for a function that works on rows.

    Returns:
        ``str``, ``bytes``, ``int``, ``float``, ``bool``, ``Decimal``, ``date`` or ``datetime``; an ndarray for an array or an ML vector
        (read-only, of any length); a dict for a struct, and a list of dicts for an array of structs; ``None`` for a null.

    Raises:
        Fault: the type cannot be handed over, or an array of integers holds a null.
    """
    column = _plain(column)
    problem = refusal(column.type, per_row=True)
    if problem is not None:
        raise Fault(SchemaError, f"the column {problem}", column=name)
    if not _is_nested(column.type):
        return _python_values(column, name)
    if column.null_count:
        return _around_nulls(column, name)
    if refusal(column.type) is not None:  # arrays of structs
        return _python_values(column, name)
    if types.is_struct(column.type) and not is_ml_vector(column.type):
        names = [column.type.field(i).name for i in range(column.type.num_fields)]
        fields = [decode_rows(column.field(i), f"{name}.{field}") for i, field in enumerate(names)]
        return [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)]
    return list(_array(column, name, ragged=True, nulls="pass"))


def _around_nulls(column: pa.Array, name: str) -> list[object]:
    present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    rows: list[object] = [None] * len(column)
    try:
        for row, value in zip(present.tolist(), decode_rows(column.drop_null(), name), strict=True):
            rows[row] = value
    except Fault as fault:
        raise _of_row(fault, present) from fault.__cause__
    return rows


# --- Arrow's types -----------------------------------------------------------------------------------------------------


def _plain(column: pa.Array) -> pa.Array:
    """Take off what only says how the values are stored: dictionaries (pandas' categories) and extension types."""
    if isinstance(column, pa.DictionaryArray):
        return column.dictionary_decode()
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _is_list(data_type: pa.DataType) -> bool:
    return bool(types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type))


def _is_nested(data_type: pa.DataType) -> bool:
    return bool(types.is_nested(data_type) or _is_list(data_type))  # is_nested forgets fixed-size lists in pyarrow 14


def _items(column: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Give the rows' offsets and the items between the first and the last of them: ``values`` knows of no slice."""
    if types.is_fixed_size_list(column.type):
        size = column.type.list_size
        offsets = np.arange(column.offset, column.offset + len(column) + 1) * size
    else:
        offsets = column.offsets.to_numpy()
    return offsets, column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _leaf(data_type: pa.DataType) -> pa.DataType:
    return _leaf(data_type.value_type) if _is_list(data_type) else data_type


def _with_leaf(data_type: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    return pa.list_(_with_leaf(data_type.value_type, leaf)) if _is_list(data_type) else leaf


def _depth(data_type: pa.DataType) -> int:
    if is_ml_vector(data_type):
        return 1
    return 1 + _depth(data_type.value_type) if _is_list(data_type) else 0


def _first_null(column: pa.Array) -> int:
    return int(column.is_null().to_numpy(zero_copy_only=False).argmax())


def _of_row(fault: Fault, owner: np.ndarray) -> Fault:
    """Tell a fault of item ``i`` as one of the row that item ``i`` lies in."""
    row = None if fault.row is None else int(owner[fault.row])
    return Fault(fault.kind, fault.text, column=fault.column, row=row)


def refusal(data_type: pa.DataType, *, per_row: bool = False) -> str | None:
    """Say why no model, or no ``preprocess`` of one row, can get this type; ``None`` if it can."""
    if isinstance(data_type, pa.BaseExtensionType):
        return refusal(data_type.storage_type, per_row=per_row)
    if types.is_struct(data_type):
        fields = [data_type.field(i) for i in range(data_type.num_fields)]
        return next((problem for field in fields if (problem := refusal(field.type, per_row=per_row))), None)
    if not _is_list(data_type):
        return _flat_refusal(data_type)
    item = data_type.value_type
    if types.is_struct(item) and not is_ml_vector(item) and not per_row:
        return f"is {data_type}, and arrays of structs are no tensor: use preprocess, which gets a list of dicts, or select its fields"
    return refusal(item, per_row=per_row)


def _flat_refusal(data_type: pa.DataType) -> str | None:
    if types.is_null(data_type):
        return "has no type, since all its values are null: cast it to the type that they would have"
    if types.is_map(data_type):
        return f"is {data_type}, which no model takes: select the values that it needs, as in col('m')['key']"
    if _is_nested(data_type) or (types.is_temporal(data_type) and not (types.is_date(data_type) or types.is_timestamp(data_type))):
        return f"is {data_type}, which no model takes: cast it to a number or a string"
    return None
