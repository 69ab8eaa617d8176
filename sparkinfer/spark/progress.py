"""How far a classic session is, by Spark's own status tracker and the records that have come.

Runs on: driver.

Invariant: this only looks: no job is run, and none is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sparkinfer.metrics import PartitionMetrics, group_executions

__all__ = ["classic_snapshot"]


def classic_snapshot(
    session: Any, records: Callable[[], Iterable[PartitionMetrics]], group: str | None = None
) -> Callable[[], tuple[int, int, int | None]]:
    """Make the function that looks: it gives rows, partitions that are done, and partitions in all.

    Rows are those of the partitions that have reported, each once, over all executions. Partitions are tasks of the stages that have run,
    run or are known to run next in the jobs that were seen; stages whose results Spark found already there are not counted, once it says so.

    Args:
        session: classic; Spark Connect has no status tracker.
        records: gives the records that have come.
        group: the job group whose jobs are looked at; without one, every job that is active.

    Returns:
        What ``sparkinfer.reporting.progress.Progress`` wants. It raises what Py4J raises where the session is gone.
    """
    tracker = session.sparkContext.statusTracker()
    jobs: set[int] = set()

    def look() -> tuple[int, int, int | None]:
        jobs.update(tracker.getJobIdsForGroup(group) if group is not None else tracker.getActiveJobsIds())
        done, total = _tasks(tracker, jobs)
        rows = sum(record.rows for execution in group_executions(records()) for record in execution.partitions)
        return rows, done, total or None

    return look


def _tasks(tracker: Any, jobs: Iterable[int]) -> tuple[int, int]:
    """Add up the tasks of the jobs' stages, each stage once: under adaptive execution several jobs name the same one."""
    infos = [tracker.getJobInfo(job) for job in sorted(jobs)]
    stages = {int(stage): info.status for info in infos if info is not None for stage in info.stageIds}
    done = total = 0
    for stage, status in stages.items():
        told = tracker.getStageInfo(stage)
        if told is None or (status != "RUNNING" and told.numCompletedTasks == 0):  # forgotten, or skipped
            continue
        done += told.numCompletedTasks
        total += told.numTasks
    return done, total
