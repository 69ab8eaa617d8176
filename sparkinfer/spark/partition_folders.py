"""The values that stand in the names of folders: ``day=2026-01-01/kind=a/part-0.parquet``.

Runs on: driver.

Invariant: a folder counts only below the path that was given, as in Spark; a value has the type that the schema says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from pyspark.sql import types as spark

from sparkinfer.engine.places import scheme_of
from sparkinfer.exceptions import SchemaError

__all__ = ["below_host", "constants_of", "folders_below", "infer_types", "unbraced"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_BRACES = re.compile(r"\{([^{}]*)\}")


def unbraced(pattern: str) -> list[str]:
    """Write a glob's braces out.

    Example:
        >>> unbraced("a/{b,c}/*")
        ['a/b/*', 'a/c/*']
    """
    found = _BRACES.search(pattern)
    if not found:
        return [pattern]
    return [whole for one in found[1].split(",") for whole in unbraced(pattern[: found.start()] + one + pattern[found.end() :])]


def folders_below(path: str, roots: Iterable[str]) -> list[tuple[str, str]]:
    """Give the names and values of the partition folders between a root and a file.

    Args:
        path: the file's, without scheme.
        roots: what was given, globs among them, without scheme.
    """
    parts = _parts(path)
    for root in roots:
        pattern = _parts(root)
        if len(pattern) <= len(parts) and all(
            part == wanted or fnmatchcase(part, wanted) for part, wanted in zip(parts, pattern, strict=False)
        ):
            named = (part.split("=", 1) for part in parts[len(pattern) : -1] if "=" in part)
            return [(unquote(name), unquote(value)) for name, value in named if name]
    return []


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]


def below_host(url: str) -> str:
    """Give a URL's path, as it is spelt: of Spark's files percent-encoded, of a Hadoop path not."""
    if "://" in url:
        return "/" + url.partition("://")[2].partition("/")[2]
    return url.partition(":")[2] if url.startswith(f"{scheme_of(url)}:") else url


def constants_of(folders: Sequence[tuple[str, str]], schema: spark.StructType, zone: str, file: str) -> tuple[tuple[str, Any], ...]:
    """Read the values of a file's partition folders as the schema has them.

    Raises:
        SchemaError: a value is none of its column's type.
    """
    by_name = {one.name.lower(): one for one in schema.fields}
    constants = []
    for name, raw in folders:
        column = by_name.get(name.lower())
        if column is None:
            continue
        try:
            constants.append((column.name, _value(raw, column.dataType, zone)))
        except (ValueError, ArithmeticError, KeyError) as error:
            msg = f"the folder {name}={raw} of {file} is no {column.dataType.simpleString()}, the type of the column {column.name!r}: rename it"
            raise SchemaError(msg) from error
    return tuple(constants)


def _value(raw: str, data_type: spark.DataType, zone: str) -> Any:
    if raw == _NULL:
        return None
    if isinstance(data_type, spark.TimestampType):
        told = datetime.fromisoformat(raw)
        return told if told.tzinfo else told.replace(tzinfo=_zone(zone))
    return next((read(raw) for kinds, read in _READERS if isinstance(data_type, kinds)), raw)


def _zone(name: str) -> tzinfo:
    """Find a time zone as Spark names it: a place, or an offset such as ``+05:30``."""
    found = re.fullmatch(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::(\d\d))?", name)
    if not found:
        return ZoneInfo(name)
    offset = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    return timezone(-offset if found[1] == "-" else offset)


def _truth(raw: str) -> bool:
    if raw.lower() not in ("true", "false"):
        raise ValueError(raw)
    return raw.lower() == "true"


_READERS: tuple[tuple[Any, Any], ...] = (
    (spark.DecimalType, Decimal),  # before FractionalType, which it is
    (spark.IntegralType, int),
    (spark.FractionalType, lambda raw: float(raw.rstrip("dDfF"))),  # Java reads 1.5d as a double
    (spark.BooleanType, _truth),
    (spark.DateType, date.fromisoformat),
    (spark.TimestampNTZType, datetime.fromisoformat),
)


def infer_types(found: Sequence[Sequence[tuple[str, str]]]) -> list[spark.StructField]:
    """Guess the types of partition columns where Spark does not list the files: the narrowest that takes all values, as Spark would."""
    values: dict[str, list[str]] = {}
    for folders in found:
        for name, raw in folders:
            values.setdefault(name, []).append(raw)
    return [spark.StructField(name, _type_of([one for one in raw if one != _NULL])) for name, raw in values.items()]


def _type_of(values: Sequence[str]) -> spark.DataType:
    if not values:
        return spark.StringType()
    kinds: tuple[tuple[Any, spark.DataType], ...] = (
        (lambda raw: _whole(raw, 32), spark.IntegerType()),
        (lambda raw: _whole(raw, 64), spark.LongType()),
        (lambda raw: re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", raw), spark.DoubleType()),
        (lambda raw: re.fullmatch(r"\d{4}-\d\d-\d\d", raw), spark.DateType()),
        (lambda raw: re.fullmatch(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?", raw), spark.TimestampType()),
    )
    return next((made for fits, made in kinds if all(fits(raw) for raw in values)), spark.StringType())


def _whole(raw: str, bits: int) -> bool:
    return re.fullmatch(r"[-+]?\d+", raw) is not None and -(1 << bits - 1) <= int(raw) < 1 << bits - 1
