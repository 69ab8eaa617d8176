"""The loop without Spark: the answers are the model's own, whatever the chunks, the batches and the nulls are."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparkinfer as si
from sparkinfer.testing import EchoModel, Ledger

double = si.PythonModel(lambda: lambda x: 2 * x)
echo = si.PythonModel(EchoModel())


def batches(table: pa.Table, sizes: list[int]) -> Iterator[pa.RecordBatch]:
    """Cut a table into record batches of these sizes; what is left comes last."""
    start = 0
    for size in [*sizes, table.num_rows]:
        yield table.slice(start, size).combine_chunks().to_batches()[0] if table.slice(start, size).num_rows else empty(table)
        start += size


def empty(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=table.schema)


def pred(data: Any, model: Any, outputs: str = "pred double", **said: Any) -> list[Any]:
    """Score an Arrow table and give the predictions."""
    scored: Any = si.predict_local(data, model, outputs=outputs, **said)
    return list(scored.column("pred").to_pylist())


# --- the property ------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    values=st.lists(st.none() | st.floats(allow_nan=False, width=32), max_size=40),
    sizes=st.lists(st.integers(0, 9), max_size=8),
    batch_size=st.integers(1, 12),
    prefetch_batches=st.sampled_from([0, 1, 4]),
    mode=st.sampled_from(["plain", "preprocess", "preprocess_batch", "postprocess"]),
)
def test_predict_local_is_the_function_itself(
    values: list[float | None], sizes: list[int], batch_size: int, prefetch_batches: int, mode: str
) -> None:
    """Each row gets f of its own value and each null a null, in order, with the chunks' own borders."""
    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "x": pa.array(values, pa.float64())})
    given = list(batches(table, sizes))
    functions = {
        "plain": {"model": double},
        "preprocess": {"model": echo, "preprocess": lambda x: 2 * x},
        "preprocess_batch": {"model": echo, "preprocess_batch": lambda x: 2 * x},
        "postprocess": {"model": echo, "postprocess": lambda y: 2 * y},
    }[mode]
    scored = list(
        si.predict_local(
            given, inputs="x", outputs="y double", on_null="null", batch_size=batch_size, prefetch_batches=prefetch_batches, **functions
        )
    )
    assert [chunk.num_rows for chunk in scored] == [chunk.num_rows for chunk in given]
    rows = [row for chunk in scored for row in chunk.to_pylist()]
    assert rows == [{"id": i, "x": x, "y": None if x is None else 2 * x} for i, x in enumerate(values)]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("sparkinfer")]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("prefetch_batches", [0, 1, 4])
def test_prefetch_and_loader_processes_change_no_answer(prefetch_batches: int, num_workers: int) -> None:
    """21 rows in batches of 4, prepared on one thread, ahead, or in two processes."""
    table = pa.table({"x": [number * 0.5 for number in range(21)]})
    settings = {"prefetch_batches": prefetch_batches, "num_workers": num_workers, "batch_size": 4}
    assert pred(table, double, inputs="x", preprocess=lambda x: x + 1, **settings) == [number + 2.0 for number in range(21)]


# --- batches (C01, C02) ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predict", "outputs", "expected"),
    [
        (lambda x: x * 2, "pred double", [float(i) for i in range(21)]),
        (lambda x: (x * 2)[:, None], "pred double", [float(i) for i in range(21)]),
        (lambda x: x * 2, "pred float", [float(i) for i in range(21)]),
        (lambda x: np.stack([x, x, x * 2], axis=1), "pred array<float>", [[i / 2, i / 2, float(i)] for i in range(21)]),
        (lambda x: [[value] for value in x], "pred array<double>", [[i / 2] for i in range(21)]),
        (lambda x: np.stack([x, x], axis=1)[:, None], "pred array<array<double>>", [[[i / 2, i / 2]] for i in range(21)]),
    ],
)
def test_a_last_batch_of_one_row_changes_neither_type_nor_rank(predict: Any, outputs: str, expected: list[Any]) -> None:
    """C01: 21 rows in batches of 10."""
    table = pa.table({"x": [i * 0.5 for i in range(21)]})
    scored: Any = si.predict_local(table, si.PythonModel(lambda: predict), inputs="x", outputs=outputs, batch_size=10)
    assert scored.column("pred").to_pylist() == expected
    assert scored.num_rows == 21


