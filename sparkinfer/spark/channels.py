"""How a partition's record comes back to the driver.

Runs on: driver (``open_channel``, ``records``), worker (``send``).

Invariant: sending never changes a row and never raises into the task; reading never blocks, never raises and never runs a job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock, local
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.accumulators import AccumulatorParam

from sparkinfer.metrics import PartitionMetrics
from sparkinfer.spark.session import SPARK_VERSION, is_connect, remark_once

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

__all__ = ["WORKER_LOGS_SINCE", "Logged", "MetricsChannel", "open_channel", "read_worker_logs", "reads_worker_logs"]

WORKER_LOGS_SINCE = (4, 1)
_LOGGER = "sparkinfer.metrics"
_BEGUN_LOGGER = "sparkinfer.begun"
_LOGGERS = (_LOGGER, _BEGUN_LOGGER)
_MOST_RECORDS = 20_000
_LONGEST_LINE = 3500  # bytes; of 100 kB lines two of four arrived (4.3)


class MetricsChannel(Protocol):
    """Carries records from the workers; travels to them with the task."""

    def begin(self, mark: PartitionMetrics) -> None:
        """Say that a partition has begun, by a record without figures; called on the worker."""
        ...

    def send(self, record: PartitionMetrics) -> None:
        """Send one partition's record; called on the worker, when its last row is out."""
        ...

    def records(self) -> list[PartitionMetrics]:
        """Give what has come so far; called on the driver."""
        ...

    def forget(self) -> None:
        """Let go of what has come; called on the driver."""
        ...

    @property
    def measures(self) -> bool:
        """Whether anything can come."""
        ...


class _Texts(list[str]):
    """The newest records, and how many older ones were let go."""

    dropped = 0


class _TextsParam(AccumulatorParam[_Texts]):
    """Adds lists up; Spark delivers a task's part when the task has succeeded, and only then."""

    def __init__(self, heard: Callable[[Sequence[str]], None] | None = None) -> None:
        self.heard = heard

    def __reduce__(self) -> tuple[type[_TextsParam], tuple[()]]:
        return _TextsParam, ()  # who listens stays on the driver

    def zero(self, value: _Texts) -> _Texts:  # noqa: ARG002 - AccumulatorParam's own signature
        return _Texts()

    def addInPlace(self, value1: _Texts, value2: _Texts) -> _Texts:  # noqa: N802
        with _lock:
            value1.extend(value2)
            surplus = len(value1) - _MOST_RECORDS
            if surplus > 0:  # a stream runs for months
                del value1[:surplus]
                value1.dropped += surplus
        if self.heard is not None:
            self.heard(value2)
        return value1


@dataclass(frozen=True)
class AccumulatorChannel:
    """Classic Spark: an accumulator of records. It sees every action, views, SQL, ``rdd`` and ``toLocalIterator`` among them."""

    accumulator: Accumulator[_Texts]
    measures: bool = True

    def begin(self, mark: PartitionMetrics) -> None:
        """Do nothing: what a task that was stopped has added never arrives, and Spark's own store tells of the action."""

    def send(self, record: PartitionMetrics) -> None:
        """Add the record to the task's part."""
        self.accumulator.add(_Texts([record.to_json()]))

    def records(self) -> list[PartitionMetrics]:
        """Read the records of the tasks that have succeeded, repeated attempts among them; the newest ones, where there are very many."""
        with _lock:
            read = _read.setdefault(self.accumulator.aid, _Read())
            texts = self.accumulator.value
            del read.records[: texts.dropped - read.dropped]
            read.dropped = texts.dropped
            read.records += [PartitionMetrics.from_json(text) for text in texts[len(read.records) :]]
            return list(read.records)

    def forget(self) -> None:
        """Let go of what has come: nobody will ask any more. What still comes finds the accumulator, and little memory."""
        with _lock:
            _read.pop(self.accumulator.aid, None)
            self.accumulator.value.clear()
            if isinstance(self.accumulator.accum_param, _TextsParam):
                self.accumulator.accum_param.heard = None  # pyspark itself holds every accumulator for good (up to 4.3)


@dataclass
class _Read:
    """What was parsed of one accumulator: progress looks twice a second."""

    records: list[PartitionMetrics] = field(default_factory=list)
    dropped: int = 0


_lock = RLock()  # Spark's server thread adds while the user's thread, progress and autolog read
_read: dict[int, _Read] = {}  # by accumulator id


