"""Faults in one long session: each ends in the right answer or the right error, leaves nothing, and the next job is whole."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkinfer as si
from sparkinfer.testing import EchoModel, Ledger, ShortModel
from tests.faults.kit import LAST, ROWS, Holds, Job, Scene, eventually, is_whole_after, scene

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.timeout(300)  # a hang is a failure


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One session for all faults: what one leaves behind would meet the next."""
    with scene(tmp_path_factory.mktemp("faults")) as made:
        yield made


def score(df: DataFrame, model: Any, **arguments: Any) -> DataFrame:
    """Predict, in small batches."""
    told = {"inputs": "x", "outputs": "y array<float>", "keep": ["id"], "batch_size": 4, **arguments}
    return si.predict(df, model, **told)


def echo() -> si.PythonModel:
    return si.PythonModel(EchoModel())


def answers(rows: Sequence[Any]) -> dict[int, list[float]]:
    return {row.id: row.y for row in rows}


def whole(ids: Sequence[int]) -> dict[int, list[float]]:
    return {number: [float(number), 1.0, 2.0] for number in ids}


# --- a job that is stopped from outside --------------------------------------------------------------------------------

FEEDS = pytest.mark.parametrize(("road", "num_workers"), [("map", 2), ("column", 0)])


def held(here: Scene, ledger: Ledger, road: str, num_workers: int) -> DataFrame:
    """A job that does not come past its last row: it waits in preprocess, in a loader process where there is one."""
    return score(here.table(), echo(), preprocess=Holds(ledger), road=road, num_workers=num_workers)


def under_way(ledger: Ledger) -> bool:
    return eventually(lambda: ledger.count("waiting") > 0, 60)


@FEEDS
def test_a_python_worker_that_is_killed(here: Scene, ledger: Ledger, road: str, num_workers: int) -> None:
    """kill -9 in the middle of a partition: Spark's error, soon, and the loader processes end with their worker."""
    job = Job(held(here, ledger, road, num_workers).collect, here, "killed")
    assert under_way(ledger), job.error
    (waiting,) = ledger.pids("waiting")
    (worker,) = [one for one in here.workers() if waiting == one.pid or waiting in {below.pid for below in one.children()}]
    worker.kill()
    job.ends()
    assert "Python worker exited unexpectedly" in str(job.error)
    is_whole_after(here)


@FEEDS
def test_a_job_that_is_cancelled(here: Scene, ledger: Ledger, road: str, num_workers: int) -> None:
    """It ends within seconds though preprocess hangs, and says that it was cancelled."""
    job = Job(held(here, ledger, road, num_workers).collect, here, "to be cancelled")
    assert under_way(ledger), job.error
    here.spark.sparkContext.cancelJobGroup(job.group)
    job.ends()
    assert "cancelled" in str(job.error)
    is_whole_after(here)


def test_an_interrupt_of_the_driver(here: Scene, ledger: Ledger) -> None:
    """Ctrl-C inside a run: KeyboardInterrupt, the job is cancelled, the run is closed and the session's settings are its own again."""
    scored = held(here, ledger, "map", 0)
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = here.spark.conf.get(setting)

    def interrupt() -> None:
        if under_way(ledger):
            os.kill(os.getpid(), signal.SIGINT)

    hand = threading.Thread(target=interrupt)
    hand.start()
    with pytest.raises(KeyboardInterrupt), si.inference_run(max_records_per_batch=7, mlflow=False) as run:
        scored.collect()
    hand.join()
    assert si.last_run() is run
    assert here.spark.conf.get(setting) == before
    assert eventually(lambda: not here.spark.sparkContext.statusTracker().getActiveJobsIds())
    is_whole_after(here)


ENDS: dict[str, tuple[Callable[[DataFrame], Sequence[Any]], int]] = {
    "limit": (lambda df: df.limit(3).collect(), 3),
    "take": (lambda df: df.take(2), 2),
}


@pytest.mark.parametrize(("how", "road", "num_workers"), [("limit", "map", 2), ("take", "column", 0)])
def test_an_action_that_takes_a_few_rows(here: Scene, how: str, road: str, num_workers: int) -> None:
    """Spark leaves the partitions early: the rows that it took are right."""
    act, rows = ENDS[how]
    taken = act(score(here.table(4000, 8), echo(), preprocess=same, road=road, num_workers=num_workers))
    assert len(taken) == len(answers(taken)) == rows
    assert answers(taken) == whole(sorted(answers(taken)))
    is_whole_after(here)


def same(x: Any) -> Any:
    return x


# --- code that fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("road", ["map", "column"])
def test_a_udf_before_the_model_that_fails(here: Scene, road: str) -> None:
    """The error is the UDF's own, with its words; it is not told as the model's."""
    from pyspark.sql.functions import udf

    @udf("array<float>", useArrow=False)
    def choke(x: Any) -> Any:
        if x[0] == LAST:
            msg = "upstream is broken"
            raise ArithmeticError(msg)
        return x

    with pytest.raises(Exception, match="ArithmeticError: upstream is broken") as caught:
        score(here.table().withColumn("x", choke("x")), echo(), road=road).collect()
    assert "PredictError" not in str(caught.value)
    is_whole_after(here)


