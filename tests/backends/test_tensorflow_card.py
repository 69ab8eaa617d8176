"""What a card would change for TensorFlow, as far as it can be run without one: what is copied ahead, precision, full batches, memory growth."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("tensorflow", reason="the TensorFlow backend needs TensorFlow")

import keras
import tensorflow as tf

import sparkinfer as si
from sparkinfer.backends import tensorflow_feed, tensorflow_setup
from sparkinfer.backends.tensorflow import BACKEND, TensorFlowLoaded
from sparkinfer.backends.tensorflow_precision import checked_precision, computes
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.batch import Batch, Inputs
from sparkinfer.engine.contracts import ModelPlan
from sparkinfer.engine.prepare import Binding, Prepare
from sparkinfer.exceptions import ConfigError, PreprocessError, SparkInferWarning
from sparkinfer.pickling import dumps

if TYPE_CHECKING:
    from pathlib import Path

# Keras 3.15 saves its variables by a call that NumPy 2 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")

PIXELS = np.arange(10 * 4, dtype=np.uint8).reshape(10, 4)
PICTURES = pa.table({"x": list(PIXELS)})
BYTES = ("x", si.TensorSpec("uint8", (4,)))
SEEN: list[tf.DType] = []


@pytest.fixture(scope="module")
def net() -> keras.Model:
    """A network of floats."""
    keras.utils.set_random_seed(0)
    x = keras.Input((4,), name="x")
    return keras.Model(x, keras.layers.Dense(2)(keras.layers.Dense(8, activation="relu")(x)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel that was traced for batches of four rows."""

    class Sum(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((4, 4), tf.float32, name="x")])
        def total(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": tf.reduce_sum(x, axis=1)}

    path = tmp_path_factory.mktemp("saved")
    module = Sum()
    tf.saved_model.save(module, str(path), signatures=module.total)
    return path


def score(model: Any, **said: Any) -> pa.Table:
    arguments = {"inputs": BYTES, "outputs": "y array<float>", "batch_size": 4, "device": "cpu", "keep": [], **said}
    return si.predict_local(PICTURES, model, **arguments)


def answers(scored: pa.Table) -> np.ndarray:
    return np.array(scored["y"].to_pylist())


def by_hand(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / 255


# --- preprocess_on_device -----------------------------------------------------------------------------------------------


def scale(x: tf.Tensor) -> tf.Tensor:
    SEEN.append(x.dtype)
    return tf.cast(x, tf.float32) / 255


def test_bytes_stay_bytes_until_they_are_there(net: keras.Model) -> None:
    """The function gets what the column holds, and the model what it gives; a tf.function likewise."""
    SEEN.clear()
    here = answers(score(si.TensorFlowModel(net), inputs="x", preprocess_batch=by_hand))
    for function in (scale, tf.function(scale, autograph=False, reduce_retracing=True)):
        np.testing.assert_allclose(answers(score(si.TensorFlowModel(net), preprocess_on_device=function)), here, atol=1e-6)
    assert set(SEEN) == {tf.dtypes.uint8}


def broken(x: tf.Tensor) -> tf.Tensor:
    raise ValueError("not today")


def half(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)[:, :2]


def test_what_goes_wrong_there_is_told(net: keras.Model) -> None:
    """What it raises in its own name, and a shape that the model does not take as the model's."""
    with pytest.raises(PreprocessError, match="preprocess_on_device raised ValueError: not today"):
        score(si.TensorFlowModel(net), preprocess_on_device=broken)
    with pytest.raises(si.SchemaError, match=r"takes the shape \(rows, 4\), but \(rows, 2\) came"):
        score(si.TensorFlowModel(net), preprocess_on_device=half)


# --- full batches -------------------------------------------------------------------------------------------------------


def test_a_signature_for_one_batch_size_gets_full_batches(saved: Path) -> None:
    """Ten rows in batches of four; another batch size is refused on the driver."""
    model = si.TensorFlowModel(saved)
    assert score(model, outputs="y float")["y"].to_pylist() == PIXELS.sum(axis=1).tolist()
    with pytest.raises(ConfigError, match="exported for batches of exactly 4, and batch_size is 64: say batch_size=4, or export it"):
        score(model, outputs="y float", batch_size=64)


def test_xla_asks_for_full_batches() -> None:
    """It compiles for each number of rows; TensorFlow's own graphs take any."""
    plans = [ModelPlan(backend="tensorflow", kind="fake", fingerprint="", label="m", options=one) for one in ({"optimize": "xla"}, {})]
    assert [TensorFlowLoaded(lambda style, tensors: tensors, plan, "/CPU:0").retraces for plan in plans] == [True, False]


# --- precision ----------------------------------------------------------------------------------------------------------


def test_bf16_computes_in_half_width_and_gives_floats(net: keras.Model) -> None:
    """Another model for the workers' caches, within bfloat16's 8 bits of the model's own answers; the user's model stays as it is."""
    said = {"inputs": "x", "preprocess_batch": by_hand}
    exact, rounded, again = (answers(score(si.TensorFlowModel(net), precision=one, **said)) for one in ("fp32", "bf16", "fp32"))
    assert 0 < np.abs(exact - rounded).max() < 0.05
    np.testing.assert_array_equal(exact, again)
    assert {layer.compute_dtype for layer in net.layers} == {"float32"}


def test_every_kind_of_layer_takes_it() -> None:
    """Convolutions, normalisations, attention, a recurrent layer and ids, with an operation beside the layers."""
    keras.utils.set_random_seed(0)
    image, ids = keras.Input((8, 8, 3), name="image"), keras.Input((5,), dtype="int32", name="ids")
    seen = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, activation="relu")(image))
    read = keras.layers.LayerNormalization()(keras.layers.Embedding(10, 4)(ids))
    read = keras.layers.LSTM(4)(keras.layers.MultiHeadAttention(2, 2)(read, read))
    both = keras.ops.concatenate([keras.layers.GlobalAveragePooling2D()(seen), read], axis=1) * 2
    model = si.TensorFlowModel(keras.Model([image, ids], keras.layers.Dense(2)(both)))
    chance = np.random.default_rng(0)
    table = pa.table({"image": list(chance.normal(size=(6, 192)).astype("float32")), "ids": list(chance.integers(0, 10, (6, 5)))})
    said: dict[str, Any] = {"inputs": {"image": ("image", si.TensorSpec("float32", (8, 8, 3))), "ids": "ids"}, "outputs": "y array<float>"}
    exact, rounded = (answers(si.predict_local(table, model, device="cpu", precision=one, **said)) for one in ("fp32", "bf16"))
    assert 0 < np.abs(exact - rounded).max() < 0.1


