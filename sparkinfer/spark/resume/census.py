"""Which keys are in the data, which are in the table, and how often: the question before and after a run.

Runs on: driver.

Invariant: one job over the key columns alone; nothing of it goes through Python workers, unless these read the files of ``data``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

from sparkinfer.exceptions import ConfigError, SchemaError
from sparkinfer.spark.udf import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["Census", "apart", "check_data_keys", "check_ended", "check_key_types", "keys_of", "matching", "take_census"]

_TAKEN = (
    "string",
    "varchar",
    "char",
    "byte",
    "short",
    "integer",
    "long",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal",
    "binary",
)
_FEW_KEYS = 1_000_000  # so many are sent to every task, so that the rows themselves stay where they are
_EXAMPLES = 3


@dataclass(frozen=True)
class Census:
    """How the keys of the data and those of the table agree.

    Attributes:
        rows: of the data.
        nulls: rows of the data with a null in the key.
        repeated: keys that the data has more than once.
        missing: keys of the data that the table has not.
        there: rows of the table.
        doubled: keys that the table has more than once.
        beyond: keys of the table that the data has not (any more).
        failed: rows of the table with a reason in the error column, whose keys the data has.
    """

    rows: int
    nulls: int
    repeated: int
    missing: int
    there: int
    doubled: int
    beyond: int
    failed: int


def check_key_types(schema: StructType, key: Sequence[str]) -> None:
    """Refuse columns by whose values no row can be told.

    Raises:
        SchemaError: a key column is of such a type.
    """
    for name in key:
        kind = schema[name].dataType
        if kind.typeName() not in _TAKEN:
            floats = ": NaN and -0.0 are no keys" if kind.typeName() in ("float", "double") else ""
            msg = (
                f"key= names the column {name!r} of the type {kind.simpleString()}, by which rows cannot be told apart{floats}: name a column of "
                "integers, text, bytes, dates, timestamps or decimals, or cast it to a string"
            )
            raise SchemaError(msg)


def keys_of(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Give the key columns alone, under names that no data has."""
    return frame.select(*(F.col(quoted(name)).alias(alias) for name, alias in zip(key, _aliases(key), strict=True)))


def take_census(data: DataFrame, table: DataFrame, key: Sequence[str], error_column: str | None) -> Census:
    """Count.

    Args:
        data: the rows that are to be scored; of them the key columns alone are read.
        table: the rows that are there.
        key: the key columns.
        error_column: of the table, if it has one.
    """
    names = _aliases(key)
    bad = F.lit(0) if error_column is None else F.col(quoted(error_column)).isNotNull().cast("int")
    failed = table.select(*(F.col(quoted(name)).alias(alias) for name, alias in zip(key, names, strict=True)), bad.alias("failed"))
    wanted = keys_of(data, key).withColumn("data", F.lit(1)).withColumn("table", F.lit(0)).withColumn("failed", F.lit(0))
    held = failed.withColumn("data", F.lit(0)).withColumn("table", F.lit(1)).select(*wanted.columns)
    groups = wanted.union(held).groupBy(*names).agg(*(F.sum(name).alias(name) for name in ("data", "table", "failed")))
    in_data, in_table = F.col("data"), F.col("table")
    null = F.lit(False)  # noqa: FBT003 - pyspark's own signature
    for name in names:
        null = null | F.col(name).isNull()
    counts = {
        "rows": in_data,
        "nulls": F.when(null, in_data).otherwise(0),
        "repeated": ((in_data > 1) & ~null).cast("int"),
        "missing": ((in_data > 0) & (in_table == 0)).cast("int"),
        "there": in_table,
        "doubled": (in_table > 1).cast("int"),
        "beyond": (in_data == 0).cast("int"),
        "failed": F.when(in_data > 0, F.col("failed")).otherwise(0),
    }
    row = groups.agg(*(F.sum(count).alias(name) for name, count in counts.items())).first()
    return Census(**{name: int(row[name] or 0) for name in counts})  # type: ignore[index]  # an aggregate has a row


def check_data_keys(census: Census, data: DataFrame, key: Sequence[str]) -> None:
    """Refuse data whose keys do not name its rows.

    Raises:
        SchemaError: a key is null, or there twice; with examples.
    """
    if census.nulls:
        msg = f"{census.nulls:,} of {census.rows:,} rows have a null in the key {_spelt(key)}: fill or leave out those rows, or name another key"
        raise SchemaError(msg)
    if census.repeated:
        keys = keys_of(data, key)
        found = keys.groupBy(*keys.columns).count().where("count > 1").limit(_EXAMPLES).collect()
        examples = "; ".join(f"{', '.join(map(repr, row[:-1]))} is there {row[-1]} times" for row in found)
        msg = (
            f"{census.repeated:,} keys of {_spelt(key)} are there more than once ({examples}), and a key names one row: name further columns in key=, "
            "or dropDuplicates before"
        )
        raise SchemaError(msg)


def apart(data: DataFrame, table: DataFrame, key: Sequence[str], census: Census) -> DataFrame:
    """Give the rows of the data that the table has not.

    Where the keys on one side are few they are sent to every task, and the rows, which may be pictures, stay where they are.
    """
    held = keys_of(table, key)
    if census.missing < census.there and census.missing <= _FEW_KEYS:
        missing = matching(keys_of(data, key), held, _aliases(key), how="left_anti")
        return matching(data, F.broadcast(missing), key, how="left_semi")
    return matching(data, F.broadcast(held) if census.there <= _FEW_KEYS else held, key, how="left_anti")


def matching(rows: DataFrame, keys: DataFrame, key: Sequence[str], how: str) -> DataFrame:
    """Give the rows whose keys are among others (``"left_semi"``), or are not (``"left_anti"``).

    Args:
        rows: with the columns ``key``.
        keys: what ``keys_of`` gave.
        key: the key columns of ``rows``.
        how: which of the two.
    """
    others = keys.select(*(F.col(name).alias(f"{name}_other") for name in keys.columns))
    same = [F.col(quoted(name)) == F.col(other) for name, other in zip(key, others.columns, strict=True)]
    return rows.join(others, on=same, how=how)


def check_ended(census: Census, path: str) -> None:
    """Refuse to end with another table than was promised.

    Raises:
        ConfigError: a key is not there, or more than once.
    """
    if census.missing or census.doubled or census.nulls or census.repeated:
        msg = (
            f"{path} has not each key once: {census.missing:,} are missing and {census.doubled:,} are there more than once, of {census.rows:,} rows. "
            "Either the data gave other keys when it was read again (a sample, a limit without an order, a source that grows: write it to a table "
            "first), or another run wrote here; run the same call again, which keeps one row of each key and scores what is missing"
        )
        raise ConfigError(msg)


def _aliases(key: Sequence[str]) -> list[str]:
    return [f"_sparkinfer_key_{position}" for position in range(len(key))]


def _spelt(key: Sequence[str]) -> str:
    return ", ".join(map(repr, key))
