"""Predictions come back in exactly the declared types, row for row, and nothing is dropped or bent on the way."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparkinfer.engine.batch import Fault
from sparkinfer.engine.columns import decode
from sparkinfer.engine.encode import OutputColumn, check_rows, encode_column, encode_outputs
from sparkinfer.engine.encode_column import _listed, _Target
from sparkinfer.exceptions import OutputError, PredictError
from sparkinfer.schema import list_of, parse_ddl, parse_type


def columns(ddl):
    """Give the declared columns of a DDL text."""
    return [OutputColumn(field.name, field.type) for field in parse_ddl(ddl)]


def encode(values, ddl, rows=None):
    """Encode one column and hold it to the declared type."""
    data_type = parse_type(ddl)
    got = encode_column(values, data_type, "pred", len(values) if rows is None else rows)
    assert got.type.equals(data_type, check_metadata=True)
    got.validate(full=True)
    return got


# --- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        np.zeros(4),
        np.zeros((4, 1)),
        (np.zeros(4), np.zeros((4, 2))),
        [np.zeros(4), np.zeros((4, 2))],
        {"a": np.zeros(4), "b": ["x"] * 4},
        [1.0, 2.0, 3.0, 4.0],
        ["a", "b", "c", None],
        [{"a": 1}] * 4,
        [[1], [1, 2], [], [3]],
        pd.DataFrame({"a": [1, 2, 3, 4]}),
        pd.Series([1, 2, 3, 4]),
    ],
)
def test_four_rows_in_any_form(result) -> None:
    """Every form of a result is counted by its leading axis."""
    check_rows(result, 4)
    with pytest.raises(Fault, match="expected 5 rows, found 4"):
        check_rows(result, 5)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (np.zeros(3), "expected 4 rows, found 3"),
        (np.zeros(5), "expected 4 rows, found 5"),
        (np.float32(1), "expected 4 rows, found a scalar (float32 of shape ())"),
        (1.5, "expected 4 rows, found a scalar (float)"),
        ("abcd", "expected 4 rows, found a scalar (str)"),
        (None, "expected 4 rows, found None"),
        ({"a": np.zeros(4), "b": np.zeros(3)}, "output 'b': expected 4 rows, found 3"),
        ((np.zeros(4), None), "output 1: expected 4 rows, found None"),
        ([np.zeros(2)] * 4, "output 0: expected 4 rows, found 2: a list of arrays is a list of outputs"),
        ({}, "expected 4 rows, found a dict without outputs"),
    ],
)
def test_another_number_of_rows_is_told(result, said) -> None:
    """Case C18: expected and found, and which output."""
    with pytest.raises(Fault) as caught:
        check_rows(result, 4)
    assert said in caught.value.text
    assert caught.value.kind is PredictError


# --- outputs to columns ------------------------------------------------------------------------------------------------

LABELS = np.array([1, 0], np.int64)
SCORES = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
EXPECTED = [{"label": 1, "scores": [0.25, 0.75]}, {"label": 0, "scores": [0.5, 0.5]}]


@pytest.mark.parametrize(
    "result",
    [
        {"label": LABELS, "scores": SCORES},
        OrderedDict(scores=SCORES, extra=LABELS, label=LABELS),
        (LABELS, SCORES),
        [LABELS, SCORES],
        EXPECTED,
        pd.DataFrame({"label": LABELS, "scores": list(SCORES)}),
    ],
)
@pytest.mark.parametrize("ddl", ["label int, scores array<float>", "pred struct<label: int, scores: array<float>>"])
def test_two_heads_fill_columns_or_a_struct(result, ddl) -> None:
    """Case C20: by name or in order, and row-oriented too."""
    declared = columns(ddl)
    got = encode_outputs(result, declared, 2)
    assert [array.type for array in got] == [column.type for column in declared]
    rows = got[0].to_pylist() if len(got) == 1 else pa.table(got, ["label", "scores"]).to_pylist()
    assert rows == EXPECTED


@pytest.mark.parametrize(
    ("result", "ddl", "said"),
    [
        ({"label": LABELS, "scores": SCORES}, "pred int", "found 2 outputs (label, scores)"),
        ((LABELS, SCORES), "pred int", "found 2 outputs (int64 of shape (2,), float32 of shape (2, 2))"),
        (SCORES, "a float, b float", "declared 2 output column(s) (a float, b float), found one output (float32 of shape (2, 2))"),
        ((LABELS, LABELS, LABELS), "a int, b int", "found 3 outputs"),
        ({"label": LABELS}, "label int, score float", "found 1 outputs (label)"),
        ({"label": LABELS, "x": LABELS}, "p struct<label: int, scores: array<float>>", "found 2 outputs (label, x)"),
        ((LABELS,) * 3, "p struct<a: int, b: int>", "found 3 outputs"),
        (LABELS, "p struct<a: int, b: int>", "found int64 of shape (2,): give a dict with the fields a, b"),
        ([{"a": 1}, {"b": 2}], "a int, b int", "expected a dict of a, as in the rows before, found b"),
    ],
)
def test_outputs_that_match_no_column_are_listed(result, ddl, said) -> None:
    """Nothing is dropped without a word: what was declared and what came are both told."""
    with pytest.raises(Fault) as caught:
        encode_outputs(result, columns(ddl), 2)
    assert said in caught.value.text
    assert caught.value.kind is OutputError


@pytest.mark.parametrize(
    "result",
    [LABELS, {"pred": LABELS}, {"output_0": LABELS}, {"pred": LABELS, "other": SCORES}, (LABELS,), [LABELS], [{"pred": 1}, {"pred": 0}]],
)
def test_one_declared_column_takes_the_one_that_it_can_mean(result) -> None:
    """The only output, or the one of the column's own name."""
    assert encode_outputs(result, columns("pred int"), 2)[0].to_pylist() == [1, 0]


