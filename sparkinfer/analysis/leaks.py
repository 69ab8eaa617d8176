"""Does memory grow, where, and how long will it last?

Runs on: driver (standard library only).

Invariant: growth is told only where it is sure (Kendall's test, 99 %), goes on to the end of what was seen, and is large enough to matter;
``judge_memory`` never raises, whatever was recorded.

Growth within tasks is looked for in each partition's own samples, growth between tasks in what a Python worker holds when one partition after
another begins. Trends of several partitions are added up as those of seasons are (Hirsch and others, 1982): no partition is compared with another.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sparkinfer.metrics import PartitionMetrics

__all__ = ["MemoryVerdict", "Trend", "judge_memory", "trend"]

_SURE = 0.99
_LEAST_SAMPLES = 8
_LEAST_TASKS = 5
_LEAST_BYTES = 1_000_000  # of growth over what was seen: below it is the allocators' to and fro
_LEAST_PROBE_BYTES = 200_000
_GOES_ON = 0.25  # of the whole slope must be left in the last half: a cache that has filled up is no leak
_Z = NormalDist().inv_cdf(0.975)

Kind = Literal["steady", "within tasks", "between tasks", "inconclusive"]
Series = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Trend:
    """A trend of several series: Sen's slope, and Kendall's test whether there is one.

    Attributes:
        slope: the median of the slopes between any two points of a series.
        low: the lower end of its 95 % interval.
        high: the upper end.
        confidence: that it rises, 0 to 1.
    """

    slope: float
    low: float
    high: float
    confidence: float


def trend(series: Iterable[Series]) -> Trend | None:
    """Find the common trend of several series; ``None`` where none has two points.

    Example:
        >>> rising = trend([[(x, 5.0 * x) for x in range(12)], [(x, 100 + 5.0 * x) for x in range(12)]])
        >>> rising.slope, rising.low, round(rising.confidence, 4)
        (5.0, 5.0, 1.0)
    """
    slopes: list[float] = []
    score, variance = 0, 0.0
    for points in series:
        pairs = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 != x1]
        slopes += pairs
        score += sum((slope > 0) - (slope < 0) for slope in pairs)
        number = len(points)
        variance += number * (number - 1) * (2 * number + 5) / 18
    if not slopes or variance <= 0:
        return None
    slopes.sort()
    deviation = math.sqrt(variance)
    reach = _Z * deviation
    low = slopes[max(0, round((len(slopes) - reach) / 2))]
    high = slopes[min(len(slopes) - 1, round((len(slopes) + reach) / 2))]
    standard = (score - (score > 0) + (score < 0)) / deviation
    return Trend(median(slopes), low, high, NormalDist().cdf(standard))


@dataclass(frozen=True)
class MemoryVerdict:
    """What became of the Python workers' memory.

    Attributes:
        kind: ``steady``; ``within tasks``: it grows from batch to batch; ``between tasks``: each task leaves something behind;
            ``inconclusive``: too little was seen.
        where: ``preprocess`` or ``model``, where a profile has told the two apart; ``None`` elsewhere.
        bytes_per_step: growth a batch, or a task.
        interval: its 95 % interval.
        confidence: that memory grows, 0 to 1.
        rows_left: rows until a worker that goes on so has taken all that its host has left; ``None`` where nothing grows, or nobody knows.
    """

    kind: Kind
    where: str | None = None
    bytes_per_step: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    rows_left: int | None = None

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.kind == "inconclusive":
            return f"memory: too little was seen to tell (at least {_LEAST_SAMPLES} samples of a partition, or {_LEAST_TASKS} tasks of a worker, are needed)"
        if self.kind == "steady" or self.bytes_per_step is None or self.interval is None:
            return "memory: steady"
        step = "batch" if self.kind == "within tasks" else "task"
        low, high = (f"{end / 1e6:.2f}" for end in self.interval)
        left = f"; some {self.rows_left:,} rows more and the host's memory is full" if self.rows_left is not None else ""
        place = f" in {self.where}" if self.where else ""
        return f"memory: a leak {self.kind}{place}: {self.bytes_per_step / 1e6:.2f} MB a {step} ({low} to {high}), {(self.confidence or 0) * 100:.1f} % sure{left}"


def judge_memory(records: Sequence[PartitionMetrics]) -> MemoryVerdict:
    """Judge the memory of a run's partitions.

    Args:
        records: of one action; several of one Python worker (host and process id) tell of growth between tasks.
    """
    probed = _probed(records)
    if probed is not None:
        return probed
    inside = [_settled(record.memory) for record in records if len(record.memory) >= _LEAST_SAMPLES]
    within = _growth(inside, _LEAST_BYTES)
    if within is not None:
        rows = sum(record.rows for record in records) / max(1, sum(record.batches for record in records))
        return _verdict("within tasks", None, within, records, rows)
    tasks = [series for series in _by_worker(records) if len(series) >= _LEAST_TASKS]
    between = _growth(tasks, _LEAST_BYTES)
    if between is not None:
        return _verdict("between tasks", None, between, records, sum(record.rows for record in records) / len(records))
    return MemoryVerdict("steady" if inside or tasks else "inconclusive")


def _probed(records: Sequence[PartitionMetrics]) -> MemoryVerdict | None:
    """Look at the calls that a profile repeated: what grows with the same rows is told apart by which half was repeated."""
    found: dict[str, Trend] = {}
    for half in ("preprocess", "model"):
        series = [
            _settled(list(enumerate(record.profile.probes[half])))
            for record in records
            if record.profile is not None and len(record.profile.probes.get(half, ())) >= _LEAST_SAMPLES
        ]
        grown = _growth(series, _LEAST_PROBE_BYTES)
        if grown is not None:
            found[half] = grown
    if not found:
        return None
    worst = max(found, key=lambda half: found[half].slope)
    rows = sum(record.rows for record in records) / max(1, sum(record.batches for record in records))
    return _verdict("within tasks", worst, found[worst], records, rows)


def _growth(series: Sequence[Series], least: float) -> Trend | None:
    """Give the trend if memory grows for sure, goes on growing, and by enough to matter."""
    whole = trend(series)
    if whole is None or whole.confidence < _SURE or whole.low <= 0:
        return None
    span = max(points[-1][0] - points[0][0] for points in series)
    if whole.slope * span < least:
        return None
    last = trend([points[len(points) // 2 :] for points in series])
    return whole if last is not None and last.slope >= _GOES_ON * whole.slope else None


def _settled(points: Iterable[tuple[float, float]]) -> Series:
    """Leave the first quarter out: allocators, caches and the frameworks' own pools fill up."""
    every = list(points)
    return every[len(every) // 4 :]


def _by_worker(records: Sequence[PartitionMetrics]) -> list[Series]:
    """Give what each Python worker held when its tasks began, but for the first, which loads the model."""
    workers: dict[tuple[str, int], list[PartitionMetrics]] = defaultdict(list)
    for record in records:
        if record.memory:
            workers[record.host, record.pid].append(record)
    found: list[Series] = []
    for tasks in workers.values():
        ordered = sorted(tasks, key=lambda record: record.started_unix)
        found.append([(float(number), float(task.memory[0][1])) for number, task in enumerate(ordered)][1:])
    return found


def _verdict(kind: Kind, where: str | None, grown: Trend, records: Sequence[PartitionMetrics], rows_a_step: float) -> MemoryVerdict:
    left = [record.memory_left_bytes for record in records if record.memory_left_bytes is not None]
    workers = len({(record.host, record.pid) for record in records})
    steps = min(left) / workers / grown.slope if left and grown.slope > 0 else None  # all of them draw on the same host's, at the worst
    rows = round(steps * rows_a_step * workers) if steps is not None and math.isfinite(steps) and rows_a_step else None
    return MemoryVerdict(kind, where, grown.slope, (grown.low, grown.high), grown.confidence, rows)
