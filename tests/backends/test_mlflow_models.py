"""MLflow's models without Spark: which backend runs them, what they get and give, and what is refused before it can run code."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import sparkinfer as si
from sparkinfer.exceptions import ConfigError, MissingDependencyError, ModelLoadError, OutputError, PredictError, SchemaError

mlflow = pytest.importorskip("mlflow", reason="the mlflow extra is not installed")

from mlflow.models import ModelSignature, infer_signature  # noqa: E402
from mlflow.types import ColSpec, DataType, Schema, TensorSpec  # noqa: E402
from mlflow.types.schema import Array  # noqa: E402

from tests.backends import mlflow_kit as kit  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkinfer.testing import Ledger

# Keras 3.15 saves its variables by a call that NumPy 2 deprecates
pytestmark = [
    pytest.mark.usefixtures("mlflow_apart"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

ROWS = pd.DataFrame({"x": list(kit.ROWS)})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Give the folder of a model by the word for it; saved when it is first asked for."""
    folder = tmp_path_factory.mktemp("saved")

    def get(name: str) -> str:
        path = folder / name
        if not path.exists():
            with kit.quiet():
                SAVES[name](str(path))
        return str(path)

    return get


def save_transformers(path: str) -> None:
    mlflow.transformers.save_model(kit.classifier(Path(path).parent), path, **kit.BARE)


def save_module(path: str) -> None:
    import tensorflow as tf

    class Doubling(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, name="x")])
        def __call__(self, x: Any) -> Any:
            return {"twice": 2.0 * x}

    mlflow.tensorflow.save_model(Doubling(), path, **kit.BARE)


SAVES: dict[str, Callable[[str], Any]] = {
    "sklearn": lambda path: mlflow.sklearn.save_model(
        kit.regression(), path, signature=infer_signature(kit.TABLE, np.zeros(4)), serialization_format="skops", **kit.BARE
    ),
    "sklearn-pickle": lambda path: mlflow.sklearn.save_model(
        kit.regression(), path, signature=infer_signature(kit.TABLE, np.zeros(4)), serialization_format="cloudpickle", **kit.BARE
    ),
    "pt2": lambda path: mlflow.pytorch.save_model(kit.torch_net(), path, input_example=kit.ROWS, serialization_format="pt2", **kit.BARE),
    "pth": lambda path: mlflow.pytorch.save_model(kit.torch_net(), path, signature=kit.TWO, serialization_format="pickle", **kit.BARE),
    "keras": lambda path: mlflow.keras.save_model(kit.keras_net(), path, signature=kit.TWO, **kit.BARE),
    "exported": lambda path: mlflow.keras.save_model(kit.keras_net(), path, signature=kit.TWO, save_exported_model=True, **kit.BARE),
    "tensorflow": lambda path: mlflow.tensorflow.save_model(kit.keras_net(), path, signature=kit.TWO, **kit.BARE),
    "h5": lambda path: mlflow.tensorflow.save_model(
        kit.keras_net(), path, signature=kit.TWO, keras_model_kwargs={"save_format": "h5"}, **kit.BARE
    ),
    "module": save_module,
    "transformers": save_transformers,
    "python": lambda path: kit.save_pyfunc(Path(path), kit.Scaled(), kit.SCALED),
}


def scored(path: str, data: pd.DataFrame, *, say: dict[str, Any] | None = None, **arguments: Any) -> pd.DataFrame:
    """Score rows in this process, and give the columns that were added."""
    return si.predict_local(data, si.MlflowModel(path, **(say or {})), keep=[], batch_size=3, **arguments)


