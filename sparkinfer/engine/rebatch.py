"""Chunks to model batches across chunk borders, and predictions back to the chunks' own borders.

Runs on: worker.

Invariant: every row of every chunk comes out once, in order, in a chunk of the size that came in; a row that was not scored
comes out with nulls. Chunks wait only while their own rows are on the way, and a batch is sent early rather than let them pile
up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from sparkinfer.engine.batch import Batch
from sparkinfer.exceptions import OutputError, Place

__all__ = ["Regroup", "rebatch"]

_MOST_BYTES = 2**31 - 2**20  # of rows that are copied together: a column of text or bytes counts its bytes in 31 bits
_LAG_ROWS = 32_768  # unscored rows that may pass before a short batch is sent: bounds what Regroup holds


@dataclass(frozen=True)
class _Waiting:
    """A chunk whose predictions are not all there."""

    kept: pa.RecordBatch  # without columns it does not know its rows
    rows: int
    scored: np.ndarray | None  # True for each row that goes to the model; None: all do

    @property
    def needs(self) -> int:
        return self.rows if self.scored is None else int(np.count_nonzero(self.scored))


class Regroup:
    """Holds what the model does not see, and puts the predictions beside it.

    ``open`` is called by the thread that reads, ``add`` and ``finish`` by the one that predicts.
    """

    def __init__(self, keep: Sequence[str], outputs: pa.Schema, partition: int | None = None) -> None:
        """Keep the names of the columns that come back, the schema of those that are added, and Spark's partition id, for messages."""
        self._keep = list(keep)
        self._outputs = outputs
        self._partition = partition
        self._given = 0  # rows of the chunks that are out
        self._waiting: deque[_Waiting] = deque()
        self._pieces: deque[list[pa.Array]] = deque()
        self._ready = 0

    def open(self, chunk: pa.RecordBatch, scored: np.ndarray | None) -> None:
        """Announce a chunk, before any batch that holds its rows."""
        self._waiting.append(_Waiting(chunk.select(self._keep), chunk.num_rows, scored))

    def add(self, predictions: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        """Take one batch's predictions (or none) and give the chunks that they complete.

        Raises:
            OutputError: a chunk's predictions are more than Arrow puts into one column.
        """
        if predictions and len(predictions[0]):
            self._pieces.append(predictions)
            self._ready += len(predictions[0])
        while self._waiting and (needs := self._waiting[0].needs) <= self._ready:
            chunk = self._waiting.popleft()
            closed = self._close(chunk, self._take(needs))
            self._given += chunk.rows
            yield closed

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Give the chunks that are left; all their rows must be there."""
        yield from self.add([])
        if self._waiting or self._ready:
            msg = f"{len(self._waiting)} chunks and {self._ready} predictions are left over: rows were lost or made in the loop"
            raise AssertionError(msg)

    def _take(self, rows: int) -> list[pa.Array]:
        taken: list[list[pa.Array]] = []
        self._ready -= rows
        while rows:
            piece = self._pieces.popleft()
            size = len(piece[0])
            if size > rows:
                self._pieces.appendleft([array.slice(rows) for array in piece])
                piece = [array.slice(0, rows) for array in piece]
            taken.append(piece)
            rows -= len(piece[0])
        if not taken:
            return [pa.nulls(0, field.type) for field in self._outputs]
        if len(taken) == 1:
            return taken[0]
        return [self._joined(name, column) for name, column in zip(self._outputs.names, zip(*taken, strict=True), strict=True)]

    def _joined(self, name: str, pieces: Sequence[pa.Array]) -> pa.Array:
        try:
            return pa.concat_arrays(list(pieces))
        except pa.ArrowInvalid as error:  # more items, or bytes, than 31 bits count
            rows, size = sum(map(len, pieces)), max(1, sum(piece.nbytes for piece in pieces))
            fit = max(1, min(rows // 2, rows * _MOST_BYTES // (2 * size)))
            place = Place(column=name, partition=self._partition, row=self._given)
            msg = (
                f"{size / 2**30:.1f} GiB of predictions for a chunk of {rows} rows are more than Arrow holds in one column (2 GiB, or 2**31 items), at "
                f"{place}: have Spark send smaller chunks, by inference_run(max_records_per_batch={fit}) around the action"
            )
            raise OutputError(msg) from error

    def _close(self, chunk: _Waiting, predictions: list[pa.Array]) -> pa.RecordBatch:
        if chunk.scored is not None:
            position = np.cumsum(chunk.scored, dtype=np.int64) - 1
            where = pa.array(position, mask=~chunk.scored)
            predictions = [array.take(where) if len(array) else pa.nulls(chunk.kept.num_rows, array.type) for array in predictions]
        schema = pa.schema([*chunk.kept.schema, *self._outputs])
        return pa.RecordBatch.from_arrays([*chunk.kept.columns, *predictions], schema=schema)


def rebatch(
    chunks: Iterator[pa.RecordBatch],
    columns: Sequence[str],
    batch_size: int | Callable[[], int],
    regroup: Regroup,
    unscored: Callable[[pa.RecordBatch, int], np.ndarray | None],
) -> Iterator[Batch]:
    """Cut chunks into batches of exactly ``batch_size`` rows, carried over chunk borders.

    Where the size shrinks while more rows than that wait, these make one last larger batch.

    A batch within one chunk is a view; one that crosses a border is copied, but where that would be more than Arrow puts into one column
    of bytes it ends at the border. The last batch is shorter. A batch is sent early (or empty, when no row waits) when ``_LAG_ROWS`` rows
    went by since the last one, so that a long run of unscored rows holds back neither rows nor memory.

    Args:
        chunks: of any size, also empty.
        columns: what a batch holds.
        batch_size: rows, at least 1; or what gives them, asked before each cut.
        regroup: is told of every chunk.
        unscored: given a chunk's ``columns`` and the number of its first row in the partition, a mask (True: the model does
            not see this row) or ``None`` if the model sees them all.

    Yields:
        Batches in order.
    """
    waiting: list[tuple[pa.RecordBatch, range | np.ndarray]] = []
    held = 0  # rows in waiting
    held_bytes = 0  # their size, where there are any
    seen = 0  # rows of the partition
    emitted_at = 0  # rows seen when the last batch was sent
    index = 0
    size = batch_size if callable(batch_size) else partial(int, batch_size)
    for chunk in chunks:
        data = chunk.select(list(columns))
        mask = unscored(data, seen)
        rows: range | np.ndarray = range(seen, seen + data.num_rows)
        if mask is not None:
            scored = ~mask
            rows = np.flatnonzero(scored) + seen
            data = data.filter(pa.array(scored))
        regroup.open(chunk, None if mask is None else scored)
        if held and held_bytes + data.slice(0, max(0, size() - held)).nbytes > _MOST_BYTES:
            yield _join(index, waiting)
            index, held, waiting, emitted_at = index + 1, 0, [], seen
        seen += chunk.num_rows
        start = 0
        while held + data.num_rows - start >= (wanted := size()):
            take = max(0, wanted - held)
            if take:
                waiting.append((data.slice(start, take), rows[start : start + take]))
            yield _join(index, waiting)
            index, held, waiting, emitted_at = index + 1, 0, [], seen
            start += take
        if start < data.num_rows:
            waiting.append((data.slice(start), rows[start:]))
            held_bytes = data.slice(start).nbytes + (held_bytes if held else 0)
            held += data.num_rows - start
        if seen - emitted_at > max(_LAG_ROWS, 16 * wanted):
            yield _join(index, waiting or [(data.slice(0, 0), range(0))])
            index, held, waiting, emitted_at = index + 1, 0, [], seen
    if held:
        yield _join(index, waiting)


def _join(index: int, pieces: list[tuple[pa.RecordBatch, range | np.ndarray]]) -> Batch:
    if len(pieces) == 1:
        return Batch(index, *pieces[0])
    table = pa.Table.from_batches([data for data, _ in pieces]).combine_chunks()
    return Batch(index, table.to_batches()[0], _join_rows([rows for _, rows in pieces]))


def _join_rows(pieces: list[range | np.ndarray]) -> range | np.ndarray:
    first, last = pieces[0], pieces[-1]
    if all(isinstance(rows, range) for rows in pieces) and last[-1] - first[0] + 1 == sum(map(len, pieces)):
        return range(first[0], last[-1] + 1)
    return np.concatenate([np.asarray(rows) for rows in pieces])
