"""What a partition measured, and what a run makes of it: plain values that merge.

Runs on: both (standard library only).

Invariant: a partition is counted once, whatever was retried, speculated or recomputed; percentiles come from merged histograms and are
never averaged; what was not measured is absent and never 0.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import mode
from typing import Any

from sparkinfer.costs import card_costs
from sparkinfer.profiles import PartitionProfile
from sparkinfer.quality import Quality

__all__ = [
    "CONSUMER_STAGES",
    "DEVICE_STAGES",
    "PRODUCER_STAGES",
    "Execution",
    "Histogram",
    "PartitionMetrics",
    "RunMetrics",
    "Series",
    "group_executions",
    "merged_quality",
    "summarise",
]

CONSUMER_STAGES = ("model_load", "input_wait", "compute", "postprocess", "encode", "output_wait", "other")
"""Where the task's own thread is; exclusive, and in all the partition's wall time."""

PRODUCER_STAGES = ("read", "decode", "preprocess", "collate", "transfer")
"""What is done ahead of the model; overlaps the consumer's stages, and itself with several loader processes."""

DEVICE_STAGES = ("copy_in", "preprocess", "compute", "copy_out")
"""What a card does for a batch, by its own clock; copies run beside the computing of other batches."""

_BUCKETS_PER_DOUBLING = 8  # a bucket is 9 % wide, so a quantile is right to 4.5 %
_SHORTEST, _LONGEST = 1e-9, 1e9  # seconds; max(1e-9, nan) is 1e-9, the other way round it would be nan


@dataclass
class Histogram:
    """Durations in logarithmic buckets that add up over partitions.

    Example:
        >>> latency = Histogram()
        >>> for seconds in (0.010, 0.010, 0.010, 0.200):
        ...     latency.add(seconds)
        >>> round(latency.quantile(0.5), 3)
        0.01
    """

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        """Count one duration; what is below a nanosecond or no number counts as one, what is above 30 years as those."""
        bucket = math.floor(math.log2(min(_LONGEST, max(_SHORTEST, seconds))) * _BUCKETS_PER_DOUBLING)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def __add__(self, other: Histogram) -> Histogram:
        """Count both."""
        merged = dict(self.counts)
        for bucket, count in other.counts.items():
            merged[bucket] = merged.get(bucket, 0) + count
        return Histogram(merged)

    @property
    def total(self) -> int:
        """How many durations were counted."""
        return sum(self.counts.values())

    def quantile(self, share: float) -> float:
        """Give the middle (geometric) of the bucket that holds the ``share`` quantile, in seconds.

        Args:
            share: 0 to 1; beyond them the nearest bucket that was counted.

        Raises:
            ValueError: nothing was counted.
        """
        wanted = min(self.total, max(1, math.ceil(share * self.total - 1e-9)))  # 0.07 * 100 is a little above 7
        for bucket in sorted(self.counts):
            wanted -= self.counts[bucket]
            if wanted <= 0 < self.counts[bucket]:
                return float(2 ** ((bucket + 0.5) / _BUCKETS_PER_DOUBLING))
        msg = "the histogram is empty: it has no quantiles"
        raise ValueError(msg)


