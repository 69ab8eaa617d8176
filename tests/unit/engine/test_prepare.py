"""From a batch's columns to a model's inputs: styles, the user's functions, padding, and faults with their row."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkinfer.engine.batch import Failure, Inputs
from sparkinfer.engine.prepare import Binding, Prepare
from sparkinfer.exceptions import PreprocessError, SchemaError
from sparkinfer.pickling import dumps
from sparkinfer.schema import TensorSpec


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def step(*columns: str, function: Any = None, per_row: bool = True, specs: dict[str, TensorSpec] | None = None, **changes: Any) -> Prepare:
    """A step over columns; one of them is ``single``, several are ``positional``, unless said otherwise."""
    bindings = tuple(Binding(name, name, (specs or {}).get(name)) for name in columns)
    style: Any = changes.pop("style", "single" if len(columns) == 1 else "positional")
    code = b"" if function is None else dumps(function, "preprocess")
    return Prepare(style=style, bindings=bindings, function=code, per_row=per_row and function is not None, **changes)


def inputs(made: Inputs | Failure) -> tuple[str, dict[str, Any]]:
    """What the model gets, with lists in place of arrays."""
    assert isinstance(made, Inputs), made
    return made.style, {name: array.tolist() for name, array in made.arrays.items()}


def failure(made: Inputs | Failure) -> Failure:
    assert isinstance(made, Failure), made
    return made


def test_columns_become_inputs_in_the_users_style() -> None:
    """One, several in order, or by name."""
    data = batch(a=[1, 2], b=[3.0, 4.0])
    assert inputs(step("a")(data)) == ("single", {"a": [1, 2]})
    assert inputs(step("b", "a")(data)) == ("positional", {"b": [3.0, 4.0], "a": [1, 2]})
    assert inputs(step("b", "a", style="named")(data)) == ("named", {"b": [3.0, 4.0], "a": [1, 2]})


def test_a_struct_gives_its_fields_by_name() -> None:
    """Whatever the style was: a struct's fields have names."""
    assert inputs(step("s")(batch(s=[{"a": 1, "b": 2.0}]))) == ("named", {"a": [1], "b": [2.0]})


def test_no_rows_give_no_arrays_and_call_nothing() -> None:
    """A batch that only carries news of chunks is no reason to run the user's function."""
    empty = batch(x=pa.array([], pa.float64()))
    for made in (step("x"), step("x", function=lambda x: 1 / 0), step("x", function=lambda x: 1 / 0, per_row=False)):
        assert inputs(made(empty)) == ("single", {})
        assert inputs(made.columns(empty)) == ("single", {})


def test_preprocess_gets_one_rows_values_in_the_users_style() -> None:
    """Positional by position, named by the model's names; Python's own values."""
    data = batch(a=[1, 2], b=["x", "y"])
    by_position = step("a", "b", function=lambda a, b: f"{type(a).__name__} {a} {b}")
    assert inputs(by_position(data)) == ("single", {"input": ["int 1 x", "int 2 y"]})
    by_name = step("a", "b", style="named", function=lambda *, a, b: {"text": b, "twice": 2 * a})
    assert inputs(by_name(data)) == ("named", {"text": ["x", "y"], "twice": [2, 4]})


def test_preprocess_may_give_several_inputs() -> None:
    """A tuple in order, under the columns' names where they are as many; a dict by its own names."""
    data = batch(a=[1, 2], b=[3, 4])
    assert inputs(step("a", "b", function=lambda a, b: (b, a))(data)) == ("positional", {"a": [3, 4], "b": [1, 2]})
    assert inputs(step("a", function=lambda a: (a, -a))(data)) == ("positional", {"input_0": [1, 2], "input_1": [-1, -2]})