@pytest.mark.parametrize("make", [lambda frame: frame, pa.Table.from_pandas])
def test_no_rows_give_the_declared_columns_and_load_nothing(make: Any, ledger: Ledger) -> None:
    """C02: a DataFrame and a table without rows."""
    data = make(pd.DataFrame({"x": np.array([], dtype="float64")}))
    scored: Any = si.predict_local(data, si.PythonModel(EchoModel(ledger)), inputs="x", outputs="label string, score float")
    assert len(scored) == 0
    assert list(getattr(scored, "column_names", scored.columns)) == ["x", "label", "score"]
    assert ledger.events() == []


# --- large rows (C41) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1])
def test_one_row_of_300_megabytes_goes_through(num_workers: int) -> None:
    """Among small ones, in a batch that crosses chunks, where a hundredth of it may be on its way: every row is scored, and comes back as it was."""
    large = pa.py_buffer(np.full(300_000_000, 7, np.uint8))
    chunks = [
        pa.RecordBatch.from_arrays([pa.array([b"ab"])], ["content"]),
        pa.RecordBatch.from_arrays(
            [pa.BinaryArray.from_buffers(pa.binary(), 1, [None, pa.array([0, large.size], pa.int32()).buffers()[1], large])], ["content"]
        ),
        pa.RecordBatch.from_arrays([pa.array([b"c", b"def"])], ["content"]),
    ]
    model = si.PythonModel(lambda: lambda x: x)
    said: dict[str, Any] = {"batch_size": 3, "num_workers": num_workers, "max_in_flight_bytes": 3_000_000}
    scored = list(si.predict_local(chunks, model, inputs="content", outputs="length long", preprocess=len, **said))
    assert [length for chunk in scored for length in chunk.column("length").to_pylist()] == [2, 300_000_000, 1, 3]
    assert [chunk.column("content") for chunk in scored] == [chunk.column("content") for chunk in chunks]


# --- shapes (C08, C09) -------------------------------------------------------------------------------------------------


def summed(x: np.ndarray) -> np.ndarray:
    """The sum over all axes but the rows', of one contiguous array of numbers."""
    assert x.dtype == np.float64
    assert x.flags.c_contiguous
    return x.sum(axis=tuple(range(1, x.ndim)))


FLAT = [[float(i), i + 1.0, i + 2.0, i + 3.0] for i in range(5)]


@pytest.mark.parametrize(
    ("values", "spec", "shape"),
    [
        (FLAT, None, (4,)),
        (FLAT, si.TensorSpec("float64", (2, 2)), (2, 2)),
        (FLAT, si.TensorSpec(shape=(None, 2)), (2, 2)),
        ([[row[:2], row[2:]] for row in FLAT], None, (2, 2)),
        ([[[row[:2], row[2:]]] for row in FLAT], None, (1, 2, 2)),
    ],
)
def test_an_array_column_is_one_tensor(values: list[Any], spec: si.TensorSpec | None, shape: tuple[int, ...]) -> None:
    """C08: flat, declared and nested arrays give (rows, *shape) in row-major order."""
    table = pa.table({"x": values})
    bound = "x" if spec is None else ("x", spec)
    assert pred(table, si.PythonModel(lambda: summed), inputs=bound, batch_size=3) == [4 * i + 6.0 for i in range(5)]
    shapes = si.PythonModel(lambda: lambda x: [",".join(map(str, x.shape[1:]))] * len(x))
    assert pred(table, shapes, "pred string", inputs=bound, batch_size=3) == [",".join(map(str, shape))] * 5
    if shape == (2, 2):
        upper_right = si.PythonModel(lambda: lambda x: x[:, 0, 1])
        assert pred(table, upper_right, inputs=bound) == [row[1] for row in FLAT]


