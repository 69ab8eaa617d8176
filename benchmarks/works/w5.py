"""W5: many small tasks. EfficientNet-Lite0 is loaded, its last layer alone runs: what is raced is start-up, paid once or once a task.

Partitions of 50 rows of 1,280 floats. Each load appends a line to a file, so that loads are counted, not believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks.data import DATA
from benchmarks.models import efficientnet
from benchmarks.spark import noop, session
from benchmarks.work import Contestant, Reach, Ready, Work

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS, WIDTH = 50, 1280


def last_layer(loads: str) -> Any:
    """Load the whole network, write that down, and give its last layer."""
    import os

    with open(loads, "a", encoding="ascii") as journal:  # noqa: PTH123 - one write, appended whole
        journal.write(f"{os.getpid()}\n")
    return efficientnet()._fc  # noqa: SLF001 - the package has no public name for it


def _source(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    partitions = scale["partitions"]
    return spark.range(0, partitions * ROWS, 1, partitions).selectExpr("id", f"array_repeat(cast((id % 97) * 0.01 as float), {WIDTH}) as x")


def _counted(
    make: Callable[[SparkSession, Mapping[str, Any], str], DataFrame], *, compared: bool = True
) -> Callable[[Mapping[str, Any]], Ready]:
    def ready(scale: Mapping[str, Any]) -> Ready:
        DATA.mkdir(exist_ok=True)
        journal = DATA / f"loads-{make.__name__}"
        spark = session()
        spark.conf.set("spark.sql.adaptive.enabled", "false")  # as many tasks as partitions

        def run() -> dict[str, float]:
            journal.write_text("")
            noop(make(spark, scale, str(journal)))
            return {"rows": scale["partitions"] * ROWS, "loads": len(journal.read_text().splitlines())}

        def check() -> tuple[int, float]:
            rows, total = (
                make(spark, scale, str(journal)).selectExpr("cast(array_max(y) as double) as v").selectExpr("count(v)", "sum(v)").first()
            )  # type: ignore[misc]
            return rows, total

        return Ready(run=run, check=check if compared else None, close=spark.stop)

    return ready


def by_hand(spark: SparkSession, scale: Mapping[str, Any], loads: str) -> DataFrame:
    """Load once a task, in an iterator pandas UDF."""
    from pyspark.sql import functions as F  # noqa: N812

    @F.pandas_udf("array<float>")
    def tag(chunks: Iterator[pd.Series]) -> Iterator[pd.Series]:
        import torch

        layer = last_layer(loads)
        with torch.inference_mode():
            for chunk in chunks:
                yield pd.Series(list(layer(torch.from_numpy(np.stack(chunk.to_numpy()))).numpy()))

    return _source(spark, scale).select("id", tag("x").alias("y"))


def transport(spark: SparkSession, scale: Mapping[str, Any], loads: str) -> DataFrame:  # noqa: ARG001 - nothing is loaded
    """Send the columns to Python and only ``id`` back, on a connection that answers at once: what Spark itself takes for such a task."""
    from sparkinfer.spark.prompt_socket import answer_at_once

    def pass_on(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answer_at_once()
        for chunk in chunks:
            yield chunk.select(["id"])

    return _source(spark, scale).mapInArrow(pass_on, "id long")


def predict_batch_udf(spark: SparkSession, scale: Mapping[str, Any], loads: str) -> DataFrame:
    """Take pyspark's own, which keeps models too."""
    from pyspark.ml.functions import predict_batch_udf as udf
    from pyspark.sql.types import ArrayType, FloatType

    def make() -> Any:
        import torch

        layer = last_layer(loads)

        def predict(x: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return layer(torch.from_numpy(x)).numpy()

        return predict

    tag = udf(make, return_type=ArrayType(FloatType()), batch_size=ROWS, input_tensor_shapes=[[WIDTH]])
    return _source(spark, scale).select("id", tag("x").alias("y"))


def ours(spark: SparkSession, scale: Mapping[str, Any], loads: str) -> DataFrame:
    """Run ``predict`` with a factory that loads."""
    import sparkinfer as si

    model = si.TorchModel(lambda: last_layer(loads))
    return si.predict(_source(spark, scale), model, inputs="x", outputs="y array<float>", keep=["id"], batch_size=ROWS)


WORK = Work(
    name="w5",
    title="many small partitions, a model that takes long to load",
    unit="rows",
    scales={"quick": {"partitions": 100, "rows": 5_000}, "full": {"partitions": 2_000, "rows": 100_000}},
    contestants=(
        Contestant(name="by_hand", label="hand-written pandas UDF, a load once a task", make=_counted(by_hand), rounds=3),
        Contestant(name="transport", label="Spark's transport alone", make=_counted(transport, compared=False)),
        Contestant(name="predict_batch_udf", label="predict_batch_udf", make=_counted(predict_batch_udf), scales=("full",)),
        Contestant(name="ours", label="sparkinfer", make=_counted(ours)),
    ),
    reaches=(
        Reach(ours="ours", of="by_hand", bound=10, floor="transport"),
        Reach(ours="ours", of="predict_batch_udf", bound=1.0),
        Reach(ours="ours", of="by_hand", bound=8, scale="quick", floor="transport"),
    ),
    notes=(
        (
            "Spark's transport alone is a mapInArrow that gives the ids back; it sets its connection's flags as sparkinfer does (TCP_NODELAY, TCP_QUICKACK). "
            "sparkinfer can be the faster of the two: pyspark collects garbage after every task, and it freezes what lasts (engine/lasting.py)."
        ),
        "Loads in the timed rounds are counted by a file that each load appends to; see `loads` in the JSON. A warm Python worker loads nothing.",
    ),
)
