"""Columns through pandas and back, exactly: the column road of Spark before 4.1, and of ``flavor="pandas"``.

Runs on: worker (``column_from_pandas``, ``series_of``), driver (``flags``).

Invariant: what pandas cannot hold (integers beside nulls, nulls apart from NaN, an instant apart from a wall clock) is brought along
beside it, or is an error; it is never guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it
from pyspark.sql import types as spark

from sparkinfer.exceptions import SchemaError
from sparkinfer.schema import parse_type

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["FLAGS", "column_from_pandas", "flags", "series_of"]

FLAGS = 2  # arguments that follow each column
_NULL, _NULL_INSIDE = 2, 1
_EXACT_IN_DOUBLE = 2**53  # the largest span in which every integer is a double
_NO_INPUT = ("map<", "interval", "variant")
_WAY_OUT = "use Spark 4.1 or newer (flavor='arrow'), or predict(road='map')"


# --- driver ------------------------------------------------------------------------------------------------------------


def flags(column: Column, data_type: spark.DataType | None) -> tuple[Column, Column]:
    """Give what follows a column: where it is null or holds a null among floats, and its type with the session's time zone.

    Args:
        column: the argument.
        data_type: its type where the caller knows it. Otherwise Spark is asked in an expression that fits every type: the text of
            a nested column of floats is searched for nulls, which costs about 0.2 microseconds a number.
    """
    if data_type is None:
        nested_floats = F.typeof(column).rlike("^(array|struct)<.*(float|double)")
        inside = nested_floats & column.cast("string").rlike(r"[\[{ ]null[,\]}]")
    else:
        inside = _null_inside(column, data_type)
    state = F.when(column.isNull(), _NULL).when(inside, _NULL_INSIDE).otherwise(0)
    return state, F.concat(F.typeof(column), F.lit("@"), F.current_timezone())


def _null_inside(column: Column, data_type: spark.DataType) -> Column:
    if isinstance(data_type, spark.ArrayType):
        element = data_type.elementType
        return F.exists(column, lambda item: item.isNull() | _null_inside(item, element))
    if isinstance(data_type, spark.StructType):
        found = F.lit(False)  # noqa: FBT003 - Spark's own literal
        for field in data_type.fields:
            item = column.getField(field.name)
            found |= item.isNull() | _null_inside(item, field.dataType)
        return found
    return F.lit(False)  # noqa: FBT003


# --- worker: in --------------------------------------------------------------------------------------------------------


def column_from_pandas(values: Any, states: pd.Series | None, told: pd.Series | None, name: str) -> pa.Array:
    """Turn what pandas made of a column back into what Spark sent.

    Args:
        values: a Series, or a DataFrame for a struct.
        states: the first of ``flags``; ``None`` where the UDF was registered for SQL, which calls it with the bare columns.
        told: the second of ``flags``.
        name: of the column, for messages.

    Raises:
        SchemaError: pandas has lost a value, or no model can get the type.
    """
    if not len(values):
        return pa.nulls(0)
    if states is None or told is None:
        return _untyped(values)
    text, _, zone = str(told.iloc[0]).rpartition("@")
    if text.startswith(_NO_INPUT):
        msg = f"the column {name!r} has the type {text}, which no model takes: select or cast it before"
        raise SchemaError(msg)
    state = states.to_numpy()
    try:
        declared = parse_type(text)
    except SchemaError:  # an ML vector, or a struct with field names that Spark does not quote
        return _with_nulls(_untyped(values), state == _NULL)
    return _Typed(name, zone).array(values, declared, state == _NULL, state == _NULL_INSIDE)


class _Typed:
    """Makes arrays of a known type out of what pandas has left of them."""

    def __init__(self, name: str, zone: str) -> None:
        self._name = name
        self._zone = zone

    def array(self, values: Any, declared: pa.DataType, absent: np.ndarray, inside: np.ndarray) -> pa.Array:
        """Give the column; ``absent`` rows are null, ``inside`` rows hold a null among floats."""
        if isinstance(values, pd.DataFrame):
            return self._struct(values, declared, absent, inside)
        if types.is_nested(declared):
            return self._nested(values, declared, absent, inside)
        if types.is_timestamp(declared) and declared.tz is not None:
            values = self._instants(values)
        if types.is_integer(declared) and values.dtype.kind == "f":
            values = pd.Series(self._integers(values.to_numpy(), absent))
        # values under the mask are anything at all, and must not decide the type
        filled = values.where(~absent, None) if values.dtype == object else values
        return pa.array(np.asarray(filled), mask=absent, type=declared, from_pandas=False)

    def _struct(self, values: pd.DataFrame, declared: pa.DataType, absent: np.ndarray, inside: np.ndarray) -> pa.Array:
        children = []
        for i in range(declared.num_fields):
            field, column = declared.field(i), values.iloc[:, i]
            missing = column.isna().to_numpy()
            if types.is_floating(field.type):
                missing &= inside  # elsewhere it is a NaN
            children.append(self.array(column, field.type, absent | missing, inside))
        made = pa.StructArray.from_arrays(children, fields=[declared.field(i) for i in range(declared.num_fields)])
        return _with_nulls(made, absent)

    def _nested(self, values: pd.Series, declared: pa.DataType, absent: np.ndarray, inside: np.ndarray) -> pa.Array:
        if "timestamp[us, tz" in str(declared) and self._zone not in ("UTC", "Etc/UTC"):
            msg = (
                f"the column {self._name!r} holds timestamps inside {declared}, which pandas, in which this Spark sends them, turns into the "
                f"wall clock of {self._zone}: {_WAY_OUT}, or set spark.sql.session.timeZone to UTC"
            )
            raise SchemaError(msg)
        rows = [None if gone else value for value, gone in zip(values, absent, strict=True)]
        floats = "float" in str(declared) or "double" in str(declared)
        if not floats and any(map(_rounded, rows)):
            raise self._too_large()
        if not floats or not inside.any():
            return pa.array(rows, declared, from_pandas=not floats)
        # only in the rows that hold a null is a NaN one; a row that holds both is bad in any case
        order = np.argsort(inside, kind="stable")
        clean = len(rows) - int(inside.sum())
        parts = [
            pa.array([rows[i] for i in part], declared, from_pandas=null) for part, null in ((order[:clean], False), (order[clean:], True))
        ]
        return pa.concat_arrays(parts).take(pa.array(np.argsort(order, kind="stable")))

    def _instants(self, values: pd.Series) -> pd.Series:
        try:
            return pd.to_datetime(values).dt.tz_localize(self._zone).dt.tz_convert("UTC").dt.tz_localize(None)
        except Exception as error:
            msg = (
                f"the column {self._name!r} holds timestamps that are not told apart by the wall clock of {self._zone}, and pandas, in which "
                f"this Spark sends them, has no other ({error}): {_WAY_OUT}, or set spark.sql.session.timeZone to UTC"
            )
            raise SchemaError(msg) from error

    def _integers(self, values: np.ndarray, absent: np.ndarray) -> np.ndarray:
        whole = np.where(absent, 0, values)
        if (np.abs(whole) >= _EXACT_IN_DOUBLE).any():
            raise self._too_large()
        return whole.astype(np.int64)

    def _too_large(self) -> SchemaError:
        msg = (
            f"the column {self._name!r} holds integers beyond 2**53 beside nulls, and pandas, in which this Spark sends them, has rounded "
            f"them: {_WAY_OUT}, or fill the nulls first"
        )
        return SchemaError(msg)


def _rounded(value: Any) -> bool:
    """Tell whether integers that became floats, because of a null among them, are too large to be whole again."""
    if not isinstance(value, np.ndarray):
        return False
    if value.dtype.kind == "O":
        return any(map(_rounded, value))
    return value.dtype.kind == "f" and bool((np.abs(value) >= _EXACT_IN_DOUBLE).any())


def _untyped(values: Any) -> pa.Array:
    if isinstance(values, pd.DataFrame):
        fields = [str(field) for field in values.columns]
        return pa.StructArray.from_arrays([_untyped(values.iloc[:, i]) for i in range(len(fields))], names=fields)
    return pa.array(values, from_pandas=True)


def _with_nulls(array: pa.Array, absent: np.ndarray) -> pa.Array:
    return array.take(pa.array(np.arange(len(array)), mask=absent)) if absent.any() else array


# --- worker: out -------------------------------------------------------------------------------------------------------


def series_of(column: pa.Array) -> pd.Series | pd.DataFrame:
    """Give pandas a column that Spark turns back into the same Arrow values: no null becomes NaN, no NaN a null, no integer a float.

    A struct that is null comes back as one of nulls: a DataFrame knows no null rows.
    """
    if types.is_struct(column.type):
        return pd.DataFrame({field.name: _series(child) for field, child in zip(column.type, column.flatten(), strict=True)})
    return _series(column)


def _series(column: pa.Array) -> pd.Series:
    if types.is_floating(column.type) and (column.null_count or _has_nan(column)):
        return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([column])))  # as it is: pandas 1.5 converts NaN to null
    if types.is_nested(column.type) and _has_nan(column):
        return pd.Series([_unmistakable(value, column.type) for value in column.to_pylist()], dtype=object)
    if "timestamp" in str(column.type):  # Python's own: pandas 1.5 knows only nanoseconds, and Spark localizes a nested datetime64
        return pd.Series(column.to_pylist(), dtype=object)
    if column.null_count:
        return pd.Series(column.to_pandas(integer_object_nulls=True, date_as_object=True), dtype=object)
    plain: pd.Series[Any] = column.to_pandas()
    return plain


def _has_nan(column: pa.Array) -> bool:
    if types.is_struct(column.type):
        return any(map(_has_nan, column.flatten()))
    if types.is_list(column.type):
        return _has_nan(column.flatten())
    return bool(types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())


def _unmistakable(value: Any, data_type: pa.DataType) -> Any:
    """Wrap each NaN: Spark hands the values to Arrow with pandas' rule that NaN is null, which spares Arrow's own scalars."""
    if isinstance(value, list):
        return [_unmistakable(item, data_type.value_type) for item in value]
    if isinstance(value, dict):
        return {name: _unmistakable(item, data_type.field(name).type) for name, item in value.items()}
    return pa.scalar(value, data_type) if isinstance(value, float) and value != value else value  # noqa: PLR0124 - the test for NaN
