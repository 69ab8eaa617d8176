"""The figures that a verdict rests on: a run's summary, and what it says about time after warm-up, start-up and spread.

Runs on: driver (standard library only).

Invariant: every figure is a finite number; one that needs what was not measured is left out.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from sparkinfer.metrics import PartitionMetrics, summarise

__all__ = ["evidence_of"]

_CARD = re.compile(r"gpu_\d+_(utilization|sm_activity)_percentage")


def evidence_of(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    """Give the summary's figures and these.

    - ``bottleneck/steady_seconds``: wall time without the model's load, each partition's first batch, and the wait for it.
    - ``bottleneck/steady_input_wait_fraction``: the consumer's wait on an empty queue, as a share of that.
    - ``bottleneck/steady_producer_blocked_fraction``: the producer's wait on a full queue, as a share of that.
    - ``bottleneck/steady_both_fraction``: the smaller of the two waits of each partition, as a share of that.
    - ``bottleneck/first_wait_seconds``: the consumers' wait for the first batch of each partition, before which nothing can overlap.
    - ``bottleneck/start_up_fraction``: load, and what the first batches took beyond the median one, as a share of all wall time.
    - ``inference/python_workers_total``: worker processes.
    - ``inference/partitions_at_once_max``: partitions that ran side by side.
    - ``skew/wall_max_over_p75``: the longest partition, without its load, over the 75th percentile of the others.
    - ``skew/wall_seconds_max``: how long that one is.
    - ``skew/rows_max_over_mean``: rows of the largest partition over the mean.
    - ``skew/slots_idle_fraction``: share of the slots' time, as many as were ever in use at once, in which they had no partition.
    - ``system/gpu_utilization_percentage_mean``, ``system/gpu_sm_activity_percentage_mean``: of all samples of all cards.
    """
    figures = summarise(partitions)
    if not partitions:
        return figures
    figures |= _steady(partitions) | _start_up(partitions, figures) | _spread(partitions, figures) | _cards(partitions)
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _steady(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    """Only what the recorder told apart from warm-up is compared with it: a record without is all steady."""
    total = waited = measured = blocked = both = before = 0.0
    for record in partitions:
        first = record.warmup_wait_seconds or 0.0
        seconds = max(0.0, record.wall_seconds - record.stages.get("model_load", 0.0) - (record.warmup_seconds or 0.0) - first)
        wait = max(0.0, record.stages.get("input_wait", 0.0) - first)
        total += seconds
        waited += wait
        before += max(0.0, first)
        if record.producer_blocked_seconds is not None:
            measured += seconds
            blocked += record.producer_blocked_seconds
            both += min(wait, record.producer_blocked_seconds)
    figures = {"bottleneck/steady_seconds": total, "bottleneck/first_wait_seconds": before}
    if total > 0:
        figures["bottleneck/steady_input_wait_fraction"] = min(1.0, waited / total)
    if measured > 0:
        figures["bottleneck/steady_producer_blocked_fraction"] = min(1.0, max(0.0, blocked / measured))
        figures["bottleneck/steady_both_fraction"] = min(1.0, max(0.0, both / measured))
    return figures


def _start_up(partitions: Sequence[PartitionMetrics], figures: dict[str, float]) -> dict[str, float]:
    found: dict[str, float] = {"inference/python_workers_total": len({(record.host, record.pid) for record in partitions})}
    wall = figures.get("inference/partition_seconds_total", 0.0)
    if wall > 0 and "stage/model_load_seconds" in figures:
        median = figures.get("inference/batch_latency_seconds_p50", math.inf)  # without a second batch nobody knows what the first one lost
        beyond = sum(max(0.0, (record.warmup_seconds or 0.0) - median) for record in partitions)
        found["bottleneck/start_up_fraction"] = min(1.0, max(0.0, (figures["stage/model_load_seconds"] + beyond) / wall))
    return found


def _spread(partitions: Sequence[PartitionMetrics], figures: dict[str, float]) -> dict[str, float]:
    slots = _at_once(partitions)
    found: dict[str, float] = {"inference/partitions_at_once_max": slots}
    elapsed = figures.get("inference/elapsed_seconds", 0.0)
    if elapsed > 0 and slots:
        busy = figures.get("inference/partition_seconds_total", 0.0)
        found["skew/slots_idle_fraction"] = min(1.0, max(0.0, 1 - busy / (slots * elapsed)))
    worked: dict[int, float] = defaultdict(float)
    rows: dict[int, int] = defaultdict(int)
    for record in partitions:  # under coalesce a partition has several
        worked[record.partition] += max(0.0, record.wall_seconds - record.stages.get("model_load", 0.0))
        rows[record.partition] += record.rows
    if len(worked) < 2:
        return found
    *others, longest = sorted(worked.values())
    found["skew/wall_seconds_max"] = longest
    usual = _p75(others)
    if usual > 0:
        found["skew/wall_max_over_p75"] = longest / usual
    if sum(rows.values()) > 0:
        found["skew/rows_max_over_mean"] = max(rows.values()) * len(rows) / sum(rows.values())
    return found


def _p75(values: Sequence[float]) -> float:
    """Give the 75th percentile of sorted values, between two of them by proportion."""
    whole, rest = divmod(0.75 * (len(values) - 1), 1)
    below = values[int(whole)]
    return below + rest * (values[min(len(values) - 1, int(whole) + 1)] - below)


def _at_once(partitions: Sequence[PartitionMetrics]) -> int:
    moves = sorted(
        move for record in partitions for move in ((record.started_unix, 1), (record.started_unix + max(0.0, record.wall_seconds), -1))
    )  # at one moment the ends come first
    most = running = 0
    for _, change in moves:
        running += change
        most = max(most, running)
    return most


def _cards(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    seen: dict[str, list[float]] = defaultdict(list)
    for record in partitions:
        for series in record.series:
            if found := _CARD.fullmatch(series.name):
                seen[found[1]].extend(value for value in series.values if math.isfinite(value))
    return {f"system/gpu_{name}_percentage_mean": sum(values) / len(values) for name, values in seen.items() if values}
