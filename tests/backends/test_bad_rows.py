"""``on_error="null"`` in every backend, with and without loader processes: the bad row alone is null, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.exceptions import BadRowsError, ConfigError, PreprocessError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")


def torch_model(folder: Path) -> Any:
    torch = pytest.importorskip("torch")

    class Sum(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if bool((x == 13).any()):
                raise ValueError("thirteen")
            return x.sum(dim=1)

    return si.TorchModel(Sum())


def tensorflow_model(folder: Path) -> Any:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

    class Sum(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32, name="x")])
        def serve(self, x: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_none_equal(x, 13.0, message="thirteen")]):
                return {"y": tf.reduce_sum(x, axis=1)}

    module = Sum()
    tf.saved_model.save(module, str(folder), signatures=module.serve)
    return si.TensorFlowModel(folder)


def python_model(folder: Path | None = None) -> Any:
    def predict(x: np.ndarray) -> np.ndarray:
        if (x == 13).any():
            raise ValueError("thirteen")
        return x.sum(axis=1)

    return si.PythonModel(lambda: predict)


def onnx_model(folder: Path) -> Any:
    torch = pytest.importorskip("torch")
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'sparkinfer[onnx]'")

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("nothing", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            return x.sum(dim=1) + self.nothing[13 * (x == 13).any(dim=1).long()]  # an index that is not there, for a thirteen

    return si.TorchModel(Sum(), optimize="onnxruntime", example_inputs=np.ones((2, 2), np.float32))


MAKERS = {"torch": torch_model, "python": python_model, "tensorflow": tensorflow_model, "onnx": onnx_model}
MODELS = pytest.mark.parametrize("make", list(MAKERS.values()), ids=list(MAKERS))


def parsed(text: str) -> np.ndarray:
    """Two floats of a text: what is no number raises."""
    left, right = text.split()
    return np.array([float(left), float(right)], np.float32)


def scored(texts: list[Any], model: Any, **said: Any) -> pd.DataFrame:
    arguments: dict[str, Any] = {"inputs": "t", "outputs": "y float", "preprocess": parsed, "on_error": "null", "batch_size": 4, **said}
    table = pa.table({"id": range(len(texts)), "t": pa.array(texts, pa.string())})
    return si.predict_local(table, model, **arguments).to_pandas()


@MODELS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_row_is_null_with_its_reason_and_its_neighbours_keep_their_answers(
    make: Callable[[Path], Any], num_workers: int, tmp_path: Path
) -> None:
    """C04, C15: what preprocess refuses, what the model refuses and a null, each told in its stage; nine other rows are right."""
    texts = [f"{number} 1" for number in range(12)]
    texts[2], texts[5], texts[7] = "no number", "13 1", None
    found = scored(texts, make(tmp_path), num_workers=num_workers)
    bad = found[found["error"].notna()]
    assert bad["id"].tolist() == [2, 5, 7]
    assert found["y"].isna().tolist() == found["error"].notna().tolist()
    assert [(one["stage"], one["type"]) for one in bad["error"]][::2] == [("preprocess", "ValueError"), ("decode", "SchemaError")]
    assert bad["error"].iloc[0]["message"].startswith("preprocess raised ValueError: could not convert string to float: 'no' (column 't')")
    assert bad["error"].iloc[1]["stage"] == "predict"
    assert any(word in bad["error"].iloc[1]["message"] for word in ("thirteen", "index = 13"))
    assert bad["error"].iloc[2]["message"] == "the value is null (column 't')"
    good = found[found["error"].isna()]
    assert good["y"].tolist() == [number + 1.0 for number in good["id"]]


def keras_model() -> Any:
    keras = pytest.importorskip("keras", reason="TensorFlow is not installed")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)])
    return si.TensorFlowModel(model)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_tensorflow_feed_leaves_bad_rows_out(num_workers: int) -> None:
    """tf.data carries the good rows only; a batch whose rows are all bad goes around it."""
    texts = ["x", "y", "z", "u", "1 1", "2 1", "no", "3 1", "4 1"]
    found = scored(texts, keras_model(), num_workers=num_workers)
    assert found["error"].notna().tolist() == [True, True, True, True, False, False, True, False, False]
    assert found["y"].fillna(-1).tolist() == [-1, -1, -1, -1, 2, 3, -1, 4, 5]


def test_a_traced_preprocess_that_fails_is_searched_row_by_row() -> None:
    """tf.data fails the whole batch and names no row; the row is found all the same."""
    keras_model()
    import tensorflow as tf

    @tf.function
    def numbers(text: Any) -> Any:
        return tf.strings.to_number(tf.strings.split(text), tf.float32)

    found = scored(["1 1", "no no", "3 1", "4 1", "5 1"], keras_model(), preprocess=numbers)
    assert found["error"].notna().tolist() == [False, True, False, False, False]
    assert found["y"].fillna(-1).tolist() == [2, -1, 4, 5, 6]


@MODELS
def test_without_a_function_the_column_itself_may_be_bad(make: Callable[[Path], Any], tmp_path: Path) -> None:
    """C04: null arrays, nulls inside, and rows of another length than most; on_null='null' is still no error."""
    table = pa.table({"x": pa.array([[1, 2], None, [3, None], [4, 5, 6], [7, 8], [9, 9]], pa.list_(pa.float32()))})
    arguments: dict[str, Any] = {"inputs": "x", "outputs": "y float", "on_error": "null", "batch_size": 8}
    found = si.predict_local(table, make(tmp_path), **arguments).to_pandas()
    assert found["y"].fillna(-1).tolist() == [3, -1, -1, -1, 15, 18]
    assert found["error"].isna().tolist() == [True, False, False, False, True, True]
    passed = si.predict_local(table, make(tmp_path), on_null="null", **arguments).to_pandas()
    assert passed["y"].fillna(-1).tolist() == [3, -1, -1, -1, 15, 18]
    assert passed["error"].notna().tolist() == [False, False, False, True, False, False]


def test_postprocess_and_outputs_have_bad_rows_too() -> None:
    """What postprocess refuses, and a value that does not fit its column, each cost one row."""

    def refuse(y: np.ndarray) -> np.ndarray:
        if (y == 3).any():
            raise KeyError("three")
        return y * 1e6

    data = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4000.0, 5.0]})
    double = si.PythonModel(lambda: lambda x: x)
    found = si.predict_local(data, double, inputs="x", outputs="y int", postprocess=refuse, on_error="null")
    assert found["y"].isna().tolist() == [False, False, True, True, False]
    assert [one["stage"] for one in found["error"] if one is not None] == ["postprocess", "encode"]
    assert found["error"].iloc[2]["type"] == "KeyError"


SIZES: list[int] = []


def refuse_seven_hundred(x: np.ndarray) -> np.ndarray:
    """A function of a batch, which travels by reference, so that the test counts its calls."""
    SIZES.append(len(x))
    if (x == 700).any():
        raise ValueError("seven hundred")
    return x


def test_a_batch_function_is_searched_by_halves() -> None:
    """preprocess_batch does not say which row it was; it is found in few calls."""
    SIZES.clear()
    same = si.PythonModel(lambda: lambda x: x)
    found = si.predict_local(
        pd.DataFrame({"x": np.arange(1024.0)}),
        same,
        inputs="x",
        outputs="y double",
        preprocess_batch=refuse_seven_hundred,
        on_error="null",
        batch_size=1024,
        prefetch_batches=0,
    )
    assert np.flatnonzero(found["y"].isna()).tolist() == [700]
    assert found["y"].dropna().tolist() == [value for value in range(1024) if value != 700]
    assert 10 < len(SIZES) < 30


def test_a_row_that_is_too_long_costs_itself_alone() -> None:
    """Its batch is padded to it; the others are padded anew without it."""

    def short(ids: np.ndarray) -> np.ndarray:
        if ids.shape[1] > 4:
            raise IndexError("at most 4 positions")
        return ids.sum(axis=1)

    table = pa.table({"ids": [[1], [1, 1], [1, 1, 1], [1] * 9, [2, 2]]})
    spec = si.TensorSpec("int64", shape=(None,), pad=0)
    found = si.predict_local(table, si.PythonModel(lambda: short), inputs=("ids", spec), outputs="y long", on_error="null").to_pylist()
    assert [row["y"] for row in found] == [1, 2, 3, None, 4]


@pytest.mark.parametrize(
    ("odd", "row"),
    [
        (lambda x: {"a": x}, 0),
        (lambda x: None, 2),
        (lambda x: "text", 1),
        (lambda x: np.array([1.0, None]), 3),
        (lambda x: np.datetime64(1, "s"), 0),
    ],
    ids=["names", "None", "text", "objects", "dates"],
)
def test_a_row_of_another_kind_than_most_is_the_bad_one(odd: Any, row: int) -> None:
    """Also where it is the batch's first; under 'raise' it is an error of ours."""
    data = pd.DataFrame({"x": np.arange(4.0)})
    arguments: dict[str, Any] = {
        "inputs": "x",
        "outputs": "y double",
        "preprocess": lambda x: odd(x) if x == row else np.array([x, x]),
    }
    total = si.PythonModel(lambda: lambda x: x.sum(axis=1))
    found = si.predict_local(data, total, on_error="null", **arguments)
    assert found["y"].isna().tolist() == [number == row for number in range(4)]
    with pytest.raises(si.SparkInferError):
        si.predict_local(data, total, **arguments)


