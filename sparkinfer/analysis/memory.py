"""How a task's memory grows with the rows of a batch.

Runs on: driver (standard library only).

Invariant: what is told of a size that was not tried comes with the sizes that were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MemoryFit", "fitted"]


@dataclass(frozen=True, kw_only=True)
class MemoryFit:
    """``peak = base_bytes + row_bytes * rows of a batch``, by least squares.

    Attributes:
        base_bytes: of a process without any batch: the interpreter, the framework, the model.
        row_bytes: that each row of a batch adds: on its way in, inside the model, on its way out.
        peaks: what was measured, by the rows of a batch.
    """

    base_bytes: float
    row_bytes: float
    peaks: Mapping[int, int]

    def at(self, rows: int) -> float:
        """Give the peak that batches of so many rows should have."""
        return self.base_bytes + self.row_bytes * rows

    def largest_batch(self, limit_bytes: float) -> int | None:
        """Give the rows of the largest batch that stays within a limit; 0 where not even one row does, ``None`` where rows cost nothing that was seen.

        Example:
            >>> fitted({64: 1064, 256: 1256}).largest_batch(2000)
            1000
        """
        if self.at(1) > limit_bytes:
            return 0
        return None if self.row_bytes <= 0 else int((limit_bytes - self.base_bytes) / self.row_bytes)

    def __str__(self) -> str:
        """Give it in a line."""
        tried = ", ".join(f"{rows:,}" for rows in sorted(self.peaks))
        return f"{self.base_bytes / 1e6:,.0f} MB + {self.row_bytes / 1e6:.3g} MB a row of a batch (batches of {tried} rows were tried)"


def fitted(peaks: Mapping[int, int]) -> MemoryFit | None:
    """Fit a line through the peaks of batches of two sizes or more; a peak that shrinks with the size is taken not to grow."""
    if len(peaks) < 2:
        return None
    middle = sum(peaks) / len(peaks)
    mean = sum(peaks.values()) / len(peaks)
    spread = sum((rows - middle) ** 2 for rows in peaks)
    each = max(0.0, sum((rows - middle) * (peak - mean) for rows, peak in peaks.items()) / spread)
    return MemoryFit(base_bytes=max(0.0, mean - each * middle), row_bytes=each, peaks=dict(peaks))