def test_what_a_model_or_a_device_cannot_have_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the driver where the model tells, on the worker where the device does."""
    double = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype="float64")])
    assert computes(double) == ("float64",)
    with pytest.raises(ConfigError, match="computes in float64, expected float32: leave precision out"):
        score(si.TensorFlowModel(double), precision="bf16")
    with pytest.raises(ConfigError, match="is a SavedModel, whose graph has its numbers written into it"):
        score(si.TensorFlowModel(saved), precision="bf16")
    with pytest.raises(ConfigError, match="precision is 'fp16', and the model runs on 'cpu', expected a CUDA card: take 'bf16' there"):
        checked_precision("fp16", "cpu")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["old", "new"])
    capability = {"old": (7, 5), "new": (9, 0)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda card: {"compute_capability": capability[card]})
    assert checked_precision("bf16", "cuda:1") == "bf16"
    with pytest.raises(ConfigError, match="the card 'cuda:0' is older than Ampere, the first to have it: take 'fp16'"):
        checked_precision("bf16", "cuda:0")


# --- ahead of the model -------------------------------------------------------------------------------------------------


def double(x: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    return (x * 2, *others)


@pytest.mark.parametrize("function", [None, double])
@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_floats_and_bytes_are_copied_ahead(monkeypatch: pytest.MonkeyPatch, function: Any, prefetch_batches: int) -> None:
    """By the thread that reads ahead, in order; text and wide integers stay on the host, and so does all where nothing is to be ahead."""
    copied: list[tuple[str, str, str]] = []

    def copy(tensor: tf.Tensor, place: str) -> tf.Tensor:
        copied.append((tensor.dtype.name, place, threading.current_thread().name))
        return tensor

    monkeypatch.setattr(tensorflow_feed, "_copied", copy)
    columns = {"x": [1.0, 2.0], "ids": [1, 2], "small": pa.array([3, 4], pa.uint8()), "text": ["a", "b"]}
    source = [Batch(number, pa.RecordBatch.from_pydict(columns), range(2)) for number in range(3)]
    prepare = Prepare(
        style="positional",
        bindings=tuple(Binding(name, name) for name in columns),
        function=b"" if function is None else dumps(function, "preprocess_batch"),
    )
    with BACKEND.feed(iter(source), prepare, InferenceConfig(prefetch_batches=prefetch_batches), "cuda:1") as fed:
        came = [(item.batch.index, item.inputs.arrays["x"].numpy().tolist()) for item in fed if isinstance(item.inputs, Inputs)]
    assert came == [(number, [1.0, 2.0] if function is None else [2.0, 4.0]) for number in range(3)]
    expected = [(dtype, "/GPU:1", "sparkinfer-read-ahead") for dtype in ("float64", "uint8")] * 3
    assert copied == (expected if prefetch_batches else [])
    assert not [thread.name for thread in threading.enumerate() if thread.name == "sparkinfer-read-ahead"]


def test_what_finds_no_room_on_a_card_stays_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running ahead must not end a partition: the model's own call is what is cut in halves where memory is short."""

    def full(tensor: tf.Tensor) -> tf.Tensor:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(tf, "identity", full)
    tensor = tf.constant([1.0])
    assert tensorflow_feed._copied(tensor, "/CPU:0") is tensor


# --- memory growth ------------------------------------------------------------------------------------------------------


def test_cards_grow_unless_it_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each card is asked for, also behind one that refuses; the refusal is told where a model is loaded."""
    cards = [SimpleNamespace(name=f"GPU:{number}") for number in range(2)]
    asked: list[str] = []

    def grow(card: Any, *, enable: bool) -> None:
        asked.append(card.name)
        if card.name == "GPU:0":
            raise RuntimeError("Physical devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: cards)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", grow)
    monkeypatch.setattr(tf.config.experimental, "get_memory_growth", lambda card: card.name == "GPU:1")
    tensorflow_setup.let_cards_grow()
    assert asked == ["GPU:0", "GPU:1"]
    with pytest.warns(SparkInferWarning, match="memory growth of GPU:0=off, so memory growth of GPU:0=on comes too late"):
        tensorflow_setup.tell_full_cards()


@pytest.mark.gpu
@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="needs an NVIDIA card and a TensorFlow with CUDA")
@pytest.mark.parametrize(("precision", "apart"), [("fp32", 1e-2), ("bf16", 0.1), ("fp16", 0.05)])
def test_a_card_answers_as_the_cpu_does(net: keras.Model, precision: Any, apart: float) -> None:
    """Copied ahead as bytes, scaled there, computed there."""
    on_card, on_cpu = (
        answers(score(si.TensorFlowModel(net), preprocess_on_device=scale, device=device, precision=said))
        for device, said in (("cuda:0", precision), ("cpu", "fp32"))
    )
    assert np.abs(on_card - on_cpu).max() < apart