@dataclass(frozen=True)
class Series:
    """Samples of one quantity over time, on one host.

    Attributes:
        name: without the host, such as ``gpu_0_utilization_percentage`` or ``cpu_utilization_percentage``: MLflow's own words, the unit last.
        device: the card's UUID, where the samples are a card's; two workers on a card send the same ones.
        times_unix: seconds since 1970.
        values: as many.
    """

    name: str
    device: str | None
    times_unix: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PartitionMetrics:
    """One partition's record, as it travels to the driver.

    Attributes:
        call: which ``predict`` or ``predict_udf`` it belongs to.
        run: the ``inference_run`` that surrounded the action, if one did.
        execution: Spark's SQL execution id; ``None`` where there is none.
        partition: Spark's partition id.
        task_attempt: Spark's task attempt id, unique in the application and rising.
        host: the worker's host.
        pid: the Python worker's process id.
        started_unix: when it began, seconds since 1970.
        wall_seconds: from its first to its last step.
        rows: rows put out.
        scored_rows: rows that the model saw.
        bad_rows: rows that have a reason and no prediction, by stage and type, such as ``{"preprocess ValueError": 3}``.
        batches: model calls.
        batch_rows_fit: rows to which batches were cut, since more did not fit into memory; ``None`` where all fitted.
        batch_rows_settled: rows on which ``batch_size="auto"`` had settled by the end; ``None`` where it had not, or was not asked for.
        chunks: what Spark sent, in number.
        chunk_rows_max: the largest chunk's rows.
        bytes_in: Arrow bytes of the columns that came.
        bytes_out: Arrow bytes of the columns that went back.
        stages: seconds of each consumer stage; in all ``wall_seconds``.
        producer: busy seconds of each producer stage that was measured.
        producer_blocked_seconds: the producer's wait for room in the queue after warm-up, where the feed can tell.
        queue_depth_mean: batches that waited ready after warm-up, weighted by time, where the feed can tell.
        queue_empty_fraction: share of the same time in which none did.
        queue_full_fraction: share of the same time in which the producer waited for room.
        warmup_seconds: compute of the first batch, which is in no other latency figure.
        warmup_wait_seconds: the part of ``input_wait`` that came before it, while nothing could overlap.
        latency: compute seconds of the other batches.
        model_loads: loads in this partition, 0 or 1.
        cpu_seconds: of the Python worker's process, without its loader processes.
        rss_peak_bytes: the largest resident size that was seen.
        rss_slope_bytes_per_batch: by least squares after warm-up, where there are enough samples.
        device: where the model ran.
        device_wait_seconds: how long it waited for a place on a card, a part of ``model_load``; ``None`` on a CPU.
        device_peak_bytes: the device allocator's peak, where the framework tells.
        device_end_bytes: what the device's allocator held at the end, likewise.
        device_seconds: what the batches took on the device, by ``DEVICE_STAGES``, where the framework has events; empty elsewhere.
        rss_end_bytes: the resident size at the end.
        memory: batch and bytes of the process's own memory (neither files nor shared memory) when it came, at most 24 of them.
        memory_left_bytes: what the process could still take at the end, by the host and its control group.
        series: what the samplers saw, at most 64 samples each.
        gauges: single figures of the samplers, such as ``gpu_0_energy_joules``.
        remarks: what could not be measured, and why; each once.
        quality: how the predictions compare with the run's label column, where they were compared.
        micro_batch: the streaming query and the micro-batch that the action was of, as ``query/number``; ``None`` outside a stream.
        profile: what a profiler saw, where the partition was watched.
    """

    call: str
    run: str | None = None
    execution: str | None
    partition: int
    task_attempt: int
    host: str
    pid: int
    started_unix: float
    wall_seconds: float
    rows: int = 0
    scored_rows: int = 0
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    batches: int = 0
    batch_rows_fit: int | None = None
    batch_rows_settled: int | None = None
    chunks: int = 0
    chunk_rows_max: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    stages: Mapping[str, float] = field(default_factory=dict)
    producer: Mapping[str, float] = field(default_factory=dict)
    producer_blocked_seconds: float | None = None
    queue_depth_mean: float | None = None
    queue_empty_fraction: float | None = None
    queue_full_fraction: float | None = None
    warmup_seconds: float | None = None
    warmup_wait_seconds: float | None = None
    latency: Histogram = field(default_factory=Histogram)
    model_loads: int = 0
    cpu_seconds: float = 0.0
    rss_peak_bytes: int | None = None
    rss_slope_bytes_per_batch: float | None = None
    device: str | None = None
    device_wait_seconds: float | None = None
    device_peak_bytes: int | None = None
    device_end_bytes: int | None = None
    device_seconds: Mapping[str, float] = field(default_factory=dict)
    rss_end_bytes: int | None = None
    memory: tuple[tuple[int, int], ...] = ()
    memory_left_bytes: int | None = None
    series: tuple[Series, ...] = ()
    gauges: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    quality: Quality | None = None
    micro_batch: str | None = None
    profile: PartitionProfile | None = None

    def flat(self) -> dict[str, str | int | float | None]:
        """Give the record as one line of a table: stages as ``<stage>_seconds``, gauges by name; what is not finite is ``None``."""
        told: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, (str, int, float))}
        told["bad_rows"] = sum(self.bad_rows.values())
        told.update({f"{stage}_seconds": seconds for stage, seconds in self.stages.items()})
        told.update({f"producer_{stage}_seconds": seconds for stage, seconds in self.producer.items()})
        told.update({f"device_{stage}_seconds": seconds for stage, seconds in self.device_seconds.items()})
        if self.latency.total:
            told.update({f"batch_latency_seconds_p{percent}": self.latency.quantile(percent / 100) for percent in (50, 99)})
        told.update(self.gauges)
        if self.remarks:
            told["remarks"] = "\n".join(self.remarks)
        return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in told.items()}

    def to_json(self) -> str:
        """Write the record compactly: a few hundred bytes to a few kilobytes."""
        values: dict[str, Any] = {known.name: getattr(self, known.name) for known in fields(self)}
        values["latency"] = sorted(self.latency.counts.items())
        values["series"] = [asdict(one) for one in self.series]
        values["gauges"], values["bad_rows"] = dict(self.gauges), dict(self.bad_rows)
        values["quality"] = self.quality.told() if self.quality is not None else None
        values["profile"] = self.profile.told() if self.profile is not None else None
        for name in ("stages", "producer", "device_seconds"):
            values[name] = {stage: round(seconds, 6) for stage, seconds in values[name].items()}
        values["device_seconds"] = values["device_seconds"] or None  # most partitions run on no card
        told = {name: value for name, value in values.items() if value is not None}
        return json.dumps(told, separators=(",", ":"), default=float)  # a counter may be NumPy's or ctypes' number

    @classmethod
    def from_json(cls, text: str) -> PartitionMetrics:
        """Read what ``to_json`` wrote; a field of a newer version is left out."""
        known = {known.name for known in fields(cls)}
        values: dict[str, Any] = {"execution": None, **{name: value for name, value in json.loads(text).items() if name in known}}
        values["latency"] = Histogram({int(bucket): int(count) for bucket, count in values.get("latency", ())})
        values["series"] = tuple(
            Series(one["name"], one.get("device"), tuple(one["times_unix"]), tuple(one["values"])) for one in values.get("series", ())
        )
        values["remarks"] = tuple(values.get("remarks", ()))
        values["memory"] = tuple((batch, size) for batch, size in values.get("memory", ()))
        if "quality" in values:
            values["quality"] = Quality.read(values["quality"])
        if "profile" in values:
            values["profile"] = PartitionProfile.read(values["profile"])
        return cls(**values)


