"""Every action inside a run brings its partitions' figures back, each partition once, whatever became of its tasks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.spark import session as session_module
from sparkinfer.spark.calls import _source_of
from tests.spark.kit import hide_context, ours

ROOT = Path(__file__).resolve().parents[2]


def double(x: np.ndarray) -> np.ndarray:
    return x * 2


def load_double() -> Any:
    return double


def in_a_session_of_its_own(script: str, **environment: str) -> dict[str, Any]:
    """Run a script in a new interpreter, whose session is its own; it prints one line of JSON last."""
    environ = dict(os.environ)

    head = "import json, sys, time\nimport sparkinfer as si\nfrom tests.spark.test_metrics import load_double\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(script)],
        cwd=ROOT,
        env={**environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


@pytest.mark.parametrize("road", ["map", "column"])
def test_a_write_brings_every_partition_back(spark, road):
    """1,000 rows in 4 partitions: the summary has them all, the table has four lines, and the stages are the wall."""
    scored = si.predict(
        spark.range(1000).repartition(4), si.PythonModel(load_double), inputs="id", outputs="y long", road=road, batch_size=100
    )
    with si.inference_run("write") as run:
        scored.write.format("noop").mode("overwrite").save()
    assert run.summary["inference/rows_total"] == 1000
    assert run.summary["inference/partitions_total"] == 4
    assert run.summary["inference/batches_total"] == 12
    table = run.partitions
    assert sorted(table["partition"]) == [0, 1, 2, 3]
    stages = table[
        [f"{stage}_seconds" for stage in ("model_load", "input_wait", "compute", "postprocess", "encode", "output_wait", "other")]
    ]
    assert np.allclose(stages.sum(axis=1), table["wall_seconds"], atol=1e-4)
    assert run.metrics.settings["road"] == road
    assert run.metrics.settings["batch_size"] == 100
    assert si.last_run() is run


def test_a_udf_column_reports_too(spark):
    """predict_udf returns exactly what it declares, and its partitions report beside it."""
    tag = si.predict_udf(si.PythonModel(load_double), inputs="id", returns="bigint")
    with si.inference_run() as run:
        rows = spark.range(100).repartition(2).withColumn("y", tag("id")).collect()
    assert sorted(row.y for row in rows) == list(range(0, 200, 2))
    assert run.summary["inference/rows_total"] == 100
    assert run.metrics.settings["road"] == "udf"


def load_parity() -> Any:
    def predict(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(x % 2 == 0, "even", "odd"), x + 0.5

    return predict


def test_a_label_gives_accuracy_and_confusion(spark):
    """'odd' is said for odd numbers, the truth calls multiples of 4 odd as well and one in ten is null: 0.75 of the others, in each cell its rows."""
    data = spark.range(0, 400, 1, 4).selectExpr(
        "id", "CASE WHEN id % 10 = 9 THEN NULL WHEN id % 2 = 1 OR id % 4 = 0 THEN 'odd' ELSE 'even' END AS `the.truth`"
    )
    scored = si.predict(data, si.PythonModel(load_parity), inputs="id", outputs="said string, x double", road="map", batch_size=30)
    with si.inference_run(label="the.truth") as run:
        scored.write.format("noop").mode("overwrite").save()
    with si.inference_run() as unasked:
        scored.write.format("noop").mode("overwrite").save()
    assert run.summary["quality/compared_rows_total"] == 360
    assert run.summary["quality/left_out_rows_total"] == 40
    assert run.summary["quality/accuracy"] == pytest.approx(260 / 360)
    confusion = run.confusion
    assert confusion.to_dict("index") == {"even": {"even": 100, "odd": 0}, "odd": {"even": 100, "odd": 160}}
    assert (confusion.index.name, confusion.columns.name) == ("the.truth", "said")
    assert run.metrics.remarks == ()
    assert not [name for name in unasked.summary if name.startswith("quality/")]
    assert unasked.confusion is None


def test_a_label_of_numbers_gives_the_mean_absolute_error(spark):
    """The prediction is 0.5 above the id, the label 1.5 below it; the text beside it is passed over."""
    data = spark.range(100).repartition(3).selectExpr("id", "CAST(id - 1.5 AS float) AS truth")
    scored = si.predict(data, si.PythonModel(load_parity), inputs="id", outputs="said string, x double", road="map", keep=["truth"])
    with si.inference_run(label="truth") as run:
        scored.collect()
    assert run.summary["quality/mean_absolute_error"] == pytest.approx(2.0)
    assert run.summary["quality/compared_rows_total"] == 100
    assert run.confusion is None


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"road": "column"}, "on the column road"),
        ({"road": "map", "keep": ["id"]}, r"none of the kept columns\. There is: 'id'\."),
        ({"road": "map"}, r"no output has a type that compares with it \(y int64\)"),
    ],
)
def test_a_label_that_cannot_be_compared_is_told_once(spark, how, why):
    """On the column road, not kept, or of another type than every output: the predictions come, and one remark says why and what to do."""
    scored = si.predict(
        spark.range(20).selectExpr("id", "string(id) AS truth"), si.PythonModel(load_double), inputs="id", outputs="y long", **how
    )
    with si.inference_run(label="truth") as run:
        assert len(scored.collect()) == 20
    (remark,) = run.metrics.remarks
    assert re.search(why, remark)
    assert "road='map', keep=['truth', ...]" in remark
    assert not [name for name in run.summary if name.startswith("quality/")]
    with pytest.raises(si.ConfigError, match="label is ''"), si.inference_run(label=""):
        pass


def test_every_action_is_apart_and_a_show_is_told_as_incomplete(spark):
    """A show and then a write: both are listed, the write has all the rows and is the run, the show is no full action."""
    scored = si.predict(
        spark.range(1000).repartition(4), si.PythonModel(load_double), inputs="id", outputs="y long", road="map", batch_size=10
    )
    with si.inference_run("two") as run:
        scored.show(2)
        scored.write.format("noop").mode("overwrite").save()
    shown, written = run.actions
    assert "showString" in shown.description
    assert not shown.complete
    assert (written.rows, written.partitions, written.complete) == (1000, 4, True)
    assert run.summary["inference/rows_total"] == 1000


def test_two_runs_do_not_see_each_other(spark):
    """The same DataFrame in two runs: each has its own action, and none of the one between them."""
    scored = si.predict(spark.range(40).repartition(2), si.PythonModel(load_double), inputs="id", outputs="y long")
    with si.inference_run("first") as first:
        scored.collect()
    scored.collect()
    with si.inference_run("second") as second:
        scored.write.format("noop").mode("overwrite").save()
        scored.collect()
    assert len(first.actions) == 1
    assert len(second.actions) == 2
    assert {action.execution for action in first.actions}.isdisjoint({action.execution for action in second.actions})


def test_what_ran_in_an_inner_run_is_that_ones(spark):
    """The outer one has no figures of it, and says where they are; one that has an action of its own says nothing."""
    scored = si.predict(spark.range(40).repartition(2), si.PythonModel(load_double), inputs="id", outputs="y long")
    with si.inference_run("outer") as outer, si.inference_run("inner") as inner:
        scored.collect()
    assert (len(inner.actions), inner.remarks) == (1, ())
    assert (len(outer.actions), [text for text in outer.remarks if "'inner'" in text]) == (0, list(outer.remarks))
    with si.inference_run("outer") as outer:
        scored.collect()
        with si.inference_run("inner"):
            scored.collect()
    assert (len(outer.actions), outer.remarks) == (1, ())


def test_an_empty_partition_reports_finite_figures(spark):
    """3 rows over 8 partitions, and no rows at all: every figure is finite, and nothing was loaded for the empty ones (C02)."""
    scored = si.predict(spark.range(3).repartition(8), si.PythonModel(load_double), inputs="id", outputs="y long")
    with si.inference_run() as run:
        assert len(scored.collect()) == 3
    assert run.summary["inference/rows_total"] == 3
    assert all(np.isfinite(value) for value in run.summary.values())
    nothing = si.predict(spark.range(10).where("id > 99"), si.PythonModel(load_double), inputs="id", outputs="y long")
    with si.inference_run() as empty:
        assert nothing.collect() == []
    assert all(np.isfinite(value) for value in empty.summary.values())
    assert empty.summary["inference/rows_total"] == 0


def test_planted_sleeps_show_in_their_stages(spark, tmp_path):
    """Waits in source, preprocess, model and postprocess, each timed where it stands, are found in their stages to 10 %, and 'other' stays under 5 %."""
    waits = {"source": 0.04, "preprocess": 0.02, "model": 0.03, "postprocess": 0.05}  # seconds a batch

    def wait(stage: str) -> None:
        # A sleep is longer than it was asked to be wherever the machine is busy: what it took is written down.
        started = time.perf_counter()
        time.sleep(waits[stage])
        with (tmp_path / stage).open("a") as told:
            told.write(f"{time.perf_counter() - started}\n")

    def slow_source(chunks: Any) -> Any:
        for chunk in chunks:
            wait("source")
            yield chunk

    def preprocess(x: np.ndarray) -> np.ndarray:
        wait("preprocess")
        return x

    def load() -> Any:
        def predict(x: np.ndarray) -> np.ndarray:
            wait("model")
            return x

        return predict

    def postprocess(y: np.ndarray) -> np.ndarray:
        wait("postprocess")
        return y

    def waited(stage: str) -> float:
        return sum(float(line) for line in (tmp_path / stage).read_text().split())

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        source = spark.range(0, 600, 1, 1).mapInArrow(slow_source, "id long")
        scored = si.predict(
            source,
            si.PythonModel(load),
            inputs="id",
            outputs="y long",
            preprocess_batch=preprocess,
            postprocess=postprocess,
            batch_size=10,
            prefetch_batches=0,
        )
        scored.write.format("noop").mode("overwrite").save()  # warm
        for stage in waits:
            (tmp_path / stage).unlink()
        with si.inference_run() as run:
            scored.write.format("noop").mode("overwrite").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    figures = run.summary
    assert figures["inference/batches_total"] == 60
    assert waited("model") >= 60 * waits["model"]
    assert figures["stage/compute_seconds"] == pytest.approx(waited("model"), rel=0.1)
    assert figures["stage/postprocess_seconds"] == pytest.approx(waited("postprocess"), rel=0.1)
    assert figures["producer/preprocess_seconds"] == pytest.approx(waited("preprocess"), rel=0.1)
    assert figures["producer/read_seconds"] > 0
    assert figures["stage/input_wait_seconds"] == pytest.approx(
        figures["producer/read_seconds"] + figures["producer/preprocess_seconds"], rel=0.1, abs=0.1
    )
    assert figures["stage/other_fraction"] < 0.05


def test_metrics_can_be_switched_off(spark):
    """metrics=False on the call or on the run: the predictions are the same, and the run says that it measured nothing."""
    silent = si.predict(spark.range(10), si.PythonModel(load_double), inputs="id", outputs="y long", metrics=False)
    with si.inference_run() as run:
        assert len(silent.collect()) == 10
    assert run.summary["inference/rows_total"] == 0
    spoken = si.predict(spark.range(10), si.PythonModel(load_double), inputs="id", outputs="y long")
    with si.inference_run(metrics=False) as off:
        assert len(spoken.collect()) == 10
    assert off.metrics.remarks == ("not measured: the run was opened with metrics=False",)


def test_a_task_that_fails_after_its_output_is_counted_once():
    """The second partition fails twice when all its rows are out; its third attempt is the one that counts."""
    told = in_a_session_of_its_own(
        """
        import time
        from pyspark.sql import SparkSession
        from pyspark import TaskContext
        spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
        def fails_late(chunks):
            yield from chunks
            context = TaskContext.get()
            if context.partitionId() == 1 and context.attemptNumber() < 2:
                time.sleep(0.3)
                raise RuntimeError("after everything")
        scored = si.predict(spark.range(1000).repartition(4), si.PythonModel(load_double), inputs="id", outputs="y long", road="map")
        with si.inference_run() as run:
            rows = scored.mapInArrow(fails_late, scored.schema).collect()
        print(json.dumps({"rows": len(rows), "total": run.summary["inference/rows_total"], "partitions": run.summary["inference/partitions_total"],
            "failed": [action.failed_attempts for action in run.actions], "seconds": run.actions[0].failed_seconds, "remarks": run.remarks}))
        spark.stop()
        """
    )
    assert (told["rows"], told["total"], told["partitions"], told["failed"]) == (1000, 1000, 4, [2])
    assert told["seconds"] >= 0.6
    assert any("2 attempts at tasks failed after" in remark for remark in told["remarks"])


@pytest.mark.spark(since=(4, 3), why="spark.testing.injectShuffleFetchFailures")
def test_a_fetch_failure_that_runs_a_task_again_is_counted_once():
    """Spark's own injected fetch failure re-runs finished map tasks: 1,000 rows and 4 partitions all the same."""
    told = in_a_session_of_its_own(
        """
        from pyspark.sql import SparkSession
        spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "4")
            .config("spark.testing.injectShuffleFetchFailures", "true").getOrCreate())
        scored = si.predict(spark.range(0, 1000, 1, 4), si.PythonModel(load_double), inputs="id", outputs="y long", road="map")
        with si.inference_run() as run:
            rows = scored.groupBy("y").count().collect()
        dropped = sum(one.duplicates for one in run.metrics.executions)
        print(json.dumps({"rows": len(rows), "total": run.summary["inference/rows_total"], "partitions": run.summary["inference/partitions_total"],
            "dropped": dropped}))
        spark.stop()
        """,
        SPARK_TESTING="1",
    )
    assert (told["rows"], told["total"], told["partitions"]) == (1000, 1000, 4)
    assert told["dropped"] >= 1  # the failure was really injected


