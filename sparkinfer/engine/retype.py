"""Arrow columns as a file has them to the types in which Spark would send them.

Runs on: worker.

Invariant: a value comes out as Spark's own reader would give it, or the pair of types is refused; what has the right type already is
handed on without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

__all__ = ["Unfit", "find", "find_all", "retype"]


class Unfit(Exception):  # noqa: N818 - no error of its own: the caller knows the file and the column, and says them
    """The file's type cannot become the wanted one without changing values."""


def retype(column: pa.Array, wanted: pa.DataType, *, fold: bool) -> pa.Array:  # noqa: PLR0911 - one line a kind of type
    """Give a column another type.

    Args:
        column: as pyarrow reads it.
        wanted: as Spark would send it.
        fold: fields of structs are found without regard to upper and lower case, as Spark does by default.

    Raises:
        Unfit: that cannot be done; the text says from what to what.
    """
    found = column.type
    if found == wanted:
        return column
    if isinstance(column, pa.ExtensionArray):
        return retype(column.storage, wanted, fold=fold)
    if types.is_dictionary(found):
        return retype(column.dictionary_decode(), wanted, fold=fold)
    if types.is_null(found):
        return pa.nulls(len(column), wanted)
    if types.is_list(wanted):
        return _list(column, wanted, fold=fold)
    if types.is_struct(wanted) and types.is_struct(found):
        return _struct(column, wanted, fold=fold)
    if types.is_map(wanted) and types.is_map(found):
        return _map(column, wanted, fold=fold)
    return _plain(column, wanted)


def _list(column: pa.Array, wanted: pa.DataType, *, fold: bool) -> pa.Array:
    found = column.type
    if types.is_fixed_size_list(found):
        ends = np.arange(column.offset + len(column) + 1, dtype=np.int32) * found.list_size
        items, buffers = column.values, [column.buffers()[0], pa.py_buffer(ends)]
    elif types.is_list(found):
        items, buffers = column.values, column.buffers()[:2]
    elif types.is_large_list(found):
        return _list(column.cast(pa.list_(found.value_type)), wanted, fold=fold)
    else:
        raise _unfit(found, wanted)
    children = [retype(items, wanted.value_type, fold=fold)]
    return pa.Array.from_buffers(wanted, len(column), buffers, offset=column.offset, children=children)


def _struct(column: pa.Array, wanted: pa.DataType, *, fold: bool) -> pa.Array:
    names = [column.type.field(i).name for i in range(column.type.num_fields)]
    children = []
    for position in range(wanted.num_fields):
        field = wanted.field(position)
        at = find(names, field.name, fold=fold)
        child = pa.nulls(len(column), field.type) if at is None else retype(column.field(at), field.type, fold=fold)
        children.append(child)
    mask = column.is_null() if column.null_count else None
    if not children:
        return pa.array([{}] * len(column), wanted)
    return pa.StructArray.from_arrays(children, fields=[wanted.field(i) for i in range(wanted.num_fields)], mask=mask)


def _map(column: pa.Array, wanted: pa.DataType, *, fold: bool) -> pa.Array:
    keys = retype(column.keys, wanted.key_type, fold=fold)
    items = retype(column.items, wanted.item_type, fold=fold)
    entries = pa.StructArray.from_arrays([keys, items], fields=[wanted.key_field, wanted.item_field])
    return pa.Array.from_buffers(wanted, len(column), column.buffers()[:2], offset=column.offset, children=[entries])


def find(names: list[str], name: str, *, fold: bool) -> int | None:
    """Find a name among a file's; ``None`` where it is not there.

    Raises:
        Unfit: several are it.
    """
    same = [at for at, one in enumerate(names) if one == name or (fold and one.lower() == name.lower())]
    if len(same) > 1:
        msg = f"has the column {name!r} {len(same)} times ({', '.join(repr(names[at]) for at in same)}), which Spark does not tell apart"
        raise Unfit(msg)
    return same[0] if same else None


def find_all(names: Sequence[str], wanted: Iterable[str], *, fold: bool) -> dict[str, int | None]:
    """Find many names among a file's, as ``find`` finds one: a table may have thousands.

    Raises:
        Unfit: several are one of them.
    """
    places: dict[str, list[str]] = {}
    at: dict[str, int] = {}
    for position, one in enumerate(names):
        places.setdefault(one.lower() if fold else one, []).append(one)
        at[one.lower() if fold else one] = position
    found: dict[str, int | None] = {}
    for name in wanted:
        key = name.lower() if fold else name
        if len(places.get(key, ())) > 1:
            find(places[key], name, fold=fold)  # it says which
        found[name] = at.get(key)
    return found


# --- single values -----------------------------------------------------------------------------------------------------


def _plain(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    found = column.type
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        return _timestamp(column, wanted)
    if not _fits(found, wanted):
        raise _unfit(found, wanted)
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        msg = f"holds a value that is none of Spark's {wanted}: {error}"
        raise Unfit(msg) from error


def _timestamp(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast an instant; one without a zone where Spark has an instant is UTC: INT96, as Spark and Impala write it."""
    if wanted.tz is None and column.type.tz is not None:
        raise _unfit(column.type, wanted)
    try:
        if column.type.tz is None and wanted.tz is not None:
            column = column.cast(pa.timestamp(column.type.unit, "UTC"))
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        msg = f"holds a time that Spark cannot hold: {error}"
        raise Unfit(msg) from error


def _fits(found: Any, wanted: Any) -> bool:
    """Tell whether each value of a type has its equal in the other; the pairs are those that Spark 4 reads."""
    return any(becomes(wanted) and fits(found, wanted) for becomes, fits in _FITTING)


def _integer_fits(found: Any, wanted: Any) -> bool:
    room = wanted.bit_width - found.bit_width if types.is_integer(found) else -1
    return types.is_signed_integer(wanted) and (room > 0 or (room == 0 and bool(types.is_signed_integer(found))))


def _decimal_fits(found: Any, wanted: Any) -> bool:
    digits = wanted.precision - wanted.scale
    if types.is_integer(found):
        return bool(digits >= {8: 3, 16: 5, 32: 10, 64: 19 if types.is_signed_integer(found) else 20}[found.bit_width])
    return bool(types.is_decimal(found)) and found.scale <= wanted.scale and bool(found.precision - found.scale <= digits)


def _double_fits(found: Any, _: Any) -> bool:
    return bool(types.is_float32(found) or (types.is_integer(found) and found.bit_width <= 32))


def _bytes_fit(found: Any, _: Any) -> bool:
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    views = (getattr(types, f"is_{kind}_view", lambda _: False) for kind in ("string", "binary"))  # pyarrow 16 on
    return any(test(found) for test in (*tests, *views))


def _stored_as_long(found: Any, _: Any) -> bool:
    return bool(types.is_duration(found) or types.is_timestamp(found) or types.is_time64(found))


_FITTING: tuple[tuple[Any, Any], ...] = (
    (types.is_integer, _integer_fits),
    (types.is_int64, _stored_as_long),
    (types.is_decimal, _decimal_fits),
    (types.is_float64, _double_fits),
    (types.is_string, _bytes_fit),
    (types.is_binary, _bytes_fit),
    (types.is_date32, lambda found, _: types.is_date64(found)),
    (types.is_duration, lambda found, _: types.is_duration(found) or types.is_int64(found)),
)


def _unfit(found: Any, wanted: Any) -> Unfit:
    return Unfit(f"has the type {found} there, which cannot be read as {wanted}")
