"""What each next change would give, by the costs and the loop's structure.

Runs on: driver (standard library only).

Invariant: a gain's lower end takes the measured loss of overlap to stay as it is, its upper end takes it to vanish; both with the spread of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sparkinfer.analysis.costs import Costs, Layout, Shape, job_seconds
from sparkinfer.analysis.diagnosis import Change
from sparkinfer.analysis.intervals import Interval, of_positive

__all__ = ["Limits", "Measured", "changes_of"]

_WORKERS = (1, 2, 3, 4, 6, 8, 12, 16)
_TIMES = (2, 4, 8, 16, 32)
_ENOUGH = 0.95  # of what the best value gives: the smallest such value is advised
_UNKNOWN = 0.05  # of every prediction: a steady machine's rates come back so well
_BETWEEN_PROCESSES = 0.2  # what loader processes may lose on the way between them, and at a partition's beginning and end
_BEGINNINGS = 0.1  # what more partitions or another thread may lose beyond what is known of their beginnings
_LARGEST_BATCH = 4096
_NOTHING = 1.02
_TWICE = 2.0  # the most that anything gives which is twice as fast; what is measured of it is as exact as every rate

Rate = Callable[[Costs], float]  # seconds of the job, or of a row, by a round's costs


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far advice may go.

    Attributes:
        num_workers: loader processes of one task.
        batch_size: rows; 0 where the model's batch size is fixed.
    """

    num_workers: int = 16
    batch_size: int = _LARGEST_BATCH


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The rounds, as costs, and how long everything took in each.

    Attributes:
        costs: of each round.
        slower: how many times the seconds that the costs say everything took, in each round.
        shape: the settings that they were measured with.
        layout: the whole job's.
    """

    costs: Sequence[Costs]
    slower: Sequence[float]
    shape: Shape
    layout: Layout

    def seconds(self, costs: Costs, shape: Shape | None = None, layout: Layout | None = None) -> float:
        """Predict the job's seconds; those of a row where nothing is known of the job."""
        shape, layout = shape or self.shape, layout or self.layout
        if not sum(layout.rows):
            return costs.seconds_per_row(shape)
        return job_seconds(layout, lambda rows: costs.partition_seconds(rows, shape, layout.chunk_rows), costs.load)

    def took(self, position: int) -> float:
        """Give the job's seconds at the pace that was measured in a round."""
        costs = self.costs[position]
        if not sum(self.layout.rows):
            return self.slower[position] * costs.seconds_per_row(self.shape)
        slower, chunk_rows = self.slower[position], self.layout.chunk_rows
        return job_seconds(self.layout, lambda rows: slower * costs.partition_seconds(rows, self.shape, chunk_rows), costs.load)

    def gain(self, after: Callable[[Costs], float], *, lost: float = 0.0) -> Interval:
        """Compare the job's seconds after a change, by a round's costs, with those before.

        Args:
            after: gives the seconds.
            lost: the share of the gain's lower end that the change itself may cost.
        """
        same = of_positive([self.seconds(costs) / after(costs) for costs in self.costs])
        gone = of_positive([self.took(position) / after(costs) for position, costs in enumerate(self.costs)])
        if same.middle < _NOTHING:  # the change is none to how well the parts overlap
            gone = same
        ends = sorted((same.middle, gone.middle))
        low = min(ends[0], max(same.low, ends[0] / 2)) * (1 - _UNKNOWN - lost)  # few rounds widen an interval beyond sense
        high = max(ends[1], min(max(gone.high, same.high), ends[1] * 2)) * (1 + _UNKNOWN)
        return Interval(low, same.middle, high)


def changes_of(measured: Measured, limits: Limits) -> list[Change]:
    """Give one change for each setting and each part, the most to gain first."""
    found = [
        *_prefetch(measured),
        *_workers(measured, limits),
        *_batch_size(measured, limits),
        *_threads(measured),
        *_loads(measured),
        *_partitions(measured),
        *_faster(measured),
    ]
    return sorted(found, key=lambda change: change.gain.middle, reverse=True)