@pytest.mark.spark(since=(4, 1), why="workers' logs, in which figures come back over Connect")
def test_over_connect_the_figures_come_back_too():
    """On a Connect server, by both roads: a show is listed as incomplete, the write has its 1,000 rows in 4 partitions."""
    told = in_a_session_of_its_own(
        """
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        out = []
        for road in ("map", "column"):
            scored = si.predict(spark.range(1000).repartition(4), si.PythonModel(load_double), inputs="id", outputs="y long", road=road)
            with si.inference_run() as run:
                scored.show(2)
                scored.write.format("noop").mode("overwrite").save()
            out.append([run.summary["inference/rows_total"], run.summary["inference/partitions_total"], [a.complete for a in run.actions]])
        print(json.dumps({"out": out}))
        spark.stop()
        """,
        SPARK_TESTING="1",
    )
    for rows, partitions, complete in told["out"]:
        assert (rows, partitions) == (1000, 4)
        assert complete in ([False, True], [True])  # what a show does not finish reports nothing at all


def store_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A SQLite MLflow of the test's own; gives mlflow."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)  # what another test may have set in this process
    monkeypatch.setattr(mlflow.tracking.fluent, "_active_experiment_id", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "scoring")
    mlflow.create_experiment("scoring", artifact_location=(folder / "artifacts").as_uri())
    return mlflow


