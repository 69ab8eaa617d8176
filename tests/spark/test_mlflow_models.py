"""MLflow's models on real Spark, from a real store: by alias, version, run and path; loaded once a worker; and nothing is logged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import sparkinfer as si
from sparkinfer.exceptions import SchemaError

mlflow = pytest.importorskip("mlflow", reason="the mlflow extra is not installed")

from tests.backends import mlflow_kit as kit  # noqa: E402 - it brings mlflow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkinfer.testing import Ledger

# Keras 3.15 saves its variables by a call that NumPy 2 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")

ROWS = 12


@pytest.fixture(scope="module")
def logged(mlflow_apart: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models of several flavours in the store, each logged in a run of its own; their URIs by name, and that run's."""
    from mlflow.models import infer_signature

    table = infer_signature(kit.TABLE, np.zeros(4))
    logs: dict[str, Any] = {
        "sklearn": lambda **to: mlflow.sklearn.log_model(kit.regression(), signature=table, serialization_format="skops", **to),
        "pytorch": lambda **to: mlflow.pytorch.log_model(kit.torch_net(), input_example=kit.ROWS, serialization_format="pt2", **to),
        "keras": lambda **to: mlflow.keras.log_model(kit.keras_net(), signature=kit.TWO, **to),
        "transformers": lambda **to: mlflow.transformers.log_model(kit.classifier(tmp_path_factory.mktemp("words")), **to),
    }
    uris = {}
    for name, log in logs.items():
        with kit.quiet(), mlflow.start_run() as run:
            uris[name] = log(name=name, registered_model_name=name, **kit.BARE).model_uri
            uris[f"{name} run"] = f"runs:/{run.info.run_id}/{name}"
    return uris


def table(spark: SparkSession, partitions: int = 3) -> DataFrame:
    """Rows with the columns of every model of this module."""
    texts = "element_at(array('good day', 'bad night', 'day', ''), cast(id % 4 as int) + 1) as input"
    return spark.range(0, ROWS, 1, partitions).selectExpr(
        "id", "cast(id as double) as a", "cast(id % 2 as double) as b", "array(cast(id as float), 1f, 2f) as x", texts
    )


def by_id(scored: DataFrame, column: str = "prediction") -> list[Any]:
    """Run one action, and give a column in the order of the ids."""
    rows = sorted(scored.select("id", column).collect())
    assert [row["id"] for row in rows] == list(range(ROWS))
    return [row[column] for row in rows]


def expected() -> list[float]:
    """What the regression gives."""
    return [row + row % 2 for row in range(ROWS)]


@pytest.mark.parametrize("road", ["map", "column"])
def test_every_uri_gives_the_same_model(spark: Any, logged: dict[str, str], tmp_path: Path, road: Any) -> None:
    """An alias, a version, the logged model's own id, the run, and a downloaded path; the signature names inputs and output."""
    mlflow.MlflowClient().set_registered_model_alias("sklearn", "champion", "1")
    path = mlflow.artifacts.download_artifacts(logged["sklearn"], dst_path=str(tmp_path))
    uris = ["models:/sklearn@champion", "models:/sklearn/1", logged["sklearn"], logged["sklearn run"], path]
    plans = [si.MlflowModel(uri).describe() for uri in uris]
    assert len({plan.fingerprint for plan in plans[:4]}) == 1
    assert len({file.path for plan in plans[:4] for file in plan.files}) == 1  # one folder for one content
    scored = si.predict(table(spark), si.MlflowModel(path if road == "map" else uris[0]), keep=["id"], road=road, batch_size=5)
    assert scored.schema["prediction"].dataType.simpleString() == "double"
    np.testing.assert_allclose(by_id(scored), expected(), atol=1e-6)
    stage = si.ml.Predictor(si.MlflowModel(path), keep=["id"], road=road)
    assert stage.transformSchema(table(spark).schema) == scored.schema == stage.transform(table(spark)).schema


