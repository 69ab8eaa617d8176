"""Columns become arrays row for row: no copy, no null, no slice and no length goes unnoticed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparkinfer.engine.batch import Fault
from sparkinfer.engine.columns import bad_nulls, decode, decode_rows, describe_null, is_ml_vector
from sparkinfer.exceptions import SchemaError

VECTOR = pa.struct([("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))])


def dense(*values):
    """Give a dense ML vector as Spark sends it."""
    return {"type": 1, "values": list(values)}


def sparse(size, items):
    """Give a sparse ML vector as Spark sends it."""
    return {"type": 0, "size": size, "indices": list(items), "values": list(items.values())}


def nested(array):
    """Give an n-d array as a column of lists, each level one list deeper."""
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for level in range(array.ndim - 1, 0, -1):
        count = int(np.prod(array.shape[:level]))
        offsets = pa.array(np.arange(count + 1) * array.shape[level], pa.int32())
        column = pa.ListArray.from_arrays(offsets, column)
    return column


def holds_null(value) -> bool:
    """Say whether a null is in a Python value at any depth."""
    return value is None or (isinstance(value, list) and any(map(holds_null, value)))


# --- values ------------------------------------------------------------------------------------------------------------


@given(
    array=hnp.arrays(
        st.sampled_from([np.int8, np.int64, np.uint16, np.float32, np.float64]),
        hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4),
        elements=st.integers(0, 100),
    ),
    data=st.data(),
)
def test_an_array_survives_its_column_and_any_slice_of_it(array, data) -> None:
    """Nested to any depth, dtype and row-major order are kept, and a slice gives its own rows."""
    start = data.draw(st.integers(0, len(array)))
    stop = data.draw(st.integers(start, len(array)))
    column = nested(array).slice(start, stop - start)
    got = decode(column, "x")
    assert got.dtype == array.dtype
    if start < stop:
        assert np.array_equal(got, array[start:stop])
    else:
        assert len(got) == 0
        assert got.ndim == array.ndim


def test_numbers_and_nested_numbers_are_views() -> None:
    """A null-free slice shares the Arrow buffer, C-contiguous."""
    flat = np.arange(24, dtype=np.float32)
    column = nested(flat.reshape(4, 2, 3))
    got = decode(column.slice(1, 2), "x")
    assert got.shape == (2, 2, 3)
    assert got.flags["C_CONTIGUOUS"]
    assert np.shares_memory(got, column.values.values.to_numpy())
    assert np.shares_memory(decode(pa.array(flat), "x"), flat)


@pytest.mark.parametrize("list_type", [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)])
def test_every_list_type_and_its_slices(list_type) -> None:
    """Lists, large lists and fixed-size lists decode alike."""
    column = pa.array([[1, 2], [3, 4], [5, 6]], list_type)
    assert decode(column.slice(1), "x").tolist() == [[3, 4], [5, 6]]
    assert decode(column.slice(1), "x").dtype == np.int32


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([True, False]), np.array([True, False])),
        (pa.array([Decimal("1.25"), Decimal(2)], pa.decimal128(5, 2)), np.array([1.25, 2.0])),
        (pa.array([dt.date(2024, 2, 29)]), np.array(["2024-02-29"], "datetime64[D]")),
        (pa.array([dt.date(2024, 2, 29)], pa.date64()), np.array(["2024-02-29"], "datetime64[D]")),
        (pa.array([0], pa.timestamp("us", "America/New_York")), np.array(["1970-01-01"], "datetime64[us]")),
        (pa.array([1500], pa.timestamp("ns")), np.array([1], "datetime64[us]")),
        (pa.array(["a", ""]), np.array(["a", ""], object)),
        (pa.array(["a"], pa.large_string()), np.array(["a"], object)),
        (pa.array(["a", "b", "a"]).dictionary_encode(), np.array(["a", "b", "a"], object)),
        (pa.array([b"a\0"]), np.array([b"a\0"], object)),
        (pa.array([b"ab"], pa.binary(2)), np.array([b"ab"], object)),
        (pa.array([["a", "b"], ["c", "d"]]), np.array([["a", "b"], ["c", "d"]], object)),
        (pa.array(np.array([1, 2], np.float16)), np.array([1, 2], np.float16)),
    ],
)
def test_each_kind_of_value(column, expected) -> None:
    """The dtype is exactly the documented one."""
    got = decode(column, "x")
    assert got.dtype == expected.dtype
    assert got.tolist() == expected.tolist()


def test_a_struct_gives_its_fields_in_order() -> None:
    """Nested structs are flattened with dots, and slices are honoured."""
    kind = pa.struct([("b", pa.int64()), ("a", pa.struct([("x", pa.list_(pa.float64())), ("y", pa.string())]))])
    column = pa.array([{"b": 1, "a": {"x": [1.0, 2.0], "y": "s"}}, {"b": 2, "a": {"x": [3.0, 4.0], "y": "t"}}], kind)
    got = decode(column.slice(1), "s")
    assert list(got) == ["b", "a.x", "a.y"]
    assert {name: array.tolist() for name, array in got.items()} == {"b": [2], "a.x": [[3.0, 4.0]], "a.y": ["t"]}


def test_three_hundred_fields_pass_through_one_struct() -> None:
    """The way round the limit on a function's arguments."""
    assert len(decode(pa.array([{f"c{i}": float(i) for i in range(300)}]), "s")) == 300


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([[{"a": 1}]]), "arrays of structs"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "map<string, int64"),
        (pa.nulls(2), "has no type"),
        (pa.array([1], pa.duration("us")), "duration[us]"),
        (pa.array([[1]], pa.list_(pa.time64("us"))), "time64[us]"),
    ],
)
def test_what_no_model_takes_is_refused_by_its_type(column, said) -> None:
    """A SchemaError that names the column and the type."""
    with pytest.raises(Fault) as caught:
        decode(column, "x")
    assert said in caught.value.text
    assert (caught.value.kind, caught.value.column) == (SchemaError, "x")


