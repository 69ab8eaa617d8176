"""Which of the cards that a process sees are the task's own, and what they are called on the whole host.

Runs on: worker.

Invariant: where Spark assigned cards, no other one is taken; a card has one name on its host, whichever way a process sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkinfer.exceptions import ConfigError

__all__ = ["card_of", "cards_of", "host_names"]


def card_of(addresses: Sequence[str] | None, visible: str | None, uuids: Sequence[str] = ()) -> int | None:
    """Give the number by which CUDA knows a task's card in this process.

    Spark tells a task its cards' addresses, as the discovery script numbered them, and hides the others from nobody: in a process that sees
    several cards, a framework would take the first, and all tasks of a host the same.

    Args:
        addresses: of one card, as ``TaskContext.resources()["gpu"].addresses`` has it: a number, a UUID or a MIG slice's name; of
            several the first counts; ``None`` where Spark assigned no card.
        visible: the process's ``CUDA_VISIBLE_DEVICES``; CUDA numbers what is listed there from 0.
        uuids: of all the host's cards in nvidia-smi's order, where they are known; by them an address and a list entry are compared that
            name a card in different ways.

    Returns:
        The number; ``None`` where Spark assigned none, or the address is of a card that the process does not see.

    Example:
        >>> card_of(["3"], None)
        3
        >>> card_of(["3"], "2,3")
        1
        >>> card_of(["GPU-bb"], None, ["GPU-aa", "GPU-bb"])
        1
    """
    if not addresses:
        return None
    address = addresses[0].strip()
    listed = _listed(visible)
    if address in listed:
        return listed.index(address)
    seen = [_uuid(entry, uuids) for entry in listed] if listed else list(uuids)
    uuid = _uuid(address, uuids)
    if uuid in seen and uuid in uuids:
        return seen.index(uuid)
    if not address.isdecimal():
        return None
    number = int(address)  # by a discovery script that sees what this process sees
    return number if not listed or number < len(listed) else None


def cards_of(addresses: Sequence[str], visible: str | None, count: int, uuids: Sequence[str] = ()) -> tuple[int, ...]:
    """Give the numbers of all of a task's cards, in the order of their addresses.

    Args:
        addresses: what Spark assigned; at least one.
        visible: as in ``card_of``.
        count: cards that the framework sees in this process.
        uuids: as in ``card_of``.

    Raises:
        ConfigError: an address is of no card that the process sees.

    Example:
        >>> cards_of(["2", "3"], "2,3", 2)
        (0, 1)
        >>> cards_of(["7"], "7", 1)
        (0,)
    """
    if count == 1 and len(addresses) == 1:
        return (0,)  # a container that shows one card: whatever it is called outside
    numbers = []
    for address in addresses:
        number = card_of([address], visible, uuids)
        if number is None or number >= count:
            shown = f"CUDA_VISIBLE_DEVICES={visible!r}" if visible is not None else "CUDA_VISIBLE_DEVICES not set"
            msg = (
                f"Spark assigned the card {address!r} to this task, expected one of the {count} that the framework sees here ({shown}): have the "
                "discovery script print nvidia-smi's indices, or list the card's UUID in CUDA_VISIBLE_DEVICES, or say device='cuda:<number>'"
            )
            raise ConfigError(msg)
        numbers.append(number)
    return tuple(numbers)


def host_names(count: int, visible: str | None, uuids: Sequence[str] = ()) -> tuple[str, ...]:
    """Name the cards that a process sees by what they are called in every process of the host.

    Args:
        count: cards that the framework sees in this process.
        visible: as in ``card_of``.
        uuids: as in ``card_of``; where they are not known, a card is called by its entry in the list, or else by its number.

    Example:
        >>> host_names(2, "1,GPU-a", ["GPU-aa", "GPU-bb"])
        ('GPU-bb', 'GPU-aa')
        >>> host_names(2, None)
        ('0', '1')
    """
    listed = _listed(visible) or [str(number) for number in range(count)]
    names = [_uuid(entry, uuids) for entry in listed[:count]]
    return (*names, *(f"unlisted-{number}" for number in range(len(names), count)))


def _listed(visible: str | None) -> list[str]:
    return [entry.strip() for entry in visible.split(",")] if visible else []


def _uuid(entry: str, uuids: Sequence[str]) -> str:
    """Give the UUID that an index, or the beginning of a UUID, stands for; what cannot be told stays as it is."""
    if entry.isdecimal():
        return uuids[int(entry)] if int(entry) < len(uuids) else entry
    begins = [uuid for uuid in uuids if entry and uuid.startswith(entry)]
    return begins[0] if len(begins) == 1 else entry
