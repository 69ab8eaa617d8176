"""TensorFlow models: what a path or an object holds is found out on the driver, and a worker gives the model's own answers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the TensorFlow backend needs TensorFlow")

import h5py
import keras
import tensorflow as tf
from PIL import Image
from tensorflow.core.protobuf import saved_model_pb2

from sparkinfer.backends.tensorflow import BACKEND, TensorFlowLoaded, keras_runner
from sparkinfer.engine.batch import Fault, Inputs
from sparkinfer.engine.contracts import ModelPlan, TensorInfo
from sparkinfer.engine.signature import check_inputs
from sparkinfer.exceptions import ConfigError, ModelLoadError, OutputError, SchemaError, SparkInferWarning
from sparkinfer.models import TensorFlowModel
from sparkinfer.pickling import loads

# Keras 3.15 saves its variables by a call that NumPy 2 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")

ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)
THREADS = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()  # 0 stands for all


def installed(package: str, *parts: str) -> Path:
    """Find a data file of an installed package without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"the test environment has no {package}"
    return Path(next(iter(spec.submodule_search_locations or [])), *parts)


def load(plan: ModelPlan) -> Any:
    """Load as a worker would, from the path or from the bytes that travelled."""
    files = {file.role: file.path or file.content for file in plan.files}
    return BACKEND.load(plan, files, "cpu", THREADS)


def small_keras() -> keras.Model:
    """A dense layer with dropout and batch normalisation: an answer that depends on the mode."""
    inputs = keras.Input((3,), name="x")
    hidden = keras.layers.BatchNormalization(momentum=0.5)(keras.layers.Dense(4)(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dropout(0.5)(hidden)))


def two_inputs() -> keras.Model:
    """A float and an integer input, in the order x, k (the alphabet's is k, x), and two named outputs."""
    x, k = keras.Input((3,), name="x"), keras.Input((2,), name="k", dtype="int32")
    return keras.Model([x, k], {"sum": keras.ops.sum(x, axis=1), "k": k * 2})


@keras.saving.register_keras_serializable(package="sparkinfer_tests")
class Scale(keras.layers.Layer):
    """A layer of the user's own."""

    def __init__(self, factor: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x: Any) -> Any:
        """Multiply."""
        return x * self.factor

    def get_config(self) -> dict[str, Any]:
        """Say how it was made."""
        return {**super().get_config(), "factor": self.factor}


@keras.saving.register_keras_serializable(package="sparkinfer_tests")
class Sevens(keras.initializers.Initializer):
    """An initializer of the user's own."""

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        """Fill."""
        return keras.ops.full(shape, 7.0, dtype=dtype)


class Scorer(tf.Module):
    """A module with two signatures, one of them over text."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable([[1.0], [2.0], [3.0]])

    @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, name="x")])
    def score(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        """Weigh three numbers."""
        return {"score": x @ self.weight}

    @tf.function(
        input_signature=[
            tf.TensorSpec((None,), tf.string, name="text"),
            tf.TensorSpec((None,), tf.int32, name="count"),
            tf.TensorSpec((None,), tf.float32, name="weight"),
        ]
    )
    def describe(self, text: tf.Tensor, count: tf.Tensor, weight: tf.Tensor) -> dict[str, tf.Tensor]:
        """Take an input of each kind."""
        return {"text": tf.strings.upper(text), "count": count, "weight": weight}


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel with the signatures serving_default and describe."""
    path = tmp_path_factory.mktemp("scorer")
    module = Scorer()
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.score, "describe": module.describe})
    return path


# SavedModel


