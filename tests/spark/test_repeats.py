"""Predictions that are scored a second time are told once, where it is true, and nobody's job fails of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import sparkinfer as si
from sparkinfer.testing import RaisingModel

SECOND = "scored a second time"


@contextmanager
def remarks() -> Iterator[list[warnings.WarningMessage]]:
    """Collect what is said on any thread; records have come when an action returns."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said
    said[:] = [one for one in said if SECOND in str(one.message)]


def predictions(spark: Any, **more: Any) -> Any:
    data = spark.range(0, 100, 1, 2)
    return si.predict(data, si.PythonModel(lambda: lambda x: x), inputs="id", outputs="y long", **more)


def write(scored: Any) -> None:
    scored.write.format("noop").mode("overwrite").save()


@pytest.mark.parametrize("road", ["map", "column"])
def test_a_second_full_action_is_told_once(spark, road) -> None:
    """At the line that called predict, with the rows; not again at the third, and in the run's own remarks."""
    with remarks() as said, si.inference_run() as run:
        scored = predictions(spark, road=road)
        for _ in range(3):
            write(scored)
    (one,) = said
    assert str(one.message) == "the predictions made here were scored a second time (100 rows): cache() or write them once, and read that"
    assert (one.category, one.filename) == (si.SparkInferWarning, __file__)
    assert run.remarks == ("the same predictions were scored a second time (100 rows): cache() or write them once, and read that",)
    assert run.summary["inference/rows_total"] == 100


def test_a_filter_or_an_aggregate_over_them_is_a_second_time_too(spark) -> None:
    """Other actions over the same predictions score the same rows."""
    with remarks() as said:
        scored = predictions(spark, road="map")
        scored.where("y < 10").collect()
        scored.groupBy("y").count().collect()
    assert len(said) == 1


@pytest.mark.parametrize(
    "actions",
    [
        pytest.param(lambda scored: (scored.show(3), write(scored)), id="show, then all"),
        pytest.param(lambda scored: (write(scored), scored.limit(3).collect()), id="all, then a limit"),
        pytest.param(lambda scored: (scored.orderBy("y").collect(),), id="twice in one action"),
        pytest.param(lambda scored: (write(scored.union(scored)),), id="a union with itself"),
        pytest.param(lambda scored: (scored.cache(), write(scored), write(scored)), id="cached"),
    ],
)
def test_what_is_no_second_full_action_is_not_told(spark, capsys, actions) -> None:
    """A show before, a limit after, one action that needs the rows twice, predictions that are kept."""
    with remarks() as said:
        actions(predictions(spark, road="map"))
    assert said == []


def test_an_action_that_failed_counts_for_nothing(spark, tmp_path) -> None:
    """The first try scored one partition before it failed; the second one is the first that is complete."""
    healed = tmp_path / "healed"

    def load() -> Any:
        return (lambda x: x) if healed.exists() else RaisingModel(trigger=99)()

    with remarks() as said:
        scored = si.predict(spark.range(0, 100, 1, 2), si.PythonModel(load), inputs="id", outputs="y long", models_per_worker=0)
        with suppress(Exception):
            write(scored)
        healed.touch()
        write(scored)
    assert said == []


def test_a_column_function_may_score_many_frames(spark) -> None:
    """predict_udf knows no rows: calling it again is its use."""
    with remarks() as said:
        tag = si.predict_udf(si.PythonModel(lambda: lambda x: x), inputs="id", returns="long")
        for _ in range(2):
            write(spark.range(0, 100, 1, 2).select(tag("id")))
    assert said == []


@pytest.mark.spark(since=(4, 0), why="pyspark itself warns before, of distutils")
def test_warnings_as_errors_fail_no_job(spark) -> None:
    """The remark is made while Spark waits for an answer: it is let go, and the rows are there."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scored = predictions(spark, road="map")
        assert [len(scored.collect()) for _ in range(2)] == [100, 100]
