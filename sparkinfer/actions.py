"""The actions inside a run: which there were, what of them came back, and whether they are complete.

Runs on: driver.

Invariant: an action that ran one of our functions is listed, also where nothing of it came back.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkinfer.metrics import Execution

__all__ = ["Action", "actions_of"]


@dataclass(frozen=True)
class Action:
    """One action inside a run.

    Attributes:
        execution: Spark's execution id, where it has one.
        description: Spark's own words, such as ``save at job.py:12``.
        rows: rows that were put out by the partitions that reported.
        partitions: how many reported.
        complete: whether every partition reported, as far as can be told. A ``show`` or ``limit`` runs few partitions, and may stop their
            tasks before they can report: the plan of a classic session tells; elsewhere another action of the same call with more partitions.
        error: why it failed; empty if it did not.
        failed_attempts: attempts at tasks that failed, in classic sessions; ``None`` where that is not told. What they had scored is in no figure.
        failed_seconds: how long they ran, in all: what was paid for and thrown away; ``None`` where that is not told.
    """

    execution: str | None
    description: str
    rows: int
    partitions: int
    complete: bool
    error: str = ""
    failed_attempts: int | None = None
    failed_seconds: float | None = None


def actions_of(executions: list[Execution], begun: list[Execution], session: Any, last_before: int, run: str) -> tuple[Action, ...]:
    """List the actions of a run, in order.

    Args:
        executions: what came back.
        begun: over Connect, the partitions that began.
        session: the run's; classic ones tell of actions of which nothing came back.
        last_before: the last execution before the run.
        run: its id.
    """
    told: dict[str, Any] = {}
    if session is not None:
        reported = {execution.execution for execution in executions}
        told = {one.id: one for one in import_module("sparkinfer.spark.executions").executions_since(session, last_before, run, reported)}
    most: dict[str, int] = {}
    for execution in executions:
        most[execution.call] = max(most.get(execution.call, 0), _reported(execution))
    started = {(one.call, one.execution): one for one in begun}
    actions = []
    used: set[str] = set()
    for execution in executions:
        sql = told.get(execution.execution or "")
        first = sql is not None and sql.id not in used  # of two calls in one action: its failed attempts count once
        if sql is not None:
            used.add(sql.id)
        action = Action(
            execution=execution.execution,
            description=sql.description if sql is not None else "an action",
            rows=sum(record.rows for record in execution.partitions),
            partitions=_reported(execution),
            complete=_is_complete(execution, sql, most[execution.call], started.pop((execution.call, execution.execution), None)),
            error=sql.error if sql is not None else "",
            failed_attempts=None if sql is None else sql.failed_attempts if first else 0,
            failed_seconds=None if sql is None else sql.failed_seconds if first else 0.0,
        )
        actions.append((min(record.started_unix for record in execution.partitions), action))
    actions += [  # ran one of our functions, and nothing came back
        (sql.started_unix, _unreported(sql)) for sql in told.values() if sql.id not in used
    ]
    actions += [  # over Connect: began, and nothing came back
        (min(mark.started_unix for mark in one.partitions), Action(one.execution, "an action", 0, 0, complete=False))
        for one in started.values()
    ]
    return tuple(action for _, action in sorted(actions, key=lambda pair: pair[0]))


def _unreported(sql: Any) -> Action:
    return Action(
        sql.id,
        sql.description,
        0,
        0,
        complete=False,
        error=sql.error,
        failed_attempts=sql.failed_attempts,
        failed_seconds=sql.failed_seconds,
    )


def _is_complete(execution: Execution, sql: Any, most: int, begun: Execution | None) -> bool:
    """Tell whether every partition reported.

    By the plan and the error that Spark tells; elsewhere by the partitions that began and by the fullest action of the same call.
    """
    if sql is None:
        return _reported(execution) == most and (begun is None or _reported(begun) <= most)
    return not sql.limited and not sql.error


def _reported(execution: Execution) -> int:
    """Count the partitions that reported, each once."""
    return len({record.partition for record in execution.partitions})
