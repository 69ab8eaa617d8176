"""Which of the cards that a process sees is the task's own.

Runs on: worker.

Invariant: where Spark assigned a card, no other one is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["card_of"]


def card_of(addresses: Sequence[str] | None, visible: str | None) -> int | None:
    """Give the number by which CUDA knows a task's first card in this process.

    Spark tells a task its cards' addresses, as the discovery script numbered them, and hides the others from nobody: in a process that sees
    several cards, a framework would take the first, and all tasks of a host the same.

    Args:
        addresses: ``TaskContext.resources()["gpu"].addresses``: numbers, or UUIDs; ``None`` where Spark assigned no card.
        visible: the process's ``CUDA_VISIBLE_DEVICES``; CUDA numbers what is listed there from 0.

    Returns:
        The number; ``None`` where Spark assigned none, or the address is a UUID of a card that is not listed by it.

    Example:
        >>> card_of(["3"], None)
        3
        >>> card_of(["3"], "2,3")
        1
    """
    if not addresses:
        return None
    address = addresses[0]
    listed = [one.strip() for one in visible.split(",")] if visible else []
    if address in listed:
        return listed.index(address)
    if not address.isdecimal():
        return None
    number = int(address)
    return number if not listed or number < len(listed) else None