def written(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> str:
    """Copy a saved model, and change its MLmodel."""
    import yaml

    copy = shutil.copytree(name, folder / "copy")
    conf = yaml.safe_load((copy / "MLmodel").read_text())
    change(conf)
    (copy / "MLmodel").write_text(yaml.safe_dump(conf))
    return str(copy)


# --- the native backends


@pytest.mark.parametrize(
    ("name", "backend", "kind", "given"),
    [
        ("pt2", "torch", "export", "input"),
        ("pth", "torch", "pickle", "input"),
        ("keras", "tensorflow", "keras", "pixels"),
        ("tensorflow", "tensorflow", "keras", "pixels"),
        ("h5", "tensorflow", "hdf5", "pixels"),
    ],
)
def test_pytorch_and_keras_run_natively_and_their_signatures_are_enough(saved: Any, name: str, backend: str, kind: str, given: str) -> None:
    """Without inputs and outputs: the model's own input is the column, MLflow's unnamed output is ``prediction``."""
    model = si.MlflowModel(saved(name), trust_pickle=kind == "pickle")
    plan = model.describe()
    assert (plan.backend, plan.kind, plan.label) == (backend, kind, repr(model))
    net = kit.torch_net if backend == "torch" else kit.keras_net
    expected = si.predict_local(
        ROWS, (si.TorchModel if backend == "torch" else si.TensorFlowModel)(net()), inputs="x", outputs="y array<float>", keep=[]
    )
    told = si.predict_local(ROWS.rename(columns={"x": given}), model)
    assert list(told.columns) == [given, "prediction"]
    np.testing.assert_allclose(np.stack(told["prediction"]), np.stack(expected["y"]), rtol=1e-6)
    assert told["prediction"][0].dtype == np.float32


@pytest.mark.parametrize(("name", "output"), [("exported", "prediction"), ("module", "twice")])
def test_saved_models_inside_mlflow_run_natively(saved: Any, name: str, output: str) -> None:
    """A SavedModel's own signature names the input, and the outputs where MLflow has no signature."""
    plan = si.MlflowModel(saved(name)).describe()
    assert (plan.backend, plan.kind) == ("tensorflow", "saved_model")
    (info,) = plan.inputs or ()
    told = scored(saved(name), ROWS.rename(columns={"x": info.name}))
    assert list(told.columns) == [output]
    assert np.stack(told[output]).shape == (4, 2 if name == "exported" else 3)


def test_torchscript_inside_mlflow_needs_no_trust(tmp_path: Path) -> None:
    """MLflow writes it as model.pth too, and torch reads it without Python's pickle."""
    import torch

    with kit.quiet():
        mlflow.pytorch.save_model(torch.jit.script(kit.torch_net()), str(tmp_path / "m"), serialization_format="pickle", **kit.BARE)
    model = si.MlflowModel(tmp_path / "m")
    assert model.describe().kind == "script"
    told = si.predict_local(ROWS, model, inputs="x", outputs="y array<float>", keep=[])
    np.testing.assert_allclose(np.stack(told["y"]), kit.torch_net()(torch.tensor(kit.ROWS)).detach().numpy(), rtol=1e-6)


def test_the_signature_names_the_column_of_a_single_native_input(tmp_path: Path) -> None:
    """MLflow's own name for it, which log_model was given, and not that of forward's argument."""
    signature = ModelSignature(Schema([TensorSpec(np.dtype("float32"), (-1, 3), name="pixels")]))
    with kit.quiet():
        mlflow.pytorch.save_model(kit.torch_net(), str(tmp_path / "m"), signature=signature, serialization_format="pickle", **kit.BARE)
    say = {"trust_pickle": True}
    told = scored(str(tmp_path / "m"), ROWS.rename(columns={"x": "pixels"}), say=say, outputs="y array<float>")
    assert len(told) == 4
    with pytest.raises(SchemaError, match=r"gets the columns \['pixels'\] that its signature names, but there is no column 'pixels'"):
        scored(str(tmp_path / "m"), ROWS, say=say, outputs="y array<float>")


def test_a_signature_casts_and_shapes_the_columns_of_a_native_model(saved: Any) -> None:
    """Doubles become the floats that the signature declares, and a column of another length is refused with the shape."""
    doubles = pd.DataFrame({"input": [[1.0, 2.0, 3.0]]})
    assert len(scored(saved("pt2"), doubles)) == 1
    with pytest.raises(SchemaError, match=r"input 'input' has the wrong shape: expected \(rows, 3\), found \(rows, 2\)"):
        scored(saved("pt2"), pd.DataFrame({"input": [[1.0, 2.0]]}))


def test_a_native_model_takes_no_params(saved: Any) -> None:
    """They are the pyfunc's; the way there is named."""
    with pytest.raises(ConfigError, match=r"params go to a pyfunc, but this is a model of the pytorch flavour.*flavor='pyfunc'"):
        si.MlflowModel(saved("pt2"), params={"k": 1}).describe()


@pytest.mark.parametrize("name", ["pt2", "pth", "keras", "tensorflow"])
def test_a_native_flavour_runs_as_pyfunc_when_it_is_asked_to(saved: Any, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The same answers by MLflow's own road."""
    say = {"trust_pickle": True, "flavor": "pyfunc"}
    assert si.MlflowModel(saved(name), **say).describe().backend == "pyfunc"
    told = scored(saved(name), ROWS, say=say, inputs="x")
    native = scored(saved(name), ROWS, say={"trust_pickle": True}, inputs="x")
    np.testing.assert_allclose(np.stack(told["prediction"]), np.stack(native["prediction"]), rtol=1e-6)


def test_what_the_native_backend_cannot_take_is_an_error_and_no_silent_pyfunc(tmp_path: Path, saved: Any) -> None:
    """With the backend's own reason, the code that the model was logged with, and the way out."""
    code = tmp_path / "their_code.py"
    code.write_text("import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return 3 * x\n", encoding="utf-8")
    program = (
        "import sys, mlflow\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import their_code\n"
        f"mlflow.pytorch.save_model(their_code.Net(), {str(tmp_path / 'm')!r}, serialization_format='pickle', pip_requirements=[], "
        f"code_paths=[{str(code)!r}])\n"
    )
    run_python(program, tmp_path)
    with pytest.raises(
        ModelLoadError,
        match=r"pytorch flavour, which runs natively on driver and workers, and cannot: .*their_code.*code of its own \('code'\)",
    ) as failed:
        si.MlflowModel(tmp_path / "m", trust_pickle=True).describe()
    assert "flavor='pyfunc'" in str(failed.value)
    told = scored(str(tmp_path / "m"), ROWS, say={"trust_pickle": True, "flavor": "pyfunc"}, inputs="x", outputs="y array<float>")
    np.testing.assert_array_equal(np.stack(told["y"]), 3 * kit.ROWS)


def run_python(program: str, folder: Path) -> None:
    """Run a program in an interpreter of its own, whose imports leave nothing in this one."""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# --- trust


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pth", r"the file 'data/model.pth', a file written by torch.save.*serialization_format='pt2'"),
        ("sklearn-pickle", r"the file 'model.pkl'.*skops"),
        ("python", r"the file 'python_model.pkl'"),
    ],
)
def test_a_pickle_is_not_read_without_trust(saved: Any, name: str, what: str) -> None:
    """The driver names the file, what to say, and the format that needs no trust."""
    with pytest.raises(ModelLoadError, match=f"reading this model can run code that comes with it, from {what}") as failed:
        si.MlflowModel(saved(name)).describe()
    assert "say trust_pickle=True" in str(failed.value)
    assert si.MlflowModel(saved(name), trust_pickle=True).describe().fingerprint


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("sklearn", lambda conf: conf["flavors"]["sklearn"].update(skops_trusted_types=["os.system"]), "asks to be trusted, os.system"),
        ("sklearn", lambda conf: conf["flavors"]["sklearn"].update(serialization_format="pickle"), "format 'pickle'"),
        ("sklearn", lambda conf: conf["flavors"]["python_function"].update(data="sub"), "its data folder"),
        ("sklearn", lambda conf: conf["flavors"]["python_function"].update(code="code"), "its own Python code, 'code'"),
        ("sklearn", lambda conf: conf["flavors"]["python_function"].update(loader_module="evil"), "what evil reads"),
        ("transformers", lambda conf: conf["flavors"]["transformers"].update(source_model_revision="abc"), "weights that lie elsewhere"),
        ("transformers", lambda conf: conf["flavors"]["transformers"].update(model_binary="/tmp/m"), r"elsewhere \(model_binary: /tmp/m\)"),
        ("transformers", lambda conf: conf["flavors"]["transformers"].update(components=["../../t"]), r"elsewhere \(components\[0\]: "),
        (
            "transformers",
            lambda conf: conf["flavors"]["transformers"].update(components=["/tmp/t"]),
            r"elsewhere \(components\[0\]: /tmp/t\)",
        ),
        ("transformers", lambda conf: conf["flavors"]["transformers"].update(components="t"), "components, which are no list"),
        ("sklearn", lambda conf: conf["flavors"]["python_function"].update(model_path="../m.skops"), r"elsewhere \(model_path: \.\./m"),
    ],
)
def test_a_model_cannot_declare_itself_harmless(saved: Any, tmp_path: Path, name: str, change: Any, what: str) -> None:
    """Settings in MLmodel by which MLflow would take types, code or files from the model, or from a hub, need trust."""
    with pytest.raises(ModelLoadError, match=what):
        si.MlflowModel(written(tmp_path, saved(name), change)).describe()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model/modeling.py", b"import os"),
        ("model/pytorch_model.bin", b"\x80\x04N."),
        ("notes.txt", b"\x80\x04N."),
        ("sub/MLmodel", b"flavors: {}"),
    ],
)
def test_a_file_that_may_hold_code_needs_trust(saved: Any, tmp_path: Path, file: str, content: bytes) -> None:
    """Whatever its name promises; a second MLmodel too, since MLflow's loaders read the nearest."""
    copy = shutil.copytree(saved("transformers"), tmp_path / "copy")
    (copy / file).parent.mkdir(exist_ok=True)
    (copy / file).write_bytes(content)
    with pytest.raises(ModelLoadError, match=f"from the file '{file}'"):
        si.MlflowModel(copy).describe()


