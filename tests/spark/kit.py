"""What the tests of Spark's side share: one call for every way in which rows reach the model."""

from __future__ import annotations

import sys
import warnings
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
PANDAS_WAYS = ("udf-pandas",) if "arrow" in FLAVORS else ("column", "udf-pandas")  # those on which rows go through pandas
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


def ours(told: pytest.WarningsRecorder) -> list[warnings.WarningMessage]:
    """Leave out what pyspark 3.5 says of itself: it compares versions by distutils."""
    return [warning for warning in told if issubclass(warning.category, si.SparkInferWarning)]


def hide_context(patched: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """Make the real session refuse its context, its JVM and its settings, as shared and serverless clusters do; pyspark itself has them."""

    def refuse(name: str) -> None:
        if not sys._getframe(2).f_globals["__name__"].startswith(("pyspark.", "py4j.")):
            msg = f"[JVM_ATTRIBUTE_NOT_SUPPORTED] {name} is not supported on this cluster"
            raise AttributeError(msg)

    def hidden(name: str, held: str) -> property:
        def read(session: Any) -> Any:
            refuse(name)
            return session.__dict__[held]

        def write(session: Any, value: Any) -> None:
            session.__dict__[held] = value

        return property(read, write)

    for name, held in (("sparkContext", "_sc"), ("_jvm", "_jvm"), ("_jsc", "_jsc")):
        patched.setattr(type(spark), name, hidden(name, held), raising=False)
    real = type(spark.conf).get

    def get(conf: Any, key: str, *rest: Any) -> Any:
        refuse("conf.get")
        return real(conf, key, *rest)

    patched.setattr(type(spark.conf), "get", get)


def jobs_started(spark: SparkSession) -> int:
    """Count the jobs that this session has started; the scheduler's own number, which no listener delays."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