def test_a_struct_column_by_its_own_name() -> None:
    """{'pred': {...}} means the struct's fields, and the framework's tensors are converted."""
    torch = pytest.importorskip("torch")
    result = {"pred": {"label": torch.tensor([1, 0]), "scores": torch.tensor(SCORES, requires_grad=True)}}
    got = encode_outputs(result, columns("pred struct<label: int, scores: array<float>>"), 2)
    assert got[0].to_pylist() == EXPECTED


def test_a_row_that_is_none_is_a_null_struct_or_nulls() -> None:
    """Row-oriented results may leave a row out."""
    got = encode_outputs([None, {"a": 1, "b": "x"}], columns("p struct<a: int, b: string>"), 2)
    assert got[0].to_pylist() == [None, {"a": 1, "b": "x"}]
    got = encode_outputs([None, {"a": 1, "b": "x"}], columns("a int, b string"), 2)
    assert [array.to_pylist() for array in got] == [[None, 1], [None, "x"]]
    assert encode([None, None], "struct<a: int>").to_pylist() == [None, None]


def test_arrays_of_structs() -> None:
    """Detections: any number of boxes a row."""
    rows = [[{"box": [1.0, 2.0], "label": "cat"}], [], None]
    assert encode(rows, "array<struct<box: array<float>, label: string>>").to_pylist() == rows
    assert encode([[], []], "array<struct<a: int>>").to_pylist() == [[], []]


def test_a_null_in_a_field_that_is_not_null() -> None:
    """Spark would crash on it later; a null parent is no null field."""
    with pytest.raises(Fault, match="field 'a', which is declared NOT NULL"):
        encode([{"a": None}], "struct<a: int NOT NULL>")
    assert encode([None, {"a": 1}], "struct<a: int NOT NULL>").to_pylist() == [None, {"a": 1}]


# --- shapes ------------------------------------------------------------------------------------------------------------


@given(
    array=hnp.arrays(
        st.sampled_from([np.int8, np.int32, np.int64, np.float32, np.float64]),
        hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4),
        elements=st.integers(0, 100),
    )
)
def test_an_array_of_any_depth_goes_out_and_comes_back(array) -> None:
    """Encode, then decode, is the identity; the values are a copy, since a model may write its next answer where this one was."""
    data_type = pa.from_numpy_dtype(array.dtype)
    for _ in range(array.ndim - 1):
        data_type = list_of(data_type)
    column = encode_column(array, data_type, "x", len(array))
    assert column.type == data_type
    back = decode(column, "x")
    assert np.array_equal(back, array)
    assert not np.shares_memory(back, array)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_value_a_row_whatever_the_batch(rows, shape) -> None:
    """Case C01: a single row is no other rank."""
    assert encode(np.zeros((rows, *shape), np.float32), "double").to_pylist() == [0.0] * rows
    assert encode(np.zeros((rows, 3), np.float32), "array<float>").to_pylist() == [[0.0] * 3] * rows


