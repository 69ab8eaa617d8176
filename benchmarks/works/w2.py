"""W2: the same vectors and network in TensorFlow, beside PyTorch: is the second backend second?

What is compared is CPU seconds a row on Spark, less those of the bare loop of the same framework: all that is not the model.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.data import WIDTH, vectors
from benchmarks.models import as_lists, keras_mlp
from benchmarks.spark import on_spark
from benchmarks.work import Contestant, Reach, Ready, Work
from benchmarks.works import w1

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_call: Any = None


def traced() -> Any:
    """Make the function that a careful user would write: traced once, for any number of rows."""
    import tensorflow as tf

    model = keras_mlp()
    call = tf.function(lambda x: model(x, training=False), input_signature=[tf.TensorSpec((None, WIDTH))])
    return lambda column: as_lists(call(tf.constant(column.flatten().to_numpy(zero_copy_only=True).reshape(-1, WIDTH))).numpy())


def _start_bare() -> None:
    global _call  # noqa: PLW0603 - once a process, as a pool's initializer does
    _call = traced()


def _bare(files: Sequence[Path]) -> tuple[int, float]:
    import pyarrow.parquet as pq

    rows, total = 0, 0.0
    for path in files:
        for batch in pq.ParquetFile(path).iter_batches(w1.CHUNK, columns=["id", "x"], use_threads=False):
            made = _call(batch["x"])
            rows += len(made)
            total += float(made.values.to_numpy().sum(dtype=np.float64))
    return rows, total


def bare(scale: Mapping[str, Any]) -> Ready:
    """Make the ceiling: one process a core, pyarrow and TensorFlow."""
    files = sorted(vectors(scale["rows"]).glob("*.parquet"))
    pool = multiprocessing.get_context("spawn").Pool(2, initializer=_start_bare)
    halves = [files[0::2], files[1::2]]

    def check() -> tuple[int, float]:
        found = pool.map(_bare, halves)
        return sum(rows for rows, _ in found), sum(total for _, total in found)

    return Ready(run=lambda: sum(rows for rows, _ in pool.map(_bare, halves)), check=check, close=pool.terminate)


def _source(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    return spark.read.parquet(str(vectors(scale["rows"])))


def map_in_arrow(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Do by hand what costs least."""

    def score(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        call = traced()
        for chunk in chunks:
            yield pa.RecordBatch.from_arrays([chunk["id"], call(chunk["x"])], ["id", "y"])

    return _source(spark, scale).mapInArrow(score, "id long, y array<float>")


def predict_batch_udf(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Take pyspark's own."""
    from pyspark.ml.functions import predict_batch_udf as udf
    from pyspark.sql.types import ArrayType, FloatType

    def make() -> Any:
        model = keras_mlp()

        def predict(x: np.ndarray) -> np.ndarray:
            return model.predict_on_batch(x)

        return predict

    tag = udf(make, return_type=ArrayType(FloatType()), batch_size=w1.BATCH, input_tensor_shapes=[[WIDTH]])
    return _source(spark, scale).select("id", tag("x").alias("y"))


def ours(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Run ``predict`` as it comes."""
    import sparkinfer as si

    return si.predict(
        _source(spark, scale), si.TensorFlowModel(keras_mlp()), inputs="x", outputs="y array<float>", keep=["id"], batch_size=w1.BATCH
    )


WORK = Work(
    name="w2",
    title="vectors of 256 floats, the same small MLP in TensorFlow",
    unit="rows",
    scales={"quick": {"rows": 100_000}, "full": {"rows": 400_000}},
    contestants=(
        Contestant(name="bare", label="bare loop, TensorFlow", make=bare),
        Contestant(name="bare_torch", label="bare loop, PyTorch", make=w1.bare),
        Contestant(name="map_in_arrow", label="hand-written mapInArrow, TensorFlow", make=on_spark(map_in_arrow)),
        Contestant(name="predict_batch_udf", label="predict_batch_udf, TensorFlow", make=on_spark(predict_batch_udf)),
        Contestant(name="ours", label="sparkinfer, TensorFlow", make=on_spark(ours)),
        Contestant(name="ours_torch", label="sparkinfer, PyTorch", make=on_spark(w1.ours_map)),
    ),
    reaches=(
        Reach(ours="ours", of="ours_torch", bound=1.15, figure="cpu_per_row", below=True, less=("bare", "bare_torch")),
        Reach(ours="ours", of="predict_batch_udf", bound=2.0),
        Reach(ours="ours", of="map_in_arrow", bound=0.95),
    ),
)
