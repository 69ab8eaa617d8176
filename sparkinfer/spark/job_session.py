"""The session of a job that a file describes: the running one, spark-submit's, or a new one.

Runs on: driver.

Invariant: a running session goes on after the job with the settings that it had; a session that was started for the job ends with it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import SparkSession

from sparkinfer.exceptions import ConfigError, SparkInferError, remark
from sparkinfer.spark.session import active_session, is_connect, setting

try:
    from pyspark.logger import PySparkLogger
except ImportError:  # before Spark 4, which has no such loggers
    PySparkLogger = None  # type: ignore[assignment, misc]

__all__ = ["SessionError", "is_submitted", "job_session", "queries_unlogged"]

_PYTHON = "spark.pyspark.python"
_PRIVATE = re.compile("secret|password|token|credential|key", re.IGNORECASE)  # as Spark redacts them in its own pages, and a little more
_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class SessionError(SparkInferError, RuntimeError):
    """No session could be started."""


def is_submitted() -> bool:
    """Tell whether spark-submit started this process, so that the JVM and its settings are there already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def job_session(master: str | None, app_name: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Give the session that a job runs in.

    Args:
        master: for a new session; that of a running one, and that of spark-submit, stay what they are.
        app_name: the same.
        conf: Spark settings. For a new session they win over spark-submit's flags, as those of any application do; in a running one they are set for
            the length of the block.

    Raises:
        ConfigError: a running session cannot change one of the settings.
        SessionError: Spark could not be started.
    """
    running = active_session()
    if running is not None:
        there = setting(running, "spark.master")
        if master is not None and there != master:
            remark(f"the job file's spark.master is another than that of the session that runs, {there!r}, which stays")
        with _laid_over(running, conf):
            yield running
        return
    session = _started(master, app_name, conf)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def queries_unlogged() -> Iterator[None]:
    """Keep pyspark 4 from writing each query that fails, with the values in it, to the standard error."""
    loggers = [PySparkLogger.getLogger(name) for name in _QUERY_LOGGERS] if PySparkLogger is not None else []
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


@contextmanager
def _laid_over(session: Any, conf: Mapping[str, str]) -> Iterator[None]:
    before: dict[str, str | None] = {}
    try:
        for key, value in conf.items():
            was = setting(session, key)
            if was == value:
                continue
            try:
                session.conf.set(key, value)
            except Exception as error:
                private = _PRIVATE.search(key) is not None
                there = "none" if was is None else "another" if private else repr(was)
                why = f"the running session has {there}, and it can only be set where a session is made"
                here = "has a value of its own" if private else f"is {value!r}"
                msg = f"spark.conf.{key} {here}, but {why}: set it there, or leave it out of the job file"
                raise ConfigError(msg) from error
            before[key] = was
        yield
    finally:
        with suppress(Exception):  # the session may have been stopped inside
            for key, was in before.items():
                session.conf.unset(key) if was is None else session.conf.set(key, was)


def _started(master: str | None, app_name: str | None, conf: Mapping[str, str]) -> SparkSession:
    builder: SparkSession.Builder = SparkSession.builder
    settings = _settings(master, conf)
    try:
        for key, value in settings.items():  # one that Spark Connect does not take is refused here
            builder = builder.config(key, value)
        if app_name is not None:
            builder = builder.appName(app_name)
        session = builder.getOrCreate()
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        msg = f"Spark could not be started ({type(error).__name__}: {first}): `sparkinfer doctor` says what is missing"
        raise SessionError(msg) from error
    if not is_submitted() and not is_connect(session):
        session.sparkContext.setLogLevel("ERROR")
    return session


def _settings(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """Give a new session's settings, and have the workers of a local one run this very Python."""
    settings = dict(conf)
    if "SPARK_REMOTE" not in os.environ:  # a server of Spark Connect shows no bar here, and refuses the setting
        settings.setdefault("spark.ui.showConsoleProgress", "false")  # Spark's own bar and ours would write over each other
    if is_submitted():
        if master is not None:
            remark(
                "the job file's spark.master is not taken: spark-submit was given a master of its own, or takes its default, which stays"
            )
        return settings
    if master is not None:
        settings["spark.master"] = master
    if _PYTHON in conf:  # read by spark-submit only; a plain Python process takes the variable
        os.environ["PYSPARK_PYTHON"] = conf[_PYTHON]
    elif settings.get("spark.master", "local").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return settings
