"""A preprocess that kills or hangs its process costs its own row, in every road that has loader processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.engine import pool, watch
from sparkinfer.exceptions import LoaderProcessError, PreprocessError, SparkInferWarning

pytestmark = [
    pytest.mark.timeout(120),  # a hang is a failure
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
    # torch's signal handler may raise within a hook of the garbage collector, where it is swallowed
    pytest.mark.filterwarnings("ignore:(?s)Exception ignored in.*DataLoader worker:pytest.PytestUnraisableExceptionWarning"),
]

ROWS = 24
BATCH = 8


def torch_model() -> Any:
    torch = pytest.importorskip("torch")
    return si.TorchModel(torch.nn.Identity())


def tensorflow_model() -> Any:
    keras = pytest.importorskip("keras", reason="TensorFlow is not installed")
    inputs = keras.Input((2,), name="x")
    return si.TensorFlowModel(keras.Model(inputs, keras.layers.Activation("linear", name="same")(inputs), name="echo"))


def python_model() -> Any:
    return si.PythonModel(lambda: lambda x: x)


MAKERS = {"torch": torch_model, "python": python_model, "tensorflow": tensorflow_model}


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    """What waits for another partition is ended after each test; nothing else may be alive."""
    before = set(multiprocessing.active_children())
    yield
    while pool._idle:
        pool._idle.popitem()[1].end()
    torch_feed = sys.modules.get("sparkinfer.backends.torch_feed")
    if torch_feed is not None:
        torch_feed.close_loaders()
    assert set(multiprocessing.active_children()) <= before


def be_killed() -> None:
    """End as the system's out-of-memory killer ends a process."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    """End by an exit code, past every handler."""
    os._exit(9)


def crash() -> None:
    """End as C code with a bad pointer does."""
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    """Hang in Python code."""
    while True:
        time.sleep(0.01)


def hang_for_good() -> None:
    """Hang in Python code that lets nothing end it."""
    while True:
        with suppress(BaseException):
            time.sleep(0.01)


def hang_in_c() -> None:
    """Hang in C code, which holds the GIL and hears of no signal."""
    deque(itertools.repeat(0), maxlen=0)


def misbehaving(faults: dict[int, Callable[[], Any]]) -> Callable[[Any], Any]:
    """Make a preprocess that does something at some rows, and doubles the others."""

    def preprocess(x: float) -> np.ndarray:
        if int(x) in faults:
            faults[int(x)]()
        return np.array([x, 2 * x], np.float32)

    return preprocess


def scored(model: Any, faults: dict[int, Callable[[], Any]], **said: Any) -> list[dict[str, Any]]:
    """Score by the workers' loop."""
    table = pa.table({"id": range(100, 100 + ROWS), "x": np.arange(ROWS, dtype=np.float64)})
    arguments = {"inputs": "x", "outputs": "y array<float>", "key": "id", "batch_size": BATCH, "num_workers": 2, "on_error": "null"}
    if not said.keys() & {"preprocess", "preprocess_batch"}:
        arguments["preprocess"] = misbehaving(faults)
    found: list[dict[str, Any]] = si.predict_local(table, model, **{**arguments, **said}).to_pylist()
    return found


def assert_whole_but(found: list[dict[str, Any]], bad: dict[int, str]) -> None:
    """Every row is in its place; the bad ones have a reason of that type, and all others their own answer."""
    assert [row["id"] for row in found] == list(range(100, 100 + ROWS))
    assert {number: row["error"]["type"] for number, row in enumerate(found) if row["error"]} == bad
    assert {row["error"]["stage"] for row in found if row["error"]} <= {"preprocess"}
    assert [row["y"] for row in found] == [None if number in bad else [number, 2 * number] for number in range(ROWS)]


