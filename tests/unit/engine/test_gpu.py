"""A task's cards by a script: each counter by itself, absent and never 0, whatever the cards do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from sparkinfer.engine.cards import Card, CardLost, Unreadable, own_cards
from sparkinfer.engine.gpu import GpuSampler
from sparkinfer.engine.samples import MAX_POINTS, Samples, Track

CARD = Card("gpu_0", "GPU-00", "NVIDIA Test")
UNSUPPORTED = Unreadable("Not Supported")


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class ScriptedBackend:
    """Answers what it is told to: a value, an exception to raise, or a function of the card."""

    def __init__(self, cards: Sequence[Card] | Unreadable = (CARD,), **answers: Any) -> None:
        self._cards = cards
        self._answers: dict[str, Any] = {
            "utilization": 50.0,
            "memory": (20e9, 80e9),
            "power": 350.0,
            "power_limit": 700.0,
            "energy": 1000.0,
            "sm_clock": 1980.0,
            "temperature": 55.0,
            "throttling": (),
            "activity": {},
            "utilization_samples": (),
            **answers,
        }
        self.asked: list[str] = []
        self.closed = 0

    def _answer(self, name: str, card: Card) -> Any:
        self.asked.append(name)
        answer = self._answers[name]
        if callable(answer):
            answer = answer(card)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cards(self) -> Sequence[Card]:
        if isinstance(self._cards, Unreadable):
            raise self._cards
        return self._cards

    def utilization_samples(self, card: Card, after: int) -> Sequence[tuple[int, float]]:
        return self._answer("utilization_samples", card)

    def utilization(self, card: Card) -> float:
        return self._answer("utilization", card)

    def memory(self, card: Card) -> tuple[float, float]:
        return self._answer("memory", card)

    def power(self, card: Card) -> float:
        return self._answer("power", card)

    def power_limit(self, card: Card) -> float:
        return self._answer("power_limit", card)

    def energy(self, card: Card) -> float:
        return self._answer("energy", card)

    def sm_clock(self, card: Card) -> float:
        return self._answer("sm_clock", card)

    def temperature(self, card: Card) -> float:
        return self._answer("temperature", card)

    def throttling(self, card: Card) -> Sequence[str]:
        return self._answer("throttling", card)

    def activity(self, card: Card) -> Mapping[str, float | Unreadable]:
        return self._answer("activity", card)

    def close(self) -> None:
        self.closed += 1


def in_turn(*answers: Any) -> Callable[[Card], Any]:
    left = iter(answers)
    return lambda _card: next(left)


def watch(backend: ScriptedBackend, seconds: int = 3, **options: Any) -> Samples:
    clock = Clock()
    sampler = GpuSampler(backend, clock=clock, **options)
    for _ in range(seconds):
        clock.now += 1
        sampler.sample()
    return sampler.finish()


def values(seen: Samples, name: str) -> tuple[float, ...]:
    [found] = [series.values for series in seen.series if series.name == name]
    return found


def names(seen: Samples) -> set[str]:
    return {series.name for series in seen.series} | set(seen.gauges)


def in_ticks(percents: Sequence[float], start: float = 1000.0) -> list[tuple[int, float]]:
    """The driver's samples, five a second."""
    return [(int(start * 1e6) + 200_000 * (place + 1), percent) for place, percent in enumerate(percents)]


def test_every_figure_has_its_name_and_unit() -> None:
    """Bytes come out as megabytes of 1e6, watts also as a share of the limit, the series with the card's UUID and the sample's time."""
    seen = watch(ScriptedBackend(utilization_samples=in_turn(in_ticks([90, 70]), (), ())))
    assert {series.name: (series.device, series.values) for series in seen.series} == {
        "gpu_0_utilization_percentage": ("GPU-00", (90, 70)),
        "gpu_0_memory_usage_megabytes": ("GPU-00", (20000, 20000, 20000)),
        "gpu_0_memory_usage_percentage": ("GPU-00", (25, 25, 25)),
        "gpu_0_power_usage_watts": ("GPU-00", (350, 350, 350)),
        "gpu_0_power_usage_percentage": ("GPU-00", (50, 50, 50)),
        "gpu_0_sm_clock_megahertz": ("GPU-00", (1980, 1980, 1980)),
        "gpu_0_temperature_celsius": ("GPU-00", (55, 55, 55)),
        "gpu_0_energy_counter_joules": ("GPU-00", (1000, 1000)),
    }
    times = {series.name: series.times_unix for series in seen.series}
    assert times["gpu_0_utilization_percentage"] == (1000.2, 1000.4)  # the driver's own
    assert times["gpu_0_memory_usage_megabytes"] == (1001.0, 1002.0, 1003.0)
    assert seen.remarks == ()


