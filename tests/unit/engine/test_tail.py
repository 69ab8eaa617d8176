"""Short batches are filled up where that is asked for; nobody sees the rows that fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sparkinfer.backends.numpy import PythonLoaded
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.batch import Fault, Inputs
from sparkinfer.engine.contracts import ModelPlan
from sparkinfer.engine.partition import run_partition
from sparkinfer.engine.tail import Padded, with_full_batches
from sparkinfer.testing import EchoModel, Ledger, RaisingModel
from tests.unit.engine.test_partition import chunks, plan, run

if TYPE_CHECKING:
    import pyarrow as pa


def rows_of(made: Any, source: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for chunk in run(made, source) for row in chunk.to_pylist()]


def loaded(predict: Callable[..., Any]) -> PythonLoaded:
    return PythonLoaded(None, predict)


@pytest.mark.parametrize(("pad_tail", "sizes"), [(True, [4, 4, 4]), ("auto", [4, 4, 2]), (False, [4, 4, 2])])
def test_a_short_batch_is_filled_up_where_it_is_asked_for(pad_tail: Any, sizes: list[int], ledger: Ledger) -> None:
    """Ten rows in batches of four: the model sees full batches, and each row has its own answer; a Python model asks for no filling by itself."""
    scored = rows_of(plan(EchoModel(ledger), batch_size=4, pad_tail=pad_tail), chunks(7, 3))
    assert [row["y"] for row in scored] == [i / 2 for i in range(10)]
    assert ledger.rows("predict") == sizes


def test_a_batch_without_its_bad_row_is_filled_up_too(ledger: Ledger) -> None:
    """Every call has four rows, those of the search among them, and the reason stands at the bad row alone."""
    seen = plan(RaisingModel(ledger, trigger=2.5), batch_size=4, pad_tail=True, on_error="null")
    scored = rows_of(seen, chunks(6))
    assert [row["y"] for row in scored] == [0.0, 0.5, 1.0, 1.5, 2.0, None]
    assert set(ledger.rows("predict")) == {4}


def wrong() -> Callable[..., Any]:
    return lambda x: x[:-1] if len(x) > 3 else x


def test_a_wrong_number_of_answers_is_told_as_ever() -> None:
    """The rows are counted before the fill is cut off: else three answers to two rows and two of fill would pass."""
    made = plan(wrong, batch_size=4, pad_tail=True, outputs="y double")
    with pytest.raises(Exception, match="expected 4 rows, found 3"):
        run(made, chunks(2))


def test_every_form_of_inputs_and_answers_is_filled_and_cut() -> None:
    """Arrays of numbers and of text, lists, several outputs by order and by name, nested, and rows as a list."""
    seen: dict[str, Any] = {}

    def predict(**named: Any) -> Any:
        seen.update(named)
        x = named["x"]
        return {"array": x, "rows": [f"row {value}" for value in x], "inner": {"deep": x}}

    inputs = Inputs("named", {"x": np.array([1.0, 2.0]), "text": np.array(["a", None], dtype=object), "list": ["a", "b"]})
    answer = Padded(loaded(predict), lambda: 5).predict(inputs)
    assert [list(value) for value in seen.values()] == [[1, 2, 2, 2, 2], ["a", None, None, None, None], ["a", "b", "b", "b", "b"]]
    assert (list(answer["array"]), answer["rows"], list(answer["inner"]["deep"])) == ([1, 2], ["row 1.0", "row 2.0"], [1, 2])
    pair = Padded(loaded(lambda x: (x, -x)), lambda: 3).predict(Inputs("single", {"x": np.array([1.0])}))
    assert [one.tolist() for one in pair] == [[1.0], [-1.0]]


def test_calls_under_way_are_filled_and_cut() -> None:
    """What waits for a call's results gives those of the rows that came; a full batch goes through as it is."""

    class Card(PythonLoaded):
        def start(self, inputs: Inputs) -> Callable[[], Any]:
            return lambda: inputs.arrays["x"] * 2

    assert not hasattr(Padded(loaded(len), lambda: 3), "start")
    watched = Card(None, len)
    watched.start = None  # type: ignore[assignment,method-assign]
    assert not hasattr(Padded(watched, lambda: 3), "start")
    padded = Padded(Card(None, len), lambda: 3)
    for size in (2, 3):
        wait = padded.start(Inputs("single", {"x": np.arange(size)}))
        assert wait().tolist() == [0, 2, 4][:size]


class Small:
    """A model whose device has room for three rows; takes down what it is called with."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self) -> Callable[..., Any]:
        def predict(x: np.ndarray) -> np.ndarray:
            SIZES.append(len(x))
            if len(x) > 3:
                raise MemoryError
            return x

        return predict


SIZES: list[int] = []


def test_what_was_cut_for_memory_is_not_filled_up_again() -> None:
    """Full batches do not fit, and filling the halves up would never end; the rows all come."""
    SIZES.clear()
    scored = run_partition(plan(Small(), batch_size=8, pad_tail=True, models_per_worker=0), chunks(10), files=dict)
    assert [row["y"] for chunk in scored for row in chunk.to_pylist()] == [i / 2 for i in range(10)]
    assert SIZES[0] == 8
    assert max(SIZES[1:]) <= 4


@pytest.mark.parametrize(
    ("options", "pad_tail", "retraces", "rows"),
    [
        ({}, "auto", False, None),
        ({}, "auto", True, 64),
        ({}, False, True, None),
        ({}, True, False, 64),
        ({"rows": 8}, "auto", False, 8),
        ({"rows": 1}, False, False, None),
    ],
)
def test_who_is_filled_up(options: dict[str, int], pad_tail: Any, retraces: bool, rows: int | None) -> None:
    """Left to the library: where a compilation would be needed, or where the model takes one number of rows only."""
    model = loaded(lambda x: x)
    described = ModelPlan(backend="numpy", kind="fake", fingerprint="f", label="m", options=options)
    made = with_full_batches(model, described, InferenceConfig(pad_tail=pad_tail), lambda: 64, retraces=retraces)
    assert (made is model) == (rows is None)
    if rows is not None:
        sizes = []
        model._predict = lambda x: sizes.append(len(x)) or x
        assert made.predict(Inputs("single", {"x": np.arange(1)})).tolist() == [0]
        assert sizes == [rows]


def test_a_batch_axis_that_is_fixed_is_kept_where_memory_is_short() -> None:
    """Such a model takes nothing else, whatever fits."""
    calls: list[int] = []

    def predict(x: np.ndarray) -> np.ndarray:
        calls.append(len(x))
        if len(calls) == 1:
            raise MemoryError
        return x

    padded = Padded(loaded(predict), lambda: 4, fixed=True)
    with pytest.raises((MemoryError, Fault)):
        padded.predict(Inputs("single", {"x": np.arange(4)}))
    padded.predict(Inputs("single", {"x": np.arange(2)}))
    assert calls == [4, 4]