def test_autolog_logs_a_bare_action_once_and_nothing_before_or_after(spark, tmp_path, monkeypatch):
    """Under autolog() a bare write becomes one MLflow run with its rows; before autolog() and after disable=True nothing is logged."""
    mlflow = store_of(tmp_path, monkeypatch)
    scored = si.predict(spark.range(100).repartition(2), si.PythonModel(load_double), inputs="id", outputs="y long")
    try:
        scored.write.format("noop").mode("overwrite").save()
        si.autolog()
        scored.write.format("noop").mode("overwrite").save()
        si.autolog(disable=True)
        scored.write.format("noop").mode("overwrite").save()
        logged = mlflow.search_runs(search_all_experiments=True)
    finally:
        si.autolog(disable=True)
    assert list(logged["metrics.inference/rows_total"]) == [100]


def test_a_run_logs_its_rows_partitions_and_report_to_mlflow(spark, tmp_path, monkeypatch):
    """Under a SQLite MLflow: inference/rows_total is 1000, four partitions, the report among the artifacts, later actions as children."""
    mlflow = store_of(tmp_path, monkeypatch)
    scored = si.predict(spark.range(1000).repartition(4), si.PythonModel(load_double), inputs="id", outputs="y long")
    with si.inference_run("nightly") as run:
        scored.write.format("noop").mode("overwrite").save()
        scored.collect()
    client = mlflow.MlflowClient()
    logged = client.get_run(run.mlflow_run_id)
    artifacts = {item.path for item in client.list_artifacts(run.mlflow_run_id, "sparkinfer")}
    children = mlflow.search_runs(search_all_experiments=True, filter_string=f"tags.mlflow.parentRunId = '{run.mlflow_run_id}'")
    steps = {point.step for point in client.get_metric_history(run.mlflow_run_id, "partition/rows_per_second")}
    assert logged.data.metrics["inference/rows_total"] == 1000
    assert logged.data.metrics["inference/partitions_total"] == 4
    assert steps == {0, 1, 2, 3}
    assert "sparkinfer/report.html" in artifacts
    assert list(children["metrics.inference/rows_total"]) == [1000]


