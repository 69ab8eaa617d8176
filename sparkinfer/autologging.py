"""``autolog``: bare actions are logged to MLflow too, as they end.

Runs on: driver; while it is on, a daemon thread looks once a second.

Invariant: nothing is ever raised into the user's code, no job is run, and each action is logged once.
"""

from __future__ import annotations

import time
from importlib import import_module
from threading import Event, Lock, Thread
from typing import Any

from sparkinfer.metrics import Execution, RunMetrics, group_executions
from sparkinfer.reporting.mlflow import MlflowSink
from sparkinfer.run import environment_of

__all__ = ["autolog"]

_EVERY_SECONDS = 1.0
_LAST_LOOKS = 10

_lock = Lock()
_watcher: _Watcher | None = None


def autolog(*, disable: bool = False) -> None:
    """Log every action of a bare ``predict`` or ``predict_udf`` to MLflow, and not only what is inside an ``inference_run``.

    Each action becomes an MLflow run of its own when it has ended. Classic sessions only: over Spark Connect, use ``inference_run``.

    Args:
        disable: stop it.

    Example:
        ::

            si.autolog()
            si.predict(photos, model, ...).write.parquet("scored/")
    """
    global _watcher  # noqa: PLW0603 - there is one for the process
    with _lock:
        if _watcher is not None and disable:
            _watcher.stop()
            _watcher = None
        elif _watcher is None and not disable:
            _watcher = _Watcher()


class _Watcher:
    """Looks for actions that have ended, on a thread of its own."""

    def __init__(self) -> None:
        self._over = Event()
        self._known = {_name(execution) for execution in _bare_executions()}  # what ran before is not logged
        self._thread = Thread(target=self._watch, name="sparkinfer-autolog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and end."""
        self._over.set()
        self._thread.join(timeout=60)

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            self._try_to_look()
        for _ in range(_LAST_LOOKS):  # Spark tells of an action's end a moment after the action has returned
            if not self._try_to_look():
                return
            time.sleep(_EVERY_SECONDS / 2)

    def _try_to_look(self) -> bool:
        """Log what has ended; true while something has not. A look that fails is the session's end, and the next one may be at another."""
        try:
            return self._look()
        except Exception:  # noqa: BLE001 - the thread must outlive a session
            return False

    def _look(self) -> bool:
        new = [execution for execution in _bare_executions() if _name(execution) not in self._known]
        calls = {call.id: call for call in import_module("sparkinfer.spark.calls").known_calls()} if new else {}
        for execution in new:
            call = calls.get(execution.call)
            if call is not None and execution.execution in import_module("sparkinfer.spark.executions").ended_executions(call.session):
                self._known.add(_name(execution))
                run = _run_of(execution, call)
                MlflowSink().report(run, import_module("sparkinfer.analysis.verdict").judge(run))
        return any(_name(execution) not in self._known and execution.execution is not None for execution in new)


def _name(execution: Execution) -> tuple[str, str | None]:
    return execution.call, execution.execution


def _bare_executions() -> list[Execution]:
    calls = import_module("sparkinfer.spark.calls").known_calls()
    return group_executions(record for call in calls for record in call.channel.records() if record.run is None)


def _run_of(execution: Execution, call: Any) -> RunMetrics:
    return RunMetrics(
        id=f"{execution.call}-{execution.execution}",
        name=None,
        started_unix=min(record.started_unix for record in execution.partitions),
        ended_unix=time.time(),
        executions=(execution,),
        settings=call.settings,
        environment=environment_of(call.session),
    )
