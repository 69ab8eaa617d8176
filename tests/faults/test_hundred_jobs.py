"""A long session: jobs that are stopped, cancelled and killed must cost nobody else an answer, and leave no process."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.testing import Ledger
from tests.faults.kit import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Keras 3.15 saves its variables by a call that NumPy 2 deprecates
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

JOBS = int(os.environ.get("SPARKINFER_TEST_JOBS", "100"))
ROWS = 40
PARTITIONS = 2
LAST = ROWS - 1
ROOT = Path(__file__).resolve().parents[2]
# of ten jobs eight run undisturbed, so that workers live long enough to be used again
FATES = ["whole", "whole", "whole", "early", "whole", "whole", "whole", "killed", "whole", "whole"]
FATE_OF = {"early": ("limit", "cancel"), "killed": ("kill loader", "kill worker")}
DISTURBED = ("cancel", "kill loader", "kill worker")


@pytest.fixture
def mark() -> str:
    """An environment variable that the Python processes of this session have, and nobody else."""
    return f"SPARKINFER_TEST_MARK={uuid.uuid4().hex}"


@pytest.fixture
def session(mark: str) -> Iterator[SparkSession]:
    """A session of its own, for which each job has two task slots."""
    from pyspark.sql import SparkSession

    name, _, value = mark.partition("=")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        made = (
            SparkSession.builder.master("local[2]")
            .appName("sparkinfer hundred jobs")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.executorEnv.PYTHONPATH", str(ROOT))
            .config(f"spark.executorEnv.{name}", value)
            .config("spark.python.daemon.module", "tests.faults.ready_daemon")  # 20 jobs cost workers; a new one imports for many seconds
            .config("spark.python.task.killTimeout", "200ms")  # how long a task that was cancelled keeps its slot; 2 s by default
            .getOrCreate()
        )
        made.sparkContext.setLogLevel("OFF")  # some jobs are meant to fail
        try:
            yield made
        finally:
            made.stop()


def processes(mark: str) -> set[int]:
    """Find the processes that were started with the mark, by whomever."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and "\nState:\tZ" not in (folder / "status").read_text():
                found.add(int(folder.name))
        except OSError:  # it has just ended, or is not ours
            continue
    return found


# --- what runs on the workers


@dataclass(frozen=True)
class Prepare:
    """A preprocess that, if told so, waits once at the last row, so that its job can be disturbed while it runs."""

    ledger: Ledger
    waits: bool

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Double; at the last row of a job that is to be disturbed, wait until that happens."""
        if self.waits and x[0] == LAST and not self.ledger.count("waiting"):
            self.ledger.write("waiting")
            time.sleep(600)
        return np.asarray(x, dtype=np.float32) * 2


@dataclass(frozen=True)
class Note:
    """A postprocess that writes down the Python worker, and whose partition it has."""

    ledger: Ledger

    def __call__(self, y: Any) -> Any:
        """Give back."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        self.ledger.write("worker", partition=context.partitionId())
        return y


# --- one job


@dataclass
class Job:
    """A job in a thread of its own, and what came of it."""

    scored: DataFrame
    group: str
    rows: list[Any] | None = None
    error: Exception | None = None

    def run(self) -> None:
        """Run the action."""
        context = self.scored.sparkSession.sparkContext
        try:
            context.setJobGroup(self.group, self.group, interruptOnCancel=True)
            self.rows = self.scored.collect()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error


def disturb(job: Job, fate: str, ledger: Ledger) -> None:
    """Wait until the job is well under way, and then do to it what its fate says."""

    def at_it() -> list[int]:
        """Give the worker whose row waits: the other partition's may have done its task, and its end would disturb nobody."""
        return [event.pid for event in ledger.events("worker") if event.partition == PARTITIONS - 1]

    ready = eventually(lambda: bool(ledger.count("waiting") and at_it()), 120)
    assert ready, f"{job.group} has not come to its last row: {job.error}"
    if fate == "cancel":
        job.scored.sparkSession.sparkContext.cancelJobGroup(job.group)
    elif fate == "kill loader":
        os.kill(ledger.events("waiting")[-1].pid, signal.SIGKILL)
    else:
        os.kill(at_it()[-1], signal.SIGKILL)


def run(df: DataFrame, model: Any, number: int, fate: str, ledger: Ledger) -> Job:
    """Start a job, meet its fate, and wait for its end."""
    disturbed = fate in DISTURBED
    scored = si.predict(
        df,
        model,
        inputs="x",
        outputs="y array<float>",
        road=("map", "column")[number // 4 % 2],
        batch_size=2,
        num_workers=loaders_of(number),
        preprocess=Prepare(ledger, disturbed),
        postprocess=Note(ledger),
    )
    job = Job(scored.limit(1) if fate == "limit" else scored, f"job {number}: {fate}")
    thread = Thread(target=job.run, daemon=True)
    thread.start()
    if disturbed:
        disturb(job, fate, ledger)
    thread.join(180)
    assert not thread.is_alive(), f"{job.group} hangs"
    return job


def loaders_of(number: int) -> int:
    """Choose a job's loader processes."""
    return (0, 2)[number // 2 % 2]


def fate_of(number: int) -> str:
    """Choose a job's fate; over the hundred each meets both frameworks, with and without loader processes."""
    kind = FATES[(number + number // 10) % 10]
    return FATE_OF[kind][number // 10 % 2] if kind in FATE_OF else kind


def models() -> tuple[Any, Any]:
    """Make a model of each framework that gives back what it gets."""
    import keras
    import torch

    inputs = keras.Input((3,), name="x")
    return si.TorchModel(torch.nn.Identity()), si.TensorFlowModel(keras.Model(inputs, keras.layers.Activation("linear")(inputs)))


def test_a_hundred_jobs_leave_whole_answers_and_no_process(session: SparkSession, mark: str, tmp_path: Path) -> None:
    """Torch and TensorFlow by turns, some stopped, cancelled or killed: the others, and those that lost a loader process, are whole; nothing outlives the session."""
    df = session.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "array(cast(id as float), 1f, 2f) as x")
    pair = models()
    expected = {row: [2.0 * row, 2.0, 4.0] for row in range(ROWS)}
    for number in range(JOBS):
        fate = fate_of(number)
        # those that run undisturbed share their functions, and so their loader processes
        ledger = Ledger(str(tmp_path / (str(number) if fate in DISTURBED else "shared")))
        job = run(df, pair[number % 2], number, fate, ledger)
        if fate in ("whole", "limit") or (fate == "kill loader" and loaders_of(number)):  # the row that was cut short is prepared again
            assert job.error is None, f"{job.group}: {job.error}"
            answers = {row.id: row.y for row in job.rows or []}
            assert len(job.rows or []) == len(answers) == (1 if fate == "limit" else ROWS), job.group
            assert answers.items() <= expected.items(), job.group
        else:
            assert job.error is not None, f"{job.group} was not disturbed"
    # a daemon, two Python workers, and for each two loader processes of each framework, a fork server and a resource tracker
    assert eventually(lambda: len(processes(mark)) <= 1 + 2 * (1 + 2 * 2 + 2), 30), f"processes pile up: {processes(mark)}"
    assert processes(mark), "the mark finds nothing"
    session.stop()
    assert eventually(lambda: not processes(mark), 30), f"left after the session: {processes(mark)}"
