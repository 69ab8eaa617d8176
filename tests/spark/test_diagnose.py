"""A diagnosis on Spark: the arms run in the workers, by the user's own plan and on a sample, and write nowhere."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

import sparkinfer as si
from sparkinfer.cli import main
from sparkinfer.spark.arms import SparkArms

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import SparkSession


def load():
    def predict(x: np.ndarray) -> np.ndarray:
        time.sleep(0.01)
        return 2 * x

    return predict


def load_two():
    return lambda x, text: x


def test_each_arm_reports_its_own_rows(spark: SparkSession) -> None:
    """Source, transport, everything but the model, the model alone and everything; the sample is let go of, settings are as they were."""
    rows = spark.range(0, 400, 1, 2).selectExpr("cast(id as double) as x", "cast(id as string) as name")
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    arguments = {"inputs": "x", "outputs": "y double", "road": "map"}
    config = si.InferenceConfig(batch_size=50)
    arms = SparkArms(rows, si.PythonModel(load), arguments, config, None)
    assert arms.sample(400, 10**8, 30) == 400
    assert arms.job_rows == (200, 200)
    assert arms.slots == 2
    assert arms.source(30).rows == arms.identity().rows == arms.trivial(config).rows == arms.everything(config).rows == 400
    arms.limit(200)
    assert 200 <= arms.trivial(config).rows < 300
    (called, *_) = arms.synthetic(config, (50, 100), 0.1)
    assert set(called.seconds) == {50, 100}
    assert called.seconds[50] >= 0.01
    arms.close()
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == before
    assert not rows.is_cached


def marking(folder: str):
    """Make a source that leaves a file for each partition that is read, named after it."""

    def give(chunks):
        from pyspark import TaskContext

        for chunk in chunks:
            Path(folder, str(TaskContext.get().partitionId())).touch()
            yield chunk

    return give


def read_by(folder: Path) -> set[int]:
    """Give the partitions that were read since it was last asked."""
    found = {int(path.name) for path in folder.iterdir()}
    for path in folder.iterdir():
        path.unlink()
    return found


def test_of_many_partitions_a_few_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """Two for each slot, spread over the data: the others have no task, which would cost a Python worker each."""
    rows = spark.range(0, 4000, 1, 20).mapInArrow(marking(str(tmp_path)), "id long").selectExpr("cast(id as double) as x", "id as name")
    config = si.InferenceConfig(batch_size=50)
    arms = SparkArms(rows, si.PythonModel(load), {"inputs": "x", "outputs": "y double", "road": "map"}, config, None)
    assert arms.sample(480, 10**8, 30) == 480
    assert arms.job_rows == (200,) * 20
    assert arms.remarks == ["4 of the 20 partitions were read, spread over them"]
    assert read_by(tmp_path) == set(range(20))  # they were counted
    assert arms.source(30).rows == arms.everything(config).rows == 480
    assert read_by(tmp_path) == {2, 7, 12, 17}
    assert arms.identity().rows == arms.trivial(config).rows == 480
    assert read_by(tmp_path) == set()
    arms.limit(192)
    assert arms.source(30).rows == arms.everything(config).rows == 192
    (called, *_) = arms.synthetic(config, (50,), 0.1)
    assert called.seconds[50] >= 0.01
    arms.close()
    assert read_by(tmp_path) == {2, 7, 12, 17}
    si.profile(rows, si.PythonModel(load), inputs="x", outputs="y double", partitions=(3, 5), batch_size=10)
    assert read_by(tmp_path) == {3, 5}
    assert si.inspect_model(rows, si.PythonModel(load), inputs="x", outputs="y double", partitions=(4,), batch_size=10).outputs is not None
    assert read_by(tmp_path) == {4}
    assert si.partition_of(rows, 6).column("name").to_pylist() == list(range(1200, 1400))
    assert read_by(tmp_path) == {6}


def test_empty_partitions_are_not_chosen(spark: SparkSession) -> None:
    """Rows lie in the second half of the partitions alone: those are read, by their own numbers."""
    rows = spark.range(0, 2000, 1, 20).where("id >= 1000").selectExpr("cast(id as double) as x")
    config = si.InferenceConfig(batch_size=50)
    arms = SparkArms(rows, si.PythonModel(load), {"inputs": "x", "outputs": "y double"}, config, None)
    assert arms.sample(320, 10**8, 30) == 320
    assert arms.job_rows == (100,) * 10
    assert arms.source(30).rows == arms.everything(config).rows == 320
    arms.close()


def test_a_sample_that_comes_to_the_driver_is_bounded_in_bytes(spark: SparkSession) -> None:
    """Of rows of a megabyte as many as fit, and of each partition one at least."""
    rows = spark.range(0, 200, 1, 20).selectExpr("cast(id as double) as x", "repeat('a', 1000000) as text")
    arguments = {"inputs": ["x", "text"], "outputs": "y double"}
    arms = SparkArms(rows, si.PythonModel(load_two), arguments, si.InferenceConfig(batch_size=2), None)
    assert arms.sample(100, 9 * 10**6, 30) == 8
    assert arms.everything(si.InferenceConfig(batch_size=2)).rows == 8
    assert arms.sample(100, 1000, 30) == 4
    arms.close()


def test_the_look_takes_its_own_road_and_batch_size(spark: SparkSession) -> None:
    """A profile of a job that says ``road="column"``, and an inspection with ``batch_size="auto"``."""
    rows = spark.range(0, 4000, 1, 2).selectExpr("cast(id as double) as x", "id as name")
    model = si.PythonModel(load)
    assert si.profile(rows, model, inputs="x", outputs="y double", road="column", keep=["name"], batch_size=10).calls[0].batches
    seen = si.inspect_model(rows, model, inputs="x", outputs="y double", batch_size="auto", batches=1)
    assert len(seen.outputs)


def test_a_count_that_takes_too_long_is_ended(spark: SparkSession) -> None:
    """The plan upstream is as slow as it is: then how even the partitions are is not known, and the rest is measured all the same."""

    def slowly(chunks):
        time.sleep(1.0)
        yield from chunks

    rows = spark.range(0, 1200, 1, 12).mapInArrow(slowly, "id long").selectExpr("cast(id as double) as x")
    config = si.InferenceConfig(batch_size=50)
    arms = SparkArms(rows, si.PythonModel(load), {"inputs": "x", "outputs": "y double"}, config, None)
    assert 0 < arms.sample(400, 10**8, 0.5) <= 400
    assert arms.job_rows == ()
    assert [told for told in arms.remarks if "were not counted" in told]
    assert 0 < arms.source(30).rows == arms.everything(config).rows
    arms.close()


def test_a_job_file_is_measured_and_its_sink_left_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands print what they saw and write the pages that are asked for; nothing lies where the job would write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scoring.py").write_text("def load():\n    return lambda x: 2 * x\n", encoding="utf-8")
    spark.range(100).selectExpr("cast(id as double) as x").write.parquet(str(tmp_path / "in"))
    job = {
        "version": 1,
        "source": {"path": str(tmp_path / "in")},
        "model": {"python": {"load": "scoring:load"}},
        "predict": {"inputs": "x", "outputs": "y double"},
        "sink": {"path": str(tmp_path / "out")},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    assert main(["diagnose", "job.yaml", "--seconds", "1", "--rows", "100"]) == 0
    told = capsys.readouterr().out
    assert "everything but the model" in told
    assert "num_workers=" in told
    assert not (tmp_path / "out").exists()
    tuning = ["tune", "job.yaml", "--seconds", "1", "--rows", "100", "--set", "config.models_per_worker=2", "--write", "faster.yaml"]
    assert main(tuning) == 0
    assert "job -> faster.yaml" in capsys.readouterr().out
    written = yaml.safe_load((tmp_path / "faster.yaml").read_text(encoding="utf-8"))
    assert written["config"]["models_per_worker"] == 2
    assert {key: written[key] for key in ("version", "model", "predict", "sink")} == {
        key: job[key] for key in ("version", "model", "predict", "sink")
    }
    assert main(["profile", "job.yaml", "--set", "config.batch_size=8", "--report", "profile.html", "--trace", "run.trace.json.gz"]) == 0
    told = capsys.readouterr().out
    assert "Profile(python: 6 batches of 2 partitions)\n" in told
    assert told.count("memory:") == 1
    assert "report -> profile.html" in told
    assert "cProfile" in (tmp_path / "profile.html").read_text(encoding="utf-8")
    assert json.loads(gzip.decompress((tmp_path / "run.trace.json.gz").read_bytes()))["traceEvents"]
    assert main(["inspect", "job.yaml", "--save-baseline", "then.json"]) == 0
    assert main(["inspect", "job.yaml", "--baseline", "then.json", "--report", "inside.html"]) == 0
    told = capsys.readouterr().out
    assert "baseline -> then.json" in told
    assert "report -> inside.html" in told
    assert main(["inspect", "job.yaml", "--baseline", "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_partition_is_stepped_through_from_its_row_of_the_table(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows come to the driver, in the task's order and types; there the debugger stops at one of them."""
    rows = spark.range(0, 12, 1, 3).selectExpr("id", "cast(id as double) as x", "array(id) as `a b`").where("id < 8")
    arguments = {"inputs": "x", "outputs": "y double", "batch_size": 2}
    with si.inference_run(mlflow=False) as run:
        si.predict(rows, si.PythonModel(load), **arguments).collect()
    number = run.partitions.sort_values("rows")["partition"].iloc[-1]
    assert number in {0, 1}
    table = si.partition_of(rows, 1)
    assert table.to_pydict() == {"id": [4, 5, 6, 7], "x": [4.0, 5.0, 6.0, 7.0], "a b": [[4], [5], [6], [7]]}
    assert si.partition_of(rows, 2, columns=["x"]).num_rows == 0
    with pytest.raises(si.ConfigError, match="partition is 3"):
        si.partition_of(rows, 3)
    stopped: list[list[float]] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stopped.append(sys._getframe(1).f_locals["inputs"].arrays["x"].tolist()))
    scored = si.predict_local(table, si.PythonModel(load), stop_at=("predict", 3), **arguments)
    assert stopped == [[6.0, 7.0]]
    assert scored["y"].to_pylist() == [8.0, 10.0, 12.0, 14.0]
