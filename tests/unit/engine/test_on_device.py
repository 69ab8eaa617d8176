"""``preprocess_on_device``: called as a model is, its answer read as a preprocess's; what it breaks is told in its own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparkinfer.engine.batch import BadRow, Breach, Fault
from sparkinfer.engine.on_device import call_on_device
from sparkinfer.exceptions import PreprocessError

ROWS = {"a": np.array([1, 2]), "b": np.array([3, 4])}


def call(function: Callable[..., Any], style: Any = "positional", tensors: Any = None) -> tuple[str, dict[str, Any]]:
    """With NumPy's arrays in the place of a framework's tensors."""
    made_style, made = call_on_device(function, style, ROWS if tensors is None else tensors, np.ndarray)
    return made_style, {name: array.tolist() for name, array in made.items()}


@pytest.mark.parametrize(
    ("style", "function", "expected"),
    [
        ("positional", lambda a, b: (a * 2, b), ("positional", {"a": [2, 4], "b": [3, 4]})),
        ("positional", lambda a, b: (a, b, a), ("positional", {"input_0": [1, 2], "input_1": [3, 4], "input_2": [1, 2]})),
        ("positional", lambda a, b: a + b, ("single", {"input": [4, 6]})),
        ("named", lambda *, b, a: {"sum": a + b}, ("named", {"sum": [4, 6]})),
    ],
)
def test_it_is_called_as_the_model_would_be(style: str, function: Callable[..., Any], expected: Any) -> None:
    """By order or by name; one tensor, a tuple or a dict goes on to the model."""
    assert call(function, style) == expected


def test_a_single_input_keeps_its_name() -> None:
    """Messages and a model's signature know it by that."""
    assert call(lambda x: x * 3, "single", {"x": np.array([1, 2])}) == ("single", {"x": [3, 6]})


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda a, b: a[:1], "preprocess_on_device was given 2 rows and gave back 1 rows for input 'input'"),
        (lambda a, b: (a, b.sum() + np.zeros(())), "gave a float64 for input 'b', expected a tensor|gave back a scalar for input 'b'"),
        (lambda a, b: {"x": [1, 2]}, "preprocess_on_device gave a list for input 'x', expected a tensor"),
        (lambda a, b: None, "preprocess_on_device gave a NoneType for input 'input', expected a tensor"),
    ],
)
def test_a_broken_contract_is_no_rows_fault(function: Callable[..., Any], told: str) -> None:
    """Halving the batch would only hide it."""
    with pytest.raises(Breach, match=told) as caught:
        call(function)
    assert (caught.value.kind, caught.value.stage) == (PreprocessError, "preprocess_on_device")


def test_what_it_raises_is_told_in_its_name() -> None:
    """With the first cause, and as a stage of its own in the error column."""

    def broken(a: Any, b: Any) -> Any:
        raise ValueError("no such size")

    with pytest.raises(Fault, match="preprocess_on_device raised ValueError: no such size") as caught:
        call(broken)
    bad = BadRow.of(caught.value, 3)
    assert (bad.stage, bad.type) == ("preprocess_on_device", "ValueError")
    assert "Raised in broken (test_on_device.py" in bad.message


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA error: device-side assert triggered")])
def test_memory_that_ran_out_and_a_lost_device_stay_what_they_are(error: Exception) -> None:
    """The loop cuts the batch, or ends: neither is the function's fault."""

    def broken(a: Any, b: Any) -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        call(broken)
    assert caught.value is error
