"""Samples of many workers, made into one line for each host and card.

Runs on: driver (standard library and numpy).

Invariant: a moment that two workers of a host both sampled counts once; what is not finite is left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkinfer.metrics import PartitionMetrics

__all__ = ["Line", "lines"]

_CARD = re.compile(r"^gpu_(\d+)_(.+)$")
_POINTS = 160  # more than a pixel of a narrow page can show


@dataclass(frozen=True)
class Line:
    """One quantity on one host, or on one card of it.

    Attributes:
        quantity: the name without the card's number: ``gpu_utilization_percentage``, ``cpu_utilization_percentage``.
        host: where.
        card: ``0`` of ``gpu_0_...``; ``None`` where it is the host's.
        times: seconds since 1970, rising, at most 160.
        values: as many.
    """

    quantity: str
    host: str
    card: int | None
    times: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]


def lines(partitions: Iterable[PartitionMetrics]) -> list[Line]:
    """Merge all partitions' series; the workers of a host see the same host and, by its UUID, the same card."""
    merged: dict[tuple[str, str, str | None], list[tuple[tuple[float, ...], tuple[float, ...]]]] = defaultdict(list)
    for record in partitions:
        for series in record.series:
            merged[series.name, record.host, series.device].append((series.times_unix, series.values))
    found = []
    for (name, host, _), pieces in sorted(merged.items(), key=lambda one: (one[0][0], one[0][1], one[0][2] or "")):
        times, values = _thin(*_join(pieces))
        if len(times):
            card = _CARD.match(name)
            found.append(Line(f"gpu_{card[2]}" if card else name, host, int(card[1]) if card else None, times, values))
    return found


def _join(pieces: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    pairs = [(times[: len(values)], values[: len(times)]) for times, values in pieces]
    times = np.concatenate([np.asarray(one, dtype=np.float64) for one, _ in pairs])
    values = np.concatenate([np.asarray(one, dtype=np.float64) for _, one in pairs])
    finite = np.isfinite(times) & np.isfinite(values)
    times, first = np.unique(times[finite], return_index=True)
    return times, values[finite][first]


def _thin(times: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Average within equal stretches of time where there are more points than can be seen."""
    if len(times) <= _POINTS:
        return times, values
    edges = np.linspace(times[0], times[-1], _POINTS + 1)
    bins = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, _POINTS - 1)
    counts = np.bincount(bins, minlength=_POINTS)
    seen = counts > 0
    middle_times = np.bincount(bins, weights=times, minlength=_POINTS)[seen] / counts[seen]
    middle_values = np.bincount(bins, weights=values, minlength=_POINTS)[seen] / counts[seen]
    return middle_times, middle_values
