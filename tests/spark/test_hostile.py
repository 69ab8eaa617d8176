"""Names, files and settings made to do harm, on a real Spark: they stay what they are, are refused, or are never shown."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

import sparkinfer as si
from sparkinfer.spark.ship import locate, ship
from tests.spark.kit import ROADS, model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "<script>alert(1)</script>"
NAMES = ["a.b", "a b", "a`b", "ünï 😀", SCRIPT, " ", "n" * 1000, "a\nb", "'\"\\$", "${env:HOME}", "-- ; DROP TABLE x"]
SECRET = "hunter2-0f9c"


def odd(spark: SparkSession) -> DataFrame:
    """Two rows, a column under each name; the second row is one that the model refuses."""
    from pyspark.sql.functions import col

    return spark.range(2).coalesce(1).select(*(col("id").cast("double").alias(name) for name in NAMES))


def refuse_ones(*columns: np.ndarray) -> Any:
    if any(column.any() for column in columns):
        raise ValueError(f"no ones, but {SCRIPT}")
    return sum(columns)


@pytest.mark.parametrize("road", ROADS)
def test_odd_names_are_names_wherever_they_stand(spark: SparkSession, road: str, tmp_path: Path) -> None:
    """As inputs, kept columns, keys, output, error column, run and label; a report and a notebook show them as text."""
    scored = si.predict(
        odd(spark),
        model(refuse_ones),
        inputs=NAMES,
        outputs=f"`{SCRIPT}.out` double",
        key=NAMES[:3],
        on_error="null",
        error_column=f"{SCRIPT}.error",
        road=road,
    )
    assert scored.columns == [*NAMES, f"{SCRIPT}.out", f"{SCRIPT}.error"]
    with si.inference_run(SCRIPT) as run:
        rows = [tuple(row) for row in scored.collect()]
    assert rows[0] == (*[0.0] * len(NAMES), 0.0, None)
    assert rows[1][:-1] == (*[1.0] * len(NAMES), None)
    assert rows[1][-1].message.startswith(f"the model raised ValueError: no ones, but {SCRIPT}")
    assert [row[f"{SCRIPT}.error"].type for row in si.errors(scored, f"{SCRIPT}.error").collect()] == ["ValueError"]
    page = run.save_report(tmp_path / "report.html").read_text(encoding="utf-8")
    for shown in (page, run._repr_html_(), run.verdict._repr_html_()):
        assert "<script>alert" not in shown


def test_odd_names_in_a_udf_and_in_sql(spark: SparkSession) -> None:
    """A call without arguments takes them; an error and a notebook tell them; SQL has its own names for its arguments."""
    data = odd(spark)
    total = si.predict_udf(model(lambda *columns: sum(columns)), inputs=NAMES, returns="double")
    assert [row[0] for row in data.select(total()).collect()] == [0.0, float(len(NAMES))]
    assert SCRIPT not in total._repr_html_()
    si.register(spark, "hostile_total", model(lambda *columns: sum(columns)), inputs=NAMES[:2], returns="double")
    data.createOrReplaceTempView("hostile")
    assert [row[0] for row in spark.sql("SELECT hostile_total(`a.b`, `a``b`) FROM hostile").collect()] == [0.0, 2.0]
    for name in (SCRIPT, "a b", "x; DROP TABLE y", "a`b", ""):
        with pytest.raises(si.SparkInferError):
            si.register(spark, name, model(sum), inputs="x", returns="double")


def test_a_message_about_a_key_of_megabytes_is_short(spark: SparkSession) -> None:
    """The cell travels, and is not told; nor is what the model's own error says of it."""
    data = spark.range(1).selectExpr("repeat('x', 10000000) AS text")
    with pytest.raises(Exception, match="the model raised ValueError") as caught:
        si.predict(data, model(refuse_all), inputs="text", outputs="y string", key="text", keep=[]).collect()
    assert len(str(caught.value)) < 50_000
    sizes = si.predict(data, model(lambda x: np.char.str_len(x.astype(str))), inputs="text", outputs="y long", keep=[]).collect()
    assert [row.y for row in sizes] == [10_000_000]


def refuse_all(texts: np.ndarray) -> Any:
    raise ValueError(texts[0])