def test_a_session_that_hides_its_context_still_scores(spark, monkeypatch):
    """C49: sparkContext, _jvm, _jsc and conf.get raise for all but pyspark: both roads, a UDF and preview are whole, one warning says what is off."""
    asked: dict[str, Any] = {"inputs": "id", "outputs": "y bigint", "max_records_per_batch": 7}
    monkeypatch.setattr(session_module, "_remarked", set())
    hide_context(monkeypatch, spark)
    df = spark.range(20)
    with pytest.raises(AttributeError, match="not supported on this cluster"):
        _ = spark.sparkContext
    with si.inference_run(progress=True) as run, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tag = si.predict_udf(si.PythonModel(load_double), inputs="id", returns="bigint")
        scored = [si.predict(df, si.PythonModel(load_double), road=road, **asked) for road in ("map", "column")]
        for one in (*scored, df.withColumn("y", tag("id"))):
            assert {row.id: row.y for row in one.collect()} == {i: 2 * i for i in range(20)}
        assert len(si.preview(df, si.PythonModel(load_double), 3, **asked)) == 3
    said = [str(warning.message) for warning in ours(told)]
    assert sum("does not give its SparkContext" in text for text in said) == 1
    assert sum("does not let its settings be read" in text for text in said) == 1
    assert run.summary["inference/rows_total"] == 0
    assert any("not measured" in remark for remark in run.metrics.remarks)


