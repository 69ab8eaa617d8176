"""What Spark's optimizer does with a prediction: how many rows the model sees, and that each lands on its own row."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

import sparkinfer as si
from sparkinfer.testing import EchoModel, Ledger
from tests.spark.kit import ROADS, model

ROWS = 100


def scored(spark: Any, ledger: Ledger, road: str, *, partitions: int = 4) -> Any:
    """Score 100 rows with an echo model that writes down what it sees."""
    df = spark.range(0, ROWS, 1, partitions).selectExpr("id", "cast(id as double) as x")
    return si.predict(df, si.PythonModel(EchoModel(ledger)), inputs="x", outputs="pred double", road=road)


def write(df: Any) -> None:
    """Run it all, without a place to put it."""
    df.write.format("noop").mode("overwrite").save()


def seen(ledger: Ledger) -> int:
    """Count the rows that the model saw."""
    return sum(ledger.rows("predict"))


QUERIES: dict[str, tuple[Callable[[Any], Any], dict[str, int]]] = {
    "filter on the prediction": (lambda df: df.filter("pred > 10").select("id", "pred"), {"map": 100, "column": 100}),
    "two expressions": (
        lambda df: df.withColumn("y", F.col("pred") + F.col("pred")).withColumn("z", F.col("pred") * 2),
        {"map": 100, "column": 100},
    ),
    "join on id": (lambda df: df.join(df.sparkSession.range(ROWS), "id"), {"map": 100, "column": 100}),
    "join on the prediction": (
        lambda df: df.join(df.sparkSession.range(ROWS).selectExpr("cast(id as double) as pred"), "pred"),
        {"map": 100, "column": 100},
    ),
    "group by the prediction": (lambda df: df.groupBy((F.col("pred") % 3).alias("k")).agg(F.sum("pred")), {"map": 100, "column": 100}),
    "window": (
        lambda df: df.withColumn("r", F.row_number().over(Window.partitionBy(F.col("id") % 2).orderBy("pred"))),
        {"map": 100, "column": 100},
    ),
    "filter on another column above": (lambda df: df.filter("id < 10"), {"map": 100, "column": 100}),
    "sum": (lambda df: df.agg(F.sum("pred")), {"map": 100, "column": 100}),
    "order by": (lambda df: df.orderBy("pred"), {"map": 200, "column": 200}),
    "order by, cached before": (lambda df: df.cache().orderBy("pred"), {"map": 100, "column": 100}),
    "only the id": (lambda df: df.select("id"), {"map": 100, "column": 0}),
    "self-union": (lambda df: df.union(df), {"map": 200, "column": 200}),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("query", QUERIES)
def test_how_many_rows_the_model_sees(spark, road, query, ledger) -> None:
    """C24: once for a row under everything but a global sort and a copy of the frame itself; pruned where nobody selects it."""
    build, expected = QUERIES[query]
    write(build(scored(spark, ledger, road)))
    spark.catalog.clearCache()
    assert seen(ledger) == expected[road]


@pytest.mark.parametrize("road", ROADS)
def test_count(spark, road, ledger) -> None:
    """Trap D: count() runs no model on the column road; write(noop) is how to time one."""
    assert scored(spark, ledger, road).count() == ROWS
    assert seen(ledger) == {"map": ROWS, "column": 0}[road]


def test_fields_of_a_struct_column_run_the_model_once(spark, ledger) -> None:
    """select('pred.*') takes every field from one call."""
    df = spark.range(0, ROWS, 1, 4).selectExpr("cast(id as double) as x")
    tag = si.predict_udf(si.PythonModel(EchoModel(ledger)), inputs="x", returns="struct<a:double,b:double>", postprocess=lambda y: (y, -y))
    write(df.withColumn("pred", tag("x")).select("pred.*", F.col("pred.a") + F.col("pred.b")))
    assert seen(ledger) == ROWS


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_call_written_twice_is_one_only_when_deterministic(spark, ledger, deterministic) -> None:
    """The same call twice in one select: Spark may merge deterministic ones only; withColumn first avoids it."""
    df = spark.range(0, ROWS, 1, 4).selectExpr("cast(id as double) as x")
    tag = si.predict_udf(si.PythonModel(EchoModel(ledger)), inputs="x", returns="double", deterministic=deterministic)
    write(df.select(tag("x").alias("a"), (tag("x") + 1).alias("b")))
    assert seen(ledger) == (ROWS if deterministic else 2 * ROWS)


def test_case_when_over_a_udf_scores_every_row(spark, ledger) -> None:
    """A UDF within CASE WHEN runs for all rows, as every Python UDF does."""
    df = spark.range(0, ROWS, 1, 4).selectExpr("id", "cast(id as double) as x")
    tag = si.predict_udf(si.PythonModel(EchoModel(ledger)), inputs="x", returns="double")
    write(df.select(F.when(F.col("id") < 10, tag("x"))))
    assert seen(ledger) == ROWS


@pytest.mark.parametrize("road", ROADS)
def test_a_filter_before_the_prediction_spares_the_model(spark, road, ledger) -> None:
    """What the documentation advises: filter the inputs before."""
    df = spark.range(0, ROWS, 1, 4).selectExpr("id", "cast(id as double) as x").filter("id < 10")
    write(si.predict(df, si.PythonModel(EchoModel(ledger)), inputs="x", outputs="pred double", road=road))
    assert seen(ledger) == 10


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("settings", [{}, {"prefetch_batches": 4, "num_workers": 2}], ids=["thread", "loader processes"])
def test_predictions_land_on_their_own_rows_after_shuffles(spark, road, settings, tmp_path) -> None:
    """C22: an input after a shuffle, scored, shuffled again, written and read: each id once, with its own prediction, run after run."""
    df = spark.range(5_000).selectExpr("id", "cast(pmod(hash(id), 1000) as double) as x").repartition(7)
    out = si.predict(df, model(lambda x: 3 * x), inputs="x", outputs="pred double", road=road, batch_size=64, **settings)
    out.repartition(3).write.parquet(str(tmp_path / "scored"))
    back = spark.read.parquet(str(tmp_path / "scored"))
    assert back.count() == back.select("id").distinct().count() == 5_000
    assert back.filter("pred != 3 * x or pred is null").count() == 0
    again = {row.id: row.pred for row in out.select("id", "pred").collect()}
    assert again == {row.id: row.pred for row in back.select("id", "pred").collect()}


@dataclass(frozen=True)
class Slow:
    """A model that takes a while for each call."""

    ledger: Ledger

    def __call__(self) -> Any:
        """Load: give the predict function."""
        return self._predict

    def _predict(self, x: np.ndarray) -> np.ndarray:
        time.sleep(0.02)
        self.ledger.write("predict", rows=len(x))
        return x * 2


@pytest.mark.parametrize("road", ["auto", *ROADS])
@pytest.mark.parametrize("n", [1, 10])
def test_preview_scores_exactly_n_rows(spark, road, n, ledger) -> None:
    """C26: the limit stands before the model."""
    df = spark.range(0, 10_000, 1, 1).selectExpr("id", "cast(id as double) as x")
    table = si.preview(df, si.PythonModel(Slow(ledger)), n, inputs="x", outputs="pred double", road=road, batch_size=16)
    assert table["pred"].tolist() == [2.0 * i for i in table["id"]]
    assert len(table) == n
    assert seen(ledger) == n


def test_preview_of_fewer_rows_and_of_none(spark) -> None:
    """A frame with fewer rows gives what it has, with the right columns; n below 1 is refused."""
    df = spark.range(3).selectExpr("id", "cast(id as double) as x")
    arguments: dict[str, Any] = {"inputs": "x", "outputs": "pred double"}
    assert len(si.preview(df, model(lambda x: x), 10, **arguments)) == 3
    assert si.preview(df.filter("id > 99"), model(lambda x: x), **arguments).columns.tolist() == ["id", "x", "pred"]
    with pytest.raises(si.ConfigError, match="n is 0, expected at least 1 row"):
        si.preview(df, model(lambda x: x), 0, **arguments)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize(("width", "most"), [(64, 1_000), (1, 9_000)], ids=["wide", "narrow"])
def test_a_limit_above_the_prediction_costs_a_few_batches_not_the_partition(spark, road, width, most, ledger) -> None:
    """C26: 10 right rows; the excess is what Spark's Python worker buffers before it sends (64 KiB), many batches only of narrow rows."""
    df = spark.range(0, 10_000, 1, 1).selectExpr("id", "cast(id as double) as x")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "16")
    try:
        out = si.predict(
            df,
            si.PythonModel(Slow(ledger)),
            inputs="x",
            outputs="pred array<double>",
            postprocess=partial(repeat, width=width),
            road=road,
            batch_size=16,
            prefetch_batches=1,
        )
        rows = out.limit(10).collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [(row.id, row.pred) for row in rows] == [(i, [2.0 * i] * width) for i in range(10)]
    assert 10 <= seen(ledger) < most


def repeat(y: np.ndarray, width: int) -> np.ndarray:
    """Make an array of each number."""
    return np.repeat(y[:, None], width, axis=1)
