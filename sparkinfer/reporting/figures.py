"""A run's figures: when, on which machine, at what stage, how fast, how evenly.

Runs on: driver; needs matplotlib, but neither pyplot nor a display.

Invariant: every figure reads the same at 1 and at 5,000 partitions: what is too much to see is grouped, and the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sparkinfer.metrics import CONSUMER_STAGES, Histogram, PartitionMetrics, RunMetrics
from sparkinfer.reporting.capacity import Capacity, capacities
from sparkinfer.reporting.drawing import (
    INK,
    PAPERS,
    Drawing,
    Paper,
    Rectangle,
    blocks,
    drawn,
    legend_of_stages,
    place,
    sheet,
    stacked,
)
from sparkinfer.reporting.lanes import busy, by_host, lanes, stage_seconds
from sparkinfer.reporting.machines import machines
from sparkinfer.reporting.time_axis import in_durations, spread, time_axis
from sparkinfer.reporting.words import STAGE_COLOURS, STAGE_WORDS, count, duration, rate, short_names

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

__all__ = ["draw", "figures"]

_EACH = 200  # partitions; more are grouped
_NAMED = 32  # partitions; more get no name on the axis
_LANES = 48  # more are counted and not drawn
_HOSTS = 8  # more are drawn together
_BINS = 120
_BARS = 60
_TIMES = "\N{MULTIPLICATION SIGN}"
_FAR = 1000.0  # times the measured rate; a stage that could do more is drawn as this


def figures(run: RunMetrics) -> dict[str, matplotlib.figure.Figure]:
    """Draw a run's figures, those for which something was measured.

    Nothing is shown or kept by pyplot; a notebook shows what a cell gives back, ``figure.savefig(path)`` writes a file. The
    background is transparent, and the ink is legible on white and on near-black.

    Args:
        run: any; one without partitions has no figures.

    Returns:
        ``timeline``, ``machines``, ``capacity``, ``partitions`` and ``latency``, in this order.

    Raises:
        MissingDependencyError: matplotlib is not installed; raised when this module is imported.

    Example:
        >>> figures(RunMetrics(id="1", name=None, started_unix=0.0, ended_unix=1.0))
        {}
    """
    made = draw(run, PAPERS["wide"])
    for drawing in made.values():
        drawing.figure.suptitle(drawing.title, x=0.0, y=1.0, ha="left", va="bottom", fontweight="bold", color=INK, parse_math=False)
    return {name: drawing.figure for name, drawing in made.items()}


def draw(run: RunMetrics, paper: Paper) -> dict[str, Drawing]:
    """Draw what was measured, for one width, each with a title and a caption."""
    partitions = [record for record in run.partitions if math.isfinite(record.started_unix) and math.isfinite(record.wall_seconds)]
    if not partitions:
        return {}
    drawers: dict[str, Callable[[RunMetrics, Sequence[PartitionMetrics], Paper], Drawing | None]] = {
        "timeline": _timeline,
        "machines": machines,
        "capacity": _capacity,
        "partitions": _partitions,
        "latency": _latency,
    }
    with drawn():
        made = {name: drawer(run, partitions, paper) for name, drawer in drawers.items()}
    return {name: drawing for name, drawing in made.items() if drawing is not None}


# ------------------------------------------------------------------------------------------------------------- timeline


def _timeline(_: RunMetrics, partitions: Sequence[PartitionMetrics], paper: Paper) -> Drawing:
    hosts = {host: lanes(records) for host, records in by_host(partitions).items()}
    if len(partitions) <= _EACH and sum(map(len, hosts.values())) <= _LANES:
        return _lanes(hosts, partitions, paper)
    return _counted(partitions, paper)


def _lanes(hosts: dict[str, list[list[PartitionMetrics]]], partitions: Sequence[PartitionMetrics], paper: Paper) -> Drawing:
    lane_height = 0.2 if sum(map(len, hosts.values())) <= 16 else 0.13
    heads = 0.26
    height = sum(heads + lane_height * len(laid) for laid in hosts.values())
    figure = sheet(paper, height + 0.75)
    legend = legend_of_stages(figure, paper, _total(partitions))
    figure.set_size_inches(paper.width, height + legend + 0.5)
    axes = place(figure, 0.45, legend, 0.1, height)
    begun, ended = spread(partitions)
    placed: list[tuple[PartitionMetrics, float]] = []
    at = 0.0
    short = short_names(hosts)
    for host, laid in hosts.items():
        axes.text(0, at + heads * 0.72, f"{short[host]} · {len(laid)} at once", fontsize=8, va="baseline")
        at += heads
        for lane in laid:
            placed += [(record, at) for record in lane]
            at += lane_height
    _bars(axes, placed, begun, (ended - begun) / 700, lane_height)
    notes = {f"partition{position}": _note(record) for position, (record, _) in enumerate(placed)}
    axes.set_ylim(at, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    time_axis(axes, begun, ended, paper)
    caption = (
        "Each bar is a partition in one of its host's task slots; its colours are the shares of its time, in the order of the work, "
        "not the moments at which they were spent."
    )
    return Drawing(figure, "When each partition ran", caption, notes)


def _bars(axes: Axes, placed: Sequence[tuple[PartitionMetrics, float]], begun: float, gap: float, height: float) -> None:
    left = np.array([record.started_unix - begun for record, _ in placed])
    walls = np.array([record.wall_seconds for record, _ in placed])
    widths = np.maximum(walls - gap, walls * 0.5)  # bars that follow at once stay apart
    floors = np.array([floor for _, floor in placed])
    for position, corner in enumerate(zip(left, floors, strict=True)):
        axes.add_patch(Rectangle(corner, widths[position], height, alpha=0, zorder=3, gid=f"partition{position}"))
    spent = [stage_seconds(record) for record, _ in placed]
    totals = np.array([sum(seconds.values()) or 1.0 for seconds in spent])
    for stage in CONSUMER_STAGES:
        parts = widths * np.array([seconds[stage] for seconds in spent]) / totals
        blocks(axes, left, floors + height * 0.08, parts, height * 0.84, STAGE_COLOURS[stage])
        left = left + parts


def _note(record: PartitionMetrics) -> str:
    spent = ", ".join(f"{STAGE_WORDS[stage]} {duration(seconds)}" for stage, seconds in stage_seconds(record).items() if seconds)
    return f"partition {record.partition} on {record.host}: {count(record.rows)} rows in {duration(record.wall_seconds)} ({spent})"


def _counted(partitions: Sequence[PartitionMetrics], paper: Paper) -> Drawing:
    hosts = by_host(partitions)
    if len(hosts) > _HOSTS:
        hosts = {f"all {len(hosts)} hosts": list(partitions)}
    panel, heads = 0.9, 0.3
    height = (panel + heads) * len(hosts)
    figure = sheet(paper, height + 0.75)
    legend = legend_of_stages(figure, paper, _total(partitions))
    figure.set_size_inches(paper.width, height + legend + 0.5)
    begun, ended = spread(partitions)
    short = short_names(hosts)
    edges = np.linspace(begun, ended, _BINS + 1)
    counts = {host: busy(records, edges) for host, records in hosts.items()}
    most = max(count_.sum(axis=0).max() for count_ in counts.values())
    for position, (host, running) in enumerate(counts.items()):
        axes = place(figure, 0.45, legend + position * (panel + heads) + heads, 0.1, panel)
        axes.set_title(f"{short[host]}: partitions running", loc="left", fontsize=8, pad=3)
        stacked(axes, edges[:-1] - begun, np.diff(edges), dict(zip(CONSUMER_STAGES, running, strict=True)))
        axes.set_ylim(0, most * 1.05)
        axes.locator_params(axis="y", nbins=3, integer=True)
        axes.grid(axis="y")
        time_axis(axes, begun, ended, paper, labels=position == len(counts) - 1)
    caption = f"{count(len(partitions))} partitions are too many to draw singly: the height is how many ran at once, the colours what they were at."
    return Drawing(figure, "When the partitions ran", caption)


def _total(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    spent = [stage_seconds(record) for record in partitions]
    return {stage: sum(one[stage] for one in spent) for stage in CONSUMER_STAGES}


# ------------------------------------------------------------------------------------------------------------- capacity


def _capacity(run: RunMetrics, _: Sequence[PartitionMetrics], paper: Paper) -> Drawing | None:
    found = capacities(run)
    if not found:
        return None
    measured = run.summary["inference/rows_per_second"]
    row = 0.24
    between = 0.14
    gaps = sum(earlier.side != later.side for earlier, later in pairwise(found)) * between
    height = row * len(found) + gaps
    figure = sheet(paper, height + 0.8)
    axes = place(figure, 1.3 if not paper.narrow else 1.15, 0.3, 0.1, height)
    limit = measured * min(_FAR, max(one.rows_per_second for one in found) / measured)
    at, ticks = 0.0, []
    for position, one in enumerate(found):
        at += between if position and found[position - 1].side != one.side else 0.0
        _headroom(axes, one, measured, limit, at, row, paper)
        ticks.append(at + row / 2)
        at += row
    axes.axvline(measured, color=INK, linewidth=1)
    axes.text(measured, -0.07, f"measured: {rate(measured)} rows/s", fontsize=8.5, fontweight="bold", va="bottom")
    axes.set_xscale("log")
    lowest = min(measured, *(one.rows_per_second for one in found))
    room = 3.5 if paper.narrow else 1.6
    axes.set_xlim(lowest / 1.15, max(limit, measured * 3) * (limit / lowest) ** (0.18 if not paper.narrow else 0.3) * room)
    axes.xaxis.set_major_formatter(lambda value, _: rate(value))
    axes.xaxis.set_minor_formatter(lambda *_: "")
    axes.set_xlabel("rows/s, logarithmic")
    axes.grid(axis="x")
    axes.set_ylim(at, 0)
    axes.set_yticks(ticks, [STAGE_WORDS[one.stage] if one.stage else f"{one.side} side" for one in found])
    for label, one in zip(axes.get_yticklabels(), found, strict=True):
        label.set_fontweight("normal" if one.stage else "bold")
    axes.spines["left"].set_visible(False)
    return Drawing(figure, "What each stage could do", _pace(found, measured))


def _headroom(axes: Axes, one: Capacity, measured: float, limit: float, at: float, row: float, paper: Paper) -> None:
    """Draw what a stage could do beyond what was done."""
    ends = sorted((measured, min(one.rows_per_second, limit)))
    colour = STAGE_COLOURS["input_wait" if one.side == "input" else "compute"]
    thickness = 0.7 if one.stage is None else 0.38
    blocks(axes, ends[0], at + row * (1 - thickness) / 2, ends[1] - ends[0], row * thickness, colour)
    times = one.rows_per_second / measured
    factor = f"{times:.1f}{_TIMES}" if times < 10 else f"{count(times)}{_TIMES}"
    said = f"{rate(one.rows_per_second)} ({factor})" if times <= _FAR else f"over {count(_FAR)}{_TIMES}"
    weight = "normal" if one.stage else "bold"
    size = 7.5 if paper.narrow else 8.5
    axes.annotate(said, (ends[1], at + row / 2), xytext=(4, 0), textcoords="offset points", va="center", fontsize=size, fontweight=weight)


def _pace(found: Sequence[Capacity], measured: float) -> str:
    stages = [one for one in found if one.stage]
    nearest = min(stages, key=lambda one: one.rows_per_second)
    return (
        f"How fast the run would be if one part alone set the pace: the shortest bar is the limit, here {STAGE_WORDS[nearest.stage or '']} "
        f"with {rate(nearest.rows_per_second)} rows/s against the {rate(measured)} measured."
    )


# ----------------------------------------------------------------------------------------------------------- partitions


def _partitions(_: RunMetrics, partitions: Sequence[PartitionMetrics], paper: Paper) -> Drawing:
    ranked = sorted(partitions, key=lambda record: record.wall_seconds, reverse=True)
    named = len(ranked) <= _NAMED
    height = 0.22 * len(ranked) if named else 2.1
    figure = sheet(paper, height + 0.75)
    legend = legend_of_stages(figure, paper, _total(partitions))
    figure.set_size_inches(paper.width, height + legend + 0.57)
    axes = place(figure, 1.0 if named else 0.55, legend + 0.08, 0.15, height)
    spent = [stage_seconds(record) for record in ranked]
    walls = np.array([sum(one.values()) for one in spent])
    median = float(np.median(walls))
    if named:
        _rows(axes, ranked, spent)
        if len(ranked) > 1:
            axes.axvline(median, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        caption = "Where each partition's time went, slowest first"
    else:
        group = -(-len(ranked) // 100) if len(ranked) > _EACH else 1
        _columns(axes, spent, group)
        axes.axhline(median, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        each = f"each column the mean of {group} partitions of like duration" if group > 1 else "each column a partition"
        caption = f"Where the partitions' time went, slowest first, {each}"
    slowest = (
        f"; the slowest took {duration(float(walls[0]))}, {walls[0] / median:.1f} times the median (dashed)"
        if len(ranked) > 1 and median
        else ""
    )
    return Drawing(figure, "Partitions, slowest first", f"{caption}{slowest}.")


def _rows(axes: Axes, ranked: Sequence[PartitionMetrics], spent: Sequence[dict[str, float]]) -> None:
    left = np.zeros(len(spent))
    for stage in CONSUMER_STAGES:
        widths = np.array([one[stage] for one in spent])
        blocks(axes, left, np.arange(len(spent)) + 0.1, widths, 0.8, STAGE_COLOURS[stage])
        left += widths
    most = float(left.max()) or 1.0
    axes.set_xlim(0, most * 1.02)
    axes.set_ylim(len(spent), 0)
    axes.set_yticks(np.arange(len(spent)) + 0.5, [f"partition {record.partition}" for record in ranked])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    in_durations(axes.xaxis, most, 5)


def _columns(axes: Axes, spent: Sequence[dict[str, float]], group: int) -> None:
    starts = np.arange(0, len(spent), group)
    widths = np.diff([*starts, len(spent)])
    parts = {stage: np.add.reduceat([one[stage] for one in spent], starts) / widths for stage in CONSUMER_STAGES}
    stacked(axes, starts + 0.05 * widths, widths * 0.9, parts)
    axes.set_xlim(0, len(spent))
    most = float(np.max(sum(parts.values()))) or 1.0
    axes.set_ylim(0, most * 1.05)
    axes.grid(axis="y")
    in_durations(axes.yaxis, most, 5)
    axes.xaxis.set_major_formatter(lambda value, _: count(value))
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.set_xlabel("partitions, by rank")


# -------------------------------------------------------------------------------------------------------------- latency


def _latency(_: RunMetrics, partitions: Sequence[PartitionMetrics], paper: Paper) -> Drawing | None:
    latency = sum((record.latency for record in partitions), Histogram())
    if not latency.total:
        return None
    lowest, highest = min(latency.counts), max(latency.counts)
    wide = 2 ** max(0, math.ceil(math.log2((highest - lowest + 1) / _BARS)))
    merged: dict[int, int] = {}
    for bucket, batches in latency.counts.items():
        merged[bucket // wide] = merged.get(bucket // wide, 0) + batches
    edge = 2 ** (wide / 8)  # a histogram has eight buckets for every doubling
    left = np.array([edge**bucket for bucket in sorted(merged)])
    figure = sheet(paper, 2.75)
    axes = place(figure, 0.55, 0.62, 0.15, 1.65)
    blocks(axes, left, 0, left * (edge - 1) * 0.94, [merged[bucket] for bucket in sorted(merged)], STAGE_COLOURS["compute"])
    axes.set_xscale("log")
    axes.set_xlim(min(left[0], left[-1] / 4) / 1.2, max(left[-1] * edge, left[0] * 4) * 1.2)
    axes.set_ylim(0, max(merged.values()) * 1.05)
    axes.xaxis.set_major_formatter(lambda value, _: duration(value))
    axes.xaxis.set_minor_formatter(lambda value, _: duration(value) if left[-1] / left[0] < 1000 and f"{value:e}"[0] in "25" else "")
    axes.yaxis.set_major_formatter(lambda value, _: count(value))
    axes.locator_params(axis="y", nbins=4, integer=True)
    axes.grid(axis="y")
    axes.set_xlabel("seconds of one model call, logarithmic")
    _percentiles(axes, latency, paper)
    return Drawing(
        figure,
        "How long a batch takes in the model",
        f"{count(latency.total)} model calls of all partitions, the first call of each left out; the dashed lines are percentiles.",
    )


def _percentiles(axes: Axes, latency: Histogram, paper: Paper) -> None:
    """Mark three percentiles, the labels one above the other where side by side they would touch."""
    low, high = axes.get_xlim()
    room = (high / low) ** (0.24 if paper.narrow else 0.12)
    last, level = 0.0, 0
    for percent in (50, 95, 99):
        seconds = latency.quantile(percent / 100)
        level = level + 1 if last and seconds / last < room else 0
        last = seconds
        axes.axvline(seconds, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        said = f"p{percent} {duration(seconds)}"
        axes.annotate(said, (seconds, 1), xycoords=("data", "axes fraction"), xytext=(2, 3 + level * 11), textcoords="offset points")