# --- unequal lengths ---------------------------------------------------------------------------------------------------


def test_unequal_lengths_name_the_row_and_both_lengths() -> None:
    """Case C09: the first row's length is expected."""
    with pytest.raises(Fault, match=r"expected 2, found 1.*TensorSpec\(\.\.\., pad=0\)") as caught:
        decode(pa.array([[1, 1], [2], [3, 3, 3]]), "ids")
    assert (caught.value.column, caught.value.row) == ("ids", 1)


def test_unequal_lengths_deep_inside_name_the_outer_row() -> None:
    """The row is the column's, not the inner list's."""
    with pytest.raises(Fault, match="expected 2, found 1") as caught:
        decode(pa.array([[[1, 2], [3, 4]], [[5, 6], [7]]]), "ids")
    assert caught.value.row == 1


@given(rows=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6), skip=st.integers(0, 2))
def test_ragged_rows_come_back_one_array_each(rows, skip) -> None:
    """Whatever the lengths, ragged=True gives every row's own values."""
    column = pa.array([[7]] * skip + rows, pa.list_(pa.int16())).slice(skip)
    got = decode(column, "x", ragged=True)
    assert [row.tolist() for row in got] == rows
    assert all(row.dtype == np.int16 for row in got)


@given(rows=st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), min_size=1, max_size=4))
def test_ragged_rows_two_levels_deep(rows) -> None:
    """Inner raggedness stays inside its row."""

    def plain(value):
        return [plain(item) for item in value] if isinstance(value, np.ndarray) else value

    column = pa.array(rows, pa.list_(pa.list_(pa.int64())))
    assert plain(decode(column, "x", ragged=True)) == rows


# --- ML vectors --------------------------------------------------------------------------------------------------------


def test_vectors_dense_and_sparse_mixed() -> None:
    """Case C12: sparse is made dense, slices honoured."""
    column = pa.array([dense(9, 9, 9), dense(1, 2, 3), sparse(3, {0: 2.0}), sparse(3, {}), dense(4, 5, 6)], VECTOR)
    assert is_ml_vector(column.type)
    assert decode(column.slice(1), "f").tolist() == [[1, 2, 3], [2, 0, 0], [0, 0, 0], [4, 5, 6]]


def test_dense_vectors_are_a_view() -> None:
    """All dense: no copy."""
    column = pa.array([dense(1, 2), dense(3, 4)], VECTOR)
    assert np.shares_memory(decode(column, "f"), column.field("values").values.to_numpy())


def test_vectors_of_unequal_size_are_ragged_rows() -> None:
    """A refusal with both sizes, or rows of their own."""
    column = pa.array([dense(1, 2), sparse(3, {2: 5.0})], VECTOR)
    with pytest.raises(Fault, match="expected 2, found 3") as caught:
        decode(column, "f")
    assert caught.value.row == 1
    assert [row.tolist() for row in decode(column, "f", ragged=True)] == [[1, 2], [0, 0, 5]]


