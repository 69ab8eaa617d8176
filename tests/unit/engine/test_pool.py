"""Loader processes keep order, are reused, are never a hang, and leave nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkinfer.engine import pool
from sparkinfer.engine.batch import Batch, Failure, Fed
from sparkinfer.engine.pool import prepare_in_processes
from sparkinfer.engine.prepare import Binding, Prepare
from sparkinfer.exceptions import LoaderProcessError, PreprocessError, SparkInferWarning
from sparkinfer.pickling import dumps

if TYPE_CHECKING:
    from sparkinfer.testing import Ledger


@pytest.fixture(autouse=True)
def _no_processes_left() -> Iterator[None]:
    """End what waits for another partition after each test; nothing else may be alive."""
    before = multiprocessing.active_children()
    yield
    while pool._idle:
        pool._idle.popitem()[1].end()
    assert [child for child in multiprocessing.active_children() if child not in before] == []


def step(function: Any) -> Prepare:
    """A step that runs a function on each value of the column x."""
    return Prepare(style="single", bindings=(Binding("x", "x"),), function=dumps(function, "preprocess"), per_row=True)


def source(*values: Any) -> Iterator[Batch]:
    """A batch of one row for each value."""
    for index, value in enumerate(values):
        yield Batch(index, pa.RecordBatch.from_pydict({"x": [value]}), range(index, index + 1))


def found(made: Iterator[Fed]) -> list[Any]:
    return [inputs.text if isinstance(inputs, Failure) else inputs.arrays["x"].item() for _, inputs in made]


def pids() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


def slow_when_even(x: int) -> int:
    """Take the longer the earlier the batch is, so that a later one is ready first."""
    time.sleep(0.02 if x % 2 == 0 else 0)
    return 10 * x


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_order_is_the_sources(depth: int) -> None:
    """Whichever process is ready first."""
    with prepare_in_processes(source(*range(12)), step(slow_when_even), 2, depth) as made:
        assert found(made) == [10 * number for number in range(12)]


def test_the_source_is_never_more_than_the_room_ahead() -> None:
    """num_workers + depth batches are out, and no more."""
    pulled: list[int] = []

    def counted() -> Iterator[Batch]:
        for batch in source(*range(20)):
            pulled.append(batch.index)
            yield batch

    with prepare_in_processes(counted(), step(lambda x: x), 2, 1) as made:
        next(made)
        assert pulled == [0, 1, 2]


def test_processes_live_on_for_the_next_partition_of_the_same_step() -> None:
    """Equal bytes are the same step; another step gets other processes, and the old ones end."""

    def make() -> Prepare:
        return step(lambda x: os.getpid())

    with prepare_in_processes(source(1), make(), 1, 0) as made:
        first = found(made)
    with prepare_in_processes(source(1), make(), 1, 0) as made:
        assert found(made) == first
    with prepare_in_processes(source(1), step(lambda x: -os.getpid()), 1, 0) as made:
        (other,) = found(made)
    assert -other != first[0]
    assert first[0] not in pids()


def test_two_partitions_at_a_time_have_processes_of_their_own() -> None:
    """Interleaved with another step, or with the same: neither takes the other's away."""
    with (
        prepare_in_processes(source(1, 2, 3), step(lambda x: x), 1, 0) as one,
        prepare_in_processes(source(4, 5, 6), step(lambda x: -x), 1, 0) as other,
        prepare_in_processes(source(7, 8, 9), step(lambda x: x), 1, 0) as again,
    ):
        columns = [found(iter([next(one), next(other), next(again)])) for _ in range(3)]
    assert columns == [[1, -4, 7], [2, -5, 8], [3, -6, 9]]
    assert len(pool._idle) == 1