@dataclass(frozen=True)
class Execution:
    """One execution of one call: the partitions of one action, each once.

    Attributes:
        call: which ``predict`` or ``predict_udf``.
        execution: Spark's SQL execution id, if it had one.
        partitions: the records that count, by partition.
        duplicates: records that were dropped for a later attempt at the same partition.
    """

    call: str
    execution: str | None
    partitions: tuple[PartitionMetrics, ...]
    duplicates: int

    @property
    def micro_batch(self) -> str | None:
        """The streaming query and its micro-batch, if it was of one."""
        return next((record.micro_batch for record in self.partitions), None)

    @property
    def rows_by_partition(self) -> Mapping[int, int]:
        """Rows that each partition put out."""
        rows: dict[int, int] = defaultdict(int)
        for record in self.partitions:
            rows[record.partition] += record.rows
        return rows


def group_executions(records: Iterable[PartitionMetrics]) -> list[Execution]:
    """Sort records into executions, in the order in which they began, and keep each partition's last attempt.

    All records of the largest task attempt id of a partition are kept, not just one: under ``coalesce`` one task runs the loop
    several times. An execution began with its first attempt, also where that one is not counted.
    """
    grouped: dict[tuple[str, str | None], dict[int, list[PartitionMetrics]]] = defaultdict(lambda: defaultdict(list))
    begun: dict[tuple[str, str | None], float] = {}
    for record in records:
        key = record.call, record.execution
        grouped[key][record.partition].append(record)
        begun[key] = min(begun.get(key, math.inf), record.started_unix)
    return [_keep_last_attempts(key, grouped[key]) for key in sorted(grouped, key=lambda key: begun[key])]


