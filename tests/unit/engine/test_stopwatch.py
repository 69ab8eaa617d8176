"""Stages add up to the wall time, and the queue's figures are weighted by time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.engine.prefetch import read_ahead
from sparkinfer.engine.stopwatch import QueueMeter, Stopwatch


class FakeClock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def put(meter: QueueMeter, clock: FakeClock, waits: float = 0.0) -> None:
    begun = meter.putting()
    clock.pass_by(waits)
    meter.put(begun)


# --- stopwatch ---------------------------------------------------------------------------------------------------------


@given(laps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1000))))
def test_every_moment_is_in_exactly_one_stage(laps: list[tuple[str, int]]) -> None:
    """Whatever stages end in whatever order, they add up to what the clock says."""
    clock = FakeClock()
    watch = Stopwatch(clock)
    for stage, seconds in laps:
        clock.pass_by(seconds)
        assert watch.lap(stage) == seconds
    assert watch.wall_seconds == clock.now - 100
    assert watch.seconds == {stage: sum(took for other, took in laps if other == stage) for stage, _ in laps}


# --- queue meter -------------------------------------------------------------------------------------------------------


def test_depth_is_weighted_by_time(clock: FakeClock) -> None:
    """Empty for 1 s, one item for 2 s, two for 3 s, one for 4 s: 12 item seconds in 10 s."""
    meter = QueueMeter(clock)
    clock.pass_by(1)
    put(meter, clock)
    clock.pass_by(2)
    put(meter, clock)
    clock.pass_by(3)
    meter.got()
    clock.pass_by(4)
    meter.got()
    assert meter.seconds == 10
    assert meter.mean_depth == pytest.approx(1.2)
    assert meter.empty_fraction == pytest.approx(0.1)


def test_the_producers_wait_for_room_is_counted(clock: FakeClock) -> None:
    """Only the time inside the puts."""
    meter = QueueMeter(clock)
    put(meter, clock, waits=2)
    clock.pass_by(5)
    put(meter, clock, waits=0.5)
    assert meter.blocked_seconds == 2.5


def test_what_is_taken_before_its_put_has_come_back_was_never_in_store(clock: FakeClock) -> None:
    """A consumer that waits takes an item while the producer is still inside put: the depth is below 0 for a moment, and never counts so."""
    meter = QueueMeter(clock)
    begun = meter.putting()
    clock.pass_by(1)
    meter.got()
    clock.pass_by(1)
    meter.put(begun)
    clock.pass_by(2)
    put(meter, clock)
    clock.pass_by(4)
    meter.got()
    assert meter.mean_depth == pytest.approx(4 / 8)
    assert meter.empty_fraction == pytest.approx(4 / 8)


def test_a_restart_forgets_the_time_and_keeps_what_waits(clock: FakeClock) -> None:
    """Warm-up is in no figure: neither its empty time nor its waiting, also not of a put that began in it."""
    meter = QueueMeter(clock)
    clock.pass_by(10)
    put(meter, clock, waits=3)
    begun = meter.putting()
    clock.pass_by(5)
    meter.restart()
    clock.pass_by(2)
    meter.put(begun)
    clock.pass_by(2)
    meter.got()
    assert meter.blocked_seconds == 2
    assert meter.mean_depth == pytest.approx((2 * 1 + 2 * 2) / 4)
    assert meter.empty_fraction == 0


def test_a_queue_that_was_never_used_has_no_time(clock: FakeClock) -> None:
    """Its figures are of nothing, and divide by nothing."""
    meter = QueueMeter(clock)
    clock.pass_by(7)
    assert (meter.seconds, meter.mean_depth, meter.empty_fraction, meter.blocked_seconds) == (0, 0, 0, 0)


@given(moves=st.lists(st.sampled_from(["put", "put after a wait", "take", "rest"]), max_size=60), restart=st.integers(0, 60))
def test_the_figures_are_those_of_a_look_at_every_moment(moves: list[str], restart: int) -> None:
    """Whatever comes and goes in whatever order, depth, empty time and waits are what counting second by second gives; also after a restart."""
    clock, depth, seen, waited = FakeClock(), 0, [], 0
    meter = QueueMeter(clock)
    since_move: list[int] = []  # depths of the seconds after the last move, which are in no figure

    def second() -> None:
        clock.pass_by(1)
        since_move.append(depth)

    def moved() -> None:
        seen.extend(since_move)
        since_move.clear()

    for number, move in enumerate(moves):
        if number == restart:
            meter.restart()
            seen, waited = [], 0
            since_move.clear()
        if move == "rest":
            second()
        elif move == "take" and depth:
            meter.got()
            moved()
            depth -= 1
        elif move != "take":
            begun = meter.putting()
            if move == "put after a wait":
                second()
                waited += 1
            meter.put(begun)
            moved()
            depth += 1
    assert meter.seconds == len(seen)
    assert meter.blocked_seconds == waited
    if seen:
        assert meter.mean_depth == pytest.approx(sum(seen) / len(seen))
        assert meter.empty_fraction == pytest.approx(seen.count(0) / len(seen))
        assert meter.full_fraction == pytest.approx(waited / len(seen))


@given(depth=st.integers(1, 4), items=st.integers(0, 30))
def test_the_read_ahead_tells_its_meter_of_every_item(depth: int, items: int) -> None:
    """As many puts as takings are told, the depth stays within the queue's, and time is never negative: two threads share the meter."""
    meter = QueueMeter()
    told: list[str] = []
    put, got = meter.put, meter.got
    meter.put = lambda begun: (told.append("put"), put(begun))[1]  # type: ignore[method-assign]
    meter.got = lambda: (told.append("got"), got())[1]  # type: ignore[method-assign]
    with read_ahead(iter(range(items)), depth, meter) as ahead:
        assert list(ahead) == list(range(items))
    assert (told.count("put"), told.count("got")) == (items, items)
    assert 0 <= meter.mean_depth <= depth + 1
    assert 0 <= meter.empty_fraction <= 1
    assert meter.blocked_seconds >= 0
    assert 0 <= meter.full_fraction <= 1