def test_native_flavours_run_by_their_signatures(spark: Any, logged: dict[str, str]) -> None:
    """pytorch by a preview, keras as a UDF without a type, each like the framework's own model."""
    torch_model, keras_model = (si.MlflowModel(f"models:/{name}/1") for name in ("pytorch", "keras"))
    df = table(spark).withColumnsRenamed({"x": "pixels"})
    told = si.preview(df, torch_model, n=4, inputs="pixels", keep=["id"]).sort_values("id")
    local = si.predict_local(df.limit(4).toPandas(), si.TorchModel(kit.torch_net()), inputs="pixels", outputs="y array<float>", keep=["id"])
    np.testing.assert_allclose(np.stack(told["prediction"]), np.stack(local.sort_values("id")["y"]), rtol=1e-5)
    udf = si.predict_udf(keras_model)
    got = by_id(df.withColumn("y", udf()), "y")
    np.testing.assert_allclose(got, [[row + 3.0] * 2 for row in range(ROWS)], rtol=1e-6)
    with pytest.raises(SchemaError, match=r"gets the columns \['pixels'\] that its signature names, but there is no column 'pixels'"):
        si.predict(table(spark), keras_model)


def test_a_hugging_face_pipeline_scores_text(spark: Any, logged: dict[str, str], tmp_path: Path) -> None:
    """Its signature gives a label and a score for the column ``input``; a UDF gives them as a struct, in SQL too."""
    model = si.MlflowModel("models:/transformers/1")
    answers = kit.classifier(tmp_path)(kit.TEXTS)
    assert len({answer["label"] for answer in answers}) == 2
    scored = si.predict(table(spark), model, keep=["id"], batch_size=4)
    assert [field.simpleString() for field in scored.schema] == ["id:bigint", "label:string", "score:double"]
    assert by_id(scored, "label") == [answers[row % 4]["label"] for row in range(ROWS)]
    spark.udf.register("classify", si.predict_udf(model))
    table(spark).createOrReplaceTempView("texts")
    got = by_id(spark.sql("SELECT id, classify(input).score AS score FROM texts"), "score")
    np.testing.assert_allclose(got, [answers[row % 4]["score"] for row in range(ROWS)], rtol=1e-4)


def test_a_worker_loads_a_model_once_and_logs_nothing(spark: Any, ledger: Ledger) -> None:
    """Over actions, calls and URIs of one content; MLflow's runs are those that the test made, and no store appears where workers run."""
    with kit.quiet(), mlflow.start_run():
        info = mlflow.pyfunc.log_model(
            name="counted", python_model=kit.Scaled(ledger), signature=kit.SCALED, registered_model_name="counted", **kit.BARE
        )
    before = ledger.count("load")
    runs, files = mlflow.search_runs(search_all_experiments=True).shape[0], set(Path.cwd().iterdir())
    for uri in ("models:/counted/1", info.model_uri):
        scored = si.predict(table(spark, 6), si.MlflowModel(uri, trust_pickle=True), keep=["id"], metrics=False)
        for _ in range(2):
            assert by_id(scored) == [2.0 * row for row in range(ROWS)]
    loads = ledger.events("load")[before:]
    assert 1 <= len(loads) == len({event.pid for event in loads}) <= 2
    assert os.getpid() not in {event.pid for event in loads}
    assert mlflow.active_run() is None
    assert mlflow.search_runs(search_all_experiments=True).shape[0] == runs
    assert set(Path.cwd().iterdir()) == files


def test_a_run_is_linked_to_the_logged_model(spark: Any, logged: dict[str, str]) -> None:
    """The MLflow run that has a run's figures names the model among its inputs, and its id among the parameters."""
    scored = si.predict(table(spark), si.MlflowModel("models:/sklearn/1"), keep=["id"])
    with si.inference_run(progress=False) as run:
        assert len(scored.collect()) == ROWS
    found = mlflow.MlflowClient().get_run(run.mlflow_run_id)
    expected = mlflow.models.get_model_info("models:/sklearn/1").model_id
    assert expected is not None
    assert [linked.model_id for linked in found.inputs.model_inputs] == [expected]
    assert found.data.params["inference/model_id"] == expected


def test_params_reach_the_workers(spark: Any, tmp_path: Path) -> None:
    """Checked on the driver, and converted as the schema says."""
    path = kit.save_pyfunc(tmp_path / "m", kit.Scaled(), kit.SCALED)
    scored = si.predict(table(spark), si.MlflowModel(path, trust_pickle=True, params={"factor": 5}), keep=["id"])
    assert by_id(scored) == [5.0 * row for row in range(ROWS)]


