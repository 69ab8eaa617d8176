"""Batch and partition edges on real Spark: one-row batches, empty partitions, and models that lose rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

import sparkinfer as si
from sparkinfer.testing import EchoModel, ShortModel
from tests.spark.kit import ROADS, WAYS, model, score

SHAPES: dict[str, Any] = {
    "(n,)": lambda x: x * 2,
    "(n, 1)": lambda x: (x * 2)[:, None],
    "list": lambda x: (x * 2).tolist(),
}


def halves(spark: Any, rows: int) -> Any:
    """Make ``x = id / 2`` in one partition."""
    return spark.range(0, rows, 1, 1).selectExpr("id", "id * 0.5D as x")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ddl", ["double", "float"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_last_batch_of_one_row_is_as_any_other(spark, way, ddl, shape) -> None:
    """C01: 21 rows, 10 a batch: 21 numbers, of whatever rank the model makes them."""
    assert score(halves(spark, 21), model(SHAPES[shape]), way, inputs="x", returns=ddl, batch_size=10) == [float(i) for i in range(21)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [1, 2, 21])
def test_a_last_batch_of_one_row_is_one_list_of_three(spark, way, rows) -> None:
    """C01: a (1, 3) batch is one array of three, not three scalars."""
    got = score(halves(spark, rows), model(lambda x: np.stack([x] * 3, axis=1)), way, inputs="x", returns="array<float>", batch_size=10)
    assert got == [[i / 2] * 3 for i in range(rows)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_the_batch_size_does_not_change_the_answer(spark, way, batch_size, ledger) -> None:
    """Batches are of exactly the size asked for, whatever Spark's chunks are, and only a partition's last is shorter."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        got = score(halves(spark, 43), si.PythonModel(EchoModel(ledger)), way, inputs="x", returns="double", batch_size=batch_size)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert got == [i / 2 for i in range(43)]
    full, rest = divmod(43, batch_size)
    assert ledger.rows("predict") == [batch_size] * full + [rest] * bool(rest)


@pytest.mark.parametrize("way", WAYS)
def test_empty_partitions_raise_nothing_and_load_nothing(spark, way, ledger) -> None:
    """C02: 3 rows over 8 partitions: 3 rows out, and only processes that had rows loaded the model."""
    df = spark.range(3).repartition(8).selectExpr("id", "cast(id as double) as x")
    assert score(df, si.PythonModel(EchoModel(ledger)), way, inputs="x", returns="double") == [0.0, 1.0, 2.0]
    assert ledger.pids("load") == ledger.pids("predict")
    assert sum(ledger.rows("predict")) == 3
    assert 0 not in ledger.rows("predict")


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("source", ["range(0)", "filtered"])
def test_an_empty_frame_keeps_its_schema_and_loads_no_model(spark, road, source, ledger) -> None:
    """C02: 0 rows, and the declared type."""
    df = (spark.range(0) if source == "range(0)" else spark.range(10).filter(F.col("id") > 99)).withColumn("x", F.col("id") * 0.5)
    scored = si.predict(df, si.PythonModel(EchoModel(ledger)), inputs="x", outputs="pred array<float>, n int", road=road)
    assert scored.collect() == []
    assert scored.dtypes == [("id", "bigint"), ("x", "double"), ("pred", "array<float>"), ("n", "int")]
    assert ledger.events() == []


@dataclass(frozen=True)
class Sized:
    """A model whose calls give back the rows that are written here, one number a call."""

    sizes: Sequence[int]

    def __call__(self) -> Any:
        """Load: give a model with a count of its own."""
        calls = iter(self.sizes)
        return lambda x: np.resize(x, next(calls))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("sizes", "found"), [((4, 3, 4), 3), ((4, 3, 5), 3), ((4, 5, 3), 5)], ids=["short", "short then long", "long then short"]
)
def test_another_number_of_rows_is_an_error_at_that_call(spark, way, sizes, found) -> None:
    """C18: batch, expected and found; a total that fits by chance is no excuse."""
    with pytest.raises(Exception, match=rf"expected 4 rows, found {found}\b.*partition 0, batch 1 \(rows 4 to 7\)"):
        score(halves(spark, 12), si.PythonModel(Sized(sizes)), way, inputs="x", returns="double", batch_size=4)


GIVEN: dict[str, tuple[Any, str]] = {
    "a scalar": (lambda x: x.sum(), "expected 4 rows, found a scalar"),
    "None": (lambda x: None, "expected 4 rows, found None"),
    "a number": (lambda x: 3.0, "expected 4 rows, found a scalar"),
    "an empty dict": (lambda x: {}, "expected 4 rows, found a dict without outputs"),
    "a short head": (lambda x: {"a": x, "b": x[1:]}, "output 'b': expected 4 rows, found 3"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", GIVEN)
def test_a_result_without_rows_is_an_error_of_the_same_kind(spark, way, what) -> None:
    """C18: a scalar, None, nothing, or one short head among several."""
    give, said = GIVEN[what]
    with pytest.raises(Exception, match=rf"{said}.*partition 0, batch 0"):
        score(halves(spark, 12), model(give), way, inputs="x", returns="struct<a:double,b:double>", batch_size=4)


@pytest.mark.parametrize("way", WAYS)
def test_a_short_last_batch_is_found_too(spark, way) -> None:
    """C18: a batch of one row that gives none."""
    with pytest.raises(Exception, match=r"expected 1 rows?, found 0.*batch 0 \(row"):
        score(halves(spark, 1), si.PythonModel(ShortModel()), way, inputs="x", returns="double", batch_size=4)


@pytest.mark.parametrize("road", ROADS)
def test_no_row_of_a_partition_that_failed_is_given_out(spark, road, tmp_path) -> None:
    """The job fails: nothing was committed."""
    scored = si.predict(halves(spark, 12), si.PythonModel(Sized((4, 4, 3))), inputs="x", outputs="y double", road=road, batch_size=4)
    with pytest.raises(Exception, match="expected 4 rows, found 3"):
        scored.write.parquet(str(tmp_path / "out"))
    assert not (tmp_path / "out" / "_SUCCESS").exists()