def test_no_rows_at_all() -> None:
    """An empty batch keeps the declared type."""
    for values in (np.zeros(0), np.zeros((0, 1)), []):
        assert encode(values, "float").to_pylist() == []
    for values in (np.zeros((0, 3)), []):
        assert encode(values, "array<float>").to_pylist() == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1.0], [1.0, 2.0], []], [[1.0], [1.0, 2.0], []]),
        ([np.ones(1), None, np.ones(2)], [[1.0], None, [1.0, 1.0]]),
        ([None, [None, 1.0]], [None, [None, 1.0]]),
        ([[1], [2.5]], [[1.0], [2.5]]),
    ],
)
def test_rows_of_unequal_length_go_out_as_they_are(values, expected) -> None:
    """Lists, arrays and nulls, of any length."""
    assert encode(values, "array<float>").to_pylist() == expected


def test_ragged_arrays_of_arrays() -> None:
    """Unequal at two levels, and with inner shapes that differ between rows."""
    rows = [[[1, 2], [3]], [], [[4, 5, 6]]]
    assert encode(rows, "array<array<int>>").to_pylist() == rows
    arrays = [np.ones((2, 2), np.int32), np.ones((1, 3), np.int32)]
    assert encode({"p": arrays}["p"], "array<array<int>>").to_pylist() == [[[1, 1], [1, 1]], [[1, 1, 1]]]


@pytest.mark.parametrize(
    ("values", "ddl", "said"),
    [
        (np.zeros(2, np.float32), "array<float>", "is declared array<float>, found scalars of float32"),
        (np.zeros((2, 3), np.float32), "float", "is declared float, found arrays of shape (3,) of float32"),
        (np.zeros((2, 3, 4)), "array<float>", "is declared array<float>, found arrays of shape (4,) of float64"),
        ([1.0, [2.0]], "array<float>", "found the scalar 1.0"),
        (np.float32(1), "float", "found a scalar"),
        (np.zeros(3), "float", "found 3, expected 2 rows"),
    ],
)
def test_another_rank_than_declared(values, ddl, said) -> None:
    """Declared and found are both told."""
    with pytest.raises(Fault) as caught:
        encode(values, ddl, rows=2)
    assert said in caught.value.text
    assert "'pred'" in caught.value.text


def test_more_items_than_arrow_can_count() -> None:
    """The offsets are refused before they overflow."""
    with pytest.raises(Fault, match="make batch_size smaller"):
        _listed(np.zeros(0), np.array([0, 2**31]), None, _Target("p", list_of(pa.float32())), int)


# --- values ------------------------------------------------------------------------------------------------------------