@pytest.mark.parametrize("name", MAKERS)
def test_rows_that_end_or_hang_their_process_are_null_and_all_others_whole(name: str) -> None:
    """Killed, exited, crashed, hung in C: four rows of three batches, two in one batch; the next call needs no repair."""
    model = MAKERS[name]()
    faults = {2: be_killed, 3: hang, 9: leave, 12: hang_in_c}
    found = scored(model, faults, preprocess_timeout_seconds=1.0, num_workers=1 if name == "torch" else 2)
    assert_whole_but(found, {2: "LoaderProcessDied", 3: "PreprocessTimeout", 9: "LoaderProcessDied", 12: "PreprocessTimeout"})
    told = {number: found[number]["error"]["message"] for number in faults}
    assert told[2] == "the loader process that prepared this row was killed by SIGKILL (often: out of memory) (column 'x')"
    assert told[3].startswith(
        "preprocess took more than preprocess_timeout_seconds=1 for this row (column 'x'). Raised in hang (test_loader_"
    )
    assert told[9] == "the loader process that prepared this row ended with exit code 9 (column 'x')"
    assert told[12].startswith("preprocess took more than preprocess_timeout_seconds=1 for this row, and did not give way")
    assert_whole_but(scored(model, {}), {})


@pytest.mark.parametrize(
    ("fault", "limit", "told"),
    [
        (crash, None, "the loader process that prepared this row was killed by SIGSEGV"),
        (hang_for_good, 1.0, "preprocess took more than preprocess_timeout_seconds=1 for this row, and did not give way"),
    ],
)
def test_raise_names_the_row(fault: Callable[[], Any], limit: float | None, told: str) -> None:
    """With column, batch, row and key; the next call is whole."""
    with pytest.raises(PreprocessError, match=rf"{told}.*At column 'x', batch 1, row 13 \(id=113\)"):
        scored(python_model(), {13: fault}, on_error="raise", preprocess_timeout_seconds=limit, num_workers=1)
    assert_whole_but(scored(python_model(), {}), {})


def test_a_function_of_a_batch_is_searched_by_halves() -> None:
    """It cannot say at which row it was: the row is found all the same, and under 'raise' the batch is named."""

    def deadly(x: np.ndarray) -> np.ndarray:
        if (x == 13).any():
            os._exit(9)
        return np.stack([x, 2 * x], axis=1).astype(np.float32)

    assert_whole_but(scored(python_model(), {}, preprocess_batch=deadly), {13: "LoaderProcessDied"})
    with pytest.raises(LoaderProcessError, match=r"ended with exit code 9, and so did the one after it.*batch 1 \(rows 8 to 15\)"):
        scored(python_model(), {}, preprocess_batch=deadly, on_error="raise")


def test_what_leaves_by_an_exception_costs_no_process() -> None:
    """sys.exit is an exception as any other."""

    def leaves(x: float) -> np.ndarray:
        if x == 13:
            raise SystemExit(3)
        return np.array([x, 2 * x], np.float32)

    assert_whole_but(scored(python_model(), {}, preprocess=leaves), {13: "SystemExit"})


def grow(kept: list[bytes]) -> None:
    """Keep eight megabytes more, all of them in use."""
    kept.append(os.urandom(2**20) * 8)


@pytest.mark.parametrize("name", ["torch", "python"])
def test_a_process_that_keeps_memory_is_replaced_between_tasks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of five batches leaves 16 MB more than the third: it is told, and the processes do not serve another."""
    monkeypatch.setattr(watch, "MOST_GROWTH_BYTES", 8 * 2**20)
    kept: list[bytes] = []
    leaks = {number: lambda: grow(kept) for number in range(0, ROWS, 4)}
    with pytest.warns(
        SparkInferWarning, match=r"a loader process \(pid \d+\) has grown by \d+ MiB since its first batches, and is replaced"
    ):
        scored(MAKERS[name](), leaks, num_workers=1, batch_size=4)
    assert multiprocessing.active_children() == []
    scored(MAKERS[name](), {}, num_workers=1, batch_size=4)  # which does not leak, and tells nothing
    assert len(multiprocessing.active_children()) == 1
