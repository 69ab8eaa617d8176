"""What ``si.compare_precision`` found, as a value: the speed of both, the gain, and how far the answers are apart.

Runs on: driver (standard library only).

Invariant: the gain is of times that were measured one after the other in the same round; every rate has its spread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkinfer.analysis.intervals import Interval, of_positive
from sparkinfer.exceptions import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OutputDifference", "PrecisionComparison", "compared"]


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """How far the answers in a column are apart.

    Attributes:
        name: of the column.
        rows: that were compared.
        changed: rows with another label, or in whose vector another value is the greatest; ``None`` of single numbers.
        max_abs: the greatest absolute difference of two values; ``None`` of labels.
        mean_abs: the mean absolute difference.
        relative: that, as a share of the mean absolute value in float32.
        lost: values that are finite in one of the two only.
    """

    name: str
    rows: int
    changed: int | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    relative: float | None = None
    lost: int = 0

    @property
    def changed_fraction(self) -> float | None:
        """The share of the rows that changed."""
        return None if self.changed is None else self.changed / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        """Say it in a line."""
        told = []
        if self.max_abs is not None:
            told.append(f"differs by {self.max_abs:.3g} at most, {self.mean_abs:.3g} on average ({self.relative:.2%} of the mean size)")
        if self.changed is not None:
            what = "another label" if self.max_abs is None else "another greatest value"
            told.append(f"{self.changed:,} of {self.rows:,} rows ({self.changed_fraction:.2%}) have {what}")
        if self.lost:
            told.append(f"{self.lost:,} values are finite in one of the two only")
        return f"{self.name}: {'; '.join(told)}"


@dataclass(frozen=True, kw_only=True)
class PrecisionComparison:
    """float32 and another precision, side by side.

    Attributes:
        precision: the other one.
        model: how messages call the model.
        fp32: rows/s of one task in float32, from memory; a 95 % interval.
        other: likewise in the other precision.
        gain: how many times the rows/s; a 95 % interval of the rounds' ratios.
        model_gain: the same of the model's calls alone: what a pipeline that waits for nothing else would gain.
        outputs: how far the answers are apart, by column.
        rows: of the sample.
        rounds: that were measured, over all partitions.
        partitions: that had rows.
    """

    precision: str
    model: str
    fp32: Interval
    other: Interval
    gain: Interval
    model_gain: Interval
    outputs: tuple[OutputDifference, ...]
    rows: int
    rounds: int
    partitions: int

    @property
    def table(self) -> pd.DataFrame:
        """One row an output column."""
        import pandas as pd  # noqa: PLC0415 - printing needs none

        return pd.DataFrame([{**vars(one), "changed_fraction": one.changed_fraction} for one in self.outputs])

    def __str__(self) -> str:
        """Say it as lines of text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.model}: {self.precision} beside fp32, {self.rows:,} rows, {self.rounds} rounds in {self.partitions} partitions"
        for name, rate in (("fp32", self.fp32), (self.precision, self.other)):
            yield f"  {name:<5}{rate.middle:>12,.0f} rows/s of a task   ({rate.low:,.0f} to {rate.high:,.0f})"
        yield f"  {_times(self.gain)} the rows/s; the model's calls alone {_times(self.model_gain)} as fast: {self.verdict}"
        yield from (f"  {one}" for one in self.outputs)

    @property
    def verdict(self) -> str:
        """Whether it is faster, as far as the rounds tell."""
        if self.gain.low > 1:
            return "faster"
        return "slower" if self.gain.high < 1 else "the rounds do not tell which is faster"

    def _repr_html_(self) -> str:
        """Show it at the end of a notebook's cell."""
        shown: str = import_module("sparkinfer.reporting.precision").cell(self)
        return shown


def _times(gain: Interval) -> str:
    return f"{gain.middle:.2f} times ({gain.low:.2f} to {gain.high:.2f})"


def compared(told: Sequence[Mapping[str, Any]], precision: str, model: str) -> PrecisionComparison:
    """Put together what the partitions tell.

    Args:
        told: what ``engine.comparing.CompareWork`` gave, of partitions with rows.
        precision: the second plan's.
        model: how messages call the model.

    Raises:
        ConfigError: no partition had rows.
    """
    if not told:
        msg = "the partitions that were compared have no rows: name others with partitions=(...)"
        raise ConfigError(msg)
    pairs = [(one["rows"], first, second) for one in told for first, second in one["rounds"]]
    least = 1e-9
    return PrecisionComparison(
        precision=precision,
        model=model,
        fp32=of_positive([rows / max(least, first[0]) for rows, first, _ in pairs]),
        other=of_positive([rows / max(least, second[0]) for rows, _, second in pairs]),
        gain=of_positive([max(least, first[0]) / max(least, second[0]) for _, first, second in pairs]),
        model_gain=of_positive([max(least, first[1]) / max(least, second[1]) for _, first, second in pairs]),
        outputs=tuple(_difference(name, [one["outputs"][name] for one in told]) for name in told[0]["outputs"]),
        rows=sum(one["rows"] for one in told),
        rounds=len(pairs),
        partitions=len(told),
    )


def _difference(name: str, parts: Sequence[Mapping[str, Any]]) -> OutputDifference:
    def total(key: str) -> Any:
        return sum(part.get(key, 0) for part in parts)

    numbers = [part for part in parts if "max_abs" in part]
    values = total("values")
    return OutputDifference(
        name=name,
        rows=total("rows"),
        changed=total("changed") if any("changed" in part for part in parts) else None,
        max_abs=max(part["max_abs"] for part in numbers) if numbers else None,
        mean_abs=total("sum_abs") / max(1, values) if numbers else None,
        relative=(total("sum_abs") / total("sum_reference") if total("sum_reference") else 0.0) if numbers else None,
        lost=total("lost"),
    )
