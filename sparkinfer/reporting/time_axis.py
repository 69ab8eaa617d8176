"""The time axis that the timeline and the machines' figures share.

Runs on: driver; needs matplotlib.

Invariant: two figures of one run have the same range of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from sparkinfer.metrics import PartitionMetrics
    from sparkinfer.reporting.drawing import Paper

__all__ = ["in_durations", "spread", "time_axis"]

_UNITS = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))
_SHORT_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_STEPS = (1, 2, 5, 10)


def spread(partitions: Sequence[PartitionMetrics]) -> tuple[float, float]:
    """Give the first beginning and the last end, seconds since 1970; never the same."""
    begun = min(record.started_unix for record in partitions)
    ended = max(record.started_unix + record.wall_seconds for record in partitions)
    return begun, max(ended, begun + 1e-3)


def time_axis(axes: Axes, begun: float, ended: float, paper: Paper, *, labels: bool = True) -> None:
    """Set an axis of seconds since ``begun``, labelled in seconds, minutes or hours."""
    elapsed = ended - begun
    factor, unit = next(((factor, unit) for factor, unit in reversed(_UNITS) if elapsed >= 3 * factor), _UNITS[0])
    axes.set_xlim(0, elapsed)
    step = _step(elapsed / factor / (4 if paper.narrow else 10)) * factor
    axes.set_xticks([step * tick for tick in range(int(elapsed / step * (1 + 1e-9)) + 1)])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / factor:g}")
    axes.grid(axis="x")
    axes.tick_params(axis="x", labelbottom=labels, length=3 if labels else 0)
    if labels:
        axes.set_xlabel(f"{unit} since the first partition began")


def in_durations(axis: Axis, most: float, ticks: int) -> None:
    """Label an axis of seconds that begins at 0 in one unit, which ``most`` is best said in."""
    factor, unit = next(((factor, unit) for factor, unit in _SHORT_UNITS if most >= 2 * factor), _SHORT_UNITS[-1])
    step = _step(most / factor / ticks) * factor
    axis.set_ticks([step * tick for tick in range(int(most / step * (1 + 1e-9)) + 1)])
    axis.set_major_formatter(lambda value, _: f"{value / factor:g} {unit}")


def _step(least: float) -> float:
    """Give the smallest round step that is not below ``least``."""
    power = 1.0
    while power > least:
        power /= 10
    while power * 10 <= least:
        power *= 10
    return float(next(power * step for step in _STEPS if power * step >= least * (1 - 1e-9)))
