"""Actions over some of a DataFrame's partitions.

Runs on: driver.

Invariant: where the session gives its SparkContext no task runs for the other partitions. Elsewhere (Connect, sessions that hide it) every task
runs, and the ones that are not asked for must leave their rows alone by themselves: such a task costs its Python worker (seen up to 4.3), and
the next task all that a worker imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

from sparkinfer.spark.session import hides_context, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["can_choose", "collect_in", "evenly", "partition_count", "run_in"]


def collect_in(frame: DataFrame, partitions: Sequence[int] | None) -> list[Any]:
    """Collect rows: of some partitions, or of all that the tasks themselves answer for.

    Args:
        frame: what is run.
        partitions: their numbers, from 0; those that ``frame`` does not have are left out. ``None`` for all.
    """
    if partitions is None or not can_choose(frame):
        return list(frame.collect())
    rows = frame.rdd
    there = rows.getNumPartitions()
    asked = [number for number in partitions if 0 <= number < there]
    return list(frame.sparkSession.sparkContext.runJob(rows, list, asked)) if asked else []


def run_in(frame: DataFrame, partitions: Sequence[int] | None) -> None:
    """Run partitions to their last row, as ``collect_in`` does, and keep nothing."""
    if partitions is None or not can_choose(frame):
        frame.write.format("noop").mode("overwrite").save()
    else:
        collect_in(frame.where(F.spark_partition_id() < 0), partitions)  # the JVM drops every row; the optimizer cannot know it


def partition_count(frame: DataFrame) -> int | None:
    """Tell how many partitions there are, where that can be had: it plans the query, and with adaptive execution runs its shuffles."""
    return int(frame.rdd.getNumPartitions()) if can_choose(frame) else None


def evenly(numbers: Sequence[int], most: int) -> tuple[int, ...]:
    """Choose at most so many, spread over all of them.

    Example:
        >>> evenly(range(100), 4), evenly([2, 3, 5], 4)
        ((12, 37, 62, 87), (2, 3, 5))
    """
    if len(numbers) <= most:
        return tuple(numbers)
    return tuple(numbers[(2 * place + 1) * len(numbers) // (2 * most)] for place in range(most))


def can_choose(frame: DataFrame) -> bool:
    """Tell whether partitions can be left alone without a task."""
    session = frame.sparkSession
    return not is_connect(session) and not hides_context(session)
