"""A look at layers: times without the looking, who is to blame for a NaN, which units are dead; and what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.engine.inside import Layers, Look
from sparkinfer.engine.output_figures import output_figures
from sparkinfer.insides import Labels

NAN, INF = math.nan, math.inf


class Clock:
    """Stands still but for what it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def clean() -> tuple[bool, bool]:
    return False, False


def look(array: Any, axis: int | None = 1) -> Callable[[], Look]:
    return lambda: Look(np.asarray(array, np.float32), axis)


def test_a_layers_time_is_without_the_layers_in_it_and_without_the_looking():
    """The block takes 7, of which 4 are its part's; half a second passes at each hook, and is nobody's."""
    clock = Clock()
    layers = Layers(clock)

    def hook(did: Callable[[], None]) -> None:
        did()
        clock.now += 0.5

    with layers.call(2, timed=True):
        hook(lambda: layers.enter("block", "Block", leaf=False, came=clean))
        clock.now += 1.0
        layers.enter("part", "Linear", leaf=True, came=clean)
        clock.now += 4.0
        layers.leave(object(), look([[1.0]]))
        clock.now += 2.0
        layers.leave(object(), look([[1.0]]))
    seen = {layer.name: (layer.seconds, layer.timed, layer.calls) for layer in layers.found({})}
    assert seen == {"block": (3.5, 1, 0), "part": (4.0, 1, 0)}


def test_what_is_downstream_of_a_nan_is_not_to_blame():
    """The first layer gives one, the second hands it on, and the block around them is explained by its part."""
    layers = Layers()
    for _ in range(2):
        with layers.call(2, timed=False):
            layers.enter("block", "Block", leaf=False, came=clean)
            layers.enter("log", "Log", leaf=True, came=clean)
            layers.leave(object(), look([[NAN, 1.0], [2.0, 3.0]]))
            layers.enter("linear", "Linear", leaf=True, came=lambda: (True, False))
            layers.leave(object(), look([[NAN, NAN], [2.0, 3.0]]))
            layers.leave(object(), look([[NAN, NAN], [2.0, 3.0]]))
    seen = {layer.name: (layer.nan_calls, layer.nan_arising) for layer in layers.found({})}
    assert seen == {"block": (2, 0), "log": (2, 2), "linear": (2, 0)}


def test_a_nan_that_arises_between_layers_is_the_blocks():
    """No part gives one, and the block does, from clean input."""
    layers = Layers()
    with layers.call(1, timed=False):
        layers.enter("block", "Block", leaf=False, came=clean)
        layers.enter("linear", "Linear", leaf=True, came=clean)
        layers.leave(object(), look([[1.0]]))
        layers.leave(object(), look([[NAN]]))
    assert [(layer.name, layer.nan_arising, layer.number) for layer in layers.found({})] == [("block", 1, 0), ("linear", 0, 1)]


def test_infinite_values_have_their_own_source():
    """A layer makes infinite values, the next makes NaN of them: each is to blame for its own."""
    layers = Layers()
    with layers.call(1, timed=False):
        layers.enter("exp", "Exp", leaf=True, came=clean)
        layers.leave(object(), look([[INF]]))
        layers.enter("norm", "Norm", leaf=True, came=lambda: (False, True))
        layers.leave(object(), look([[NAN]]))
    assert [(layer.infinite_arising, layer.nan_arising) for layer in layers.found({})] == [(1, 0), (0, 1)]


def test_units_that_are_zero_in_every_row_are_dead():
    """Over two batches, along the axis of the channels; shape and rows are told."""
    layers = Layers()
    for batch in (np.zeros((2, 3, 4)), np.ones((3, 3, 4)) * np.array([1, 0, 0]).reshape(1, 3, 1)):
        with layers.call(len(batch), timed=False):
            layers.enter("conv", "Conv1d", leaf=True, came=clean)
            layers.leave(object(), look(batch))
    (layer,) = layers.found({})
    assert (layer.units, layer.dead, layer.rows, layer.shape, layer.calls) == (3, 2, 5, "3x4", 2)


def test_uses_of_one_layer_are_told_apart():
    """Its second use in a call has a name of its own; from the eighth on they are one."""
    layers = Layers()
    for _ in range(2):
        with layers.call(1, timed=False):
            for use in range(10):
                layers.enter("relu", "ReLU", leaf=True, came=clean)
                layers.leave(object(), look([[float(use)]]))
    seen = {layer.name: (layer.calls, layer.values.mean) for layer in layers.found({})}
    assert list(seen) == ["relu", *(f"relu ({number})" for number in range(2, 9))]
    assert seen["relu (2)"] == (2, 1.0)
    assert seen["relu (8)"] == (6, 8.0)