IDS = pa.table({"ids": [[1, 1], [2], [3, 3, 3]]})


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_padded_rows_and_their_mask_reach_the_model(batch_size: int) -> None:
    """C09: the answers do not depend on which rows share a batch."""
    masked = si.PythonModel(lambda: lambda ids, mask: (ids * mask).sum(axis=1) * 100 + mask.sum(axis=1))
    spec = si.TensorSpec("int64", pad=7, mask="mask")
    for inputs in [("ids", spec), {"ids": ("ids", spec)}]:
        assert pred(IDS, masked, "pred long", inputs=inputs, batch_size=batch_size) == [202, 201, 903]
    short = si.TensorSpec("int64", pad=0, max_length=2, mask="mask")
    assert pred(IDS, masked, "pred long", inputs=("ids", short), batch_size=batch_size) == [202, 201, 602]
    lengths = si.PythonModel(lambda: lambda ids, n: n)
    assert pred(IDS, lengths, "pred long", inputs=("ids", si.TensorSpec(pad=0, lengths="n")), batch_size=batch_size) == [2, 1, 3]


def test_rows_of_unequal_length_without_padding_name_the_place() -> None:
    """C09: column, row and both lengths, and how to ask for padding."""
    with pytest.raises(si.SchemaError, match=r"expected 2, found 1\..*TensorSpec\(\.\.\., pad=0\).*At column 'ids', batch 0, row 1"):
        si.predict_local(IDS, echo, inputs="ids", outputs="pred array<long>")


# --- nulls (C04, C06) --------------------------------------------------------------------------------------------------

told_text = si.PythonModel(lambda: lambda texts: ["NULL" if text is None else f"{type(text).__name__}:{text}" for text in texts])


@pytest.mark.parametrize("values", [["a", "b", None], [None, None]])
def test_a_null_text_has_three_outcomes(values: list[str | None]) -> None:
    """C06: real None, a null prediction, or an error; never the words None or nan."""
    table = pa.table({"t": pa.array(values, pa.string())})
    expected = [f"str:{value}" if value else None for value in values]
    assert pred(table, told_text, "pred string", inputs="t", on_null="pass") == [value or "NULL" for value in expected]
    assert pred(table, told_text, "pred string", inputs="t", on_null="null") == expected
    with pytest.raises(si.SchemaError, match=f"the value is null, at column 't', row {values.index(None)}"):
        pred(table, told_text, "pred string", inputs="t")


