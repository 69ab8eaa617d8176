"""``score_to`` is ended at seeded moments and called again: the same table each time, each key once.

Two of the eight moments are a SIGKILL of a whole driver with its JVM; the other six end the run in the test's own session, by an error in a task or by a
file system that stops to answer at one of its steps, as it does for a process that is dead.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparkinfer as si
from sparkinfer.exceptions import ConfigError, SchemaError
from sparkinfer.spark.resume.folders import HadoopFolder
from sparkinfer.testing import Ledger

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]
ROWS, PARTITIONS, BATCH = 48, 6, 4
LEASE = "_sparkinfer/lease.json"


@dataclass(frozen=True)
class Trapped:
    """A model that does what a file beside the table says: nothing, raise, or kill a process group, after so many batches."""

    folder: str

    def load(self) -> Any:
        return self.predict

    def predict(self, x: np.ndarray) -> np.ndarray:
        ledger = Ledger(f"{self.folder}/ledger")
        ledger.write("predict", rows=len(x))
        trap = Path(self.folder, "trap.json")
        if trap.exists() and ledger.count("predict") >= (told := json.loads(trap.read_text()))["after"]:
            if told["how"] == "raise":
                raise ValueError("trapped")
            os.killpg(told["group"], signal.SIGKILL)
            time.sleep(60)
        if Path(self.folder, "storm").exists() and (x % 7 == 0).any():
            raise ValueError("storm")
        return 3 * x


def data(session: SparkSession, rows: int = ROWS) -> DataFrame:
    return session.range(0, rows, 1, PARTITIONS).selectExpr("id AS `the.key`", "id AS x")


def score(session: SparkSession, folder: Path | str, **more: Any) -> si.Scored:
    said = {"key": "the.key", "inputs": "x", "outputs": "y long", "batch_size": BATCH, **more}
    return si.score_to(said.pop("data", None) or data(session), f"{folder}/scored", si.PythonModel(Trapped(str(folder)).load), **said)


def table(session: SparkSession, folder: Path) -> list[Any]:
    try:
        return sorted(tuple(row) for row in session.read.parquet(f"{folder}/scored").collect())
    except Exception as error:
        if "UNABLE_TO_INFER_SCHEMA" in str(error) or "PATH_NOT_FOUND" in str(error):  # not one part was committed
            return []
        raise


def set_trap(folder: Path, how: str, after: int, group: int = 0) -> None:
    Path(folder, "trap.json").write_text(json.dumps({"how": how, "after": after, "group": group}))


def drive(folder: str, after: int) -> None:
    """Be a driver that its own model kills, with all that is in its process group: Python and the JVM."""
    from pyspark.sql import SparkSession

    set_trap(Path(folder), "kill", after, os.getpgid(0))
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", str(ROOT))
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    score(session, folder)


EXPECTED = [(row, row, 3 * row) for row in range(ROWS)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_failed_run_goes_on_from_its_parts(spark, tmp_path, seed) -> None:
    """What finished tasks wrote stays, is not scored again, and the table ends as if nothing had been."""
    after = random.Random(seed).randint(7, 11)
    set_trap(tmp_path, "raise", after)
    with pytest.raises(Exception, match="trapped"):
        score(spark, tmp_path)
    stayed = table(spark, tmp_path)
    assert 0 < len(stayed) < ROWS
    assert len(set(stayed)) == len(stayed)
    Path(tmp_path, "trap.json").unlink()
    ledger = Ledger(f"{tmp_path}/ledger")
    before = sum(ledger.rows("predict"))
    done = score(spark, tmp_path, batch_size=3)
    assert (done.rows, done.rows_written, done.rows_failed, done.rows_beyond) == (ROWS, ROWS - len(stayed), 0, 0)
    assert sum(ledger.rows("predict")) - before == done.rows_written
    assert table(spark, tmp_path) == EXPECTED
    assert score(spark, tmp_path).rows_written == 0
    assert sum(ledger.rows("predict")) - before == done.rows_written


@pytest.mark.parametrize("seed", [3, 4])
def test_a_killed_driver_is_replaced(spark, tmp_path, seed) -> None:
    """SIGKILL of the driver's Python and JVM; another process takes its lease at once, and ends with the same table."""
    after = random.Random(seed).randint(7, 11)
    code = f"from tests.faults.test_resume import drive; drive({str(tmp_path)!r}, {after})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    Path(tmp_path, "trap.json").unlink()
    stayed = table(spark, tmp_path)
    assert 0 < len(stayed) < ROWS
    assert Path(tmp_path, "scored", LEASE).exists()
    assert score(spark, tmp_path).rows_written == ROWS - len(stayed)
    assert table(spark, tmp_path) == EXPECTED
    assert not Path(tmp_path, "scored", LEASE).exists()


class Dead(BaseException):
    """Stands for the end of the process: nothing of the library's own catches it."""