def test_a_block_that_hands_on_what_its_part_gave_is_not_counted_again():
    """The very same object: no figures of its own, and still its time."""
    layers, given = Layers(), object()
    for timed in (True, False):
        with layers.call(1, timed=timed):
            layers.enter("block", "Sequential", leaf=False, came=clean)
            layers.enter("linear", "Linear", leaf=True, came=clean)
            layers.leave(given, look([[1.0]]))
            layers.leave(given, look([[1.0]]))
    assert [(layer.name, layer.calls, layer.timed) for layer in layers.found({})] == [("block", 0, 1), ("linear", 1, 1)]


def test_a_layer_that_cannot_be_looked_at_costs_a_remark():
    """And nobody is accused of what it may have given."""
    layers = Layers()

    def broken() -> Any:
        msg = "no such tensor"
        raise TypeError(msg)

    with layers.call(1, timed=False):
        layers.enter("strange", "Strange", leaf=True, came=broken)
        layers.leave(object(), look([[NAN]]))
        layers.enter("stranger", "Strange", leaf=True, came=clean)
        layers.leave(object(), broken)
    assert [(layer.name, layer.nan_arising) for layer in layers.found({})] == [("strange", 0), ("stranger", 0)]
    assert list(layers.remarks)[1] == "the layer 'stranger' could not be looked at: TypeError: no such tensor"


def test_a_failed_call_leaves_no_layer_open():
    """The next call begins anew."""
    layers = Layers()
    with layers.call(1, timed=False):
        layers.enter("a", "A", leaf=True, came=clean)  # and never left
    with layers.call(1, timed=False):
        layers.enter("a", "A", leaf=True, came=clean)
        layers.leave(object(), look([[1.0]]))
    assert [(layer.name, layer.calls) for layer in layers.found({})] == [("a", 1)]


def test_columns_are_counted_as_what_they_are():
    """Numbers in lists, the greatest of each vector, labels, structs, nulls; bytes are left out."""
    chunk = pa.RecordBatch.from_pydict(
        {
            "scores": pa.array([[0.1, 0.9], [0.8, 0.2], None, [NAN, 0.1]], pa.list_(pa.float32())),
            "ragged": pa.array([[1.0], [], [2.0, 3.0], None], pa.list_(pa.float64())),
            "label": ["cat", "dog", "cat", None],
            "count": [1, 1, 2, 3],
            "both": pa.array([{"a": 1.5, "b": True}, None, {"a": None, "b": False}, {"a": 2.5, "b": True}]),
            "raw": [b"x", b"y", None, b"z"],
        }
    )
    seen = output_figures(chunk)
    assert list(seen) == ["scores", "argmax of scores", "ragged", "label", "count", "both.a", "both.b"]
    assert (seen["scores"].count, seen["scores"].nulls, seen["scores"].nans) == (7, 1, 1)
    assert seen["argmax of scores"] == Labels(counts={"0": 1, "1": 1}, nulls=2)
    assert (seen["ragged"].measured, seen["ragged"].mean, seen["ragged"].nulls) == (3, 2.0, 1)
    assert seen["label"] == Labels(counts={"cat": 2, "dog": 1}, nulls=1)
    assert seen["count"].counts == {"1": 2, "2": 1, "3": 1}
    assert (seen["both.a"].mean, seen["both.a"].nulls) == (2.0, 2)
    assert seen["both.b"] == Labels(counts={"True": 2, "False": 1}, nulls=1)


def rows(number: int, start: float = 0.0) -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(float(number)) + start})


def inspected(data: Any, function: Callable[..., Any], outputs: str = "y double", **said: Any) -> si.ModelInspection:
    return si.inspect_model(data, si.PythonModel(lambda: function), inputs="x", outputs=outputs, **{"batch_size": 4, **said})


def test_a_python_model_is_looked_at_from_outside():
    """Inputs and outputs, of as many batches as were said, spread over the table; a remark says why there are no layers."""
    seen = inspected(rows(400), lambda x: x * 2, batches=3)
    assert (seen.seen.rows, seen.seen.batches, seen.seen.partitions) == (12, 3, 1)
    assert seen.seen.inputs["x"].high > 300
    assert seen.outputs["name"].tolist() == ["y"]
    assert seen.layers.empty
    assert seen.findings == ()
    assert "the layers of a model of the backend 'numpy' cannot be reached" in seen.remarks[0]


