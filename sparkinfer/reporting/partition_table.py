"""The report's table of partitions, the slowest first.

Runs on: driver (standard library only).

Invariant: at most 500 rows; a column for which nothing was measured is left out; every cell carries what it is sorted by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkinfer.metrics import PartitionMetrics
from sparkinfer.reporting.markup import Html, tag
from sparkinfer.reporting.words import count, duration, percent, plain, rate, short_names, size

__all__ = ["partition_table"]

_ROWS = 500

_Column = tuple[str, Callable[[PartitionMetrics], "float | str | None"], Callable[[Any], str]]


def partition_table(partitions: Sequence[PartitionMetrics]) -> Html | None:
    """Make the table; without JavaScript it stands as it is, with it a head sorts its column."""
    if not partitions:
        return None
    begun = min(record.started_unix for record in partitions)
    ranked = sorted(partitions, key=lambda record: record.wall_seconds, reverse=True)[:_ROWS]
    short = short_names(record.host for record in partitions)
    columns = [column for column in _columns(begun, short) if any(column[1](record) is not None for record in ranked)]
    heads = [tag("th", name, class_="text" if name in {"host", "device"} else None, scope="col") for name, _, _ in columns]
    rows = [tag("tr", *(_cell(name, of(record), say) for name, of, say in columns)) for record in ranked]
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), id="partitions")
    cut = len(partitions) - len(ranked)
    note = (
        tag(
            "p", f"The {count(_ROWS)} slowest of {count(len(partitions))} partitions; {count(cut)} are not in this table.", class_="caption"
        )
        if cut
        else None
    )
    return tag("div", tag("div", table, class_="scroll"), note)


def _columns(begun: float, short: Mapping[str, str]) -> list[_Column]:
    return [
        ("partition", lambda one: one.partition, str),
        ("took", lambda one: _finite(one.wall_seconds), duration),
        ("rows", lambda one: one.rows, count),
        ("rows/s", lambda one: _share(one.rows, one.wall_seconds), rate),
        ("waiting", lambda one: _share(one.stages.get("input_wait"), one.wall_seconds), percent),
        ("model", lambda one: _share(one.stages.get("compute"), one.wall_seconds), percent),
        ("host", lambda one: one.host, short.__getitem__),
        ("began", lambda one: _finite(one.started_unix - begun), lambda seconds: f"+{duration(seconds)}"),
        ("batches", lambda one: one.batches, count),
        ("batch p95", lambda one: one.latency.quantile(0.95) if one.latency.total else None, duration),
        ("peak memory", lambda one: one.rss_peak_bytes, size),
        ("device memory", lambda one: one.device_peak_bytes, size),
        ("device", lambda one: one.device, lambda device: plain(device, 48)),
    ]


def _cell(name: str, value: float | str | None, say: Callable[[Any], str]) -> Html:
    kind = "text" if name in {"host", "device"} else None
    return tag("td", "\N{EN DASH}", class_=kind) if value is None else tag("td", say(value), class_=kind, data_sort=plain(value, 80))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _share(part: float | None, whole: float) -> float | None:
    return _finite(part / whole) if part is not None and whole > 0 else None
