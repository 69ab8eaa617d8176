"""``si.ml.Predictor``: a stage like any other, in and out of pipelines, on disk and back."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler

import sparkinfer as si
from sparkinfer.spark.ml_files import _files_of, _settled
from tests.spark.kit import model

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A linear model as a TorchScript file."""
    return export(tmp_path_factory.mktemp("models") / "net.pt", 2.0)


def export(path: Any, factor: float) -> str:
    net = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(net.weight, factor)
    torch.nn.init.zeros_(net.bias)
    torch.jit.save(torch.jit.script(net), path)
    return str(path)


def table(spark: Any) -> Any:
    return spark.createDataFrame([(1.0, 2.0), (3.0, 4.0)], "a double, b double").coalesce(1)


def stages(predictor: si.ml.Predictor) -> list[Any]:
    return [VectorAssembler(inputCols=["a", "b"], outputCol="features"), predictor]


def test_a_stage_after_vector_assembler_saved_and_read_back(spark, scripted, tmp_path, monkeypatch) -> None:
    """The vector reaches the model; the pipeline is fitted, saved, overwritten and loaded elsewhere, where a relative path still leads to the model."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(scripted, tmp_path / "net.pt")
    predictor = si.ml.Predictor(si.TorchModel("net.pt"), inputs="features", outputs="y float", keep=["a"], batchSize=7)
    fitted = Pipeline(stages=stages(predictor)).fit(table(spark))
    assert [tuple(row) for row in fitted.transform(table(spark)).collect()] == [(1.0, 6.0), (3.0, 14.0)]
    place = str(tmp_path / "pipeline")
    fitted.save(place)
    fitted.write().overwrite().save(place)
    monkeypatch.chdir("/")
    loaded = PipelineModel.load(place)
    assert loaded.stages[1].uid == predictor.uid
    assert loaded.stages[1].getBatchSize() == 7
    assert loaded.stages[1].getModel() == si.TorchModel(str(tmp_path / "net.pt"))
    assert [tuple(row) for row in loaded.transform(table(spark)).collect()] == [(1.0, 6.0), (3.0, 14.0)]


def test_a_model_of_a_registry_that_is_a_path_is_saved_as_one(monkeypatch, tmp_path) -> None:
    """Absolute, with the hash of its folder; an address stays what it is, and is fetched where the stage is read back."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "MLmodel").write_text("flavors: {}")
    monkeypatch.chdir(tmp_path)
    here, there = si.MlflowModel("m"), si.MlflowModel("models:/m/1")
    assert _settled(here) == si.MlflowModel(str(tmp_path / "m"))
    assert list(_files_of(_settled(here))) == [str(tmp_path / "m")]
    assert _settled(there) == there
    assert _files_of(there) == {}


def test_a_stage_alone_is_overwritten_only_when_it_is_said(spark, scripted, tmp_path) -> None:
    """save() refuses a place that is taken; overwrite() replaces it, also where the old stage had pickles."""
    place = str(tmp_path / "stage")
    si.ml.Predictor(model(np.negative), inputs="a", outputs="y double").save(place)
    plain = si.ml.Predictor(si.TorchModel(scripted), inputs="features", outputs="y float")
    with pytest.raises(Exception, match=r"PATH_ALREADY_EXISTS|already exists"):
        plain.save(place)
    plain.write().overwrite().save(place)
    assert si.ml.Predictor.load(place).getModel() == si.TorchModel(scripted)


def test_nothing_is_unpickled_until_it_is_trusted(spark, tmp_path) -> None:
    """A model in memory and functions are pickles: a pipeline is refused with the way out, and read under trusted_pickles()."""
    functions = {"preprocessOnDevice": lambda x: x * 0 + 2.5, "postprocess": lambda y: y[:, 0]}
    predictor = si.ml.Predictor(si.TorchModel(torch.nn.Identity()), inputs="features", outputs="y float", **functions)
    place = str(tmp_path / "pipeline")
    PipelineModel(stages(predictor)).save(place)
    with pytest.raises(
        si.ModelLoadError, match=r"pickled code \(preprocessOnDevice, postprocess, model\), which runs when it is read.*trusted_pickles\(\)"
    ):
        PipelineModel.load(place)
    with si.ml.trusted_pickles():
        loaded = PipelineModel.load(place)
    assert [row.y for row in loaded.transform(table(spark)).collect()] == [2.5, 2.5]
    (stage,) = (tmp_path / "pipeline" / "stages").glob("*Predictor*")
    with pytest.raises(si.ModelLoadError, match="trust_pickle=True"):
        si.ml.Predictor.load(str(stage))
    assert si.ml.Predictor.load(str(stage), trust_pickle=True).uid == predictor.uid


def test_a_file_that_runs_code_is_no_way_around(spark, tmp_path) -> None:
    """A model that was saved with trust_pickle=True is trusted again by who loads it, not by the file."""
    torch.save(torch.nn.Linear(2, 1), tmp_path / "whole.pt")
    stage = si.ml.Predictor(si.TorchModel(tmp_path / "whole.pt", trust_pickle=True), inputs="features", outputs="y array<float>")
    stage.save(str(tmp_path / "stage"))
    with pytest.raises(si.ModelLoadError, match="saved with trust_pickle=True"):
        si.ml.Predictor.load(str(tmp_path / "stage"))
    assert si.ml.Predictor.load(str(tmp_path / "stage"), trust_pickle=True).getModel().trust_pickle


