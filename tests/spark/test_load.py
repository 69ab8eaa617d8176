"""Load: many predictions in one query, several models in one plan, ten jobs at once: each has its own answers, and its own figures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.testing import RaisingModel
from tests.faults.kit import eventually
from tests.spark.kit import ROADS

ROWS, JOBS = 60, 10


def adds(number: float) -> si.PythonModel:
    """Make a model that adds a number: another model for each."""
    return si.PythonModel(lambda: partial(np.add, number))


def table(spark: Any, rows: int = ROWS, partitions: int = 1) -> Any:
    return spark.range(0, rows, 1, partitions).selectExpr("id", "cast(id as double) as x")


def rows_of_calls(run: si.InferenceRun) -> list[int]:
    """Give the rows of each call that reported; none is told twice."""
    executions = run.metrics.executions
    assert len({one.call for one in executions}) == len(executions)
    return sorted(sum(one.rows_by_partition.values()) for one in executions)


def test_many_predictions_in_one_query(spark) -> None:
    """Three columns beside each other, and a prediction by each road before them: five models in one action."""
    scored = si.predict(table(spark), adds(0), inputs="x", outputs="y0 double", road="map", batch_size=7)
    scored = si.predict(scored, adds(1), inputs="x", outputs="y1 double", road="column", batch_size=16)
    tags = {f"y{number}": si.predict_udf(adds(number), inputs="x", returns="double", batch_size=number) for number in (2, 3, 4)}
    with si.inference_run(mlflow=False) as run:
        rows = scored.select("*", *(tag("x").alias(name) for name, tag in tags.items())).collect()
    assert sorted(map(tuple, rows)) == [(i, float(i), *(float(i + number) for number in range(5))) for i in range(ROWS)]
    assert rows_of_calls(run) == [ROWS] * 5
    assert run.summary["inference/rows_total"] == ROWS
    assert len({action.execution for action in run.actions}) == 1


def test_several_models_in_one_plan(spark) -> None:
    """Two branches are joined, and a third model takes what the two gave; another branch of 10 rows is put below."""
    asked: dict[str, Any] = {"inputs": "x", "keep": ["id"], "batch_size": 8}
    left = si.predict(table(spark), adds(0.5), outputs="a double", road="map", **asked)
    right = si.predict(table(spark, partitions=2), adds(100), outputs="b double", road="column", **asked)
    both = si.predict(left.join(right, "id"), si.PythonModel(lambda: np.subtract), inputs=["b", "a"], outputs="c double", keep=["id"])
    below = si.predict(table(spark, rows=10), adds(-1), outputs="c double", **asked)
    with si.inference_run(mlflow=False) as run:
        rows = both.union(below).collect()
    expected = [(i, 99.5) for i in range(ROWS)] + [(i, i - 1.0) for i in range(10)]
    assert sorted(map(tuple, rows)) == sorted(expected)
    assert rows_of_calls(run) == [10, ROWS, ROWS, ROWS]


class Jobs:
    """Ten jobs, each on a thread of its own; all runs are open while any action runs."""

    FAILS, STOPS = 4, 7  # one whose model raises, and one that a limit stops

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.together = threading.Barrier(JOBS, timeout=120)

    def __call__(self, number: int) -> tuple[si.InferenceRun, list[Any] | str]:
        model = si.PythonModel(RaisingModel(trigger=5.0)) if number == self.FAILS else adds(number)
        df = table(self.spark, rows=ROWS + number, partitions=1 + number % 2)
        scored = si.predict(df, model, inputs="x", outputs="y double", road=ROADS[number // 2 % 2], batch_size=5 + number)
        action: Callable[[], list[Any]] = scored.limit(1).collect if number == self.STOPS else scored.collect
        answer: list[Any] | str
        with si.inference_run(f"job {number}", mlflow=False) as run:
            self.together.wait()
            try:
                answer = sorted(action())
            except Exception as error:  # noqa: BLE001 - looked at by the test
                answer = str(error)
                assert eventually(
                    lambda: any(action.error for action in run.actions)
                )  # Spark's store is told of an action's end a moment later
            self.together.wait()
        return run, answer


def test_ten_jobs_at_once(spark) -> None:
    """Each gets its own rows from its own model, and its run has its own action and nobody else's failure."""
    with ThreadPoolExecutor(JOBS) as pool:
        ended = list(pool.map(Jobs(spark), range(JOBS)))
    for number, (run, answer) in enumerate(ended):
        (action,) = run.actions
        if number == Jobs.FAILS:
            assert "the model raised, as it was told to" in answer
            assert action.error
            assert any("an action failed" in remark for remark in run.remarks)
        elif number == Jobs.STOPS:
            assert answer == [(0, 0.0, 7.0)]
            assert not action.complete
        else:
            assert answer == [(i, float(i), float(i + number)) for i in range(ROWS + number)]
            assert (action.rows, action.partitions, action.complete) == (ROWS + number, 1 + number % 2, True)
            assert run.summary["inference/rows_total"] == ROWS + number
            assert run.remarks == ()


def test_a_run_inside_another_has_its_own_actions(spark) -> None:
    """Those of the inner one are none of the outer one's, also where a limit stopped them and nothing came back."""
    scored = si.predict(table(spark, partitions=2), adds(1), inputs="x", outputs="y double", road="column")
    with si.inference_run("outer", mlflow=False) as outer:
        with si.inference_run("inner", mlflow=False) as inner:
            scored.limit(1).collect()
        tags = spark.sparkContext.getJobTags()
        scored.collect()
    assert [(action.rows, action.complete) for action in outer.actions] == [(ROWS, True)]
    assert [action.complete for action in inner.actions] == [False]
    assert len(tags) == 1  # the outer one's is back
    assert outer.remarks == ()
    assert not spark.sparkContext.getJobTags()


@pytest.mark.parametrize("road", ROADS)
def test_neither_order_nor_partitions_change_an_answer(spark, road) -> None:
    """One partition, many small ones, turned round, cut into other chunks: by id the answers are the framework's own to 1e-6."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).eval()
    with torch.inference_mode():
        expected = net(torch.tensor([[i / ROWS, i % 7] for i in range(ROWS)], dtype=torch.float32)).numpy()[:, 0]
    df = table(spark, partitions=3).selectExpr("id", f"array(cast(id / {ROWS} as float), cast(id % 7 as float)) as v")
    for data in (df.coalesce(1), df.repartition(5), df.orderBy(df.id.desc())):
        scored = si.predict(data, si.TorchModel(net), inputs="v", outputs="y float", keep=["id"], road=road, batch_size=7)
        with si.inference_run(max_records_per_batch=11, metrics=False, mlflow=False):
            rows = sorted(scored.collect())
        assert [row.id for row in rows] == list(range(ROWS))
        np.testing.assert_allclose([row.y for row in rows], expected, rtol=0, atol=1e-6)
