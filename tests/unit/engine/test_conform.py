"""What reaches the model has the shape, the padding and the dtype that were asked for, and no value was changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.engine.batch import Fault
from sparkinfer.engine.conform import as_array, conform, cut_rows, inexact, objects, stack_rows
from sparkinfer.exceptions import PreprocessError, SchemaError
from sparkinfer.schema import TensorSpec


def ragged(*rows, dtype=np.int64):
    """Give rows of unequal length."""
    return objects(np.array(row, dtype) for row in rows)


# --- shape -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "shape", "expected"),
    [
        ((5, 4), (2, 2), (5, 2, 2)),
        ((5, 4), (4,), (5, 4)),
        ((5, 2, 2), (2, 2), (5, 2, 2)),
        ((5, 2, 2), (None, 2), (5, 2, 2)),
        ((5, 12), (None, 4), (5, 3, 4)),
        ((5,), (1,), (5, 1)),
        ((5, 1), (), (5,)),
        ((5, 3, 2), None, (5, 3, 2)),
    ],
)
def test_shapes_that_fit(found, shape, expected) -> None:
    """Case C08: flat rows are laid out row-major, without a copy."""
    array = np.arange(np.prod(found), dtype=np.float32).reshape(found)
    got = conform(array, "x", TensorSpec(shape=shape))["x"]
    assert got.shape == expected
    assert np.shares_memory(got, array)
    assert got.reshape(-1).tolist() == array.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("found", "shape", "said"),
    [
        ((5, 4), (3,), "expected (rows, 3), found (rows, 4)"),
        ((5, 4), (2, 3), "expected (rows, 2, 3), found (rows, 4)"),
        ((5, 2, 2), (4,), "expected (rows, 4), found (rows, 2, 2)"),
        ((5,), (2,), "expected (rows, 2), found (rows)"),
        ((5, 4), (None, 3), "expected (rows, None, 3), found (rows, 4)"),
        ((5, 4), (None, None), "expected (rows, None, None), found (rows, 4)"),
    ],
)
def test_shapes_that_do_not_fit_are_both_told(found, shape, said) -> None:
    """The message has the input, the shape asked for and the shape found."""
    with pytest.raises(Fault) as caught:
        conform(np.zeros(found), "x", TensorSpec(shape=shape))
    assert caught.value.kind is SchemaError
    assert f"input 'x' has the wrong shape: {said}" in caught.value.text


# --- padding -----------------------------------------------------------------------------------------------------------


def test_rows_are_padded_to_the_longest_with_mask_and_lengths() -> None:
    """Case C09."""
    got = conform(ragged([1, 1], [2], [3, 3, 3]), "ids", TensorSpec("int64", pad=0, mask="mask", lengths="n"))
    assert list(got) == ["ids", "mask", "n"]
    assert got["ids"].tolist() == [[1, 1, 0], [2, 0, 0], [3, 3, 3]]
    assert got["mask"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    assert got["n"].tolist() == [2, 1, 3]
    assert {array.dtype for array in got.values()} == {np.dtype(np.int64)}


def test_left_padding_and_the_cut() -> None:
    """The fill goes left, the cut keeps each row's start, and cut rows are counted."""
    spec = TensorSpec(pad=9, pad_side="left", max_length=2, mask="m")
    rows = ragged([1, 1], [2], [3, 4, 5])
    got = conform(rows, "ids", spec)
    assert got["ids"].tolist() == [[1, 1], [9, 2], [3, 4]]
    assert got["m"].tolist() == [[1, 1], [0, 1], [1, 1]]
    assert cut_rows(rows, "ids", spec) == 1


@given(
    rows=st.lists(st.lists(st.integers(-5, 5), max_size=5), min_size=1, max_size=6),
    side=st.sampled_from(["left", "right"]),
    limit=st.none() | st.integers(1, 6),
)
def test_the_mask_gives_back_what_was_in_the_rows(rows, side, limit) -> None:
    """Whatever lengths, side and limit: values under the mask are the rows' starts, the rest is fill, alone or together."""
    spec = TensorSpec(pad=7, pad_side=side, max_length=limit, mask="m", lengths="n")
    array = ragged(*rows)
    got = conform(array, "x", spec)
    kept = [row[:limit] for row in rows]
    assert [values[mask == 1].tolist() for values, mask in zip(got["x"], got["m"], strict=True)] == kept
    assert (got["x"][got["m"] == 0] == 7).all()
    assert got["n"].tolist() == [len(row) for row in kept]
    assert cut_rows(array, "x", spec) == sum(len(row) > len(cut) for row, cut in zip(rows, kept, strict=True))