def test_a_saved_model_tells_its_inputs_and_outputs_without_being_loaded(scorer: Path) -> None:
    """Names, dtypes and shapes come from the protocol buffer; the batch axis is left out."""
    plan = TensorFlowModel(scorer).describe()
    assert (plan.backend, plan.kind, plan.options["signature"]) == ("tensorflow", "saved_model", "serving_default")
    assert plan.inputs == (TensorInfo("x", "float32", (3,)),)
    assert plan.outputs == (TensorInfo("score", "float32", (1,)),)
    assert plan.float_dtype == "float32"
    text = TensorFlowModel(scorer, signature="describe").describe()
    assert {info.name: info.dtype for info in text.inputs or ()} == {"text": "string", "count": "int32", "weight": "float32"}
    assert text.fingerprint != plan.fingerprint


def test_a_saved_model_gives_its_own_answers(scorer: Path) -> None:
    """The default signature, called with one array, gives its outputs by name."""
    model = load(TensorFlowModel(scorer).describe())
    np.testing.assert_allclose(model.predict(Inputs("single", {"any": ROWS}))["score"], ROWS @ [[1.0], [2.0], [3.0]])
    model.release()


def test_a_wrong_signature_is_refused_with_the_ones_there(scorer: Path) -> None:
    """The message lists them and names the nearest."""
    with pytest.raises(ModelLoadError, match=r"no signature 'descibe', but 'describe', 'serving_default'. Did you mean 'describe'"):
        TensorFlowModel(scorer, signature="descibe").describe()


def test_a_saved_model_without_signatures_is_refused(tmp_path: Path) -> None:
    """It loads, but there is nothing to call; the message says how to save one."""
    tf.saved_model.save(tf.Module(), str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"no signature that could be called.*signatures="):
        TensorFlowModel(tmp_path).describe()


def test_the_only_signature_is_taken_whatever_its_name(tmp_path: Path) -> None:
    """With one signature there is nothing to choose; with several and no default there is."""
    module = Scorer()
    tf.saved_model.save(module, str(tmp_path / "one"), signatures={"mine": module.score})
    assert TensorFlowModel(tmp_path / "one").describe().options["signature"] == "mine"
    tf.saved_model.save(module, str(tmp_path / "two"), signatures={"mine": module.score, "other": module.score})
    with pytest.raises(ModelLoadError, match=r"'serving_default', but 'mine', 'other'. Choose one by signature="):
        TensorFlowModel(tmp_path / "two").describe()


@pytest.mark.parametrize("content", [b"", b"no protocol buffer at all"])
def test_a_broken_saved_model_is_refused_on_the_driver(tmp_path: Path, content: bytes) -> None:
    """An empty file and garbage, both told as a file that may have been cut short."""
    (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(ModelLoadError, match="cut short"):
        TensorFlowModel(tmp_path).describe()


def test_a_model_that_lost_its_weights_on_the_way_is_told_by_the_worker(scorer: Path, tmp_path: Path) -> None:
    """The driver's description still holds; the load names the path, the cause and what to compare."""
    plan = TensorFlowModel(scorer).describe()
    (tmp_path / "saved_model.pb").write_bytes((scorer / "saved_model.pb").read_bytes())
    with pytest.raises(ModelLoadError, match=rf"cannot be loaded here from '{tmp_path}'.*compare the versions"):
        BACKEND.load(plan, {"model": str(tmp_path)}, "cpu", THREADS)


def test_a_training_optimizer_of_keras_2_inside_is_told_on_the_driver(tmp_path: Path) -> None:
    """TensorFlow itself fails with "no attribute 'add_slot'"; we say so before any job, and what to do."""
    module = Scorer()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.score)
    saved = saved_model_pb2.SavedModel()
    file = tmp_path / "model" / "saved_model.pb"
    saved.ParseFromString(file.read_bytes())
    graph = saved.meta_graphs[0]
    nodes = graph.object_graph_def.nodes
    weight = next(number for number, node in enumerate(nodes) if node.WhichOneof("kind") == "variable")
    slot = nodes.add()
    slot.CopyFrom(nodes[weight])
    optimizer = nodes.add()
    optimizer.user_object.identifier = "optimizer"
    optimizer.user_object.version.producer = 1
    optimizer.slot_variables.add(original_variable_node_id=weight, slot_name="m", slot_variable_node_id=len(nodes) - 2)
    nodes[0].children.add(node_id=len(nodes) - 1, local_name="optimizer")
    file.write_bytes(saved.SerializeToString())
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(str(file.parent))
    with pytest.raises(ModelLoadError, match=r"optimizer.*add_slot.*Install tf_keras .*export the model again"):
        TensorFlowModel(file.parent).describe()


