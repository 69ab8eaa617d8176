"""A profile made in Spark's workers: the watched partitions report, the others are as without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import sparkinfer as si

if TYPE_CHECKING:
    import numpy as np


def planted_step(x: np.ndarray) -> np.ndarray:
    for _ in range(50_000):
        pass
    return x * 2.0


def load_planted() -> Any:
    return planted_step


def test_a_profile_reads_a_few_batches_of_a_few_partitions(spark):
    """Of 4 partitions with 25 batches each, two report, with 6 batches read and 3 watched."""
    data = spark.range(0, 1000, 1, 4)
    seen = si.profile(data, si.PythonModel(load_planted), inputs="id", outputs="y double", batch_size=10, batches=6)
    records = seen.metrics.partitions
    assert [(record.partition, record.rows, record.profile.batches) for record in records] == [(0, 60, 3), (1, 60, 3)]
    slowest = seen.operators.iloc[0]
    assert "planted_step" in slowest["name"]
    assert slowest["calls"] == 6
    assert seen.metrics.settings["road"] == "map"


@pytest.mark.parametrize("road", ["map", "column"])
def test_a_run_is_watched_while_it_scores_everything(spark, road):
    """A DataFrame made before the run: its named partition is watched, every row comes out, and the trace has all four tasks."""
    scored = si.predict(spark.range(0, 1000, 1, 4), si.PythonModel(load_planted), inputs="id", outputs="y double", road=road, batch_size=50)
    with si.inference_run(profile=si.ProfilePlan(partitions=(2,), take=2), mlflow=False) as run:
        total = scored.selectExpr("sum(y) as y").collect()[0]["y"]
    assert total == 999_000
    assert [record.partition for record in run.metrics.partitions if record.profile is not None] == [2]
    assert run.profile.calls[0].batches == 2
    assert [record.latency.total for record in run.metrics.partitions] == [4, 4, 2, 4]
    with si.inference_run(mlflow=False) as after:
        scored.selectExpr("sum(y) as y").collect()
    assert after.profile.calls == ()


def test_an_empty_profile_is_told(spark):
    """The named partition is not there: a warning says what to do."""
    with pytest.warns(si.SparkInferWarning, match=r"the profile is empty: no watched partition had rows"):
        seen = si.profile(spark.range(0, 20, 1, 2), si.PythonModel(load_planted), partitions=(9,), inputs="id", outputs="y double")
    assert seen.calls == ()


def test_nothing_left_to_watch_is_refused(spark):
    """Before any job."""
    with pytest.raises(si.ConfigError, match="batches is 2 and skip is 2: nothing is left to watch"):
        si.profile(spark.range(4), si.PythonModel(load_planted), batches=2, skip=2, inputs="id", outputs="y double")
    with pytest.raises(si.ConfigError, match="profile is 'yes', expected True"), si.inference_run(profile="yes"):
        pass