@pytest.mark.parametrize(
    ("counter", "gone"),
    [
        ("memory", {"memory_usage_megabytes", "memory_usage_percentage"}),
        ("power", {"power_usage_watts", "power_usage_percentage"}),
        ("power_limit", {"power_usage_percentage"}),
        ("energy", {"energy_joules", "energy_counter_joules"}),
        ("sm_clock", {"sm_clock_megahertz"}),
        ("temperature", {"temperature_celsius"}),
        ("throttling", {"throttled_fraction", "throttled_power_fraction", "throttled_thermal_fraction"}),
        ("activity", {"sm_activity_percentage"}),
    ],
)
def test_a_counter_that_cannot_be_read_is_absent_and_alone(counter: str, gone: set[str]) -> None:
    """Its own figures are missing and not 0, all others are there, one remark names it, and it is not asked again."""
    answers = {"activity": {"sm_activity_percentage": 33.0}, "utilization_samples": in_ticks([50])}
    whole = watch(ScriptedBackend(**answers), seconds=6)
    backend = ScriptedBackend(**{**answers, counter: UNSUPPORTED})
    seen = watch(backend, seconds=6)
    assert names(whole) - names(seen) == {f"gpu_0_{name}" for name in gone}
    [remark] = seen.remarks
    assert remark.startswith("not measured on NVIDIA Test: ")
    assert "Not Supported" in remark
    assert backend.asked.count(counter) == 1


def test_counters_that_fail_alike_share_a_remark() -> None:
    """What cannot be read for the same reason is said in one sentence."""
    seen = watch(
        ScriptedBackend(
            power=UNSUPPORTED, energy=UNSUPPORTED, activity=Unreadable("needs Hopper or newer"), utilization_samples=in_ticks([1])
        )
    )
    assert seen.remarks == (
        "not measured on NVIDIA Test: power, energy (Not Supported)",
        "not measured on NVIDIA Test: GPM activity (needs Hopper or newer)",
    )


def test_without_the_drivers_buffer_utilization_is_polled() -> None:
    """Where the driver keeps no samples its present figure is taken instead, and nothing is remarked."""
    backend = ScriptedBackend(utilization_samples=UNSUPPORTED, utilization=in_turn(80.0, 5.0, 90.0))
    seen = watch(backend)
    assert values(seen, "gpu_0_utilization_percentage") == (80, 5, 90)
    assert seen.gauges["gpu_0_idle_fraction"] == pytest.approx(1 / 3)
    assert backend.asked.count("utilization_samples") == 1
    assert seen.remarks == ()


def test_a_passing_failure_is_asked_again() -> None:
    """A counter that times out once has its other values, and a remark that says so."""
    seen = watch(
        ScriptedBackend(temperature=in_turn(50.0, Unreadable("Timeout", for_good=False), 60.0), utilization_samples=in_ticks([50]))
    )
    assert values(seen, "gpu_0_temperature_celsius") == (50, 60)
    assert seen.remarks == ("not measured on NVIDIA Test: temperature (Timeout for a part of the time)",)


def test_a_lost_card_keeps_what_it_had_and_harms_no_other() -> None:
    """After "GPU is lost" the card is not asked again; its figures until then stay, and the other card's go on."""
    cards = (CARD, Card("gpu_1", "GPU-11", "NVIDIA Test"))
    reads = {"GPU-00": 0, "GPU-11": 0}

    def power(card: Card) -> Any:
        reads[card.uuid] += 1
        return CardLost("GPU is lost") if card == CARD and reads[card.uuid] == 3 else 350.0

    seen = watch(ScriptedBackend(cards, power=power, utilization_samples=in_ticks([50])), seconds=6)
    assert values(seen, "gpu_0_power_usage_watts") == (350, 350)
    assert values(seen, "gpu_1_power_usage_watts") == (350,) * 6
    assert reads == {"GPU-00": 3, "GPU-11": 6}
    assert seen.remarks == ("gpu_0 (GPU-00) cannot be read any more: GPU is lost",)


def test_a_card_that_cannot_be_opened_is_named() -> None:
    """A card that is lost from the start has no figures and one remark; the other has its own."""
    seen = watch(ScriptedBackend((Card("gpu_0", broken="GPU is lost"), Card("gpu_1", "GPU-11")), utilization_samples=in_ticks([50])))
    assert {series.device for series in seen.series} == {"GPU-11"}
    assert seen.remarks == ("gpu_0 (no UUID) cannot be read any more: GPU is lost",)


