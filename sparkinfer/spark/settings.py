"""The one setting of the session that a run may change, and what to say where Spark will not honour it.

Runs on: driver.

Invariant: the user's own value is back when the last run that changed it ends; nobody else's call changes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from sparkinfer.exceptions import ConfigError, remark
from sparkinfer.spark.session import MAX_RECORDS, SPARK_VERSION, active_or_local_session, remark_once, setting

__all__ = ["check_max_records", "max_records_in_force"]

_COLUMNAR_INPUT = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
_COLUMNAR_SINCE = (4, 2)  # SPARK-56350: a UDF right on a columnar scan gets the scan's own batches


def check_max_records(session: Any, asked: int | None, *, column_road: bool) -> None:
    """Say once which ``max_records_per_batch`` is in force, if it is not the one asked for.

    Spark reads the setting when the action runs, so a call that only builds a DataFrame cannot set it for the action.
    """
    if asked is None:
        return
    there = setting(session, MAX_RECORDS)
    if there is None:
        remark_once(
            session,
            f"max_records_per_batch={asked} was asked for, but this session does not let its settings be read: {MAX_RECORDS} stays as it is",
        )
    elif int(there) != asked:
        remark_once(
            session,
            f"max_records_per_batch={asked} was asked for, but {MAX_RECORDS} is {there} and is read when the action runs: put the action inside "
            f"`with inference_run(max_records_per_batch={asked}):`, or set it yourself",
        )
    if column_road and SPARK_VERSION >= _COLUMNAR_SINCE and (setting(session, _COLUMNAR_INPUT) or "true").lower() == "true":
        remark_once(
            session,
            "a UDF that stands right on a columnar scan or cache gets the scan's own batches, whatever max_records_per_batch is; the model's "
            f"batch_size holds all the same. To have it honoured set {_COLUMNAR_INPUT}=false, or bound the scan by "
            "spark.sql.parquet.columnarReaderBatchSize",
        )


_lock = Lock()
_holders: dict[int, tuple[int, str, int]] = {}  # id of a session -> value in force, value before, runs that hold it


@contextmanager
def max_records_in_force(value: int) -> Iterator[None]:
    """Set the active session's ``maxRecordsPerBatch`` for the length of the block.

    A session that does not let it be set, or be read and so be put back, is left as it is, with a warning.

    Raises:
        ConfigError: another open run asked for another value.
    """
    session = active_or_local_session()
    with _lock:
        asked, before, runs = _holders.get(id(session)) or (value, setting(session, MAX_RECORDS), 0)
        if asked != value:
            msg = (
                f"max_records_per_batch={value} was asked for while another inference_run holds {asked}: the setting is the session's, so "
                "runs that overlap must agree on it"
            )
            raise ConfigError(msg)
        held = False
        if before is not None and _set(session, str(value)):
            held = True
            _holders[id(session)] = (value, before, runs + 1)
    if not held:
        _remark_unset(value)
    try:
        yield
    finally:
        if held:
            _let_go(session)


def _let_go(session: Any) -> None:
    with _lock:
        value, before, runs = _holders.pop(id(session))
        if runs > 1:
            _holders[id(session)] = (value, before, runs - 1)
        else:
            _set(session, before)


def _set(session: Any, value: str) -> bool:
    try:
        session.conf.set(MAX_RECORDS, value)
    except Exception:  # noqa: BLE001 - Py4J, gRPC or Spark's own: whichever it is, the value stays
        return False
    return True


def _remark_unset(value: int) -> None:
    remark(
        f"max_records_per_batch={value} was asked for, but this session does not let {MAX_RECORDS} be changed: set it where the session is made"
    )
