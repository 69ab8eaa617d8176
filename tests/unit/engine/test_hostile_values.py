"""Values that Spark holds and Python or a type does not: refused with their place, or kept as they are, in messages of bounded length."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.engine.batch import bounded
from sparkinfer.exceptions import SparkInferError

LONG = "x" * 10_000_000
NO_UTF8 = pa.array([b"fine", b"\xff\xfe no text", b"too"]).view(pa.string())
YEARS = pa.array([0, 2**62, 0], pa.int64()).view(pa.timestamp("us"))


def score(column: pa.Array, function: Callable[..., Any] = lambda x: x, outputs: str = "y string", **more: Any) -> pa.Table:
    """Score one column ``x`` beside its ``id``."""
    table = pa.table({"id": pa.array([f"row {row}" for row in range(len(column))]), "x": column})
    return si.predict_local(table, si.PythonModel(lambda: function), outputs=outputs, **{"inputs": "x", **more})


def same(value: Any) -> Any:
    return value


@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_a_text_that_is_no_utf8_is_a_bad_row_with_its_place(per_row: bool, prefetch_batches: int) -> None:
    """Spark casts any bytes to a string; the row and its first bytes are told, and the others are scored where that was asked for."""
    more: dict[str, Any] = {"prefetch_batches": prefetch_batches, **({"preprocess": same} if per_row else {})}
    with pytest.raises(si.SparkInferError, match=r"no UTF-8 \(it begins with b'\\xff\\xfe no text'\).*column 'x'.*row 1"):
        score(NO_UTF8, **more)
    scored = score(NO_UTF8, on_error="null", **more)
    assert scored["y"].to_pylist() == ["fine", None, "too"]
    assert "no UTF-8" in scored["error"][1].as_py()["message"]


def test_a_text_that_is_no_utf8_inside_an_array_or_as_key() -> None:
    """The row of the column is named; a key that cannot be shown does not hide the error that it belongs to."""
    lists = pa.ListArray.from_arrays([0, 1, 3], NO_UTF8)
    with pytest.raises(si.SparkInferError, match=r"no UTF-8.*row 1"):
        score(lists, outputs="y array<string>")
    with pytest.raises(si.SparkInferError, match=r"no UTF-8.*row 1 \(x=<a string that Python cannot show>\)"):
        score(NO_UTF8, key="x")


def test_moments_that_python_does_not_have() -> None:
    """Whole batches keep them, as NumPy has them; a function of one row gets datetimes, which end with the year 9999."""
    scored = score(YEARS, lambda x: x.astype("int64"), "y bigint")
    assert scored["y"].to_pylist() == [0, 2**62, 0]
    with pytest.raises(si.SparkInferError, match=r"outside of the years 1 to 9999.*row 1"):
        score(YEARS, outputs="y bigint", preprocess=lambda x: x.year)
    tolerated = score(YEARS, outputs="y bigint", preprocess=lambda x: x.year, on_error="null")
    assert tolerated["y"].to_pylist() == [1970, None, 1970]


@pytest.mark.parametrize("nested", [False, True])
def test_decimals_asked_for_as_integers_keep_every_digit(nested: bool) -> None:
    """By way of float64 the last digits of 2**53 + 1 would be others; what is no integer is refused."""

    def column(*values: str) -> pa.Array:
        decimals = pa.array([Decimal(value) for value in values], pa.decimal128(38, 1))
        return pa.FixedSizeListArray.from_arrays(decimals, 1) if nested else decimals

    asked = ("x", si.TensorSpec("int64"))
    scored = score(column("9007199254740993", "-9223372036854775808"), lambda x: x.ravel(), "y bigint", inputs=asked)
    assert scored["y"].to_pylist() == [2**53 + 1, -(2**63)]
    for odd in ("0.5", "9223372036854775808"):
        with pytest.raises(si.SparkInferError, match=r"asked for as integers, but holds another number.*row 1"):
            score(column("1", odd), outputs="y bigint", inputs=asked)


@pytest.mark.parametrize(
    ("dtype", "value", "kept"),
    [("int32", 2**31 - 1, True), ("int32", 2**31, False), ("int64", -(2**63), True), ("uint8", 255, True), ("uint8", -1, False)],
)
def test_integers_at_the_ends_of_their_types(dtype: Any, value: int, kept: bool) -> None:
    """The last value that fits arrives as it is; the next is refused with its row, and never wrapped."""
    column = pa.array([0, value], pa.int64())
    asked = ("x", si.TensorSpec(dtype))
    if kept:
        assert score(column, lambda x: x.astype("int64"), "y bigint", inputs=asked)["y"].to_pylist() == [0, value]
    else:
        with pytest.raises(si.SparkInferError, match=rf"{value} is none.*row 1"):
            score(column, outputs="y bigint", inputs=asked)


@pytest.mark.parametrize(
    ("made", "outputs", "told"),
    [
        pytest.param(np.array([1, 200], np.uint8), "y tinyint", "200", id="uint8"),
        pytest.param(np.array([1, 2**64 - 1], np.uint64), "y bigint", "18446744073709551615", id="uint64"),
        pytest.param(np.array([1, np.inf]), "y int", "inf", id="infinity"),
        pytest.param(np.array([1, np.nan]), "y bigint", "nan", id="nan"),
        pytest.param(np.array(["2024-01-01", "30000000-01-01"], "datetime64[D]"), "y date", "too far from 1970", id="date"),
        pytest.param(np.array(["2024-01-01", "300000-01-01"], "datetime64[D]"), "y timestamp", "too far from 1970", id="timestamp"),
        pytest.param(["fine", "half \ud800"], "y string", "UTF-8 cannot hold", id="surrogate"),
        pytest.param([["fine"], ["half \ud800"]], "y array<string>", "UTF-8 cannot hold", id="surrogate in an array"),
        pytest.param([b"fine", b"\xff"], "y string", "no UTF-8", id="bytes"),
        pytest.param([1, LONG], "y int", "convert it in postprocess", id="10 MB"),
    ],
)
def test_an_output_that_its_type_cannot_hold_is_refused_and_never_changed(made: Any, outputs: str, told: str) -> None:
    """Each names column and place, in a message that is no longer than a page."""
    with pytest.raises(si.SparkInferError) as caught:
        score(pa.array([0, 1]), lambda x: made, outputs)
    message = str(caught.value)
    assert told in message
    assert "output column 'y'" in message
    assert len(message) < 3000


def test_infinities_nans_and_zeros_bytes_pass_as_they_are() -> None:
    """They are values; only their types can refuse them."""
    floats = pa.array([np.inf, -np.inf, np.nan, -0.0])
    assert str(score(floats, outputs="y double")["y"].to_pylist()) == "[inf, -inf, nan, -0.0]"
    texts = pa.array(["a\0b", "", "\0", "\U0010ffff"])
    assert score(texts)["y"].to_pylist() == texts.to_pylist()


def raises(value: Any) -> Any:
    raise ValueError(value)


def blames(value: Any) -> Any:
    if len(value[0]) > 100:
        raise ValueError(value[0])
    return value


@pytest.mark.parametrize("text", [LONG, "half \ud800"], ids=["10 MB", "surrogate"])
@pytest.mark.parametrize("where", ["preprocess", "model", "postprocess", "key"])
def test_what_a_message_holds_of_the_data_is_bounded_and_text(text: str, where: str) -> None:
    """The message, everything that it was raised from, and the error column: Spark writes them all into its logs."""
    column = pa.array([0, 1])
    more: dict[str, Any] = {"batch_size": 1}
    function: Callable[..., Any] = lambda x: x  # noqa: E731
    if where == "model":
        function = lambda x: raises(text)  # noqa: E731
    elif where == "key":
        column, function, more["key"] = pa.array([LONG, "b"]), lambda x: raises("no"), ["x"]
    else:
        more[where] = lambda x: raises(text)
    with pytest.raises(SparkInferError) as caught:
        score(column, function, **more)
    told = []
    error: BaseException | None = caught.value
    while error is not None:
        told.append(str(error))
        error = error.__cause__
    assert sum(map(len, told)) < 30_000
    assert "".join(told).encode()
    more.pop("key", None)
    reasons = score(column, function, on_error="null", **more)["error"].to_pylist()
    assert all(len(reason["message"]) < 3000 for reason in reasons)


def test_a_long_text_keeps_its_ends() -> None:
    """The beginning says what happened, and the end what to do."""
    text = bounded("what " + "x" * 5000 + " do")
    assert text.startswith("what x")
    assert text.endswith("x do")
    assert "[... 3008 characters ...]" in text
    assert bounded("short") == "short"
