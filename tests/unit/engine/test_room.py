"""What may be on its way is bounded by number and by bytes, and one batch always goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.engine.batch import Batch, Fed, Inputs
from sparkinfer.engine.pool import prepare_in_processes
from sparkinfer.engine.prepare import Binding, Prepare
from sparkinfer.engine.room import Room, fed_bytes, shares
from sparkinfer.pickling import dumps


def batch(rows: int = 10, index: int = 0) -> Batch:
    """A batch of eight bytes a row."""
    return Batch(index, pa.RecordBatch.from_pydict({"x": np.arange(rows)}), range(rows))


def inputs(rows: int, row_bytes: int) -> Inputs:
    return Inputs("single", {"x": np.zeros((rows, row_bytes), np.uint8)})


def test_the_number_is_bounded() -> None:
    """Two of two are out: no third; without bytes the size does not matter."""
    room = Room(None, 2)
    for _ in range(2):
        assert room.fits(batch(1000))
        room.enter(batch(1000))
    assert not room.fits(batch(1))


def test_the_size_is_guessed_from_what_came_back() -> None:
    """80 bytes of Arrow each at first; after one came back as 1,000 bytes, one is all that fits."""
    room = Room(200, 9)
    for _ in range(2):
        assert room.fits(batch())
        room.enter(batch())
    assert not room.fits(batch())
    room.leave(batch(), inputs(10, 100))
    assert not room.fits(batch())
    assert room.fits(batch(), first_leaves=True)
    room.leave(batch(), inputs(10, 100))
    assert room.fits(batch())


def test_text_counts_as_its_column() -> None:
    """An object array counts pointers alone."""
    words = pa.RecordBatch.from_pydict({"x": ["a" * 1000, "b"]})
    fed = Fed(Batch(0, words, range(2)), Inputs("single", {"x": np.array(["a" * 1000, "b"], object)}))
    assert fed_bytes(fed) > 1000


def test_bytes_are_shared_by_the_batches_that_each_side_may_hold() -> None:
    """Two processes and one more batch, and three that wait: halves."""
    assert shares(1000, 2, 3) == (500, 500)
    assert shares(1000, 2, 0) == (1000, 0)


def test_large_rows_leave_few_batches_with_the_processes() -> None:
    """Three processes, but batches of 1 MB under 2 MB: two are out, all come, in order."""
    pulled: list[int] = []

    def source() -> Any:
        for number in range(8):
            pulled.append(number)
            yield Batch(number, pa.RecordBatch.from_pydict({"x": [bytes(2**20)]}), range(number, number + 1))

    step = Prepare(style="single", bindings=(Binding("x", "x"),), function=dumps(len, "preprocess"), per_row=True)
    with prepare_in_processes(source(), step, 3, 1, most_bytes=2 * 2**20 + 100) as made:
        first = next(made)
        assert pulled == [0, 1, 2]  # the third is in hand, and waits for room
        assert [first.batch.index, *(fed.batch.index for fed in made)] == list(range(8))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_row_larger_than_all_room_is_scored(num_workers: int) -> None:
    """C41: 3 MB where 1 MB may be on its way, between small rows."""
    data = pa.table({"x": [b"ab", bytes(3 * 2**20), b"abc"] * 2})
    found = si.predict_local(
        data,
        si.PythonModel(lambda: lambda x: x),
        inputs="x",
        outputs="y long",
        keep=[],
        preprocess=len,
        batch_size=1,
        num_workers=num_workers,
        max_in_flight_bytes=2**20,
    )
    assert found["y"].to_pylist() == [2, 3 * 2**20, 3] * 2
