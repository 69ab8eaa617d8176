"""Drift by the stability index: what moved is named, and chance is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparkinfer.analysis.drift import drifts, stability_index, threshold
from sparkinfer.insides import Insides, Labels, LayerSeen, Values, packed


def normal(seed: int, rows: int, mean: float = 0.0, spread: float = 1.0) -> Values:
    return Values.of(np.random.default_rng(seed).normal(mean, spread, rows))


def outputs(rows: int, **seen: Values | Labels) -> Insides:
    return Insides(outputs=seen, rows=rows, batches=1, partitions=1)


@pytest.mark.parametrize("rows", [50, 200, 2000])
def test_two_samples_of_the_same_are_no_drift(rows: int) -> None:
    """Of 200 pairs at each size, not one: chance is in the threshold."""
    pairs = [(normal(seed, rows), normal(seed + 1000, rows)) for seed in range(200)]
    found = [stability_index(one.buckets, other.buckets) for one, other in pairs]
    assert sum(index > threshold(groups, rows, rows) for index, groups in found) == 0


@pytest.mark.parametrize(("mean", "spread"), [(1.0, 1.0), (0.0, 2.5), (5.0, 1.0)])
def test_what_moved_is_drift(mean: float, spread: float) -> None:
    """By a standard deviation, or two and a half times as wide, on 500 rows each."""
    (found,) = drifts(outputs(500, y=normal(1, 500)), outputs(500, y=normal(2, 500, mean, spread)))
    assert found.drifted
    assert (found.where, found.name, found.measure, found.threshold) == ("output", "y", "stability index", 0.2)
    assert str(found).startswith("output 'y' is not distributed as in the baseline: stability index ")


def test_a_constant_that_moves_is_drift() -> None:
    """All values were 1 and are 2: there is a group above all that was seen."""
    before, now = Values.of(np.ones(400)), Values.of(np.full(400, 2.0))
    assert drifts(outputs(400, y=before), outputs(400, y=now))[0].drifted
    assert not drifts(outputs(400, y=before), outputs(400, y=before))[0].drifted


def test_few_rows_tell_only_of_strong_drift() -> None:
    """The same shift, of half a standard deviation, is told by 2,000 rows and not by 40."""
    for rows, drifted in ((2000, True), (40, False)):
        (found,) = drifts(outputs(rows, y=normal(1, rows)), outputs(rows, y=normal(2, rows, 0.5)))
        assert found.drifted is drifted, rows


def test_labels_that_change_their_shares_are_drift() -> None:
    """From 9 cats to a dog, to half and half; a new label, and nulls, count as well."""
    before = Labels(counts={"cat": 900, "dog": 100})
    for now in (Labels(counts={"cat": 500, "dog": 500}), Labels(counts={"cow": 1000}), Labels(counts={"cat": 500, "dog": 100}, nulls=400)):
        assert drifts(outputs(1000, label=before), outputs(1000, label=now))[0].drifted
    same = Labels(counts={"cat": 890, "dog": 110})
    assert not drifts(outputs(1000, label=before), outputs(1000, label=same))[0].drifted


def test_new_dead_units_and_new_nans_are_told() -> None:
    """By their shares then and now, the drifted first."""
    layer = LayerSeen(
        name="act", kind="ReLU", number=1, calls=1, rows=500, values=normal(1, 500), units=10, alive=packed(np.ones(10, bool))
    )
    broken = np.append(np.random.default_rng(1).normal(size=495), [np.nan] * 5)
    then = Insides(layers=(layer,), rows=500, batches=1, partitions=1)
    now = replace(then, layers=(replace(layer, alive=packed(np.arange(10) < 6), values=Values.of(broken)),))
    found = [(one.measure, one.now, one.drifted) for one in drifts(then, now)]
    assert found[:2] == [("NaN or infinite", 0.01, True), ("dead units", 0.4, True)]
    assert found[2][0] == "stability index"
    assert not found[2][2]
    assert str(drifts(then, now)[1]) == "layer 'act' has 40% dead units, and had 0.0% in the baseline"


def test_what_only_one_of_them_has_is_not_compared() -> None:
    """Another layer, another output, numbers where labels were."""
    one = Insides(layers=(LayerSeen(name="a", kind="ReLU", calls=1, values=normal(1, 9)),), outputs={"y": normal(1, 9)}, rows=9)
    other = Insides(
        layers=(LayerSeen(name="b", kind="ReLU", calls=1, values=normal(1, 9)),), outputs={"y": Labels(counts={"a": 9})}, rows=9
    )
    assert drifts(one, other) == ()
