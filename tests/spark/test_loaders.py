"""What prepares batches ahead of the model, in Spark's workers: loader processes, threads and tf.data; and how they fail."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.testing import EchoModel, Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Keras 3.15 saves its variables by a call that NumPy 2 deprecates; a hang is a failure, and soon
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
    pytest.mark.timeout(180),
]

ROWS = 40


def table(spark: SparkSession, rows: int = ROWS, partitions: int = 4) -> DataFrame:
    """Rows of three floats, the first of which is the row's id."""
    return spark.range(0, rows, 1, partitions).selectExpr("id", "array(cast(id as float), 1f, 2f) as x")


def echo_torch() -> Any:
    """Make a torch model that gives back what it gets."""
    import torch

    return si.TorchModel(torch.nn.Identity())


def echo_tensorflow() -> Any:
    """Make a Keras model that gives back what it gets."""
    import keras

    inputs = keras.Input((3,), name="x")
    return si.TensorFlowModel(keras.Model(inputs, keras.layers.Activation("linear", name="same")(inputs), name="echo"))


def echo_python() -> Any:
    """Make a Python model that gives back what it gets."""
    return si.PythonModel(EchoModel())


MODELS = {"torch": echo_torch, "tensorflow": echo_tensorflow, "python": echo_python}


@pytest.fixture(params=MODELS)
def echo(request: pytest.FixtureRequest) -> Any:
    """An echo model of each backend."""
    return MODELS[request.param]()


def score(df: DataFrame, model: Any, *, road: str = "map", **more: Any) -> dict[int, list[float]]:
    """Run one action, and give the predictions by id."""
    settings = {"inputs": "x", "outputs": "y array<float>", "keep": ["id"], "road": road, "batch_size": 4, **more}
    return {row.id: row.y for row in si.predict(df, model, **settings).collect()}


def whole(answers: dict[int, list[float]], factor: float = 1.0, rows: int = ROWS) -> bool:
    """Tell whether every row has its own answer."""
    return answers == {row: [row * factor, factor, 2 * factor] for row in range(rows)}


@dataclass(frozen=True)
class Double:
    """A preprocess for a row and for a batch, that writes down the process in which it runs."""

    ledger: Ledger

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Double."""
        self.ledger.write("prepare", rows=np.asarray(x).ndim)
        return np.asarray(x, dtype=np.float32) * 2


# --- where it runs


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("argument", ["preprocess", "preprocess_batch"])
def test_preprocess_reaches_the_model_on_both_roads(
    spark: SparkSession, ledger: Ledger, echo: Any, argument: str, num_workers: int
) -> None:
    """A function of a row gets rows, one of a batch gets batches; each prediction stands beside its own row."""
    for road in ("map", "column"):
        assert whole(score(table(spark), echo, road=road, num_workers=num_workers, **{argument: Double(ledger)}), factor=2)
    assert set(ledger.rows("prepare")) == {1 if argument == "preprocess" else 2}


def test_loader_processes_are_not_started_again_for_each_task(spark: SparkSession, ledger: Ledger, tmp_path: Path, echo: Any) -> None:
    """Twelve tasks in three jobs: the same two processes for each of the two Python workers, and never a Python worker itself."""
    workers = Ledger(str(tmp_path / "workers"))
    for _ in range(3):
        answers = score(table(spark), echo, preprocess=Double(ledger), postprocess=Noted(workers), num_workers=2)
        assert whole(answers, factor=2)
    assert len(workers.pids("postprocess")) <= 2
    assert 2 <= len(ledger.pids("prepare")) <= 2 * len(workers.pids("postprocess"))
    assert not ledger.pids("prepare") & workers.pids("postprocess")
    assert ledger.count("prepare") == 3 * ROWS


@dataclass(frozen=True)
class Noted:
    """A postprocess that changes nothing, and writes down the process in which it runs."""

    ledger: Ledger

    def __call__(self, y: Any) -> Any:
        """Give back."""
        self.ledger.write("postprocess")
        return y


def test_without_loader_processes_preprocess_runs_in_the_python_worker(
    spark: SparkSession, ledger: Ledger, tmp_path: Path, echo: Any
) -> None:
    """With num_workers=0 no other process is started for it."""
    workers = Ledger(str(tmp_path / "workers"))
    score(table(spark), echo, preprocess=Double(ledger), postprocess=Noted(workers))
    assert ledger.pids("prepare") == workers.pids("postprocess")


def test_another_function_gets_other_loader_processes(spark: SparkSession, ledger: Ledger, echo: Any) -> None:
    """A changed preprocess is never answered by the processes that hold the one before."""
    for factor in (2.0, 3.0, 2.0):
        answers = score(table(spark), echo, preprocess=lambda x, factor=factor: np.asarray(x, dtype=np.float32) * factor, num_workers=2)
        assert whole(answers, factor=factor)


def traced(ledger: Ledger, *, fails_at: int = -1) -> Any:
    """Make a tf.function that writes down each time that Python runs its body, and whether tf.data asked for it."""
    import tensorflow as tf

    @tf.function
    def double(x: tf.Tensor) -> tf.Tensor:
        inside = any("tensorflow/python/data/ops" in frame.filename for frame in traceback.extract_stack())
        ledger.write("inside tf.data" if inside else "outside")
        tf.debugging.assert_none_equal(x[..., 0], float(fails_at), message="bad 17")
        return x * 2

    return double


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("argument", ["preprocess", "preprocess_batch"])
def test_a_tf_function_runs_inside_tf_data(spark: SparkSession, ledger: Ledger, argument: str, num_workers: int) -> None:
    """Python runs its body to trace it, a few times a partition, and not for each row; a batch's is traced by tf.data's map itself."""
    answers = score(table(spark, ROWS, 2), echo_tensorflow(), num_workers=num_workers, **{argument: traced(ledger)})
    assert whole(answers, factor=2)
    assert argument == "preprocess" or ledger.count("inside tf.data")
    assert len(ledger.events()) < ROWS // 2


def test_a_tf_function_that_fails_names_the_batch_and_the_cause(spark: SparkSession, ledger: Ledger) -> None:
    """tf.data runs rows in its own graph: the error has the partition, the batch's rows and the assertion's words."""
    with pytest.raises(
        Exception, match=r"PreprocessError: preprocess raised InvalidArgumentError: .*bad 17.*partition 0, batch 4 \(rows 16 to"
    ):
        score(table(spark, ROWS, 1), echo_tensorflow(), preprocess=traced(ledger, fails_at=17))


# --- C39: a loader process dies


@dataclass(frozen=True)
class Ends:
    """A preprocess that ends its process at a row."""

    at: int
    how: Callable[[], Any]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Give back, or end."""
        if x[0] == self.at:
            self.how()
        return x