def test_padding_on_every_free_axis() -> None:
    """Rows of rows: inner lists too are filled to the longest."""
    inner = objects([np.array([1, 2]), np.array([3])])
    got = conform(objects([inner, objects([np.array([4])]), np.empty(0, object)]), "x", TensorSpec(pad=0))["x"]
    assert got.tolist() == [[[1, 2], [3, 0]], [[4, 0], [0, 0]], [[0, 0], [0, 0]]]


def test_a_fixed_axis_is_filled_up_and_never_run_over() -> None:
    """A compiled model's fixed length is kept; a longer row is told, unless max_length cuts it."""
    assert conform(ragged([1], [2, 3]), "x", TensorSpec(shape=(4,), pad=0))["x"].shape == (2, 4)
    assert conform(np.ones((2, 3), np.int64), "x", TensorSpec(shape=(4,), pad=0))["x"].tolist() == [[1, 1, 1, 0]] * 2
    with pytest.raises(Fault, match=r"expected \(rows, 2\), found \(rows, 3\)") as caught:
        conform(ragged([1], [2, 3, 4]), "x", TensorSpec(shape=(2,), pad=0))
    assert caught.value.row == 1
    assert conform(ragged([1], [2, 3, 4]), "x", TensorSpec(shape=(2,), pad=0, max_length=2))["x"].tolist() == [[1, 0], [2, 3]]


def test_flat_ragged_rows_take_their_shape_before_the_padding() -> None:
    """Flat rows of 2 and 4 numbers under (None, 2)."""
    got = conform(ragged([1, 2], [3, 4, 5, 6]), "x", TensorSpec(shape=(None, 2), pad=0))["x"]
    assert got.tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]
    with pytest.raises(Fault, match=r"found \(rows, 3\)") as caught:
        conform(ragged([1, 2], [3, 4, 5]), "x", TensorSpec(shape=(None, 2), pad=0))
    assert caught.value.row == 1


def test_rows_that_need_no_padding_are_not_copied() -> None:
    """Equal lengths pass as a view, with a mask of ones."""
    array = np.arange(6).reshape(2, 3)
    got = conform(array, "x", TensorSpec(pad=0, mask="m", max_length=2))
    assert np.shares_memory(got["x"], array)
    assert got["x"].tolist() == [[0, 1], [3, 4]]
    assert got["m"].tolist() == [[1, 1], [1, 1]]


def test_text_is_padded_with_text() -> None:
    """Token lists of unequal length."""
    rows = objects([np.array(["a", "b"], object), np.array(["c"], object)])
    assert conform(rows, "x", TensorSpec("string", pad="[PAD]"))["x"].tolist() == [["a", "b"], ["c", "[PAD]"]]
    with pytest.raises(Fault, match="pad is 0, but the rows hold text"):
        conform(rows, "x", TensorSpec(pad=0))


def test_a_fill_that_the_rows_cannot_hold() -> None:
    """NaN into whole numbers: refused, or taken where floats are asked for."""
    with pytest.raises(Fault, match="pad is nan, but the rows hold int64"):
        conform(ragged([1], [1, 2]), "x", TensorSpec(pad=float("nan")))
    got = conform(ragged([1], [1, 2]), "x", TensorSpec("float32", pad=float("nan")))["x"]
    assert got.dtype == np.float32
    assert np.isnan(got[0, 1])


def test_padding_is_for_arrays_only_and_must_be_asked_for() -> None:
    """Scalars under pad, and unequal rows without it."""
    with pytest.raises(Fault, match="single values"):
        conform(np.zeros(3), "x", TensorSpec(pad=0))
    with pytest.raises(Fault, match="expected 2, found 1") as caught:
        conform(ragged([1, 1], [2]), "x", TensorSpec())
    assert caught.value.row == 1


# --- dtype -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (np.array([1.1, 1e300]), "float32"),
        (np.array([1.5], np.float32), "float16"),
        (np.array([2**40 + 1]), "float32"),
        (np.array([1, 2]), "int32"),
        (np.array([1.0, -2.0]), "int64"),
        (np.array([True, False]), "float32"),
        (np.array([5], "datetime64[us]"), "int64"),
    ],
)
def test_casts_that_are_made(values, wanted) -> None:
    """Case C11: floats are rounded, whole numbers are kept."""
    got = conform(values, "x", TensorSpec(wanted))["x"]
    assert got.dtype == wanted
    with np.errstate(over="ignore"):
        assert got.tolist() == values.astype(wanted).tolist()


