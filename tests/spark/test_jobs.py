"""Job files run on a real Spark, in a session that is there and by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import sparkinfer as si
from sparkinfer.cli import main
from sparkinfer.cli.opened import JobFailedError, told
from sparkinfer.cli.read import Document
from sparkinfer.cli.run import run_job
from sparkinfer.exceptions import ConfigError, MissingDependencyError, ModelLoadError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]

SCORING = """
import numpy as np
import helper


def load():
    return lambda x: x * helper.FACTOR


def refuse():
    def predict(x):
        raise ValueError("bad rows")
    return predict


def broken():
    raise OSError("no weights")


def make_net():
    import torch
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


def prepare(a, b):
    return np.stack([a, b], axis=1).astype("float32")


def both(y):
    return {"y": y[:, 0], "sign": np.where(y[:, 0] > 0, "plus", "minus")}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with functions beside the job file."""
    (tmp_path / "scoring.py").write_text(SCORING, encoding="utf-8")
    (tmp_path / "helper.py").write_text("FACTOR = 3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_job(folder: Path, **sections: Any) -> Path:
    """A job file; sections that are not given are those of a small right job."""
    job = {
        "version": 1,
        "source": {"query": "SELECT id, id % 2 AS half FROM range(20)"},
        "model": {"python": {"load": "scoring:load"}},
        "predict": {"inputs": "id", "outputs": "y long"},
        "sink": {"format": "parquet", "path": str(folder / "out")},
        "run": {"mlflow": False},
        **sections,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    return folder / "job.yaml"


def run(path: Path, *changes: str, check: bool = False) -> tuple[si.InferenceRun | None, list[str]]:
    """The run, and what was said."""
    said: list[str] = []
    return run_job(path, changes=changes, check=check, say=said.append), said


def test_a_job_is_scored_written_and_told(spark: SparkSession, folder: Path) -> None:
    """Rows by functions beside the file, a folder for each value of a column, a report, and the session as it was, still running."""
    records = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    path = write_job(
        folder,
        sink={"format": "parquet", "path": str(folder / "out"), "partition_by": "half", "repartition": 1},
        config={"batch_size": 5, "max_records_per_batch": 1000},
        spark={"conf": {"spark.sql.shuffle.partitions": 3, "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": False}},
        run={"mlflow": False, "report": "reports/r.html", "name": "nightly"},
    )
    done, said = run(path)
    assert sorted(tuple(row) for row in spark.read.parquet(str(folder / "out")).select("id", "y").collect()) == [
        (n, 3 * n) for n in range(20)
    ]
    assert sorted(one.name for one in (folder / "out").glob("half=*")) == ["half=0", "half=1"]
    assert done is not None
    assert done.name == "nightly"
    assert said[0].startswith("20 rows in ")
    assert " rows/s" in said[0]
    assert said[1].startswith("verdict: ")
    assert said[-2:] == [f"result -> {folder / 'out'}", "report -> reports/r.html"]
    assert "nightly" in (folder / "reports" / "r.html").read_text(encoding="utf-8")
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == records
    assert spark.conf.get("spark.sql.shuffle.partitions") == "4"
    assert "scoring" not in sys.modules


def test_a_job_with_resume_goes_on(spark: SparkSession, folder: Path) -> None:
    """It says how many rows it wrote; run again it writes none, with other functions it is refused."""
    path = write_job(folder, sink={"path": str(folder / "out"), "resume": {"key": "id"}})
    assert run(path)[1][-1] == "20 rows are there: 20 written now, 0 before"
    assert run(path)[1][-1] == "20 rows are there: 0 written now, 20 before"
    assert spark.read.parquet(str(folder / "out")).count() == 20
    (folder / "helper.py").write_text("FACTOR = 4\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"What differs: model \(.*: its content is another\)"):
        run(path)


def test_csv_to_csv_by_pytorch(spark: SparkSession, folder: Path) -> None:
    """A schema, options, a condition, expressions; a factory and a function for each end; nothing is measured where it is switched off."""
    (folder / "in.csv").write_text("a;b\n1;2\n3;4\n-5;6\n", encoding="utf-8")
    path = write_job(
        folder,
        source={
            "format": "csv",
            "path": str(folder / "in.csv"),
            "schema": "a double, b double",
            "options": {"header": True, "sep": ";"},
            "where": "a > 0",
            "select": ["a", "b * 10 AS b"],
        },
        model={"torch": {"factory": "scoring:make_net"}},
        predict={
            "inputs": ["a", "b"],
            "outputs": "y float, sign string",
            "preprocess_batch": "scoring:prepare",
            "postprocess": "scoring:both",
        },
        sink={"format": "csv", "path": str(folder / "out"), "mode": "overwrite", "coalesce": 1, "options": {"header": True}},
        run={"metrics": False},
    )
    _, said = run(path)
    rows = spark.read.csv(str(folder / "out"), header=True).collect()
    assert [(row.a, row.b) for row in rows] == [("1.0", "20.0"), ("3.0", "40.0")]
    assert {row.sign for row in rows} <= {"plus", "minus"}
    assert said[0].startswith("rows not counted")
    assert len(said) == 2


def test_table_to_table(spark: SparkSession, folder: Path) -> None:
    """Appended to the second time; a table that is there is not overwritten unless the job says so."""
    spark.range(3).write.saveAsTable("numbers_in")
    path = write_job(folder, source={"table": "numbers_in"}, sink={"table": "numbers_out"})
    run(path)
    with pytest.raises(JobFailedError, match=r"^sink: AnalysisException: \[TABLE_OR_VIEW_ALREADY_EXISTS\]"):
        run(path)
    _, said = run(path, "sink.mode=append")
    assert said[-1] == "result -> numbers_out"
    assert sorted(row.y for row in spark.table("numbers_out").collect()) == [0, 0, 3, 3, 6, 6]


def test_a_check_scores_nothing(spark: SparkSession, folder: Path) -> None:
    """It tells the columns that there would be; no file is written."""
    done, said = run(write_job(folder, config={"max_records_per_batch": 77}), check=True)
    assert done is None
    assert said == [f"{folder / 'job.yaml'} is in order: PythonModel(load) would give id bigint, half bigint, y bigint"]
    assert not (folder / "out").exists()


def test_what_is_wrong_is_told_before_a_row_is_scored(spark: SparkSession, folder: Path) -> None:
    """A column, a model's argument, a path, and a setting that the running session cannot change."""
    path = write_job(folder)
    with pytest.raises(SchemaError, match="Did you mean 'id'"):
        run(path, "predict.inputs=idd")
    with pytest.raises(ConfigError, match=r"model\.torch: TorchModel\('net.pt2'\): sha256 is 'x'"):
        run(path, "model={torch: {source: net.pt2, sha256: x}}")
    with pytest.raises(ModelLoadError, match=r"model\.tensorflow\.factory: broken\(\) raised OSError: no weights"):
        run(path, "model={tensorflow: {factory: 'scoring:broken'}}")
    with pytest.raises(ConfigError, match=r"^source: AnalysisException: \[UNRESOLVED_COLUMN"):
        run(path, "source.where=idd > 3")
    with pytest.raises(
        ConfigError, match=r"^sink\.partition_by: the column 'hal' is not among those that are written\. Did you mean 'half'\?"
    ):
        run(path, "sink.partition_by=hal", check=True)
    with pytest.raises(ConfigError, match=r"^sink\.repartition: the column 'hal' is not among .* 'half'\?"):
        run(path, "sink.repartition=[hal]")
    with pytest.raises(ConfigError, match=r"^run\.label: the column 'y' is not among the kept ones"):
        run(path, "run.label=y")
    with pytest.raises(JobFailedError, match=r"^source: AnalysisException: \[PATH_NOT_FOUND\]"):
        run(path, f"source={{format: parquet, path: {folder / 'nowhere'}}}")
    with pytest.raises(
        ConfigError, match=r"spark\.conf\.spark\.executor\.memory is '3g', but the running session has .*set it there, or leave it out"
    ):
        run(path, "spark.conf.spark.executor.memory=3g")
    with pytest.raises(ConfigError, match=r"spark\.authenticate\.secret has a value of its own, but the running session has none") as told:
        run(path, "spark.conf.spark.authenticate.secret=hunter2")
    assert "hunter2" not in str(told.value)
    assert not (folder / "out").exists()


