"""W8: linear cost. The same work with ten and a hundred times the rows: CPU seconds a row must not grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.data import small_vectors
from benchmarks.models import mlp
from benchmarks.spark import on_spark
from benchmarks.work import Contestant, Reach, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDTH = 16


def _ours(rows: int) -> Any:
    def make(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
        import sparkinfer as si

        asked = min(rows, scale.get("most", rows))
        data = spark.read.parquet(str(small_vectors(asked, files=max(1, asked // 1_000_000))))
        return si.predict(data, si.TorchModel(mlp(WIDTH)), inputs="x", outputs="y array<float>", keep=["id"], batch_size=1024)

    ready = on_spark(make, value=None)
    return lambda scale: ready({**scale, "rows": rows})


WORK = Work(
    name="w8",
    title="ten and a hundred times the rows",
    unit="rows",
    scales={"full": {"rows": 10_000_000}, "wake": {"most": 100_000}},
    contestants=tuple(
        Contestant(name=f"ours_{rows}", label=f"sparkinfer, {rows:,} rows", make=_ours(rows)) for rows in (100_000, 1_000_000, 10_000_000)
    ),
    reaches=(Reach(ours="ours_10000000", of="ours_1000000", bound=1.1, figure="cpu_per_row", below=True),),
)