def test_a_transformers_model_that_names_its_own_classes_needs_trust(saved: Any, tmp_path: Path) -> None:
    """The auto_map of its configuration, which transformers would import."""
    copy = shutil.copytree(saved("transformers"), tmp_path / "copy")
    config = json.loads((copy / "model/config.json").read_text())
    (copy / "model/config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "modeling.Net"}}))
    with pytest.raises(ModelLoadError, match=r"the code or the weights that 'model/config.json' names in its auto_map"):
        si.MlflowModel(copy).describe()


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("model/adapter_config.json", r"'model/adapter_config\.json', an adapter to weights that lie elsewhere"),
        ("model/other.json", r"'model/other\.json' names in its base_model_name_or_path"),
    ],
)
def test_an_adapter_to_another_model_needs_trust(saved: Any, tmp_path: Path, file: str, what: str) -> None:
    """Transformers would read the base model from the place that it names, whatever lies there."""
    copy = shutil.copytree(saved("transformers"), tmp_path / "copy")
    (copy / file).write_text(json.dumps({"base_model_name_or_path": "/tmp/elsewhere"}))
    with pytest.raises(ModelLoadError, match=what):
        si.MlflowModel(copy).describe()


# --- pyfunc: what the model gets

COLUMNS = {
    "flag": (DataType.boolean, [True, False]),
    "small": (DataType.integer, np.array([1, 2], dtype=np.int64)),
    "big": (DataType.long, np.array([1, 2], dtype=np.int32)),
    "single": (DataType.float, [0.5, 1.5]),
    "double": (DataType.double, np.array([1, 2], dtype=np.int64)),
    "text": (DataType.string, ["a", "b"]),
    "blob": (DataType.binary, [b"a", b"b"]),
    "moment": (DataType.datetime, pd.to_datetime(["2026-01-01", "2026-01-02"])),
    "vector": (Array(DataType.double), [[1.0, 2.0], [3.0, 4.0]]),
    "ragged": (Array(DataType.long), [[1], [2, 3]]),
}


