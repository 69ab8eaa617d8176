"""Small histograms over the fixed buckets, as SVG.

Runs on: driver (standard library only).

Invariant: bars stand over equal widths of the numbers' own axis between the least and the greatest, and add up to all that was counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkinfer.insides import Values, bucket_bounds
from sparkinfer.reporting.markup import Html, tag

__all__ = ["histogram"]

_BARS, _WIDTH, _HEIGHT = 32, 192.0, 36.0


def histogram(values: Values, before: Values | None = None) -> Html | None:
    """Draw how numbers are distributed, with a line for those of a baseline; ``None`` where there are none, or all are the same."""
    if not values.measured or values.low >= values.high:
        return None
    low, high = values.low, values.high
    if before is not None and before.measured:
        low, high = min(low, before.low), max(high, before.high)
    shares = _shares(values.buckets, low, high)
    then = _shares(before.buckets, low, high) if before is not None and before.measured else []
    most = max([*shares, *then])
    step = _WIDTH / _BARS
    bars = "".join(
        f"M{place * step:g} {_HEIGHT:g}v-{_HEIGHT * share / most:.1f}h{step - 0.8:g}V{_HEIGHT:g}z"
        for place, share in enumerate(shares)
        if share
    )
    line = None
    if then:
        points = " ".join(
            f"{(place + side) * step:.1f},{_HEIGHT * (1 - share / most):.2f}" for place, share in enumerate(then) for side in (0, 1)
        )
        line = tag("polyline", points=points, fill="none", stroke="#d86c5d", stroke_width="1.2")
    said = f"from {low:.3g} to {high:.3g}" + (", the line is the baseline" if then else "")
    return tag(
        "svg",
        tag("title", said),
        tag("path", d=bars, fill="#3d8bd4"),
        line,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_label=f"histogram {said}",
        xmlns="http://www.w3.org/2000/svg",
        style="width: 12rem; height: 2.25rem",
    )


def _shares(buckets: Mapping[int, int], low: float, high: float) -> list[float]:
    """Spread each bucket's count over the bars that it lies in."""
    bars = [0.0] * _BARS
    wide = (high - low) / _BARS
    for bucket, count in buckets.items():
        begin, end = (max(low, min(high, one)) for one in bucket_bounds(bucket))
        first, last = (min(_BARS - 1, int((one - low) / wide)) for one in (begin, end))
        if first == last or end <= begin:
            bars[first] += count
            continue
        for place in range(first, last + 1):
            inside = min(end, low + (place + 1) * wide) - max(begin, low + place * wide)
            bars[place] += count * max(0.0, inside) / (end - begin)
    whole = sum(bars) or 1.0
    return [bar / whole for bar in bars]
