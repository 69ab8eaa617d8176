"""Runs as they could have been: what the report's tests draw."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

from sparkinfer.metrics import Histogram, PartitionMetrics, RunMetrics, Series, group_executions

BEGUN = 1_796_054_400.0
NASTY = "<script>alert('x')</script> & \"$a_1$\" ]]> --> \x00\x1b[31m\u202e\ud800 ноль 数据"
"""What a name may hold that wants out of the page; nothing of it may be read as markup."""


def partition(number: int, *, host: str = "worker-1", started: float = 0.0, wall: float = 10.0, **changes: Any) -> PartitionMetrics:
    """Make one partition of a run that waits for its input."""
    rng = random.Random(number)
    shares = {
        "model_load": 0.04,
        "input_wait": 0.55,
        "compute": 0.3,
        "postprocess": 0.03,
        "encode": 0.05,
        "output_wait": 0.02,
        "other": 0.01,
    }
    values: dict[str, Any] = {
        "call": "tag",
        "execution": "0",
        "partition": number,
        "task_attempt": number,
        "host": host,
        "pid": 100 + number % 7,
        "started_unix": BEGUN + started,
        "wall_seconds": wall,
        "rows": 5000,
        "scored_rows": 5000,
        "batches": 79,
        "chunks": 5,
        "chunk_rows_max": 1000,
        "bytes_in": 81_300_000,
        "bytes_out": 2_300_000,
        "stages": {stage: share * wall for stage, share in shares.items()},
        "producer": {"read": 0.08 * wall, "decode": 0.12 * wall, "preprocess": 0.66 * wall, "collate": 0.03 * wall},
        "producer_blocked_seconds": 0.01 * wall,
        "warmup_seconds": 0.31,
        "latency": latencies([rng.lognormvariate(math.log(0.3 * (wall if wall > 0 else 1.0) / 79), 0.35) for _ in range(78)]),
        "model_loads": 1,
        "cpu_seconds": 0.9 * wall,
        "rss_peak_bytes": 812_000_000 + number * 1_000_000,
        "device": "cpu",
    }
    return PartitionMetrics(**{**values, **changes})


def latencies(seconds: list[float]) -> Histogram:
    """Count some."""
    histogram = Histogram()
    for one in seconds:
        histogram.add(one)
    return histogram


def host_series(elapsed: float, seed: int = 0, samples: int = 64) -> tuple[Series, ...]:
    """Make what a host's sampler would have seen."""
    rng = random.Random(seed)
    times = tuple(BEGUN + elapsed * tick / samples for tick in range(samples))

    def walk(name: str, middle: float, wide: float, device: str | None = None) -> Series:
        return Series(name, device, times, tuple(max(0.0, rng.gauss(middle, wide)) for _ in times))

    return (
        walk("cpu_utilization_percentage", 78, 6),
        walk("system_memory_usage_percentage", 41, 1),
        walk("disk_read_megabytes_per_second", 120, 40),
        walk("disk_write_megabytes_per_second", 11, 4),
        walk("network_receive_megabytes_per_second", 93, 20),
        walk("network_transmit_megabytes_per_second", 12, 3),
    )


def card_series(elapsed: float, card: int, seed: int = 0, samples: int = 64) -> tuple[Series, ...]:
    """Make what a card's sampler would have seen."""
    rng = random.Random(seed * 31 + card)
    times = tuple(BEGUN + elapsed * tick / samples for tick in range(samples))
    starved = [0.0 if (tick // 5 + card) % 3 == 0 else 1.0 for tick in range(samples)]

    def walk(name: str, middle: float, wide: float) -> Series:
        values = tuple(max(0.0, rng.gauss(middle, wide)) * (0.1 + 0.9 * busy) for busy in starved)
        return Series(f"gpu_{card}_{name}", f"GPU-{seed}-{card}", times, values)

    return (
        walk("utilization_percentage", 71, 6),
        walk("memory_usage_percentage", 38, 0.5),
        walk("power_usage_watts", 190, 15),
        walk("temperature_celsius", 61, 1),
    )


def run_of(partitions: list[PartitionMetrics], **changes: Any) -> RunMetrics:
    """Make a run of these records."""
    ended = max((record.started_unix + record.wall_seconds for record in partitions), default=BEGUN)
    values: dict[str, Any] = {
        "id": "run-1",
        "name": "nightly scoring",
        "started_unix": BEGUN - 2.0,
        "ended_unix": ended + 1.0,
        "executions": tuple(group_executions(partitions)),
        "settings": {"model": "efficientnet.pt2", "backend": "torch", "batch_size": 64, "num_workers": 0, "road": "map"},
        "environment": {"spark": "4.3.0", "python": "3.11.2", "torch": "2.13.0+cpu", "session": "classic, local[2]"},
    }
    return RunMetrics(**{**values, **changes})


def run_with(partitions: int, hosts: int = 1, slots: int = 4, *, skew: bool = False, series: bool = False, cards: int = 0) -> RunMetrics:
    """Make a run whose partitions take turns in their hosts' slots."""
    rng = random.Random(7)
    ends = {(host, slot): 0.0 for slot in range(slots) for host in range(hosts)}
    records = []
    for number in range(partitions):
        (host, slot), started = min(ends.items(), key=lambda one: one[1])
        wall = rng.lognormvariate(math.log(9), 0.22) * (4.5 if skew and number % 29 == 17 else 1.0)
        records.append(partition(number, host=f"ip-10-12-44-{200 + host}.eu-west-1.compute.internal", started=started, wall=wall))
        ends[host, slot] = started + wall + rng.uniform(0.02, 0.1)
    elapsed = max(ends.values())
    if series or cards:
        seen = {record.host: seed for seed, record in enumerate(records)}
        made = {
            host: (host_series(elapsed, seed) if series else ()) + sum((card_series(elapsed, card, seed) for card in range(cards)), ())
            for host, seed in seen.items()
        }
        records = [PartitionMetrics(**{**vars(record), "series": made[record.host]}) for record in records]
    return run_of(records)


def verdict(**changes: Any) -> Any:
    """Make a verdict as the analysis gives them."""
    values: dict[str, Any] = {
        "kind": "input-bound",
        "cause": "preprocess",
        "evidence": {"stage/input_wait_fraction": 0.55, "bottleneck/producer_blocked_fraction": 0.01},
        "advice": "Set num_workers=2: preprocess takes most of the time ahead of the model, and it runs on one thread.",
        "gain": (1.4, 1.9),
    }
    return SimpleNamespace(**{**values, **changes})
