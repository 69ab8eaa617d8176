"""Spark's types and Arrow's, as far as columns travel between them.

Runs on: driver.

Invariant: ``to_spark`` is exact for every type that ``parse_ddl`` can declare.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types as arrow
from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import types as spark

from sparkinfer.exceptions import SchemaError

__all__ = ["carried_by_arrow", "from_file", "is_vector", "sent_as", "to_arrow", "to_spark", "width"]

_SIMPLE: tuple[tuple[pa.DataType, type[spark.DataType]], ...] = (
    (pa.bool_(), spark.BooleanType),
    (pa.int8(), spark.ByteType),
    (pa.int16(), spark.ShortType),
    (pa.int32(), spark.IntegerType),
    (pa.int64(), spark.LongType),
    (pa.float32(), spark.FloatType),
    (pa.float64(), spark.DoubleType),
    (pa.string(), spark.StringType),
    (pa.binary(), spark.BinaryType),
    (pa.date32(), spark.DateType),
    (pa.timestamp("us", "UTC"), spark.TimestampType),
    (pa.timestamp("us"), spark.TimestampNTZType),
)
_VECTOR = pa.struct([("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))])


def is_vector(data_type: spark.DataType) -> bool:
    """Tell whether the type is that of an ML vector column, of ``pyspark.ml`` or of the older ``pyspark.mllib``: both lie alike in Arrow."""
    return isinstance(data_type, (VectorUDT, OldVectorUDT))


def to_spark(data_type: pa.DataType) -> spark.DataType:
    """Give the Spark type of a declared output."""
    for known, made in _SIMPLE:
        if data_type == known:
            return made()
    if arrow.is_decimal(data_type):
        return spark.DecimalType(data_type.precision, data_type.scale)
    if arrow.is_list(data_type):
        return spark.ArrayType(to_spark(data_type.value_type))
    if arrow.is_struct(data_type):
        return spark.StructType([spark.StructField(field.name, to_spark(field.type)) for field in data_type])
    msg = f"an output of the Arrow type {data_type} cannot be a Spark column"
    raise SchemaError(msg)


def to_arrow(data_type: spark.DataType, column: str) -> pa.DataType:
    """Give the Arrow type in which Spark sends an input column.

    Raises:
        SchemaError: it sends none; names the column and the type.
    """
    if is_vector(data_type):
        return _VECTOR
    for known, made in _SIMPLE:
        if isinstance(data_type, made):
            return known
    if isinstance(data_type, spark.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, spark.ArrayType):
        return pa.list_(to_arrow(data_type.elementType, column))
    if isinstance(data_type, spark.StructType):
        return pa.struct([(field.name, to_arrow(field.dataType, column)) for field in data_type.fields])
    if isinstance(data_type, (spark.VarcharType, spark.CharType)):
        return pa.string()
    msg = (
        f"the column {column!r} has the type {_named(data_type)}, which no model input can be made of: take numbers, booleans, "
        "strings, binary, dates, timestamps, decimals, arrays and structs of them, or ML vectors; select or cast it before"
    )
    raise SchemaError(msg)


def sent_as(data_type: spark.DataType, timezone: str) -> pa.DataType:
    """Give the Arrow type in which Spark sends a column that ``carried_by_arrow``, or an ML vector.

    Args:
        data_type: the column's.
        timezone: the session's, which Arrow's timestamps name.
    """
    if isinstance(data_type, spark.TimestampType):
        return pa.timestamp("us", timezone)
    if isinstance(data_type, spark.DayTimeIntervalType):
        return pa.duration("us")
    if isinstance(data_type, spark.MapType):
        return pa.map_(sent_as(data_type.keyType, timezone), sent_as(data_type.valueType, timezone))
    if isinstance(data_type, spark.ArrayType):
        return pa.list_(sent_as(data_type.elementType, timezone))
    if isinstance(data_type, spark.StructType):
        return pa.struct([(field.name, sent_as(field.dataType, timezone)) for field in data_type.fields])
    return to_arrow(data_type, "")


def from_file(data_type: pa.DataType, column: str) -> spark.DataType:
    """Give the Spark type of a column of a file that Spark does not read itself, as its own reader would.

    Raises:
        SchemaError: it has none; names the column and the type.
    """
    if isinstance(data_type, pa.BaseExtensionType):
        return from_file(data_type.storage_type, column)
    if arrow.is_struct(data_type):
        return spark.StructType([spark.StructField(one.name, from_file(one.type, column)) for one in data_type])
    inner = [from_file(part, column) for part in _parts(data_type)]
    if arrow.is_dictionary(data_type):
        return inner[0]
    if len(inner) == 2:
        return spark.MapType(inner[0], inner[1])
    if inner:
        return spark.ArrayType(inner[0])
    found = next((made for test, made in _IN_FILES if test(data_type)), None)
    try:
        return found(data_type) if found else to_spark(data_type)
    except SchemaError as error:
        msg = f"the column {column!r} has the type {data_type}, for which Spark has none: leave it out with columns=[...]"
        raise SchemaError(msg) from error


def _parts(data_type: pa.DataType) -> list[pa.DataType]:
    if arrow.is_map(data_type):
        return [data_type.key_type, data_type.item_type]
    nested = (arrow.is_dictionary, arrow.is_list, arrow.is_large_list, arrow.is_fixed_size_list)
    return [data_type.value_type] if any(test(data_type) for test in nested) else []


_WIDER: dict[int, spark.DataType] = {8: spark.ShortType(), 16: spark.IntegerType(), 32: spark.LongType(), 64: spark.DecimalType(20, 0)}
_IN_FILES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], spark.DataType]], ...] = (
    (arrow.is_unsigned_integer, lambda found: _WIDER[found.bit_width]),
    (arrow.is_timestamp, lambda found: spark.TimestampNTZType() if found.tz is None else spark.TimestampType()),
    (arrow.is_date, lambda _: spark.DateType()),
    (arrow.is_large_string, lambda _: spark.StringType()),
    (arrow.is_large_binary, lambda _: spark.BinaryType()),
    (arrow.is_fixed_size_binary, lambda _: spark.BinaryType()),
    (arrow.is_duration, lambda _: spark.LongType()),
)


def _named(data_type: spark.DataType) -> str:
    """Name a type; a user-defined one by its class as well, since many of them call themselves just ``udt``."""
    if isinstance(data_type, spark.UserDefinedType):
        return f"{data_type.simpleString()} ({type(data_type).__name__})"
    return data_type.simpleString()


def carried_by_arrow(data_type: spark.DataType) -> bool:
    """Tell whether Spark can send a column of this type to Python by Arrow and take it back unchanged."""
    if isinstance(data_type, spark.ArrayType):
        return carried_by_arrow(data_type.elementType)
    if isinstance(data_type, spark.MapType):
        return carried_by_arrow(data_type.keyType) and carried_by_arrow(data_type.valueType)
    if isinstance(data_type, spark.StructType):
        return all(carried_by_arrow(field.dataType) for field in data_type.fields)
    simple = tuple(made for _, made in _SIMPLE)
    return isinstance(data_type, (*simple, spark.DecimalType, spark.DayTimeIntervalType))


def width(data_type: spark.DataType) -> int:
    """Guess a value's size in bytes, to tell a key from a tensor; nothing depends on it but the choice of a road."""
    if isinstance(data_type, spark.BinaryType):
        return 10_000
    if isinstance(data_type, spark.StringType):
        return 32
    if isinstance(data_type, spark.ArrayType):
        return 64 * width(data_type.elementType)
    if isinstance(data_type, spark.StructType):
        return sum(width(field.dataType) for field in data_type.fields)
    if isinstance(data_type, (spark.MapType, spark.UserDefinedType)):
        return 512
    return 8
