"""``batch_size="auto"``: where it settles, what stops it, what is remembered; and no row is lost on the way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sparkinfer.engine import settling
from sparkinfer.engine.partition import run_partition
from sparkinfer.engine.recorder import Recorder
from sparkinfer.engine.settling import HostRoom, Kept, Settling
from sparkinfer.exceptions import SchemaError
from tests.unit.engine.test_partition import chunks, plan, with_key

if TYPE_CHECKING:
    import numpy as np


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing has settled yet, here or on the host."""
    monkeypatch.setattr(settling, "_process", {})
    monkeypatch.setenv("SPARKINFER_RUNTIME_FOLDER", str(tmp_path / "runtime"))


SIZES: list[int] = []


class Costly:
    """A model whose call costs 200 us and 10 us a row, and which has memory for ``most`` rows; by reference, so that the clock is the test's."""

    def __init__(self, most: int = 10**9) -> None:
        self.most = most

    def __call__(self, x: np.ndarray) -> np.ndarray:
        SIZES.append(len(x))
        if len(x) > self.most:
            raise MemoryError
        time.sleep(200e-6 + 10e-6 * len(x))
        return 2 * x


def score(made: Any, *sizes: int) -> tuple[list[float], dict[str, Any]]:
    """Score chunks; give the predictions, and the partition's figures."""
    SIZES.clear()
    recorder = Recorder()
    scored = list(run_partition(made, chunks(*sizes), files=dict, recorder=recorder))
    assert [chunk.num_rows for chunk in scored] == list(sizes)
    return [y for chunk in scored for y in chunk.column("y").to_pylist()], recorder.figures()


@pytest.mark.parametrize("prefetch_batches", [0, 2])
@pytest.mark.usefixtures("no_time_passes")
def test_it_doubles_while_a_row_gets_cheaper_and_then_stays(prefetch_batches: int) -> None:
    """256 rows: from there to 512 a row gets 4 % cheaper, to 1024 another 2 %. Every row once, in order; the next partition begins there."""
    made = plan(Costly, batch_size="auto", prefetch_batches=prefetch_batches, keep=())
    answers, figures = score(made, 7000, 5000, 3000)
    assert answers == [float(row) for row in range(15_000)]
    assert [size for size in (64, 128, 256, 512, 1024) if size in SIZES] == sorted({64, 128, 256, 512, 1024})
    assert SIZES[-3:-1] == [256, 256]
    assert figures["batch_rows_settled"] == 256
    answers, figures = score(made, 600)
    assert SIZES == [256, 256, 88]
    assert figures["batch_rows_settled"] == 256


def test_too_few_rows_tell_no_size() -> None:
    """A short partition goes through as ever, and the figure is absent; the next one of the process goes on where it ended."""
    made = plan(Costly, batch_size="auto", keep=())
    answers, figures = score(made, 100)
    assert answers == [float(row) for row in range(100)]
    assert SIZES == [64, 36]
    assert figures["batch_rows_settled"] is None


@pytest.mark.usefixtures("no_time_passes")
def test_memory_that_ends_at_200_rows_ends_the_growth() -> None:
    """256 rows do not fit: they are cut, and it settles on what did; no row is lost."""
    answers, figures = score(plan(small, batch_size="auto", keep=()), 4000)
    assert answers == [float(row) for row in range(4000)]
    assert figures["batch_rows_settled"] == 128
    assert max(SIZES[-10:]) == 128


def small() -> Costly:
    """A model with memory for 200 rows."""
    return Costly(most=200)


@pytest.mark.usefixtures("no_time_passes")
def test_bytes_in_flight_end_the_growth() -> None:
    """Two batches of 128 rows are 2 kB: twice as many rows would leave none waiting ready."""
    answers, figures = score(plan(Costly, batch_size="auto", keep=(), max_in_flight_bytes=3000), 4000)
    assert answers == [float(row) for row in range(4000)]
    assert figures["batch_rows_settled"] == 128


def test_a_null_that_is_refused_is_told() -> None:
    """With the rows before it scored or not: the error is the null's."""
    with pytest.raises(SchemaError, match=r"the value is null, at column 'x', partition 3, row 3"):
        list(run_partition(plan(Costly, batch_size="auto", key="id"), with_key(1.0, None, 2.0), files=dict, partition=3))


def settled(sizing: Settling, *, call: float, row: float, fits: bool = True) -> int:
    """Tell it of whole batches until it has settled."""
    while not sizing.settled:
        sizing.took(sizing.rows(), call + row * sizing.rows(), lambda: fits)
    return sizing.rows()


@pytest.mark.parametrize(("call", "row", "rows"), [(0.0, 1e-3, 64), (1e-3, 1e-5, 1024), (1.0, 0.0, 4096)])
def test_it_settles_by_the_share_of_the_call_itself(call: float, row: float, rows: int) -> None:
    """All in the rows: at the first size. All in the call: at the largest."""
    assert settled(Settling(), call=call, row=row) == rows


def test_other_sizes_and_the_first_call_tell_nothing() -> None:
    """Batches cut earlier, the partition's last one, and a call in which a framework makes ready for a new shape."""
    sizing = Settling()
    for rows, seconds in [(64, 9.0), (13, 0.001), (64, 0.064), (32, 0.001), (64, 0.07)]:
        sizing.took(rows, seconds, lambda: True)
        assert sizing.rows() == 64
    sizing.took(64, 0.066, lambda: True)
    assert sizing.rows() == 128


def test_no_room_ends_the_growth() -> None:
    """The best so far stays."""
    assert settled(Settling(), call=1.0, row=0.0, fits=False) == 64


@pytest.mark.parametrize(
    ("grown", "left", "slots", "doubles"), [(10, 100, 1, True), (60, 100, 1, False), (20, 100, 4, False), (0, 0, 9, True)]
)
def test_room_is_what_all_slots_may_grow_by(grown: int, left: int, slots: int, doubles: bool) -> None:
    """Twice what this task has grown by, in each of the host's tasks."""
    own = iter([1000, 1000 + grown])
    assert HostRoom(slots, lambda: next(own), lambda: left).doubles() is doubles
    assert HostRoom(slots, lambda: None, lambda: left).doubles()


def test_what_settled_is_kept_for_a_day_for_the_hosts_other_processes(tmp_path: Path) -> None:
    """A file of this user's own; what is old, or no number of rows, is as if it were not there."""
    kept = Kept("of this model", lambda: tmp_path)
    assert kept.get() is None
    kept.put(512)
    assert kept.get() == 512
    assert Kept("of this model", lambda: tmp_path, clock=lambda: time.time() + 90_000).get() is None
    (tmp_path / "batch_sizes" / "of this model").write_text("10000000")
    assert kept.get() is None
    Kept("x", lambda: tmp_path / "batch_sizes" / "of this model").put(1)  # no folder can be made there: nothing happens


@pytest.mark.usefixtures("no_time_passes")
def test_another_process_begins_where_the_first_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model, its device, its threads and the way of preparing."""
    score(plan(Costly, batch_size="auto", keep=()), 15_000)
    monkeypatch.setattr(settling, "_process", {})
    score(plan(Costly, batch_size="auto", keep=()), 600)
    assert SIZES == [256, 256, 88]
    score(plan(Costly, batch_size="auto", keep=(), threads=2), 600)
    assert SIZES[0] == 64