@dataclass(frozen=True)
class WorkerLogChannel:
    """Spark Connect from 4.1 on: a line of the worker's log, which the session can read back as a table.

    Workers share their log's stream, and long lines get lost in it: a line is kept short, by leaving samples out.
    """

    measures: bool = True

    def begin(self, mark: PartitionMetrics) -> None:
        """Log the mark: it is all that is left of a partition that a limit stops, or that fails."""
        _log(_BEGUN_LOGGER, mark.to_json())

    def send(self, record: PartitionMetrics) -> None:
        """Log the record; where logs are off it goes nowhere."""
        text = record.to_json()
        if len(text) > _LONGEST_LINE:
            text = replace(
                record, series=(), remarks=(*record.remarks, "samples over time do not fit into a line of the worker's log")
            ).to_json()
        if len(text) > _LONGEST_LINE and record.profile is not None:
            text = _with_short_profile(record)
        _log(_LOGGER, text)

    def records(self) -> list[PartitionMetrics]:
        """Give none: the lines are the session's, and ``read_worker_logs`` reads them."""
        return []

    def forget(self) -> None:
        """Do nothing: the session holds the lines."""


def _with_short_profile(record: PartitionMetrics) -> str:
    """Write a record with as much of its profile as a line holds."""
    assert record.profile is not None  # noqa: S101 - its one caller looked
    text = ""
    for most in (12, 6, 2):
        text = replace(record, series=(), profile=record.profile.shortened(most)).to_json()
        if len(text) <= _LONGEST_LINE:
            return text
    return replace(
        record, series=(), profile=None, remarks=(*record.remarks, "a profile does not fit into a line of the worker's log")
    ).to_json()


@dataclass(frozen=True)
class Logged:
    """What a session's workers logged.

    Attributes:
        records: of the partitions that ended, failed attempts among them.
        begun: of the partitions that began, without figures.
    """

    records: tuple[PartitionMetrics, ...] = ()
    begun: tuple[PartitionMetrics, ...] = ()


def read_worker_logs(session: Any) -> Logged:
    """Read all that the session's workers logged; nothing where logs cannot be read."""
    _this_thread.reads = True
    try:
        lines = session.tvf.python_worker_logs().where(f"logger in ('{_LOGGER}', '{_BEGUN_LOGGER}')").select("logger", "msg").collect()
    except Exception:  # noqa: BLE001 - an older server, or logging is off
        return Logged()
    finally:
        _this_thread.reads = False
    told = {name: [record for line in lines if line["logger"] == name and (record := _readable(line["msg"]))] for name in _LOGGERS}
    return Logged(tuple(told[_LOGGER]), tuple(told[_BEGUN_LOGGER]))


def reads_worker_logs() -> bool:
    """Tell whether this thread is in ``read_worker_logs``: that query is the library's own, and no progress of the user's."""
    return _this_thread.reads


class _ThisThread(local):
    reads = False


_this_thread = _ThisThread()


def _log(name: str, text: str) -> None:
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)  # the workers keep warnings only, unless told otherwise
    logger.info(text)


def _readable(text: str) -> PartitionMetrics | None:
    try:
        return PartitionMetrics.from_json(text)
    except (ValueError, TypeError, KeyError):  # a line that another one ran into
        return None


@dataclass(frozen=True)
class NoChannel:
    """Where nothing comes back, or nothing is wanted: the null object."""

    measures: bool = False

    def begin(self, mark: PartitionMetrics) -> None:
        """Let the mark go."""

    def send(self, record: PartitionMetrics) -> None:
        """Let the record go."""

    def records(self) -> list[PartitionMetrics]:
        """Give none."""
        return []

    def forget(self) -> None:
        """Do nothing."""


def open_channel(session: Any, *, wanted: bool, heard: Callable[[Sequence[str]], None] | None = None) -> MetricsChannel:
    """Open the channel that this kind of session has.

    Args:
        session: whose workers will send.
        wanted: whether anything is to come back.
        heard: told of records as they come, in classic sessions. Spark's scheduler waits for it: it must be brief, and must not raise.
    """
    if not wanted:
        return NoChannel()
    if is_connect(session):
        return WorkerLogChannel() if SPARK_VERSION >= WORKER_LOGS_SINCE else NoChannel()
    try:
        return AccumulatorChannel(session.sparkContext.accumulator(_Texts(), _TextsParam(heard)))
    except Exception:  # noqa: BLE001 - a shared or serverless cluster hides the context: the predictions need it not
        remark_once(
            session,
            "this session does not give its SparkContext, so the partitions' figures cannot come back: the run will say not measured",
        )
        return NoChannel()
