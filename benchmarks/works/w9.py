"""W9: a wide table. One model column beside 50 others, 20 of them text: what travels to Python, and what is pruned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.data import wide
from benchmarks.models import mlp
from benchmarks.spark import on_spark
from benchmarks.work import Contestant, Reach, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDTH = 64


def _ours(road: str, *, narrow: bool) -> Callable[[SparkSession, Mapping[str, Any]], DataFrame]:
    def make(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
        import sparkinfer as si

        data = spark.read.parquet(str(wide(scale["rows"], columns=50, texts=20)))
        model = si.TorchModel(mlp(WIDTH))
        if road == "udf":
            scored = data.withColumn("y", si.predict_udf(model, inputs="x", returns="array<float>", batch_size=1024)("x"))
        else:
            scored = si.predict(data, model, inputs="x", outputs="y array<float>", batch_size=1024, road=road)
        return scored.select("id", "y") if narrow else scored

    return make


_WAYS = {"auto": "predict, the road that it takes", "map": "predict, map road", "udf": "predict_udf"}

WORK = Work(
    name="w9",
    title="a wide table: id and prediction, and all columns",
    unit="rows",
    scales={"quick": {"rows": 100_000}, "full": {"rows": 400_000}},
    contestants=tuple(
        Contestant(
            name=f"ours_{way}_{what}",
            label=f"{label}, {'id and prediction' if what == 'narrow' else 'all columns'}",
            make=on_spark(_ours(way, narrow=what == "narrow")),
            scales=("full",) if (way, what) == ("map", "narrow") else (),
        )
        for what in ("narrow", "all")
        for way, label in _WAYS.items()
    ),
    reaches=tuple(
        Reach(ours=f"ours_auto_{what}", of=of, bound=0.91, scale=scale)
        for scale in ("quick", "full")
        for what, of in (("narrow", "ours_udf_narrow"), ("all", "ours_udf_all"), ("all", "ours_map_all"))
    ),
)
