"""A flame graph of stacks, as SVG.

Runs on: driver (standard library only).

Invariant: a frame is as wide as its share of all time, its callees lie on it, and what is too thin to be seen is left out and counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sparkinfer.reporting.markup import Html, tag

__all__ = ["flame_graph"]

_WIDTH, _ROW = 1000.0, 17.0
_THINNEST = 1.2  # of a thousand: no text fits, and nobody points at it
_LETTER = 6.1
_DEEPEST = 48


@dataclass
class _Frame:
    us: float = 0.0
    callees: dict[str, _Frame] = field(default_factory=dict)


def flame_graph(stacks: Mapping[str, float]) -> Html | None:
    """Draw stacks, spelt ``outer;inner``, with their self microseconds; ``None`` where there are none.

    Resting a pointer on a frame shows its whole name, its time and its share.
    """
    root = _Frame()
    for stack, us in stacks.items():
        root.us += us
        frame = root
        for name in stack.split(";")[:_DEEPEST]:
            frame = frame.callees.setdefault(name, _Frame())
            frame.us += us
    if not root.us:
        return None
    drawn = list(_frames(root, 0.0, 0, root.us))
    rows = 1 + max((depth for *_, depth in drawn), default=0)
    boxes = [_box(name, us, at, depth, root.us) for name, us, at, depth in drawn]
    return tag(
        "svg", *boxes, viewBox=f"0 0 {_WIDTH:g} {rows * _ROW:g}", role="img", aria_label="flame graph", xmlns="http://www.w3.org/2000/svg"
    )


def _frames(frame: _Frame, at: float, depth: int, whole: float) -> Iterator[tuple[str, float, float, int]]:
    for name, callee in sorted(frame.callees.items(), key=lambda item: -item[1].us):
        width = callee.us / whole * _WIDTH
        if width >= _THINNEST:
            yield name, callee.us, at, depth
            yield from _frames(callee, at, depth + 1, whole)
        at += width


def _box(name: str, us: float, at: float, depth: int, whole: float) -> Html:
    width = us / whole * _WIDTH
    hue = 18 + zlib.crc32(name.encode()) % 34  # the same name has the same colour in every graph
    letters = int((width - 6) / _LETTER)
    shown = name if len(name) <= letters else f"{name[: letters - 1]}…" if letters > 2 else ""
    y = depth * _ROW
    rect = tag(
        "rect", x=f"{at:.2f}", y=f"{y:g}", width=f"{max(0.4, width - 0.6):.2f}", height=f"{_ROW - 1:g}", rx="2", fill=f"hsl({hue} 82% 66%)"
    )
    text = tag("text", shown, x=f"{at + 3:.2f}", y=f"{y + 12:g}", font_size="10.5", fill="#26190c") if shown else None
    return tag("g", tag("title", f"{name}: {us / 1000:.2f} ms, {us / whole * 100:.1f} %"), rect, text)
