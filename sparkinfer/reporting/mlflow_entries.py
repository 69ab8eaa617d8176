"""What a run leaves in MLflow, as plain values: which names, which points, which tags.

Runs on: driver (standard library only; MLflow itself is ``sparkinfer.reporting.mlflow``'s).

Invariant: every name and every value here is one that MLflow's servers take; what they would not take is left out and counted.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Protocol

from sparkinfer.metrics import Execution, PartitionMetrics, RunMetrics, Series, summarise

__all__ = [
    "Dataset",
    "Entries",
    "Point",
    "dataset_of",
    "entries_of",
    "partition_table",
    "run_parameters",
    "run_tags",
    "summary_json",
    "valid_name",
]

MOST_PARTITIONS = 2_000
MOST_SAMPLES = 500
MOST_SYSTEM_POINTS = 50_000  # 50 batches: some 20 s to SQLite

_LONGEST_NAME = 250
_LONGEST_PARAMETER = 1_000  # servers take 500 (before 2.8) to 6,000 characters; MLflow cuts by itself, or refuses the batch
_LONGEST_TAG = 5_000


class VerdictLike(Protocol):
    """What is needed of a verdict: a word for it."""

    @property
    def kind(self) -> str:
        """Such as ``input-bound``."""


@dataclass(frozen=True)
class Point:
    """One value of one metric.

    Attributes:
        name: valid.
        value: finite.
        unix: seconds since 1970.
        step: a partition's id, or a sample's place in its series.
    """

    name: str
    value: float
    unix: float
    step: int = 0


@dataclass(frozen=True)
class Dataset:
    """What was scored, told without looking at it: MLflow's own ``from_spark`` would run the inference again.

    Attributes:
        name: for people.
        source_type: MLflow's word.
        source: JSON.
        digest: of name, source and rows, at most 36 characters.
        profile: JSON of what is known anyway.
    """

    name: str
    source_type: str
    source: str
    digest: str
    profile: str


@dataclass(frozen=True)
class Entries:
    """One execution's entries.

    Attributes:
        summary: one point a figure.
        partitions: series whose step is the partition's id.
        system: series over time, of hosts and cards.
        tags: what was thinned and left out, among others.
    """

    summary: list[Point]
    partitions: list[Point]
    system: list[Point]
    tags: dict[str, str] = field(default_factory=dict)


def entries_of(execution: Execution, before: Mapping[str, float] | None = None) -> Entries:
    """Make an execution's entries; series are thinned to what a server and a chart can bear, and the tags say so.

    Args:
        execution: what reported.
        before: figures that were there before it.
    """
    records = execution.partitions
    ended = max((_end(record) for record in records), default=0.0)
    summary = [Point(name, value, ended) for name, value in {**summarise(records), **(before or {})}.items()]
    every = -(-len(records) // MOST_PARTITIONS) or 1
    partitions = [point for record in records[::every] for point in _partition_points(record)]
    system, thinned = _system_points(records)
    entries = Entries(_finite(summary), _finite(partitions), _finite(system))
    left_out = len(summary) + len(partitions) + len(system) - len(entries.summary) - len(entries.partitions) - len(entries.system)
    tags = entries.tags
    if every > 1:
        tags["sparkinfer.partition_series"] = f"1 of every {every} of {len(records)} partitions; sparkinfer/partitions.json has all"
    if thinned:
        tags["sparkinfer.system_series"] = f"thinned evenly to {thinned} points of a series at most"
    if left_out:
        tags["sparkinfer.values_left_out"] = f"{left_out} that are not finite"
    if execution.duplicates:
        tags["sparkinfer.duplicates_dropped"] = str(execution.duplicates)
    return entries


def run_parameters(run: RunMetrics) -> dict[str, str]:
    """Give a run's settings and environment as parameters, under names that no training run in the same MLflow run has."""
    told = {
        f"inference/{name}": value
        for name, value in run.settings.items()
        if value is not None and not name.startswith(("data_", "optimize_max_"))
    }
    told.update({f"environment/{name}": value for name, value in run.environment.items()})
    return {valid_name(name): str(value)[:_LONGEST_PARAMETER] for name, value in told.items()}


def run_tags(run: RunMetrics, version: str, verdict: VerdictLike | None, *, complete: bool | None) -> dict[str, str]:
    """Give the tags that say whose run it is, and how it went; what is not known has none."""
    told = {
        "sparkinfer.version": version,
        "sparkinfer.run_id": run.id,
        "sparkinfer.verdict": getattr(verdict, "kind", None),
        "sparkinfer.complete": None if complete is None else str(complete).lower(),
        "sparkinfer.remarks": "\n".join(run.remarks) or None,
    }
    return {name: str(value)[:_LONGEST_TAG] for name, value in told.items() if value is not None}


def dataset_of(run: RunMetrics) -> Dataset | None:
    """Describe what was scored by the settings ``data_name`` and ``data_source`` (a path or a table's name), if they are there."""
    name, source = run.settings.get("data_name"), run.settings.get("data_source")
    if name is None and source is None:
        return None
    rows = sum(record.rows for record in run.partitions)
    kind = "path" if re.search(r"[/\\:]", str(source or "")) else "table_name"
    told = json.dumps({kind: str(source)} if source is not None else {})
    digest = hashlib.sha256(f"{name}\n{told}\n{rows}".encode()).hexdigest()[:8]
    return Dataset(str(name or source)[:500], "spark", told[:60_000], digest, json.dumps({"num_rows": rows}))


