"""How predictions agree with a label: counts and errors that add up over chunks, partitions and runs.

Runs on: both (standard library only).

Invariant: adding is exact up to the bound on classes, beyond which only the totals are kept; what could not be compared is counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["MOST_PAIRS", "Quality"]

MOST_PAIRS = 2500
"""Distinct pairs of label and prediction that are kept: the square of 50 classes."""

_LONGEST_CLASS = 100  # letters; what is longer is a text and no class


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How an output compares with the label column; adds up over chunks and partitions.

    Attributes:
        label: the label column.
        output: the output that it was compared with.
        compared: rows that were compared.
        left_out: rows that were not: a null, or no finite number, on either side.
        right: rows where both are the same; ``None`` where numbers were compared.
        pairs: rows by (label, prediction); ``None`` where numbers were compared, where there are too many distinct ones, or where they are
            long texts.
        absolute_error: the sum over the rows; ``None`` where classes were compared.

    Example:
        >>> seen = Quality.of_classes("truth", "y", {("cat", "cat"): 3, ("cat", "dog"): 1}, left_out=2)
        >>> (seen + seen).figures()
        {'quality/compared_rows_total': 8, 'quality/left_out_rows_total': 4, 'quality/accuracy': 0.75}
    """

    label: str
    output: str
    compared: int = 0
    left_out: int = 0
    right: int | None = None
    pairs: Mapping[tuple[Any, Any], int] | None = None
    absolute_error: float | None = None

    @classmethod
    def of_classes(cls, label: str, output: str, pairs: Mapping[tuple[Any, Any], int], left_out: int = 0) -> Quality:
        """Make it of counted pairs, which are kept where they are few."""
        right = sum(count for (true, predicted), count in pairs.items() if true == predicted)
        compared = sum(pairs.values())
        return cls(label=label, output=output, compared=compared, left_out=left_out, right=right, pairs=_bounded(pairs))

    def __add__(self, other: Quality) -> Quality:
        """Count both, which are of the same columns."""
        pairs: Mapping[tuple[Any, Any], int] | None = None
        if self.pairs is not None and other.pairs is not None:
            merged = dict(self.pairs)
            for pair, count in other.pairs.items():
                merged[pair] = merged.get(pair, 0) + count
            pairs = _bounded(merged)
        return Quality(
            label=self.label,
            output=self.output,
            compared=self.compared + other.compared,
            left_out=self.left_out + other.left_out,
            right=None if self.right is None or other.right is None else self.right + other.right,
            pairs=pairs,
            absolute_error=(
                None if self.absolute_error is None or other.absolute_error is None else self.absolute_error + other.absolute_error
            ),
        )

    @property
    def classes(self) -> list[Any]:
        """The labels and predictions that were seen, each once, sorted."""
        return sorted({one for pair in self.pairs or () for one in pair})

    def figures(self) -> dict[str, float]:
        """Give the figures by documented names; no share of no rows."""
        figures: dict[str, float] = {"quality/compared_rows_total": self.compared, "quality/left_out_rows_total": self.left_out}
        if self.compared and self.right is not None:
            figures["quality/accuracy"] = self.right / self.compared
        if self.compared and self.absolute_error is not None:
            figures["quality/mean_absolute_error"] = self.absolute_error / self.compared
        return figures

    def told(self) -> dict[str, Any]:
        """Give it as JSON knows it, without what is absent."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        if self.pairs is not None:
            values["pairs"] = [[*pair, count] for pair, count in self.pairs.items()]
        return values

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Quality:
        """Read what ``told`` gave; a field of a newer version is left out."""
        known = {known.name for known in fields(cls)}
        values = {name: value for name, value in told.items() if name in known}
        if "pairs" in values:
            values["pairs"] = {(true, predicted): count for true, predicted, count in values["pairs"]}
        return cls(**values)


def _bounded(pairs: Mapping[tuple[Any, Any], int]) -> Mapping[tuple[Any, Any], int] | None:
    """Give the pairs where they are few, and classes rather than texts."""
    if len(pairs) > MOST_PAIRS or any(isinstance(one, str) and len(one) > _LONGEST_CLASS for pair in pairs for one in pair):
        return None
    return pairs
