"""What a run cost in cards: each once, whoever shared it, and nothing where nothing was measured."""

from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.metrics import PartitionMetrics, Series, summarise


def record(partition: int, started: float, *, card: str | None = "GPU-aa", host: str = "a", **said: Any) -> PartitionMetrics:
    """Ten seconds and 100 rows; the card's counter rises by 50 joules a second, and it is busy in every second look."""
    times = tuple(started + second for second in range(11))
    series = (
        ()
        if card is None
        else (
            Series("gpu_0_energy_counter_joules", card, (times[0], times[-1]), (50 * times[0], 50 * times[-1])),
            Series("gpu_0_utilization_percentage", card, times[:10], tuple(90.0 * (number % 2) for number in range(10))),
        )
    )
    figures = {"rows": 100, "device": "cpu" if card is None else "cuda:0", "series": series, **said}
    return PartitionMetrics(
        call="c",
        execution="1",
        partition=partition,
        task_attempt=partition,
        host=host,
        pid=1,
        started_unix=started,
        wall_seconds=10.0,
        **figures,
    )


def costs(*records: PartitionMetrics) -> dict[str, float]:
    names = ("device_wait_seconds", "gpu_seconds", "rows_per_gpu_second", "energy_joules", "rows_per_joule", "gpu_idle_fraction")
    found = summarise(records)
    return {name: found[f"inference/{name}"] for name in names if f"inference/{name}" in found}


def test_two_workers_on_a_card_pay_for_it_once() -> None:
    """20 s of one card, in which 300 rows were scored by three partitions, two of them side by side."""
    found = costs(record(0, 0.0), record(1, 0.0, device_wait_seconds=2.0), record(2, 10.0, device_wait_seconds=0.5))
    assert found == pytest.approx(
        {
            "device_wait_seconds": 2.5,
            "gpu_seconds": 20.0,
            "rows_per_gpu_second": 15.0,
            "energy_joules": 1000.0,
            "rows_per_joule": 0.3,
            "gpu_idle_fraction": 0.5,
        }
    )


def test_a_card_that_waits_for_its_next_partition_is_paid_for() -> None:
    """Ten seconds of work, ninety of nothing, ten of work: 110 s, by card and host."""
    found = costs(record(0, 0.0), record(1, 100.0), record(2, 0.0, card="GPU-bb"), record(3, 0.0, host="b"))
    assert found["gpu_seconds"] == pytest.approx(110 + 10 + 10)


def test_a_cpu_costs_no_card() -> None:
    """Nothing is there, and nothing is 0; a model on the CPU of a machine with cards is none of theirs."""
    assert costs(record(0, 0.0, card=None)) == {}
    assert costs(record(0, 0.0, device="cpu")) == {}


def test_energy_of_some_cards_is_not_told_as_that_of_all() -> None:
    """One card has no counter: its time is known, the run's energy is not."""
    blind = record(1, 0.0, card="GPU-bb")
    found = costs(record(0, 0.0), record(1, 0.0, card="GPU-bb", series=blind.series[1:]))
    assert "energy_joules" not in found
    assert found["gpu_seconds"] == 20.0
