"""A diagnosis's arms on Spark.

Runs on: driver.

Invariant: an arm's rows go to a sink that keeps nothing; the sample is let go of at the end, and the session's settings are as they were.
"""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

from sparkinfer.analysis.rounds import Arm, arm_of
from sparkinfer.config import InferenceConfig, refuse_unknown
from sparkinfer.engine.probe import Called
from sparkinfer.exceptions import ConfigError, SparkInferError
from sparkinfer.spark.arm_tasks import Alone, Brought, Sampled
from sparkinfer.spark.arrival import travelling
from sparkinfer.spark.channels import open_channel, read_worker_logs
from sparkinfer.spark.chosen import can_choose, collect_in, evenly, partition_count, run_in
from sparkinfer.spark.marks import cancel_marked
from sparkinfer.spark.packed import PACKED
from sparkinfer.spark.predict import by_map, planned, predict, sent
from sparkinfer.spark.runs import surrounded
from sparkinfer.spark.scan import FileTable
from sparkinfer.spark.session import MAX_RECORDS, is_connect, is_local, setting
from sparkinfer.spark.ship import ship
from sparkinfer.spark.types import carried_by_arrow
from sparkinfer.spark.udf import quoted
from sparkinfer.spark.worker import PartitionTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkinfer.engine.contracts import Describable
    from sparkinfer.engine.partition import PartitionPlan
    from sparkinfer.metrics import PartitionMetrics

__all__ = ["SparkArms"]

_CHUNKS = 8  # of an arm's partition, so that reading has something to run ahead of
_LARGEST_CHUNK = 10_000  # Spark's own default
_MOST_SENT = 64 << 20  # bytes that a task brings along: Spark refuses tasks of 128 MiB (spark.rpc.message.maxSize)
_WAVES = 2  # of tasks over the partitions that are read, where they can be chosen
_LONG = 3600.0  # seconds


