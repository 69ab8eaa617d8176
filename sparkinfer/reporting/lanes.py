"""Partitions in time: which ran side by side on a host, and how many were at which stage.

Runs on: driver (standard library and numpy).

Invariant: no two partitions of a lane overlap, and a host has as many lanes as it ever ran partitions at once.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sparkinfer.metrics import CONSUMER_STAGES, PartitionMetrics

__all__ = ["busy", "by_host", "lanes", "stage_seconds"]


def by_host(partitions: Iterable[PartitionMetrics]) -> dict[str, list[PartitionMetrics]]:
    """Sort partitions into their hosts, by name."""
    hosts: dict[str, list[PartitionMetrics]] = defaultdict(list)
    for record in partitions:
        hosts[record.host].append(record)
    return dict(sorted(hosts.items()))


def lanes(partitions: Iterable[PartitionMetrics]) -> list[list[PartitionMetrics]]:
    """Lay one host's partitions into as few lanes as there are: each goes into the lowest that is free when it begins."""
    laid: list[list[PartitionMetrics]] = []
    free: list[int] = []
    running: list[tuple[float, int]] = []  # end, lane
    for record in sorted(partitions, key=lambda one: one.started_unix):
        while running and running[0][0] <= record.started_unix:
            heapq.heappush(free, heapq.heappop(running)[1])
        if not free:
            laid.append([])
            free.append(len(laid) - 1)
        lane = heapq.heappop(free)
        laid[lane].append(record)
        heapq.heappush(running, (record.started_unix + record.wall_seconds, lane))
    return laid


def stage_seconds(record: PartitionMetrics) -> dict[str, float]:
    """Give a partition's seconds by consumer stage, in the loop's order; what no known stage accounts for is ``other``."""
    known = {stage: max(0.0, record.stages.get(stage, 0.0)) for stage in CONSUMER_STAGES}
    known = {stage: seconds if math.isfinite(seconds) else 0.0 for stage, seconds in known.items()}
    known["other"] += max(0.0, record.wall_seconds - sum(known.values()))
    return known


def busy(partitions: Sequence[PartitionMetrics], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Count the partitions at each stage between ``edges``, on the average.

    A partition tells how long it was at each stage, not when, so its share of a stage is spread over its whole time.

    Args:
        partitions: some.
        edges: rising times, seconds since 1970, ``(bins + 1,)``.

    Returns:
        ``(stages, bins)``, stages in the order of ``CONSUMER_STAGES``.
    """
    counted = np.zeros((len(CONSUMER_STAGES), len(edges) - 1))
    for record in partitions:
        ended = record.started_unix + record.wall_seconds
        inside = np.clip(np.minimum(edges[1:], ended) - np.maximum(edges[:-1], record.started_unix), 0.0, None)
        seconds = np.array(list(stage_seconds(record).values()))
        if seconds.sum() > 0:
            counted += np.outer(seconds / seconds.sum(), inside)
    widths: npt.NDArray[np.float64] = np.diff(edges)
    return counted / widths
