"""The values that stand in the names of folders: ``day=2026-01-01/kind=a/part-0.parquet``.

Runs on: driver.

Invariant: a folder counts only below the path that was given, as in Spark; a value has the type that the schema says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from pyspark.sql import types as spark

from sparkinfer.engine.places import scheme_of
from sparkinfer.exceptions import SchemaError

__all__ = ["below_host", "constants_of", "folders_below", "infer_types", "named_folders", "part_matches", "unbraced"]

_MOST_DIGITS = 38  # of a decimal
_NULL = "__HIVE_DEFAULT_PARTITION__"
_BRACES = re.compile(r"(?<!\\)\{((?:[^{}\\]|\\.)*)\}")


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


def part_matches(part: str, pattern: str) -> bool:
    r"""Tell whether a name is what one part of a Hadoop glob says, its braces written out; an escaped sign is itself.

    Example:
        >>> [part_matches("b1", one) for one in ("b?", "[^z]*", "[a-c]1", r"b\1", "b*2")]
        [True, True, True, True, False]
    """
    return part == pattern or _glob(pattern).fullmatch(part) is not None


_SIGNS = re.compile(r"\\(?P<escaped>.)|\[(?P<negated>[\^!]?)(?P<set>(?:[^\]\\]|\\.)+)\]|(?P<sign>[*?])|(?P<plain>.)", re.DOTALL)


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    made = []
    for found in _SIGNS.finditer(pattern):
        if found["set"]:
            inside = re.sub(r"\\(.)|([\[&~|^])", lambda one: "\\" + (one[1] or one[2]), found["set"])
            made.append(f"[{'^' if found['negated'] else ''}{inside}]")
        elif found["sign"]:
            made.append(".*" if found["sign"] == "*" else ".")
        else:
            made.append(re.escape(found["escaped"] or found["plain"]))
    return re.compile("".join(made), re.DOTALL)


def folders_below(path: str, roots: Iterable[str]) -> list[tuple[str, str]] | None:
    """Give the names and values of the partition folders between a root and a file; ``None`` where the file is below no root.

    Args:
        path: the file's, without scheme.
        roots: what was given, globs among them, without scheme.
    """
    parts = _parts(path)
    for root in roots:
        pattern = _parts(root)
        if len(pattern) <= len(parts) and all(part_matches(part, wanted) for part, wanted in zip(parts, pattern, strict=False)):
            return named_folders(parts[len(pattern) : -1])
    return None


def named_folders(parts: Iterable[str]) -> list[tuple[str, str]]:
    """Give the names and values of those folders that have both."""
    named = (part.split("=", 1) for part in parts if "=" in part)
    return [(unquote(name), unquote(value)) for name, value in named if name]


def _parts(path: str) -> list[str]:
    """Take a path apart; ``..`` goes up, as in a Hadoop path."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return parts


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
        (lambda raw: re.fullmatch(r"[-+]?\d+", raw), _decimal(values)),
        (lambda raw: re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", raw), spark.DoubleType()),
        (lambda raw: re.fullmatch(r"\d{4}-\d\d-\d\d", raw), spark.DateType()),
        (lambda raw: re.fullmatch(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?", raw), spark.TimestampType()),
    )
    return next((made for fits, made in kinds if all(fits(raw) for raw in values)), spark.StringType())


def _decimal(values: Sequence[str]) -> spark.DataType:
    """Give the decimal that holds whole numbers, those that Spark takes for a long with its 20 digits; past 38 digits they are doubles."""
    digits = max((20 if _whole(raw, 64) else len(raw.lstrip("+-0")) for raw in values), default=0)
    return spark.DecimalType(digits, 0) if digits <= _MOST_DIGITS else spark.DoubleType()


def _whole(raw: str, bits: int) -> bool:
    return re.fullmatch(r"[-+]?\d+", raw) is not None and -(1 << bits - 1) <= int(raw) < 1 << bits - 1