MORNING = dt.datetime(2024, 2, 29, 1, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("values", "ddl", "expected"),
    [
        (np.array([1, 2]), "int", [1, 2]),
        (np.array([1, 255], np.uint8), "smallint", [1, 255]),
        (np.array([1.0, -2.0]), "int", [1, -2]),
        (np.array([1, 2]), "float", [1.0, 2.0]),
        (np.array([0.5, 0.1]), "float", [0.5, float(np.float32(0.1))]),
        (np.array([0.5], np.float16), "float", [0.5]),
        (np.array([True, False]), "boolean", [True, False]),
        (np.array(["a", "bcd"]), "string", ["a", "bcd"]),
        (np.array([b"a", "b\u00e9".encode()], object), "string", ["a", "b\u00e9"]),
        ([b"a\0", b""], "binary", [b"a\0", b""]),
        ([1, None, 3], "bigint", [1, None, 3]),
        ([True, None], "boolean", [True, None]),
        (["a", None], "string", ["a", None]),
        ([None, None], "int", [None, None]),
        (pd.Series([1, None], dtype="Int64"), "int", [1, None]),
        (np.ma.array([1, 2**40], mask=[False, True]), "int", [1, None]),
        (np.ma.array([[1.0, 2.0]], mask=[[True, False]]), "array<float>", [[None, 2.0]]),
        ([["a", "b"], ["c"]], "array<string>", [["a", "b"], ["c"]]),
        (np.array(["2024-02-29", "NaT"], "datetime64[D]"), "date", [dt.date(2024, 2, 29), None]),
        (np.array(["2024-02-29"], "datetime64[ns]"), "date", [dt.date(2024, 2, 29)]),
        (np.array(["2024-02-29T01"], "datetime64[s]"), "timestamp_ntz", [MORNING.replace(tzinfo=None)]),
        (np.array(["2024-02-29T01"], "datetime64[ns]"), "timestamp", [MORNING]),
        ([dt.date(2024, 2, 29), None], "date", [dt.date(2024, 2, 29), None]),
        ([Decimal("1.25")], "decimal(5,2)", [Decimal("1.25")]),
        (np.array([1, 2]), "decimal(5,2)", [Decimal("1.00"), Decimal("2.00")]),
        (np.array([1.5]), "decimal(5,2)", [Decimal("1.50")]),
    ],
)
def test_exact_casts(values, ddl, expected) -> None:
    """The declared type, with the same values."""
    assert encode(values, ddl).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "ddl", "row", "said"),
    [
        (np.array([1, 2**31]), "int", 1, "2147483648 (int64)"),
        (np.array([-129]), "tinyint", 0, "-129"),
        (np.array([1.0, 0.5]), "int", 1, "0.5 (float64)"),
        (np.array([np.nan]), "int", 0, "nan"),
        (np.array([0, 2**24 + 1]), "float", 1, "16777217"),
        (np.array([True]), "int", 0, "bool"),
        (np.array([1]), "boolean", 0, "int64"),
        (["a"], "float", 0, "str"),
        (np.array([1.5]), "string", 0, "float 1.5"),
        (["a"], "binary", 0, "str 'a'"),
        ([b"\xff"], "string", 0, "no UTF-8"),
        ([None, "a", 1], "string", 2, "int 1"),
        ([None, 1, 2**40], "int", 2, "1099511627776"),
        ([[1], [1, 2**40]], "array<int>", 1, "is declared array<int>, found 1099511627776"),
        (np.array([[1, 2], [3, 2**40]]), "array<int>", 1, "1099511627776"),
        ([None, [[1]], [[2], [0.5]]], "array<array<int>>", 2, "is declared array<array<int>>, found 0.5"),
        (np.array(["2024-02-29T01"], "datetime64[s]"), "date", 0, "finer than D"),
        (np.array([1]), "date", 0, "int64"),
        (np.array([12345]), "decimal(4,0)", None, "does not fit"),
        (np.array([1j]), "double", 0, "complex128"),
    ],
)
def test_values_that_the_declared_type_cannot_hold(values, ddl, row, said) -> None:
    """The value, its type and its row are told; nothing wraps, rounds or turns into text."""
    with pytest.raises(Fault) as caught:
        encode(values, ddl)
    assert said in caught.value.text
    assert (caught.value.kind, caught.value.row) == (OutputError, row)


def test_nan_stays_nan_and_none_becomes_null() -> None:
    """The two are kept apart, in scalars and in arrays."""
    got = encode([float("nan"), None, 1.0], "double")
    assert got.is_null().to_pylist() == [False, True, False]
    assert np.isnan(got[0].as_py())
    got = encode(np.array([[np.nan, 1.0]], np.float32), "array<float>")
    assert got.values.null_count == 0
    assert np.isnan(got[0].as_py()[0])


def test_half_precision_of_any_make_becomes_float() -> None:
    """bfloat16 of torch and of ml_dtypes."""
    torch = pytest.importorskip("torch")
    assert encode(torch.ones(2, 2, dtype=torch.bfloat16), "array<float>").to_pylist() == [[1.0, 1.0]] * 2
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert encode(np.ones(2, ml_dtypes.bfloat16), "float").to_pylist() == [1.0, 1.0]


def test_strided_and_foreign_arrays() -> None:
    """A transposed result and a big-endian one hold the right values."""
    assert encode(np.arange(6).reshape(3, 2).T, "array<int>").to_pylist() == [[0, 2, 4], [1, 3, 5]]
    assert encode(np.array([1, 2], ">i4"), "int").to_pylist() == [1, 2]