def test_an_alias_that_moves_gives_the_new_model(spark: Any, logged: dict[str, str]) -> None:
    """In the next call; a DataFrame that was made before keeps the model of its own call."""
    from mlflow.models import infer_signature

    registry = mlflow.MlflowClient()
    versions = []
    for factor in (1.0, 3.0):
        with kit.quiet(), mlflow.start_run():
            mlflow.sklearn.log_model(
                kit.regression(factor),
                name="moving",
                registered_model_name="moving",
                signature=infer_signature(kit.TABLE, np.zeros(4)),
                serialization_format="skops",
                **kit.BARE,
            )
        versions.append(registry.get_registered_model("moving").latest_versions[0].version)
    model = si.MlflowModel("models:/moving@champion")
    registry.set_registered_model_alias("moving", "champion", versions[0])
    old = si.predict(table(spark), model, keep=["id"])
    np.testing.assert_allclose(by_id(old), expected(), atol=1e-6)
    registry.set_registered_model_alias("moving", "champion", versions[1])
    new = si.predict(table(spark), model, keep=["id"])
    np.testing.assert_allclose(by_id(new), [3 * row + row % 2 for row in range(ROWS)], atol=1e-6)
    np.testing.assert_allclose(by_id(old), expected(), atol=1e-6)


def test_a_model_is_sent_to_workers_that_do_not_see_the_drivers_disk(spark: Any, logged: dict[str, str]) -> None:
    """As one archive through Spark, unpacked there."""
    scored = si.predict(table(spark), si.MlflowModel("models:/sklearn/1", ship="files"), keep=["id"])
    np.testing.assert_allclose(by_id(scored), expected(), atol=1e-6)


def test_code_that_comes_with_a_model_may_be_compiled_where_it_lies(spark: Any, tmp_path: Path) -> None:
    """Python writes beside the code that it imports; the folder is the same model for the next task and the next call."""
    (tmp_path / "lying_there.py").write_text("def twice(x):\n    return 2 * x\n", encoding="utf-8")
    (tmp_path / "model.py").write_text(
        "import mlflow\nfrom mlflow.models import set_model\n\n\nclass Model(mlflow.pyfunc.PythonModel):\n"
        "    def predict(self, context, model_input, params=None):\n        from lying_there import twice\n\n"
        "        return twice(model_input['a'])\n\n\nset_model(Model())\n",
        encoding="utf-8",
    )
    path = kit.save_pyfunc(
        tmp_path / "m",
        str(tmp_path / "model.py"),
        mlflow.models.infer_signature(kit.TABLE, pd.Series([1.0])),
        code_paths=[str(tmp_path / "lying_there.py")],
    )
    scored = si.predict(table(spark), si.MlflowModel(path, trust_pickle=True), keep=["id"])
    assert by_id(scored) == [2.0 * row for row in range(ROWS)]
    compiled = Path(path) / "code" / "__pycache__"
    compiled.mkdir(exist_ok=True)  # there are sessions whose Python writes none
    (compiled / "lying_there.cpython-311.pyc").write_bytes(b"compiled")
    assert by_id(scored) == [2.0 * row for row in range(ROWS)]
    fingerprint = si.MlflowModel(path, trust_pickle=True).describe().fingerprint
    shutil.rmtree(compiled)
    assert si.MlflowModel(path, trust_pickle=True).describe().fingerprint == fingerprint


def test_a_models_error_fails_the_job_with_the_place(spark: Any, tmp_path: Path) -> None:
    """The model's own exception, the partition and the rows."""
    path = kit.save_pyfunc(tmp_path / "m", kit.Given(lambda frame: frame["nothing"]), mlflow.models.infer_signature(kit.TABLE))
    scored = si.predict(table(spark), si.MlflowModel(path, trust_pickle=True), outputs="y double", keep=["id"])
    with pytest.raises(Exception, match=r"PredictError: the model raised KeyError: 'nothing'. At partition \d, batch 0 \(rows 0 to 3\)"):
        scored.collect()
