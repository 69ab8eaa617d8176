"""What a batch costs is told apart from what its rows cost."""

from __future__ import annotations

import pytest

from sparkinfer.analysis.batching import with_batches
from sparkinfer.analysis.costs import Costs, Shape
from sparkinfer.analysis.rounds import Arm


def arm(rows_of_batch: int, *, serial: bool) -> Arm:
    """Ten thousand rows: preparing takes 1 ms a batch and 2 us a row, handing over 0.5 ms a batch, encoding 0.2 ms a batch and 1 us a row."""
    prepared, handed, encoded = 1e-3 / rows_of_batch + 2e-6, 0.5e-3 / rows_of_batch, 0.2e-3 / rows_of_batch + 1e-6
    each = prepared + handed + (encoded if serial else 0.0)
    return Arm(rows=10_000, seconds=10_000 * each, producer={"preprocess": 10_000 * prepared}, consumer={"encode": 10_000 * encoded})


@pytest.mark.parametrize("serial", [True, False])
def test_batches_and_rows_are_told_apart(serial: bool) -> None:
    """By the batches of two sizes; at the first of them the costs stay what they were, but for handing over, which no stage has."""
    measured = Costs(source=1e-6, preprocess=1e-3 / 10 + 2e-6, transfer=0.0, call=3e-3, row=5e-6, encode=0.2e-3 / 10 + 1e-6)
    found = with_batches(measured, arm(10, serial=serial), arm(160, serial=serial), (10, 160), serial=serial)
    assert found.batch == pytest.approx(1.5e-3)
    assert found.preprocess == pytest.approx(2e-6)
    assert found.call == pytest.approx(3.2e-3)
    assert found.encode == pytest.approx(1e-6)
    shape = Shape(batch_size=1000, num_workers=0, prefetch_batches=2)
    assert found.input_side(shape) == pytest.approx(1e-6 + 2e-6 + 1.5e-6)
    start = Shape(batch_size=10, num_workers=0, prefetch_batches=2)
    assert found.model_side(start) == pytest.approx(measured.model_side(start))


def test_batches_that_cost_nothing_leave_the_costs_as_they_are() -> None:
    """Noise in the other direction is none of a batch's."""
    measured = Costs(source=0.0, preprocess=1e-3, transfer=0.0, call=0.0, row=1e-3)
    slow, fast = (Arm(rows=100, seconds=seconds, producer={"preprocess": seconds}) for seconds in (0.11, 0.1))
    assert with_batches(measured, fast, slow, (10, 40), serial=False) == measured