@pytest.mark.parametrize(
    ("cards", "remark"),
    [
        (Unreadable("NVML Shared Library Not Found"), "no GPU figures: NVML Shared Library Not Found"),
        ((), "no GPU figures: NVML finds no card on this host"),
    ],
)
def test_no_library_or_no_card_is_one_remark(cards: Any, remark: str) -> None:
    """Nothing is measured, nothing fails, and the backend is closed."""
    backend = ScriptedBackend(cards)
    assert watch(backend) == Samples(remarks=(remark,))
    assert backend.closed == 1


def test_a_card_that_is_fed_lazily_shows_it() -> None:
    """Samples under 10 % are idle; the longest gap runs from the last busy sample to the last idle one, at the start from the beginning."""
    percents = [0, 95, 0, 3, 9, 95, 10, 0, 0, 95]
    seen = watch(ScriptedBackend(utilization_samples=in_turn(in_ticks(percents[:4]), in_ticks(percents)[4:], ())))
    assert seen.gauges["gpu_0_idle_fraction"] == 0.6
    assert seen.gauges["gpu_0_longest_idle_seconds"] == pytest.approx(0.6)
    assert values(seen, "gpu_0_utilization_percentage") == tuple(percents)


def test_a_card_that_is_always_busy_is_never_idle() -> None:
    """Then both figures are 0, which was measured."""
    seen = watch(ScriptedBackend(utilization_samples=in_ticks([99, 98, 97])))
    assert (seen.gauges["gpu_0_idle_fraction"], seen.gauges["gpu_0_longest_idle_seconds"]) == (0, 0)


def test_samples_are_of_this_window_and_counted_once() -> None:
    """What the driver's buffer holds from before the partition, and what was seen already, is left out."""
    seen = watch(ScriptedBackend(utilization_samples=in_ticks([1, 2, 3, 4, 5, 6], start=999.4)), started=1000.0)
    assert values(seen, "gpu_0_utilization_percentage") == (4, 5, 6)


def test_a_partition_too_short_for_a_sample_has_no_utilization() -> None:
    """No sample in the window: absent, with the reason, and idle figures neither."""
    seen = watch(ScriptedBackend(), seconds=1)
    assert not {name for name in names(seen) if "utilization" in name or "idle" in name}
    assert seen.remarks == ("not measured on NVIDIA Test: utilization (the driver took no sample during so short a partition)",)


def test_throttling_is_a_share_of_the_looks_by_cause() -> None:
    """Power in two looks of four, heat in one of them, a slowdown of unknown cause in a third."""
    seen = watch(ScriptedBackend(throttling=in_turn(("power",), ("power", "thermal"), ("other",), ())), seconds=4)
    assert {name: value for name, value in seen.gauges.items() if "throttled" in name} == {
        "gpu_0_throttled_fraction": 0.75,
        "gpu_0_throttled_power_fraction": 0.5,
        "gpu_0_throttled_thermal_fraction": 0.25,
    }


def test_energy_is_the_counters_difference() -> None:
    """Over six looks 350 J a second; the counter's two ends are kept, so that tasks that share a card can be told from one another."""
    seen = watch(ScriptedBackend(energy=in_turn(*(7000.0 + 350 * second for second in range(6)))), seconds=6)
    assert seen.gauges["gpu_0_energy_joules"] == 1750
    [counter] = [series for series in seen.series if series.name == "gpu_0_energy_counter_joules"]
    assert (counter.times_unix, counter.values) == ((1001.0, 1006.0), (7000.0, 8750.0))


@pytest.mark.parametrize("readings", [[100.0, 450.0], [7000.0, 7350.0, 0.0, 350.0, 700.0, 1050.0]], ids=["a second", "a reloaded driver"])
def test_energy_that_cannot_be_told_is_absent(readings: list[float]) -> None:
    """Over less than 5 s the counter is too coarse; where it fell, the driver was loaded again."""
    assert "gpu_0_energy_joules" not in watch(ScriptedBackend(energy=in_turn(*readings)), seconds=len(readings)).gauges


def test_gpm_figures_are_read_one_by_one() -> None:
    """One metric that NVML refuses, and one that is no number, take no other with them."""
    activity = {"sm_activity_percentage": 40.0, "tensor_activity_percentage": UNSUPPORTED, "dram_bandwidth_percentage": float("nan")}
    seen = watch(ScriptedBackend(activity=in_turn({}, activity, activity), utilization_samples=in_ticks([50])))
    assert values(seen, "gpu_0_sm_activity_percentage") == (40, 40)
    assert not names(seen) & {"gpu_0_tensor_activity_percentage", "gpu_0_dram_bandwidth_percentage"}
    assert seen.remarks == ("not measured on NVIDIA Test: tensor_activity_percentage (Not Supported)",)