def test_a_struct_that_only_looks_like_a_vector() -> None:
    """Same names, another type: a plain struct."""
    assert not is_ml_vector(
        pa.struct([("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.float64())])
    )


# --- nulls -------------------------------------------------------------------------------------------------------------


@given(
    rows=st.lists(st.none() | st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3), max_size=3), max_size=6),
    skip=st.integers(0, 3),
)
def test_a_null_is_found_at_any_depth_and_only_in_its_row(rows, skip) -> None:
    """The mask says of each row, and of rows of a slice, whether a null is in it."""
    column = pa.array(rows, pa.list_(pa.list_(pa.int64()))).slice(min(skip, len(rows)))
    expected = [holds_null(row) for row in rows[skip:]]
    mask = bad_nulls(column)
    assert (mask.tolist() if mask is not None else [False] * len(expected)) == expected
    assert (mask is None) == (not any(expected))


def test_nulls_outside_of_a_slice_do_not_count() -> None:
    """Neither the rows beside it nor what they hold."""
    assert bad_nulls(pa.array([None, [1], [2], [None]]).slice(1, 2)) is None
    assert bad_nulls(pa.array([[None, 1], [2, 3]], pa.list_(pa.int8(), 2)).slice(1)) is None
    assert bad_nulls(pa.array([[None, 1], [2, 3]], pa.list_(pa.int8(), 2))).tolist() == [True, False]


def test_nulls_in_structs_count_and_in_vectors_only_the_row() -> None:
    """A dense vector has null indices, and is no bad row."""
    assert bad_nulls(pa.array([{"a": 1, "b": [1]}, {"a": None, "b": [1]}, {"a": 1, "b": [None]}])).tolist() == [False, True, True]
    assert bad_nulls(pa.array([dense(1), sparse(1, {})], VECTOR)) is None
    assert bad_nulls(pa.array([dense(1), None], VECTOR)).tolist() == [False, True]
    assert bad_nulls(pa.nulls(2)).tolist() == [True, True]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": 1, "b": None}, "field 'b' is null"),
        ({"a": 1, "b": {"c": None}}, "field 'b.c' is null"),
        ({"a": [1, None]}, "there is a null inside the array of field 'a'"),
        ([1, None], "there is a null inside the array"),
    ],
)
def test_a_null_is_told_by_its_place(value, said) -> None:
    """Row 1 is the bad one."""
    column = pa.array([value, value, None])
    assert describe_null(column, 1) == said
    assert describe_null(column, 2) == "the value is null"


def test_nulls_passed_on_become_the_type_s_own_missing_value() -> None:
    """Case C06: text gets None, floats NaN, dates NaT."""
    assert decode(pa.array(["a", None]), "x", nulls="pass").tolist() == ["a", None]
    assert decode(pa.array([None, None], pa.string()), "x", nulls="pass").tolist() == [None, None]
    assert decode(pa.array([b"a", None]), "x", nulls="pass").tolist() == [b"a", None]
    for column in (pa.array([[1.5, None], [2.5, 3.5]], pa.list_(pa.float32())), pa.array([1.5, None])):
        got = decode(column, "x", nulls="pass")
        assert np.isnan(got.reshape(-1)[1])
        assert got.dtype in (np.float32, np.float64)
    assert np.isnat(decode(pa.array([None, dt.date(2024, 1, 1)]), "x", nulls="pass")).tolist() == [True, False]
    assert np.isnat(decode(pa.array([None, 5], pa.timestamp("us", "UTC")), "x", nulls="pass")).tolist() == [True, False]


@pytest.mark.parametrize(
    ("column", "row", "said"),
    [
        (pa.array([1, None]), 1, "cast the column to double"),
        (pa.array([[1, 2], [3, None]]), 1, "cast the column to double"),
        (pa.array([True, None, None]), 1, "as bool"),
        (pa.array([[1.0], None]), 1, "an array that is null"),
        (pa.array([[[1.0]], [[2.0]], [None]]), 2, "an array that is null"),
    ],
)
def test_a_null_without_a_missing_value_is_refused(column, row, said) -> None:
    """Integers never become floats beside a null, and no array is made up."""
    with pytest.raises(Fault) as caught:
        decode(column, "x", nulls="pass")
    assert said in caught.value.text
    assert (caught.value.row, caught.value.column) == (row, "x")


# --- one value a row ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([b"a", None]), [b"a", None]),
        (pa.array(["a", None]), ["a", None]),
        (pa.array([1, None]), [1, None]),
        (pa.array([{"a": 1, "b": {"c": "x"}}, None]), [{"a": 1, "b": {"c": "x"}}, None]),
        (pa.array([[{"a": 1}], None]), [[{"a": 1}], None]),
    ],
)
def test_rows_as_python_values(column, expected) -> None:
    """Scalars, dicts and lists of dicts; a null is None."""
    assert decode_rows(column, "x") == expected


def test_rows_of_arrays_keep_their_dtype_and_length() -> None:
    """Arrays and vectors are ndarrays, whatever their lengths, beside nulls too."""
    rows = decode_rows(pa.array([[1, 2], None, [3]], pa.list_(pa.int16())), "x")
    assert [None if row is None else (row.tolist(), row.dtype.name) for row in rows] == [([1, 2], "int16"), None, ([3], "int16")]
    rows = decode_rows(pa.array([sparse(2, {1: 4.0}), None, dense(1)], VECTOR), "x")
    assert [None if row is None else row.tolist() for row in rows] == [[0, 4], None, [1]]


def test_a_null_inside_a_row_names_the_row_of_the_column() -> None:
    """Null rows before it are counted."""
    with pytest.raises(Fault) as caught:
        decode_rows(pa.array([None, [1], [None]], pa.list_(pa.int64())), "x")
    assert caught.value.row == 2