def test_a_session_that_hides_its_context_sends_no_files_and_says_so(spark, monkeypatch, tmp_path):
    """C49: a model's file has no way to the workers there: the error names what is off and the ways that work, and those do."""
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(1, 1, bias=False).state_dict(), tmp_path / "net.pt")
    asked: dict[str, Any] = {"inputs": ("x", si.TensorSpec("float32", (1,))), "outputs": "y array<float>"}

    def model(ship: str) -> si.TorchModel:
        return si.TorchModel(partial(torch.nn.Linear, 1, 1, bias=False), weights=tmp_path / "net.pt", ship=ship)

    hide_context(monkeypatch, spark)
    df = spark.range(3).selectExpr("id", "array(cast(id as float)) as x")
    for ship in ("auto", "files"):
        with pytest.raises(si.ModelLoadError, match=r"does not give its SparkContext .*net\.pt cannot be sent.*ship='path'.*ship='value'"):
            si.predict(df, model(ship), metrics=False, **asked)
    for ship in ("path", "value"):
        assert len(si.predict(df, model(ship), metrics=False, **asked).collect()) == 3


def test_workers_import_no_mlflow_and_leave_no_files(spark):
    """The workers only measure: mlflow is not imported there, and no store appears in their folder (C45)."""

    def look() -> Any:
        def predict(x: np.ndarray) -> np.ndarray:
            return np.array(["mlflow" in sys.modules] * len(x))

        return predict

    before = set(Path.cwd().iterdir())
    scored = si.predict(spark.range(8).repartition(2), si.PythonModel(look), inputs="id", outputs="found boolean")
    with si.inference_run() as run:
        assert [row.found for row in scored.collect()] == [False] * 8
    assert run.mlflow_run_id is not None
    assert run.summary["inference/rows_total"] == 8
    assert set(Path.cwd().iterdir()) - before <= {Path.cwd() / "spark-warehouse"}


