"""One round of a diagnosis: what each arm took, and the costs that follow.

Runs on: driver (standard library only).

Invariant: all figures of a round were measured one after the other, so that ratios within a round are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from sparkinfer.analysis.costs import Costs, Shape

if TYPE_CHECKING:
    from sparkinfer.metrics import PartitionMetrics

__all__ = ["Arm", "ModelTimes", "Round", "arm_of"]

_PREPARED = ("decode", "preprocess", "collate")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What one part of the pipeline took, added up over its tasks.

    Attributes:
        rows: that went through.
        seconds: of all tasks, without the model's load and what the first call took beyond the others.
        producer: busy seconds of each stage ahead of the model.
        consumer: seconds of each stage of the task's own thread.
        cpu_seconds: of the tasks' processes.
        bytes: that came in.
        load: seconds of the slowest load, where one was loaded.
        rss_peak_bytes: of the largest task process, where it is known.
        device_peak_bytes: of the device's allocator in the largest task, where the framework tells.
        memory_left_bytes: what a task's process could still take at the end, where it is known.
        device: where the model ran, where there was one.
        parts: rows of each task; empty where it is not known.
        chunk_rows: that came at once; 0 where it is not known.
    """

    rows: int
    seconds: float
    producer: Mapping[str, float] = field(default_factory=dict)
    consumer: Mapping[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    bytes: int = 0
    load: float = 0.0
    rss_peak_bytes: int = 0
    device_peak_bytes: int = 0
    memory_left_bytes: int | None = None
    device: str = ""
    parts: tuple[int, ...] = ()
    chunk_rows: int = 0

    @property
    def each(self) -> float:
        """Seconds of one task slot for a row."""
        return self.seconds / self.rows

    def stage(self, *names: str) -> float:
        """Give the seconds for a row of some stages ahead of the model."""
        return sum(self.producer.get(name, 0.0) for name in names) / self.rows


@dataclass(frozen=True, kw_only=True)
class ModelTimes:
    """The model on one batch again and again.

    Attributes:
        calls: seconds of a call, by its rows: each the median of one task.
        postprocess: seconds for a row.
        encode: seconds for a row.
    """

    calls: Mapping[int, Sequence[float]]
    postprocess: float = 0.0
    encode: float = 0.0

    def of_call(self, rows: int) -> float:
        """Give the seconds of a call of so many rows."""
        return median(self.calls[rows])

    @property
    def line(self) -> tuple[float, float]:
        """Fit ``seconds = call + row * rows`` through the smallest and the largest call; neither is below 0."""
        least, most = min(self.calls), max(self.calls)
        small, large = self.of_call(least), self.of_call(most)
        if least == most:
            return 0.0, small / least
        row = min(max(0.0, (large - small) / (most - least)), small / least)
        return small - row * least, row


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was measured in turn.

    Attributes:
        source: the user's own plan is read, and nothing else.
        identity: the sample goes to Python and back; ``None`` without Spark.
        trivial: everything but the model, which repeats its first answers.
        synthetic: the model alone.
        everything: the pipeline as it is, read by the user's own plan.
    """

    source: Arm
    identity: Arm | None
    trivial: Arm
    synthetic: ModelTimes
    everything: Arm

    def costs(
        self, shape: Shape, *, other_threads: Sequence[tuple[int, float]] = (), load: float = 0.0, cores: float = 0.0, apart: bool = False
    ) -> Costs:
        """Give what a row costs at each step.

        Args:
            shape: the settings that the arms ran with.
            other_threads: the model's time with other numbers of threads, as shares.
            load: seconds of a model's load.
            cores: that a task slot has; 0 where it is not known.
            apart: whether the source runs in another process.
        """
        call, row = self.synthetic.line
        found = Costs(
            source=self.source.each,
            preprocess=self._preprocess(shape.num_workers),
            transfer=self.trivial.stage("transfer"),
            call=call,
            row=row,
            postprocess=self.synthetic.postprocess,
            encode=self.synthetic.encode,
            other_threads=tuple(other_threads),
            load=load,
            apart=apart,
        )
        computed = self.everything.cpu_seconds / self.everything.rows / cores if cores else 0.0
        return replace(found, busy=min(computed, self.everything.each) / max(found.in_turn(shape), 1e-12))

    def slower(self, costs: Costs, shape: Shape) -> float:
        """Give how many times the seconds that the costs say everything took."""
        arm = self.everything
        if not arm.parts:
            return arm.each / max(costs.seconds_per_row(shape), 1e-12)
        return arm.seconds / max(sum(costs.partition_seconds(rows, shape, arm.chunk_rows) for rows in arm.parts), 1e-9)

    def _preprocess(self, num_workers: int) -> float:
        """Take what the feed told, or else what reading leaves of the arm without a model (tf.data does not tell)."""
        arm = self.trivial
        elsewhere = arm.stage("read", "transfer")
        if any(name in arm.producer for name in _PREPARED) and not num_workers:
            return arm.stage(*_PREPARED)
        answers = sum(arm.consumer.get(name, 0.0) for name in ("compute", "postprocess", "encode", "output_wait")) / arm.rows
        if num_workers:  # their pace, the way between the processes with it, where it is they who set it
            told = arm.stage(*_PREPARED)
            return max(told, arm.each * num_workers) if arm.each > 1.2 * max(answers, arm.stage("read"), arm.stage("transfer")) else told
        return max(0.0, arm.each - elsewhere - answers)


def arm_of(records: Sequence[PartitionMetrics]) -> Arm:
    """Add up the records of one arm's tasks."""
    producer: dict[str, float] = {}
    consumer: dict[str, float] = {}
    for record in records:
        for name, seconds in record.producer.items():
            producer[name] = producer.get(name, 0.0) + seconds
        for name, seconds in record.stages.items():
            consumer[name] = consumer.get(name, 0.0) + seconds
    starts = [_start(record) for record in records]
    return Arm(
        rows=sum(record.rows for record in records),
        seconds=max(1e-9, sum(record.wall_seconds for record in records) - sum(starts)),
        producer=producer,
        consumer=consumer,
        cpu_seconds=sum(record.cpu_seconds for record in records),
        bytes=sum(record.bytes_in for record in records),
        load=max((start for start, record in zip(starts, records, strict=True) if record.model_loads), default=0.0),
        rss_peak_bytes=max((record.rss_peak_bytes or 0 for record in records), default=0),
        device_peak_bytes=max((record.device_peak_bytes or 0 for record in records), default=0),
        memory_left_bytes=min((record.memory_left_bytes for record in records if record.memory_left_bytes is not None), default=None),
        device=next((record.device for record in records if record.device), ""),
        parts=tuple(record.rows for record in records),
    )


def _start(record: PartitionMetrics) -> float:
    """Give the seconds of the model's load, and of its first call beyond the median one."""
    usual = record.latency.quantile(0.5) if record.latency.total else (record.warmup_seconds or 0.0)
    return record.stages.get("model_load", 0.0) + max(0.0, (record.warmup_seconds or 0.0) - usual)