def test_a_column_signature_makes_a_frame_of_its_types(tmp_path: Path) -> None:
    """Names and order are the signature's; numbers are cast where no value changes; arrays of unequal length are a column of arrays."""
    signature = ModelSignature(Schema([ColSpec(kind, name) for name, (kind, _) in COLUMNS.items()]))
    path = kit.save_pyfunc(tmp_path / "m", kit.Told(), signature)
    data = pd.DataFrame({name: values for name, (_, values) in reversed(COLUMNS.items())})
    told = scored(path, data, say={"trust_pickle": True}, outputs="y string")["y"].tolist()
    types = "flag:bool small:int32 big:int64 single:float32 double:float64 text:object blob:object moment:datetime64[ns] vector:object ragged:object"
    assert told[1].startswith(f"frame {types} | False 2 2 1.5 2.0 'b' b'b' Timestamp('2026-01-02")
    assert told[1].endswith("ndarray[2] ndarray[2]")
    with pytest.raises(SchemaError, match=r"input 'small' is asked for as int32, but 1.5 is none"):
        scored(path, data.assign(small=[1.5, 2.0]), say={"trust_pickle": True}, outputs="y string")


def test_a_tensor_signature_makes_arrays(tmp_path: Path) -> None:
    """One without a name is an array, named ones a dict; a flat column gets the shape that is declared."""
    one = ModelSignature(Schema([TensorSpec(np.dtype("float32"), (-1, 2, 2))]))
    path = kit.save_pyfunc(tmp_path / "one", kit.Told(), one)
    flat = pd.DataFrame({"input": [[1.0, 2.0, 3.0, 4.0]] * 2})
    assert scored(path, flat, say={"trust_pickle": True}, outputs="y string")["y"][0] == "array:float32[2, 2]"
    several = ModelSignature(Schema([TensorSpec(np.dtype("int64"), (-1, 2), name="ids"), TensorSpec(np.dtype("float64"), (-1,), name="w")]))
    path = kit.save_pyfunc(tmp_path / "several", kit.Told(), several)
    data = pd.DataFrame({"w": [1, 2], "ids": [[1, 2], [3, 4]]})
    assert scored(path, data, say={"trust_pickle": True}, outputs="y string")["y"][0] == "ids:int64[2] w:float64[]"


@pytest.mark.parametrize(
    ("inputs", "told"),
    [("x", "array:float32[3]"), (["a", "b"], "frame a:float64 b:float64 |"), ({"one": "a"}, "frame one:float64 |")],
)
def test_without_a_signature_one_input_is_an_array_and_others_a_frame(tmp_path: Path, inputs: Any, told: str) -> None:
    """By the columns' names, or the user's own."""
    path = kit.save_pyfunc(tmp_path / "m", kit.Told())
    data = pd.concat([ROWS, kit.TABLE], axis=1)
    assert scored(path, data, say={"trust_pickle": True}, inputs=inputs, outputs="y string")["y"][0].startswith(told)


