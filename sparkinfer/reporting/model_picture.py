"""A model as a picture: its layers as boxes, lines for what takes what from which, and each box's share of the time.

Runs on: driver (standard library only).

Invariant: no box lies above one that it takes from; what is too large to be read is cut, and the picture says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparkinfer.reporting.markup import Html, tag
from sparkinfer.reporting.words import plain

if TYPE_CHECKING:
    from sparkinfer.insides import GraphNode, ModelGraph

__all__ = ["model_picture"]

_BOX, _TALL, _ACROSS, _DOWN = 176.0, 30.0, 192.0, 50.0
_LETTERS = 27
_MOST = 240
_WIDEST = 1040.0


def model_picture(graph: ModelGraph, times: Mapping[str, float]) -> Html | None:
    """Draw a model.

    Args:
        graph: its boxes.
        times: the share of the time, by layer's name; boxes without one stay pale.
    """
    nodes = graph.nodes[:_MOST]
    if not nodes:
        return None
    places = _tree_places(nodes) if graph.how == "tree" else _places(nodes)
    width = max(_WIDEST, *(x + _BOX + 8 for x, _ in places))
    height = max(y for _, y in places) + _TALL + (26 if len(graph.nodes) > _MOST else 6)
    lines = [
        _line(places[one], places[place], tree=graph.how == "tree") for place, node in enumerate(nodes) for one in node.after if one < place
    ]
    most = max(times.values(), default=0.0) or 1.0
    boxes = [_box(node, places[place], times.get(node.name), most) for place, node in enumerate(nodes)]
    cut = (
        tag("text", f"{len(graph.nodes) - _MOST} more boxes are not drawn", x="2", y=f"{height - 6:g}", font_size="12", fill="currentColor")
        if len(graph.nodes) > _MOST
        else None
    )
    return tag(
        "svg",
        tag("g", *lines, stroke="#9aa1ab", stroke_width="1.3", fill="none"),
        *boxes,
        cut,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label="the model's picture",
        xmlns="http://www.w3.org/2000/svg",
    )


def _places(nodes: Sequence[GraphNode]) -> list[tuple[float, float]]:
    """Put each box a row below the lowest that it takes from; boxes of a row side by side, each as near below its own as there is room."""
    depths: list[int] = []
    columns: list[int] = []
    taken: dict[int, set[int]] = {}
    for place, node in enumerate(nodes):
        before = [one for one in node.after if one < place]
        depth = 1 + max((depths[one] for one in before), default=-1)
        wanted = columns[before[0]] if before else 0
        there = taken.setdefault(depth, set())
        column = next(one for one in sorted(range(len(there) + 1), key=lambda one: abs(one - wanted)) if one not in there)
        there.add(column)
        depths.append(depth)
        columns.append(column)
    return [(4 + column * _ACROSS, 4 + depth * _DOWN) for column, depth in zip(columns, depths, strict=True)]


def _tree_places(nodes: Sequence[GraphNode]) -> list[tuple[float, float]]:
    """Put each box in a row of its own, to the right of the one that holds it."""
    depths: list[int] = []
    for node in nodes:
        depths.append(1 + depths[node.after[0]] if node.after else 0)
    return [(4 + depth * 34.0, 4 + row * (_TALL + 7)) for row, depth in enumerate(depths)]


def _line(begin: tuple[float, float], end: tuple[float, float], *, tree: bool) -> Html:
    if tree:
        x, y = begin[0] + 14, begin[1] + _TALL
        return tag("path", d=f"M{x:g} {y:g} V{end[1] + _TALL / 2:g} H{end[0]:g}")
    x, y = begin[0] + _BOX / 2, begin[1] + _TALL
    to = end[0] + _BOX / 2
    half = (end[1] - y) / 2
    return tag("path", d=f"M{x:g} {y:g} C{x:g} {y + half:g} {to:g} {end[1] - half:g} {to:g} {end[1]:g}")


def _box(node: GraphNode, at: tuple[float, float], share: float | None, most: float) -> Html:
    x, y = at
    strength = 0.0 if share is None else share / most
    fill = f"hsl(28 {20 + 68 * strength:.0f}% {93 - 30 * strength:.0f}%)" if share is not None else "hsl(215 14% 93%)"
    told = f"{node.name}: {node.kind}" + (f", {share * 100:.1f} % of the time" if share is not None else "")
    below = node.kind + (f" · {share * 100:.1f} %" if share is not None else "")
    return tag(
        "g",
        tag("title", plain(told, 300)),
        tag(
            "rect", x=f"{x:g}", y=f"{y:g}", width=f"{_BOX:g}", height=f"{_TALL:g}", rx="4", fill=fill, stroke="#9aa1ab", stroke_width="0.8"
        ),
        tag("text", plain(node.name, _LETTERS), x=f"{x + 6:g}", y=f"{y + 13:g}", font_size="11", font_weight="600", fill="#26190c"),
        tag("text", plain(below, _LETTERS + 2), x=f"{x + 6:g}", y=f"{y + 25:g}", font_size="10", fill="#4c4238"),
    )