@pytest.mark.parametrize("on_error", ["raise", "null"])
def test_a_function_that_gives_nothing_is_an_error_of_ours(on_error: str) -> None:
    """An empty dict holds no input."""
    data = pd.DataFrame({"x": [1.0]})
    same = si.PythonModel(lambda: lambda x: x)
    arguments: dict[str, Any] = {"inputs": "x", "outputs": "y double", "preprocess": lambda x: {}, "on_error": on_error}
    if on_error == "raise":
        with pytest.raises(PreprocessError, match="preprocess gave an empty dict, expected at least one input"):
            si.predict_local(data, same, **arguments)
    else:
        assert si.predict_local(data, same, **arguments)["error"].iloc[0]["stage"] == "preprocess"


def test_the_limits_end_a_job_that_goes_wrong() -> None:
    """max_errors by number, max_error_fraction by share of the rows seen; the message has figures, limit and the last bad row."""
    texts = ["1 1", "no", "2 1", "no", *["3 1"] * 96]
    assert len(scored(texts, python_model(), max_errors=2)) == 100
    with pytest.raises(
        BadRowsError,
        match=r"2 of the first 4 rows are bad, more than max_errors=1 allows.*ValueError in preprocess, at .*row 3",
    ):
        scored(texts, python_model(), max_errors=1)
    assert len(scored(texts, python_model(), max_error_fraction=0.02)) == 100
    with pytest.raises(BadRowsError, match=r"2 of the first 100 rows .* more than max_error_fraction=0.019 allows"):
        scored(texts, python_model(), max_error_fraction=0.019)
    with pytest.raises(ConfigError, match="max_errors=1 counts bad rows, but on_error='raise'"):
        scored(texts, python_model(), max_errors=1, on_error="raise")
    with pytest.raises(ConfigError, match="max_error_fraction is 2, expected a number from 0 to 1"):
        scored(texts, python_model(), max_error_fraction=2)


