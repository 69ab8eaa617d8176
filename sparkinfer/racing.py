"""Settings side by side: each takes its turn over the sample, round after round, and what is clearly slower drops out.

Runs on: driver.

Invariant: the start takes part in every round, so that gains are paired; after the time is up, only what is needed for a choice still runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sparkinfer.analysis.costs import Layout, job_seconds
from sparkinfer.analysis.intervals import Interval, of_positive
from sparkinfer.analysis.memory import MemoryFit, fitted
from sparkinfer.analysis.tuning import Tried

if TYPE_CHECKING:
    from sparkinfer.analysis.rounds import Arm
    from sparkinfer.config import InferenceConfig

__all__ = [
    "LEAST_ROUNDS",
    "ROUNDS",
    "WORTH_A_SHUFFLE",
    "Job",
    "Memory",
    "Runner",
    "gain",
    "leader",
    "more_by_partitions",
    "race",
    "try_partitions",
]

ROUNDS = 4  # of those that are left
LEAST_ROUNDS = 2  # before anything is chosen
_HOPELESS = (1.3, 1.15)  # times the leader's seconds: after one round, and after more
_IN_FLIGHT = 3  # batches that a task holds beside those that wait: one that is read, one at the model, one on its way out
WORTH_A_SHUFFLE = 1.15  # times the rows/s that other partitions should give before they are tried
_WORTH_IT = 1.05  # times what was measured: a shuffle is a change that people see
_ACTION = 1.0  # seconds that an action takes beside its rows


class Everything(Protocol):
    """What runs the pipeline as it is over some rows."""

    def everything(self, config: InferenceConfig) -> Arm:
        """Run it."""
        ...


@runtime_checkable
class Job(Protocol):
    """What can run the whole job, in partitions of its own or others."""

    slots: int
    job_rows: tuple[int, ...]

    def whole(self, config: InferenceConfig, partitions: int | None) -> float:
        """Run all rows, and give the seconds."""
        ...


@dataclass(eq=False)
class Runner:
    """Settings in the race.

    Attributes:
        overrides: what is other than at the start.
        config: all of them.
        predicted: times the start's rows/s; ``None`` where the costs do not tell.
        arms: what runs them.
        took: seconds for a row, by round; the start's of the same round beside it.
        ended: why it runs no more.
    """

    overrides: Mapping[str, Any]
    config: InferenceConfig
    predicted: float | None
    arms: Everything
    took: list[float] = field(default_factory=list)
    ended: str = ""

    @property
    def median(self) -> float:
        """Seconds for a row."""
        return sorted(self.took)[len(self.took) // 2]


@dataclass
class Memory:
    """What the tasks of each batch size needed, and what they may need.

    Attributes:
        limit: bytes of a task's process, if there is one.
        host: the largest resident size, by the rows of a batch.
        device: the device allocator's peak, likewise.
        left: what a process could still take, when it was last told.
    """

    limit: int | None = None
    host: dict[int, int] = field(default_factory=dict)
    device: dict[int, int] = field(default_factory=dict)
    left: int | None = None
    _row_bytes: float = 0.0

    def count(self, rows: int, arm: Arm) -> None:
        """Keep an arm's peaks; arms come by rising batch size, since a process's size rarely falls."""
        for peaks, peak in ((self.host, arm.rss_peak_bytes), (self.device, arm.device_peak_bytes)):
            if peak:
                peaks[rows] = max(peak, peaks.get(rows, 0))
        self.left = arm.memory_left_bytes if arm.memory_left_bytes is not None else self.left
        self._row_bytes = arm.bytes / arm.rows

    def expected(self, config: InferenceConfig) -> float:
        """Give the bytes that settings should need on the host: by the fit, and until there is one by the inputs' own bytes."""
        fit = fitted(self.host)
        if fit is not None:
            return fit.at(config.batch_rows)
        least = min(self.host, default=config.batch_rows)
        return self.host.get(least, 0) + (config.batch_rows - least) * self._row_bytes * (config.prefetch_batches + _IN_FLIGHT)

    @property
    def fits(self) -> tuple[MemoryFit | None, MemoryFit | None]:
        """Host's and device's."""
        return fitted(self.host), fitted(self.device)


