"""Torch's DataLoader as a feed: order, laziness, errors, early ends, dead and hung processes, reuse, and no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkinfer.backends import torch_feed, torch_loader
from sparkinfer.backends.torch import BACKEND
from sparkinfer.backends.torch_feed import close_loaders
from sparkinfer.config import InferenceConfig
from sparkinfer.engine import lifeline
from sparkinfer.engine.batch import Batch, Failure, Fed, Inputs
from sparkinfer.exceptions import LoaderProcessError, PreprocessError, SparkInferWarning

ROOT = Path(__file__).resolve().parents[2]
CHUNK = pa.RecordBatch.from_pydict({"x": np.arange(4_000)})
ROWS = 20


@dataclass(frozen=True)
class Step:
    """Squares a column, and says which process did it; ``act`` may misbehave on the way."""

    act: Callable[[int], Any] = int
    fingerprint: str = "square"
    traceable: bool = False
    plain: bool = False
    tolerant: bool = False
    only_column: str | None = "x"

    def __call__(self, data: pa.RecordBatch) -> Inputs | Failure:
        x = data.column(0).to_numpy()
        if len(x) and isinstance(failure := self.act(int(x[0])), Failure):
            return failure
        words = np.array([str(value) for value in x], dtype=object)
        return Inputs("named", {"square": x.astype(np.float32) ** 2, "pid": np.full(len(x), os.getpid()), "word": words})


def batches(count: int, pulled: list[int] | None = None) -> Iterator[Batch]:
    for i in range(count):
        if pulled is not None:
            pulled.append(i)
        yield Batch(i, CHUNK.slice(i * ROWS, ROWS), range(i * ROWS, (i + 1) * ROWS))


def fed(source: Iterator[Batch], step: Step, num_workers: int, prefetch_batches: int = 3) -> Any:
    config = InferenceConfig(num_workers=num_workers, prefetch_batches=prefetch_batches)
    return BACKEND.feed(source, step, config, "cpu")


def pids(items: list[Fed]) -> set[int]:
    return {int(pid) for item in items for pid in item.inputs.arrays["pid"]}


def children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid]


@pytest.fixture(autouse=True)
def _forks_first(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test stands in a fresh worker, where no model was loaded yet, and leaves no process and no thread."""
    monkeypatch.setattr(lifeline, "_used", threading.Event())
    before = set(children())
    yield
    close_loaders()
    assert set(children()) <= before
    assert [t.name for t in threading.enumerate() if t.name.startswith("sparkinfer")] == []


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("prefetch_batches", [0, 1, 4])
def test_every_batch_comes_once_in_order_with_its_inputs(num_workers: int, prefetch_batches: int) -> None:
    """Whatever runs where: 30 batches, each beside the inputs made of it."""
    with fed(batches(30), Step(), num_workers, prefetch_batches) as items:
        for i, item in enumerate(items):
            assert item.batch.index == i
            expected = np.arange(i * ROWS, (i + 1) * ROWS, dtype=np.float32) ** 2
            np.testing.assert_array_equal(item.inputs.arrays["square"].numpy(), expected)
            assert item.inputs.arrays["word"].tolist() == [str(row) for row in item.batch.rows]
            assert isinstance(item.inputs.arrays["square"], torch.Tensor)
    assert i == 29


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_source_is_pulled_only_when_asked_and_only_so_far(num_workers: int) -> None:
    """Nothing before the first ``next``; afterwards no further than what waits, is made, and is in hand."""
    pulled: list[int] = []
    with fed(batches(100, pulled), Step(), num_workers, 2) as items:
        assert pulled == []
        next(items)
        time.sleep(0.2)  # a feed that runs away has the time to
        assert 1 <= len(pulled) <= 2 + num_workers + 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_batches_and_batches_without_rows_pass(num_workers: int) -> None:
    """An empty partition ends at once; a batch of no rows only carries news."""
    with fed(iter(()), Step(), num_workers) as items:
        assert list(items) == []
    empty = Batch(0, CHUNK.slice(0, 0), range(0))
    with fed(iter([empty, *batches(2)]), Step(), num_workers) as items:
        assert [item.batch.data.num_rows for item in items] == [0, ROWS, ROWS]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_failure_is_a_value_and_the_rest_goes_on(num_workers: int) -> None:
    """C43 (a): the batch whose preprocess failed arrives as its failure, in its place."""
    failure = Failure(PreprocessError, "bad 60", row=0, cause="ValueError: bad 60")
    with fed(batches(6), Step(lambda first: failure if first == 60 else None), num_workers) as items:
        got = list(items)
    assert got[3].inputs == failure
    assert [isinstance(item.inputs, Inputs) for item in got] == [True, True, True, False, True, True]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_source_arrives_as_itself_after_what_came_before(num_workers: int) -> None:
    """C43 (b): no batch is lost to an error behind it, and the loader is as good as new."""

    def source() -> Iterator[Batch]:
        yield from batches(4)
        raise OSError("disk gone")

    got: list[int] = []
    with pytest.raises(OSError, match="disk gone"), fed(source(), Step(), num_workers) as items:  # noqa: PT012 - see below
        for item in items:
            got.append(item.batch.index)  # noqa: PERF401 - extend would forget them with the error
    assert got == [0, 1, 2, 3]
    with fed(batches(3), Step(), num_workers) as items:
        assert len(list(items)) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_leaving_early_is_quick_and_the_next_feed_is_whole(num_workers: int) -> None:
    """C43 (c): a model that fails, or Spark's limit, leaves nothing stale behind."""
    with pytest.raises(RuntimeError, match="model"), fed(batches(50), Step(), num_workers) as items:  # noqa: PT012 - leaving is the test
        next(items)
        raise RuntimeError("model")
    with fed(batches(5), Step(), num_workers) as items:
        assert [item.batch.index for item in items] == [0, 1, 2, 3, 4]


