"""Intervals of few measurements that were made in turn.

Runs on: driver (standard library only).

Invariant: an interval holds the middle of what it is of; of a single measurement it says nothing: its ends are 0 and infinity.

Times on a shared machine have a heavy tail: one slow moment makes Student's interval of a few rounds useless. From five values on, the interval is that of
the median by the sign test, which asks nothing of the distribution and lets outliers go as soon as there are eight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

__all__ = ["Interval", "of_positive"]

# Student's t, two-sided 95 %, by degrees of freedom
_T = (math.inf, 12.71, 4.30, 3.18)
_MANY = 5
_OUTSIDE = 0.04  # on each side, at most: then five values' least and largest are the ends


@dataclass(frozen=True)
class Interval:
    """From, most likely, to.

    Attributes:
        low: of a 95 % interval.
        middle: the best single value.
        high: of the same interval.
    """

    low: float
    middle: float
    high: float

    @property
    def width(self) -> float:
        """How many times the lower end the upper one is."""
        return self.high / self.low if self.low > 0 else math.inf

    def overlaps(self, other: Interval) -> bool:
        """Tell whether the two have a value in common."""
        return self.low <= other.high and other.low <= self.high


def of_positive(values: Sequence[float]) -> Interval:
    """Give the interval of the middle of positive values, 95 % in about: by Student's t on their logarithms, from five values on by the sign test.

    Ratios of what was measured in the same round are paired: what slowed the whole round down is in neither.

    Raises:
        ValueError: there is none, or one is not above 0.

    Example:
        >>> found = of_positive([9.0, 10.0, 11.0])
        >>> [round(end, 1) for end in (found.low, found.middle, found.high)]
        [7.8, 10.0, 12.8]
    """
    if not values or min(values) <= 0:
        msg = f"expected values above 0, got {list(values)!r}"
        raise ValueError(msg)
    if len(values) >= _MANY:
        ordered = sorted(values)
        out = _left_out(len(ordered))
        return Interval(ordered[out], median(ordered), ordered[-1 - out])
    logs = [math.log(value) for value in values]
    if len(logs) == 1:
        return Interval(0.0, values[0], math.inf)
    half = _T[len(logs) - 1] * stdev(logs) / math.sqrt(len(logs))
    half = min(half, 50.0)
    return Interval(math.exp(mean(logs) - half), math.exp(mean(logs)), math.exp(mean(logs) + half))


def _left_out(count: int) -> int:
    """Give how many values at each end lie outside the median's interval."""
    out, below = 0, 0.5**count
    while below + math.comb(count, out + 1) * 0.5**count <= _OUTSIDE:
        out += 1
        below += math.comb(count, out) * 0.5**count
    return out
