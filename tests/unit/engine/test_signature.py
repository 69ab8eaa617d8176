"""Inputs are checked against what a model says of itself, and against nothing that is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkinfer.engine.contracts import ModelPlan, TensorInfo
from sparkinfer.engine.signature import check_inputs
from sparkinfer.exceptions import ConfigError

X, OPTIONAL = TensorInfo("x", "float32", (3,)), TensorInfo("mask", "float32", (3,), optional=True)


def plan(*names: str, **options: Any) -> ModelPlan:
    """A model with inputs of these names, or with none that are known."""
    inputs = tuple(TensorInfo(name, "float32", None) for name in names) or None
    return ModelPlan(backend="fake", kind="fake", fingerprint="", label="Model('m')", inputs=inputs, options=options)


@pytest.mark.parametrize(
    ("model", "style", "names"),
    [
        (plan(), "named", ["anything", "at", "all"]),
        (plan("x"), "single", ["column"]),
        (plan("x"), "positional", ["column"]),
        (plan("x", ordered=False), "positional", ["column"]),
        (plan("x", "k"), "positional", ["a", "b"]),
        (plan("x", "k", ordered=False), "named", ["k", "x"]),
        (replace(plan(), inputs=(X, OPTIONAL)), "named", ["x"]),
        (replace(plan(), inputs=(X, OPTIONAL)), "named", ["mask", "x"]),
        (replace(plan(), inputs=(X, OPTIONAL)), "single", ["a"]),
        (plan("x", forward=(1, 2, ("x", "mask"))), "named", ["x", "mask"]),
        (plan(forward=(1, 2, ("x", "mask"))), "single", ["a"]),
        (plan(forward=(1, 2, ("x", "mask"))), "positional", ["a", "b"]),
        (plan(forward=(1, 2, ("x", "mask"))), "named", ["x"]),
        (plan(forward=(1, None, ("x",))), "positional", ["a", "b", "c"]),
        (plan(forward=(1, None, ("x",))), "named", ["x", "anything"]),
    ],
)
def test_inputs_that_fit_pass(model: ModelPlan, style: Any, names: list[str]) -> None:
    """By number for one or several in order, by name for named ones; optional ones may be left out."""
    check_inputs(model, style, names)


@pytest.mark.parametrize(
    ("model", "style", "names", "text"),
    [
        (plan("x", "k"), "single", ["a"], r"Model\('m'\) takes 2 inputs \('x', 'k'\), but 1 came. Give inputs={'x': column, 'k': column}"),
        (plan("x"), "positional", ["a", "b"], r"takes 1 input \('x'\), but 2 came"),
        (plan("x", "k", ordered=False), "positional", ["a", "b"], r"by name, they have no order \('x', 'k'\)"),
        (plan("pixels", "k"), "named", ["pixel", "k"], "no input 'pixel'. Did you mean 'pixels'"),
        (plan("x", "k"), "named", ["x"], r"needs 'k' as well, but only \['x'\] came"),
        (plan(forward=(1, 2, ("x", "mask"))), "positional", ["a", "b", "c"], r"takes 1 to 2 inputs \('x', 'mask'\), but 3 came"),
        (replace(plan(), inputs=(OPTIONAL, X)), "named", ["mask"], r"needs 'x' as well.*Give inputs={'x': column}"),
        (plan(forward=(2, None, ("x", "y"))), "single", ["a"], "takes at least 2 inputs"),
        (plan(forward=(1, 2, ("x", "mask"))), "named", ["mask"], "needs 'x' as well"),
        (plan(forward=(1, 2, ("x", "mask"))), "named", ["x", "musk"], "Did you mean 'mask'"),
        (plan(forward=(0, 0, ())), "single", ["a"], "takes 0 inputs, but 1 came. Give another number of inputs"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_those_that_would(model: ModelPlan, style: Any, names: list[str], text: str) -> None:
    """The message has the model, what it takes, what came, and what to write."""
    with pytest.raises(ConfigError, match=text):
        check_inputs(model, style, names)