def test_the_first_cause_of_a_failed_job_is_told(spark: SparkSession, folder: Path) -> None:
    """The worker's own error with its place, not Spark's two hundred lines."""
    with pytest.raises(JobFailedError, match=r"^sink: PredictError: .*bad rows") as failed:
        run(write_job(folder, model={"python": {"load": "scoring:refuse"}}))
    assert len(str(failed.value)) < 1000
    with pytest.raises(JobFailedError, match=r"^sink: ImportError: this worker has no such thing$"):
        raise_from_a_worker(spark, folder)


def raise_from_a_worker(spark: SparkSession, folder: Path) -> None:
    """An error that is not the library's own, told as a job tells it."""

    def lost(chunks: Any) -> Any:
        raise ImportError("this worker has no such thing")

    with told("sink", Document(folder / "job.yaml", {}, {})):
        spark.range(1).mapInArrow(lost, "id long").collect()


def test_a_master_that_cannot_be_had_is_told(spark: SparkSession, folder: Path) -> None:
    """The running session's own stays, and the job is done in it."""
    path = write_job(folder, spark={"master": "spark://elsewhere:7077"})
    with pytest.warns(
        si.SparkInferWarning, match=r"the job file's spark\.master is another than that of the session that runs, 'local\[2\]', which stays"
    ):
        run(path, check=True)