def _least_that_is_enough(measured: Measured, shapes: Sequence[Shape]) -> Shape:
    """Choose the first that gives nearly what the best one gives."""
    middle = measured.costs[len(measured.costs) // 2]
    seconds = [measured.seconds(middle, shape) for shape in shapes]
    return next(shape for shape, took in zip(shapes, seconds, strict=True) if took <= min(seconds) / _ENOUGH)


def _workers(measured: Measured, limits: Limits) -> Iterator[Change]:
    now = measured.shape
    tried = [replace(now, num_workers=count) for count in _WORKERS if now.num_workers < count <= limits.num_workers]
    if not tried:
        return
    best = _least_that_is_enough(measured, tried)
    gain = measured.gain(lambda costs: measured.seconds(costs, best), lost=_BETWEEN_PROCESSES)
    why = "Loader processes preprocess beside reading and the model; each that computes needs a core of its own."
    yield Change(setting="num_workers", value=best.num_workers, gain=gain, why=why)


def _batch_size(measured: Measured, limits: Limits) -> Iterator[Change]:
    now = measured.shape
    tried = [replace(now, batch_size=now.batch_size * times) for times in _TIMES if now.batch_size * times <= limits.batch_size]
    if not tried:
        return
    best = _least_that_is_enough(measured, tried)
    share = measured.costs[0].call / (measured.costs[0].call + measured.costs[0].row * now.batch_size or 1.0)
    why = f"{share:.0%} of a call of {now.batch_size} rows is the call itself."
    yield Change(setting="batch_size", value=best.batch_size, gain=measured.gain(lambda costs: measured.seconds(costs, best)), why=why)


def _prefetch(measured: Measured) -> Iterator[Change]:
    if measured.shape.prefetch_batches or measured.shape.num_workers:
        return
    ahead = replace(measured.shape, prefetch_batches=2)
    gain = measured.gain(lambda costs: measured.seconds(costs, ahead), lost=_BEGINNINGS)
    yield Change(
        setting="prefetch_batches", value=2, gain=gain, why="The next batch is then made ready while the model is at work on this one."
    )


def _threads(measured: Measured) -> Iterator[Change]:
    tried = dict(measured.costs[0].other_threads)
    if not tried:
        return
    best = min(tried, key=lambda threads: tried[threads])
    gain = measured.gain(lambda costs: measured.seconds(costs.with_threads(best)))
    yield Change(setting="threads", value=best, gain=gain, why=f"The model then takes {tried[best]:.0%} of its time.")


def _loads(measured: Measured) -> Iterator[Change]:
    layout = measured.layout
    if not layout.loads_each or not layout.rows:
        return
    kept = replace(layout, loads_each=False)
    gain = measured.gain(lambda costs: measured.seconds(costs, layout=kept))
    yield Change(setting="models_per_worker", value=3, gain=gain, why="Every partition now loads the model anew.")


def _partitions(measured: Measured) -> Iterator[Change]:
    layout = measured.layout
    if not layout.rows or layout.slots < 2:
        return
    even = layout.evened()
    gain = measured.gain(lambda costs: measured.seconds(costs, layout=even), lost=_BEGINNINGS)
    why = f"The largest of {len(layout.rows)} partitions has {max(layout.rows):,} of {sum(layout.rows):,} rows."
    yield Change(setting="partitions", value=f"repartition({len(even.rows)}) before predict", gain=gain, why=why)


def _faster(measured: Measured) -> Iterator[Change]:
    """What a part would give that no setting makes faster: twice as fast, to compare."""

    def twice(name: str) -> Callable[[Costs], float]:
        def after(costs: Costs) -> float:
            if name == "model":
                return measured.seconds(replace(costs, call=costs.call / 2, row=costs.row / 2))
            return measured.seconds(replace(costs, **{name: getattr(costs, name) / 2}))

        return after

    why = {
        "source": "The rows' own plan upstream: fewer columns, a cheaper join or UDF, more tasks for it.",
        "preprocess": "The function itself: vectorised as preprocess_batch, or done in Spark SQL.",
        "transfer": "Fewer bytes for the device: pin_memory, uint8 inputs that the model scales itself.",
        "model": 'The model itself: optimize="auto" on CPUs, a lower precision on cards.',
        "postprocess": "The function itself, vectorised, or done in Spark SQL.",
        "load": "The load itself: a smaller file, or a session whose workers live on.",
    }
    for name, said in why.items():
        gain = measured.gain(twice(name))
        gain = replace(gain, low=min(gain.low, _TWICE), high=min(gain.high, (1 + _UNKNOWN) * _TWICE))
        if name == "model" or gain.middle > _NOTHING:
            yield Change(setting=name, value="twice as fast", gain=gain, why=said)
