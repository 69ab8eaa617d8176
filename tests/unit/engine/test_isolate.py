"""Bad rows: found by halves, named, and left out; every row ends up with its prediction or with a reason."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.engine.batch import BadRow, Breach, Fault, Inputs
from sparkinfer.engine.isolate import ERROR_TYPE, Piece, assemble, by_halves, separate
from sparkinfer.exceptions import PredictError, SchemaError


@given(rows=st.integers(0, 200), bad=st.sets(st.integers(0, 199)), named=st.booleans())
def test_halving_finds_the_bad_rows_and_does_the_others(rows: int, bad: set[int], named: bool) -> None:
    """Whatever rows are bad, these are found and no others, each good row is done once and in order, in O(k log n) calls."""
    bad = {row for row in bad if row < rows}
    calls = []

    def do(start: int, stop: int) -> list[int]:
        calls.append((start, stop))
        inside = sorted(bad & set(range(start, stop)))
        if inside:
            raise Fault(PredictError, "no", row=inside[0] - start if named else None)
        return list(range(start, stop))

    pieces, found = by_halves(do, rows)
    assert sorted(one.row for one in found) == sorted(bad)
    assert {one.message for one in found} <= {"no"}
    assert sorted(row for piece in pieces for row in piece.made) == [row for row in range(rows) if row not in bad]
    assert all(piece.made == list(range(piece.start, piece.stop)) for piece in pieces)
    assert [piece.start for piece in pieces] == sorted(piece.start for piece in pieces)
    deep = math.ceil(math.log2(max(2, rows))) + 2
    assert len(calls) <= 1 + 3 * len(bad) * deep
    assert sum(stop - start for start, stop in calls) <= (1 + 2 * deep) * rows


def test_a_broken_contract_is_searched_nowhere() -> None:
    """Smaller parts would only hide it."""

    def do(start: int, stop: int) -> None:
        raise Breach(PredictError, "expected 4 rows, found 1")

    with pytest.raises(Breach):
        by_halves(do, 4)
    with pytest.raises(Breach):
        separate(lambda rows: do(0, len(rows)), np.arange(3))  # type: ignore[arg-type,return-value]


def shaped(*widths: int) -> list[np.ndarray]:
    return [np.zeros(width) for width in widths]


def maker(values: list[np.ndarray]):
    """Stack rows as the decoder does: the first row that differs from the first is to blame."""

    def make(rows: np.ndarray) -> Inputs:
        chosen = [values[int(row)] for row in rows]
        for number, value in enumerate(chosen):
            if np.isnan(value).any():
                raise Fault(SchemaError, "a NaN", row=number)
            if value.shape != chosen[0].shape:
                raise Fault(SchemaError, "uneven", row=number)
        return Inputs("single", {"x": np.stack(chosen)})

    return make


def test_the_odd_rows_are_those_that_differ_from_most() -> None:
    """Where the first row of a batch is the odd one, it is to blame, and not the thirty that agree; a row that is bad by itself is told apart."""
    values = [*shaped(3, 8, 8), np.full(8, np.nan), *shaped(8, 9)]
    make = maker(values)
    inputs, bad = separate(make, np.arange(6))
    assert inputs is not None
    assert inputs.arrays["x"].shape == (3, 8)
    assert {one.row: one.message.partition(":")[0] for one in bad} == {
        0: "its inputs have the shapes x (3,), and those of most rows of its batch x (8,)",
        5: "its inputs have the shapes x (9,), and those of most rows of its batch x (8,)",
        3: "a NaN",
    }


def test_a_fault_without_a_row_is_searched_by_halves() -> None:
    """A function of a whole batch does not say which row it was."""

    def make(rows: np.ndarray) -> Inputs:
        if 2 in rows:
            raise Fault(SchemaError, "somewhere")
        return Inputs("single", {"x": rows.astype(float)})

    inputs, bad = separate(make, np.array([0, 2, 5]))
    assert inputs is not None
    assert inputs.arrays["x"].tolist() == [0.0, 5.0]
    assert bad == [BadRow(2, "decode", "SchemaError", "somewhere")]


def test_padded_inputs_may_differ_in_shape() -> None:
    """Their lengths are those of each part; only the input that is not padded makes a row the odd one."""

    def make(rows: np.ndarray) -> Inputs:
        widths = {2 if row < 5 else 3 for row in rows.tolist()}
        if len(widths) > 1:
            raise Fault(SchemaError, "uneven", row=next(i for i, row in enumerate(rows.tolist()) if (row < 5) != (rows[0] < 5)))
        return Inputs("named", {"ids": np.zeros((len(rows), int(rows.max()) + 1)), "img": np.zeros((len(rows), widths.pop()))})

    inputs, bad = separate(make, np.arange(6), uneven={"ids"})
    assert inputs is not None
    assert len(inputs.arrays["img"]) == 5
    assert [one.row for one in bad] == [5]


def test_what_fails_only_together_is_told_of_every_row() -> None:
    """Each is fine alone, and they do not go together: the reason is the function's own."""

    def make(rows: np.ndarray) -> Inputs:
        if len(rows) > 2:
            raise Fault(SchemaError, "two at most")
        return Inputs("single", {"x": rows})

    inputs, bad = separate(make, np.arange(5))
    assert inputs is None
    assert {(one.row, one.message) for one in bad} == {(row, "two at most") for row in range(5)}


def test_where_no_row_is_fine_there_are_only_reasons() -> None:
    """No inputs, and as many reasons as rows."""
    values = [np.full(2, np.nan)] * 3
    inputs, bad = separate(maker(values), np.arange(3))
    assert inputs is None
    assert [one.row for one in bad] == [0, 1, 2]


@given(rows=st.integers(1, 50), data=st.data())
def test_every_row_has_its_prediction_or_its_reason(rows: int, data: st.DataObject) -> None:
    """Predictions lie on their own rows, in pieces or in one; a reason stands exactly where there is none."""
    bad = sorted(data.draw(st.sets(st.integers(0, rows - 1))))
    good = [row for row in range(rows) if row not in bad]
    cut = data.draw(st.integers(0, len(good)))
    parts = [(0, cut), (cut, len(good))] if 0 < cut < len(good) else [(0, len(good))]
    pieces = [Piece(start, stop, [pa.array(good[start:stop], pa.int64())]) for start, stop in parts if stop > start]
    column, error = assemble(pieces, [pa.int64()], rows, [BadRow(row, "predict", "ValueError", f"row {row}") for row in bad])
    assert error.type == ERROR_TYPE
    assert column.to_pylist() == [row if row in good else None for row in range(rows)]
    assert [one and one["message"] for one in error.to_pylist()] == [f"row {row}" if row in bad else None for row in range(rows)]
