"""W3: photographs. JPEG bytes, decoded, through EfficientNet-Lite0: a heavy model on a CPU."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.data import photos
from benchmarks.models import as_lists, decode_photo, efficientnet
from benchmarks.spark import on_spark
from benchmarks.work import Contestant, Reach, Ready, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 32
_model: Any = None


def _start_bare() -> None:
    global _model  # noqa: PLW0603 - once a process, as a pool's initializer does
    _model = efficientnet()


def _bare(files: Sequence[Path]) -> tuple[int, float]:
    import pyarrow.parquet as pq
    import torch

    rows, total = 0, 0.0
    with torch.inference_mode():
        for path in files:
            for batch in pq.ParquetFile(path).iter_batches(BATCH, columns=["content"], use_threads=False):
                made = _model(torch.from_numpy(np.stack([decode_photo(content) for content in batch["content"].to_pylist()]))).numpy()
                rows += len(made)
                total += float(made.max(axis=1).sum(dtype=np.float64))
    return rows, total


def bare(scale: Mapping[str, Any]) -> Ready:
    """Make the ceiling: one process a core."""
    files = sorted(photos(scale["rows"]).glob("*.parquet"))
    pool = multiprocessing.get_context("spawn").Pool(2, initializer=_start_bare)
    halves = [files[0::2], files[1::2]]

    def check() -> tuple[int, float]:
        found = pool.map(_bare, halves)
        return sum(rows for rows, _ in found), sum(total for _, total in found)

    return Ready(run=lambda: sum(rows for rows, _ in pool.map(_bare, halves)), check=check, close=pool.terminate)


def _source(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    return spark.read.parquet(str(photos(scale["rows"])))


def predict_batch_udf(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Take pyspark's own, decoding inside."""
    from pyspark.ml.functions import predict_batch_udf as udf
    from pyspark.sql.types import ArrayType, FloatType

    def make() -> Any:
        import torch

        model = efficientnet()

        def predict(contents: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return model(torch.from_numpy(np.stack([decode_photo(one) for one in contents]))).numpy()

        return predict

    return _source(spark, scale).select("id", udf(make, return_type=ArrayType(FloatType()), batch_size=BATCH)("content").alias("y"))


def guide_udf(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Write it as public guides do: a ``DataLoader`` of two processes over each Arrow batch."""
    import torch
    from pyspark.sql import functions as F  # noqa: N812

    class Photos(torch.utils.data.Dataset):
        def __init__(self, contents: pd.Series) -> None:
            self.contents = contents

        def __len__(self) -> int:
            return len(self.contents)

        def __getitem__(self, at: int) -> np.ndarray:
            return decode_photo(self.contents.iloc[at])

    @F.pandas_udf("array<float>")
    def tag(chunks: Iterator[pd.Series]) -> Iterator[pd.Series]:
        model = efficientnet()
        with torch.inference_mode():
            for chunk in chunks:
                made: list[Any] = []
                for batch in torch.utils.data.DataLoader(Photos(chunk), batch_size=BATCH, num_workers=2):
                    made.extend(model(batch).numpy())
                yield pd.Series(made)

    return _source(spark, scale).select("id", tag("content").alias("y"))


def ray_data(scale: Mapping[str, Any]) -> Ready:
    """Take Ray Data: decoding in tasks, an actor a core for the model, as its guide for batch inference shows."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    class Score:
        def __init__(self) -> None:
            self.model = efficientnet()

        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            import torch

            with torch.inference_mode():
                images = torch.from_numpy(np.stack([decode_photo(content) for content in batch["content"]]))
                return {"id": batch["id"], "y": self.model(images).numpy()}

    def score() -> Any:
        data = ray.data.read_parquet(str(photos(scale["rows"])))
        return data.map_batches(Score, batch_size=BATCH, batch_format="numpy", concurrency=2, num_cpus=0.5)

    def check() -> tuple[int, float]:
        batches = [batch["y"] for batch in score().iter_batches(batch_format="numpy", batch_size=None)]
        return sum(map(len, batches)), float(sum(batch.max(axis=1).sum(dtype=np.float64) for batch in batches))

    return Ready(run=lambda: sum(one.num_rows() or 0 for one in score().iter_internal_ref_bundles()), check=check, close=ray.shutdown)


def daft_engine(scale: Mapping[str, Any]) -> Ready:
    """Take Daft: a class UDF in processes of its own, two of them."""
    import daft

    @daft.cls(use_process=True, max_concurrency=2)
    class Score:
        def __init__(self) -> None:
            self.model = efficientnet()

        @daft.method.batch(return_dtype=daft.DataType.list(daft.DataType.float32()), batch_size=BATCH)
        def __call__(self, content: daft.Series) -> pa.Array:
            import torch

            with torch.inference_mode():
                made = self.model(torch.from_numpy(np.stack([decode_photo(one) for one in content.to_pylist()]))).numpy()
            return as_lists(made).cast(pa.large_list(pa.float32()))

    def score() -> daft.DataFrame:
        data = daft.read_parquet(f"{photos(scale['rows'])}/*.parquet")
        return data.select(daft.col("id"), Score()(daft.col("content")).alias("y"))

    def check() -> tuple[int, float]:
        parts = [np.stack(part.to_arrow()["y"].to_pylist()) for part in score().iter_partitions()]
        return sum(map(len, parts)), float(sum(part.max(axis=1).sum(dtype=np.float64) for part in parts))

    return Ready(run=lambda: sum(len(part) for part in score().iter_partitions()), check=check)


def _ours(spark: SparkSession, scale: Mapping[str, Any], optimize: str | None = None, **arguments: Any) -> DataFrame:
    import sparkinfer as si

    model = si.TorchModel(efficientnet()) if optimize is None else si.TorchModel(efficientnet(), optimize=optimize)
    return si.predict(
        arguments.pop("data", None) or _source(spark, scale),
        model,
        inputs="content",
        outputs="y array<float>",
        keep=["id"],
        preprocess=decode_photo,
        batch_size=BATCH,
        **arguments,
    )


def ours_map(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Run ``predict`` as it comes."""
    return _ours(spark, scale)


def ours_onnx(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Run it with ``optimize="onnxruntime"``."""
    return _ours(spark, scale, "onnxruntime")


def ours_openvino(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Run it with ``optimize="openvino"``."""
    return _ours(spark, scale, "openvino")


_SUM = "array_max(y)"
_FILES = {"spark.sql.files.maxPartitionBytes": "9m"}


def _spark(make: Any) -> Any:
    return on_spark(make, value=_SUM, settings=_FILES)


WORK = Work(
    name="w3",
    title="photographs, decoded, EfficientNet-Lite0",
    unit="images",
    scales={"wake": {"rows": 16}, "quick": {"rows": 160}, "full": {"rows": 320}},
    rounds=10,
    contestants=(
        Contestant(name="bare", label="bare loop, one process a core, no engine", make=bare),
        Contestant(name="predict_batch_udf", label="predict_batch_udf", make=_spark(predict_batch_udf)),
        Contestant(name="guide_udf", label="the guides' pandas UDF, a DataLoader per Arrow batch", make=_spark(guide_udf), rounds=5),
        Contestant(name="ray", label="Ray Data", make=ray_data),
        Contestant(name="daft", label="Daft", make=daft_engine),
        Contestant(name="ours_map", label="sparkinfer", make=_spark(ours_map)),
        Contestant(name="ours_onnx", label='sparkinfer, optimize="onnxruntime"', make=_spark(ours_onnx)),
        Contestant(name="ours_openvino", label='sparkinfer, optimize="openvino"', make=_spark(ours_openvino)),
    ),
    reaches=(
        Reach(ours="ours_map", of="bare", bound=0.95, figure="cpu_rate"),
        Reach(ours="ours_map", of="ray", bound=1.0),
        Reach(ours="ours_map", of="daft", bound=1.0),
        Reach(ours="ours_onnx", of="predict_batch_udf", bound=4.0),
        Reach(ours="ours_openvino", of="predict_batch_udf", bound=4.0),
    ),
)