@pytest.mark.parametrize(
    ("values", "expected", "told"),
    [
        ([None, [1.0, 2.0], [3.0, 4.0]], [None, 3.0, 7.0], "the value is null, at column 'x', row 0"),
        ([[1.0, 2.0], None, [3.0, 4.0]], [3.0, None, 7.0], "the value is null, at column 'x', row 1"),
        ([[1.0, 2.0], [1.0, None], [3.0, 4.0]], [3.0, None, 7.0], "there is a null inside the array, at column 'x', row 1"),
        ([None, None], [None, None], "the value is null, at column 'x', row 0"),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_a_null_array_is_its_own_rows_matter(values: list[Any], expected: list[Any], told: str, batch_size: int) -> None:
    """C04: the others get their right values; by default the model is not called."""
    table = pa.table({"x": pa.array(values, pa.list_(pa.float32()))})
    total = si.PythonModel(lambda: lambda x: x.sum(axis=1))
    assert pred(table, total, inputs="x", on_null="null", batch_size=batch_size) == expected
    with pytest.raises(si.SchemaError, match=told):
        pred(table, total, inputs="x", batch_size=batch_size)


def test_a_null_in_any_of_several_inputs_counts() -> None:
    """And the error names the one that is null."""
    table = pa.table({"a": [1.0, None, 3.0], "b": [1.0, 2.0, None]})
    total = si.PythonModel(lambda: lambda a, b: a + b)
    assert pred(table, total, inputs=["a", "b"], on_null="null") == [2.0, None, None]
    with pytest.raises(si.SchemaError, match="at column 'a', row 1"):
        pred(table, total, inputs=["a", "b"])
    with pytest.raises(si.SchemaError, match="at column 'b', row 0"):
        pred(table.slice(2), total, inputs=["a", "b"])


def test_passed_nulls_are_nan_in_floats_and_refused_in_integers() -> None:
    """An integer has no place for a null, and no integer is made a float without a word."""
    nan = si.PythonModel(lambda: np.isnan)
    assert pred(pa.table({"x": [1.0, None]}), nan, "pred boolean", inputs="x", on_null="pass") == [False, True]
    with pytest.raises(si.SchemaError, match=r"a null cannot be handed to a model as int64.*At column 'x', batch 0, row 1"):
        pred(pa.table({"x": [1, None]}), echo, inputs="x", on_null="pass")


def test_integers_beside_nulls_stay_exact() -> None:
    """2**53 + 1 has no double, in an Arrow table and in pandas alike."""
    big = 2**53 + 1
    assert pred(pa.table({"x": [big, None]}), echo, "pred long", inputs="x", on_null="null") == [big, None]
    frame = pd.DataFrame({"x": pd.array([big, None], dtype="Int64")})
    scored: Any = si.predict_local(frame, echo, inputs="x", outputs="pred long", on_null="null")
    assert scored["pred"].tolist() == [big, None]


# --- pandas ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_nan_in_a_numpy_float_column_is_a_number(dtype: str) -> None:
    """pandas has no null there: the model gets NaN and gives NaN."""
    frame = pd.DataFrame({"x": np.array([1.0, np.nan], dtype=dtype)})
    scored: Any = si.predict_local(frame, si.PythonModel(lambda: lambda x: [str(value) for value in x]), inputs="x", outputs="y string")
    assert scored["y"].tolist() == ["1.0", "nan"]
    assert scored["x"].dtype == dtype


def test_a_nan_inside_an_array_is_a_number() -> None:
    """Lists and arrays in an object column keep their NaN, and a row that is None or NaN is a null."""
    frame = pd.DataFrame({"x": [[1.0, np.nan], np.array([1.0, 2.0]), None, np.nan]})
    scored: Any = si.predict_local(
        frame, si.PythonModel(lambda: lambda x: [str(row.sum()) for row in x]), inputs="x", outputs="y string", on_null="null"
    )
    assert scored["y"].tolist() == ["nan", "3.0", None, None]


@pytest.mark.parametrize(
    "values",
    [
        pd.Series(["a", None]),
        pd.Series(["a", np.nan]),
        pd.Series(["a", None], dtype="string"),
        pd.Series([1, None], dtype="Int64"),
        pd.Series([True, None], dtype="boolean"),
        pd.Series([1.0, None], dtype="Float64"),
        pd.Series([pd.Timestamp("2026-01-01"), pd.NaT]),
        pd.Series([Decimal("1.5"), None]),
        pd.Series(["a", None], dtype="category"),
    ],
    ids=lambda values: str(values.dtype),
)
def test_a_missing_value_elsewhere_in_pandas_is_a_null(values: pd.Series[Any]) -> None:
    """Text, nullable types, dates, decimals and categories."""
    scored: Any = si.predict_local(
        pd.DataFrame({"x": values}), si.PythonModel(lambda: lambda x: np.ones(len(x))), inputs="x", outputs="y int", on_null="null"
    )
    assert scored["y"].tolist() == [1, None]
    pd.testing.assert_series_equal(scored["x"], values.rename("x"))


def test_a_kept_column_comes_back_as_it_was() -> None:
    """Index, dtypes, and names that are no text; only what keep names."""
    frame = pd.DataFrame({0: [1.0, 2.0], "c": pd.Categorical(["u", "v"]), "dt": pd.to_datetime(["2026-01-01", "2026-01-02"])}, index=[7, 7])
    scored: Any = si.predict_local(frame, double, inputs="0", outputs="y double")
    pd.testing.assert_frame_equal(scored, frame.assign(y=[2.0, 4.0]))
    one: Any = si.predict_local(frame, double, inputs="0", outputs="y double", keep="dt")
    pd.testing.assert_frame_equal(one, frame[["dt"]].assign(y=[2.0, 4.0]))
    none: Any = si.predict_local(frame, double, inputs="0", outputs="y double", keep=[])
    assert list(none.columns) == ["y"]


def test_a_pandas_column_of_mixed_types_is_refused_by_name() -> None:
    """And one that is there twice."""
    with pytest.raises(si.SchemaError, match=r"the column 'x' cannot be turned into Arrow .* give all its values one type"):
        si.predict_local(pd.DataFrame({"x": [1.0, "a"]}), double, inputs="x", outputs="y double")
    with pytest.raises(si.SchemaError, match="names the column 'x', which is there 2 times"):
        si.predict_local(pd.DataFrame([[1.0, 2.0]], columns=["x", "x"]), double, inputs="x", outputs="y double")


# --- what goes in ------------------------------------------------------------------------------------------------------


def test_what_comes_back_is_what_went_in() -> None:
    """A frame, a table, and for anything else an iterator of record batches, scored as it is asked for."""
    table = pa.table({"x": [1.0, 2.0]})
    assert isinstance(si.predict_local(table.to_pandas(), double, inputs="x", outputs="y double"), pd.DataFrame)
    assert isinstance(si.predict_local(table, double, inputs="x", outputs="y double"), pa.Table)
    for data in (table.to_batches(), iter(table.to_batches()), table.to_reader(), table.to_batches()[0]):
        scored: Any = si.predict_local(data, double, inputs="x", outputs="y double")
        assert next(scored).to_pydict() == {"x": [1.0, 2.0], "y": [2.0, 4.0]}
        assert next(scored, None) is None
    none = pa.RecordBatchReader.from_batches(table.schema, [])
    assert list(si.predict_local(none, double, inputs="x", outputs="y double")) == []


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([], "data is list and gives nothing, expected a pandas DataFrame, an Arrow table, or at least one record batch"),
        ([1.0], "data is list and gives float"),
        ("table.parquet", "data is str and gives str"),
        (5, "data is int and gives nothing"),
        (double, "data is PythonModel and gives nothing"),
    ],
)
def test_what_is_no_data_is_refused(data: Any, told: str) -> None:
    """Also the model, where the two arguments were swapped."""
    with pytest.raises(si.SchemaError, match=told):
        si.predict_local(data, double, inputs="x", outputs="y double")


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        ({"inputs": "z"}, si.SchemaError, "inputs= names the column 'z', which is not there"),
        ({"keep": ["idd"]}, si.SchemaError, "keep= names the column 'idd', which is not there. Did you mean 'id'?"),
        ({"key": "idd"}, si.SchemaError, "key= names the column 'idd', which is not there. Did you mean 'id'?"),
        ({"outputs": "X double"}, si.SchemaError, "outputs declares 'X', but 'x' is a kept column"),
        ({"bath_size": 3}, si.ConfigError, "'bath_size' is neither an argument nor a setting. Did you mean 'batch_size'?"),
        ({"config": {"batch_size": 3}}, si.ConfigError, "config is dict, expected InferenceConfig"),
        ({"batch_size": 0}, si.ConfigError, "batch_size is 0, expected at least 1"),
        ({"device": "cuda"}, si.ConfigError, "device is 'cuda', but a PythonModel puts itself on its device"),
    ],
)
def test_a_wrong_argument_is_refused_before_the_model_is_loaded(
    said: dict[str, Any], error: type[Exception], told: str, ledger: Ledger
) -> None:
    """With the nearest right one."""
    model = si.PythonModel(EchoModel(ledger))
    with pytest.raises(error, match=told):
        si.predict_local(pa.table({"x": [1.0], "id": [1]}), model, **{"inputs": "x", "outputs": "y double", **said})
    assert ledger.events() == []