def test_what_preprocess_raises_is_a_failure_with_column_row_and_cause() -> None:
    """Also StopIteration, which would end a loop without a word; the row is the batch's."""

    def choke(x: int) -> int:
        if x == 7:
            return next(iter(()))
        if x == 8:
            raise ValueError("bad 8")
        return x

    found = failure(step("x", function=choke)(batch(x=[1, 8, 7])))
    assert (found.kind, found.column, found.row) == (PreprocessError, "x", 1)
    assert found.text == "preprocess raised ValueError: bad 8"
    assert "in choke" in found.cause
    assert "ValueError: bad 8" in found.cause
    found = failure(step("x", function=choke)(batch(x=[7])))
    assert (found.row, found.text.split(":")[0]) == (0, "preprocess raised StopIteration")


def test_no_column_is_blamed_where_several_were_handed_over() -> None:
    """Which of them the function choked on is not known."""
    found = failure(step("a", "b", function=lambda a, b: a / b)(batch(a=[1, 1], b=[1, 0])))
    assert (found.column, found.row) == (None, 1)


def test_preprocess_must_give_the_same_kind_for_every_row() -> None:
    """One array and then two is told with both."""
    found = failure(step("x", function=lambda x: x if x < 2 else (x, x))(batch(x=[1, 2])))
    assert found.text.startswith("preprocess gave positional arrays ['input_0', 'input_1'] here, and one array for the batch's first row")
    assert (found.column, found.row) == ("x", 1)


@pytest.mark.parametrize(
    ("function", "told", "row"),
    [
        (np.zeros, r"preprocess gave input 'x' the shape \(3,\) here, and \(2,\) for the batch's first row", 1),
        (lambda x: None if x == 3 else x, "preprocess gave None for input 'x', expected an array or a value", 1),
        (lambda x: [[1], [2, 3]] if x == 3 else [[1], [2]], "preprocess gave for input 'x' a list that is no array", 1),
    ],
)
def test_rows_that_make_no_array_are_refused(function: Any, told: str, row: int) -> None:
    """With the first row that does not go with those before it."""
    found = failure(step("x", function=function)(batch(x=[2, 3])))
    assert found.row == row
    assert re.match(told, found.text), found.text


def test_preprocess_batch_gets_the_columns_and_gives_inputs() -> None:
    """Rows of unequal length come as arrays of their own; a list of rows is made one array."""
    data = batch(x=[[1], [2, 3]], k=[5, 6])
    made = step("x", "k", per_row=False, function=lambda x, k: [row.sum() + number for row, number in zip(x, k, strict=True)])
    assert inputs(made(data)) == ("single", {"input": [6, 11]})


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: x[:-1], "preprocess_batch was given 3 rows and gave back 2 rows for input 'x'"),
        (lambda x: x.sum(), "preprocess_batch was given 3 rows and gave back a scalar for input 'x'"),
        (lambda x: None, "preprocess_batch was given 3 rows and gave back a scalar for input 'x'"),
        (lambda x: {"a": x, "b": x[:1]}, "gave back 1 rows for input 'b'"),
        (lambda x: 1 / 0, "preprocess_batch raised ZeroDivisionError: division by zero"),
        (lambda x: next(iter(())), "preprocess_batch raised StopIteration: "),
    ],
)
def test_preprocess_batch_is_held_to_its_rows(function: Any, told: str) -> None:
    """Before the model is called, with both numbers."""
    found = failure(step("x", per_row=False, function=function)(batch(x=[1, 2, 3])))
    assert found.kind is PreprocessError
    assert told in found.text


def as_objects(rows: Any) -> np.ndarray:
    """An object array of arrays, as code that once had ragged rows makes it."""
    made = np.empty(len(rows), dtype=object)
    made[:] = list(rows)
    return made


def test_an_object_array_of_equal_rows_is_stacked() -> None:
    """How the user's function packed its rows is no matter where they are of one shape."""
    made = step("x", per_row=False, function=lambda x: as_objects([np.array([value, -value]) for value in x]))(batch(x=[1, 2]))
    assert inputs(made) == ("single", {"x": [[1, -1], [2, -2]]})
    assert made.arrays["x"].dtype == np.int64


def test_a_matrix_of_text_passes_a_function() -> None:
    """Two axes of text are no rows of unequal length."""
    made = step("x", per_row=False, function=lambda x: x)(batch(x=[["a", "b"], ["c", "d"]]))
    assert inputs(made) == ("single", {"x": [["a", "b"], ["c", "d"]]})


