"""Whatever a Parquet file holds, and whoever wrote it: the workers read what Spark reads."""

from __future__ import annotations

import shutil
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sparkinfer as si

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

TIMES = st.datetimes(datetime(1700, 1, 1), datetime(2300, 1, 1))  # noqa: DTZ001 - the naive kind is what they are
DECIMALS = st.decimals(min_value=-9999, max_value=9999, places=2, allow_nan=False, allow_infinity=False)
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(1 << 15), (1 << 15) - 1)),
    (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.uint8(), st.integers(0, 255)),
    (pa.uint32(), st.integers(0, (1 << 32) - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(6, 2), DECIMALS),
    (pa.string(), st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=5)),
    (pa.large_string(), st.text(st.characters(codec="utf-8"), max_size=5)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "ü"])),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates(date(1600, 1, 1), date(2400, 1, 1))),
    (pa.timestamp("us", "UTC"), TIMES.map(lambda told: told.replace(tzinfo=timezone.utc))),
    (pa.timestamp("ms", "Asia/Tokyo"), TIMES.map(lambda told: told.replace(microsecond=0, tzinfo=timezone.utc))),
    (pa.timestamp("us"), TIMES),
]
NAMES = st.sampled_from(["x", "y z", "a.b", "ünï", "`q`", "Long Name", "_u"])


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type and its values: a plain one, an array or a struct of it."""
    kind, values = draw(st.sampled_from(SCALARS))
    nested = draw(st.sampled_from(["plain", "plain", "list", "struct"]))
    if nested == "plain" or pa.types.is_dictionary(kind):
        return kind, st.none() | values
    if nested == "list":
        return pa.list_(kind), st.none() | st.lists(st.none() | values, max_size=3)
    return pa.struct([("a", kind), ("B.c", pa.int32())]), st.none() | st.fixed_dictionaries({"a": st.none() | values, "B.c": st.none()})


@st.composite
def tables(draw: st.DrawFn) -> list[pa.Table]:
    """Files of one schema, some without rows."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    kinds = [draw(columns()) for _ in names]
    made = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(0, 6))
        arrays = [pa.array([draw(values) for _ in range(rows)], kind) for kind, values in kinds]
        made.append(pa.Table.from_arrays(arrays, names=names))
    return made


@pytest.fixture(autouse=True)
def _todays_calendar(spark: SparkSession) -> Iterator[None]:
    """Before Spark 4 old dates are refused unless the session says that they are in today's calendar."""
    keys = [f"spark.sql.parquet.{kind}RebaseModeIn{way}" for kind in ("datetime", "int96") for way in ("Read", "Write")]
    for key in keys:
        spark.conf.set(key, "CORRECTED")
    yield
    for key in keys:
        spark.conf.unset(key)


def rows(frame: Any) -> list[str]:
    """The rows as text, in an order of their own; a float is told with all its digits."""
    return sorted(repr(row) for row in frame.collect())


# one session and one folder for all examples: each makes its own files in it
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(
    files=tables(), groups=st.integers(1, 4), codec=st.sampled_from(["snappy", "zstd", "none"]), by_spark=st.booleans(), int96=st.booleans()
)
def test_the_workers_read_what_spark_reads(
    spark: SparkSession, tmp_path: Path, files: list[pa.Table], groups: int, codec: str, by_spark: bool, int96: bool
) -> None:
    """The same schema, the same rows, whatever the row groups, the codec and the writer."""
    folder = tmp_path / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, table in enumerate(files):
        pq.write_table(
            table,
            folder / f"{number}.parquet",
            row_group_size=groups,
            compression=codec,
            use_deprecated_int96_timestamps=int96 and not by_spark,
        )
    path = str(folder)
    if by_spark:
        spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96" if int96 else "TIMESTAMP_MICROS")
        path = str(tmp_path / "by_spark")
        spark.read.parquet(str(folder)).write.mode("overwrite").parquet(path)
    ours, theirs = si.read_files(path, format="parquet").to_dataframe(spark), spark.read.parquet(path)
    assert ours.schema == theirs.schema
    assert rows(ours) == rows(theirs)


NUMBERS = st.none() | st.sampled_from([-1.5, 0.0, -0.0, 1.0, 2.0, float("inf"), float("nan")])


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(values=st.lists(NUMBERS, max_size=8), groups=st.integers(1, 4), negated=st.booleans(), width=st.sampled_from([32, 64]))
def test_a_filter_of_floats_is_that_of_arrow(
    spark: SparkSession, tmp_path: Path, values: Any, groups: int, negated: bool, width: int
) -> None:
    """Whatever the row groups: no comparison with NaN is true, as in IEEE 754 (Spark takes NaN for the largest number)."""
    table = pa.table({"x": pa.array(values, pa.float32() if width == 32 else pa.float64())})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=groups)
    condition = ~(pc.field("x") < 1.0) if negated else pc.field("x") >= 1.0
    found = si.read_files(tmp_path / "f.parquet", filter=condition).to_dataframe(spark)
    assert sorted(repr(row.x) for row in found.collect()) == sorted(map(repr, table.filter(condition)["x"].to_pylist()))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(
    values=st.lists(st.none() | st.integers(-20, 20), max_size=12),
    groups=st.integers(1, 5),
    low=st.integers(-20, 20),
    negated=st.booleans(),
    statistics=st.booleans(),
)
def test_a_filter_is_what_it_is_in_spark(
    spark: SparkSession, tmp_path: Path, values: list[int | None], groups: int, low: int, negated: bool, statistics: bool
) -> None:
    """With row groups that are left out by their statistics, without any, and with nulls, for which no comparison is true."""
    table = pa.table({"x": pa.array(values, pa.int32()), "n": pa.array(range(len(values)), pa.int64())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=groups, write_statistics=statistics)
    condition = (pc.field("x") >= low) & (pc.field("n") != 3)
    said = f"x >= {low} and n <> 3"
    source = si.read_files(tmp_path / "a.parquet", columns=["x"], filter=~condition if negated else condition)
    theirs = spark.read.parquet(str(tmp_path / "a.parquet")).where(f"not ({said})" if negated else said).select("x")
    assert rows(source.to_dataframe(spark)) == rows(theirs)
