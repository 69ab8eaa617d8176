"""Is what is seen now distributed as it was: the population stability index over the buckets of then.

Runs on: driver (standard library only).

Invariant: two samples of the same distribution differ by chance, and the fewer their rows the more; what chance alone brings about once in a thousand times
is not called drift.

The buckets of then are put together to ten groups of about a tenth each, and one below and one above all that was seen. With the shares ``p`` then and ``q``
now, the index is the sum of ``(q - p) * log(q / p)``: 0 for the same shares; 0.1 is commonly called a small change, 0.2 and more a shift. Of ``n`` rows then
and ``m`` now, chance makes it about ``(1/n + 1/m)`` times a chi-square of as many degrees as there are groups, less one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkinfer.insides import OTHERS, Labels, Values, most_labels

if TYPE_CHECKING:
    from sparkinfer.insides import Insides, LayerSeen

__all__ = ["Drift", "drifts", "stability_index", "threshold"]

_GROUPS = 10
_MOST_LABELS = 20
_SHIFT = 0.2  # what is commonly called one
_ONCE_IN_A_THOUSAND = 3.09  # standard deviations of a normal, one-sided
_HALF = 0.5  # of a value, in a group that has none: its logarithm would have no end
_MORE_DEAD, _MORE_BROKEN = 0.05, 0.001  # shares of the units, of the values


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One figure, then and now.

    Attributes:
        where: ``input``, ``layer`` or ``output``.
        name: of it.
        measure: ``stability index``, ``NaN or infinite`` (a share) or ``dead units`` (a share).
        before: the figure then; of the stability index, 0.
        now: the figure now.
        threshold: beyond which it counts as drift: of the index, or of the share's rise.
    """

    where: str
    name: str
    measure: str
    before: float
    now: float
    threshold: float

    @property
    def drifted(self) -> bool:
        """Whether it is beyond the threshold."""
        return self.now - self.before > self.threshold

    def __str__(self) -> str:
        """Say it as a sentence."""
        what = f"{self.where} {self.name!r}"
        if self.measure == "stability index":
            return f"{what} is not distributed as in the baseline: stability index {self.now:.2f}, threshold {self.threshold:.2f}"
        return f"{what} has {_share(self.now)} {self.measure}, and had {_share(self.before)} in the baseline"


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def drifts(before: Insides, now: Insides) -> tuple[Drift, ...]:
    """Compare what both have; what drifted comes first, in the data's order: inputs, layers, outputs."""
    found: list[Drift] = []
    for name, seen in now.inputs.items():
        found += _of("input", name, before.inputs.get(name), seen, before.rows, now.rows)
    then = {layer.name: layer for layer in before.layers}
    for layer in now.layers:
        if layer.name in then and layer.calls and then[layer.name].calls:
            found += _of("layer", layer.name, then[layer.name].values, layer.values, before.rows, now.rows)
            found += _dead(then[layer.name], layer)
    for name, came in now.outputs.items():
        found += _of("output", name, before.outputs.get(name), came, before.rows, now.rows)
    return tuple(sorted(found, key=lambda one: not one.drifted))


def _of(where: str, name: str, before: Values | Labels | None, now: Values | Labels, rows_before: int, rows_now: int) -> list[Drift]:
    if isinstance(before, Labels) and isinstance(now, Labels):
        index, groups = _labels_index(before, now)
        return [
            Drift(
                where=where, name=name, measure="stability index", before=0.0, now=index, threshold=threshold(groups, rows_before, rows_now)
            )
        ]
    if not isinstance(before, Values) or not isinstance(now, Values):
        return []
    found = []
    if before.measured and now.measured:
        index, groups = stability_index(before.buckets, now.buckets)
        found.append(
            Drift(
                where=where, name=name, measure="stability index", before=0.0, now=index, threshold=threshold(groups, rows_before, rows_now)
            )
        )
    broken = [one.nan_fraction + one.infinite_fraction for one in (before, now)]
    if any(broken):
        found.append(Drift(where=where, name=name, measure="NaN or infinite", before=broken[0], now=broken[1], threshold=_MORE_BROKEN))
    return found


def _dead(before: LayerSeen, now: LayerSeen) -> list[Drift]:
    if not before.units or before.units != now.units or not (before.dead or now.dead):
        return []
    shares = [one.dead / before.units for one in (before, now)]
    return [Drift(where="layer", name=now.name, measure="dead units", before=shares[0], now=shares[1], threshold=_MORE_DEAD)]


def threshold(groups: int, rows_before: int, rows_now: int) -> float:
    """Give the index that counts as drift: 0.2, or what chance brings about once in a thousand times, where that is more.

    Rows count, and not values: the values of a row may all depend on each other.

    Example:
        >>> round(threshold(12, 2000, 2000), 2), round(threshold(12, 64, 64), 2)
        (0.2, 0.98)
    """
    degrees = max(1, groups - 1)
    part = 2 / (9 * degrees)
    chi_square = degrees * (1 - part + _ONCE_IN_A_THOUSAND * math.sqrt(part)) ** 3  # Wilson and Hilferty
    return max(_SHIFT, chi_square * (1 / max(1, rows_before) + 1 / max(1, rows_now)))


def stability_index(before: Mapping[int, int], now: Mapping[int, int]) -> tuple[float, int]:
    """Compare counts by bucket; give the index, and the number of groups that it was taken over.

    Example:
        >>> same = {bucket: 10 for bucket in range(20)}
        >>> stability_index(same, same)[0]
        0.0
        >>> stability_index(same, {19: 200})[0] > 1
        True
    """
    ends = _ends(before)
    counts = [[0] * (len(ends) + 1) for _ in range(2)]
    for side, buckets in enumerate((before, now)):
        for bucket, count in buckets.items():
            counts[side][bisect_left(ends, bucket)] += count
    return _index(*counts), len(ends) + 1


def _ends(buckets: Mapping[int, int]) -> list[int]:
    """Give the last bucket of each group: one below all that was seen, then about a tenth each; above the last end comes one more."""
    ordered = sorted(bucket for bucket, count in buckets.items() if count)
    whole = sum(buckets.values())
    ends = [ordered[0] - 1]
    taken = 0
    for bucket in ordered:
        taken += buckets[bucket]
        if taken >= whole * len(ends) / _GROUPS or bucket == ordered[-1]:
            ends.append(bucket)
    return ends


def _labels_index(before: Labels, now: Labels) -> tuple[float, int]:
    """Compare the labels that were the most frequent ones, and all others together; a null is a label, too."""
    kept = most_labels({**before.counts, "(null)": before.nulls}, _MOST_LABELS)
    names = [name for name in kept if name != OTHERS]
    counts = []
    for one in (before, now):
        every = {**one.counts, "(null)": one.nulls}
        named = [every.get(name, 0) for name in names]
        counts.append([*named, sum(every.values()) - sum(named)])
    return _index(*counts), len(names) + 1


def _index(before: Sequence[int], now: Sequence[int]) -> float:
    wholes = [sum(side) + _HALF * len(side) for side in (before, now)]
    shares = [((was + _HALF) / wholes[0], (is_now + _HALF) / wholes[1]) for was, is_now in zip(before, now, strict=True)]
    return sum((q - p) * math.log(q / p) for p, q in shares)