# --- files that change ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pinned", [True, False])
def test_a_file_exchanged_after_it_was_described_is_not_loaded(spark: SparkSession, tmp_path: Path, pinned: bool) -> None:
    """Between describing and sending by its content; between the driver and a worker by size and time, and where it is pinned by its content too."""
    torch = pytest.importorskip("torch", reason="needs a file of weights")
    path = tmp_path / "weights.pt"

    def write(value: float) -> None:
        torch.save({"weight": torch.full((1, 2), value), "bias": torch.zeros(1)}, path)

    write(1.0)
    good = path.read_bytes()
    pin = {"sha256": si.TorchModel(make_net, weights=path).describe().files[0].sha256} if pinned else {}
    plan = si.TorchModel(make_net, weights=path, **pin).describe()
    status = path.stat()
    shipped = ship(plan, spark)
    write(2.0)
    assert path.stat().st_size == status.st_size
    for how in ("auto", "files", "value"):
        with pytest.raises(si.ModelLoadError, match="changed while predict was called"):
            ship(replace(plan, ship=how), spark)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as one who means harm does
    if pinned:
        with pytest.raises(si.ModelLoadError, match="another content than sha256= asked for"):
            locate(shipped)
        path.write_bytes(good)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert locate(shipped) == {"weights": str(path)}
    else:
        os.utime(path)
        with pytest.raises(si.ModelLoadError, match="changed after predict was called"):
            locate(shipped)


def make_net() -> Any:
    import torch

    return torch.nn.Linear(2, 1)


# --- secrets -------------------------------------------------------------------------------------------------------------


def test_the_options_of_a_file_system_are_in_no_plan_and_no_report(spark: SparkSession, tmp_path: Path) -> None:
    """They travel to the workers, and nobody else is told."""
    fsspec = pytest.importorskip("fsspec", reason="needs a file system with options")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "x.parquet")
    system = fsspec.filesystem("file", token=SECRET, client_kwargs={"password": SECRET})
    source = si.read_files(str(tmp_path / "x.parquet"), filesystem=system)
    with si.inference_run("files") as run:
        scored = si.predict(source, model(lambda x: x), inputs="x", outputs="y double")
        assert sorted(row.y for row in scored.collect()) == [1.0, 2.0]
    told = [repr(source), repr(run), str(run.summary), str(run.metrics), run.save_report(tmp_path / "r.html").read_text(encoding="utf-8")]
    told.append(scored._jdf.queryExecution().toString())
    assert not any(SECRET in one for one in told)


RUNS = """
import sys, warnings
from sparkinfer.cli import main
job = sys.argv[1]
codes = [main(["run", job]), main(["run", job, "--set", "source.where=nope = '${env:SECRET}'"]), main(["run", job, "--set", "model.python.lod=${env:SECRET}"])]
codes.append(main(["run", job, "--set", "sink.format=${env:SECRET}"]))
print(codes)
"""


def test_a_secret_of_a_job_is_nowhere_in_what_the_job_leaves(tmp_path: Path) -> None:
    """Its output, report, event log, MLflow's address and store, what it says and its errors are searched, byte by byte."""
    (tmp_path / "events").mkdir()
    (tmp_path / "in.csv").write_text("1.0\n2.0\n", encoding="utf-8")
    (tmp_path / "scoring.py").write_text("def load():\n    return lambda x: x * 2\n", encoding="utf-8")
    secret = "${env:SECRET}"
    job = {
        "version": 1,
        "source": {
            "format": "csv",
            "path": str(tmp_path / "in.csv"),
            "schema": "x double",
            "options": {"password": secret, "comment": "#"},
        },
        "model": {"python": {"load": "scoring:load", "version": secret}},
        "predict": {"inputs": "x", "outputs": "y double"},
        "sink": {"format": "parquet", "path": str(tmp_path / "out"), "options": {"token": secret}},
        "spark": {
            "master": "local[1]",
            "conf": {
                "spark.ui.enabled": False,
                "spark.eventLog.enabled": True,
                "spark.eventLog.dir": (tmp_path / "events").as_uri(),
                "spark.hadoop.fs.s3a.secret.key": secret,
                "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
            },
        },
        "run": {"name": "nightly", "report": str(tmp_path / "report.html")},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "SECRET": SECRET}
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(tmp_path / "job.yaml")],
        cwd=tmp_path,
        env={**environment, "MLFLOW_TRACKING_URI": f"http://bob:{SECRET}@127.0.0.1:9/?token={SECRET}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.rstrip().endswith("[0, 2, 2, 1]"), done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("events" in path.parts for path in left)
    assert any(path.name == "report.html" for path in left)
    assert [path for path in left if SECRET.encode() in path.read_bytes()] == []
