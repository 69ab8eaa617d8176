"""``predict_local(stop_at=)`` stops once, before the row that was asked for, and changes no answer."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest

import sparkinfer as si

TABLE = pa.table({"x": [0.0, 1.0, None, 3.0, 4.0, 5.0, 6.0]})
triple = si.PythonModel(lambda: lambda x: 3 * x)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the frames held in which the debugger would have stopped."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(dict(sys._getframe(1).f_locals)))
    return seen


def scored(**said: Any) -> list[float | None]:
    return si.predict_local(TABLE, triple, inputs="x", outputs="y double", on_null="null", batch_size=2, **said)["y"].to_pylist()


def test_it_stops_before_the_row_that_was_asked_for(stops: list[dict[str, Any]]) -> None:
    """A preprocess of single rows stops before that very one, though a null before it was never preprocessed."""
    plain = scored(preprocess=lambda x: x + 1)
    assert scored(preprocess=lambda x: x + 1, stop_at=("preprocess", 4)) == plain
    assert [frame["values"] for frame in stops] == [(4.0,)]


def test_it_stops_before_the_batch_that_holds_the_row(stops: list[dict[str, Any]]) -> None:
    """Of the batches (0, 1), (3, 4), (5, 6): the second, before the model, before a preprocess of batches, and after."""
    plain = scored(preprocess_batch=lambda x: x + 1, postprocess=lambda y: y - 1)
    for stage in ("preprocess", "predict", "postprocess"):
        assert scored(preprocess_batch=lambda x: x + 1, postprocess=lambda y: y - 1, stop_at=(stage, 3)) == plain
    before, model, after = stops
    assert before["values"][0].tolist() == [3.0, 4.0]
    assert model["inputs"].arrays["x"].tolist() == [4.0, 5.0]
    assert after["values"][0].tolist() == [12.0, 15.0]


def test_a_stage_alone_is_its_first_row(stops: list[dict[str, Any]]) -> None:
    """And only the first: the others run through."""
    scored(stop_at="predict")
    assert [frame["inputs"].arrays["x"].tolist() for frame in stops] == [[0.0, 1.0]]


def test_a_row_that_never_comes_is_told(stops: list[dict[str, Any]]) -> None:
    """Row 2 is null, and the model does not see it."""
    with pytest.warns(si.SparkInferWarning, match=r"stop_at=\('predict', 2\) was not reached"):
        scored(stop_at=("predict", 2))
    assert stops == []


@pytest.mark.parametrize("stop_at", ["encode", ("predict", -1), ("predict", "3"), "preprocess", ("postprocess", 1)])
def test_where_nothing_can_stop_is_refused(stop_at: Any) -> None:
    """No such stage, no such number, no function to stop before."""
    with pytest.raises(si.ConfigError, match="stop_at is"):
        scored(stop_at=stop_at)
