"""W4: a simulated accelerator. The model waits without using the CPU, preparing costs as much in CPU time: what is raced is overlap.

Two tasks run at once, each with a model of its own. Preparing burns 20 ms a batch by hashing, which lets go of the interpreter's lock as decoders
do; the model waits 20 ms. In turn that is 40 ms a batch, side by side 20.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.data import small_vectors
from benchmarks.models import as_lists
from benchmarks.spark import on_spark
from benchmarks.work import Contestant, Reach, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH, WIDTH = 64, 16
COST = 0.020  # seconds of a batch, each of preparing and predicting
_BLOCK = b"x" * (1 << 18)


def prepare(values: np.ndarray) -> np.ndarray:
    """Burn CPU for as long as a batch's decoding would."""
    until = time.thread_time() + COST * len(values) / BATCH
    while time.thread_time() < until:
        hashlib.sha256(_BLOCK).digest()
    return values


def predict(values: np.ndarray) -> np.ndarray:
    """Wait as for an accelerator."""
    time.sleep(COST * len(values) / BATCH)
    return values * 2


def _source(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    return spark.read.parquet(str(small_vectors(scale["rows"], files=2)))


def _by_hand(*steps: Callable[[np.ndarray], np.ndarray]) -> Callable[[SparkSession, Mapping[str, Any]], DataFrame]:
    """Run the steps in turn on each batch, in a hand-written mapInArrow."""

    def make(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
        def score(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for chunk in chunks:
                values = chunk["x"].flatten().to_numpy().reshape(-1, WIDTH)
                made = []
                for at in range(0, len(values), BATCH):
                    batch = values[at : at + BATCH]
                    for step in steps:
                        batch = step(batch)
                    made.append(batch)
                yield pa.RecordBatch.from_arrays([chunk["id"], as_lists(np.concatenate(made))], ["id", "y"])

        return _source(spark, scale).mapInArrow(score, "id long, y array<float>")

    return make


def predict_batch_udf(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Take pyspark's own."""
    from pyspark.ml.functions import predict_batch_udf as udf
    from pyspark.sql.types import ArrayType, FloatType

    tag = udf(lambda: lambda x: predict(prepare(x)), return_type=ArrayType(FloatType()), batch_size=BATCH, input_tensor_shapes=[[WIDTH]])
    return _source(spark, scale).select("id", tag("x").alias("y"))


def _ours(num_workers: int) -> Callable[[SparkSession, Mapping[str, Any]], DataFrame]:
    def make(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
        import sparkinfer as si

        model = si.PythonModel(lambda: predict)
        return si.predict(
            _source(spark, scale),
            model,
            inputs="x",
            outputs="y array<float>",
            keep=["id"],
            preprocess_batch=prepare,
            batch_size=BATCH,
            num_workers=num_workers,
        )

    return make


WORK = Work(
    name="w4",
    title="a simulated accelerator beside preparing of equal cost",
    unit="rows",
    scales={"quick": {"rows": 64 * 400}, "full": {"rows": 64 * 1000}, "wake": {"rows": 64 * 20}},
    contestants=(
        Contestant(name="prepare_only", label="preparing alone (hand-written)", make=on_spark(_by_hand(prepare), value=None)),
        Contestant(name="predict_only", label="the model alone (hand-written)", make=on_spark(_by_hand(predict)), scales=("full",)),
        Contestant(name="map_in_arrow", label="hand-written mapInArrow, in turn", make=on_spark(_by_hand(prepare, predict))),
        Contestant(name="predict_batch_udf", label="predict_batch_udf", make=on_spark(predict_batch_udf), scales=("full",)),
        Contestant(name="ours", label="sparkinfer, read-ahead thread", make=on_spark(_ours(0))),
        Contestant(name="ours_loader", label="sparkinfer, one loader process a task", make=on_spark(_ours(1)), scales=("full",)),
    ),
    reaches=tuple(
        Reach(ours="ours", of=of, bound=bound, scale=scale)
        for scale in ("quick", "full")
        for of, bound in (("prepare_only", 0.93), ("map_in_arrow", 1.6))  # preparing is the slower stage
    ),
)
