"""W6: bounded memory. One partition of 1 and of 5 million small rows, and 2,000 rows of 2 MB; what is compared is the Python worker's memory."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import blobs, small_vectors
from benchmarks.models import forward, mlp
from benchmarks.spark import on_spark
from benchmarks.work import Contestant, Reach, Ready, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDTH = 16
_model: Any = None


def _start_bare() -> None:
    global _model  # noqa: PLW0603 - once a process, as a pool's initializer does
    _model = mlp(WIDTH)


def _bare(folder: Path) -> int:
    import pyarrow.parquet as pq
    import torch

    rows = 0
    with torch.inference_mode():
        for path in sorted(folder.glob("*.parquet")):
            file = pq.ParquetFile(path)
            if "x" in file.schema_arrow.names:
                rows += sum(
                    len(forward(_model, batch["x"], WIDTH)) for batch in file.iter_batches(10_000, columns=["id", "x"], use_threads=False)
                )
            else:
                for batch in file.iter_batches(32, columns=["id", "content"], use_threads=False):
                    rows += len(_model(torch.from_numpy(np.stack([shrink(one) for one in batch["content"].to_pylist()]))))
    return rows


def shrink(content: bytes) -> np.ndarray:
    """Turn a row's bytes into 16 floats."""
    return np.frombuffer(content[:WIDTH], np.uint8).astype(np.float32) / 255


def bare(folder_of: Any) -> Any:
    """Make the floor: one process."""

    def ready(scale: Mapping[str, Any]) -> Ready:
        folder = folder_of(scale)
        pool = multiprocessing.get_context("spawn").Pool(1, initializer=_start_bare)
        return Ready(run=lambda: pool.apply(_bare, (folder,)), close=pool.terminate)

    return ready


def _folder(scale: Mapping[str, Any]) -> Path:
    return blobs(scale["rows"], scale["size"]) if "size" in scale else small_vectors(scale["rows"])


def _ours(num_workers: int) -> Any:
    def make(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
        import sparkinfer as si

        data = spark.read.parquet(str(_folder(scale))).coalesce(1)
        model = si.TorchModel(mlp(WIDTH))
        settings: dict[str, Any] = {"outputs": "y array<float>", "keep": ["id"], "num_workers": num_workers}
        if "size" in scale:
            return si.predict(data, model, inputs="content", preprocess=shrink, batch_size=32, **settings)
        return si.predict(data, model, inputs="x", batch_size=1024, **settings)

    return make


WORK = Work(
    name="w6",
    title="memory of the Python worker: one partition",
    unit="rows",
    scales={
        "wake": {"rows": 100},
        "quick": {"rows": 200_000},
        "million": {"rows": 1_000_000},
        "full": {"rows": 5_000_000},
        "blobs": {"rows": 2_000, "size": 2_000_000},
    },
    rounds=3,
    contestants=(
        Contestant(name="bare", label="bare loop, one process", make=bare(_folder)),
        Contestant(name="ours", label="sparkinfer", make=on_spark(_ours(0), value=None)),
        Contestant(
            name="ours_loaders", label="sparkinfer, two loader processes", make=on_spark(_ours(2), value=None), scales=("quick", "blobs")
        ),
    ),
    reaches=tuple(
        Reach(ours="ours", of="bare", bound=300, figure="workers_megabytes_over", below=True, scale=scale)
        for scale in ("million", "full", "blobs")
    ),
)