def test_columns_without_names_are_taken_in_order(tmp_path: Path) -> None:
    """The frame has numbers for names, as MLflow itself gives it; their count is checked on the driver."""
    path = kit.save_pyfunc(tmp_path / "m", kit.Told(), ModelSignature(Schema([ColSpec("double"), ColSpec("long")])))
    say = {"trust_pickle": True}
    assert scored(path, kit.TABLE, say=say, inputs=["a", "b"], outputs="y string")["y"][1] == "frame 0:float64 1:int64 | 2.0 1"
    with pytest.raises(ConfigError, match=r"takes 2 inputs .*, but 1 came"):
        scored(path, kit.TABLE, say=say, inputs="a", outputs="y string")


def test_an_optional_column_is_taken_where_it_is_there(tmp_path: Path) -> None:
    """And may be left out where it is not; a required one may not."""
    signature = ModelSignature(Schema([ColSpec("double", "a"), ColSpec("double", "b", required=False)]))
    path = kit.save_pyfunc(tmp_path / "m", kit.Told(), signature)
    say = {"trust_pickle": True}
    assert scored(path, kit.TABLE, say=say, outputs="y string")["y"][0].startswith("frame a:float64 b:float64 |")
    assert scored(path, kit.TABLE[["a"]], say=say, outputs="y string")["y"][0].startswith("frame a:float64 |")
    assert scored(path, kit.TABLE, say=say, inputs={"a": "b"}, outputs="y string")["y"][0].startswith("frame a:float64 | 0.0")
    with pytest.raises(SchemaError, match=r"there is no column 'a' .*inputs={'a': column, 'b': column}"):
        scored(path, kit.TABLE[["b"]], say=say, outputs="y string")


def test_nulls_arrive_as_the_columns_types_have_them(tmp_path: Path) -> None:
    """None in text, NaN in floats, under on_null="pass"; a null prediction under "null"; an error with the place otherwise."""
    signature = ModelSignature(Schema([ColSpec("string", "text"), ColSpec("double", "n")]))
    path = kit.save_pyfunc(tmp_path / "m", kit.Told(), signature)
    data = pd.DataFrame({"text": ["a", None], "n": pd.array([None, 1.0], dtype="Float64")})
    say = {"trust_pickle": True}
    told = scored(path, data, say=say, outputs="y string", on_null="pass")["y"].tolist()
    assert told == ["frame text:object n:float64 | 'a' nan", "frame text:object n:float64 | None 1.0"]
    assert scored(path, data, say=say, outputs="y string", on_null="null")["y"].tolist() == [None, None]
    with pytest.raises(SchemaError, match=r"the value is null, at column 'n'.*row 0"):
        scored(path, data, say=say, outputs="y string")


def test_preprocess_stands_before_a_pyfunc_too(saved: Any) -> None:
    """Its results are named as the signature's inputs, or are refused by the names."""
    told = scored(saved("sklearn"), kit.TABLE, inputs=["a", "b"], outputs="y double", preprocess=lambda a, b: {"a": 10 * a, "b": b})
    np.testing.assert_allclose(told["y"], 10 * kit.TABLE["a"] + kit.TABLE["b"])
    with pytest.raises(SchemaError, match=r"has no input 'aa'. Did you mean 'a'"):
        scored(saved("sklearn"), kit.TABLE, inputs=["a", "b"], outputs="y double", preprocess=lambda a, b: {"aa": a, "b": b})


# --- pyfunc: what it gives


@pytest.mark.parametrize(
    ("function", "outputs", "expected"),
    [
        (lambda frame: frame["a"] * 2, "y double", [[2.0], [4.0], [6.0], [8.0]]),
        (lambda frame: frame.to_numpy(), "y array<double>", [[[1.0, 0.0]], [[2.0, 1.0]], [[3.0, 0.0]], [[4.0, 1.0]]]),
        (lambda frame: pd.DataFrame(frame.to_numpy()), "y array<double>", [[[1.0, 0.0]], [[2.0, 1.0]], [[3.0, 0.0]], [[4.0, 1.0]]]),
        (lambda frame: frame.rename(columns={"a": "p"}), "b double, p double", [[0.0, 1.0], [1.0, 2.0], [0.0, 3.0], [1.0, 4.0]]),
        (lambda frame: [str(a) for a in frame["a"]], "y string", [["1.0"], ["2.0"], ["3.0"], ["4.0"]]),
        (lambda frame: {"n": frame["a"].to_numpy()}, "y double", [[1.0], [2.0], [3.0], [4.0]]),
        (lambda frame: [{"n": a} for a in frame["a"]], "n double", [[1.0], [2.0], [3.0], [4.0]]),
    ],
)
def test_every_kind_of_result_becomes_columns(tmp_path: Path, function: Any, outputs: str, expected: Any) -> None:
    """Series, arrays, frames with and without names, lists, dicts, and a list of dicts."""
    path = kit.save_pyfunc(tmp_path / "m", kit.Given(function), infer_signature(kit.TABLE))
    told = scored(path, kit.TABLE, say={"trust_pickle": True}, outputs=outputs)
    assert [[np.asarray(value).tolist() for value in row] for row in told.to_numpy().tolist()] == expected


