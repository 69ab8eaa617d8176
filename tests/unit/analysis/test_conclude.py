"""A diagnosis says what the costs of its rounds say, and no more."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.analysis.conclude import Found, conclude
from sparkinfer.analysis.costs import Costs, Layout, Shape, job_seconds
from sparkinfer.analysis.intervals import of_positive
from sparkinfer.analysis.rounds import Arm, ModelTimes, Round

if TYPE_CHECKING:
    from sparkinfer.analysis.diagnosis import Diagnosis

SHAPE = Shape(batch_size=32, num_workers=0, prefetch_batches=2)
ROWS = 1000


def one_round(costs: Costs, shape: Shape, noise: random.Random, spread: float) -> Round:
    """Make a round of known costs, each arm off by a few per cent."""

    def took(seconds: float) -> float:
        return seconds * noise.uniform(1 - spread, 1 + spread)

    def arm(each: float, **producer: float) -> Arm:
        return Arm(rows=ROWS, seconds=took(each) * ROWS, producer={name: took(value) * ROWS for name, value in producer.items()})

    prepared = {"read": 1e-9, "preprocess": costs.preprocess, "transfer": costs.transfer}
    calls = {size: [took(costs.call + costs.row * size)] for size in (shape.batch_size, 4 * shape.batch_size)}
    return Round(
        source=arm(costs.source),
        identity=None,
        trivial=arm(costs.preprocess + costs.transfer, **prepared),
        synthetic=ModelTimes(calls=calls, postprocess=costs.postprocess, encode=1e-9),
        everything=replace(arm(costs.seconds_per_row(shape)), cpu_seconds=costs.in_turn(shape) * ROWS),
    )


def diagnosed(
    shape: Shape = SHAPE, spread: float = 0.03, layout: Layout | None = None, rounds: int = 4, cores: float = 0.0, **costs: Any
) -> Diagnosis:
    """Diagnose known costs: a hundredth of a millisecond a step, but for those that are given; every second of them on a core."""
    known = Costs(**{"source": 1e-5, "preprocess": 1e-5, "transfer": 0.0, "call": 1e-5, "row": 1e-5, **costs})
    noise = random.Random(1)
    made = [one_round(known, shape, noise, spread) for _ in range(rounds)]
    return conclude(
        Found(
            rounds=made,
            shape=shape,
            layout=layout or Layout(),
            other_threads=known.other_threads,
            load=known.load,
            sample_rows=ROWS,
            settings={"batch_size": shape.batch_size},
            cores=cores,
        )
    )


@pytest.mark.parametrize(
    ("costs", "kind", "cause", "advised"),
    [
        ({"source": 1e-3}, "input-bound", "source", "source"),
        ({"preprocess": 1e-3}, "input-bound", "preprocess", "num_workers"),
        ({"transfer": 1e-3}, "transfer-bound", "transfer", "transfer"),
        ({"row": 1e-3}, "compute-bound", "model", "model"),
        ({"call": 3.2e-2}, "compute-bound", "batch size", "batch_size"),
        ({"row": 1e-3, "other_threads": ((1, 0.2),)}, "compute-bound", "threads", "threads"),
        ({"postprocess": 1e-3}, "compute-bound", "postprocess", "postprocess"),
    ],
)
def test_the_dominant_step_is_named(costs: dict[str, Any], kind: str, cause: str, advised: str) -> None:
    """And the first change that the verdict advises is for it."""
    found = diagnosed(**costs)
    assert (found.verdict.kind, found.verdict.cause) == (kind, cause)
    assert advised in found.verdict.advice
    assert found.verdict.gain is not None
    assert found.verdict.gain[1] > 1.5


def test_an_even_pipeline_is_balanced() -> None:
    """Input and model cost the same: nobody is called the bottleneck."""
    found = diagnosed(source=5e-4, preprocess=5e-4, row=1e-3)
    assert (found.verdict.kind, found.verdict.cause) == ("balanced", None)


def test_noise_is_inconclusive_and_says_how_many_rows_would_do() -> None:
    """Rounds that differ by half tell no side from the other."""
    found = diagnosed(spread=0.6, rounds=3, preprocess=1.2e-3, row=1e-3)
    assert found.verdict.kind == "inconclusive"
    assert "rows" in found.verdict.advice


def test_of_few_rows_more_time_is_asked_for() -> None:
    """A job that is all in the sample has no more of them."""
    noise = random.Random(1)
    costs = Costs(source=1e-5, preprocess=1.2e-3, transfer=0.0, call=1e-5, row=1e-3)
    rounds = [one_round(costs, SHAPE, noise, 0.6) for _ in range(3)]
    found = conclude(
        Found(rounds=rounds, shape=SHAPE, layout=Layout(rows=(14, 14)), sample_rows=28, seconds=10.0, settings={"batch_size": 32})
    )
    assert found.verdict.kind == "inconclusive"
    assert found.verdict.advice.startswith("Diagnose the 28 rows for longer, with seconds=")


def test_nothing_ahead_is_serial() -> None:
    """Both sides in turn on one thread: prefetch_batches would hide the shorter one."""
    found = diagnosed(shape=Shape(batch_size=32, num_workers=0, prefetch_batches=0), preprocess=1e-3, row=8e-4)
    assert found.verdict.kind == "serial"
    assert "prefetch_batches=2" in found.verdict.advice


def test_reading_ahead_is_not_advised_where_every_core_is_busy() -> None:
    """What computes all the time hides nothing: the larger side is named, and no advice that the costs expect to lose."""
    found = diagnosed(shape=Shape(batch_size=1, num_workers=0, prefetch_batches=0), cores=1.0, preprocess=1e-4, call=1e-3)
    assert (found.verdict.kind, found.verdict.cause) == ("compute-bound", "batch size")


def test_a_part_twice_as_fast_gives_no_more_than_twice() -> None:
    """Whatever is lost between the parts; what is measured of it may be a twentieth off, as every rate."""
    slow = one_round(Costs(source=1e-5, preprocess=1e-5, transfer=0.0, call=1e-5, row=1e-3), SHAPE, random.Random(1), 0.0)
    lossy = replace(slow, everything=replace(slow.everything, seconds=2 * slow.everything.seconds))
    found = conclude(Found(rounds=[lossy] * 3, shape=SHAPE, layout=Layout(), sample_rows=ROWS, settings={"batch_size": 32}))
    model = next(change for change in found.changes if change.setting == "model")
    assert model.gain.middle < 2.0
    assert model.gain.high == pytest.approx(2.1)


def test_the_largest_partition_is_found() -> None:
    """Of a job whose slots wait for one partition, its spread is the verdict, with the gain of an even one."""
    layout = Layout(rows=(100_000, 1_000, 1_000, 1_000), slots=4)
    found = diagnosed(layout=layout, row=1e-3)
    assert found.verdict.kind == "skewed"
    gain = next(change.gain for change in found.changes if change.setting == "partitions")
    assert gain.low < 100_000 / (103_000 / 4) < gain.high


def test_loads_of_every_partition_are_found() -> None:
    """Models that are let go are loaded again: keeping them is the advice."""
    layout = Layout(rows=(100,) * 20, slots=2, loads_each=True)
    found = diagnosed(layout=layout, row=1e-3, load=1.0)
    assert (found.verdict.kind, found.verdict.cause) == ("start-up-bound", "model")
    assert "models_per_worker=3" in found.verdict.advice


def test_loader_processes_gain_what_the_costs_say() -> None:
    """Ten times the model's cost in preprocess: so many loader processes bring the model's own pace."""
    found = diagnosed(preprocess=1e-3, row=1e-4)
    change = next(change for change in found.changes if change.setting == "num_workers")
    assert 8 <= change.value <= 12
    assert change.gain.low < 9.2 < change.gain.high
    assert found.overrides == {"num_workers": change.value}


def test_a_text_says_it_all() -> None:
    """Every ceiling and every change has its line."""
    found = diagnosed(row=1e-3)
    text = str(found)
    assert all(one.name in text for one in found.ceilings)
    assert all(str(change) in text for change in found.changes)
    assert found.ceilings[-1].name == "everything"


def test_a_job_takes_as_long_as_its_last_slot() -> None:
    """A slot takes the next partition when it is free, and loads once, or every time."""
    assert job_seconds(Layout(rows=(5, 1, 1, 1), slots=2), float, load=0.0) == 5
    assert job_seconds(Layout(rows=(1, 1), slots=1), float, load=3.0) == 5
    assert job_seconds(Layout(rows=(1, 1), slots=1, loads_each=True), float, load=3.0) == 8


def played(costs: Costs, rows: int, shape: Shape) -> float:
    """Play a partition batch by batch: who may begin when, with two batches of room before the model."""
    sizes = [min(shape.batch_size, rows - start) for start in range(0, rows, shape.batch_size)]
    read = copied = done = 0.0
    workers = [0.0] * shape.num_workers
    taken: list[float] = []  # when the model took each batch
    for number, size in enumerate(sizes):
        room = taken[number - 3] if number >= 3 else 0.0  # two wait, one is in the hand of what makes them
        if shape.num_workers:
            read += costs.source * size
            prepared = workers[number % shape.num_workers] = max(read, workers[number % shape.num_workers]) + costs.preprocess * size
            copied = max(copied, prepared, room) + costs.transfer * size
        elif costs.apart:
            read += costs.source * size
            copied = max(copied, read, room) + (costs.preprocess + costs.transfer) * size
        else:
            copied = max(copied, room) + (costs.source + costs.preprocess + costs.transfer) * size
        taken.append(max(copied, done))
        done = taken[-1] + costs.call + costs.row * size
    return done


STEP = st.floats(1e-4, 1e-2)


@given(
    costs=st.builds(Costs, source=STEP, preprocess=STEP, transfer=STEP, call=st.floats(0, 0.2), row=STEP),
    rows=st.integers(1, 300),
    batch_size=st.integers(1, 64),
)
def test_a_partition_takes_as_long_as_its_batches_one_by_one(costs: Costs, rows: int, batch_size: int) -> None:
    """Beginning, end and a short last batch are in the arithmetic, exactly."""
    shape = Shape(batch_size=batch_size, num_workers=0, prefetch_batches=2)
    assert costs.partition_seconds(rows, shape) == pytest.approx(played(costs, rows, shape))


@given(
    costs=st.builds(
        Costs, source=STEP, preprocess=st.floats(1e-3, 1e-1), transfer=STEP, call=st.floats(0, 0.2), row=STEP, apart=st.booleans()
    ),
    batches=st.integers(1, 40),
    num_workers=st.integers(0, 16),
)
def test_a_partition_of_many_steps_side_by_side_nearly_so(costs: Costs, batches: int, num_workers: int) -> None:
    """Loader processes, or a source in another process: the arithmetic leaves out what the slowest two steps lose to each other."""
    shape = Shape(batch_size=16, num_workers=num_workers, prefetch_batches=2)
    exact = played(costs, 16 * batches, shape)
    assert exact * 0.75 <= costs.partition_seconds(16 * batches, shape) <= exact * 1.001


def test_chunks_of_another_process_come_whole() -> None:
    """A partition that comes as one chunk is read to its end before the first batch: nothing hides its source."""
    costs = Costs(source=1.0, preprocess=0.0, transfer=0.0, call=0.0, row=1.0, apart=True)
    shape = Shape(batch_size=10, num_workers=0, prefetch_batches=2)
    assert costs.partition_seconds(100, shape, chunk_rows=1000) == 200
    assert costs.partition_seconds(100, shape) == 110


def test_no_advice_asks_more_of_the_cores_than_they_have() -> None:
    """Preprocess that computes on the only core: loader processes gain next to nothing, though the structure says ten times."""
    computes, waits = diagnosed(cores=1.0, preprocess=1e-3, row=1e-4), diagnosed(preprocess=1e-3, row=1e-4)
    gains = [next(change.gain for change in found.changes if change.setting == "num_workers") for found in (computes, waits)]
    assert gains[0].middle < 1.2
    assert gains[1].middle > 5


def test_one_slow_moment_is_let_go() -> None:
    """Of eight rounds the slowest and the fastest decide nothing."""
    assert of_positive([1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 9.0]).high == 1.06


def test_intervals_narrow_with_repeats() -> None:
    """One value says nothing of its spread; more say more."""
    assert of_positive([2.0]).width == float("inf")
    few, more = of_positive([1.0, 1.1]), of_positive([1.0, 1.1, 1.0, 1.1])
    assert few.low < more.low < more.middle < more.high < few.high
    assert of_positive([1.0, 1.1, 1.05, 1.02, 1.08]).high == 1.1
    with pytest.raises(ValueError, match="above 0"):
        of_positive([])
