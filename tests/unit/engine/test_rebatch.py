"""Chunks become batches of one size across chunk borders, and come back with their own borders, every row once."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.engine import rebatch as module
from sparkinfer.engine.rebatch import Regroup, rebatch
from sparkinfer.exceptions import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable

OUTPUT = pa.schema([pa.field("y", pa.int64())])


def chunks_of(sizes: list[int], nulls: frozenset[int]) -> list[pa.RecordBatch]:
    """Chunks of these sizes: ``id`` numbers the rows, ``x`` is the id or null."""
    chunks, start = [], 0
    for size in sizes:
        ids = range(start, start + size)
        values = [None if i in nulls else i for i in ids]
        chunks.append(pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "x": pa.array(values, pa.int64())}))
        start += size
    return chunks


def null_mask(data: pa.RecordBatch, first_row: int) -> np.ndarray | None:
    """What on_null="null" tells the rebatcher."""
    del first_row
    column = data.column(0)
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def run(chunks: list[pa.RecordBatch], batch_size: int | Callable[[], int], *, lag: int = 0) -> tuple[list[int], list[pa.RecordBatch]]:
    """Send chunks through, with a model that doubles; ``lag`` batches are read ahead of the model. Gives the batch sizes too."""
    regroup = Regroup(["id"], OUTPUT)
    sizes, out, ahead = [], [], []

    def answer() -> None:
        batch = ahead.pop(0)
        assert batch.data.column(0).to_pylist() == list(batch.rows)
        out.extend(regroup.add([pa.array([2 * x for x in batch.data.column(0).to_pylist()], pa.int64())]))

    for batch in rebatch(iter(chunks), ["x"], batch_size, regroup, null_mask):
        sizes.append(batch.data.num_rows)
        ahead.append(batch)
        if len(ahead) > lag:
            answer()
    while ahead:
        answer()
    out.extend(regroup.finish())
    return sizes, out


@given(
    sizes=st.lists(st.integers(0, 12), max_size=8),
    batch_size=st.integers(1, 15),
    nulls=st.frozensets(st.integers(0, 96)),
    lag=st.integers(0, 3),
)
def test_every_row_comes_back_beside_its_own_prediction(sizes: list[int], batch_size: int, nulls: frozenset[int], lag: int) -> None:
    """Borders, order, predictions and nulls are right for any chunks, batch size, nulls and read-ahead; batches are full but the last."""
    made, out = run(chunks_of(sizes, nulls), batch_size, lag=lag)
    assert [chunk.num_rows for chunk in out] == sizes
    rows = [row for chunk in out for row in chunk.to_pylist()]
    assert rows == [{"id": i, "y": None if i in nulls else 2 * i} for i in range(sum(sizes))]
    assert all(size == batch_size for size in made[:-1])
    assert sum(made) == sum(1 for i in range(sum(sizes)) if i not in nulls)


def test_batches_do_not_depend_on_the_chunks() -> None:
    """Batches of 4 from chunks of 3, 0, 5 and 2 rows: 4, 4 and 2."""
    assert run(chunks_of([3, 0, 5, 2], frozenset()), 4)[0] == [4, 4, 2]


def test_a_batch_within_one_chunk_is_a_view() -> None:
    """No copy is made where no border is crossed: the batch's buffer is the chunk's own."""
    chunk = chunks_of([8], frozenset())[0]
    batches = list(rebatch(iter([chunk]), ["id"], 4, Regroup([], OUTPUT), lambda data, first: None))
    assert [batch.data.column(0).buffers()[1].address for batch in batches] == [chunk.column(0).buffers()[1].address] * 2


def test_a_long_run_of_nulls_does_not_pile_up() -> None:
    """Chunks that the model never sees come out while the partition is still read: one early batch carries the waiting row."""
    sizes = [10_000] * 12
    chunks = chunks_of(sizes, frozenset(range(1, 120_000)))
    regroup = Regroup(["id"], OUTPUT)
    waiting = 0
    read = 0

    def counted() -> object:
        nonlocal read
        for chunk in chunks:
            read += 1
            yield chunk

    out = []
    for batch in rebatch(counted(), ["x"], 64, regroup, null_mask):  # type: ignore[arg-type]
        answers = [pa.array([2 * x for x in batch.data.column(0).to_pylist()], pa.int64())]
        out.extend(regroup.add(answers))
        waiting = max(waiting, read - len(out))
    out.extend(regroup.finish())
    assert [chunk.num_rows for chunk in out] == sizes
    assert waiting < 6
    assert out[0].column(1)[0].as_py() == 0


def test_a_lost_prediction_is_never_silent() -> None:
    """Leaving the loop with a chunk unanswered is an error, not a shorter result."""
    regroup = Regroup(["id"], OUTPUT)
    regroup.open(chunks_of([3], frozenset())[0], None)
    with pytest.raises(AssertionError, match="1 chunks and 0 predictions are left over"):
        list(regroup.finish())


def test_strings_and_lists_are_carried_over_a_border() -> None:
    """A batch that crosses a border holds the right text and arrays."""
    chunks = [pa.RecordBatch.from_pydict({"t": [f"{i}" for i in ids], "x": [[i, i + 1] for i in ids]}) for ids in (range(3), range(3, 5))]
    batches = list(rebatch(iter(chunks), ["t", "x"], 4, Regroup([], OUTPUT), lambda data, first: None))
    assert [batch.data.column(0).to_pylist() for batch in batches] == [["0", "1", "2", "3"], ["4"]]
    assert batches[0].data.column(1).to_pylist()[3] == [3, 4]
    assert batches[0].rows == range(4)


def test_a_batch_that_no_column_could_hold_ends_at_the_chunk_border(monkeypatch: pytest.MonkeyPatch) -> None:
    """C41: of 8 bytes a row at most 48 are copied together; every row comes back, and what fits is still joined."""
    monkeypatch.setattr(module, "_MOST_BYTES", 48)
    made, out = run(chunks_of([4, 4, 2, 1, 6], frozenset()), 8)
    assert made == [4, 6, 1, 6]
    assert [chunk.num_rows for chunk in out] == [4, 4, 2, 1, 6]


def huge(rows: int, bytes_of_a_row: int) -> pa.Array:
    """Rows of zeros that the system has not given any memory for."""
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * bytes_of_a_row)
    return pa.Array.from_buffers(pa.binary(), rows, [None, offsets.buffers()[1], pa.py_buffer(np.zeros(rows * bytes_of_a_row, np.uint8))])


def test_a_chunk_whose_predictions_no_column_could_hold_is_an_error_with_a_number_that_fits() -> None:
    """C41: twice 1.25 GiB in one chunk: column, partition and first row are told, and chunks of half the rows would do; each alone goes out as it is."""
    small, large = (pa.RecordBatch.from_pydict({"id": range(rows)}) for rows in (3, 8))
    regroup = Regroup([], pa.schema([("y", pa.binary())]), partition=5)
    batches = rebatch(iter([small, large]), ["id"], 3, regroup, lambda *_: None)
    assert [batch.data.num_rows for batch in batches] == [3, 3, 3, 2]
    assert sum(chunk.num_rows for chunk in regroup.add([huge(3, 2**29)])) == 3
    assert list(regroup.add([huge(4, 5 * 2**26)])) == []
    with pytest.raises(OutputError, match=r"2\.5 GiB .* 8 rows .* column 'y', partition 5, row 3: .*max_records_per_batch=\d\)"):
        list(regroup.add([huge(4, 5 * 2**26)]))


@given(
    sizes=st.lists(st.integers(0, 9), max_size=8),
    wanted=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    nulls=st.frozensets(st.integers(0, 60)),
    lag=st.integers(0, 3),
)
def test_a_size_that_changes_loses_no_row(sizes: list[int], wanted: list[int], nulls: frozenset[int], lag: int) -> None:
    """Larger or smaller from cut to cut, whatever waits by then: every row once, in order, with the chunks' own borders."""
    chunks = chunks_of(sizes, nulls)
    turns = cycle(wanted)
    batches, out = run(chunks, lambda: next(turns), lag=lag)
    assert [chunk.num_rows for chunk in out] == sizes
    assert [row["y"] for chunk in out for row in chunk.to_pylist()] == [None if i in nulls else 2 * i for i in range(sum(sizes))]
    assert max(batches, default=0) <= max(wanted)