def test_a_function_behind_the_model_that_fails(here: Scene) -> None:
    """Spark closes the partition in the middle, with batches on their way: its own error, and no read-ahead is left."""

    def choke(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(chunks)
        msg = "downstream is broken"
        raise ArithmeticError(msg)

    scored = score(here.table(4000), echo(), road="map")
    with pytest.raises(Exception, match="ArithmeticError: downstream is broken"):
        scored.mapInArrow(choke, scored.schema).collect()
    is_whole_after(here)


def exhausted(*_: Any) -> Any:
    """Raise StopIteration, as a bare ``next`` of an empty iterator does."""
    return next(iter(()))


@dataclass(frozen=True)
class LongModel(EchoModel):
    """An echo model that gives back one row too many."""

    def _predict(self, *arrays: np.ndarray, **named: np.ndarray) -> Any:
        return np.concatenate([arrays[0], arrays[0][:1]])


CODE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "StopIteration in the model": (lambda: exhausted, {}, "PredictError: the model raised StopIteration"),
    "StopIteration in preprocess": (EchoModel(), {"preprocess": exhausted}, "PreprocessError: preprocess raised StopIteration"),
    "too few rows": (ShortModel(), {"road": "map"}, r"PredictError: .*expected 4 rows, found 3.*At partition \d, batch 0"),
    "too many rows": (LongModel(), {"road": "column"}, r"PredictError: .*expected 4 rows, found 5.*At partition \d, batch 0"),
}


@pytest.mark.parametrize("what", CODE)
def test_code_that_breaks_its_contract(here: Scene, what: str) -> None:
    """StopIteration would end a partition without a word, and a wrong number of rows would shift answers: each is an error that says where."""
    load, arguments, words = CODE[what]
    with pytest.raises(Exception, match=words):
        score(here.table(), si.PythonModel(load), **arguments).collect()
    is_whole_after(here)


def test_rows_in_another_order_are_found_by_scoring_them_one_by_one() -> None:
    """A model that permutes its rows has the right number of them: the loop cannot see it, and batches of one row can."""
    table = pa.table({"x": [3.0, 1.0, 2.0, 5.0, 4.0]})
    told: dict[str, Any] = {"inputs": "x", "outputs": "y double"}

    def one_by_one_is_the_same(load: Callable[[], Any]) -> bool:
        together, alone = (si.predict_local(table, si.PythonModel(load), batch_size=rows, **told)["y"].to_pylist() for rows in (4, 1))
        return together == alone

    assert one_by_one_is_the_same(EchoModel())
    assert not one_by_one_is_the_same(lambda: np.sort)
    assert not one_by_one_is_the_same(lambda: lambda x: x[::-1])


# --- files on the direct road ------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One file of ten row groups, for one partition."""
    path = tmp_path / "vectors.parquet"
    x = pa.array([[float(number), 1.0, 2.0] for number in range(ROWS)], pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": range(ROWS), "x": x}), path, row_group_size=4)
    return path


@dataclass(frozen=True)
class Meddles:
    """A preprocess that does something to the file at the first row that it gets."""

    path: str
    how: Callable[[str], None]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Meddle, and give back."""
        if x[0] == 0:
            self.how(self.path)
        return x


def rewrite(path: str) -> None:
    """Put other rows beside, and move them in."""
    pq.write_table(pq.read_table(path).slice(0, 7), f"{path}.new")
    Path(f"{path}.new").rename(path)


MEDDLING: dict[str, tuple[Callable[[str], None], str]] = {
    "changes": (rewrite, r"ReadError: the file file:/.*vectors\.parquet changed after predict was called"),
    "vanishes": (os.remove, r"ReadError: the file file:/.*vectors\.parquet is not there any more"),
}


@pytest.mark.parametrize("what", MEDDLING)
def test_a_file_that_goes_while_it_is_read(here: Scene, file: Path, what: str) -> None:
    """It changes, or vanishes, in the middle of its partition: the error names it, and no mixture of rows is given out."""
    how, words = MEDDLING[what]
    kept = file.read_bytes()
    with pytest.raises(Exception, match=words):
        score(str(file), echo(), preprocess=Meddles(str(file), how)).collect()
    file.write_bytes(kept)
    assert answers(score(str(file), echo(), preprocess=same).collect()) == whole(range(ROWS))
    is_whole_after(here)


@contextmanager
def no_room(folder: Path) -> Iterator[str]:
    """Let a folder hold 256 KB: by a small disk of its own where one can be mounted, else by a limit on what the JVM may write."""
    folder.mkdir()
    small_disk = ["/bin/mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if os.geteuid() == 0 and subprocess.run(small_disk, capture_output=True, check=False).returncode == 0:
        try:
            yield "No space left on device"
        finally:
            subprocess.run(["/bin/umount", "--lazy", str(folder)], check=True)
        return
    jvm = spark_jvm()
    soft, hard = resource.prlimit(jvm, resource.RLIMIT_FSIZE)
    resource.prlimit(jvm, resource.RLIMIT_FSIZE, (256 << 10, hard))
    try:
        yield "File too large"
    finally:
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, (soft, hard))


def spark_jvm() -> int:
    """The process that writes files in a local session."""
    from pyspark import SparkContext

    return int(SparkContext._jvm.java.lang.ProcessHandle.current().pid())


def test_a_full_disk(here: Scene, file: Path, tmp_path: Path) -> None:
    """The direct road writes to a disk that fills up: the system's own words, no half-written table, and the same rows can be written elsewhere."""
    rows = 20_000
    noise = np.random.default_rng(0).random((rows, 3), np.float32)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 3)
    table = pa.table({"id": range(rows), "x": pa.ListArray.from_arrays(offsets, pa.array(noise.ravel()))})
    pq.write_table(table, file)
    scored = score(str(file), echo(), batch_size=1000)
    with no_room(tmp_path / "small") as words:
        with pytest.raises(Exception, match=re.escape(words)):
            scored.write.parquet(str(tmp_path / "small" / "out"))
        left = [path.name for path in (tmp_path / "small").rglob("*") if path.name == "_SUCCESS" or path.suffix == ".parquet"]
    assert left == []
    scored.write.parquet(str(tmp_path / "out"))
    assert pq.read_table(tmp_path / "out").num_rows == rows
    is_whole_after(here)