def test_what_the_function_raises_comes_back_as_data() -> None:
    """With the row and the traceback of the process in which it happened; the batches after it come too."""
    with prepare_in_processes(source(1, 0, 2), step(lambda x: 1 // x), 1, 0) as made:
        results = list(made)
    failure = results[1].inputs
    assert isinstance(failure, Failure)
    assert (failure.column, failure.row) == ("x", 0)
    assert "ZeroDivisionError" in failure.cause
    assert found(iter(results)) == [1, "preprocess raised ZeroDivisionError: integer division or modulo by zero", 0]


def test_leaving_early_keeps_the_processes_for_the_next_partition() -> None:
    """What is out is dropped, and is nobody's later: the next partition gets its own rows."""
    same = step(slow_when_even)
    with prepare_in_processes(source(*range(20)), same, 2, 2) as made:
        next(made)
        alive = pids()
    with prepare_in_processes(source(7, 8), same, 2, 2) as made:
        assert found(made) == [70, 80]
    assert pids() == alive


def test_an_error_of_the_source_is_raised_as_it_is() -> None:
    """And the processes are kept."""

    def broken() -> Iterator[Batch]:
        yield from source(1)
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"), prepare_in_processes(broken(), step(lambda x: x), 1, 0) as made:
        list(made)
    assert len(pool._idle) == 1


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda: os._exit(9), r"ended with exit code 9"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"was killed by SIGKILL"),
    ],
)
def test_a_row_at_which_a_process_dies_twice_is_told_and_no_other_is_lost(end: Any, told: str) -> None:
    """C39: with how it ended; the batches on their way are done again, in order, by new processes, which are kept."""
    deadly = step(lambda x: end() if x == 5 else x)
    with prepare_in_processes(source(*range(10)), deadly, 2, 2) as made:
        results = list(made)
    failure = results.pop(5).inputs
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.column, failure.row) == (PreprocessError, "x", 0)
    assert re.fullmatch(rf"the loader process that prepared this row {told}.*", failure.text)
    assert [fed.batch.index for fed in results] == found(iter(results)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert len(pids()) == 2


def test_a_death_by_chance_costs_nothing(tmp_path: Path) -> None:
    """A process that is killed at a row that is fine: the row is tried alone, and blamed for nothing."""
    once = tmp_path / "once"

    def unlucky(x: int) -> int:
        if x == 5 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    with prepare_in_processes(source(*range(10)), step(unlucky), 2, 2) as made:
        assert found(made) == list(range(10))


class Falls:
    """A step that cannot be revived: its process ends before any batch."""

    fingerprint = "falls"
    traceable = tolerant = False
    only_column = None

    def __reduce__(self) -> Any:
        """Call os._exit in the process that revives it."""
        return os._exit, (7,)


def test_processes_that_cannot_start_are_an_error() -> None:
    """No loop of deaths: it is told how they ended."""
    with (
        pytest.raises(LoaderProcessError, match=r"one of the 1 loader processes .*ended with exit code 7 when it started"),
        prepare_in_processes(source(1), Falls(), 1, 0),  # type: ignore[arg-type]
    ):
        pass
    assert multiprocessing.active_children() == []


def test_a_process_that_died_between_two_partitions_is_replaced() -> None:
    """Killed while nobody looked (out of memory): the next partition does not notice."""
    whoami = step(lambda x: os.getpid())
    with prepare_in_processes(source(1), whoami, 1, 0) as made:
        (first,) = found(made)
    os.kill(first, signal.SIGKILL)
    with prepare_in_processes(source(1), whoami, 1, 0) as made:
        (second,) = found(made)
    assert second != first


def run_as_daemon(ledger: Ledger) -> None:
    """Prepare 20 batches where no children are allowed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with prepare_in_processes(source(*range(20)), step(lambda x: x), 2, 2) as made:
            results = found(made)
    remarks = [str(warning.message) for warning in caught if warning.category is SparkInferWarning]
    if results == list(range(20)) and len(remarks) == 1 and "this process is daemonic and may have none" in remarks[0]:
        ledger.write("whole")


def test_a_daemonic_process_prepares_in_itself_with_one_remark(ledger: Ledger) -> None:
    """C39: it may have no children; all 20 come, in order."""
    process = multiprocessing.get_context("spawn").Process(target=run_as_daemon, args=(ledger,), daemon=True)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert ledger.count("whole") == 1