def leave() -> None:
    """End at once, by an exit code."""
    os._exit(9)


def be_killed() -> None:
    """End as the kernel ends a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("name", "how", "words"), [("torch", leave, "exit code 9"), ("tensorflow", be_killed, "SIGKILL")])
def test_a_loader_process_that_dies_names_the_row_and_costs_the_next_job_nothing(
    spark: SparkSession, name: str, how: Any, words: str
) -> None:
    """C39: by the partition and the row, and with how the process ended; the next job, with new processes, is whole."""
    with pytest.raises(Exception, match=rf"PreprocessError: the loader process .*{words}.*column 'x', partition 1, batch 0, row 3\b"):
        score(table(spark), MODELS[name](), preprocess=Ends(13, how), num_workers=2)
    assert whole(score(table(spark), MODELS[name](), preprocess=Ends(-1, how), num_workers=2))


def test_a_deadly_row_is_null_and_its_python_worker_lives(spark: SparkSession, tmp_path: Path) -> None:
    """C39: under on_error="null" its neighbours are whole, the next job too, and no Python worker has ended."""
    workers = Ledger(str(tmp_path / "workers"))
    arguments: dict[str, Any] = {"inputs": "x", "outputs": "y array<float>", "batch_size": 4, "num_workers": 1, "on_error": "null"}
    arguments |= {"postprocess": Noted(workers), "road": "map"}
    found = si.predict(table(spark, ROWS, 1), echo_python(), preprocess=Ends(13, be_killed), **arguments).collect()
    assert [(row.id, row.error.stage, row.error.type) for row in found if row.error] == [(13, "preprocess", "LoaderProcessDied")]
    assert {row.id: row.y for row in found} == {row: None if row == 13 else [row, 1, 2] for row in range(ROWS)}
    found = si.predict(table(spark, ROWS, 1), echo_python(), preprocess=Ends(-1, be_killed), **arguments).collect()
    assert not any(row.error for row in found)
    for pid in workers.pids("postprocess"):
        os.kill(pid, 0)  # raises for one that is gone


def test_a_worker_that_dies_in_preprocess_fails_the_job_and_not_the_next_one(spark: SparkSession) -> None:
    """C39: without loader processes it is the Python worker that goes; Spark says so, and the next job is whole."""
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        score(table(spark), echo_python(), preprocess=Ends(13, leave))
    assert whole(score(table(spark), echo_python(), preprocess=Ends(-1, leave)))


@pytest.mark.parametrize("argument", ["preprocess", "preprocess_batch", "postprocess"])
def test_a_function_that_cannot_travel_is_refused_on_the_driver(spark: SparkSession, argument: str) -> None:
    """C39: a function that holds a lock is named, and so is the variable."""
    guard = threading.Lock()

    def guarded(x: Any) -> Any:
        with guard:
            return x

    with pytest.raises(si.ConfigError, match=rf"variable 'guard' in {argument}, a lock, cannot travel"):
        si.predict(table(spark), echo_python(), inputs="x", outputs="y array<float>", num_workers=2, **{argument: guarded})


# --- C43: errors ahead of the model


def raise_at_17(x: np.ndarray) -> np.ndarray:
    """Raise for the row whose id is 67: row 17 of partition 1."""
    if x[0] == 67:
        raise ValueError("bad 17")
    return x


def raise_upstream(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand on one chunk, and fail."""
    yield next(chunks)
    raise ArithmeticError("the source is broken")