def test_a_spec_holds_for_what_a_function_made() -> None:
    """Padded, cast and masked after preprocess, under the column's name; the mask joins in order."""
    spec = TensorSpec("float32", pad=0, mask="seen", lengths="long")
    made = step("x", function=np.arange, specs={"x": spec})(batch(x=[1, 3]))
    assert inputs(made) == ("positional", {"x": [[0, 0, 0], [0, 1, 2]], "seen": [[1, 0, 0], [1, 1, 1]], "long": [1, 3]})
    assert made.arrays["x"].dtype == np.float32


def test_a_spec_pads_a_column_to_the_batchs_longest() -> None:
    """C09: zeros, a mask, the lengths; named inputs get them by name, and the cut keeps the start."""
    data = batch(ids=[[1, 1], [2], [3, 3, 3]])
    by_name = step("ids", style="named", specs={"ids": TensorSpec("int64", pad=0, mask="mask")})(data)
    assert inputs(by_name) == ("named", {"ids": [[1, 1, 0], [2, 0, 0], [3, 3, 3]], "mask": [[1, 1, 0], [1, 0, 0], [1, 1, 1]]})
    cut = step("ids", specs={"ids": TensorSpec(pad=9, max_length=2)})(data)
    assert inputs(cut) == ("single", {"ids": [[1, 1], [2, 9], [3, 3]]})


def test_rows_of_unequal_length_without_padding_are_refused() -> None:
    """C09: with the column, the row and both lengths."""
    found = failure(step("ids")(batch(ids=[[1, 1], [2], [3, 3, 3]])))
    assert (found.kind, found.column, found.row) == (SchemaError, "ids", 1)
    assert "expected 2, found 1" in found.text


def test_a_spec_that_does_not_fit_is_told_with_both_shapes() -> None:
    """As the model would see them, with their rows."""
    found = failure(step("x", specs={"x": TensorSpec("float32", (2, 2))})(batch(x=[[1.0, 2.0, 3.0]])))
    assert found.kind is SchemaError
    assert "expected (rows, 2, 2), found (rows, 3)" in found.text


def test_nulls_pass_where_the_policy_says_so() -> None:
    """None in text, NaN in floats, for the model and for preprocess alike; an integer has no place for one."""
    data = batch(t=["a", None], f=[1.0, None], i=[1, None])
    assert inputs(step("t", nulls="pass")(data))[1] == {"t": ["a", None]}
    floats = step("f", nulls="pass")(data).arrays["f"]
    np.testing.assert_array_equal(floats, [1.0, np.nan])
    assert inputs(step("t", nulls="pass", function=lambda t: -1 if t is None else len(t))(data))[1] == {"t": [1, -1]}
    found = failure(step("i", nulls="pass")(data))
    assert (found.column, found.row) == ("i", 1)
    assert "a null cannot be handed to a model as int64" in found.text


def test_the_fingerprint_tells_steps_apart_and_survives_pickling() -> None:
    """Loader processes are reused by it: another function, style, spec or null policy is another step."""
    steps = [
        step("x"),
        step("x", style="named"),
        step("x", nulls="pass"),
        step("x", specs={"x": TensorSpec("float32")}),
        step("x", function=lambda x: x),
        step("x", function=lambda x: -x),
        step("x", function=lambda x: x, per_row=False),
        step("z"),
    ]
    assert len({made.fingerprint for made in steps}) == len(steps)
    assert [pickle.loads(pickle.dumps(made)).fingerprint for made in steps] == [made.fingerprint for made in steps]


def test_a_function_is_revived_once_a_process() -> None:
    """What it keeps in its globals lives on: two steps of the same bytes share it."""
    calls: list[int] = []

    def count(x: int) -> int:
        calls.append(x)
        return len(calls)

    data = batch(x=[1, 2])
    assert inputs(step("x", function=count)(data))[1] == {"x": [1, 2]}
    assert inputs(pickle.loads(pickle.dumps(step("x", function=count)))(data))[1] == {"x": [3, 4]}
    assert calls == []