def test_a_changed_model_file_is_refused(spark, tmp_path) -> None:
    """The sha256 of what was saved is compared when the stage is used; setModel takes another model on purpose."""
    path = export(tmp_path / "net.pt", 2.0)
    si.ml.Predictor(si.TorchModel(path), inputs="features", outputs="y float").save(str(tmp_path / "stage"))
    export(tmp_path / "net.pt", 3.0)
    loaded = si.ml.Predictor.load(str(tmp_path / "stage"))
    frame = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(table(spark))
    with pytest.raises(si.ModelLoadError, match=r"net.pt' is another file than when Predictor_\w+ was saved.*setModel"):
        loaded.transform(frame)
    assert [row.y for row in loaded.setModel(si.TorchModel(path)).transform(frame).collect()] == [9.0, 21.0]


def test_a_pickle_that_was_replaced_is_refused(spark, tmp_path) -> None:
    """Its sha256 stands in the metadata."""
    si.ml.Predictor(model(np.negative), inputs="a", outputs="y double").save(str(tmp_path / "one"))
    other = si.ml.Predictor(model(np.square), inputs="a", outputs="y double")
    other.save(str(tmp_path / "two"))
    (tmp_path / "two" / "pickled").rename(tmp_path / "gone")
    (tmp_path / "one" / "pickled").rename(tmp_path / "two" / "pickled")
    with pytest.raises(si.ModelLoadError, match="the pickled model is not the one that was saved here"):
        si.ml.Predictor.load(str(tmp_path / "two"), trust_pickle=True)


SPEC = si.TensorSpec("float32", (2,))


@pytest.mark.parametrize(
    "inputs",
    ["x", ("x", SPEC), ["x", ("y", SPEC)], {"ids": ("x", si.TensorSpec("bytes", pad=b"\x00\xff", mask="m")), "column": "y"}],
)
def test_inputs_survive_the_way_to_json(inputs) -> None:
    """A column, a column with its TensorSpec, a list, names."""
    from sparkinfer.spark.ml_files import _inputs_read, _inputs_told

    stage = si.ml.Predictor(inputs=inputs)
    assert stage.getInputs() == inputs
    assert _inputs_read(json.loads(json.dumps(_inputs_told(inputs)))) == inputs


def test_params_are_those_of_predict_and_of_the_settings(spark) -> None:
    """Setters and getters by pyspark.ml's names, copies with other values, the schema in advance, and what explainParams tells."""
    stage = si.ml.Predictor(model(np.negative), inputs="a", outputs="y double", keep="b").setOnNull("null").setNumWorkers(0)
    assert stage.getKeep() == ["b"]
    assert "batchSize: as batch_size of InferenceConfig (default: 64)" in stage.explainParams()
    copied = stage.copy({stage.batchSize: "auto"})
    assert (copied.getBatchSize(), stage.getBatchSize(), copied.getOnNull(), copied.getModel()) == ("auto", 64, "null", stage.getModel())
    frame = table(spark)
    assert stage.transform(frame).schema == stage.transformSchema(frame.schema)
    with_other = stage.transform(frame, {stage.keep: ["a"], stage.outputs: "z double"})
    assert [tuple(row) for row in with_other.collect()] == [(1.0, -1.0), (3.0, -3.0)]
    assert si.ml.Predictor(outputs=stage.transformSchema(frame.schema)).getOutputs() == "`b` double, `y` double"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: si.ml.Predictor(bathSize=3), "'bathSize' is no Param of Predictor. Did you mean 'batchSize'"),
        (lambda: si.ml.Predictor().setBatchSize(0), "batch_size is 0, expected at least 1"),
        (lambda: si.ml.Predictor(inputs=3), "inputs is 3, expected a column name"),
        (lambda: si.ml.Predictor(outputs="y dooble"), "Did you mean 'double'"),
    ],
)
def test_wrong_params_are_refused_when_they_are_set(make, said) -> None:
    """In the words of predict and InferenceConfig."""
    with pytest.raises(si.SparkInferError, match=said):
        make()


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (si.ml.Predictor(inputs="a", outputs="y double"), r"has no model: Predictor\(model, \.\.\.\) or setModel"),
        (si.ml.Predictor(model(np.negative), outputs="y double"), r"inputs is not given, and PythonModel.* does not say what it takes"),
        (si.ml.Predictor(model(np.negative), inputs="a"), r"outputs is not given, and PythonModel.* does not say what it gives"),
    ],
)
def test_a_stage_that_is_not_complete_says_what_is_missing(spark, stage, said) -> None:
    """Before a job."""
    with pytest.raises(si.ConfigError, match=said):
        stage.transform(table(spark))
    with pytest.raises(si.ConfigError, match=said) if stage.getInputs() is None or stage.getOutputs() is None else nullcontext():
        stage.transformSchema(table(spark).schema)