def _keep_last_attempts(key: tuple[str, str | None], partitions: Mapping[int, Sequence[PartitionMetrics]]) -> Execution:
    kept: list[PartitionMetrics] = []
    for _, attempts in sorted(partitions.items()):
        last = max(record.task_attempt for record in attempts)
        kept += [record for record in attempts if record.task_attempt == last]
    return Execution(*key, tuple(kept), sum(map(len, partitions.values())) - len(kept))


def scored_again(earlier: Mapping[int, int], later: Mapping[int, int]) -> bool:
    """Tell whether all rows that one execution scored were scored by another one again: the same rows in each of its partitions.

    Args:
        earlier: rows by partition, of a complete execution.
        later: likewise, of one that may still run.

    Example:
        >>> scored_again({0: 10, 1: 10}, {0: 10}), scored_again({0: 10, 1: 10}, {1: 10, 0: 10})
        (False, True)
    """
    return any(earlier.values()) and all(later.get(partition) == rows for partition, rows in earlier.items())


def summarise(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    """Make a run's figures of its partitions, by documented names.

    A figure that needs what was not measured is left out, and so is one that would be no finite number.
    """
    if not partitions:
        return {"inference/rows_total": 0, "inference/partitions_total": 0}
    figures = {
        **_totals(partitions),
        **_latencies(partitions),
        **_stages(partitions),
        **_producer(partitions),
        **_on_device(partitions),
        **_memory(partitions),
        **card_costs(partitions),
    }
    fit = [record.batch_rows_fit for record in partitions if record.batch_rows_fit is not None]
    if fit:
        figures["memory/batch_rows_fit"] = min(fit)
    settled = [record.batch_rows_settled for record in partitions if record.batch_rows_settled is not None]
    if settled:
        figures["config/batch_size"] = mode(sorted(settled))  # workers settle each for themselves; of equals the smaller
    quality = merged_quality(partitions)
    if quality is not None:
        figures.update(quality.figures())
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def found_before(settings: Mapping[str, Any]) -> dict[str, float]:
    """Give the figures that the driver had before any partition, by documented names."""
    apart = settings.get("optimize_max_abs_difference")
    return {} if apart is None else {"inference/optimize_max_abs_difference": float(apart)}


def merged_quality(partitions: Iterable[PartitionMetrics]) -> Quality | None:
    """Add up how the partitions' predictions compare with the label; ``None`` where none was compared."""
    merged: Quality | None = None
    for record in partitions:
        if record.quality is not None:
            merged = record.quality if merged is None else merged + record.quality
    return merged


def _totals(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    begun = min(record.started_unix for record in partitions)
    ended = max(record.started_unix + record.wall_seconds for record in partitions)
    rows = sum(record.rows for record in partitions)
    figures: dict[str, float] = {
        "inference/rows_total": rows,
        "inference/scored_rows_total": sum(record.scored_rows for record in partitions),
        "inference/bad_rows_total": sum(sum(record.bad_rows.values()) for record in partitions),
        "inference/batches_total": sum(record.batches for record in partitions),
        "inference/partitions_total": len({record.partition for record in partitions}),
        "inference/bytes_in_total": sum(record.bytes_in for record in partitions),
        "inference/bytes_out_total": sum(record.bytes_out for record in partitions),
        "inference/model_loads_total": sum(record.model_loads for record in partitions),
        "inference/elapsed_seconds": ended - begun,
        "inference/partition_seconds_total": sum(record.wall_seconds for record in partitions),
        "inference/cpu_seconds_total": sum(record.cpu_seconds for record in partitions),
        "arrow/chunk_rows_max": max(record.chunk_rows_max for record in partitions),
    }
    if ended > begun:
        figures["inference/rows_per_second"] = rows / (ended - begun)
    return figures


def _latencies(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    latency = sum((record.latency for record in partitions), Histogram())
    if not latency.total:
        return {}
    return {f"inference/batch_latency_seconds_p{percent}": latency.quantile(percent / 100) for percent in (50, 90, 95, 99)}


def _stages(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for stage in CONSUMER_STAGES:
        measured = [record for record in partitions if stage in record.stages]
        if not measured:
            continue
        seconds = sum(record.stages[stage] for record in measured)
        figures[f"stage/{stage}_seconds"] = seconds
        wall = sum(record.wall_seconds for record in measured)
        if wall > 0:
            figures[f"stage/{stage}_fraction"] = seconds / wall
    return figures


def _producer(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for stage in PRODUCER_STAGES:
        measured = [record.producer[stage] for record in partitions if stage in record.producer]
        if measured:
            figures[f"producer/{stage}_seconds"] = sum(measured)
    blocked = [
        (record.producer_blocked_seconds, record.wall_seconds) for record in partitions if record.producer_blocked_seconds is not None
    ]
    wall = sum(seconds for _, seconds in blocked)
    if wall > 0:
        figures["bottleneck/producer_blocked_fraction"] = sum(seconds for seconds, _ in blocked) / wall
    return figures


def _on_device(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    measured = [record for record in partitions if record.device_seconds]
    figures = {
        f"gpu/{stage}_seconds": sum(found)
        for stage in DEVICE_STAGES
        if (found := [record.device_seconds[stage] for record in measured if stage in record.device_seconds])
    }
    wall = sum(record.wall_seconds for record in measured)
    if wall > 0 and "gpu/compute_seconds" in figures:
        figures["gpu/compute_fraction"] = figures["gpu/compute_seconds"] / wall
    return figures


def _memory(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    resident = [record.rss_peak_bytes for record in partitions if record.rss_peak_bytes is not None]
    return {"memory/rss_peak_megabytes": max(resident) / 1e6} if resident else {}


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """A run: the actions inside one ``inference_run``, or one bare action.

    Attributes:
        id: unique.
        name: for people.
        started_unix: when the block was entered, seconds since 1970.
        ended_unix: when it was left.
        executions: what was executed, in order; the first is the run itself, the others are its children.
        settings: of the first execution's call: ``model``, ``backend``, ``batch_size``, ``num_workers``, ``road``, ...
        environment: versions of Spark, Python, frameworks; the kind of session.
        remarks: what was not measured, and what would help.
    """

    id: str
    name: str | None
    started_unix: float
    ended_unix: float
    executions: tuple[Execution, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def partitions(self) -> tuple[PartitionMetrics, ...]:
        """The first execution's partitions: those that the summary is of."""
        return self.executions[0].partitions if self.executions else ()

    @property
    def quality(self) -> Quality | None:
        """How the first execution's predictions compare with the label column; ``None`` where they were not compared."""
        return merged_quality(self.partitions)

    @property
    def summary(self) -> dict[str, float]:
        """The first execution's figures, by documented names, and what the driver found before."""
        return {**summarise(self.partitions), **found_before(self.settings)}
