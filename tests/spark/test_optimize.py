"""``optimize=`` through real Spark: the sample comes from the data, the export travels, and the run tells what ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

import sparkinfer as si
from sparkinfer.exceptions import ConfigError, SparkInferWarning
from sparkinfer.spark.first_rows import first_rows
from sparkinfer.spark.session import SPARK_VERSION

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
for package in ("onnxruntime", "onnxscript", "openvino"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'sparkinfer[onnx,openvino]'")
nn = torch.nn


def wide() -> Any:
    """A network whose weights are too large to travel in the plan: two million bytes."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 100_000), nn.Tanh(), nn.AvgPool1d(50_000))


class Branching(nn.Module):
    """Python's if over a value: there is no graph of it."""

    def forward(self, x: Any) -> Any:
        return x * 2 if float(x.sum()) > 0 else x * 3


def rows(spark: Any, count: int = 50) -> Any:
    values = [F.sin(F.col("id") * number).cast("float") for number in range(1, 5)]
    return spark.range(count, numPartitions=4).select("id", F.array(*values).alias("a.b"))


def answers(scored: Any) -> np.ndarray:
    found = sorted((row.id, row.y) for row in scored.select("id", "y").collect())
    return np.array([values for _, values in found])


@pytest.mark.parametrize(
    ("engine", "road", "ship"),
    [("onnxruntime", "map", "auto"), ("onnxruntime", "column", "files"), ("openvino", "map", "files"), ("openvino", "column", "value")],
)
def test_the_export_travels_and_answers_as_the_model(spark: Any, engine: str, road: str, ship: str) -> None:
    """In place, through Spark and in the task; the sample is the data's first rows, a column with a dot in its name among them."""
    said: dict[str, Any] = {"inputs": ["a.b"], "outputs": "y array<float>", "road": road, "batch_size": 16}
    model = si.TorchModel(wide(), optimize=engine, ship=ship)
    found = answers(si.predict(rows(spark), model, **said))
    np.testing.assert_allclose(found, answers(si.predict(rows(spark), si.TorchModel(wide()), **said)), atol=1e-4)


def test_a_run_tells_what_ran_and_how_far_it_is_off(spark: Any) -> None:
    """In the settings and in the summary; there is nothing to remark."""
    with si.inference_run(mlflow=False) as run:
        si.predict(rows(spark), si.TorchModel(wide(), optimize="auto"), inputs="a.b", outputs="y array<float>").collect()
    assert (run.metrics.settings["optimize"], run.metrics.settings["engine"]) == ("auto", "onnxruntime")
    assert run.metrics.settings["backend"] == "onnx_runtime"
    assert 0 <= run.summary["inference/optimize_max_abs_difference"] < 1e-4
    assert run.remarks == ()


def test_a_run_remarks_that_no_engine_took_the_model(spark: Any) -> None:
    """'auto' never fails: a warning and the run say why the model runs as it is."""
    with si.inference_run(mlflow=False) as run:
        with pytest.warns(SparkInferWarning, match="optimize='auto' runs the model as it is: onnxruntime: "):
            scored = si.predict(rows(spark), si.TorchModel(Branching(), optimize="auto"), inputs="a.b", outputs="y array<float>")
        assert scored.count() == 50
        scored.collect()
    assert "inference/optimize_max_abs_difference" not in run.summary
    assert any(one.startswith("optimize='auto': the model runs as it is. onnxruntime: ") for one in run.remarks)


def test_a_udf_takes_its_sample_from_the_example(spark: Any) -> None:
    """A column function knows no data; in SQL it is the same."""
    model = si.TorchModel(wide(), optimize="onnxruntime", example_inputs=np.ones((2, 4), np.float32))
    expected = answers(si.predict(rows(spark), si.TorchModel(wide()), inputs="a.b", outputs="y array<float>"))
    scored = rows(spark).withColumn("y", si.predict_udf(model, inputs="a.b", returns="array<float>")())
    np.testing.assert_allclose(answers(scored), expected, atol=1e-4)
    si.register(spark, "wide_net", model, inputs="x", returns="array<float>")
    rows(spark).createOrReplaceTempView("wide_rows")
    np.testing.assert_allclose(answers(spark.sql("SELECT id, wide_net(`a.b`) AS y FROM wide_rows")), expected, atol=1e-4)
    with pytest.raises(ConfigError, match="there are no data yet: give example_inputs="):
        si.predict_udf(si.TorchModel(wide(), optimize="onnxruntime"), inputs="x", returns="array<float>")


def test_a_stream_cannot_be_looked_at(spark: Any, tmp_path: Path) -> None:
    """It is told before the query starts; with an example the stream is scored."""
    stream = spark.readStream.schema("id long, x array<float>").parquet(str(tmp_path))
    with pytest.raises(ConfigError, match="a stream cannot be looked at: give the model example_inputs="):
        si.predict(stream, si.TorchModel(wide(), optimize="onnxruntime"), inputs="x", outputs="y array<float>")
    model = si.TorchModel(wide(), optimize="onnxruntime", example_inputs=np.ones((1, 4), np.float32))
    assert si.predict(stream, model, inputs="x", outputs="y array<float>").isStreaming


@pytest.mark.spark(since=(4, 0), why="before, the map road sends a vector as an array")
def test_the_first_rows_are_what_a_worker_gets(spark: Any) -> None:
    """Types, names and nulls; at most as many as were asked for; none of an empty frame."""
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import StructField, StructType

    assert SPARK_VERSION >= (4, 0)
    vectors = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),), (None,)] * 9, StructType([StructField("v", VectorUDT())]))
    data = vectors.withColumn("s.t", F.struct(F.lit(1).alias("n"), F.lit("x").alias("t")))
    found = first_rows(data, [F.col("v"), F.col("`s.t`")], ["v", "s.t"], 8)
    assert (found.num_rows, found.schema.names, found.column(0).null_count) == (8, ["v", "s.t"], 4)
    assert found.schema.field("s.t").type == pa.struct(
        [pa.field("n", pa.int32(), nullable=False), pa.field("t", pa.string(), nullable=False)]
    )
    assert first_rows(data.limit(0), [F.col("v")], ["v"], 8).num_rows == 0


def test_the_first_rows_of_files_are_enough_to_export(spark, tmp_path):
    """The direct road: what the model is exported with is read from the files, and the answers are the model's own."""
    values = np.random.default_rng(0).standard_normal((100, 4), dtype=np.float32)
    pq.write_table(pa.table({"id": range(100), "x": list(values)}), tmp_path / "part.parquet")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    model = si.TorchModel(net, optimize="onnxruntime")
    scored = si.predict(str(tmp_path), model, inputs="x", outputs="y array<float>", keep=["id"]).orderBy("id").toPandas()
    with torch.inference_mode():
        expected = net(torch.from_numpy(values)).numpy()
    np.testing.assert_allclose(np.stack(scored["y"]), expected, atol=1e-5)
