"""A host's cards: what is asked of a library that reads them, and which of them a task owns.

Runs on: worker (standard library only).

Invariant: a card that cannot be told for sure to be the task's own is not given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Card", "CardLost", "GpuBackend", "Unreadable", "own_cards"]


class Unreadable(Exception):  # noqa: N818 - a fact to be noted, not an error that anyone sees
    """A figure is not to be had.

    Attributes:
        reason: in a few words.
        for_good: asking again would not help.
    """

    def __init__(self, reason: str, *, for_good: bool = True) -> None:
        """Keep why."""
        super().__init__(reason)
        self.reason = reason
        self.for_good = for_good


class CardLost(Unreadable):
    """The card has fallen off the bus, or must be reset: nothing more will come from it."""


@dataclass(frozen=True)
class Card:
    """A card, or a MIG slice of one.

    Attributes:
        label: ``gpu_<i>`` with the index that nvidia-smi and MLflow give it, or ``gpu_<i>_mig_<instance>``.
        uuid: as NVML writes it.
        product: the maker's name for it.
        slices: of a card in MIG mode.
        broken: why it cannot be opened.
        handle: the backend's own.
    """

    label: str
    uuid: str = ""
    product: str = ""
    slices: tuple[Card, ...] = ()
    broken: str | None = None
    handle: Any = field(default=None, compare=False)


class GpuBackend(Protocol):
    """Reads cards. Every method may raise ``Unreadable``; none is called by two threads at a time."""

    def cards(self) -> Sequence[Card]:
        """Give all cards of the host, in the order of their index."""

    def utilization_samples(self, card: Card, after: int) -> Sequence[tuple[int, float]]:
        """Give the driver's own samples, as microseconds since 1970 and percent, that are younger than ``after``."""

    def utilization(self, card: Card) -> float:
        """Give the percentage of the last moment's time in which any kernel ran."""

    def memory(self, card: Card) -> tuple[float, float]:
        """Give the bytes in use and in all."""

    def power(self, card: Card) -> float:
        """Give watts."""

    def power_limit(self, card: Card) -> float:
        """Give the watts that the card may draw."""

    def energy(self, card: Card) -> float:
        """Give joules since the driver was loaded."""

    def sm_clock(self, card: Card) -> float:
        """Give megahertz."""

    def temperature(self, card: Card) -> float:
        """Give degrees Celsius."""

    def throttling(self, card: Card) -> Sequence[str]:
        """Give what holds the clock down now: ``"power"``, ``"thermal"``, ``"other"``; being idle is none of them."""

    def activity(self, card: Card) -> Mapping[str, float | Unreadable]:
        """Give what the card's units did since the last call, by names with units; nothing if that was too short ago."""

    def close(self) -> None:
        """Give back what was taken for reading; never raises."""


def own_cards(cards: Sequence[Card], addresses: Sequence[str] | None, visible: str | None) -> tuple[list[Card], list[str]]:
    """Choose the cards that a task owns, and remark on what could not be found.

    An integer in Spark's addresses is what its discovery script printed: nvidia-smi's index, which knows nothing of
    CUDA_VISIBLE_DEVICES. Where that card is hidden, the integer is taken for a place in the visible ones.
    As for CUDA, CUDA_VISIBLE_DEVICES ends at its first entry that names no card, and a process gets one slice of a card in MIG mode.

    Args:
        cards: all of the host's.
        addresses: Spark's for this task; ``None`` or empty where Spark was not asked for cards.
        visible: CUDA_VISIBLE_DEVICES; ``None`` where it is not set.

    Example:
        >>> cards = [Card("gpu_0", "GPU-aa"), Card("gpu_1", "GPU-bb"), Card("gpu_2", "GPU-cc")]
        >>> [card.label for card in own_cards(cards, None, "GPU-c,0")[0]]
        ['gpu_2', 'gpu_0']
        >>> [card.label for card in own_cards(cards, ("1",), None)[0]]
        ['gpu_1']
    """
    seen: list[Card] = []
    for entry in visible.split(",") if visible is not None else map(str, range(len(cards))):
        card = _find(cards, entry.strip())
        if card is None or card in seen:
            break
        seen.append(card)
    if not addresses:
        return seen, [] if seen or visible is None else [f"no GPU figures: CUDA_VISIBLE_DEVICES={visible!r} shows no card"]
    owned: list[Card] = []
    remarks = []
    for address in addresses:
        card = _find(cards, address.strip())
        if card not in seen and address.isdecimal() and int(address) < len(seen):
            card = seen[int(address)]
        if card is None:
            remarks.append(f"no GPU figures of the card that Spark calls {address!r}: NVML has no such card here")
        elif card not in owned:
            owned.append(card)
    return owned, remarks


def _find(cards: Sequence[Card], entry: str) -> Card | None:
    if entry.isdecimal():
        return _usable(cards[int(entry)]) if int(entry) < len(cards) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    named = [one for card in cards for one in (card, *card.slices) if one.uuid.startswith(entry)]
    return _usable(named[0]) if len(named) == 1 else None


def _usable(card: Card) -> Card:
    return card.slices[0] if card.slices else card