def race(runners: Sequence[Runner], until: float, memory: Memory, clock: Callable[[], float], rounds: int = ROUNDS) -> None:
    """Let them run in turn; the first is the start, which only ever raises, the second what should be the fastest.

    Raises:
        SparkInferError: the start cannot be run.
    """
    start = runners[0]
    rising = [start, *sorted(runners[1:], key=lambda runner: runner.config.batch_rows)]
    for number in range(rounds):
        for runner in rising:
            if runner.ended:
                continue
            late = clock() > until
            if late and number == 0 and runner not in runners[:2]:
                runner.ended = "not tried: the time was up"
            elif not late or number == 0 or (number < LEAST_ROUNDS and runner in (start, leader(runners))):
                _step(runner, memory, is_start=runner is start, first=number == 0)
        best = leader(runners).took
        for runner in runners[1:]:
            if not runner.ended and min(runner.took) > _HOPELESS[min(number, 1)] * min(best):
                runner.ended = "too slow"
        if clock() > until and number >= LEAST_ROUNDS - 1:
            return


def leader(runners: Sequence[Runner]) -> Runner:
    """Give the fastest of those that are left, by their best round."""
    return min((runner for runner in runners if runner.took and not runner.ended), key=lambda runner: min(runner.took))


def gain(start: Runner, other: Runner) -> Interval:
    """Compare two round by round."""
    if start is other:
        return Interval(1.0, 1.0, 1.0)
    return of_positive([before / after for before, after in zip(start.took, other.took, strict=False)])


def _step(runner: Runner, memory: Memory, *, is_start: bool, first: bool) -> None:
    config = replace(runner.config, models_per_worker=max(2, runner.config.models_per_worker))
    if memory.limit is not None and first and not is_start and (expected := memory.expected(config)) > memory.limit:
        runner.ended = f"not tried: about {expected / 1e6:,.0f} MB expected, over the limit of {memory.limit / 1e6:,.0f} MB"
        return
    try:
        arm = runner.arms.everything(config)
    except Exception as error:
        if is_start:
            raise
        runner.ended = f"failed: {' '.join(f'{type(error).__name__}: {error}'.split())[:200]}"
        return
    if first:
        memory.count(config.batch_rows, arm)
    if memory.limit is not None and arm.rss_peak_bytes > memory.limit and not is_start:
        runner.ended = "too large"
    runner.took.append(arm.each)


def more_by_partitions(job: Job, config: InferenceConfig) -> float:
    """Give how many times the rows/s even partitions should do, three for each slot: they end together, where few or uneven ones leave slots idle."""
    now = Layout(rows=job.job_rows, slots=job.slots, loads_each=config.models_per_worker == 0)
    if job.slots < 2 or not sum(now.rows):
        return 1.0
    return job_seconds(now, float, 0.0) / job_seconds(now.evened(), float, 0.0)


def try_partitions(job: Job, config: InferenceConfig, each: float, until: float, clock: Callable[[], float]) -> tuple[int, Tried]:
    """Run the whole job in its own partitions and in even ones, where there is the time.

    Args:
        job: runs it.
        config: the settings that were chosen.
        each: seconds of a task slot for a row with them.
        until: when the time is up, by the clock.
        clock: rising seconds.

    Returns:
        How many partitions, and what came of them.
    """
    now = Layout(rows=job.job_rows, slots=job.slots)
    even = now.evened()
    before, after = (job_seconds(layout, lambda rows: each * rows, 0.0) for layout in (now, even))
    partitions = len(even.rows)
    needed = LEAST_ROUNDS * (before + after + 2 * _ACTION)
    told: Mapping[str, Any] = {"partitions": partitions}
    if clock() + needed > until:
        why = f"not tried: the whole job takes about {needed:,.0f} s for it, more than is left"
        return partitions, Tried(overrides=told, predicted=before / after, gain=None, rounds=0, ended=why)
    ratios = [job.whole(config, None) / job.whole(config, partitions) for _ in range(LEAST_ROUNDS)]
    found = of_positive(ratios)
    ended = "chosen" if found.middle >= _WORTH_IT else "measured"
    return partitions, Tried(overrides=told, predicted=before / after, gain=found, rounds=len(ratios), ended=ended)