@contextmanager
def dies_at(patched: pytest.MonkeyPatch, step: int) -> Iterator[list[str]]:
    """Let so many changes of the folder through; from then on it answers nothing, as to a dead process."""
    made: list[str] = []
    with patched.context() as patch:
        for name in ("create", "move", "delete"):
            real = getattr(HadoopFolder, name)

            def change(folder: Any, *arguments: Any, real: Any = real, name: str = name) -> Any:
                made.append(f"{name} {arguments[0]}")
                if len(made) > step:
                    raise Dead
                return real(folder, *arguments)

            patch.setattr(HadoopFolder, name, change)
        yield made


def bury(folder: Path) -> None:
    """Make the lease that was left one of a process that is gone; this one, which left it, is alive."""
    lease = folder / "scored" / LEASE
    if lease.exists():
        lease.write_text(json.dumps({**json.loads(lease.read_text()), "born": "0"}))
        (lease.parent / ".lease.json.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_retry_that_is_stopped_between_two_steps_ends_the_same(spark, tmp_path, monkeypatch, seed) -> None:
    """Rows that failed are taken out by a journal: wherever it stops, the next call has them scored, once each."""
    tolerant = {"on_error": "null", "batch_size": 1}
    Path(tmp_path, "storm").touch()
    assert score(spark, tmp_path, **tolerant).rows_failed == 7
    Path(tmp_path, "storm").unlink()
    assert score(spark, tmp_path, **tolerant).rows_written == 0
    step = random.Random(seed).randint(4, 14)
    with dies_at(monkeypatch, step) as made, pytest.raises(Dead):
        score(spark, tmp_path, retry_errors=True, **tolerant)
    assert len(made) > step
    bury(tmp_path)
    done = score(spark, tmp_path, retry_errors=True, **tolerant)
    assert (done.rows, done.rows_failed, done.rows_beyond) == (ROWS, 0, 0)
    assert table(spark, tmp_path) == [(*row, None) for row in EXPECTED]
    assert [one.name for one in (tmp_path / "scored" / "_sparkinfer").glob("[a-z]*")] == ["manifest.json"]


def test_what_would_mix_two_configurations_is_refused_by_name(spark, tmp_path) -> None:
    """Another output type, other functions: the message names them; so it does a folder that holds something else."""
    few = spark.range(4).selectExpr("id AS `the.key`", "id AS x").coalesce(1)
    assert score(spark, tmp_path, data=few).rows_written == 4
    with pytest.raises(ConfigError, match=r"What differs: columns \(there: the.key bigint, x bigint, y bigint; asked for: .* y double\)"):
        score(spark, tmp_path, data=few, outputs="y double")
    with pytest.raises(ConfigError, match=r"What differs: postprocess \(there: no postprocess; asked for: postprocess\)\."):
        score(spark, tmp_path, data=few, postprocess=lambda y: y + 1)
    few.write.parquet(f"{tmp_path}/other/scored")
    with pytest.raises(ConfigError, match=r"holds .* and no _sparkinfer/manifest.json"):
        score(spark, tmp_path / "other", data=few)
    with pytest.raises(ConfigError, match=r"leaves out the key column 'the.key'"):
        score(spark, tmp_path, data=few, keep=["x"])
    grown = spark.range(2, 6).selectExpr("id AS `the.key`", "id AS x")
    done = score(spark, tmp_path, data=grown)
    assert (done.rows, done.rows_written, done.rows_beyond) == (4, 2, 2)


def test_keys_must_name_rows(spark, tmp_path) -> None:
    """Null, doubled and floating keys are refused, with examples; data without rows gives a table without rows."""
    frame = spark.createDataFrame([(1, 1, 1.0), (1, 2, 2.0), (None, 3, 3.0)], "k int, x long, f float")
    for rows, key, error in [
        (frame, "k", "1 of 3 rows have a null in the key 'k'"),
        (frame.dropna(), "k", r"1 keys of 'k' are there more than once \(1 is there 2 times\)"),
        (frame, "f", "'f' of the type float, by which rows cannot be told apart: NaN"),
    ]:
        with pytest.raises(SchemaError, match=error):
            score(spark, tmp_path, data=rows, key=key)
    nothing = score(spark, tmp_path / "empty", data=frame.limit(0), key=["k", "x"])
    assert (nothing.rows, nothing.rows_written) == (0, 0)
    assert spark.read.parquet(nothing.path).columns == ["k", "x", "f", "y"]


def test_files_are_scored_and_gone_on_with(spark, tmp_path) -> None:
    """The workers read the files themselves; a row that came twice by another run's hand is taken out again."""
    data(spark, 12).coalesce(2).write.parquet(f"{tmp_path}/files")
    assert score(spark, tmp_path, data=f"{tmp_path}/files").rows_written == 12
    spark.read.parquet(f"{tmp_path}/scored").where("x = 5").coalesce(1).write.mode("append").parquet(f"{tmp_path}/scored")
    assert len(table(spark, tmp_path)) == 13
    data(spark, 14).where("x > 11").coalesce(1).write.mode("append").parquet(f"{tmp_path}/files")
    assert score(spark, tmp_path, data=f"{tmp_path}/files").rows_written == 2
    assert table(spark, tmp_path) == EXPECTED[:14]
