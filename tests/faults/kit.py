"""What the tests of faults share: a session whose processes and files can be told from all others, and what must hold after a fault."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

import sparkinfer as si

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkinfer.testing import Ledger

ROOT = Path(__file__).resolve().parents[2]
ROWS, PARTITIONS = 40, 2
LAST = ROWS - 1
MARK = "SPARKINFER_TEST_MARK"
SOON = 30  # seconds in which a fault is over, on a busy machine too; Spark itself takes up to 2 s to end a worker


@dataclass(frozen=True)
class Scene:
    """A session, and how to find what its tasks leave behind.

    Attributes:
        spark: its workers run two tasks at a time.
        mark: the value of an environment variable that its Python processes have, and nobody else.
        scratch: the folder of their temporary files.
    """

    spark: SparkSession
    mark: str
    scratch: Path

    def table(self, rows: int = ROWS, partitions: int = PARTITIONS) -> DataFrame:
        """Rows of an id and three floats, the first of which is the id."""
        return self.spark.range(0, rows, 1, partitions).selectExpr("id", "array(cast(id as float), 1f, 2f) as x")

    def processes(self) -> list[psutil.Process]:
        """The Python processes of this session that live."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:  # it has just ended, or is not ours
                continue
        return found

    def orphans(self) -> list[str]:
        """Those that nobody would end: no JVM is above them any more."""
        return [told(process) for process in self.processes() if not _below_java(process)]

    def workers(self) -> list[psutil.Process]:
        """The Python workers: the children of Spark's daemons."""
        return [process for process in self.processes() if _is_daemon(_parent(process)) and not _is_daemon(process)]


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:
        return None


def _is_daemon(process: psutil.Process | None) -> bool:
    """Whether its own parent is the JVM."""
    return process is not None and _is_java(_parent(process))


def _is_java(process: psutil.Process | None) -> bool:
    try:
        return process is not None and process.name() == "java"
    except psutil.Error:
        return False


def _below_java(process: psutil.Process) -> bool:
    try:
        return any(_is_java(one) for one in process.parents())
    except psutil.Error:  # it ended while it was looked at
        return True


def told(process: psutil.Process) -> str:
    """Say what a process is."""
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid} (ended)"


@contextmanager
def scene(folder: Path, **settings: str) -> Iterator[Scene]:
    """Start a session of two task slots whose processes carry a mark and keep their temporary files in a folder of their own."""
    from pyspark.sql import SparkSession

    mark, scratch = uuid.uuid4().hex, folder / "scratch"
    scratch.mkdir()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        builder = (
            SparkSession.builder.master("local[2]")
            .appName("sparkinfer faults")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.executorEnv.PYTHONPATH", str(ROOT))
            .config("spark.executorEnv.TMPDIR", str(scratch))
            .config(f"spark.executorEnv.{MARK}", mark)
        )
        for name, value in settings.items():
            builder = builder.config(name.replace("__", "."), value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")  # the jobs are meant to fail
        try:
            yield Scene(session, mark, scratch)
        finally:
            session.stop()


def eventually(condition: Callable[[], bool], seconds: float = SOON) -> bool:
    """Wait for a condition, within bounds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


# --- what runs on the workers


@dataclass(frozen=True)
class Holds:
    """A function of a row or of a batch that waits at the last row, so that its job can be disturbed while it runs."""

    ledger: Ledger

    def __call__(self, x: Any) -> Any:
        """Give back; at the last row, wait until the process is ended."""
        if LAST in np.asarray(x):
            self.ledger.write("waiting")
            time.sleep(600)
        return x


def look(x: np.ndarray) -> dict[str, np.ndarray]:
    """Double, and tell of each row's process: its id, and how many threads of this library it has."""
    ours = sum(thread.name.startswith("sparkinfer") for thread in threading.enumerate())
    time.sleep(0.1)  # so that each of the two slots gets one of the two partitions
    return {"y": x[:, 0] * 2, "pid": np.full(len(x), os.getpid()), "threads": np.full(len(x), ours)}


# --- one job


@dataclass
class Job:
    """An action in a thread of its own, and what came of it."""

    action: Callable[[], Any]
    scene: Scene
    group: str
    answer: Any = None
    error: Exception | None = None

    def __post_init__(self) -> None:
        """Start it."""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.scene.spark.sparkContext.setJobGroup(self.group, self.group, interruptOnCancel=True)
            self.answer = self.action()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def ends(self) -> None:
        """Wait for its end, which is to come within seconds."""
        self.thread.join(SOON)
        assert not self.thread.is_alive(), f"{self.group} hangs"


# --- after a fault


def is_whole_after(scene: Scene) -> None:
    """What must hold after every fault: nothing of it is left, and the next job in the same workers is whole.

    A Python worker may keep two loader processes for the next job, of whichever fault before.
    """
    assert eventually(lambda: not scene.orphans()), f"processes that nobody ends: {scene.orphans()}"
    model = si.PythonModel(lambda: look)
    asked: dict[str, Any] = {"inputs": "x", "outputs": "y float, pid long, threads int", "metrics": False, "prefetch_batches": 0}
    rows = sorted(si.predict(scene.table(), model, keep=["id"], batch_size=4, **asked).collect())
    assert [(row.id, row.y) for row in rows] == [(number, 2.0 * number) for number in range(ROWS)]
    assert {row.threads for row in rows} == {0}, "a thread is left in a Python worker"
    assert eventually(lambda: len(scene.workers()) <= 2), f"Python workers pile up: {[told(one) for one in scene.workers()]}"
    for worker in scene.workers():
        below = worker.children(recursive=True)
        assert len(below) <= 2 + 2, f"beyond two loader processes, a fork server and its resource tracker: {[told(one) for one in below]}"
    assert eventually(lambda: not leftovers(scene)), f"files are left: {leftovers(scene)}"
    assert not [one.name for one in threading.enumerate() if one.name.startswith("sparkinfer")], "a thread is left on the driver"


def leftovers(scene: Scene) -> list[str]:
    """The temporary files beyond one folder of each of the two workers, and one of a worker that has ended, which the next loader process removes."""
    found = sorted(str(path) for path in scene.scratch.iterdir())
    return found if len(found) > 3 else []
