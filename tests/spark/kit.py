"""What the tests of Spark's side share: one call for every way in which rows reach the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

import sparkinfer as si
from sparkinfer.spark.session import SPARK_VERSION
from sparkinfer.spark.udf import ARROW_UDF_SINCE

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import DataFrame, SparkSession

ROADS = ("map", "column")
FLAVORS = ("arrow", "pandas") if SPARK_VERSION >= ARROW_UDF_SINCE else ("pandas",)
WAYS = (*ROADS, "udf-pandas")  # the column road is the Arrow UDF where Spark has it; test_predict_udf.py takes both flavors


def score(df: DataFrame, model: Any, way: str, *, inputs: Any, returns: str, **arguments: Any) -> list[Any]:
    """Score by one of ``WAYS``, and give the predictions in the order of the column ``id``."""
    if way not in (*ROADS, *WAYS):
        pytest.skip(f"{way} needs Spark 4.1 or newer")
    if way in ROADS:
        scored = si.predict(df, model, inputs=inputs, outputs=f"pred {returns}", keep=["id"], road=way, **arguments)
    else:
        made = si.predict_udf(model, inputs=inputs, returns=returns, flavor=way.removeprefix("udf-"), **arguments)
        scored = df.select("id", made().alias("pred"))
    return [row["pred"] for row in sorted(scored.collect(), key=lambda row: row["id"])]


def frame(spark: SparkSession, values: Sequence[Any], ddl_type: str, column: str = "x") -> DataFrame:
    """Make one partition of ``id`` and one column."""
    return spark.createDataFrame([(number, value) for number, value in enumerate(values)], f"id long, `{column}` {ddl_type}").coalesce(1)


def model(function: Callable[..., Any]) -> si.PythonModel:
    """Wrap a function of arrays that needs no loading."""
    return si.PythonModel(lambda: function)


def echo(*arrays: np.ndarray) -> Any:
    """Give back what came."""
    return arrays[0] if len(arrays) == 1 else arrays


def told(*arrays: np.ndarray, **named: np.ndarray) -> list[str]:
    """Say of each input what the model saw: its name, dtype and the shape of a row; for objects, the type of each row's value."""
    every = {**{str(position): array for position, array in enumerate(arrays)}, **named}
    rows = len(next(iter(every.values())))

    def one(array: np.ndarray, row: int) -> str:
        kind = type(array[row]).__name__ if array.dtype == object else str(array.dtype)
        return f"{kind}{list(array.shape[1:])}" if array.ndim > 1 else kind

    if len(every) == 1:
        array = next(iter(every.values()))
        return [one(array, row) for row in range(rows)]
    return [" ".join(f"{name}:{one(array, row)}" for name, array in every.items()) for row in range(rows)]


def jobs_started(spark: SparkSession) -> int:
    """Count the jobs that this session has started; the scheduler's own number, which no listener delays."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