def summary_json(run: RunMetrics, verdict: VerdictLike | None) -> str:
    """Write what the run's summary, settings, environment, remarks and verdict are; a value that JSON has not becomes null or text."""
    told = {
        "id": run.id,
        "name": run.name,
        "started_unix": run.started_unix,
        "ended_unix": run.ended_unix,
        "summary": run.summary,
        "verdict": _told(verdict),
        "settings": dict(run.settings),
        "environment": dict(run.environment),
        "remarks": list(run.remarks),
        "executions": [
            {"execution": one.execution, "call": one.call, "duplicates": one.duplicates, "summary": summarise(one.partitions)}
            for one in run.executions
        ],
    }
    return json.dumps(_without_infinities(told), indent=2, default=str, allow_nan=False)


def partition_table(records: Iterable[PartitionMetrics]) -> dict[str, list[Any]]:
    """Give the partitions as columns: one row a record, one column a field, a stage, or a gauge; what was not measured is ``None``."""
    rows = [record.flat() for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def valid_name(name: str) -> str:
    """Make a name that every MLflow server takes: letters, digits, ``_ - . /`` and space, and nothing that reads as another path.

    Example:
        >>> valid_name("system/fe80::1/../cpu (%)")
        'system/fe80__1/__/cpu ___'
    """
    # A colon is taken by newer servers only, and by none on Windows.
    parts = [re.sub(r"[^A-Za-z0-9_\-. ]", "_", part) for part in name.split("/") if part]
    return "/".join("_" * len(part) if part in {".", ".."} else part for part in parts)[:_LONGEST_NAME].rstrip("/") or "_"


def _partition_points(record: PartitionMetrics) -> Iterator[Point]:
    figures: dict[str, float | None] = {
        "rows": record.rows,
        "bad_rows": sum(record.bad_rows.values()),
        "wall_seconds": record.wall_seconds,
        "cpu_seconds": record.cpu_seconds,
        "rss_peak_megabytes": _megabytes(record.rss_peak_bytes),
        "device_peak_megabytes": _megabytes(record.device_peak_bytes),
        "queue_depth_mean": record.queue_depth_mean,
        "queue_empty_fraction": record.queue_empty_fraction,
        "queue_full_fraction": record.queue_full_fraction,
    }
    if record.wall_seconds > 0:
        figures["rows_per_second"] = record.rows / record.wall_seconds
        figures.update({f"{stage}_fraction": seconds / record.wall_seconds for stage, seconds in record.stages.items()})
    for name, value in figures.items():
        if value is not None:
            yield Point(f"partition/{name}", value, _end(record), record.partition)
    for name, value in record.gauges.items():
        yield Point(f"system/{_host(record)}/{name}", value, _end(record), record.partition)


def _system_points(records: Iterable[PartitionMetrics]) -> tuple[list[Point], int]:
    """Merge the series of each host; give the points, and the bound to which they were thinned (0 if they were not)."""
    merged: dict[tuple[str, str], dict[str | None, dict[float, float]]] = {}
    for record in records:
        for series in record.series:
            samples = merged.setdefault((_host(record), series.name), {}).setdefault(series.device, {})
            samples.update(_samples(series))  # two workers on one card send the same ones
    most = max(10, min(MOST_SAMPLES, MOST_SYSTEM_POINTS // max(1, sum(map(len, merged.values())))))
    points: list[Point] = []
    thinned = 0
    for (host, name), devices in merged.items():
        for device, samples in devices.items():
            # Each worker may call its own card number 0: two cards under one name stay apart.
            apart = f"/{device}" if len(devices) > 1 and device is not None else ""
            in_time = sorted(samples.items())
            every = -(-len(in_time) // most)
            thinned = most if every > 1 else thinned
            points += [Point(f"system/{host}/{name}{apart}", value, at, i) for i, (at, value) in enumerate(in_time[::every])]
    return points, thinned


def _samples(series: Series) -> Iterator[tuple[float, float]]:
    return zip(series.times_unix, series.values, strict=False)


def _finite(points: Iterable[Point]) -> list[Point]:
    """Keep the points that a server takes as they are, under valid names: infinity would become 1.8e308."""
    return [
        Point(valid_name(point.name), float(point.value), point.unix, point.step)
        for point in points
        if math.isfinite(point.value) and math.isfinite(point.unix)
    ]


def _told(verdict: Any) -> Any:
    return asdict(verdict) if is_dataclass(verdict) and not isinstance(verdict, type) else getattr(verdict, "kind", None)


def _without_infinities(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_infinities(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _host(record: PartitionMetrics) -> str:
    return record.host.replace("/", "_") or "unknown"


def _end(record: PartitionMetrics) -> float:
    return record.started_unix + record.wall_seconds


def _megabytes(size: int | None) -> float | None:
    return None if size is None else size / 1e6
