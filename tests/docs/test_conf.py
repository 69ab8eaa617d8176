"""The Spark settings under conf/ are ones that Spark takes, jobs run under them, and the job files there are right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pyspark
import pytest

from sparkinfer.cli.functions import functions_beside
from sparkinfer.cli.job import parse_job
from sparkinfer.cli.read import read_job
from sparkinfer.cli.run import run_job

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = sorted((ROOT / "conf").glob("*.conf"))
OF_ONE_MACHINE = [path for path in SETTINGS if "local[" in path.read_text(encoding="utf-8")]
JOBS = sorted((ROOT / "conf" / "jobs").glob("*.yaml"))
NEWER = {"spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"}  # Spark 4.2 has it; older ones let it pass

JOB = """
import sparkinfer as si
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
doubled = si.predict(spark.range(10), si.PythonModel(lambda: lambda x: 2 * x), inputs="id", outputs="y long")
print("records", spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"), "sum", sum(row.y for row in doubled.collect()))
spark.stop()
"""


def settings_of(path: Path) -> dict[str, str]:
    """Read a file as Spark does: a key, blanks, a value."""
    lines = [line.split(None, 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")]
    return {key: value.strip() for key, value in lines}


@pytest.mark.parametrize("settings", OF_ONE_MACHINE, ids=lambda path: path.name)
def test_a_job_runs_under_the_settings(settings: Path, tmp_path: Path) -> None:
    """spark-submit takes the file, the settings are in force, and the predictions are right."""
    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(submit), "--properties-file", str(settings), "--conf", f"spark.pyspark.python={sys.executable}", str(job)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
    )
    records = settings_of(settings)["spark.sql.execution.arrow.maxRecordsPerBatch"]
    assert f"records {records} sum 90" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda path: path.name)
def test_spark_knows_every_setting(spark: Any, settings: Path) -> None:
    """Spark's own register of settings has the key, or it asks for a resource."""
    register = spark._jvm.org.apache.spark.internal.config.ConfigEntry
    assert register.findEntry("spark.python.worker.reuze") is None
    for key in settings_of(settings):
        kind, _, last = key.rpartition(".")
        resource = kind in ("spark.executor.resource.gpu", "spark.task.resource.gpu") and last in ("amount", "vendor")
        assert register.findEntry(key) is not None or resource or key in (*NEWER, "spark.master"), key


def test_cards_cores_and_tasks_go_together() -> None:
    """As many tasks as share a card by its fraction fit into the cores of the executor that has it."""
    settings = settings_of(ROOT / "conf" / "many-gpus.conf")
    by_card = float(settings["spark.executor.resource.gpu.amount"]) / float(settings["spark.task.resource.gpu.amount"])
    by_cores = int(settings["spark.executor.cores"]) / int(settings["spark.task.cpus"])
    assert by_card == by_cores == 4


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_every_job_file_is_right(path: Path) -> None:
    """Its keys are known and its functions are there."""
    job = parse_job(read_job(path, (), {"MODELS": "/models", "DATA": "/data"}))
    named = [value for section in (job.predict, *job.model.given().values()) for value in section.given().values()]
    with functions_beside(path) as functions:
        found = [functions.find(name, "a key") for name in named if isinstance(name, str) and name.startswith("scoring:")]
    assert len(found) >= 2


def test_the_local_job_runs_as_it_is(spark: Any, tmp_path: Path) -> None:
    """But for the place of its result, and the master, which a running session keeps."""
    path = ROOT / "conf" / "jobs" / "local.yaml"
    changes = (f"sink.path={tmp_path / 'scored'}", "spark={}")
    run_job(path, changes=changes, say=lambda line: None)
    scored = pq.read_table(tmp_path / "scored").sort_by("id")
    numbers = np.arange(10000)
    assert scored.column("id").to_pylist() == numbers.tolist()
    np.testing.assert_allclose(scored.column("distance").to_numpy(), np.hypot(numbers % 30, numbers % 40), rtol=1e-6)
