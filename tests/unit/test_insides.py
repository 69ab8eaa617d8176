"""What is seen inside a model, as values: whatever is merged in whatever order, the figures are those of all numbers together."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sparkinfer.insides import (
    OTHERS,
    GraphNode,
    Insides,
    Labels,
    LayerSeen,
    ModelGraph,
    Values,
    bucket_bounds,
    merge_insides,
    most_labels,
    packed,
)

NUMBERS = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))


@given(one=NUMBERS, other=NUMBERS)
def test_two_partitions_are_one(one, other):
    """Counts and buckets are exactly those of both arrays in one; mean and spread are, but for rounding."""
    merged, whole = Values.of(one) + Values.of(other), Values.of(np.concatenate([one, other]))
    counted = ("count", "nans", "infinities", "zeros", "measured", "low", "high", "buckets")
    assert [getattr(merged, name) for name in counted] == [getattr(whole, name) for name in counted]
    assert sum(whole.buckets.values()) == whole.measured
    if whole.measured and max(abs(whole.low), abs(whole.high)) < 1e15:
        assert merged.mean == pytest.approx(whole.mean, rel=1e-6, abs=1e-6 * (whole.spread + 1e-30))
        assert merged.spread == pytest.approx(whole.spread, rel=1e-6, abs=1e-12)


@given(number=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_number_lies_in_its_bucket(number):
    """Between the bounds, and the buckets' numbers are in the order of what they hold; eight to a doubling."""
    (bucket,) = Values.of(np.array([number], np.float32)).buckets
    low, high = bucket_bounds(bucket)
    assert low <= number <= high
    assert bucket == 0 or (bucket > 0) == (number > 0)
    if 1e-30 < abs(number) < 1e30:
        assert max(abs(low), abs(high)) <= 1.13 * min(abs(low), abs(high))


def test_what_no_float_holds_is_counted_at_the_edge():
    """A double beyond float32, minus zero, whole numbers, truth values and complex ones: none is lost."""
    seen = Values.of(np.array([1e300, -1e300, -0.0]))
    assert (seen.measured, seen.zeros, seen.infinities, seen.high) == (3, 1, 0, 1e300)
    assert sorted(seen.buckets) == [-2039, 0, 2039]
    assert Values.of(np.array([True, False])).zeros == 1
    assert Values.of(np.array([3 + 4j], np.complex64)).mean == 5.0
    assert Values.of(np.array([2**40])).mean == 2.0**40


def test_of_many_numbers_some_are_measured_and_all_are_counted():
    """One NaN and one zero among a million are told, though mean and buckets are of a thousand."""
    many = np.ones(1_000_000, np.float32)
    many[7], many[9] = math.nan, 0.0
    seen = Values.of(many, most=1000)
    assert (seen.count, seen.nans, seen.zeros) == (1_000_000, 1, 1)
    assert 900 <= seen.measured <= 1000
    assert seen.mean == pytest.approx(1.0)


def test_units_stay_alive_in_any_partition():
    """Dead are those that were 0 in both; where the two have other widths, nothing is said."""
    one = LayerSeen(name="a", kind="ReLU", units=10, alive=packed(np.arange(10) < 3))
    other = LayerSeen(name="a", kind="ReLU", units=10, alive=packed(np.arange(10) > 7))
    assert (one.dead, other.dead, (one + other).dead) == (7, 8, 5)
    narrow = LayerSeen(name="a", kind="ReLU", units=3, alive=packed(np.zeros(3, bool)))
    assert narrow.dead == 3
    assert ((one + narrow).units, (one + narrow).dead) == (None, 0)


def test_labels_beyond_the_most_frequent_keep_their_count():
    """300 of them, merged: 200 names and the others, 600 in all."""
    counts = {f"label {number}": 1 + (number < 100) for number in range(300)}
    merged = Labels(counts=most_labels(counts)) + Labels(counts={"label 0": 200}, nulls=3)
    assert len(merged.counts) == 201
    assert merged.counts["label 0"] == 202
    assert merged.count == sum(counts.values()) + 203
    assert OTHERS in merged.counts


def test_all_of_it_survives_the_journey():
    """As JSON without NaN or infinity, there and back; a newer version's field is left out."""
    layer = LayerSeen(
        name="a",
        kind="Linear",
        number=1,
        shape="4",
        calls=2,
        rows=8,
        values=Values.of(np.array([0.0, 1.0, math.nan, math.inf])),
        nan_calls=1,
        units=4,
        alive=packed(np.ones(4, bool)),
        weights={"weight": Values.of(np.array([-1.0, 0.0]))},
        timed=2,
        seconds=0.5,
    )
    seen = Insides(
        layers=(layer, LayerSeen(name="b", kind="ReLU")),
        inputs={"x": Values.of(np.arange(3.0))},
        outputs={"y": Values.of(np.arange(3.0), nulls=1), "label": Labels(counts={"cat": 2}, nulls=1)},
        rows=8,
        batches=2,
        partitions=1,
        graph=ModelGraph(how="tree", nodes=(GraphNode(name="a", kind="Linear"), GraphNode(name="b", kind="ReLU", after=(0,))), why="so"),
        remarks=("one",),
    )
    told = json.loads(json.dumps(seen.told(), allow_nan=False))
    assert Insides.read(told) == seen
    told["layers"][0]["of a newer version"] = 1
    assert Insides.read(told) == seen
    assert Insides.read(Insides().told()) == Insides()


def test_partitions_add_up_layer_by_layer():
    """A layer that only one partition called is there as well; weights count once, the picture is the first's."""
    weights = {"weight": Values.of(np.arange(4.0))}
    a = LayerSeen(name="a", kind="Linear", number=1, calls=1, rows=4, values=Values.of(np.arange(4.0)), weights=weights)
    parts = [
        Insides(layers=(a,), rows=4, batches=1, partitions=1, remarks=("same",)),
        Insides(layers=(a, LayerSeen(name="b", kind="ReLU", number=2, calls=1)), rows=4, batches=1, partitions=1, remarks=("same",)),
    ]
    merged = merge_insides(parts)
    assert (merged.rows, merged.partitions, merged.remarks) == (8, 2, ("same",))
    assert [(layer.name, layer.calls) for layer in merged.layers] == [("a", 2), ("b", 1)]
    assert merged.layers[0].weights == weights
    assert merged.layers[0].values.count == 8
