"""What ``si.tune`` tried, and what it chose; and which settings are worth a try, by the costs.

Runs on: driver (standard library only; pandas for the table).

Invariant: the start is always among what was tried, and is chosen where nothing is faster than it for sure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkinfer.analysis.costs import Costs, Shape

if TYPE_CHECKING:
    import pandas as pd

    from sparkinfer.analysis.diagnosis import Diagnosis
    from sparkinfer.analysis.intervals import Interval
    from sparkinfer.analysis.memory import MemoryFit
    from sparkinfer.config import InferenceConfig

__all__ = ["Tried", "Tuning", "candidates", "other_chunks"]

_WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
_APART = 4  # times: batches in between do much the same
_A_PROCESS = 0.03  # of the predicted time, that each loader process has to gain: it costs memory and a start
_A_DOUBLING = 0.01  # likewise of a batch twice as large, which costs memory
_SMALL_CHUNK = 2**18  # bytes: below, a chunk is mostly its own cost
_CHUNK = 2**21  # bytes
_LARGE_CHUNK = 2**27  # bytes: above, it is memory
_MANY_ROWS = 1000  # of a chunk: then its own cost is spread thinly, whatever its bytes
_LARGEST_CHUNK = 10_000  # rows: Spark's own default


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One set of settings.

    Attributes:
        overrides: what is other than at the start; empty for the start itself. Beside settings it may have ``partitions`` and ``optimize``.
        predicted: how many times the start's rows/s it was expected to do; ``None`` where it was not by the costs that it was chosen.
        gain: how many times the start's rows/s it did; a 95 % interval of its rounds.
        rounds: that it was measured in.
        ended: ``chosen``, ``measured``, ``too slow`` (stopped early), ``too large`` (over the memory), ``not tried: ...`` or ``failed: ...``.
    """

    overrides: Mapping[str, Any]
    predicted: float | None
    gain: Interval | None
    rounds: int
    ended: str


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What ``si.tune`` found.

    Attributes:
        config: the settings to use: ``predict(..., config=found.config)``.
        overrides: those that are other than at the start.
        gain: how many times the start's rows/s, measured side by side; a 95 % interval.
        rows_per_second: of the chosen settings, on the sample, of all task slots.
        tried: all that was, the start first.
        diagnosis: of the start.
        seconds: that it took.
        remarks: what was left out of account, and why.
        partitions: into how many the data should be cut before ``predict`` (``data.repartition``); ``None``: they are well as they are.
        optimize: what the model should be given as ``optimize=``; ``None``: nothing else than at the start.
        memory: how a task's resident memory grows with the batch; ``None`` where fewer than two sizes ran.
        device_memory: likewise on the device, by its allocator; ``None`` also where the framework does not tell.
        memory_limit: bytes of a task's process: those that were given, or what the machine had left for each.
    """

    config: InferenceConfig
    overrides: Mapping[str, Any]
    gain: Interval
    rows_per_second: float
    tried: tuple[Tried, ...]
    diagnosis: Diagnosis
    seconds: float
    remarks: tuple[str, ...] = field(default=())
    partitions: int | None = None
    optimize: str | None = None
    memory: MemoryFit | None = None
    device_memory: MemoryFit | None = None
    memory_limit: int | None = None

    @property
    def largest_batch(self) -> int | None:
        """Rows of the largest batch that fits into a task's memory, by the fit; ``None`` where that is not known."""
        return None if self.memory is None or self.memory_limit is None else self.memory.largest_batch(self.memory_limit)

    @property
    def chosen(self) -> dict[str, Any]:
        """All that is other than at the start: settings, and ``partitions`` and ``optimize`` where they are."""
        others = {"partitions": self.partitions, "optimize": self.optimize}
        return {**self.overrides, **{name: value for name, value in others.items() if value is not None}}

    @property
    def table(self) -> pd.DataFrame:
        """All that was tried, a row each."""
        import pandas as pd  # noqa: PLC0415 - most are read as text

        return pd.DataFrame(
            [
                {
                    "settings": _said(one.overrides),
                    "predicted": one.predicted,
                    "gain": one.gain.middle if one.gain else None,
                    "gain_low": one.gain.low if one.gain else None,
                    "gain_high": one.gain.high if one.gain else None,
                    "rounds": one.rounds,
                    "ended": one.ended,
                }
                for one in self.tried
            ]
        )

    def __str__(self) -> str:
        """Give it as lines of text."""
        told = f"{_said(self.chosen)}: {self.gain.low:.2f} to {self.gain.high:.2f} times the rows/s of the start"
        lines = [f"{told}, {self.rows_per_second:,.0f} rows/s on the sample; {len(self.tried)} settings tried in {self.seconds:.0f} s"]
        for one in self.tried:
            gain = f"{one.gain.middle:.2f}" if one.gain else "-"
            lines.append(f"  {_said(one.overrides):<50} {gain:>6}   {one.rounds} rounds, {one.ended}")
        lines += self._memory_told()
        return "\n".join([*lines, *(f"remark: {remark}" for remark in self.remarks)])

    def _memory_told(self) -> list[str]:
        told = [f"memory of a task: {self.memory}"] if self.memory is not None else []
        if self.largest_batch is not None and self.memory_limit is not None:
            told.append(f"  the largest batch within {self.memory_limit / 1e6:,.0f} MB: {self.largest_batch:,} rows, by that line")
        return [*told, *([f"memory on the device: {self.device_memory}"] if self.device_memory is not None else [])]

    def save(self, path: str | Path) -> Path:
        """Write the settings as the ``config`` section of a job file; the number of partitions, where there is one, as that of ``source``.

        Returns:
            Where it is.
        """
        target = Path(path)
        lines = [f"  {name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in self.overrides.items()]
        lines = ["config:", *lines] if lines else ["config: {}"]
        if self.partitions is not None:
            lines += ["source:", f"  repartition: {self.partitions}"]
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return target


def _said(overrides: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in overrides.items()) or "as it was"


def candidates(
    costs: Costs, start: Shape, threads: Sequence[int], *, most: int, most_workers: int, most_rows: int
) -> list[tuple[dict[str, Any], float]]:
    """Give the settings that the costs say are the fastest, with how many times the start's rows/s they should do.

    Args:
        costs: of the start.
        start: its settings.
        threads: numbers of threads that were timed.
        most: settings to give.
        most_workers: loader processes, at most.
        most_rows: of a batch, at most.
    """
    now = costs.seconds_per_row(start)
    found: list[tuple[float, dict[str, Any]]] = []
    batches = [start.batch_size]
    while 2 * batches[-1] <= most_rows:
        batches.append(2 * batches[-1])
    for batch, workers, count in product(batches, _WORKERS, (None, *threads)):
        if workers > max(most_workers, start.num_workers):
            continue
        ahead = max(2, start.prefetch_batches, workers)
        shape = Shape(batch_size=batch, num_workers=workers, prefetch_batches=ahead)
        took = (costs if count is None else costs.with_threads(count)).seconds_per_row(shape)
        settings = {"batch_size": batch, "num_workers": workers, "prefetch_batches": ahead}
        changed = {name: value for name, value in settings.items() if value != getattr(start, name)}
        if count is not None:
            changed["threads"] = count
        larger = _A_DOUBLING * batches.index(batch)
        found.append((took * (1 + _A_PROCESS * workers + larger), changed))
    found.sort(key=lambda one: one[0])
    chosen: list[tuple[dict[str, Any], float]] = []
    for took, changed in found:
        if changed and took < now * 1.05 and all(_differs(changed, other, start) for other, _ in chosen):
            chosen.append((changed, now / took))
    return _with_the_starts_processes(chosen, most)


def _with_the_starts_processes(chosen: list[tuple[dict[str, Any], float]], most: int) -> list[tuple[dict[str, Any], float]]:
    """Cut to the first few, the best without further loader processes among them: what these cost on busy cores, the costs do not tell."""
    first = chosen[:most]
    if any("num_workers" not in changed for changed, _ in first):
        return first
    without = next((one for one in chosen if "num_workers" not in one[0]), None)
    return first if without is None else [*first[:-1], without]


def _differs(one: Mapping[str, Any], other: Mapping[str, Any], start: Shape) -> bool:
    """Tell settings apart that are worth a try each: other loader processes, other threads, or batches that differ four times."""

    def of(changed: Mapping[str, Any], name: str) -> Any:
        return changed.get(name, getattr(start, name, None))

    batches = of(one, "batch_size"), of(other, "batch_size")
    far = max(batches) >= _APART * min(batches)
    return far or any(of(one, name) != of(other, name) for name in ("num_workers", "threads"))


def other_chunks(chunk_rows: int, row_bytes: float) -> int | None:
    """Give the rows that chunks had better have: where they are many and tiny, or so large that they are memory; ``None`` where they are well as they are.

    Args:
        chunk_rows: of a chunk, at most, as it is.
        row_bytes: of a row on its way.

    Example:
        >>> other_chunks(20, 100.0), other_chunks(10_000, 500_000.0), other_chunks(10_000, 100.0)
        (10000, 4, None)
    """
    size = chunk_rows * row_bytes
    wanted = max(1, min(_LARGEST_CHUNK, int(_CHUNK / max(row_bytes, 1e-9))))
    tiny = chunk_rows < _MANY_ROWS and size < _SMALL_CHUNK and wanted >= _APART * chunk_rows
    return wanted if tiny or size > _LARGE_CHUNK else None