def test_guesslang_tells_languages() -> None:
    """A real Estimator SavedModel with hash tables and three signatures: text in, labels and probabilities out."""
    model = TensorFlowModel(installed("guesslang", "data", "model"), signature="predict")
    loaded = load(model.describe())
    paths = [installed("pyspark", "sql", "dataframe.py"), installed("pyspark", "bin", "spark-submit")]
    texts = np.array([path.read_text(encoding="utf-8") for path in paths], dtype=object)
    result = loaded.predict(Inputs("single", {"content": texts}))
    assert [label.decode() for label in result["classes"][:, 0]] == ["py", "sh"]
    np.testing.assert_allclose(result["probabilities"].max(axis=1), [1.0, 0.9784], atol=1e-3)
    assert result["class_ids"].dtype == np.int64


# Inputs: matched by name, cast without loss


def test_inputs_that_do_not_match_the_signature_are_refused(scorer: Path) -> None:
    """By order, too few, and by a wrong name: each message lists the inputs."""
    model = load(TensorFlowModel(scorer, signature="describe").describe())
    for inputs, text in [
        (Inputs("single", {"a": ROWS}), r"takes 3 inputs .*'count', 'text', 'weight'.*1 came"),
        (Inputs("positional", {"a": ROWS, "b": ROWS, "c": ROWS}), "by name, they have no order"),
        (Inputs("named", {"txt": ROWS, "count": ROWS, "weight": ROWS}), "no input 'txt'. Did you mean 'text'"),
        (Inputs("named", {"text": ROWS, "count": ROWS}), "needs 'weight' as well"),
    ]:
        with pytest.raises(Fault, match=text) as caught:
            model.predict(inputs)
        assert caught.value.kind is SchemaError


@pytest.mark.parametrize("wrap", [np.asarray, tf.convert_to_tensor])
def test_values_are_cast_to_the_signature_where_nothing_is_lost(scorer: Path, wrap: Any) -> None:
    """int64 to int32 where it fits, integers and float64 to float32, str to string; from NumPy and from the feed's tensors."""
    model = load(TensorFlowModel(scorer, signature="describe").describe())
    arrays = {"text": np.array(["a", "ü"], dtype=object), "count": np.array([1, -2]), "weight": np.array([1, 2])}
    result = model.predict(Inputs("named", {name: wrap(array) for name, array in arrays.items()}))
    assert result["text"].tolist() == [b"A", "ü".encode()]
    assert (result["count"].dtype, result["count"].tolist()) == (np.int32, [1, -2])
    assert (result["weight"].dtype, result["weight"].tolist()) == (np.float32, [1.0, 2.0])


@pytest.mark.parametrize(
    ("name", "values", "text", "row"),
    [
        ("count", np.array([1, 2**31]), "int32, which cannot hold 2147483648 .int64.", 1),
        ("count", np.array([2**64 - 1, 1], dtype=np.uint64), "cannot hold 18446744073709551615", 0),
        ("count", np.array([1.0, 2.0]), r"takes int32, but float64 came: .*TensorSpec\('int32'\)", None),
        ("count", np.array(["1", "2"], dtype=object), "takes int32, but string came", None),
        ("text", np.array([1, 2]), "takes string, but int64 came", None),
        ("text", np.array(["a", None], dtype=object), "a null in it", 1),
        ("text", np.array(["a", 1.5], dtype=object), "holds float", 1),
        ("weight", np.zeros((2, 4)), r"takes the shape \(rows\), but \(rows, 4\) came", None),
    ],
)
def test_a_value_that_would_change_is_refused(scorer: Path, name: str, values: np.ndarray, text: str, row: int | None) -> None:
    """Each is a SchemaError with the input's name, the value or type, and the row where one is to blame."""
    model = load(TensorFlowModel(scorer, signature="describe").describe())
    good = {"text": np.array(["a", "b"], dtype=object), "count": np.array([1, 2]), "weight": np.array([1.0, 2.0])}
    with pytest.raises(Fault, match=text) as caught:
        model.predict(Inputs("named", {**good, name: values}))
    assert (caught.value.kind, caught.value.row) == (SchemaError, row)
    assert repr(name) in caught.value.text


