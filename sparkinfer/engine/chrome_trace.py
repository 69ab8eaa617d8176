"""Trace events, read: self times and stacks of slices that lie within one another.

Runs on: worker.

Invariant: a slice's self time is its own less that of the slices directly inside it, on the same track; so the self times of a track add up
to the time that it was busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkinfer.profiles import Operator

__all__ = ["Slice", "folded", "operators_of", "slices_of", "with_self_times", "within"]


@dataclass(frozen=True)
class Slice:
    """One complete event.

    Attributes:
        track: what lies on the same track can lie within one another.
        name: the event's.
        begin_us: microseconds.
        us: its length.
        device: it ran on a device.
        shapes: of its inputs, where known.
    """

    track: Any
    name: str
    begin_us: float
    us: float
    device: bool = False
    shapes: str = ""


def slices_of(events: Iterable[Mapping[str, Any]], wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> Iterator[Slice]:
    """Give the complete events (phase ``X``) of a trace that are wanted."""
    for event in events:
        if event.get("ph") == "X" and "ts" in event and wanted(event):
            device = event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
            yield Slice((event.get("pid"), event.get("tid")), str(event["name"]), float(event["ts"]), float(event.get("dur", 0)), device)


def with_self_times(slices: Iterable[Slice]) -> Iterator[tuple[Slice, tuple[str, ...], float]]:
    """Give each slice with its stack, itself last, and its self time in microseconds.

    A slice that begins within another and ends after it (a rounded clock) is cut at the other's end.

    Example:
        >>> inside = [Slice(0, "outer", 0.0, 10.0), Slice(0, "inner", 2.0, 3.0)]
        >>> [(";".join(stack), us) for _, stack, us in with_self_times(inside)]
        [('outer;inner', 3.0), ('outer', 7.0)]
    """
    tracks: dict[Any, list[Slice]] = defaultdict(list)
    for one in slices:
        tracks[one.track].append(one)
    for track in tracks.values():
        open_ones: list[list[Any]] = []  # slice, its end, self time, stack
        for one in sorted(track, key=lambda one: (one.begin_us, -one.us)):
            while open_ones and open_ones[-1][1] <= one.begin_us:
                done, _, left, stack = open_ones.pop()
                yield done, stack, max(0.0, left)
            end, took = one.begin_us + one.us, one.us
            if open_ones:
                end = min(end, open_ones[-1][1])
                took = end - one.begin_us
                open_ones[-1][2] -= took
            outer = open_ones[-1][3] if open_ones else ()
            open_ones.append([one, end, took, (*outer, one.name)])
        while open_ones:
            done, _, left, stack = open_ones.pop()
            yield done, stack, max(0.0, left)


def within(slices: Iterable[Slice], frames: Iterable[Slice]) -> list[Slice]:
    """Keep what lies within one of the frames, on the same track; and the device's, which has tracks of its own."""
    spans: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for frame in frames:
        spans[frame.track].append((frame.begin_us, frame.begin_us + frame.us))
    return [
        one
        for one in slices
        if one.device or any(begin <= one.begin_us and one.begin_us + one.us <= end for begin, end in spans[one.track])
    ]


def folded(slices: Iterable[Slice]) -> dict[str, float]:
    """Add up self microseconds by stack, spelt ``outer;inner``: what flame graphs are drawn of."""
    stacks: dict[str, float] = defaultdict(float)
    for _, stack, us in with_self_times(slices):
        if us > 0:
            stacks[";".join(name.replace(";", ",") for name in stack)] += us
    return dict(stacks)


def operators_of(slices: Iterable[Slice]) -> list[Operator]:
    """Make the operator table of slices: one row a name and shapes; recursion counts in the total once."""
    rows: dict[tuple[str, str], Operator] = {}
    for one, stack, us in with_self_times(slices):
        total = 0.0 if one.name in stack[:-1] else one.us
        row = Operator(
            name=one.name,
            shapes=one.shapes,
            calls=1,
            self_cpu_us=0.0 if one.device else us,
            total_cpu_us=0.0 if one.device else total,
            self_device_us=us if one.device else None,
            total_device_us=total if one.device else None,
        )
        key = one.name, one.shapes
        rows[key] = rows[key] + row if key in rows else row
    return list(rows.values())
