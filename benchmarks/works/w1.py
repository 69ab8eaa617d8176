"""W1: vectors of 256 floats through a small MLP in PyTorch. The model costs next to nothing: what is raced is transport and conversion."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.data import WIDTH, vectors
from benchmarks.models import forward, mlp
from benchmarks.spark import on_spark
from benchmarks.work import Contestant, Reach, Ready, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 4096  # rows of a model call, where a contestant has such a thing: the fastest of 1,024 to 10,000 for ours, the same for all
CHUNK = 10_000  # rows that the engines hand over, Spark's own default

# ------------------------------------------------------------------------------------------------------- no engine

_model: Any = None


def _start_bare() -> None:
    global _model  # noqa: PLW0603 - once a process, as a pool's initializer does
    _model = mlp()


def _bare(files: Sequence[Path]) -> tuple[int, float]:
    import pyarrow.parquet as pq
    import torch

    rows, total = 0, 0.0
    with torch.inference_mode():
        for path in files:
            for batch in pq.ParquetFile(path).iter_batches(CHUNK, columns=["id", "x"], use_threads=False):
                made = forward(_model, batch["x"])
                rows += len(made)
                total += float(made.values.to_numpy()[::10].sum())  # so that nothing is left out; the check below adds all
    return rows, total


def _bare_sum(files: Sequence[Path]) -> tuple[int, float]:
    import pyarrow.parquet as pq
    import torch

    with torch.inference_mode():
        made = [forward(_model, batch["x"]) for path in files for batch in pq.ParquetFile(path).iter_batches(CHUNK, columns=["x"])]
    return sum(map(len, made)), float(sum(one.values.to_numpy().sum(dtype=np.float64) for one in made))


def bare(scale: Mapping[str, Any]) -> Ready:
    """Make the ceiling: one process a core, pyarrow and torch."""
    files = sorted(vectors(scale["rows"]).glob("*.parquet"))
    pool = multiprocessing.get_context("spawn").Pool(2, initializer=_start_bare)
    halves = [files[0::2], files[1::2]]

    def check() -> tuple[int, float]:
        found = pool.map(_bare_sum, halves)
        return sum(rows for rows, _ in found), sum(total for _, total in found)

    return Ready(run=lambda: sum(rows for rows, _ in pool.map(_bare, halves)), check=check, close=pool.terminate)


# ------------------------------------------------------------------------------------------------------- Spark, by hand


def _source(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    return spark.read.parquet(str(vectors(scale["rows"])))


def transport(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Send the columns to Python, and only ``id`` back."""

    def pass_on(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in chunks:
            yield chunk.select(["id"])

    return _source(spark, scale).mapInArrow(pass_on, "id long")


def map_in_arrow(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Do by hand what costs least: tensors over Arrow's own memory, one model call a chunk."""

    def score(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import torch

        model = mlp()
        with torch.inference_mode():
            for chunk in chunks:
                yield pa.RecordBatch.from_arrays([chunk["id"], forward(model, chunk["x"])], ["id", "y"])

    return _source(spark, scale).mapInArrow(score, "id long, y array<float>")


def predict_batch_udf(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Take pyspark's own."""
    from pyspark.ml.functions import predict_batch_udf as udf
    from pyspark.sql.types import ArrayType, FloatType

    def make() -> Any:
        import torch

        model = mlp()

        def predict(x: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return model(torch.from_numpy(x)).numpy()

        return predict

    tag = udf(make, return_type=ArrayType(FloatType()), batch_size=BATCH, input_tensor_shapes=[[WIDTH]])
    return _source(spark, scale).select("id", tag("x").alias("y"))


def pandas_udf(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Write an iterator pandas UDF by hand: the model once a task, one call a chunk."""
    from pyspark.sql import functions as F  # noqa: N812

    @F.pandas_udf("array<float>")
    def tag(chunks: Iterator[pd.Series]) -> Iterator[pd.Series]:
        import torch

        model = mlp()
        with torch.inference_mode():
            for chunk in chunks:
                yield pd.Series(list(model(torch.from_numpy(np.stack(chunk.to_numpy()))).numpy()))

    return _source(spark, scale).select("id", tag("x").alias("y"))


def guide_udf(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Write it as public guides do: a ``DataLoader`` over each Arrow batch."""
    import torch
    from pyspark.sql import functions as F  # noqa: N812

    class Rows(torch.utils.data.Dataset):
        def __init__(self, values: pd.Series) -> None:
            self.values = values

        def __len__(self) -> int:
            return len(self.values)

        def __getitem__(self, at: int) -> np.ndarray:
            return self.values.iloc[at]

    @F.pandas_udf("array<float>")
    def tag(chunks: Iterator[pd.Series]) -> Iterator[pd.Series]:
        model = mlp()
        with torch.inference_mode():
            for chunk in chunks:
                made: list[Any] = []
                for batch in torch.utils.data.DataLoader(Rows(chunk), batch_size=BATCH):
                    made.extend(model(batch).numpy())
                yield pd.Series(made)

    return _source(spark, scale).select("id", tag("x").alias("y"))


def mlflow_udf(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Take MLflow's: a pyfunc of the same network."""
    import mlflow
    from pyspark.sql import functions as F  # noqa: N812

    udf = mlflow.pyfunc.spark_udf(spark, str(_mlflow_model()), result_type="array<float>", env_manager="local")
    return _source(spark, scale).select("id", udf(F.struct("x")).alias("y"))


def _mlflow_model() -> Path:
    import mlflow

    from benchmarks.data import DATA

    class Wrapped(mlflow.pyfunc.PythonModel):
        def load_context(self, context: Any) -> None:  # noqa: ARG002 - MLflow's own
            self.model = mlp()

        def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> np.ndarray:  # noqa: ARG002
            import torch

            with torch.inference_mode():
                return self.model(torch.from_numpy(np.stack(model_input.iloc[:, 0].to_numpy()).astype(np.float32))).numpy()

    path = DATA / "mlflow-mlp"
    if not path.exists():
        mlflow.pyfunc.save_model(str(path), python_model=Wrapped(), pip_requirements=["torch"])
    return path


# ------------------------------------------------------------------------------------------------------- other engines


def ray_data(scale: Mapping[str, Any]) -> Ready:
    """Take Ray Data: an actor a core, Arrow batches, the same zero-copy function."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    class Score:
        def __init__(self) -> None:
            self.model = mlp()

        def __call__(self, batch: pa.Table) -> pa.Table:
            import torch

            with torch.inference_mode():
                return pa.table({"id": batch["id"], "y": forward(self.model, batch["x"].combine_chunks())})

    def score() -> Any:
        data = ray.data.read_parquet(str(vectors(scale["rows"])))
        return data.map_batches(Score, batch_size=CHUNK, batch_format="pyarrow", concurrency=2, num_cpus=0.5)

    def check() -> tuple[int, float]:
        batches = [batch["y"].combine_chunks() for batch in score().iter_batches(batch_format="pyarrow", batch_size=None)]
        return sum(map(len, batches)), float(sum(batch.values.to_numpy().sum(dtype=np.float64) for batch in batches))

    return Ready(run=lambda: sum(one.num_rows() or 0 for one in score().iter_internal_ref_bundles()), check=check, close=ray.shutdown)


def daft_engine(scale: Mapping[str, Any]) -> Ready:
    """Take Daft: a class UDF over Arrow arrays, its own Parquet reader."""
    import daft

    @daft.cls(use_process=False)
    class Score:
        def __init__(self) -> None:
            self.model = mlp()

        @daft.method.batch(return_dtype=daft.DataType.list(daft.DataType.float32()), batch_size=CHUNK)
        def __call__(self, x: daft.Series) -> pa.Array:
            import torch

            column = x.to_arrow()
            column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            values = column.flatten().to_numpy(zero_copy_only=False)
            with torch.inference_mode():
                made = self.model(torch.from_numpy(values.reshape(-1, WIDTH))).numpy()
            return pa.LargeListArray.from_arrays(pa.array(np.arange(len(made) + 1, dtype=np.int64) * 10), pa.array(made.ravel()))

    def score() -> daft.DataFrame:
        data = daft.read_parquet(f"{vectors(scale['rows'])}/*.parquet")
        return data.select(daft.col("id"), Score()(daft.col("x")).alias("y"))

    def check() -> tuple[int, float]:
        parts = [part.to_arrow()["y"].combine_chunks() for part in score().iter_partitions()]
        return sum(map(len, parts)), float(sum(part.flatten().to_numpy().sum(dtype=np.float64) for part in parts))

    return Ready(run=lambda: sum(len(part) for part in score().iter_partitions()), check=check)


# ------------------------------------------------------------------------------------------------------- ours


def _ours(spark: SparkSession, scale: Mapping[str, Any], **arguments: Any) -> DataFrame:
    import sparkinfer as si

    data = arguments.pop("data", None) or _source(spark, scale)
    model = si.TorchModel(mlp())
    return si.predict(data, model, inputs="x", outputs="y array<float>", keep=["id"], batch_size=BATCH, **arguments)


def ours_map(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Run ``predict`` as it comes: here that is the map road."""
    return _ours(spark, scale)


def ours_column(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Run ``predict`` on the column road."""
    return _ours(spark, scale, road="column")


def ours_unmeasured(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Run ``predict`` with ``metrics=False``: what measuring costs."""
    return _ours(spark, scale, metrics=False)


def ours_direct(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Run ``predict`` of a path: the workers read the files."""
    return _ours(spark, scale, data=str(vectors(scale["rows"])))


_FLOORS = ("quick", "full", "large")

WORK = Work(
    name="w1",
    title="vectors of 256 floats, a small MLP in PyTorch",
    unit="rows",
    scales={"quick": {"rows": 100_000}, "full": {"rows": 400_000}, "large": {"rows": 4_000_000}},
    contestants=(
        Contestant(name="bare", label="bare loop, one process a core, no engine", make=bare, scales=_FLOORS),
        Contestant(name="transport", label="Spark's transport alone", make=on_spark(transport, value=None), scales=("full", "large")),
        Contestant(name="map_in_arrow", label="hand-written mapInArrow, zero-copy", make=on_spark(map_in_arrow), scales=_FLOORS),
        Contestant(name="pandas_udf", label="hand-written iterator pandas UDF", make=on_spark(pandas_udf), scales=("full",)),
        Contestant(
            name="guide_udf", label="the guides' pandas UDF, a DataLoader per Arrow batch", make=on_spark(guide_udf), scales=("full",)
        ),
        Contestant(name="predict_batch_udf", label="predict_batch_udf", make=on_spark(predict_batch_udf), scales=("quick", "full")),
        Contestant(name="mlflow_udf", label="mlflow.pyfunc.spark_udf", make=on_spark(mlflow_udf), scales=("full",)),
        Contestant(name="ray", label="Ray Data", make=ray_data, scales=("full",)),
        Contestant(name="daft", label="Daft", make=daft_engine, scales=("full", "large")),
        Contestant(name="ours_map", label="sparkinfer, map road", make=on_spark(ours_map), scales=_FLOORS),
        Contestant(name="ours_unmeasured", label="sparkinfer, map road, metrics=False", make=on_spark(ours_unmeasured), scales=("full",)),
        Contestant(name="ours_column", label="sparkinfer, column road", make=on_spark(ours_column), scales=("full",)),
        Contestant(name="ours_direct", label="sparkinfer, direct road", make=on_spark(ours_direct), scales=_FLOORS),
    ),
    reaches=(
        Reach(ours="ours_map", of="predict_batch_udf", bound=2.5, floor="transport"),
        Reach(ours="ours_map", of="pandas_udf", bound=1.5, floor="transport"),
        Reach(ours="ours_map", of="map_in_arrow", bound=0.95),
        Reach(ours="ours_direct", of="predict_batch_udf", bound=2.5),
        Reach(ours="ours_direct", of="map_in_arrow", bound=1.0),
        Reach(ours="ours_direct", of="daft", bound=1.0),
        Reach(ours="ours_map", of="ours_unmeasured", bound=1.03, figure="cpu_per_row", below=True),
        Reach(ours="ours_map", of="predict_batch_udf", bound=2.5, scale="quick"),
        Reach(ours="ours_map", of="map_in_arrow", bound=0.95, scale="quick"),
        Reach(ours="ours_direct", of="bare", bound=0.85, scale="quick"),
        Reach(ours="ours_map", of="map_in_arrow", bound=0.95, scale="large"),
        Reach(ours="ours_direct", of="daft", bound=1.0, scale="large"),
        Reach(ours="ours_direct", of="bare", bound=0.85, scale="large"),
    ),
)