class SparkArms:
    """The arms over a DataFrame; answers ``diagnosing.Arms``."""

    def __init__(self, data: Any, model: Describable, arguments: dict[str, Any], config: InferenceConfig, slots: int | None) -> None:
        """Check everything, as ``predict`` does.

        Raises:
            ConfigError, SchemaError, ModelLoadError: an argument is wrong, or ``data`` is a stream.
        """
        refuse_unknown(arguments, inspect.signature(predict).parameters)
        made = planned(data, model, **arguments, config=config)
        self.remarks: list[str] = []
        source = made.source
        if isinstance(source, FileTable):
            self.remarks.append(
                "the files were read by Spark's scan here, so that what the direct road gains at the source is not in the figures"
            )
            source = source.to_dataframe()
        if source.isStreaming:
            msg = "data is a stream, and a diagnosis reads it again and again: give a table with some of its rows"
            raise ConfigError(msg)
        kept = made.plan.keep if made.road != "column" else ()
        if made.road == "column":
            self.remarks.append("measured by mapInArrow with the inputs alone, as the column road's kept columns stay in the JVM")
        kept = tuple(name for name in kept if carried_by_arrow(source.schema[name].dataType))
        self._plan = replace(made.plan, keep=kept)
        self._data: DataFrame = source
        self._session = source.sparkSession
        self._files = ship(made.plan.model, self._session)
        self._sample: DataFrame | None = None  # of this arm, a part of the whole one
        self._whole: DataFrame | None = None
        self._sampled_rows = 0
        self._rows = 1
        self.slots, self.cpus, self._partitions = slots or _slots(self._session), 1, 1
        self.cores = _cores(self._session)
        self.apart = True  # the JVM, or another Python worker, reads on while the loop is at work
        self.job_rows: tuple[int, ...] = ()
        self._chosen: tuple[int, ...] | None = None  # the partitions that are read; None for all
        self._read_by = 1  # how many they are
        self.row_bytes = 0.0  # of the pipeline's last arm: what a row weighs on its way
        self._given = (data, arguments, slots)

    def alike(self, model: Describable, config: InferenceConfig) -> SparkArms:
        """Give arms over the same rows for another model, or for settings that make it another; no job is run for it."""
        data, arguments, slots = self._given
        other = SparkArms(data, model, arguments, config, slots)
        other._rows, other._partitions, other.job_rows = self._rows, self._partitions, self.job_rows
        other._chosen, other._read_by = self._chosen, self._read_by
        return other

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk, at most, as the session has it."""
        return int(setting(self._session, MAX_RECORDS) or _LARGEST_CHUNK)

    @property
    def plan(self) -> PartitionPlan:
        """What is done."""
        return self._plan

    def sample(self, rows: int, most_bytes: int, seconds: float) -> int:
        """Keep the first rows of partitions, persisted; give how many."""
        self._choose(seconds)
        each = max(1, rows // self._read_by)
        self._partitions = width = min(self.slots, self._read_by)
        source = sent(self._data, self._plan)
        if self._chosen is not None:
            most_bytes = min(most_bytes, _MOST_SENT * width)
        task = Sampled(each, most_bytes // self._read_by, seconds)
        with surrounded(uuid4().hex[:12], _chunk(each)):
            if self._chosen is None:
                taken = source.mapInArrow(travelling(task.take), source.schema)
                taken = taken.coalesce(width) if width < self._read_by else taken
            else:
                taken = self._brought(collect_in(source.mapInArrow(travelling(task.pack), PACKED), self._chosen), source.schema)
            needed = dict.fromkeys((*self._plan.keep, *self._plan.columns))
            self._whole = taken.toDF(*needed).persist()
            self._sampled_rows = int(self._whole.count())
        self._rows = max(1, self._sampled_rows // width)
        self._sample = self._whole
        return self._sampled_rows

    def _choose(self, seconds: float) -> None:
        """Count the partitions, and choose those that are read: two for each slot, spread over the data.

        Where none can be left alone the count is needed, however long it takes: the sample's rows are shared out by it.
        """
        free = can_choose(self._data)
        counted = self._partition_rows(seconds if free else _LONG)
        self.job_rows = tuple(counted.values()) if counted is not None else ()
        if counted is None:
            self.remarks.append(
                f"the rows were not counted, as their plan takes more than {seconds:.3g} s for it: how even the partitions are is not known"
            )
        there = len(self.job_rows) if counted is not None else partition_count(self._data)
        most = _WAVES * self.slots
        if free and there is not None and there > most:
            self._chosen = evenly(range(there) if counted is None else tuple(counted), most)  # empty partitions are not counted
            self.remarks.append(f"{len(self._chosen)} of the {there} partitions were read, spread over them")
        self._read_by = max(1, there or self.slots) if self._chosen is None else max(1, len(self._chosen))

    def _brought(self, rows: Sequence[Any], schema: Any) -> DataFrame:
        """Make a DataFrame of rows that came to the driver, in as many partitions as there are slots."""
        slots = [([bytes(row.rows) for row in rows[place :: self._partitions]],) for place in range(self._partitions)]
        there = self._session.createDataFrame(self._session.sparkContext.parallelize(slots, self._partitions), "rows array<binary>")
        return there.mapInArrow(travelling(Brought().unpack), schema)

    def limit(self, rows: int) -> None:
        """Let each arm go through about so many rows; a part of the sample is kept by itself, since a task must read all of its own."""
        assert self._whole is not None  # noqa: S101 - sample() comes first
        if self._sample is not self._whole and self._sample is not None:
            self._sample.unpersist()
        self._rows = max(1, rows // self._partitions)
        self._sample = self._whole
        if rows < self._sampled_rows:
            with surrounded(uuid4().hex[:12], _chunk(self._rows)):
                columns = [F.col(quoted(name)).alias(f"c{position}") for position, name in enumerate(self._whole.columns)]
                source = self._whole.select(*columns)
                part = source.mapInArrow(travelling(Sampled(self._rows, 0, _LONG).take), source.schema)
                self._sample = part.toDF(*self._whole.columns).persist()
                self._sample.count()

    def source(self, seconds: float) -> Arm:
        """Read by the user's own plan, and nothing else."""
        each = max(1, self._rows * self._partitions // self._read_by)
        with surrounded(uuid4().hex[:12], _chunk(each)):
            asked = sent(self._data, self._plan).mapInArrow(travelling(Sampled(each, 0, seconds).read), "told string")
            told = collect_in(asked, self._chosen)
        pulled = [json.loads(row.told) for row in told]
        return Arm(
            rows=max(1, sum(one["rows"] for one in pulled)),
            seconds=max(1e-9, sum(one["seconds"] for one in pulled)),
            bytes=sum(one["bytes"] for one in pulled),
        )

    def identity(self) -> Arm:
        """Let the sample travel to Python and back."""
        return self._scored(self._sampled, self._plan, arm="pass")

    def trivial(self, config: InferenceConfig) -> Arm:
        """Everything but the model, over the sample."""
        return self._scored(self._sampled, replace(self._plan, config=config, trivial=True))

    def everything(self, config: InferenceConfig) -> Arm:
        """The pipeline as it is, by the user's own plan."""
        arm = self._scored(self._data, replace(self._plan, config=config), spread=True)
        self.row_bytes = arm.bytes / arm.rows
        return arm

    def whole(self, config: InferenceConfig, partitions: int | None) -> float:
        """Run all of the job's rows, in its own partitions or in others, and give the seconds."""
        data = self._data if partitions is None else self._data.repartition(partitions)
        plan = replace(self._plan, config=config)
        with surrounded(uuid4().hex[:12], config.max_records_per_batch):
            task = PartitionTask(plan=plan, files=self._files, call=uuid4().hex[:12], channel=open_channel(self._session, wanted=False))
            begun = time.perf_counter()
            by_map(data, task, None).write.format("noop").mode("overwrite").save()
            return time.perf_counter() - begun

    def synthetic(self, config: InferenceConfig, sizes: Sequence[int], seconds: float) -> list[Called]:
        """The model alone, in all task slots at once."""
        plan = replace(self._plan, config=config, keep=())
        needed = tuple(dict.fromkeys((*self._plan.keep, *self._plan.columns)))
        alone = Alone(plan, self._files, needed, tuple(sizes), seconds)
        with surrounded(uuid4().hex[:12], _chunk(self._rows)):
            told = sent(self._sampled, self._plan).mapInArrow(travelling(alone.run), "told string").collect()
        found = [json.loads(row.told) for row in told]
        self.cpus = max((one.pop("cpus") for one in found), default=1)
        if not found:
            msg = "no partition of the sample had a row for the model"
            raise ConfigError(msg)
        return [Called(**{**one, "seconds": {int(size): took for size, took in one["seconds"].items()}}) for one in found]

    def close(self) -> None:
        """Let go of the sample."""
        for kept in (self._sample, self._whole):
            if kept is not None:
                kept.unpersist()
        self._sample = self._whole = None

    @property
    def _sampled(self) -> DataFrame:
        assert self._sample is not None  # noqa: S101 - sample() comes first
        return self._sample

    def _scored(self, data: DataFrame, plan: PartitionPlan, *, arm: str = "", spread: bool = False) -> Arm:
        """Run an arm's action, and add up what its partitions report."""
        each = max(1, self._rows * self._partitions // self._read_by) if spread else self._rows
        ends = spread and each < max(self.job_rows, default=each + 1)  # a task that leaves rows unread costs its Python worker (4.3)
        call, mark = uuid4().hex[:12], uuid4().hex[:12]
        with surrounded(mark, plan.config.max_records_per_batch or _chunk(each)):
            channel = open_channel(self._session, wanted=True)
            task = PartitionTask(plan=plan, files=self._files, call=call, channel=channel, arm=arm, most_rows=each if ends else None)
            run_in(by_map(data, task, None), self._chosen if spread else None)
            records = read_worker_logs(self._session).records if is_connect(self._session) else channel.records()
        mine = [record for record in records if record.call == call and record.rows]
        if not mine:
            msg = "no partition of the sample reported: over Spark Connect that takes a server of 4.1 or newer"
            raise _NothingReportedError(msg)
        return replace(arm_of(_last_attempts(mine)), chunk_rows=_chunk(each))

    def _partition_rows(self, seconds: float) -> dict[int, int] | None:
        """Count the rows of each partition that has any, by its number, in so many seconds; no column is read for it, but what makes the rows must run."""
        number, mark, counted_them = F.spark_partition_id().alias("partition"), uuid4().hex[:12], Event()

        def stop_late() -> None:
            wait = seconds
            while not counted_them.wait(wait):  # again and again: a job that has not begun yet cannot be cancelled
                cancel_marked(self._session, mark)
                wait = 0.2

        begun = time.perf_counter()
        guard = Thread(target=stop_late, name="sparkinfer-count", daemon=True)
        with surrounded(mark, None):
            guard.start()
            try:
                counted = self._data.select(number).groupBy("partition").count().collect()
            except Exception:
                if time.perf_counter() - begun < seconds:
                    raise
                return None
            finally:
                counted_them.set()
                guard.join()
        return {int(row["partition"]): int(row["count"]) for row in sorted(counted, key=lambda row: row["partition"])}


class _NothingReportedError(SparkInferError, RuntimeError):
    """The arms' figures did not come back."""


def _last_attempts(records: Sequence[PartitionMetrics]) -> list[PartitionMetrics]:
    last: dict[int, PartitionMetrics] = {}
    for record in sorted(records, key=lambda record: record.task_attempt):
        last[record.partition] = record
    return list(last.values())


def _chunk(rows: int) -> int:
    return max(1, min(_LARGEST_CHUNK, rows // _CHUNKS))


def _slots(session: Any) -> int:
    try:
        return max(1, int(session.sparkContext.defaultParallelism))
    except Exception:  # noqa: BLE001 - Connect, or a session that hides its context
        return 1


def _cores(session: Any) -> int:
    """Give the cores of the machine where the workers share it with this process; 0 on a cluster, where they are not known."""
    return (os.cpu_count() or 0) if is_local(session) else 0
