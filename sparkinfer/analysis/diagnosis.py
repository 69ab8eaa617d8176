"""A diagnosis as a value: what each part could do, what holds the whole back, and what each change would give.

Runs on: driver (standard library only).

Invariant: every gain has an interval; what the measurements cannot tell apart is said to be ``inconclusive``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkinfer.analysis.costs import Costs
    from sparkinfer.analysis.intervals import Interval
    from sparkinfer.analysis.verdict import Verdict

__all__ = ["Ceiling", "Change", "Diagnosis"]


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """How fast one part could go if it alone set the pace.

    Attributes:
        name: ``source``, ``transport``, ``everything but the model``, ``model`` or ``everything``.
        rows_per_second: of all task slots together; a 95 % interval.
        repeats: rounds that it was measured in.
    """

    name: str
    rows_per_second: Interval
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change, and what it would give.

    Attributes:
        setting: of ``InferenceConfig``, or ``partitions``; or a part of the pipeline, such as ``source``, that would have to be faster.
        value: what to set; for a part, how much faster it is taken to be.
        gain: how many times the rows/s; a 95 % interval, which also holds what is not known of how well the parts overlap.
        why: a sentence.
    """

    setting: str
    value: Any
    gain: Interval
    why: str

    @property
    def is_setting(self) -> bool:
        """Whether it is a field of ``InferenceConfig``."""
        return self.setting in ("batch_size", "num_workers", "prefetch_batches", "threads", "models_per_worker", "max_records_per_batch")

    def __str__(self) -> str:
        """Give it in a line."""
        what = f"{self.setting}={self.value}" if self.is_setting else f"{self.setting}: {self.value}"
        return f"{what}: {self.gain.low:.2f} to {self.gain.high:.2f} times the rows/s. {self.why}"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What ``si.diagnose`` found.

    Attributes:
        verdict: what holds the pipeline back.
        ceilings: what each part could do, in the data's order; ``everything`` is the last.
        overlap_efficiency: what was measured, as a share of what the slowest part could do; 1 where the parts hide behind it wholly.
        changes: what to change, the most to gain first.
        costs: seconds of a task slot for each step, the medians of all rounds.
        rows: of the sample.
        rounds: that were measured.
        seconds: that all of it took.
        settings: ``InferenceConfig``'s, by name, as they were.
        remarks: what was left out of account, and why.
    """

    verdict: Verdict
    ceilings: tuple[Ceiling, ...]
    overlap_efficiency: float
    changes: tuple[Change, ...]
    costs: Costs
    rows: int
    rounds: int
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def rows_per_second(self) -> Interval:
        """What was measured of the pipeline as it is, of all task slots together."""
        return self.ceilings[-1].rows_per_second

    @property
    def overrides(self) -> dict[str, Any]:
        """The setting with the most to gain, by name, as ``predict`` takes it; empty where none gains a twentieth for sure."""
        best = next((change for change in self.changes if change.is_setting and change.gain.low > 1.05), None)
        return {} if best is None else {best.setting: best.value}

    def __str__(self) -> str:
        """Give it as lines of text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield str(self.verdict)
        yield f"{self.rows:,} rows, {self.rounds} rounds in {self.seconds:.0f} s; rows/s that each part could do:"
        for one in self.ceilings:
            found = one.rows_per_second
            spread = f"{found.low:,.0f} to {found.high:,.0f}" if found.low > 0 else "one round: no spread"
            yield f"  {one.name:<26}{found.middle:>12,.0f}   ({spread})"
        yield f"overlap: {self.overlap_efficiency:.0%} of what the slowest part could do"
        yield from (f"  {change}" for change in self.changes)
        yield from (f"remark: {remark}" for remark in self.remarks)

    def _repr_html_(self) -> str:
        """Show it at the end of a notebook's cell."""
        shown: str = import_module("sparkinfer.reporting.diagnosis").cell(self)
        return shown

    def figure(self) -> Any:
        """Draw it: a bar for each part, and the measured rows/s across; a matplotlib figure.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        return import_module("sparkinfer.reporting.diagnosis").draw(self).figure

    def save(self, path: str | Path) -> Path:
        """Write it as one self-contained HTML page with the chart; folders that are missing are made.

        Returns:
            Where it is.

        Raises:
            MissingDependencyError: matplotlib is not installed.
            OSError: it cannot be written.
        """
        saved: Path = import_module("sparkinfer.reporting.diagnosis").save(self, Path(path))
        return saved