@dataclass
class FailsInItsSecondCall:
    """A postprocess (the model's side of the queue, for every backend) that raises in the second batch."""

    calls: int = 0

    def __call__(self, y: Any) -> Any:
        """Raise, or give back."""
        self.calls += 1
        if self.calls == 2:
            raise OverflowError("too much")
        return y


FAULTS = {
    "preprocess": (
        {"preprocess": raise_at_17},
        r"PreprocessError: preprocess raised ValueError: bad 17.*column 'x', partition 1, batch 3, row 17\b",
    ),
    "source": ({}, r"ArithmeticError: the source is broken"),
    "model": ({"postprocess": FailsInItsSecondCall()}, r"OutputError: postprocess raised OverflowError: too much.*batch 1 \(rows 5 to 9\)"),
}


def read_ahead_threads(x: np.ndarray) -> np.ndarray:
    """Tell for each row how many threads of ours are in this process."""
    return np.full(len(x), sum(thread.name.startswith("sparkinfer-read") for thread in threading.enumerate()))


@pytest.mark.parametrize(
    ("fault", "name", "num_workers"),
    [
        *(("preprocess", name, num_workers) for name in MODELS for num_workers in (0, 2)),
        # each failure costs a worker its framework, so that the others take one of each kind of feed: thread, DataLoader, pool, tf.data
        *((fault, *feed) for fault in ("source", "model") for feed in (("python", 0), ("torch", 2), ("python", 2), ("tensorflow", 0))),
    ],
)
def test_an_error_ahead_of_the_model_ends_the_job_and_leaves_nothing_behind(
    spark: SparkSession, fault: str, name: str, num_workers: int
) -> None:
    """C43: in preprocess, in what Spark computes before, and in the model's side: the first cause and the place are told, no hang."""
    arguments, words = FAULTS[fault]
    echo = MODELS[name]()
    settings = {"batch_size": 5, "prefetch_batches": 3, "num_workers": num_workers}
    df = table(spark, 100, 2)
    failing = df.mapInArrow(raise_upstream, df.schema) if fault == "source" else df
    with si.inference_run(max_records_per_batch=25), pytest.raises(Exception, match=words):
        score(failing, echo, **settings, **arguments)
    assert whole(score(df, echo, **settings), rows=100)


def test_no_read_ahead_thread_is_left_after_errors(spark: SparkSession) -> None:
    """C43: whatever the faults above left alive, no Python worker holds a thread of this library."""
    counting = si.PythonModel(lambda: read_ahead_threads)
    counted = si.predict(table(spark), counting, inputs="x", outputs="threads int", road="map", prefetch_batches=0).collect()
    assert {row.threads for row in counted} == {0}


# --- code that the worker lacks


@pytest.fixture
def only_here(tmp_path: Path) -> Iterator[Any]:
    """A module that can be imported on the driver and nowhere else."""
    (tmp_path / "only_on_the_driver.py").write_text("def same(x):\n    return x\n\n\ndef load():\n    return same\n")
    sys.path.insert(0, str(tmp_path))
    try:
        yield importlib.import_module("only_on_the_driver")
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["only_on_the_driver"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_preprocess_whose_module_the_worker_lacks_says_what_to_ship(
    spark: SparkSession, echo: Any, only_here: Any, num_workers: int
) -> None:
    """The error names the function, the module and the two calls that bring it, in a loader process as well."""
    with pytest.raises(Exception, match=r"ModelLoadError: preprocess needs the module 'only_on_the_driver'.*addArtifacts.*addPyFile"):
        score(table(spark), echo, preprocess=only_here.same, num_workers=num_workers)


def test_a_loader_or_a_postprocess_whose_module_the_worker_lacks_says_what_to_ship(spark: SparkSession, only_here: Any) -> None:
    """The same for a model's loader, and for postprocess."""
    with pytest.raises(Exception, match=r"ModelLoadError: the loader of PythonModel\(load\) needs the module 'only_on_the_driver'"):
        score(table(spark), si.PythonModel(only_here.load))
    with pytest.raises(Exception, match=r"ModelLoadError: postprocess needs the module 'only_on_the_driver'.*addPyFile"):
        score(table(spark), echo_python(), postprocess=only_here.same)
