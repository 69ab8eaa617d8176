"""What a run cost in cards: their time, their energy, and what of it was idle.

Runs on: both (standard library only).

Invariant: a card counts once, however many workers were on it; what was not measured is absent and never 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkinfer.metrics import PartitionMetrics, Series

__all__ = ["card_costs"]

_IDLE_PERCENT = 10.0  # as the sampler has it


def card_costs(partitions: Sequence[PartitionMetrics]) -> dict[str, float]:
    """Give the figures of a run's cards, by documented names.

    A card's time is from the begin of the first partition on it to the end of the last one: it is paid for in between as well. Its energy is the
    span of its own counter, which counts what others had of the card, too.

    Args:
        partitions: of one execution, each once.
    """
    waits = [record.device_wait_seconds for record in partitions if record.device_wait_seconds is not None]
    figures = {"inference/device_wait_seconds": sum(waits)} if waits else {}
    cards = _by_card(partitions)
    on_cards = [record for record in partitions if record.device is not None and record.device.startswith("cuda")]
    if not cards or not on_cards:
        return figures
    rows = sum(record.rows for record in on_cards)
    seconds = sum(_span(records) for records, _ in cards.values())
    if seconds > 0:
        figures |= {"inference/gpu_seconds": seconds, "inference/rows_per_gpu_second": rows / seconds}
    joules = [_rise(found) for _, series in cards.values() if (found := _named(series, "energy_counter_joules"))]
    if len(joules) == len(cards) and sum(joules) > 0:
        figures |= {"inference/energy_joules": sum(joules), "inference/rows_per_joule": rows / sum(joules)}
    looks = [value for _, series in cards.values() for value in _once(_named(series, "utilization_percentage"))]
    if looks:
        figures["inference/gpu_idle_fraction"] = sum(value < _IDLE_PERCENT for value in looks) / len(looks)
    return figures


def _by_card(partitions: Sequence[PartitionMetrics]) -> dict[tuple[str, str], tuple[list[PartitionMetrics], list[Series]]]:
    cards: dict[tuple[str, str], tuple[list[PartitionMetrics], list[Series]]] = defaultdict(lambda: ([], []))
    for record in partitions:
        for device in {series.device for series in record.series if series.device is not None}:
            records, series = cards[record.host, device]
            records.append(record)
            series += [one for one in record.series if one.device == device]
    return cards


def _span(records: Sequence[PartitionMetrics]) -> float:
    return max(record.started_unix + record.wall_seconds for record in records) - min(record.started_unix for record in records)


def _named(series: Sequence[Series], ending: str) -> list[Series]:
    return [one for one in series if one.name.endswith(ending)]


def _rise(counters: Sequence[Series]) -> float:
    values = [value for one in counters for value in one.values]
    return max(values) - min(values)


def _once(series: Sequence[Series]) -> list[float]:
    """Give the values: two workers on a card have seen the same samples."""
    return list({when: value for one in series for when, value in zip(one.times_unix, one.values, strict=True)}.values())