# Keras files


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".hdf5"])
def test_a_keras_file_gives_the_answers_of_the_model_in_inference_mode(tmp_path: Path, suffix: str) -> None:
    """As a path and as bytes: dropout is off, the moving averages stay, whatever the batch."""
    model = small_keras()
    model(ROWS, training=True)
    path = tmp_path / f"model{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras calls .h5 legacy
        model.save(path)
    plan = TensorFlowModel(path).describe()
    assert plan.inputs == (TensorInfo("x", "float32", (3,)),)
    expected = model(ROWS, training=False).numpy()
    for source in (str(path), path.read_bytes()):
        loaded = BACKEND.load(plan, {"model": source}, "cpu", THREADS)
        for rows in (8, 1, 3):
            made = loaded.predict(Inputs("single", {"x": ROWS[:rows].astype(np.float64)}))
            np.testing.assert_allclose(made, expected[:rows], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(loaded.predict(Inputs("single", {"x": ROWS})), loaded.predict(Inputs("single", {"x": ROWS})))


def test_a_real_legacy_file_is_read() -> None:
    """Fer's emotion model, HDF5 of an older Keras: 64 by 64 grey pixels in, seven probabilities out."""
    loaded = load(TensorFlowModel(installed("fer", "data", "emotion_model.hdf5")).describe())
    face = (
        Image.open(installed("skimage", "data", "astronaut.png"))
        .convert("L")
        .crop((170, 60, 280, 180))
        .resize((64, 64), Image.Resampling.BILINEAR)
    )
    pixels = (np.asarray(face, dtype=np.float32)[None, :, :, None] / 255 - 0.5) * 2
    assert loaded.predict(Inputs("single", {"x": pixels}))[0, 3] == pytest.approx(0.9976, abs=0.002)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_code_in_a_file_is_refused_unless_it_is_trusted(tmp_path: Path, suffix: str) -> None:
    """A Lambda layer is marshalled code: the driver names the layer and the ways out, and runs it only when told so."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x * 2, name="twice", output_shape=(3,))])
    path = tmp_path / f"model{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save(path)
    with pytest.raises(ModelLoadError, match=r"Lambda layer 'twice'.*model.export.*register_keras_serializable.*trust_pickle=True"):
        TensorFlowModel(path).describe()
    loaded = load(TensorFlowModel(path, trust_pickle=True).describe())
    np.testing.assert_array_equal(loaded.predict(Inputs("single", {"x": ROWS})), ROWS * 2)


def test_code_in_a_file_of_keras_2_is_refused_too(tmp_path: Path) -> None:
    """There the code stands in a list, and a type beside it says so."""
    layer = {"class_name": "Lambda", "config": {"name": "old", "function": ["4wEAAAA=", None, None], "function_type": "lambda"}}
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": {"layers": [layer]}})
    with pytest.raises(ModelLoadError, match="Lambda layer 'old'"):
        TensorFlowModel(tmp_path / "old.h5").describe()


def test_weights_without_a_model_are_told_as_such(tmp_path: Path) -> None:
    """save_weights writes no architecture: the message says to load them into the model."""
    model = small_keras()
    model.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ModelLoadError, match=r"weights without the model.*load_weights"):
        TensorFlowModel(tmp_path / "model.weights.h5").describe()


def test_a_file_with_a_registered_class_carries_it(tmp_path: Path) -> None:
    """What the driver had to import is in the plan, by its registered name."""
    model = keras.Sequential([keras.Input((3,)), Scale(3.0)])
    model.save(tmp_path / "model.keras")
    plan = TensorFlowModel(tmp_path / "model.keras").describe()
    assert plan.payload
    np.testing.assert_array_equal(load(plan).predict(Inputs("single", {"x": ROWS})), ROWS * 3)


def test_a_file_with_an_unknown_class_is_refused_on_the_driver(tmp_path: Path) -> None:
    """The message has Keras's own words and the two ways out."""
    small_keras().save(tmp_path / "whole.keras")
    with zipfile.ZipFile(tmp_path / "whole.keras") as whole, zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        for name in whole.namelist():
            archive.writestr(name, whole.read(name).replace(b'"Dropout"', b'"Dropin"'))
    with pytest.raises(ModelLoadError, match=r"Keras cannot load .*Dropin.*import them before.*or give the model object"):
        TensorFlowModel(tmp_path / "model.keras").describe()


def test_a_file_has_the_content_that_was_pinned(tmp_path: Path) -> None:
    """The right hash passes; another is refused with both; an overwritten file is another model."""
    path = tmp_path / "model.keras"
    small_keras().save(path)
    first = TensorFlowModel(path).describe()
    assert TensorFlowModel(path, sha256=first.files[0].sha256).describe() == first
    small_keras().save(path)
    second = TensorFlowModel(path).describe()
    assert second.fingerprint != first.fingerprint
    with pytest.raises(ModelLoadError, match=f"{second.files[0].sha256}.*{first.files[0].sha256}"):
        TensorFlowModel(path, sha256=first.files[0].sha256).describe()


# Keras objects


def test_a_keras_object_travels_as_it_is() -> None:
    """Same answers, same fingerprint while it is unchanged, another one when a weight moves; the user's model is left alone."""
    model = small_keras()
    model.compile("adam", "mse")
    before = [weight.copy() for weight in model.get_weights()]
    plan = TensorFlowModel(model).describe()
    assert plan.files[0].content is not None  # small: by value
    assert TensorFlowModel(model).describe() == plan
    np.testing.assert_allclose(load(plan).predict(Inputs("single", {"x": ROWS})), model(ROWS, training=False), rtol=1e-5, atol=1e-6)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    model.layers[1].kernel.assign_add(tf.ones((3, 4)))
    assert TensorFlowModel(model).describe().fingerprint != plan.fingerprint


def test_a_large_keras_object_travels_as_a_file() -> None:
    """Over a megabyte it lies in a folder of the driver, once for each fingerprint."""
    model = keras.Sequential([keras.Input((600,)), keras.layers.Dense(600)])
    plan = TensorFlowModel(model).describe()
    path = plan.files[0].path
    assert path is not None
    assert plan.files[0].content is None
    written = Path(path).stat().st_mtime_ns
    assert TensorFlowModel(model).describe().files == plan.files
    assert Path(path).stat().st_mtime_ns == written


def test_a_keras_object_with_own_code_travels() -> None:
    """A class that nobody can import, a function and a lambda: all by value."""

    class Local(Scale):
        pass

    def cube(x: Any) -> Any:
        return x**3

    layers = [Local(2.0), keras.layers.Activation(cube), keras.layers.Lambda(lambda x: x + 1, output_shape=(3,))]
    model = keras.Sequential([keras.Input((3,)), *layers])
    plan = TensorFlowModel(model).describe()
    assert TensorFlowModel(model).describe().fingerprint == plan.fingerprint
    np.testing.assert_allclose(load(plan).predict(Inputs("single", {"x": ROWS})), (ROWS * 2) ** 3 + 1)


def test_a_registered_initializer_of_the_users_own_travels() -> None:
    """Keras asks for it at loading, and a worker has not registered it."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer=Sevens())])
    plan = TensorFlowModel(model).describe()
    assert list(loads(plan.payload, "classes")) == ["sparkinfer_tests>Sevens"]
    np.testing.assert_allclose(load(plan).predict(Inputs("single", {"x": ROWS}))[:, 0], ROWS.sum(axis=1) * 7)


def test_a_keras_object_that_cannot_be_saved_is_refused() -> None:
    """Its class does not say how it was made: the message has the ways out."""

    class Opaque(keras.Model):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.dense = layer

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model = Opaque(keras.layers.Dense(2))
    model(ROWS)
    with pytest.raises(ModelLoadError, match=r"cannot be saved and loaded again.*get_config\(\).*model.export.*PythonModel"):
        TensorFlowModel(model).describe()


def test_a_keras_object_without_weights_is_refused() -> None:
    """A model that was never called would be shipped empty."""
    with pytest.raises(ModelLoadError, match="no weights yet: call it once"):
        TensorFlowModel(keras.Sequential([keras.layers.Dense(2)])).describe()


@pytest.mark.parametrize(
    ("source", "arguments", "error", "text"),
    [
        (tf.Module(), {}, ModelLoadError, "tf.saved_model.save.*PythonModel"),
        (len, {}, ModelLoadError, "expected a path or a Keras model"),
        ("keras", {"signature": "predict"}, ConfigError, "signature='predict' belongs to a SavedModel"),
        ("keras", {"sha256": "0" * 64}, ConfigError, "sha256='0+' belongs to a file"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(source: Any, arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    """Objects of another kind, and arguments that only files or SavedModels have."""
    with pytest.raises(error, match=text):
        TensorFlowModel(small_keras() if source == "keras" else source, **arguments).describe()


def test_another_kind_of_file_is_told_by_what_it_is(tmp_path: Path) -> None:
    """A pickle and an empty folder are named as such; a missing path says what is there."""
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ModelLoadError, match="is a pickle, expected a SavedModel directory"):
        TensorFlowModel(tmp_path / "model.pkl").describe()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match=r"no saved_model\.pb"):
        TensorFlowModel(tmp_path / "empty").describe()
    with pytest.raises(ModelLoadError, match=r"model\.pkl"):
        TensorFlowModel(tmp_path / "model.pk").describe()


# How a Keras model is called


@pytest.mark.parametrize(
    "inputs", [Inputs("positional", {"a": ROWS, "b": ROWS[:, :2].astype(int)}), Inputs("named", {"k": ROWS[:, :2].astype(int), "x": ROWS})]
)
def test_several_inputs_go_in_by_order_or_by_name(inputs: Inputs) -> None:
    """A functional model keeps its own order, whatever the names' order; its outputs have their names."""
    result = load(TensorFlowModel(two_inputs()).describe()).predict(inputs)
    np.testing.assert_allclose(result["sum"], ROWS.sum(axis=1))
    np.testing.assert_array_equal(result["k"], ROWS[:, :2].astype(np.int32) * 2)


def test_a_model_made_with_a_dict_of_inputs_takes_them_by_name() -> None:
    """Its keys are the names, and they have no order."""
    x, k = keras.Input((3,), name="x"), keras.Input((3,), name="k")
    model = load(TensorFlowModel(keras.Model({"x": x, "k": k}, [x - k, x + k])).describe())
    difference, total = model.predict(Inputs("named", {"k": ROWS, "x": ROWS * 2}))
    np.testing.assert_array_equal(difference, ROWS)
    np.testing.assert_array_equal(total, ROWS * 3)
    with pytest.raises(Fault, match="no order"):
        model.predict(Inputs("positional", {"a": ROWS, "b": ROWS}))


class Recorder:
    """A fake that writes down how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        """Write the call down, and give the first input back."""
        self.calls.append((len(args), sorted(kwargs), training))
        return tf.nest.flatten((args, kwargs))[0]


def test_a_model_is_called_in_inference_mode() -> None:
    """training=False is handed over, and the function is traced once for all batch sizes that follow."""
    model = Recorder()
    run = keras_runner(model)
    for rows in (8, 3, 5, 1, 7, 2):
        run("single", {"x": tf.constant(ROWS[:rows])})
    assert {training for _, _, training in model.calls} == {False}
    assert len(model.calls) <= 3


def test_a_subclassed_model_gets_its_inputs_as_its_call_takes_them() -> None:
    """By its own arguments where it has them; else as one list, or one dict."""

    class Pair:
        def call(self, a: Any, b: Any, training: bool = False) -> None: ...

        def __call__(self, *args: Any, training: bool, **kwargs: Any) -> Any:
            return {"args": len(args), "kwargs": len(kwargs)}

    class One:
        def call(self, inputs: Any) -> None: ...

        def __call__(self, inputs: Any, training: bool) -> Any:
            return inputs

    tensors = {"a": tf.constant([1.0]), "b": tf.constant([2.0])}
    assert [int(count) for count in keras_runner(Pair())("positional", tensors).values()] == [2, 0]
    assert [int(count) for count in keras_runner(Pair())("named", tensors).values()] == [0, 2]
    assert [float(value[0]) for value in keras_runner(One())("positional", tensors)] == [1.0, 2.0]
    assert {name: float(value[0]) for name, value in keras_runner(One())("named", tensors).items()} == {"a": 1.0, "b": 2.0}


def test_one_named_input_of_a_subclassed_model_goes_in_as_it_is() -> None:
    """Its name is the user's own, unless the model was built on a dict: then the dict is what it takes."""

    class Plain(keras.Model):
        def call(self, inputs: Any) -> Any:
            return inputs * 2

    class Keyed(keras.Model):
        def call(self, inputs: Any) -> Any:
            return inputs["x"] * 2

    for model, example in [(Plain(), ROWS), (Keyed(), {"x": ROWS})]:
        model(example)
        loaded = load(TensorFlowModel(model).describe())
        np.testing.assert_array_equal(loaded.predict(Inputs("named", {"x": ROWS})), ROWS * 2)


def test_mtcnn_tells_faces_from_other_patches() -> None:
    """A real subclassed model of an installed package, with three outputs: 100 of 100 faces, none of the others."""
    from mtcnn.network.onet import ONet
    from mtcnn.utils.tensorflow import load_weights

    model = ONet()
    model.build()
    model.set_weights(load_weights("onet.lz4"))
    patches = np.load(installed("skimage", "data", "lfw_subset.npy"))
    pictures = [
        Image.fromarray((patch * 255).round().astype("uint8")).resize((48, 48), Image.Resampling.BILINEAR).convert("RGB")
        for patch in patches
    ]
    pixels = (np.stack([np.asarray(picture) for picture in pictures]) - 127.5) / 128
    plan = TensorFlowModel(model).describe()
    assert plan.inputs is None
    box, landmarks, face = load(plan).predict(Inputs("single", {"patch": pixels}))
    assert (box.shape, landmarks.shape, face.shape) == ((200, 4), (200, 10), (200, 2))
    found = face[:, 1] > 0.5
    assert (int(found[:100].sum()), int(found[100:].sum())) == (100, 0)
    np.testing.assert_allclose(face[:5, 1], [0.99957, 1.0, 1.0, 0.99999, 0.98210], atol=1e-4)
    np.testing.assert_allclose(box[0], [0.04228, -0.03573, -0.18345, 0.00641], atol=1e-4)


# Outputs, devices, threads


def fixed(result: Any) -> TensorFlowLoaded:
    """A loaded model that gives ``result``."""
    return TensorFlowLoaded(
        lambda style, tensors: result, ModelPlan(backend="tensorflow", kind="fake", fingerprint="", label="Fake"), "/CPU:0"
    )


def test_outputs_are_numpy_arrays_whatever_their_structure() -> None:
    """Tuples and lists become tuples, mappings dicts without their None; bfloat16 becomes float32."""
    half = tf.constant([1.5], tf.bfloat16)
    first, second = fixed([half, tf.constant(["a"])]).predict(Inputs("single", {"x": ROWS}))
    assert (first.dtype, first.tolist(), second.tolist()) == (np.float32, [1.5], [b"a"])
    assert list(fixed({"a": half, "aux": None}).predict(Inputs("single", {"x": ROWS}))) == ["a"]


def test_an_output_that_is_no_dense_tensor_is_refused() -> None:
    """A ragged tensor has no array form: the message says how to make it dense."""
    with pytest.raises(Fault, match=r"RaggedTensor.*to_tensor") as caught:
        fixed(tf.ragged.constant([[1], [1, 2]])).predict(Inputs("single", {"x": ROWS}))
    assert caught.value.kind is OutputError


def test_a_released_model_lets_go(scorer: Path) -> None:
    """What kept the model is gone, and a call says so."""
    model = load(TensorFlowModel(scorer).describe())
    model.release()
    with pytest.raises(AssertionError, match="was released"):
        model.predict(Inputs("single", {"x": ROWS}))


def test_devices_are_resolved_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Auto takes what is there; a card that is missing, and a word that is no device, are errors."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert [BACKEND.resolve_device(name) for name in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match=r"'cuda', but TensorFlow .* sees no CUDA card"):
        BACKEND.resolve_device("cuda")
    with pytest.raises(ConfigError, match="'gpu', expected 'auto', 'cpu', 'cuda' or"):
        BACKEND.resolve_device("gpu")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["first", "second"])
    assert [BACKEND.resolve_device(name) for name in ("auto", "cuda", "cuda:1")] == ["cuda:0", "cuda:0", "cuda:1"]
    with pytest.raises(ConfigError, match=r"'cuda:2', but TensorFlow .* sees 2 CUDA cards"):
        BACKEND.resolve_device("cuda:2")