def test_a_signatures_outputs_are_declared_as_columns(tmp_path: Path) -> None:
    """By name and type; one without a name is ``prediction``."""
    outputs = Schema([ColSpec("string", "label"), ColSpec("integer", "n"), ColSpec(Array(DataType.double), "v")])
    signature = ModelSignature(infer_signature(kit.TABLE).inputs, outputs)
    path = kit.save_pyfunc(
        tmp_path / "m", kit.Given(lambda frame: pd.DataFrame({"v": [[0.5, 1.0]] * len(frame), "n": 3, "label": "x"})), signature
    )
    told = scored(path, kit.TABLE, say={"trust_pickle": True})
    assert list(told.columns) == ["label", "n", "v"]
    assert told.iloc[0].tolist()[:2] == ["x", 3]
    assert told["v"][0].tolist() == [0.5, 1.0]


def test_a_pyfunc_that_fails_or_loses_rows_says_where(tmp_path: Path) -> None:
    """As for every other model: the model's own error with the batch, a wrong number of rows, a value that does not fit."""

    def at_three(frame: Any) -> Any:
        if (frame["a"] == 4).any():
            message = "no fours"
            raise ValueError(message)
        return frame["a"]

    say = {"trust_pickle": True}
    path = kit.save_pyfunc(tmp_path / "raises", kit.Given(at_three), infer_signature(kit.TABLE))
    with pytest.raises(PredictError, match=r"the model raised ValueError: no fours. At batch 1 \(rows 3 to 3\)"):
        scored(path, kit.TABLE, say=say, outputs="y double")
    path = kit.save_pyfunc(tmp_path / "short", kit.Given(lambda frame: frame["a"][1:]), infer_signature(kit.TABLE))
    with pytest.raises(PredictError, match=r"expected 3 rows, found .*2"):
        scored(path, kit.TABLE, say=say, outputs="y double")
    path = kit.save_pyfunc(tmp_path / "text", kit.Given(lambda frame: ["a"] * len(frame)), infer_signature(kit.TABLE))
    with pytest.raises(OutputError):
        scored(path, kit.TABLE, say=say, outputs="y double")


def test_transformers_gives_labels_and_scores_by_its_own_signature(saved: Any, tmp_path: Path) -> None:
    """A Hugging Face pipeline with safetensors needs no trust, no inputs and no outputs but a column named ``input``."""
    told = scored(saved("transformers"), pd.DataFrame({"input": kit.TEXTS}))
    expected = kit.classifier(tmp_path)(kit.TEXTS)
    assert told["label"].tolist() == [row["label"] for row in expected]
    np.testing.assert_allclose(told["score"], [row["score"] for row in expected], rtol=1e-4)


# --- params


def test_params_are_given_to_the_model(saved: Any) -> None:
    """The user's, or the schema's default; other params are another model."""
    path = saved("python")
    assert scored(path, kit.TABLE, say={"trust_pickle": True})["prediction"].tolist() == [2.0, 4.0, 6.0, 8.0]
    say = {"trust_pickle": True, "params": {"factor": 3}}
    assert scored(path, kit.TABLE, say=say)["prediction"].tolist() == [3.0, 6.0, 9.0, 12.0]
    prints = {
        si.MlflowModel(path, trust_pickle=True, params=params).describe().fingerprint for params in (None, {"factor": 3}, {"factor": 4})
    }
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("name", "params", "told"),
    [
        ("python", {"faktor": 1}, "params names 'faktor', which the model does not take. Did you mean 'factor'"),
        ("python", {"factor": "much"}, "params gives 'factor' a value of type str, which does not fit its schema"),
        ("sklearn", {"factor": 1}, "the model's signature has no params schema"),
    ],
)
def test_params_are_checked_on_the_driver(saved: Any, name: str, params: dict[str, Any], told: str) -> None:
    """By the signature's schema; MLflow itself would leave unknown ones out with a warning."""
    with pytest.raises(ConfigError, match=told):
        si.MlflowModel(saved(name), params=params, trust_pickle=True).describe()


# --- what no signature says


