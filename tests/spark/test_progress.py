"""The snapshot of a classic session tells how many tasks have ended while the job still runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkinfer.metrics import PartitionMetrics
from sparkinfer.spark.progress import classic_snapshot

if TYPE_CHECKING:
    import pyarrow as pa


def record(partition: int, attempt: int) -> PartitionMetrics:
    return PartitionMetrics(
        call="c", execution="0", partition=partition, task_attempt=attempt, host="h", pid=1, started_unix=0.0, wall_seconds=1.0, rows=10
    )


@pytest.mark.parametrize("group", [None, "scoring"])
def test_a_running_job_is_seen(spark, tmp_path: Path, group: str | None) -> None:
    """Of four tasks two wait at a gate: two of four are done, then all four, and ended jobs are not forgotten; each partition's rows count once."""
    gate = tmp_path / "gate"

    def waiting(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        while TaskContext.get().partitionId() >= 2 and not gate.exists():
            time.sleep(0.05)
        yield from chunks

    context = spark.sparkContext
    look = classic_snapshot(spark, lambda: [record(0, 0), record(0, 5), record(1, 1)], group)

    def act() -> None:
        if group is not None:
            context.setJobGroup(group, "a run")
        spark.range(0, 40, numPartitions=4).mapInArrow(waiting, "id long").collect()

    assert look()[1:] == (0, None)
    action = threading.Thread(target=act)
    action.start()
    try:
        deadline = time.monotonic() + 120
        while look() != (20, 2, 4):
            assert time.monotonic() < deadline, look()
            time.sleep(0.05)
    finally:
        gate.touch()
        action.join()
    while look() != (20, 4, 4):
        assert time.monotonic() < deadline, look()
        time.sleep(0.05)


def test_a_stage_that_spark_skips_is_not_waited_for(spark) -> None:
    """A second action on one shuffle skips the first stage: what is done and what there is are the same at the end."""
    shuffled = spark.sparkContext.parallelize(range(8), 4).map(lambda x: (x % 2, x)).reduceByKey(lambda x, y: x + y, 2)
    assert len(shuffled.collect()) == 2
    look = classic_snapshot(spark, list, "again")
    spark.sparkContext.setJobGroup("again", "the second action")
    try:
        assert len(shuffled.collect()) == 2
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    deadline = time.monotonic() + 60
    while look() != (0, 2, 2):
        assert time.monotonic() < deadline, look()
        time.sleep(0.05)
