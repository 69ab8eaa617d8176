"""What a row costs at each step, and how fast a pipeline of such steps is with other settings.

Runs on: driver (standard library only).

Invariant: the rates follow from the costs and the settings by the loop's own structure and nothing else::

    num_workers=0, prefetch_batches=0   source + preprocess + transfer + model        in turn, on one thread
    num_workers=0                       max(source + preprocess + transfer, model)    the read-ahead thread beside the task's own
    num_workers=n                       max(source, preprocess / n, transfer, model)  n loader processes between the two

and no rate is above what the cores can compute. On Spark the source runs in another process, beside all of these. A partition takes longer than its rows
at that pace: its first batch hides behind nothing, its last one hides nothing, and a short batch is a whole call.

What a batch costs beside its rows, on its way to the model and inside it, is shared by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

__all__ = ["Costs", "Layout", "Shape", "job_seconds"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The settings that the arithmetic knows.

    Attributes:
        batch_size: rows of a model call.
        num_workers: loader processes.
        prefetch_batches: batches ahead of the model.
    """

    batch_size: int
    num_workers: int
    prefetch_batches: int


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that one task slot needs.

    Attributes:
        source: for a row, to read it as the user's plan does.
        preprocess: for a row, to decode, preprocess and collate it in one process.
        transfer: for a row, to bring it to the device.
        call: for a model call, whatever its rows.
        row: for a row, inside the model.
        postprocess: for a row.
        encode: for a row, to make Arrow of the answers and hand them over.
        other_threads: what the model's time would be with another number of threads, as a share of what it is; empty where it is not known.
        batch: for each batch on its way to the model, whatever its rows; 0 where it is not told apart from what the rows cost.
        load: for a Python worker to load the model, with what its first call takes beyond the others.
        busy: cores that compute while the steps run in turn, over the cores that a slot has; 0 where it is not known.
        apart: whether the source runs in another process, as Spark's does.
    """

    source: float
    preprocess: float
    transfer: float
    call: float
    row: float
    postprocess: float = 0.0
    encode: float = 0.0
    other_threads: tuple[tuple[int, float], ...] = ()
    batch: float = 0.0
    load: float = 0.0
    busy: float = 0.0
    apart: bool = False

    def model_side(self, shape: Shape) -> float:
        """Give the seconds for a row of the task's own thread."""
        return self.call / shape.batch_size + self.row + self.postprocess + self.encode

    def input_side(self, shape: Shape) -> float:
        """Give the seconds for a row of what prepares the input, side by side where it is."""
        batch = self.batch / shape.batch_size
        if shape.num_workers:
            return max(self.source, self.preprocess / shape.num_workers, self.transfer) + batch
        prepared = self.preprocess + self.transfer + batch
        return max(self.source, prepared) if self.apart else self.source + prepared

    def seconds_per_row(self, shape: Shape) -> float:
        """Give the seconds for a row of the whole pipeline at its steady pace."""
        if not _in_turn(shape):
            return max(self.input_side(shape), self.model_side(shape), self.busy * self.in_turn(shape))
        return max(self.source, self.in_turn(shape) - self.source) if self.apart else self.in_turn(shape)

    def in_turn(self, shape: Shape) -> float:
        """Give the seconds for a row of all steps, one after the other."""
        return self.source + self.preprocess + self.transfer + self.batch / shape.batch_size + self.model_side(shape)

    def partition_seconds(self, rows: int, shape: Shape, chunk_rows: int = 0) -> float:
        """Give the seconds of a partition of so many rows, without the model's load.

        Args:
            rows: of the partition.
            shape: the settings.
            chunk_rows: that come at once from a source in another process; 0 for as many as a batch has.

        Example:
            >>> costs = Costs(source=0.25, preprocess=0.5, transfer=0.0, call=1.0, row=1.0)
            >>> ahead = Shape(batch_size=4, num_workers=0, prefetch_batches=2)
            >>> costs.partition_seconds(4, ahead), costs.partition_seconds(6, ahead)  # 3 + 5, and then 2 rows: a call and two rows more
            (8.0, 11.0)
        """
        if not rows:
            return 0.0
        many = shape.num_workers or self.apart
        took = self._side_by_side(rows, shape, chunk_rows) if many else self._by_one_thread(rows, shape)
        return took if _in_turn(shape) else max(took, rows * self.busy * self.in_turn(shape))

    def _by_one_thread(self, rows: int, shape: Shape) -> float:
        """Take the longest way through two steps in a row: it goes over to the model after the first, the last full or the last batch."""
        first, last = _ends(rows, shape)
        if _in_turn(shape):
            return rows * self.source + self._prepared(rows, shape) + self._model(rows, shape)
        ways = [
            first * self.source + self._prepared(first, shape) + self._model(rows, shape),
            rows * self.source + self._prepared(rows, shape) + self._model(last, shape),
        ]
        if rows > first:
            full = rows - last
            ways.append(full * self.source + self._prepared(full, shape) + self._model(first, shape) + self._model(last, shape))
        return max(ways)

    def _side_by_side(self, rows: int, shape: Shape, chunk_rows: int) -> float:
        """Take the first batch through all steps, and the others at the pace of the slowest."""
        first, _ = _ends(rows, shape)
        read = min(rows, max(first, chunk_rows))
        begun = read * self.source + self._prepared(first, shape) + self._model(first, shape)
        model = self._model(rows, shape) - self._model(first, shape)
        if shape.num_workers:
            others = _batches(rows, shape) - 1
            waves = others // shape.num_workers * first * self.preprocess
            steps = [(rows - first) * self.transfer + others * self.batch, waves, model]
        else:
            prepared = self._prepared(rows, shape) - self._prepared(first, shape)
            steps = [prepared + model] if _in_turn(shape) else [prepared, model]
        return begun + max((rows - read) * self.source, *steps)

    def _prepared(self, rows: int, shape: Shape) -> float:
        """Give the seconds between the source and the model."""
        return _batches(rows, shape) * self.batch + rows * (self.preprocess + self.transfer)

    def _model(self, rows: int, shape: Shape) -> float:
        """Give the seconds of the task's own thread."""
        return _batches(rows, shape) * self.call + rows * (self.row + self.postprocess + self.encode)

    def with_threads(self, threads: int) -> Costs:
        """Give the costs with another number of threads, of those that were measured."""
        share = dict(self.other_threads)[threads]
        return replace(self, call=self.call * share, row=self.row * share, other_threads=(), busy=0.0)  # what they compute is not known


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The whole job: rows of each partition, and the slots that work through them.

    Attributes:
        rows: of each partition, in Spark's order; empty where it is not known.
        slots: partitions at once.
        loads_each: whether every partition loads the model, and not every worker once.
        chunk_rows: that come at once; 0 where it is not known.
    """

    rows: tuple[int, ...] = ()
    slots: int = 1
    loads_each: bool = False
    chunk_rows: int = 0

    def evened(self) -> Layout:
        """Give the same rows in partitions of one size, three for each slot at least."""
        wanted = max(3 * self.slots, len(self.rows))
        total = sum(self.rows)
        return replace(self, rows=tuple(total * (i + 1) // wanted - total * i // wanted for i in range(wanted)))


def job_seconds(layout: Layout, partition: Callable[[int], float], load: float) -> float:
    """Give how long the job takes: each slot takes the next partition as soon as it is free.

    Args:
        layout: of the job.
        partition: gives the seconds of a partition, by its rows.
        load: seconds of a model's load.

    Example:
        >>> job_seconds(Layout(rows=(100, 100, 800), slots=2), lambda rows: rows / 100, load=0.0)
        9.0
    """
    return max(_slots_done(layout, partition, load), default=0.0)


def _in_turn(shape: Shape) -> bool:
    return not shape.num_workers and not shape.prefetch_batches


def _batches(rows: int, shape: Shape) -> int:
    return -(-rows // shape.batch_size)


def _ends(rows: int, shape: Shape) -> tuple[int, int]:
    """Give the rows of the first and of the last batch."""
    return min(rows, shape.batch_size), rows - (_batches(rows, shape) - 1) * shape.batch_size


def _slots_done(layout: Layout, partition: Callable[[int], float], load: float) -> Sequence[float]:
    done = [0.0 if layout.loads_each else load] * min(layout.slots, len(layout.rows))
    heapify(done)
    for rows in layout.rows:
        heapreplace(done, done[0] + partition(rows) + (load if layout.loads_each else 0.0))
    return done
