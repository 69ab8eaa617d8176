"""What a run does to its session, and undoes.

Runs on: driver.

Invariant: when the block is left, the session's settings and the thread's marks are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from sparkinfer.spark.marks import marked
from sparkinfer.spark.session import active_or_local_session, is_connect, setting
from sparkinfer.spark.settings import max_records_in_force

__all__ = ["active_streams", "surrounded"]

_WORKER_LOGS = "spark.sql.pyspark.worker.logging.enabled"


def active_streams(session: Any) -> set[str]:
    """Give the ids of the session's streaming queries that run; none where it does not tell."""
    try:
        return {str(query.id) for query in session.streams.active}
    except Exception:  # noqa: BLE001 - stopped, or a platform without streams
        return set()


@contextmanager
def surrounded(run_id: str, max_records_per_batch: int | None, label: str | None = None) -> Iterator[Any]:
    """Mark this thread's actions as the run's, with its label column, set ``maxRecordsPerBatch`` if asked, and give the session."""
    session = active_or_local_session()
    with ExitStack() as changed:
        if max_records_per_batch is not None:
            changed.enter_context(max_records_in_force(max_records_per_batch))
        changed.enter_context(marked(session, run_id, label))
        if is_connect(session):
            changed.enter_context(_logged(session))
        yield session


@contextmanager
def _logged(session: Any) -> Iterator[None]:
    """Have the workers' logs kept while the run is open: over Connect, records come back in them."""
    before = setting(session, _WORKER_LOGS)
    try:
        session.conf.set(_WORKER_LOGS, "true")
    except Exception:  # noqa: BLE001 - an older server, or one that refuses: nothing will be measured, and the run says so
        yield
        return
    try:
        yield
    finally:
        with suppress(Exception):  # the session may have been stopped inside
            session.conf.set(_WORKER_LOGS, before or "false")
