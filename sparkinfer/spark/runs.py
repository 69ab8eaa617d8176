"""What a run does to its session, and undoes.

Runs on: driver.

Invariant: when the block is left, the session's settings and the thread's marks are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sparkinfer.spark.marks import cancel_marked, marked
from sparkinfer.spark.session import active_or_local_session, is_connect, setting
from sparkinfer.spark.settings import max_records_in_force

if TYPE_CHECKING:
    from sparkinfer.profiles import ProfilePlan

__all__ = ["active_streams", "surrounded"]

_WORKER_LOGS = "spark.sql.pyspark.worker.logging.enabled"


def active_streams(session: Any) -> set[str]:
    """Give the ids of the session's streaming queries that run; none where it does not tell."""
    try:
        return {str(query.id) for query in session.streams.active}
    except Exception:  # noqa: BLE001 - stopped, or a platform without streams
        return set()


@contextmanager
def surrounded(
    run_id: str, max_records_per_batch: int | None, label: str | None = None, profile: ProfilePlan | None = None
) -> Iterator[Any]:
    """Mark this thread's actions as the run's, with its label column and what is to be profiled, set ``maxRecordsPerBatch`` if asked, and give the session.

    An interrupt cancels the run's jobs: pyspark's own handler means to cancel all, but cannot while this thread waits for the JVM (4.3: "reentrant
    call"), and the job would go on.
    """
    session = active_or_local_session()
    with ExitStack() as changed:
        if max_records_per_batch is not None:
            changed.enter_context(max_records_in_force(max_records_per_batch))
        changed.enter_context(marked(session, run_id, label, profile))
        if is_connect(session):
            changed.enter_context(_logged(session))
        try:
            yield session
        except KeyboardInterrupt:
            cancel_marked(session, run_id)
            raise


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
