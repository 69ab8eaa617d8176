"""What a classic session executed: which actions ran our functions, and whether they ended.

Runs on: driver.

Invariant: this only looks; where the session does not let itself be looked at, there is nothing, and no error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sparkinfer.spark.marks import tag_of
from sparkinfer.spark.session import is_connect

__all__ = ["SqlExecution", "ended_executions", "executions_since", "last_execution", "look_up"]

# the functions of spark/worker.py, as a physical plan shows them
_OURS = re.compile(r"\b(map_arrow|arrow_one|arrow_many|pandas_one|pandas_many)\(")
_PYTHON = re.compile(r"\b(MapInArrow|PythonMapInArrow|ArrowEvalPython)\b")
_LIMIT = re.compile(r"\b(CollectLimit|LocalLimit)\b")
_MOST_FAILED = 1000  # attempts of one stage that are looked at: each costs a call into the JVM


@dataclass(frozen=True)
class SqlExecution:
    """One action, as Spark's own SQL status store tells it.

    Attributes:
        id: ``spark.sql.execution.id``.
        description: such as ``save at job.py:12``.
        started_unix: when it was submitted, seconds since 1970.
        error: why it failed; empty if it did not.
        limited: a limit stands above one of our functions, and stops its tasks when it has enough.
        failed_attempts: attempts at tasks that failed; Spark ran the tasks again, or gave the action up.
        failed_seconds: how long these attempts ran, in all; ``None`` where Spark does not tell.
    """

    id: str
    description: str
    started_unix: float
    error: str
    limited: bool
    failed_attempts: int
    failed_seconds: float | None


def last_execution(session: Any) -> int:
    """Give the largest execution id so far; -1 where none can be seen."""
    return max((number for number, _ in _executions(session, newest=1)), default=-1)


def executions_since(session: Any, last: int, run: str, known: Collection[str | None] = ()) -> list[SqlExecution]:
    """Give a run's actions after execution ``last`` whose plans hold one of our functions, in order.

    Args:
        session: whose actions.
        last: an execution id.
        run: the run's id; what other threads did meanwhile, and runs inside this one, is not its own.
        known: executions that are the run's, as their records say.
    """
    found = []
    for number, data in _executions(session, after=last):
        told = _told(session, number, data)
        if told is not None and (told.id in known or _is_of(run, session, data)):
            found.append(told)
    return sorted(found, key=lambda one: int(one.id))


def _is_of(run: str, session: Any, data: Any) -> bool:
    """Tell by the tags of an action's jobs whether it is a run's; one of which the tags cannot be read is, and one without jobs if it failed."""
    try:
        store = session.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - the store behind the web page; there is no public road
        jobs, tags = data.jobs().keysIterator(), []
        while jobs.hasNext():
            tags.append(store.job(int(jobs.next())).jobTags())
        return any(some.contains(tag_of(run)) for some in tags) if tags else bool(data.errorMessage().isDefined())
    except Exception:  # noqa: BLE001 - Py4J's, for a store of another version or a job that it has let go
        return True


def look_up(session: Any, execution: str) -> tuple[SqlExecution, bool] | None:
    """Give one action, and whether it has ended; ``None`` where it cannot be seen, or does not run our functions."""
    with suppress(Exception):  # as in ``_executions``
        found = _store(session).execution(int(execution))
        if found.isDefined():
            data = found.get()
            told = _told(session, int(execution), data)
            return None if told is None else (told, bool(data.completionTime().isDefined()))
    return None


def _store(session: Any) -> Any:
    return session._jsparkSession.sharedState().statusStore()  # noqa: SLF001 - the store behind the web page; there is no public road


def _told(session: Any, number: int, data: Any) -> SqlExecution | None:
    try:
        plan = str(data.physicalPlanDescription())
        if _OURS.search(plan) is None:
            return None
        error = data.errorMessage()
        failed, seconds = _failed_attempts(session, data)
        return SqlExecution(
            id=str(number),
            description=str(data.description()),
            started_unix=data.submissionTime() / 1000,
            error=str(error.get()) if error.isDefined() else "",
            limited=_is_limited(plan),
            failed_attempts=failed,
            failed_seconds=seconds,
        )
    except Exception:  # noqa: BLE001 - the session ended while it was looked at
        return None


def _failed_attempts(session: Any, data: Any) -> tuple[int, float | None]:
    tracker = session.sparkContext.statusTracker()
    stages = data.stages().iterator()
    failed, seconds = 0, 0.0
    while stages.hasNext():
        stage = int(stages.next())
        told = tracker.getStageInfo(stage)
        if told is not None and told.numFailedTasks:
            failed += told.numFailedTasks
            seconds += _seconds_of_failed(session, stage)
    return failed, None if math.isnan(seconds) else seconds


def _seconds_of_failed(session: Any, stage: int) -> float:
    """Add up how long a stage's failed attempts ran; NaN where the store, which is Spark's own affair, does not answer."""
    try:
        jvm = session._jvm  # noqa: SLF001 - the store behind the web page; there is no public road
        store = session.sparkContext._jsc.sc().statusStore()  # noqa: SLF001
        statuses = jvm.java.util.ArrayList()
        statuses.add(jvm.org.apache.spark.status.api.v1.TaskStatus.FAILED)
        milliseconds = 0
        for attempt in range(int(store.lastStageAttempt(stage).attemptId()) + 1):
            listed = store.taskList(stage, attempt, 0, _MOST_FAILED, jvm.scala.Option.empty(), True, statuses)  # noqa: FBT003 - Scala's
            durations = [listed.apply(index).duration() for index in range(listed.size())]
            milliseconds += sum(int(duration.get()) for duration in durations if duration.isDefined())
    except Exception:  # noqa: BLE001 - Py4J's, for a store of another version
        return math.nan
    return milliseconds / 1000


def _is_limited(plan: str) -> bool:
    tree = plan.partition("\n\n\n")[0]  # of the plan: its top line is what is done last; the nodes' details come after it
    python, limit = _PYTHON.search(tree), _LIMIT.search(tree)
    return limit is not None and python is not None and limit.start() < python.start()


def ended_executions(session: Any) -> set[str]:
    """Give the ids of the actions that have ended."""
    try:
        return {str(number) for number, data in _executions(session) if data.completionTime().isDefined()}
    except Exception:  # noqa: BLE001 - the session ended while it was looked at
        return set()


def _executions(session: Any, *, after: int = -1, newest: int | None = None) -> list[tuple[int, Any]]:
    """List executions, the newest first, down to ``after`` or for ``newest`` of them: each look costs a call into the JVM."""
    if session is None or is_connect(session):
        return []
    found: list[tuple[int, Any]] = []
    with suppress(Exception):  # Py4J's, or a session that hides its JVM: then nothing more can be seen
        listed = _store(session).executionsList()
        for index in reversed(range(listed.size())):
            data = listed.apply(index)
            number = int(data.executionId())
            if number <= after or (newest is not None and len(found) == newest):
                break
            found.append((number, data))
    return found
