"""What the machines did meanwhile: cards, processors, memory, disks and networks on the timeline's axis.

Runs on: driver; needs matplotlib.

Invariant: only what was sampled is drawn; what has no panel of its own is named in the caption.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparkinfer.reporting.drawing import Axes, Drawing, Line2D, Paper, legend_at, place, sheet
from sparkinfer.reporting.series import Line, lines
from sparkinfer.reporting.time_axis import spread, time_axis
from sparkinfer.reporting.words import plain, short_names

if TYPE_CHECKING:
    from sparkinfer.metrics import PartitionMetrics, RunMetrics

__all__ = ["machines"]

_SINGLY = 8  # hosts or cards with a line of their own; more are drawn as a band
_COLOURS = ("#3d8bd4", "#e3a33b", "#2fa58e", "#d86c5d", "#8f7fd6", "#8dbb57", "#b9779d", "#5fb3c9")
_DASHES = ("-", (0, (3, 2)))
_UNITS = {
    "percentage": "%",
    "megabytes_per_second": "MB/s",
    "mebibytes_per_second": "MiB/s",
    "megabytes": "MB",
    "watts": "W",
}
_HIGH, _HEAD = 0.62, 0.3  # inches


@dataclass(frozen=True)
class _Panel:
    """A quantity, or two of a kind.

    Attributes:
        title: a few words.
        quantities: patterns; the first that something was sampled of is drawn, with all that it matches.
    """

    title: str
    quantities: tuple[str, ...]


_CARDS = (
    _Panel("GPU busy", ("gpu_utilization_percentage",)),
    _Panel("GPU activity", ("gpu_(sm|tensor)_activity_percentage",)),
    _Panel("GPU memory in use", ("gpu_memory_usage_percentage", "gpu_memory_usage_megabytes")),
    _Panel("GPU power", ("gpu_power_usage_watts", "gpu_power_usage_percentage")),
)
_HOSTS = (
    _Panel("CPU busy", ("cpu_utilization_percentage",)),
    _Panel("memory in use", ("system_memory_usage_percentage", "system_memory_usage_megabytes")),
    _Panel("disk", ("disk_(read|write)_megabytes_per_second",)),
    _Panel("network", ("network_(receive|transmit)_megabytes_per_second",)),
)


@dataclass(frozen=True)
class _Group:
    """Panels whose lines are called and coloured alike: the cards', or the hosts'."""

    panels: tuple[tuple[_Panel, tuple[Line, ...]], ...]
    names: Mapping[tuple[str, int | None], str]

    @property
    def colours(self) -> dict[tuple[str, int | None], str]:
        return {key: _COLOURS[position % len(_COLOURS)] for position, key in enumerate(self.names)}

    @property
    def handles(self) -> list[Line2D]:
        """What the legend shows: nothing where there is nothing to tell apart, or too much."""
        if not 1 < len(self.names) <= _SINGLY:
            return []
        return [Line2D([], [], color=self.colours[key], linewidth=2, label=name) for key, name in self.names.items()]


def machines(_: RunMetrics, partitions: Sequence[PartitionMetrics], paper: Paper) -> Drawing | None:
    """Draw a panel for each quantity that was sampled, a line for each host or card."""
    sampled = lines(partitions)
    groups = [group for panels in (_CARDS, _HOSTS) if (group := _group(panels, sampled)).panels]
    if not groups:
        return None
    columns = 2 if paper.narrow else 4
    legends = [_line_height(group, columns) + (0.18 if position and group.handles else 0.0) for position, group in enumerate(groups)]
    height = sum(legends) + (_HIGH + _HEAD) * sum(len(group.panels) for group in groups) + 0.53
    figure = sheet(paper, height)
    begun, ended = spread(partitions)
    top = 0.03
    for group, legend in zip(groups, legends, strict=True):
        legend_at(figure, paper, group.handles, 0.45, top + legend - _line_height(group, columns), columns)
        top += legend
        for panel, found in group.panels:
            axes = place(figure, 0.45, top + _HEAD, 0.1, _HIGH)
            _draw(axes, panel, found, group, begun)
            top += _HIGH + _HEAD
            time_axis(axes, begun, ended, paper, labels=top + 0.6 > height)
    return Drawing(figure, "What the machines did", _caption(groups, sampled))


def _line_height(group: _Group, columns: int) -> float:
    return 0.19 * -(-len(group.handles) // columns)


def _group(panels: Sequence[_Panel], sampled: Sequence[Line]) -> _Group:
    filled = tuple((panel, found) for panel in panels if (found := _belonging(panel, sampled)))
    keys = dict.fromkeys(sorted({(line.host, line.card) for _, found in filled for line in found}, key=str))
    short = short_names((host for host, _ in keys), 24)

    def name(host: str, card: int | None) -> str:
        if card is None:
            return short[host]
        return f"GPU {card}" if len(short) == 1 else f"{short[host]} GPU {card}"

    return _Group(filled, {key: name(*key) for key in keys})


def _belonging(panel: _Panel, sampled: Sequence[Line]) -> tuple[Line, ...]:
    for pattern in panel.quantities:
        found = tuple(line for line in sampled if re.fullmatch(pattern, line.quantity))
        if found:
            return found
    return ()


def _draw(axes: Axes, panel: _Panel, found: Sequence[Line], group: _Group, begun: float) -> None:
    kinds = sorted({line.quantity for line in found})
    for kind, dash in zip(kinds, _DASHES, strict=False):
        alike = [line for line in found if line.quantity == kind]
        if len(group.names) > _SINGLY:
            _band(axes, alike, begun, dash)
            continue
        for line in alike:
            marker = "o" if len(line.times) == 1 else ""
            colour = group.colours[line.host, line.card]
            axes.plot(line.times - begun, line.values, color=colour, linewidth=1.2, linestyle=dash, marker=marker, markersize=3)
    unit = next((unit for ending, unit in _UNITS.items() if kinds[0].endswith(ending)), "")
    title = f"{panel.title}, {unit}"
    if len(kinds) > 1:
        first, second = (kind.split("_")[1] for kind in kinds[:2])
        title += f" ({first} solid, {second} dashed)"
    axes.set_title(title, loc="left", fontsize=8, pad=3)
    most = max(float(line.values.max()) for line in found)
    axes.set_ylim(0, 100 if unit == "%" and most <= 100 else most * 1.1 or 1.0)
    axes.locator_params(axis="y", nbins=2)
    axes.grid(axis="y")


def _band(axes: Axes, found: Sequence[Line], begun: float, dash: object) -> None:
    """Draw many lines as their middle and the band that holds eight in ten."""
    times = np.linspace(min(line.times[0] for line in found), max(line.times[-1] for line in found), 160)
    values = np.array([np.interp(times, line.times, line.values, left=np.nan, right=np.nan) for line in found])
    seen = np.isfinite(values).any(axis=0)
    low, middle, high = np.nanpercentile(values[:, seen], (10, 50, 90), axis=0)
    axes.fill_between(times[seen] - begun, low, high, color=_COLOURS[0], alpha=0.3, linewidth=0)
    axes.plot(times[seen] - begun, middle, color=_COLOURS[0], linewidth=1.2, linestyle=dash)


def _caption(groups: Sequence[_Group], sampled: Sequence[Line]) -> str:
    caption = "What was sampled on the hosts while the partitions ran, on the timeline's own axis"
    if any(len(group.names) > _SINGLY for group in groups):
        caption += f"; for more than {_SINGLY} hosts or cards, their median and the band that holds eight in ten of them"
    drawn = {line.quantity for group in groups for _, found in group.panels for line in found}
    rest = sorted({plain(line.quantity, 40) for line in sampled} - drawn)
    if rest:
        caption += f"; also sampled: {', '.join(name.replace('_', ' ') for name in rest[:8])}"
        caption += f" and {len(rest) - 8} more" if len(rest) > 8 else ""
    return f"{caption}."
