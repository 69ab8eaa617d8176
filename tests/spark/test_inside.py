"""A look inside a model in Spark's workers: a few partitions, merged; and two precisions in tasks beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkinfer as si

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_few_batches_of_a_few_partitions_are_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    """Of 4 partitions two report, merged, with the planted layer by name; against its own baseline nothing drifts, on other rows it does."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(1)
    model = si.TorchModel(torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Threshold(1e9, float("nan"))))
    data = spark.range(0, 1000, 1, 4).selectExpr("cast(id % 10 as float) as x")
    job = {"inputs": ("x", si.TensorSpec("float32", (1,))), "outputs": "y array<float>", "batch_size": 20, "device": "cpu"}
    seen = si.inspect_model(data, model, **job, batches=3)
    assert (seen.seen.partitions, seen.seen.batches, seen.seen.rows) == (2, 6, 120)
    assert seen.findings[0].startswith("layer 2 '1' (Threshold) gives NaN in 100% of its values, from the first sampled batch on")
    assert seen.seen.layers[1].rows == 120
    assert seen.seen.graph is not None
    path = seen.save_baseline(tmp_path / "baseline.json")
    again = si.inspect_model(data, model, **job, batches=3, graph=False, baseline=path)
    assert not any(one.drifted for one in again.drift)
    moved = si.inspect_model(data.selectExpr("x + 500 as x"), model, **job, batches=3, graph=False, baseline=path)
    assert {(one.where, one.name) for one in moved.drift if one.drifted} == {("input", "x"), ("layer", "0")}


def test_two_precisions_are_compared_in_the_workers(spark: SparkSession) -> None:
    """In two partitions beside each other; the differences are of all their rows."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = si.TorchModel(torch.nn.Linear(1, 3))
    data = spark.range(0, 400, 1, 4).selectExpr("cast(id as float) as x")
    job = {"inputs": ("x", si.TensorSpec("float32", (1,))), "outputs": "y array<float>", "batch_size": 25, "device": "cpu"}
    found = si.compare_precision(data, model, "bf16", **job, rows=50, seconds=0.1)
    assert (found.partitions, found.rows, found.outputs[0].rows) == (2, 100, 100)
    assert found.rounds >= 6
    assert found.outputs[0].max_abs > 0


def test_a_stream_is_refused(spark: SparkSession) -> None:
    """It has no partitions to look at."""
    stream = spark.readStream.format("rate").load()
    with pytest.raises(si.ConfigError, match="data is a stream"):
        si.inspect_model(stream, si.PythonModel(lambda: lambda x: x), inputs="value", outputs="y long")