def test_threads_that_come_too_late_are_told(scorer: Path) -> None:
    """TensorFlow has run in this process: the same number passes, another is a warning with both."""
    plan = TensorFlowModel(scorer).describe()
    load(plan)
    with pytest.warns(SparkInferWarning, match=rf"threads={THREADS}, so threads=99 comes too late"):
        BACKEND.load(plan, {"model": str(scorer)}, "cpu", 99)


def test_threads_are_set_in_a_fresh_process(scorer: Path) -> None:
    """One thread is enough for the model and for tf.data beside it, and nothing is warned of; cards are to grow before anything has run."""
    code = f"""
import warnings; warnings.simplefilter("error", UserWarning)
from types import SimpleNamespace
import tensorflow as tf
from tensorflow.python.eager import context
tf.config.list_physical_devices = lambda kind: [SimpleNamespace(name="card")]
tf.config.experimental.set_memory_growth = lambda card, enable: print(card.name, "grows", enable, context.context()._initialized)
tf.config.experimental.get_memory_growth = lambda card: True
from sparkinfer.models import TensorFlowModel
from sparkinfer.backends.tensorflow import BACKEND
from sparkinfer.engine.batch import Inputs
plan = TensorFlowModel({str(scorer)!r}).describe()
model = BACKEND.load(plan, {{"model": {str(scorer)!r}}}, "cpu", 1)
print(model.predict(Inputs("single", {{"x": tf.ones((2, 3))}}))["score"].tolist())
print(tf.config.threading.get_intra_op_parallelism_threads())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines() == ["card grows True False", "[[6.0], [6.0]]", "1"], done.stderr


def test_several_columns_for_a_sequential_model_are_refused_on_the_driver() -> None:
    """A Sequential takes one tensor: the message says how to stack columns into it, and no row is read."""
    model = TensorFlowModel(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    with pytest.raises(ConfigError, match=r"takes one input, but 3 came: give one array column, or stack them with preprocess_batch"):
        check_inputs(model.describe(), "positional", ["a", "b", "c"])
    check_inputs(model.describe(), "single", ["x"])