@pytest.mark.parametrize(
    ("values", "wanted", "row", "said"),
    [
        (np.array([1, 2**40]), "int32", 1, "1099511627776"),
        (np.array([1, -1]), "uint64", 1, "-1"),
        (np.array([1.0, 2.0, 2.5]), "int64", 2, "2.5"),
        (np.array([1.0, np.nan]), "int64", 1, "nan"),
        (np.array([0.0, 2.0**63]), "int64", 1, "9.22"),
        (np.array([[1, 300]]), "uint8", 0, "300"),
        (np.array([0, 1]), "bool", None, "int64"),
        (np.array(["1"], object), "int64", None, "text"),
        (np.array([1]), "string", None, "int64"),
        (np.array(["a", b"b"], object), "string", 1, "bytes"),
        (np.array(["2024"], "datetime64[D]"), "float32", None, "datetime64[D]"),
    ],
)
def test_casts_that_would_change_a_value_are_refused(values, wanted, row, said) -> None:
    """The message has the value and the dtype; nothing is made of text."""
    with pytest.raises(Fault) as caught:
        conform(values, "x", TensorSpec(wanted))
    assert said in caught.value.text
    assert wanted in caught.value.text
    assert caught.value.row == row


INTEGERS = st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), wanted=INTEGERS)
def test_inexact_agrees_with_python_s_own_numbers(values, wanted) -> None:
    """The first value out of range is found, whatever the types."""
    limits = np.iinfo(wanted)
    bad = [i for i, value in enumerate(values) if not limits.min <= value <= limits.max]
    assert inexact(np.array(values, np.int64), np.dtype(wanted)) == ((bad[0],) if bad else None)


@given(values=st.lists(st.floats(width=32), min_size=1, max_size=5), source=st.sampled_from(["float32", "float64"]), wanted=INTEGERS)
def test_inexact_finds_the_first_float_that_is_no_such_integer(values, source, wanted) -> None:
    """Fractions, NaN, infinity and values out of range."""
    limits = np.iinfo(wanted)
    bad = [i for i, value in enumerate(values) if not (value.is_integer() and limits.min <= int(value) <= limits.max)]
    assert inexact(np.array(values, source), np.dtype(wanted)) == ((bad[0],) if bad else None)


# --- rows to one array -------------------------------------------------------------------------------------------------


def test_stacked_rows() -> None:
    """Arrays are stacked, numbers make one axis, text stays objects of its own type."""
    assert stack_rows([np.ones((2, 3), np.float32)] * 4, "x").shape == (4, 2, 3)
    assert stack_rows([np.float32(1), np.float32(2)], "x").dtype == np.float32
    for text in (["a", "bcd"], [b"a\0", b"b"], ["a", None]):
        got = stack_rows(text, "x")
        assert got.dtype == object
        assert got.tolist() == text
    assert stack_rows([["a", "bc"], ["d", "e"]], "x").tolist() == [["a", "bc"], ["d", "e"]]
    assert stack_rows([[b"a\0"], [b"b"]], "x").tolist() == [[b"a\0"], [b"b"]]


def test_stacked_rows_of_unequal_shape_stay_apart() -> None:
    """An object array of the rows; padding or a refusal comes with conform."""
    got = stack_rows([np.ones(2), np.ones(3)], "x")
    assert got.dtype == object
    assert [len(row) for row in got] == [2, 3]


def test_rows_that_are_no_arrays() -> None:
    """None, and a list without one shape, are told with their row."""
    for bad, said in ((None, "gave None"), ([[1], [1, 2]], "no array")):
        with pytest.raises(Fault, match=said) as caught:
            stack_rows([np.ones(2), bad], "x")
        assert (caught.value.kind, caught.value.row) == (PreprocessError, 1)


def test_tensors_become_arrays() -> None:
    """With a gradient, and in bfloat16, which NumPy does not have."""
    torch = pytest.importorskip("torch")
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert as_array(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert stack_rows([torch.ones(2), torch.zeros(2)], "x").tolist() == [[1, 1], [0, 0]]


def test_bfloat16_of_ml_dtypes_becomes_float32() -> None:
    """As TensorFlow hands it over."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert as_array(np.ones(2, ml_dtypes.bfloat16)).dtype == np.float32