def test_a_lone_show_is_told_as_cut_short(spark):
    """A show over many small partitions, of which a few report: the plan has a limit above the model, so it is no full action."""
    scored = si.predict(spark.range(0, 400, 1, 40), si.PythonModel(load_double), inputs="id", outputs="y long", road="map")
    with si.inference_run() as run:
        scored.show(3)
    (shown,) = run.actions
    assert not shown.complete
    assert any("cut short" in remark for remark in run.metrics.remarks)
    with si.inference_run() as below:
        si.preview(spark.range(0, 400, 1, 40), si.PythonModel(load_double), n=5, inputs="id", outputs="y long", road="map")
    assert [(action.rows, action.complete) for action in below.actions] == [(5, True)]


def test_records_read_from_several_threads_are_read_once(spark):
    """Progress, autolog and the run read at the same time: each record is there once."""
    from concurrent.futures import ThreadPoolExecutor

    from sparkinfer.metrics import PartitionMetrics
    from sparkinfer.spark.channels import open_channel

    channel = open_channel(spark, wanted=True)
    for partition in range(2000):
        channel.send(
            PartitionMetrics(
                call="c", execution="1", partition=partition, task_attempt=partition, host="h", pid=1, started_unix=1.0, wall_seconds=1.0
            )
        )
    with ThreadPoolExecutor(8) as pool:
        for records in pool.map(lambda _: channel.records(), range(32)):
            assert [record.partition for record in records] == list(range(2000))
    channel.forget()
    assert channel.records() == []


def test_a_session_stopped_inside_a_run_raises_nothing():
    """The user stops Spark inside the block: leaving it is quiet, and what was measured is there."""
    told = in_a_session_of_its_own(
        """
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        scored = si.predict(spark.range(100).repartition(2), si.PythonModel(load_double), inputs="id", outputs="y long")
        with si.inference_run(max_records_per_batch=50) as run:
            scored.collect()
            spark.stop()
        print(json.dumps({"rows": run.summary["inference/rows_total"]}))
        """
    )
    assert told == {"rows": 100}


def test_a_thread_without_a_session_of_its_own_uses_the_process_one(spark):
    """Building a column in a plain thread takes the session that is there, and changes none of its settings."""
    from threading import Thread

    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    made: list[Any] = []
    try:
        thread = Thread(target=lambda: made.append(si.predict_udf(si.PythonModel(load_double), inputs="id", returns="bigint")))
        thread.start()
        thread.join(60)
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert [row.y for row in spark.range(3).withColumn("y", made[0]("id")).orderBy("id").collect()] == [0, 2, 4]


def test_the_data_is_named_without_user_and_password():
    """The name goes to MLflow and into files, where everybody reads it."""

    class Listed:
        def inputFiles(self):  # noqa: N802 - Spark's own name
            return ["ftp://bob:pw@host/photos/part=1/a.parquet"]

    assert _source_of(Listed()) == {"data_name": "photos", "data_source": "ftp://host/photos"}


def test_the_run_names_the_files_that_were_scored(spark, tmp_path, monkeypatch):
    """A partitioned Parquet folder: its name and path are the run's dataset in MLflow, and no job was run to find them."""
    mlflow = store_of(tmp_path, monkeypatch)
    folder = tmp_path / "photos"
    spark.range(20).selectExpr("id", "id % 2 as part").write.partitionBy("part").parquet(str(folder))
    scored = si.predict(spark.read.parquet(str(folder)), si.PythonModel(load_double), inputs="id", outputs="y long", keep=["id"])
    with si.inference_run() as run:
        scored.write.format("noop").mode("overwrite").save()
    assert (run.metrics.settings["data_name"], run.metrics.settings["data_source"]) == ("photos", folder.as_uri())
    (used,) = mlflow.MlflowClient().get_run(run.mlflow_run_id).inputs.dataset_inputs
    assert used.dataset.name == "photos"
    assert [action.rows for action in run.actions] == [20]