def test_a_hung_preprocess_does_not_hold_an_early_end() -> None:
    """The processes are ended, whatever they are at: within two seconds, though preprocess would sleep for a minute."""
    started = time.monotonic()
    with fed(batches(50), Step(lambda first: time.sleep(60) if first >= 60 else None), 2) as items:
        next(items)
    assert time.monotonic() - started < 2


# torch's signal handler raises wherever the main thread is: in Hypothesis's hook of the garbage collector that is swallowed, and what tells of
# the death then is the connection that breaks
@pytest.mark.filterwarnings("ignore:(?s)Exception ignored in.*DataLoader worker:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda first: os._exit(9) if first == 100 else None, "exit code 9"),
        (lambda first: os.kill(os.getpid(), signal.SIGKILL) if first == 100 else None, "SIGKILL"),
    ],
)
def test_a_batch_that_ends_its_process_twice_is_told_and_no_other_is_lost(act: Callable[[int], Any], told: str) -> None:
    """C39: soon, and with how it ended; what was on its way is done again, in order, and the next feed has living processes."""
    started = time.monotonic()
    with fed(batches(12), Step(act, told), 2) as items:
        got = list(items)
    assert time.monotonic() - started < 60  # far below what a hang would take; a new process imports torch first
    assert [item.batch.index for item in got] == list(range(12))
    failure = got.pop(5).inputs
    assert isinstance(failure, Failure)
    assert failure.kind is LoaderProcessError
    assert told in failure.text
    assert [float(item.inputs.arrays["square"][0]) for item in got] == [float((item.batch.index * ROWS) ** 2) for item in got]
    with fed(batches(5), Step(fingerprint=told), 2) as items:
        assert len(list(items)) == 5


def test_bytes_bound_what_is_with_the_processes() -> None:
    """C41: batches come back as 400 bytes; under 600 two are out beside what the reader holds, where nine might be. All come, in order."""
    pulled: list[int] = []
    config = InferenceConfig(num_workers=3, prefetch_batches=9, max_in_flight_bytes=600)
    with BACKEND.feed(batches(40, pulled), Step(), config, "cpu") as items:
        got = [next(items).batch.index for _ in range(10)]
        time.sleep(0.1)  # a feed that runs away has the time to
        assert len(pulled) <= 10 + 6
        assert [*got, *(item.batch.index for item in items)] == list(range(40))