def test_overrides_beat_the_config(ledger: Ledger) -> None:
    """batch_size by name, over the config's."""
    table = pa.table({"x": [1.0] * 5})
    config = si.InferenceConfig(batch_size=4)
    model = si.PythonModel(EchoModel(ledger))
    si.predict_local(table, model, inputs="x", outputs="y double", config=config)
    si.predict_local(table, model, inputs="x", outputs="y double", config=config, batch_size=2)
    assert ledger.rows("predict") == [4, 1, 2, 2, 1]


# --- results (C20) -----------------------------------------------------------------------------------------------------


LABELS, SCORES = np.array([2, 0]), np.array([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
HEADS = [{"label": 2, "scores": [0.0, 0.25, 0.75]}, {"label": 0, "scores": [1.0, 0.0, 0.0]}]


@pytest.mark.parametrize(
    "result",
    [
        {"label": LABELS, "scores": SCORES},
        {"scores": SCORES, "label": LABELS},
        {"label": LABELS, "scores": SCORES, "more": LABELS},
        (LABELS, SCORES),
        [LABELS, SCORES],
        HEADS,
        pd.DataFrame({"label": LABELS, "scores": list(SCORES)}),
    ],
    ids=["dict", "another order", "one more", "tuple", "list of arrays", "list of dicts", "pandas"],
)
def test_several_heads_fill_several_columns_or_a_struct(result: Any) -> None:
    """C20: by name or in order, from the model and from postprocess; what was not declared is left out by its name."""
    table = pa.table({"x": [1.0, 2.0]})
    heads = si.PythonModel(lambda: lambda x: result)
    columns: Any = si.predict_local(table, heads, inputs="x", outputs="label int, scores array<float>", keep=[])
    assert columns.to_pylist() == HEADS
    assert pred(table, heads, "pred struct<label:int, scores:array<float>>", inputs="x") == HEADS
    after: Any = si.predict_local(table, echo, inputs="x", outputs="label int, scores array<float>", keep=[], postprocess=lambda y: result)
    assert after.to_pylist() == HEADS


def test_several_heads_into_one_column_are_listed() -> None:
    """C20: nothing is dropped without a word."""
    table = pa.table({"x": [1.0, 2.0]})
    for result in ({"label": LABELS, "scores": SCORES}, HEADS):
        heads = si.PythonModel(lambda result=result: lambda x: result)
        with pytest.raises(si.OutputError, match=r"declared 1 output column\(s\) \(pred int\), found 2 outputs \(label, scores\)"):
            pred(table, heads, "pred int", inputs="x")
    with pytest.raises(si.OutputError, match=r"declared 2 output column\(s\) .* found one output \(float64 of shape \(2,\)\)"):
        si.predict_local(table, echo, inputs="x", outputs="a double, b double")


@pytest.mark.parametrize(
    ("result", "outputs", "expected"),
    [
        (np.array([1.0, np.nan], "f4"), "pred double", [1.0, "nan"]),
        (np.array([1, 2], "u1"), "pred long", [1, 2]),
        (np.array([1.0, 2.0]), "pred int", [1, 2]),
        (np.array([0.1, 0.2]), "pred float", [float(np.float32(0.1)), float(np.float32(0.2))]),
        (np.array([True, False]), "pred boolean", [True, False]),
        ([b"a", "b"], "pred string", ["a", "b"]),
        ([None, "b"], "pred string", [None, "b"]),
        ([1, None], "pred int", [1, None]),
        ([[1.0], None], "pred array<float>", [[1.0], None]),
        ([[], [1.0, 2.0]], "pred array<double>", [[], [1.0, 2.0]]),
        (np.array(["2026-01-01", "NaT"], "datetime64[s]"), "pred date", [dt.date(2026, 1, 1), None]),
        ([Decimal("1.50"), None], "pred decimal(5,2)", [Decimal("1.50"), None]),
        (pd.Series([1.5, 2.5]), "pred double", [1.5, 2.5]),
        (np.ma.array([1, 2], mask=[False, True]), "pred int", [1, None]),
    ],
)
def test_a_result_is_cast_to_exactly_what_was_declared(result: Any, outputs: str, expected: list[Any]) -> None:
    """A NaN stays a NaN, a None becomes a null, and no value changes but by rounding to a narrower float."""
    found = pred(pa.table({"x": [1.0, 2.0]}), si.PythonModel(lambda: lambda x: result), outputs, inputs="x")
    assert ["nan" if value != value else value for value in found] == expected  # noqa: PLR0124 - a NaN is what is not itself


@pytest.mark.parametrize(
    ("result", "outputs", "told"),
    [
        (np.array([1.5, 2.0]), "pred int", "declared int, found 1.5"),
        (np.array([1, 2**40]), "pred int", "declared int, found 1099511627776 .* At batch 0, row 1"),
        (np.array([2**53 + 1, 0]), "pred double", "declared double, found 9007199254740993"),
        (["a", "b"], "pred double", "declared double, found str"),
        (np.array([1.0, 2.0]), "pred string", "declared string, found float"),
        (np.zeros((2, 3)), "pred float", r"arrays of shape \(3,\) of float64 in each row: declare an array"),
        (np.zeros(2), "pred array<float>", "found scalars of float64: declare float"),
        ([b"\xff", b""], "pred string", "bytes that are no UTF-8"),
    ],
)
def test_a_result_that_does_not_fit_is_an_error(result: Any, outputs: str, told: str) -> None:
    """With what was declared, what came, and where."""
    with pytest.raises(si.OutputError, match=told):
        pred(pa.table({"x": [1.0, 2.0]}), si.PythonModel(lambda: lambda x: result), outputs, inputs="x")


class Sums:
    """A model as an object, with a state and an end."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def predict(self, *, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a + b

    def close(self) -> None:
        self._ledger.write("close")


def test_an_object_with_predict_is_called_by_name_and_closed(ledger: Ledger) -> None:
    """models_per_worker=0 lets go of it when its partition has ended."""
    table = pa.table({"x": [1.0], "z": [10.0]})
    model = si.PythonModel(lambda: Sums(ledger))
    assert pred(table, model, inputs={"a": "x", "b": "z"}, models_per_worker=0) == [11.0]
    assert ledger.count("close") == 1


def test_a_changed_version_is_another_model(ledger: Ledger) -> None:
    """The same loader with another ``version`` is loaded again; with the same it is not."""
    table = pa.table({"x": [1.0]})
    for version in ("a", "a", "b"):
        pred(table, si.PythonModel(EchoModel(ledger), version=version), inputs="x")
    assert ledger.count("load") == 2


def test_a_model_that_writes_every_answer_into_one_buffer_keeps_none_of_them_wrong() -> None:
    """Answers wait for their chunk to be whole, while the model already writes the next one: each row has its own all the same."""

    def load() -> Any:
        buffer = np.zeros(4)

        def predict(x: np.ndarray) -> np.ndarray:
            np.multiply(x, 2, out=buffer[: len(x)])
            return buffer[: len(x)]

        return predict

    scored = si.predict_local(pa.table({"x": np.arange(12.0)}), si.PythonModel(load), inputs="x", outputs="y double", batch_size=4)
    assert scored["y"].to_pylist() == [2 * x for x in range(12)]


def test_a_preprocess_that_gives_the_same_memory_again_is_refused() -> None:
    """What was prepared still waits for the model when the function is called again: it would be changed under it."""
    buffer = np.zeros((4, 2))

    def preprocess(x: np.ndarray) -> np.ndarray:
        buffer[: len(x)] = x[:, None]
        return buffer[: len(x)]

    table = pa.table({"x": np.arange(12.0)})
    with pytest.raises(si.PreprocessError, match=r"gave back the memory that it gave for the batch before.*batch 1"):
        si.predict_local(
            table, si.PythonModel(lambda: lambda x: x), inputs="x", outputs="y array<double>", preprocess_batch=preprocess, batch_size=4
        )


def test_a_spec_that_preprocess_does_not_meet_by_name_is_told() -> None:
    """Two inputs with a TensorSpec, and a preprocess that gives one array: the declaration would silently count for nothing."""
    table = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    with pytest.raises(si.PreprocessError, match=r"declared for the input 'a', but preprocess gave \['input'\]"):
        si.predict_local(
            table,
            si.PythonModel(lambda: lambda x: x),
            inputs=[("a", si.TensorSpec("float16")), "b"],
            outputs="y double",
            preprocess=lambda a, b: np.array(a + b),
        )
