"""Spark's side of the contestants: one session for all of them, and how a DataFrame becomes a contestant."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.work import Ready

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["noop", "on_spark", "session"]

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.files.maxPartitionBytes": "64m",
}


def session(cores: int = 2, **settings: str) -> SparkSession:
    """Start a local session with the settings that all contestants share, and this contestant's own."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # the workers import this package too
    builder = SparkSession.builder.master(f"local[{cores}]").appName("benchmark")
    for name, value in {**_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def noop(data: DataFrame) -> None:
    """Run a DataFrame to its last row and keep nothing: a count would leave the predictions out."""
    data.write.format("noop").mode("overwrite").save()


def on_spark(
    make: Callable[[SparkSession, Mapping[str, Any]], DataFrame],
    *,
    value: str | None = "cast(aggregate(y, cast(0 as double), (a, b) -> a + b) as double)",
    settings: Mapping[str, str] | None = None,
    cores: int = 2,
) -> Callable[[Mapping[str, Any]], Ready]:
    """Make a contestant of a function that builds a DataFrame; ``value`` is the expression whose sum is the checksum."""

    def ready(scale: Mapping[str, Any]) -> Ready:
        spark = session(cores, **(settings or {}))

        def run() -> int:
            noop(make(spark, scale))
            return int(scale["rows"])

        def check() -> tuple[int, float]:
            rows, total = make(spark, scale).selectExpr(f"{value} as v").selectExpr("count(v)", "sum(v)").first()  # type: ignore[misc]
            return rows, total

        def wake() -> None:
            if "wake" in scale:
                noop(make(spark, {**scale, **scale["wake"]}))

        return Ready(run=run, check=check if value else None, close=spark.stop, wake=wake)

    return ready