def test_raise_is_still_the_default() -> None:
    """C15: the first bad row ends the job, with its place and key."""
    with pytest.raises(PreprocessError, match=r"could not convert string to float.*row 2 \(id=2\)"):
        scored(["1 1", "2 1", "no 1", "no 2"], python_model(), on_error="raise", key="id")


@pytest.mark.parametrize(
    ("breaks", "told"),
    [
        ({"model": lambda x: x[:1]}, "expected 4 rows, found 1"),
        ({"model": lambda x: (x, x)}, "declared 1 output column"),
        ({"postprocess": lambda y: y[:2]}, "expected 4 rows, found 2"),
        ({"preprocess_batch": lambda x: x[:3]}, "was given 4 rows and gave back 3 rows"),
    ],
    ids=["model", "outputs", "postprocess", "preprocess_batch"],
)
def test_a_function_that_breaks_its_contract_has_no_bad_rows(breaks: dict[str, Any], told: str) -> None:
    """C18: row by row it would seem right, and a mean over the batch would be a wrong answer: the job ends, on_error='null' or not."""
    said = dict(breaks)
    function = said.pop("model", lambda x: x)
    with pytest.raises(si.SparkInferError, match=told):
        si.predict_local(
            pd.DataFrame({"x": np.arange(4.0)}), si.PythonModel(lambda: function), inputs="x", outputs="y double", on_error="null", **said
        )
