"""What a Spark session can do, asked in ways that never raise out of the library.

Runs on: driver.

Invariant: on Spark Connect neither ``sparkContext`` nor the JVM is touched; a setting that may not be read is ``None``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession

from sparkinfer.exceptions import remark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "SPARK_VERSION",
    "active_or_local_session",
    "active_session",
    "hides_context",
    "is_connect",
    "is_local",
    "remark_once",
    "session_of",
    "setting",
    "setting_is_on",
]

SPARK_VERSION: tuple[int, int] = tuple(int(part) for part in pyspark.__version__.split(".")[:2])  # type: ignore[assignment]

MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def session_of(df: DataFrame) -> SparkSession:
    """Give the DataFrame's own session."""
    return df.sparkSession


def is_connect(session: Any) -> bool:
    """Tell whether the session talks to its server by Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def hides_context(session: Any) -> bool:
    """Tell whether a classic session keeps its SparkContext to itself, as shared and serverless clusters do."""
    if is_connect(session):
        return False
    try:
        session.sparkContext  # noqa: B018 - whether it raises is the answer
    except Exception:  # noqa: BLE001 - Py4J's, or the platform's own
        return True
    return False


def setting(session: Any, key: str) -> str | None:
    """Read a setting, or Spark's default for it; ``None`` if there is none, or it may not be read (serverless refuses some)."""
    try:
        value = session.conf.get(key)  # a default of None would hide Spark's own default
    except Exception:  # noqa: BLE001 - Py4J, gRPC or Spark's own: whichever it is, the value is unknown
        return None
    return None if value is None else str(value)


def setting_is_on(session: Any, key: str) -> bool:
    """Tell whether a switch is known to be on."""
    return (setting(session, key) or "").lower() == "true"


def is_local(session: Any) -> bool:
    """Tell whether the workers run on this very machine, so that a path here is a path there."""
    master = None if is_connect(session) else setting(session, "spark.master")
    return master is not None and (master == "local" or master.startswith("local["))


def has_cards(session: Any) -> bool:
    """Tell whether the session's tasks are known to have CUDA cards; where Spark is not told of them, nobody knows."""
    try:  # with a default: a Connect server writes an error into its log for a setting that there is not (seen in 4.3)
        found = [session.conf.get(f"spark.{who}.resource.gpu.amount", "0") for who in ("task", "executor")]
    except Exception:  # noqa: BLE001 - as in ``setting``
        return False
    return any(amount != "0" for amount in found)


def active_session() -> SparkSession | None:
    """Give the session of this thread, or else the process's, if there is one."""
    try:
        return SparkSession.active()  # a thread that the user started has none of its own, and gets the default one
    except Exception:  # noqa: BLE001 - PySparkRuntimeError where there is none at all
        return None


def active_or_local_session(app_name: str = "sparkinfer") -> SparkSession:
    """Give the active session, or start a local one whose workers run this very Python.

    A worker that runs another Python than the driver is a new user's first failure (``No module named ...``): Spark takes
    ``python3`` from PATH unless told otherwise.
    """
    active = active_session()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: SparkSession.Builder = SparkSession.builder
    return (
        builder.appName(app_name)
        .master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )


_remarked: set[tuple[int, str]] = set()


def remark_once(session: Any, text: str) -> None:
    """Warn once a session for each text."""
    if (id(session), text) not in _remarked:
        _remarked.add((id(session), text))
        remark(text)
