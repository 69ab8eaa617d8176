"""The race of settings: who drops out, what the time and the memory leave out, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from sparkinfer.analysis.memory import fitted
from sparkinfer.analysis.rounds import Arm
from sparkinfer.config import InferenceConfig
from sparkinfer.racing import Memory, Runner, gain, leader, more_by_partitions, race, try_partitions

if TYPE_CHECKING:
    from collections.abc import Mapping

MB = 10**6


class Track:
    """What settings are run on: a clock that only arms move, and peaks of 100 MB and 1 MB a row of the batch."""

    slots = 2

    def __init__(self, each: Callable[[InferenceConfig], float], job_rows: tuple[int, ...] = ()) -> None:
        self.now = 0.0
        self.each = each
        self.job_rows = job_rows
        self.ran: list[int] = []

    def clock(self) -> float:
        return self.now

    def everything(self, config: InferenceConfig) -> Arm:
        self.ran.append(config.batch_rows)
        seconds = 1000 * self.each(config)
        self.now += seconds
        return Arm(rows=1000, seconds=seconds, bytes=8 * MB, rss_peak_bytes=(100 + config.batch_rows) * MB, memory_left_bytes=600 * MB)

    def whole(self, config: InferenceConfig, partitions: int | None) -> float:
        del config
        self.now += (seconds := 10.0 if partitions is None else 6.0)
        return seconds


def runners(track: Any, *changes: Mapping[str, Any]) -> list[Runner]:
    start = InferenceConfig(batch_size=10)
    return [Runner({}, start, 1.0, track), *(Runner(one, InferenceConfig(**{"batch_size": 10, **one}), None, track) for one in changes)]


def by_batch(seconds: Mapping[int, float]) -> Callable[[InferenceConfig], float]:
    return lambda config: seconds[config.batch_rows]


def test_what_is_clearly_slower_runs_once() -> None:
    """The others run on beside the start, whose rounds make the gains paired."""
    track = Track(by_batch({10: 2e-3, 20: 1e-3, 40: 3e-3}))
    racing = runners(track, {"batch_size": 40}, {"batch_size": 20})
    race(racing, 1e9, Memory(), track.clock)
    assert track.ran[:3] == [10, 20, 40]  # by rising size: a process's memory rarely falls
    assert [(len(one.took), one.ended) for one in racing] == [(4, ""), (1, "too slow"), (4, "")]
    assert gain(racing[0], racing[2]).middle == pytest.approx(2.0)


def test_after_the_time_only_what_a_choice_needs_still_runs() -> None:
    """Of four settings two are reached; the leader and the start have their second round, and the others say why they have none."""
    track = Track(by_batch({10: 2e-3, 20: 1e-3, 40: 1e-3, 80: 1e-3}))
    racing = runners(track, {"batch_size": 20}, {"batch_size": 40}, {"batch_size": 80})
    race(racing, 2.5, Memory(), track.clock)
    assert [(len(one.took), one.ended) for one in racing] == [
        (2, ""),
        (2, ""),
        (0, "not tried: the time was up"),
        (0, "not tried: the time was up"),
    ]
    assert leader(racing) is racing[1]


def test_what_should_need_too_much_memory_is_not_tried() -> None:
    """By the inputs' own bytes at first (8 kB a row, five batches), by the fit of two sizes then; 400 rows should need 500 MB."""
    track = Track(lambda _: 1e-3)
    racing = runners(track, {"batch_size": 50}, {"batch_size": 400}, {"batch_size": 260, "num_workers": 1})
    memory = Memory(300 * MB)
    race(racing, 1e9, memory, track.clock)
    assert track.ran.count(400) == 0
    assert racing[2].ended == "not tried: about 500 MB expected, over the limit of 300 MB"
    assert racing[3].ended == "not tried: about 360 MB expected, over the limit of 300 MB"
    assert memory.fits[0] == fitted({10: 110 * MB, 50: 150 * MB})
    assert memory.fits[1] is None


def test_what_needs_too_much_all_the_same_is_not_chosen() -> None:
    """The inputs' bytes told nothing of what the model itself takes."""
    track = Track(by_batch({10: 2e-3, 300: 1e-3}))
    racing = runners(track, {"batch_size": 300})
    race(racing, 1e9, Memory(350 * MB), track.clock)
    assert racing[1].ended == "too large"
    assert leader(racing) is racing[0]


def test_settings_that_fail_are_told_and_a_start_that_fails_is_raised() -> None:
    """One line of the error."""

    def each(config: InferenceConfig) -> float:
        if config.batch_rows == 20:
            raise ValueError("no room\nfor it")
        return 1e-3

    track = Track(each)
    racing = runners(track, {"batch_size": 20})
    race(racing, 1e9, Memory(), track.clock)
    assert racing[1].ended == "failed: ValueError: no room for it"
    with pytest.raises(ValueError, match="no room"):
        race([Runner({}, InferenceConfig(batch_size=20), 1.0, track)], 1e9, Memory(), track.clock)


def test_the_largest_batch_is_told_by_the_line() -> None:
    """With the sizes that were tried; of one size nothing is told, and what does not grow has no largest."""
    fit = fitted({64: 164, 256: 356, 128: 228})
    assert fit is not None
    assert (fit.base_bytes, fit.row_bytes) == pytest.approx((100, 1))
    assert (fit.largest_batch(1100), fit.largest_batch(100)) == (1000, 0)
    assert "64, 128, 256 rows were tried" in str(fit)
    assert fitted({64: 1}) is None
    flat = fitted({64: 100, 128: 90})
    assert flat is not None
    assert flat.largest_batch(1000) is None


def test_uneven_partitions_are_tried_by_the_whole_job_where_there_is_the_time() -> None:
    """One slot works at 800 of 1,000 rows while the other waits; the job is run both ways, or it is said why not."""
    track = Track(lambda _: 1e-3, job_rows=(100, 100, 800))
    config = InferenceConfig()
    assert more_by_partitions(track, config) == pytest.approx(900 / 501, rel=0.01)
    partitions, tried = try_partitions(track, config, 1e-3, 100.0, track.clock)
    assert (partitions, tried.overrides, tried.rounds, tried.ended) == (6, {"partitions": 6}, 2, "chosen")
    assert tried.gain is not None
    assert tried.gain.middle == pytest.approx(10 / 6)
    _, tried = try_partitions(track, config, 1e-3, 0.0, track.clock)
    assert tried.gain is None
    assert tried.ended.startswith("not tried: the whole job takes about")
    assert more_by_partitions(Track(lambda _: 1e-3, job_rows=(10,) * 20), config) == pytest.approx(1.0)
