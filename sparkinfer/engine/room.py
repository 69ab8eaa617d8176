"""How much may be on its way to the model: counted in batches, and in bytes.

Runs on: worker (standard library only).

Invariant: what is on its way is at most ``most_bytes``, or one item.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Batch, Fed

__all__ = ["Room", "fed_bytes", "input_bytes", "shares"]


def input_bytes(inputs: Any) -> int:
    """Count the bytes of a batch's inputs; of text and rows of unequal length only the pointers."""
    arrays = getattr(inputs, "arrays", None)
    return sum(int(getattr(array, "nbytes", 0)) for array in arrays.values()) if arrays else 0


def fed_bytes(fed: Fed) -> int:
    """Count what a prepared batch holds: its inputs, or where they are objects its column bytes."""
    return max(input_bytes(fed.inputs), int(fed.batch.data.nbytes))


def shares(most_bytes: int, num_workers: int, prefetch_batches: int) -> tuple[int, int]:
    """Share bytes between what loader processes have and what waits behind them, by the batches that each may hold."""
    out = num_workers + 1
    theirs = most_bytes * out // (out + prefetch_batches)
    return theirs, most_bytes - theirs


class Room:
    """For batches that are prepared elsewhere: how large they come back is guessed from the last that did.

    Example:
        >>> Room(None, 3).most
        3
    """

    def __init__(self, most_bytes: int | None, most: int) -> None:
        """Begin empty.

        Args:
            most_bytes: of all batches that are out; ``None``: any number.
            most: batches.
        """
        self.most = most
        self._most_bytes = most_bytes
        self._row_bytes = 0.0  # of prepared inputs
        self._sizes: deque[int] = deque()

    def fits(self, batch: Batch, *, first_leaves: bool = False) -> bool:
        """Tell whether one more may go out; with ``first_leaves`` the first that is out is on its way back, and counts no more."""
        sizes = list(self._sizes)[1 if first_leaves else 0 :]
        if not sizes or self._most_bytes is None:
            return len(sizes) < self.most
        return len(sizes) < self.most and sum(sizes) + self._guess(batch) <= self._most_bytes

    def enter(self, batch: Batch) -> None:
        """Count one that goes out."""
        self._sizes.append(self._guess(batch))

    def leave(self, batch: Batch, inputs: Any) -> None:
        """Forget the first, which has come back, but for its size."""
        self._sizes.popleft()
        if batch.data.num_rows:
            self._row_bytes = input_bytes(inputs) / batch.data.num_rows

    def clear(self) -> None:
        """Forget all that is out."""
        self._sizes.clear()

    def _guess(self, batch: Batch) -> int:
        return max(int(batch.data.nbytes), int(self._row_bytes * batch.data.num_rows))