def test_a_process_that_died_while_it_waited_is_replaced() -> None:
    """Killed between two partitions: the second is whole."""
    with fed(batches(5), Step(), 2) as items:
        first = pids(list(items))
    os.kill(min(first), signal.SIGKILL)
    while min(first) in children():
        time.sleep(0.01)
    with fed(batches(5), Step(), 2) as items:
        assert pids(list(items)).isdisjoint(first)


def test_processes_live_on_for_the_same_step_and_end_for_another() -> None:
    """Three partitions have two pids; another preprocess has others, and the old ones are gone."""
    seen = set()
    for _ in range(3):
        with fed(batches(20), Step(), 2) as items:
            seen |= pids(list(items))
    assert len(seen) == 2
    with fed(batches(20), Step(lambda first: None, "other"), 2) as items:
        assert pids(list(items)).isdisjoint(seen)
    assert seen.isdisjoint(children())


def test_two_feeds_at_once_do_not_share_processes() -> None:
    """A loader is lent to one partition at a time, and one of the two is kept afterwards."""
    with fed(batches(8), Step(), 2) as one, fed(batches(8), Step(), 2) as other:
        pairs = list(zip(one, other, strict=True))
        assert [(a.batch.index, b.batch.index) for a, b in pairs] == [(i, i) for i in range(8)]
        assert next(one, None) is next(other, None) is None
    assert len(torch_feed._idle) == 1


def test_the_random_state_of_the_process_is_not_moved() -> None:
    """A feed draws no number that a user's seed would have given to the model."""
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    for num_workers in (0, 1):
        with fed(batches(2), Step(), num_workers) as items:
            list(items)
    assert torch.rand(1) == expected


def test_only_the_slice_travels() -> None:
    """A batch that is a view of a large chunk is sent without the rest of the chunk."""
    slices = torch_loader._Slices(nullcontext)
    slices.source = batches(1)
    _, sent = next(iter(slices)) or (0, b"")
    assert 0 < len(sent) < 2_000 < CHUNK.nbytes


def test_after_a_model_was_loaded_processes_come_from_a_fork_server() -> None:
    """A fork would copy the framework's locks: the step, a lambda, then travels by value, and the pids have another parent."""
    lifeline.mark_framework_used()
    mark = 7
    with fed(batches(4), Step(lambda first: mark + first, "by value"), 2) as items:
        got = list(items)
    assert [item.batch.index for item in got] == [0, 1, 2, 3]
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids(got)}
    assert os.getpid() not in parents


def daemonic(queue: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fed(batches(20), Step(), 2) as items:
            indices = [item.batch.index for item in items]
    queue.put((indices, [w.category.__name__ for w in caught]))


def test_a_daemonic_process_prepares_by_itself_with_one_remark() -> None:
    """C39: where children are not allowed there are none, all batches come in order, and it is said once."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=daemonic, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=30) == (list(range(20)), [SparkInferWarning.__name__])
    process.join()


SCRIPT = """
    import multiprocessing, os, sys, time
    sys.path.insert(0, {root!r})
    from tests.backends.test_torch_feed import ROWS, Step, batches, fed
    from sparkinfer.engine import lifeline
    if __name__ == "__main__":
        if {used}:
            lifeline.mark_framework_used()
        with fed(batches(100), Step(lambda first: time.sleep(60) if first > ROWS else None, "hang"), 2) as items:
            next(items)
            print(*[child.pid for child in multiprocessing.active_children()], flush=True)
            time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("used", [False, True])
def test_loader_processes_end_with_a_killed_owner(used: bool, tmp_path: Path) -> None:
    """``kill -9`` of the worker while preprocess hangs: forked or from a fork server, its children are gone within seconds."""
    script = tmp_path / "owner.py"
    script.write_text(textwrap.dedent(SCRIPT.format(root=str(ROOT), used=used)))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        loaders = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(loaders) == 2
        time.sleep(0.5)  # by now both hang in their second batch
        owner.kill()
    until = time.monotonic() + 5
    while time.monotonic() < until and any(is_running(pid) for pid in loaders):
        time.sleep(0.05)
    assert [pid for pid in loaders if is_running(pid)] == []


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