def test_a_report_without_matplotlib_is_refused_beforehand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the rows were scored."""
    monkeypatch.setattr("sparkinfer.cli.run.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"run\.report: .*sparkinfer\[report\]"):
        run(write_job(folder, run={"report": "r.html"}))


def test_a_report_that_cannot_be_written_is_refused_beforehand(spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the rows were scored; what still goes wrong then is told as the report's."""
    with pytest.raises(ConfigError, match=r"run\.report: .* since '.*scoring\.py' is no folder that can be written to"):
        run(write_job(folder, run={"report": "scoring.py/r/r.html"}))
    with pytest.raises(ConfigError, match=r"run\.report: .* which is a folder"):
        run(write_job(folder, run={"report": str(folder)}))
    assert not (folder / "out").exists()

    def no_space(self: si.InferenceRun, path: Path) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(si.InferenceRun, "save_report", no_space)
    with pytest.raises(JobFailedError, match=r"^run\.report: OSError: no space left"):
        run(write_job(folder, run={"report": "r.html", "mlflow": False}))


def test_exit_codes(spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """0 done, 1 failed, 2 the command or the file is wrong; no line shows what came out of the environment."""
    monkeypatch.setenv("OUT_OF_IT", "very-secret")
    path = write_job(folder, sink={"format": "parquet", "path": str(folder / "${env:OUT_OF_IT}")})
    assert main(["run", str(path)]) == 0
    assert (folder / "very-secret").exists()
    assert main(["run", str(path)]) == 1  # it is there already
    assert main(["run", str(path), "--set", "sink.mod=append"]) == 2
    assert main(["run", str(path), "--set", "predict.outputs=y ${env:OUT_OF_IT}"]) == 2
    assert main(["run", str(path), "--set", "source.where=nope = '${env:OUT_OF_IT}'"]) == 2
    assert main(["run", str(path), "--set", "run.label=id", "--set", "config.metrics=false"]) == 2
    assert main(["run", str(folder / "nowhere.yaml")]) == 2
    assert main(["rum"]) == 2
    assert main(["--help"]) == 0
    shown = capsys.readouterr()
    assert "very-secret" not in shown.out + shown.err
    assert f"result -> {folder}/${{env:OUT_OF_IT}}" in shown.out
    assert "sparkinfer: sink: AnalysisException: [PATH_ALREADY_EXISTS]" in shown.err
    assert "Did you mean 'mode'?" in shown.err


def test_the_command_line_in_a_plain_shell(folder: Path) -> None:
    """It starts a local session of its own, with the job's settings, whose workers run this Python."""
    path = write_job(folder, source={"query": "SELECT 1L AS id"}, spark={"master": "local[1]", "conf": {"spark.ui.enabled": False}})
    command = [sys.executable, "-m", "sparkinfer", "run", str(path)]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 rows in "), done.stdout


@pytest.mark.spark(since=(4, 0), why="SPARK_REMOTE=local starts a server of Spark Connect without a download")
def test_the_command_line_over_spark_connect(folder: Path) -> None:
    """Where SPARK_REMOTE is set the doctor and a job ask for no master; a value of the environment is not told."""
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    job = write_job(folder, source={"query": "SELECT 1L AS id", "where": "idd = '${env:VALUE}'"})
    code = (
        "import sys; from sparkinfer.cli import main; "
        "codes = [main(['doctor', '--json']), main(['run', sys.argv[1], '--check', '--set', 'source.where=id > 0']), main(['run', sys.argv[1]])]; "
        "print(codes)"
    )
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder), "SPARK_REMOTE": "local[1]"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(job)],
        cwd=folder,
        env={**environment, "VALUE": "hunter2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.rstrip().endswith("would give id bigint, y bigint\n[0, 0, 2]"), done.stdout + done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("sparkinfer: ")]
    assert len(told) == 1
    assert told[0].startswith("sparkinfer: source: AnalysisException: [UNRESOLVED_COLUMN")
    assert "CANNOT_MODIFY_CONFIG" not in done.stderr


def test_the_doctor_looks_at_driver_and_workers(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Every check has a state; what runs these tests is well, also on the workers."""
    code = main(["doctor", "--json"])
    checks = {(check["where"], check["what"]): check for check in json.loads(capsys.readouterr().out)}
    assert {check["state"] for check in checks.values()} <= {"ok", "missing", "wrong", "not needed"}
    assert code == int(any(check["state"] in ("missing", "wrong") for check in checks.values()))
    for one in [
        ("driver", "Spark"),
        ("driver", "Java"),
        ("session", "a session"),
        ("workers", "Python"),
        ("workers", "pyarrow"),
        ("workers", "sparkinfer"),
    ]:
        assert checks[one]["state"] == "ok", checks[one]
