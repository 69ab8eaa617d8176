"""Each backend's answers are the framework's own to 1e-6, whatever the batches, the read-ahead, the loader processes and the order of rows are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")

ROWS, WIDTH = 101, 6
X = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)


class Case(NamedTuple):
    """A model, and what its framework itself answers for all rows in one call."""

    model: Any
    expected: np.ndarray


def torch_net() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(3)
    nn = torch.nn
    net = nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 3))
    net[1].running_mean.uniform_()
    return net


def torch_case(folder: Path, **said: Any) -> Case:
    """Left in training mode, as users leave them."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    net = torch_net()
    with torch.inference_mode():
        expected = net.eval()(torch.from_numpy(centred(X))).numpy()
    return Case(si.TorchModel(net.train(), **said), expected)


def onnx_case(folder: Path) -> Case:
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'sparkinfer[onnx]'")
    return torch_case(folder, optimize="onnxruntime", example_inputs=X[:2])


def openvino_case(folder: Path) -> Case:
    for package in ("openvino", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'sparkinfer[openvino]'")
    return torch_case(folder, optimize="openvino", example_inputs=X[:2])


def keras_case(folder: Path) -> Case:
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    keras.utils.set_random_seed(3)
    layers = keras.layers
    net = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(32, "tanh"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(3)]
    )
    return Case(si.TensorFlowModel(net), np.asarray(net(centred(X), training=False)))


def saved_model_case(folder: Path) -> Case:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    module = tf.Module()
    module.weight = tf.Variable(np.linspace(-1, 1, WIDTH * 3, dtype=np.float32).reshape(WIDTH, 3))
    serve = tf.function(lambda x: {"y": tf.tanh(x @ module.weight)}, input_signature=[tf.TensorSpec((None, WIDTH), tf.float32, name="x")])
    tf.saved_model.save(module, str(folder), signatures=serve)
    return Case(si.TensorFlowModel(folder), serve(centred(X))["y"].numpy())


def python_case(folder: Path) -> Case:
    weight = np.linspace(-1, 1, WIDTH * 3, dtype=np.float32).reshape(WIDTH, 3)

    def predict(x: np.ndarray) -> np.ndarray:
        return np.tanh(x @ weight)

    return Case(si.PythonModel(lambda: predict), predict(centred(X)))


CASES = {
    "torch": torch_case,
    "onnxruntime": onnx_case,
    "openvino": openvino_case,
    "keras": keras_case,
    "saved model": saved_model_case,
    "python": python_case,
}
SETTINGS: list[dict[str, Any]] = [
    {"batch_size": 1},
    {"batch_size": 7, "prefetch_batches": 0},
    {"batch_size": 64},
    {"batch_size": 1000, "prefetch_batches": 5},
    {"batch_size": 16, "num_workers": 2},
    {"batch_size": 16, "on_error": "null"},
    {"batch_size": 16, "max_in_flight_bytes": 1},
]


def centred(x: np.ndarray) -> np.ndarray:
    """What comes before the model, of a row or of all."""
    return x - np.float32(0.5)


def cut(ids: np.ndarray) -> list[pa.RecordBatch]:
    """Rows in this order, in chunks of uneven sizes, one of them empty."""
    made = pa.RecordBatch.from_pydict({"id": pa.array(ids), "x": pa.array(list(X[ids]), pa.list_(pa.float32()))})
    borders = [0, 1, 1, 14, 60, len(ids)]
    return [made.slice(start, stop - start) for start, stop in pairwise(borders)]


@pytest.mark.parametrize("make", list(CASES.values()), ids=list(CASES))
def test_no_setting_and_no_order_changes_an_answer(make: Callable[[Path], Case], tmp_path: Path) -> None:
    """By each row's id."""
    case = make(tmp_path)
    orders = [np.arange(ROWS), np.random.default_rng(1).permutation(ROWS)]
    for number, said in enumerate(SETTINGS):
        chunks = cut(orders[number % 2])
        scored = si.predict_local(chunks, case.model, inputs="x", outputs="y array<float>", keep=["id"], preprocess=centred, **said)
        rows = [row for chunk in scored for row in chunk.to_pylist()]
        assert [row["id"] for row in rows] == orders[number % 2].tolist(), said
        got = np.array([row["y"] for row in sorted(rows, key=lambda row: row["id"])], np.float32)
        np.testing.assert_allclose(got, case.expected, rtol=0, atol=1e-6, err_msg=str(said))
