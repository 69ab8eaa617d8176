"""What test_connect.py runs in a process of its own: one process cannot hold a classic session and a Connect session.

It starts a local Connect server, scores through it, and prints what came of each step as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

import sparkinfer as si

FORBIDDEN = ("sparkContext", "_jvm", "_jsc", "_sc")
ROWS = 23


class Steps:
    """The steps; each method that has no underscore is one, and gives what the test looks at."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.sent: list[str] = []
        self.df = spark.range(0, ROWS, 1, 3).selectExpr("id", "array(cast(id as float), cast(id % 5 as float), 1f) as x")
        self.x = np.array([[row, row % 5, 1] for row in range(ROWS)], dtype=np.float32)
        torch.manual_seed(3)
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
        with torch.inference_mode():
            self.expected = self.net.eval()(torch.from_numpy(self.x)).numpy()
        self.net.train()
        send = spark.addArtifacts
        spark.addArtifacts = lambda *paths, **more: (self.sent.extend(Path(path).name for path in paths), send(*paths, **more))[1]

    def _score(self, model: Any, expected: np.ndarray, **more: Any) -> bool:
        return self._equal(self._predict(model, **more), expected)

    def _predict(self, model: Any, **more: Any) -> Any:
        return si.predict(self.df, model, inputs="x", outputs="y array<float>", keep=["id"], batch_size=5, **more)

    def _equal(self, scored: Any, expected: np.ndarray) -> bool:
        rows = sorted(scored.collect())
        return [row.id for row in rows] == list(range(ROWS)) and bool(np.allclose([row.y for row in rows], expected, atol=1e-4))

    def map_road(self) -> bool:
        return self._score(si.TorchModel(self.net), self.expected, road="map")

    def column_road(self) -> bool:
        return self._score(si.TorchModel(self.net), self.expected, road="column")

    def predict_udf(self) -> bool:
        tag = si.predict_udf(si.TorchModel(self.net), inputs="x", returns="array<float>")
        return self._equal(self.df.select("id", tag("x").alias("y")), self.expected)

    def preview(self) -> list[Any]:
        frame = si.preview(self.df, si.TorchModel(self.net), n=4, inputs="x", outputs="y array<float>", keep=["id"])
        return [len(frame), list(frame.columns), bool(np.allclose(np.stack(frame["y"]), self.expected[frame["id"]], atol=1e-5))]

    def loader_processes(self) -> bool:
        def double(x: Any) -> Any:
            return np.asarray(x) * np.float32(2)

        with torch.inference_mode():
            expected = self.net.eval()(torch.from_numpy(self.x * 2)).numpy()
        return self._score(si.TorchModel(self.net), expected, preprocess=double, num_workers=2)

    def large_module_in_memory(self) -> list[Any]:
        big = torch.nn.Sequential(torch.nn.Linear(3, 100_000), torch.nn.Linear(100_000, 2))
        with torch.inference_mode():
            expected = big(torch.from_numpy(self.x)).numpy()
        before = len(self.sent)
        answers = [
            bool(np.allclose(self._answers(self._predict(si.TorchModel(big), road=road)), expected, atol=1e-2))
            for road in ("map", "column")
        ]
        return [answers, len(self.sent) - before]

    def _answers(self, scored: Any) -> list[Any]:
        return [row.y for row in sorted(scored.collect())]

    def saved_model_directory(self) -> list[Any]:
        module = tf.Module()
        module.weight = tf.Variable([[1.0, 0.0], [2.0, 1.0], [3.0, -1.0]])
        module.serve = tf.function(lambda x: {"out": x @ module.weight}, input_signature=[tf.TensorSpec((None, 3), tf.float32, name="x")])
        tf.saved_model.save(module, str(self.folder / "saved"), signatures=module.serve)
        before = len(self.sent)
        expected = self.x @ module.weight.numpy()
        answers = [self._score(si.TensorFlowModel(self.folder / "saved"), expected, road=road) for road in ("map", "column")]
        return [answers, self.sent[before:]]

    def overwritten_file(self) -> list[Any]:
        path, answers = self.folder / "net.pt", []
        for factor in (1.0, 2.0):
            with torch.no_grad():
                self.net[2].weight.mul_(factor)
                torch.save(self.net.state_dict(), path)
                expected = self.net.eval()(torch.from_numpy(self.x)).numpy()
            scored = self._predict(si.TorchModel(_net, weights=path), road="map")
            path.write_bytes(b"gone")  # the server has the bytes
            answers.append(self._equal(scored, expected))
        return answers

    def error_names_the_place(self) -> str:
        def bad(x: Any) -> Any:
            if x[0] == 17:
                raise ValueError("bad 17")
            return x

        try:
            si.predict(self.df.coalesce(1), si.TorchModel(self.net), inputs="x", outputs="y array<float>", preprocess=bad).collect()
        except Exception as error:  # noqa: BLE001 - the test looks at its words
            return str(error)
        return ""

    def transport_setting(self) -> list[Any]:
        key = "spark.sql.execution.arrow.maxRecordsPerBatch"
        before = self.spark.conf.get(key)
        with si.inference_run(max_records_per_batch=7):
            inside = self.spark.conf.get(key)
            sizes = si.PythonModel(lambda: lambda x: np.full(len(x), len(x)))
            seen = {row.n for row in si.predict(self.df.coalesce(1), sizes, inputs="x", outputs="n int", batch_size=64).collect()}
        return [inside, self.spark.conf.get(key) == before, sorted(seen)]

    def sql_function(self) -> list[Any]:
        si.register(self.spark, "doubled", si.PythonModel(lambda: lambda x: 2 * x), returns="bigint")
        answers = [row[0] for row in self.spark.sql("SELECT doubled(id) FROM range(3)").collect()]
        try:
            self.spark.sql("SELECT doubled(id, id) FROM range(3)").collect()
        except Exception as error:  # noqa: BLE001 - the test looks at its words
            return [answers, "doubled() was called with 2 columns, expected 1: input" in str(error)]
        return [answers, False]

    def pipeline_stage(self) -> list[Any]:
        features = VectorAssembler(inputCols=["id"], outputCol="features")
        predictor = si.ml.Predictor(
            si.PythonModel(lambda: lambda x: x.sum(axis=1)), inputs="features", outputs="y double", keep=["id"], batchSize=5
        )
        fitted = Pipeline(stages=[features, predictor]).fit(self.df)
        fitted.write().overwrite().save(str(self.folder / "pipeline"))
        with si.ml.trusted_pickles():
            loaded = PipelineModel.load(str(self.folder / "pipeline"))
        expected = np.arange(ROWS, dtype=float)
        return [self._equal(made.transform(self.df), expected) for made in (fitted, loaded)]

    def second_execution(self) -> list[str]:
        with si.inference_run(progress=False) as run:
            scored = self._predict(si.PythonModel(lambda: lambda x: x))
            scored.collect()
            scored.collect()
        return list(run.remarks)


def _net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))


def watch(touched: list[str]) -> None:
    """Note each touch of what a Connect session does not have, even one whose error is swallowed."""

    def trap(name: str) -> property:
        def get(session: Any) -> Any:
            touched.append(name)
            raise AttributeError(name)

        return property(get)

    for name in FORBIDDEN:
        setattr(ConnectSession, name, trap(name))


def main(folder: Path) -> None:
    os.environ["SPARK_TESTING"] = "1"  # a free port, which the client finds
    spark: Any = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    touched: list[str] = []
    watch(touched)
    steps = Steps(spark, folder)
    results: dict[str, Any] = {"session": type(spark).__module__}
    for name in [name for name in vars(Steps) if not name.startswith("_")]:
        try:
            results[name] = getattr(steps, name)()
        except Exception as error:  # noqa: BLE001 - one step's failure must not hide the others
            results[name] = f"{type(error).__name__}: {error}"
    results["touched"] = list(touched)
    print("RESULTS", json.dumps(results), flush=True)  # noqa: T201 - how it answers
    for name in FORBIDDEN:
        delattr(ConnectSession, name)
    spark.stop()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
