"""Two plans side by side: how far columns are apart, and rounds that are paired."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.analysis.precision import compared
from sparkinfer.engine.comparing import CompareWork, column_difference
from sparkinfer.local_sample import LocalSample
from sparkinfer.profiles import ProfilePlan

VECTORS = pa.list_(pa.float32())


def test_numbers_are_compared_where_both_are_finite():
    """The rest is counted apart."""
    told = column_difference(pa.array([1.0, 2.0, math.nan, math.inf]), pa.array([1.5, 2.0, math.nan, 3.0]))
    assert told == {"rows": 4, "values": 2, "lost": 1, "max_abs": 0.5, "sum_abs": 0.5, "sum_reference": 3.0}


def test_of_vectors_the_place_of_the_greatest_value_is_compared():
    """One of three rows has another one; rows of unlike lengths have no such place."""
    told = column_difference(pa.array([[1, 2], [2, 1], [3, 1]], VECTORS), pa.array([[1, 2], [1, 2], [3, 1]], VECTORS))
    assert (told["changed"], told["max_abs"]) == (1, 1.0)
    assert "changed" not in column_difference(pa.array([[1], [2, 1]], VECTORS), pa.array([[1], [2, 1]], VECTORS))


def test_labels_change_or_not():
    """Two nulls are the same, a null beside a label is not; lists and structs of labels as a whole."""
    assert column_difference(pa.array(["a", "b", None, None]), pa.array(["a", "c", None, "d"])) == {"rows": 4, "changed": 2}
    assert column_difference(pa.array([[1], [2]]), pa.array([[1], [3]]))["changed"] == 1
    assert column_difference(pa.array([{"a": 1.0}]), pa.array([{"a": 1.0}]))["changed"] == 0


def test_rounds_are_paired_and_both_plans_see_the_same_rows():
    """Three at least; the second plan's answers are compared with the first's, and a partition without rows tells nothing."""
    table = pa.table({"x": np.arange(40.0)})
    sample = [
        LocalSample(table, si.PythonModel(load), {"inputs": "x", "outputs": "y double, label string"}, si.InferenceConfig(batch_size=8))
        for load in (load_exact, load_rounded)
    ]
    work = CompareWork(first=sample[0].plan, second=sample[1].plan, rows=20, seconds=0.01)
    (told,) = sample[0].run(work, ProfilePlan(), 20)
    assert told["rows"] == 20
    assert len(told["rounds"]) >= 3
    assert all(seconds >= model > 0 for pair in told["rounds"] for seconds, model in pair)
    found = compared([told], "bf16", "model")
    assert (found.partitions, found.rows, found.rounds) == (1, told["rows"], len(told["rounds"]))
    assert found.gain.low <= found.gain.middle <= found.gain.high
    numbers, labels = found.outputs
    assert (numbers.name, numbers.max_abs, numbers.changed) == ("y", 0.5, None)
    assert labels.max_abs is None
    assert labels.changed == told["rows"] // 2
    assert "y: differs by 0.5 at most" in str(found)
    assert work(iter(()), files=dict) == {}


def load_exact():
    return lambda x: (x / 2, [f"{value % 2:g}" for value in x])


def load_rounded():
    return lambda x: (np.floor(x / 2), ["0"] * len(x))


def test_partitions_are_added_up():
    """Differences over all rows, the greatest of both; each pair of rounds gives one ratio."""
    one = {
        "rows": 10,
        "rounds": [[[2.0, 1.0], [1.0, 0.25]]] * 3,
        "outputs": {"y": {"rows": 10, "values": 10, "lost": 0, "max_abs": 0.5, "sum_abs": 1.0, "sum_reference": 10.0, "changed": 1}},
    }
    other = {
        "rows": 30,
        "rounds": [[[6.0, 4.0], [3.0, 1.0]]] * 3,
        "outputs": {"y": {"rows": 30, "values": 30, "lost": 1, "max_abs": 0.1, "sum_abs": 1.0, "sum_reference": 10.0, "changed": 3}},
    }
    found = compared([one, other], "bf16", "m")
    assert (found.gain.middle, found.model_gain.middle, found.fp32.middle, found.other.middle) == pytest.approx((2.0, 4.0, 5.0, 10.0))
    assert found.verdict == "faster"
    (y,) = found.outputs
    assert (y.rows, y.changed, y.max_abs, y.mean_abs, y.relative, y.lost) == (40, 4, 0.5, 0.05, 0.1, 1)
    assert y.changed_fraction == 0.1
    assert "<td>40</td>" in found._repr_html_()
    with pytest.raises(si.ConfigError, match="have no rows: name others"):
        compared([], "bf16", "m")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"precision": "fp32"}, "which is what it would be compared with"),
        ({"precision": "bf17"}, "precision is 'bf17', expected"),
        ({"precision": "bf16"}, "the backend 'numpy' of .* computes in the numbers that the model was saved with"),
        ({"precision": "bf16", "rows": 0}, "rows is 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(said, told):
    """Before any row is scored."""
    with pytest.raises(si.ConfigError, match=told):
        si.compare_precision(pa.table({"x": [1.0]}), si.PythonModel(load_exact), **said, inputs="x", outputs="y double, label string")
