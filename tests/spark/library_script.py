"""What test_library.py runs in a process of its own, in another folder: its workers must not find the library by the way of pytest.

It scores on workers that lack the library, or have another version, and prints what came of each step as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import contextmanager
from typing import Any

ROOT, BARE, OTHER, FOLDER = sys.argv[1:]
sys.path.insert(0, ROOT)  # and not PYTHONPATH, which the workers would inherit

import numpy as np  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

import sparkinfer as si  # noqa: E402
from sparkinfer.spark.library import pack_library  # noqa: E402

ROWS = 12


@contextmanager
def session(python: str, **more: str) -> Any:
    """Give a session whose workers run this Python; its worker processes are its own."""
    os.environ["PYSPARK_PYTHON"] = python
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    for name, value in more.items():
        builder = builder.config(name.replace("_", "."), value)
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def score(spark: Any, road: str = "map", **more: Any) -> Any:
    """Give the answers, or the error's text."""
    model = si.PythonModel(lambda: lambda x: x.sum(axis=1))
    df = spark.range(0, ROWS, 1, 2).selectExpr("id", "array(cast(id as float), 1f) as x")
    try:
        rows = si.predict(df, model, inputs="x", outputs="y float", keep=["id"], road=road, batch_size=5, **more).collect()
    except Exception as error:  # noqa: BLE001 - the test looks at its words
        return str(error)
    return [row.y for row in sorted(rows)]


def home(spark: Any) -> str:
    """Tell where a worker has the library from."""

    def tell(batches: Any) -> Any:
        import pyarrow as pa

        import sparkinfer

        list(batches)
        yield pa.RecordBatch.from_pydict({"home": [sparkinfer.__file__]})

    return str(spark.range(0, 1, 1, 1).mapInArrow(tell, "home string").collect()[0].home)


def double(x: Any) -> Any:
    return np.asarray(x) * np.float32(2)


def triple(x: Any) -> Any:
    return np.asarray(x) * np.float32(3)


def main() -> None:
    results: dict[str, Any] = {"driver": si.__file__}
    with session(BARE) as spark:
        results["none"] = [score(spark, road) for road in ("map", "column")]
        results["shipped"] = [[told.name, told.already_there] for told in (si.ship_library(spark), si.ship_library())]
        results["forked"] = score(spark, preprocess=double, num_workers=2)
        results["plain"] = score(spark, "column")
        results["from a fork server"] = score(spark, preprocess=triple, num_workers=2)  # a model was loaded: no more forks
        results["home"] = home(spark)
    with session(OTHER) as spark:
        results["another"] = score(spark)
    with session(OTHER) as spark:
        si.ship_library(spark)
        results["shipped over another"] = score(spark)
    with session(BARE, spark_submit_pyFiles=str(pack_library(FOLDER))) as spark:  # what --py-files sets
        results["py-files"] = score(spark)
    print("RESULTS", json.dumps(results), flush=True)  # noqa: T201 - how it answers


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