def test_a_model_without_a_signature_asks_for_inputs_and_outputs(tmp_path: Path) -> None:
    """With what to write."""
    path = kit.save_pyfunc(tmp_path / "m", kit.Told())
    say = {"trust_pickle": True}
    with pytest.raises(ConfigError, match=r"inputs is not given, and MlflowModel.* does not say what it takes: .*inputs='x'"):
        scored(path, kit.TABLE, say=say, outputs="y string")
    with pytest.raises(
        ConfigError, match=r"outputs is not given, and MlflowModel.* does not say what it gives: .*outputs='label string, score float'"
    ):
        scored(path, kit.TABLE, say=say, inputs="a")


def test_functions_around_the_model_need_their_columns_named(saved: Any) -> None:
    """A signature tells what the model takes and gives, and not what preprocess and postprocess do."""
    with pytest.raises(ConfigError, match="cannot tell which columns preprocess_batch takes"):
        scored(saved("sklearn"), kit.TABLE, preprocess_batch=lambda a, b: a)
    with pytest.raises(ConfigError, match="cannot tell what postprocess gives"):
        scored(saved("sklearn"), kit.TABLE, postprocess=lambda y: y)


def test_what_the_user_says_wins_over_the_signature(saved: Any) -> None:
    """Columns of other names, and an output of another name and type."""
    data = kit.TABLE.rename(columns={"a": "left", "b": "right"})
    told = scored(saved("sklearn"), data, inputs={"a": "left", "b": "right"}, outputs="sum float")
    assert told["sum"].dtype == np.float32
    np.testing.assert_allclose(told["sum"], kit.TABLE.sum(axis=1), rtol=1e-6)


def test_an_output_whose_type_is_not_told_is_asked_for(tmp_path: Path) -> None:
    """A tensor of objects may hold anything."""
    signature = ModelSignature(Schema([ColSpec("double", "a")]), Schema([TensorSpec(np.dtype("O"), (-1,))]))
    path = kit.save_pyfunc(tmp_path / "m", kit.Told(), signature)
    with pytest.raises(ConfigError, match=r"'prediction' is object: declare it, as in outputs='prediction array<float>'"):
        scored(path, kit.TABLE, say={"trust_pickle": True})


def test_a_saved_models_own_signature_is_enough_without_mlflow(saved: Any) -> None:
    """TensorFlowModel takes the names and types of the SavedModel's signature."""
    told = si.predict_local(ROWS, si.TensorFlowModel(Path(saved("module")) / "tf2model"))
    np.testing.assert_array_equal(np.stack(told["twice"]), 2 * kit.ROWS)


# --- identity and files


def test_the_same_content_in_another_folder_is_the_same_model(saved: Any, tmp_path: Path) -> None:
    """The name and version that MLflow writes beside a download are no content, and neither is what Python compiles."""
    for name in ("sklearn", "pt2"):
        copy = shutil.copytree(saved(name), tmp_path / name)
        (copy / "__pycache__").mkdir()
        (copy / "__pycache__" / "code.pyc").write_bytes(b"x")
        assert si.MlflowModel(copy).describe().fingerprint == si.MlflowModel(saved(name)).describe().fingerprint
    torch_plan = si.TorchModel(Path(saved("pt2")) / "data" / "model.pt2").describe()
    assert torch_plan.fingerprint == si.MlflowModel(saved("pt2")).describe().fingerprint


def test_a_new_version_runs_on_its_own_code(tmp_path: Path) -> None:
    """Two models that bring a module of one name, in one process: each is built on its own."""
    paths = []
    for factor in (2, 3):
        module = tmp_path / str(factor) / "shared_name.py"
        module.parent.mkdir()
        module.write_text(f"FACTOR = {factor}\n", encoding="utf-8")
        (module.parent / "model.py").write_text(
            "import mlflow\nfrom mlflow.models import set_model\n\n\nclass Model(mlflow.pyfunc.PythonModel):\n"
            "    def load_context(self, context):\n        import shared_name\n        self.factor = shared_name.FACTOR\n\n"
            "    def predict(self, context, model_input, params=None):\n        return model_input['a'] * self.factor\n\n\nset_model(Model())\n",
            encoding="utf-8",
        )
        signature = "infer_signature(pd.DataFrame({'a': [1.0]}), pd.Series([1.0]))"
        program = (
            f"import mlflow, pandas as pd\nfrom mlflow.models import infer_signature\n"
            f"mlflow.pyfunc.save_model({str(module.parent / 'm')!r}, python_model={str(module.parent / 'model.py')!r}, "
            f"code_paths=[{str(module)!r}], signature={signature}, pip_requirements=[])\n"
        )
        run_python(program, tmp_path)
        paths.append(str(module.parent / "m"))
    for path, factor in zip((*paths, paths[0]), (2, 3, 2), strict=True):
        told = scored(path, kit.TABLE, say={"trust_pickle": True}, outputs="y double", models_per_worker=0)
        assert told["y"].tolist() == (factor * kit.TABLE["a"]).tolist()


