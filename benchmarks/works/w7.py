"""W7: shared weights. Four Python workers, a PyTorch model of 400 MB: do they hold four copies of it, or one?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data import DATA
from benchmarks.spark import on_spark
from benchmarks.work import Contestant, Reach, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAYERS, SIDE = 25, 2000  # 25 matrices of 2000 x 2000 float32: 400 MB


def make_large() -> Any:
    """Make the network, without its weights."""
    import torch

    return torch.nn.Sequential(*(torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)))


def make_small() -> Any:
    """Make one that weighs nothing."""
    import torch

    return torch.nn.Linear(SIDE, 10, bias=False)


def _weights() -> Path:
    from safetensors.torch import save_file

    path = DATA / "large.safetensors"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        save_file({name: value.contiguous() for name, value in make_large().state_dict().items()}, path)
    return path


def _scored(spark: SparkSession, scale: Mapping[str, Any], model: Any) -> DataFrame:
    import sparkinfer as si

    data = spark.range(0, scale["rows"], 1, 4).selectExpr("id", f"transform(sequence(1, {SIDE}), i -> cast(id as float)) as x")
    return si.predict(data, model, inputs="x", outputs="y array<float>", keep=["id"], batch_size=16, threads=1)


def shared(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Describe the model by a factory and its weights' file, which the workers map."""
    import sparkinfer as si

    return _scored(spark, scale, si.TorchModel(make_large, weights=_weights()))


def module(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Hand the module over as it is in memory."""
    import torch

    import sparkinfer as si

    torch.manual_seed(0)
    return _scored(spark, scale, si.TorchModel(make_large()))


def nothing(spark: SparkSession, scale: Mapping[str, Any]) -> DataFrame:
    """Run the same with a small model: what the workers hold besides."""
    import sparkinfer as si

    return _scored(spark, scale, si.TorchModel(make_small()))


WORK = Work(
    name="w7",
    title="four workers, a model of 400 MB",
    unit="rows",
    scales={"full": {"rows": 256}},
    rounds=3,
    contestants=(
        Contestant(name="nothing", label="a small model, for comparison", make=on_spark(nothing, value=None, cores=4)),
        Contestant(name="ours", label="sparkinfer, a factory and a safetensors file", make=on_spark(shared, value=None, cores=4)),
        Contestant(name="ours_module", label="sparkinfer, a module in memory", make=on_spark(module, value=None, cores=4)),
    ),
    reaches=(
        Reach(ours="ours", of="nothing", bound=600, figure="workers_megabytes_over", below=True),
        Reach(ours="ours_module", of="nothing", bound=600, figure="workers_megabytes_over", below=True),
    ),
    notes=("600 MB over the workers with a small model are 1.5 copies; four copies would be 1,600 MB.",),
)
