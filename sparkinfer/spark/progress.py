"""How far a session is: classic, by Spark's own status tracker and the records that have come; Connect, by what the server tells.

Runs on: driver.

Invariant: this only looks: no job is run, and none is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sparkinfer.metrics import PartitionMetrics, group_executions
from sparkinfer.spark.channels import reads_worker_logs

__all__ = ["classic_snapshot", "connect_snapshot"]


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


@contextmanager
def connect_snapshot(
    session: Any, ended: Callable[[], tuple[int, int] | None]
) -> Iterator[Callable[[], tuple[int | None, int, int | None]]]:
    """Listen to what the server tells of the session's actions (Spark 4.0 on, every two seconds by default) while the block is open.

    The server tells tasks and no rows, and reading the workers' logs would be a job: rows are told when the run has ended.

    Args:
        session: of Spark Connect.
        ended: gives the rows and the partitions of a run that has ended; ``None`` before.

    Yields:
        What ``sparkinfer.reporting.progress.Progress`` wants.

    Raises:
        AttributeError: a client older than 4.0.
    """
    actions: dict[str | None, tuple[int, int]] = {}

    def hear(stages: Any = None, inflight_tasks: int = 0, operation_id: str | None = None, done: bool = False, **_: Any) -> None:  # noqa: ARG001, FBT001, FBT002 - Spark's own names
        with suppress(Exception):  # Spark calls this inside the user's action
            if not reads_worker_logs():
                actions[operation_id] = _tasks_told(stages or (), ended=done)

    def look() -> tuple[int | None, int, int | None]:
        rows, reported = ended() or (None, 0)
        told = list(actions.values())
        done, total = max(reported, sum(one[0] for one in told)), sum(one[1] for one in told)
        return rows, done, total or None

    session.registerProgressHandler(hear)
    try:
        yield look
    finally:
        with suppress(Exception):  # the user may have cleared all handlers, or stopped the session
            session.removeProgressHandler(hear)


def _tasks_told(stages: Iterable[Any], *, ended: bool) -> tuple[int, int]:
    """Add up an action's tasks; when it has ended, a stage of which nothing ran was skipped."""
    run = [stage for stage in stages if stage.num_completed_tasks or not ended]
    return sum(stage.num_completed_tasks for stage in run), sum(stage.num_tasks for stage in run)