def test_wrong_outputs_are_told():
    """NaN among them, the same in every row, a label that never changes; the input's NaN is told first."""
    assert inspected(rows(8), lambda x: np.where(x < 2, NAN, x)).findings == ("the output 'y' holds NaN in 25% of its values",)
    assert inspected(rows(8), lambda x: x * 0).findings == ("the output 'y' is 0 in all 8 values that were sampled",)
    same = inspected(rows(8), lambda x: ["cat"] * len(x), outputs="label string")
    assert same.findings == ("the output 'label' is 'cat' in each of the 8 sampled rows",)
    broken = pd.DataFrame({"x": [np.array([1.0, NAN]), np.array([2.0, 3.0])]})
    assert inspected(broken, lambda x: x[:, 0]).findings == ("the input 'x' holds NaN in 25% of its values",)


def test_the_buckets_can_be_had():
    """Of an output, its values in order; an unknown name is told the nearest."""
    table = inspected(rows(8), lambda x: x - 4).histogram("y")
    assert table["count"].sum() == 8
    assert table["low"].is_monotonic_increasing
    assert (table["low"].iloc[0], table["high"].iloc[0], table["count"].iloc[0]) == (-4.5, -4.0, 1)
    with pytest.raises(si.ConfigError, match=r"name is 'yy', of which there is no histogram\. Did you mean 'y'"):
        inspected(rows(8), lambda x: x).histogram("yy")


def test_partitions_are_merged_and_others_left_alone():
    """Of three tables two are looked at; the figures are of both."""
    tables = [pa.table({"x": np.full(8, value)}) for value in (1.0, 3.0, 100.0)]
    seen = inspected(tables, lambda x: x)
    assert (seen.seen.partitions, seen.seen.rows) == (2, 16)
    assert seen.seen.outputs["y"].mean == 2.0
    named = inspected(tables, lambda x: x, partitions=(2,))
    assert named.seen.outputs["y"].mean == 100.0


def test_a_baseline_is_kept_and_compared(tmp_path):
    """The same rows do not drift; others do, by name; what is no baseline is refused."""
    then = inspected(rows(1000), lambda x: x / 1000, batches=200)
    path = then.save_baseline(tmp_path / "kept" / "baseline.json")
    again = inspected(rows(1000), lambda x: x / 1000, batches=200, baseline=path)
    assert again.findings == ()
    assert again.drift
    assert not any(one.drifted for one in again.drift)
    moved = inspected(rows(1000, start=500.0), lambda x: x / 1000, batches=200, baseline=path)
    assert [finding.partition(" is not")[0] for finding in moved.findings] == ["drift: input 'x'", "drift: output 'y'"]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(si.ConfigError, match=r"expected a file that save_baseline wrote .*: KeyError"):
        inspected(rows(8), lambda x: x, baseline=tmp_path / "other.json")


def test_another_model_and_few_rows_are_remarked(tmp_path):
    """Drift of a model that was changed may be the model's."""
    path = inspected(rows(8), lambda x: x).save_baseline(tmp_path / "baseline.json")
    remarks = " ".join(inspected(rows(8), lambda x: x + 1, baseline=path).remarks)
    assert "the baseline is of another model" in remarks
    assert "8 rows then and 8 now: chance alone moves so few" in remarks


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"batches": 0}, "bounded is 0|batches is 0"),
        ({"partitions": ()}, "partitions is"),
        ({"bath_size": 3}, "Did you mean 'batch_size'"),
        ({"baseline": "gone.json"}, "baseline is 'gone.json'"),
        ({"partitions": (3,)}, "have no rows: name others"),
    ],
)
def test_what_is_wrong_is_refused(said, told):
    """By name, with the way out."""
    with pytest.raises(si.ConfigError, match=told):
        inspected(rows(8), lambda x: x, **said)


def test_the_users_functions_are_in_the_way():
    """The model gets what preprocess gives, and what is counted is what postprocess gives."""
    seen = inspected(
        rows(8),
        lambda x: x,
        preprocess_batch=lambda x: x + 100,
        postprocess=lambda y: np.where(y > 103, "high", "low"),
        outputs="label string",
    )
    assert seen.seen.inputs["x"].low == 100.0
    assert seen.seen.outputs["label"] == Labels(counts={"low": 4, "high": 4})