def test_of_a_mig_slice_memory_and_activity_are_had() -> None:
    """The slice stands in for its card; utilization is absent and not 0, since NVML has none of slices."""
    mig = Card("gpu_0_mig_2", "MIG-02", "NVIDIA Test MIG 1g")
    only_whole = dict.fromkeys(
        ("utilization", "utilization_samples", "power", "power_limit", "energy", "sm_clock", "throttling"), UNSUPPORTED
    )
    seen = watch(ScriptedBackend((Card("gpu_0", "GPU-00", slices=(mig,)),), **only_whole, activity={"sm_activity_percentage": 21.0}))
    assert names(seen) == {
        "gpu_0_mig_2_memory_usage_megabytes",
        "gpu_0_mig_2_memory_usage_percentage",
        "gpu_0_mig_2_temperature_celsius",
        "gpu_0_mig_2_sm_activity_percentage",
    }
    assert seen.remarks == (
        "not measured on NVIDIA Test MIG 1g: utilization, power, power limit, energy, SM clock, throttle reasons (Not Supported)",
    )


FOUR = [Card(f"gpu_{index}", f"GPU-{letter}{letter}11") for index, letter in enumerate("abcd")]
MIG = [Card("gpu_0", "GPU-aa", slices=(Card("gpu_0_mig_1", "MIG-01"), Card("gpu_0_mig_2", "MIG-02"))), Card("gpu_1", "GPU-bb")]


@pytest.mark.parametrize(
    ("cards", "addresses", "visible", "owned"),
    [
        (FOUR, None, None, "0 1 2 3"),
        (FOUR, None, "2,0", "2 0"),
        (FOUR, None, "", ""),
        (FOUR, None, "-1", ""),
        (FOUR, None, "1,9,2", "1"),
        (FOUR, None, "GPU-c,GPU-aa11", "2 0"),
        (FOUR, None, "GPU-,1", ""),
        (FOUR, ("3",), None, "3"),
        (FOUR, ("3", "1"), "1,3", "3 1"),
        (FOUR, ("0", "1"), "2,3", "2 3"),
        (FOUR, ("3", "3"), None, "3"),
        (FOUR, ("GPU-b",), None, "1"),
        (FOUR, ("9",), None, ""),
        (FOUR, ("nonsense", "2"), None, "2"),
        (MIG, None, None, "0_mig_1 1"),
        (MIG, None, "MIG-02", "0_mig_2"),
        (MIG, ("MIG-01",), None, "0_mig_1"),
        (MIG, ("0",), None, "0_mig_1"),
    ],
)
def test_a_task_has_the_cards_that_it_owns(cards: list[Card], addresses: tuple[str, ...] | None, visible: str | None, owned: str) -> None:
    """By Spark's addresses, else by CUDA_VISIBLE_DEVICES as CUDA reads it, else all; a card in MIG mode by its slice."""
    found, _ = own_cards(cards, addresses, visible)
    assert " ".join(card.label.removeprefix("gpu_") for card in found) == owned


@pytest.mark.parametrize(
    ("addresses", "visible", "remark"),
    [
        (("9", "1"), None, "no GPU figures of the card that Spark calls '9': NVML has no such card here"),
        (None, "", "no GPU figures: CUDA_VISIBLE_DEVICES='' shows no card"),
    ],
)
def test_a_card_that_cannot_be_found_is_remarked(addresses: tuple[str, ...] | None, visible: str | None, remark: str) -> None:
    """An address that NVML does not know, and a variable that hides all cards, are said once."""
    assert own_cards(FOUR, addresses, visible)[1] == [remark]


@pytest.mark.parametrize("count", [1, MAX_POINTS - 1, MAX_POINTS, MAX_POINTS + 1, 1000, 100_000])
def test_a_track_is_short_and_even(count: int) -> None:
    """However many points come, at most 64 are kept, evenly spaced from the first, and more than half of what there is room for."""
    track = Track()
    for place in range(count):
        track.add(float(place), place / 2)
    assert min(count, MAX_POINTS // 2) <= len(track.times) <= MAX_POINTS
    assert track.times[0] == 0
    assert len({round(later - earlier) for earlier, later in zip(track.times, track.times[1:], strict=False)}) <= 1
    assert track.values == [time / 2 for time in track.times]
    assert count - track.times[-1] <= max(1, track.times[1] if len(track.times) > 1 else 1)
