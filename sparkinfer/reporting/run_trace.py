"""One trace of a run, in the trace-event format that Perfetto and chrome://tracing read.

Runs on: driver (standard library only).

Invariant: a process is a host, a track is a task's loop, and nothing is drawn that was not measured: where a partition's steps were not kept
one by one, its stages stand end to end with what they took in all, and say so in their ``args``.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkinfer.metrics import CONSUMER_STAGES, PartitionMetrics, RunMetrics

__all__ = ["run_trace", "save_trace"]

Event = dict[str, Any]
_US = 1e6


def save_trace(run: RunMetrics, path: str | Path) -> Path:
    """Write the trace, gzip where the name ends in ``.gz``; folders that are missing are made.

    Returns:
        The path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(run_trace(run), separators=(",", ":"), allow_nan=False).encode()
    target.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)
    return target


def run_trace(run: RunMetrics) -> dict[str, Any]:
    """Make the trace: times in microseconds since the run's begin.

    Returns:
        ``traceEvents`` and what names them: a process for each host, a track for each task, and tracks for what a profiler saw in it;
        counters for the samplers' series and for the batches that waited ready.
    """
    records = [record for execution in run.executions for record in execution.partitions]
    begun = min([run.started_unix, *(record.started_unix for record in records)])
    hosts = {host: number for number, host in enumerate(sorted({record.host for record in records}), start=1)}
    events: list[Event] = [_named("process_name", pid, 0, host) for host, pid in hosts.items()]
    for number, record in enumerate(records):
        pid, tid = hosts[record.host], (number + 1) * 100  # room for the threads that its profiler saw
        start = (record.started_unix - begun) * _US
        events.append(_named("thread_name", pid, tid, f"partition {record.partition}, task {record.task_attempt}, worker {record.pid}"))
        events.append(_slice(f"partition {record.partition}", pid, tid, start, record.wall_seconds * _US, "partition", _facts(record)))
        events += _stages(record, pid, tid, start)
        events += _queue(record, pid, tid, start)
        events += _watched(record, pid, tid, begun)
    events += _counters(records, hosts, begun)
    facts = {"run": run.id, "name": run.name or "", **{name: str(value) for name, value in run.environment.items()}}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _slice(name: str, pid: int, tid: int, start: float, us: float, kind: str, args: Mapping[str, Any]) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": pid,
        "tid": tid,
        "ts": round(start, 3),
        "dur": round(max(0.0, us), 3),
        "args": dict(args),
    }


def _count(name: str, pid: int, at: float, value: float) -> Event:
    return {"ph": "C", "name": name, "cat": "counter", "pid": pid, "tid": 0, "ts": round(at, 3), "args": {"value": value}}


def _facts(record: PartitionMetrics) -> dict[str, Any]:
    return {"rows": record.rows, "batches": record.batches, "device": record.device or "", "call": record.call}


def _stages(record: PartitionMetrics, pid: int, tid: int, start: float) -> Iterator[Event]:
    if record.profile is not None and record.profile.laps:
        for stage, begin, took in record.profile.laps:
            yield _slice(stage, pid, tid, start + begin * _US, took * _US, "stage", {"summed": False})
        return
    at = start
    for stage in CONSUMER_STAGES:
        seconds = record.stages.get(stage, 0.0)
        if seconds > 0:
            yield _slice(stage, pid, tid, at, seconds * _US, "stage", {"summed": True})
        at += seconds * _US


def _queue(record: PartitionMetrics, pid: int, tid: int, start: float) -> Iterator[Event]:
    name = f"batches ready, partition {record.partition} ({tid})"
    if record.profile is not None and record.profile.depths:
        for when, depth in record.profile.depths:
            yield _count(name, pid, start + when * _US, depth)
    elif record.queue_depth_mean is not None:
        yield _count(f"{name}, mean", pid, start, record.queue_depth_mean)
    else:
        return
    yield _count(name if record.profile and record.profile.depths else f"{name}, mean", pid, start + record.wall_seconds * _US, 0)


def _watched(record: PartitionMetrics, pid: int, tid: int, begun: float) -> Iterator[Event]:
    """Lay the profiler's own slices beside the task: their clock is set by when the profiler began."""
    profile = record.profile
    if profile is None or profile.trace is None or profile.trace_kind != "chrome":
        return
    events = json.loads(gzip.decompress(base64.b64decode(profile.trace))).get("traceEvents", ())
    slices = [one for one in events if one.get("ph") == "X" and isinstance(one.get("ts"), int | float)]
    if not slices:
        return
    shift = (profile.started_unix - begun) * _US - min(float(one["ts"]) for one in slices)
    tracks: dict[Any, int] = {}
    for one in slices:
        track = one.get("pid"), one.get("tid")
        if track not in tracks:
            tracks[track] = tid + 1 + min(len(tracks), 98)
            yield _named("thread_name", pid, tracks[track], f"partition {record.partition}: {profile.profiler} {one.get('tid')}")
        yield _slice(
            str(one["name"]), pid, tracks[track], float(one["ts"]) + shift, float(one.get("dur", 0)), str(one.get("cat", "operator")), {}
        )


def _counters(records: list[PartitionMetrics], hosts: Mapping[str, int], begun: float) -> Iterator[Event]:
    """Give the samplers' series; workers of one host see the same card at the same moment, which counts once."""
    seen: set[tuple[str, str, float]] = set()
    for record in records:
        for series in record.series:
            for when, value in zip(series.times_unix, series.values, strict=True):
                key = record.host, series.name, when
                if key not in seen:
                    seen.add(key)
                    yield _count(series.name, hosts[record.host], (when - begun) * _US, value)