def test_a_model_is_loaded_once_over_calls_and_uris(tmp_path: Path, ledger: Ledger) -> None:
    """The same content from two folders, in three calls of one process."""
    path = kit.save_pyfunc(tmp_path / "m", kit.Scaled(ledger), kit.SCALED)
    copy = shutil.copytree(path, tmp_path / "copy")
    before = ledger.count("load")
    for where in (path, path, str(copy)):
        scored(where, kit.TABLE, say={"trust_pickle": True})
    assert ledger.count("load") - before == 1


# --- what is no model


def test_a_folder_without_mlmodel_is_no_model(tmp_path: Path) -> None:
    """Nor is a path that is not there, nor a file that is no YAML."""
    with pytest.raises(ModelLoadError, match="there is no file MLmodel in"):
        si.MlflowModel(tmp_path).describe()
    with pytest.raises(ModelLoadError, match="there is no "):
        si.MlflowModel(tmp_path / "nowhere").describe()
    (tmp_path / "MLmodel").write_text("flavors: [", encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"MLflow .* cannot read '.*MLmodel'"):
        si.MlflowModel(tmp_path).describe()


def test_mlmodel_cannot_name_files_outside_of_its_folder(saved: Any, tmp_path: Path) -> None:
    """A native model's data is looked for inside."""
    path = written(tmp_path, saved("pt2"), lambda conf: conf["flavors"]["pytorch"].update(model_data="../../"))
    with pytest.raises(ModelLoadError, match=r"names '../../', which is not in"):
        si.MlflowModel(path).describe()


def test_a_model_without_a_flavour_that_can_run_is_refused(saved: Any, tmp_path: Path) -> None:
    """With the flavours that it has."""
    path = written(tmp_path, saved("sklearn"), lambda conf: conf["flavors"].pop("python_function"))
    with pytest.raises(ModelLoadError, match="has the flavours sklearn, and none of them can be run here"):
        si.MlflowModel(path).describe()


@pytest.mark.parametrize(
    ("say", "told"),
    [
        ({"uri": ""}, "uri is '', expected an MLflow URI"),
        ({"uri": 5}, "uri is 5, expected an MLflow URI"),
        ({"uri": "models:/m/1", "params": [1]}, r"params is \[1\], expected a dict"),
        ({"uri": "models:/m/1", "flavor": "torch"}, "flavor is 'torch', expected 'auto' or 'pyfunc'"),
        ({"uri": "models:/m/1", "ship": "mail"}, "ship is 'mail'"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_model_is_named(say: dict[str, Any], told: str) -> None:
    """Before MLflow is asked."""
    with pytest.raises(ConfigError, match=told):
        si.MlflowModel(**say)


@pytest.mark.parametrize("uri", ["models:/nobody/1", "models:/nobody@champion", "runs:/0123456789abcdef0123456789abcdef/model"])
def test_a_uri_that_mlflow_does_not_know_is_an_error_with_the_store(uri: str) -> None:
    """The tracking store and the registry that were asked, which are a matter of settings."""
    with pytest.raises(
        ModelLoadError, match=f"MLflow gives no model for it .*not found.*The tracking store is '{os.environ['MLFLOW_TRACKING_URI']}'"
    ):
        si.MlflowModel(uri).describe()


def test_the_stores_password_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that MLflow was given may hold one."""
    address = "sqlite://bob:hunter2@host/mlflow.db"
    monkeypatch.setattr("mlflow.get_tracking_uri", lambda: address)
    with pytest.raises(ModelLoadError, match=r"The tracking store is 'sqlite://host/mlflow\.db'") as failed:
        si.MlflowModel("models:/nobody/1").describe()
    assert "hunter2" not in str(failed.value)


def test_a_card_cannot_be_asked_for(saved: Any) -> None:
    """MLflow chooses the device of what it loads."""
    with pytest.raises(ConfigError, match="MLflow puts a pyfunc on its device itself"):
        scored(saved("sklearn"), kit.TABLE, device="cuda:0")


def test_mlflow_missing_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as an import error of an inner module."""
    import sys

    monkeypatch.delitem(sys.modules, "sparkinfer.backends.mlflow_describe", raising=False)
    monkeypatch.delitem(sys.modules, "sparkinfer.backends.mlflow_store", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingDependencyError, match=r"'mlflow' is not installed here: pip install 'sparkinfer\[mlflow\]'"):
        si.MlflowModel("models:/m/1").describe()


def test_the_plan_travels_without_the_model(saved: Any) -> None:
    """A pyfunc's plan names a folder; it does not carry it."""
    import pickle

    plan = si.MlflowModel(saved("transformers")).describe()
    assert len(pickle.dumps(plan)) < 5000
    assert pickle.loads(pickle.dumps(plan)) == replace(plan)
