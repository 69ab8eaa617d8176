"""What was seen inside a model, as a page and as a notebook's cell.

Runs on: driver (standard library only; the page's frame brings matplotlib).

Invariant: the page fetches nothing, and escapes all that came from data; findings come first, then the picture, then tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sparkinfer.insides import Labels, LayerSeen, Values
from sparkinfer.reporting.histogram import histogram
from sparkinfer.reporting.markup import Html, tag
from sparkinfer.reporting.model_picture import model_picture
from sparkinfer.reporting.words import count, plain

if TYPE_CHECKING:
    from sparkinfer.analysis.inspection import ModelInspection

__all__ = ["cell", "render"]

_ROWS, _CELL_ROWS = 400, 30
_LABELS = 8
_HOW = {
    "torch.export": "What takes what from which, by torch.export.",
    "Keras": "What takes what from which, by Keras's own notes.",
    "tree": "Which layer holds which; the data's way is not known",
}


def render(seen: ModelInspection) -> str:
    """Write the page as text.

    Raises:
        MissingDependencyError: matplotlib, which the page's frame comes with, is not installed.
    """
    from sparkinfer.reporting.html import page_of  # noqa: PLC0415 - brings matplotlib, which a notebook's cell does without

    body = tag(
        "main",
        tag(
            "header",
            tag("p", f"{plain(seen.model, 120)} · inside the model", class_="kicker"),
            tag("h1", _headline(seen)),
            tag("p", _sampled(seen), class_="advice"),
        ),
        _findings(seen),
        _remarks(seen),
        _picture(seen),
        _layers(seen, _ROWS),
        _columns("What came out", seen.seen.outputs, {} if seen.baseline is None else seen.baseline.outputs),
        _columns("What went in", seen.seen.inputs, {} if seen.baseline is None else seen.baseline.inputs),
        _weights(seen),
        _drift(seen),
    )
    return page_of("inside the model", body)


def cell(seen: ModelInspection) -> str:
    """Write what a notebook shows: findings and tables."""
    return str(
        tag(
            "div",
            tag("p", tag("b", _headline(seen))),
            _findings(seen),
            _remarks(seen),
            _layers(seen, _CELL_ROWS),
            _columns("What came out", seen.seen.outputs, {}),
            style="max-width: 60em",
        )
    )


def _headline(seen: ModelInspection) -> str:
    found = len(seen.findings)
    return "Nothing is wrong with what was looked at" if not found else f"{found} finding{'s' * (found != 1)} inside the model"


def _sampled(seen: ModelInspection) -> str:
    inside = seen.seen
    return f"{count(inside.rows)} rows in {count(inside.batches)} batches of {count(inside.partitions)} partition{'s' * (inside.partitions != 1)}."


def _findings(seen: ModelInspection) -> Html | None:
    return tag("ul", *(tag("li", plain(one, 400)) for one in seen.findings)) if seen.findings else None


def _remarks(seen: ModelInspection) -> Html | None:
    if not seen.remarks:
        return None
    return tag("div", tag("b", "Read with care"), tag("ul", *(tag("li", plain(one, 400)) for one in seen.remarks)), class_="care")


def _picture(seen: ModelInspection) -> Html | None:
    graph = seen.seen.graph
    whole = seen.seconds
    times = {layer.name: layer.seconds / whole for layer in seen.seen.layers if layer.timed} if whole else {}
    drawn = None if graph is None else model_picture(graph, times)
    if graph is None or drawn is None:
        return None
    why = f": {graph.why}." if graph.why else ""
    told = f"{_HOW[graph.how]}{why} The stronger the colour, the larger the share of the model's time; a layer's share is without the layers inside it."
    return tag("section", tag("h2", "The model"), tag("p", plain(told, 600), class_="caption"), drawn)


def _layers(seen: ModelInspection, most: int) -> Html | None:
    called = [layer for layer in seen.seen.layers if layer.timed or layer.calls]
    if not called:
        return None
    before = {} if seen.baseline is None else {layer.name: layer for layer in seen.baseline.layers}
    whole = seen.seconds or 1.0
    heads = ("layer", "gives", "time", "mean", "spread", "zeros", "NaN", "infinite", "dead units", "distribution")
    rows = [_layer(layer, before.get(layer.name), whole) for layer in called[:most]]
    more = tag("p", f"{len(called) - most} more layers are not shown.", class_="caption") if len(called) > most else None
    return tag("section", tag("h2", "Layers"), _scrolled(heads, rows, texts=2), more)


def _layer(layer: LayerSeen, before: LayerSeen | None, whole: float) -> Html:
    values = layer.values
    number = f"{layer.number} " if layer.number else ""
    dead = "" if layer.units is None else f"{layer.dead} of {layer.units}"
    return tag(
        "tr",
        tag("td", f"{number}{plain(layer.name, 70)} ", tag("span", plain(layer.kind, 40), class_="soft"), class_="text"),
        tag("td", layer.shape or ("a number" if layer.calls else ""), class_="text"),
        tag("td", f"{layer.seconds / whole * 100:.1f} %"),
        *_numbers(values),
        tag("td", dead),
        tag("td", histogram(values, None if before is None else before.values)),
    )


def _numbers(values: Values) -> Iterator[Html]:
    there = values.measured > 0
    yield tag("td", f"{values.mean:.3g}" if there and math.isfinite(values.mean) else "")
    yield tag("td", f"{values.spread:.3g}" if there and math.isfinite(values.spread) else "")
    for share in (values.zero_fraction, values.nan_fraction, values.infinite_fraction):
        yield tag("td", _percent(share) if values.count else "")


def _percent(share: float) -> str:
    return "" if not share else f"{share * 100:.2g} %" if share < 0.1 else f"{share * 100:.0f} %"


def _columns(heading: str, seen: Mapping[str, Values | Labels], before: Mapping[str, Values | Labels]) -> Html | None:
    if not seen:
        return None
    heads = ("name", "values", "nulls", "mean", "spread", "zeros", "NaN", "infinite", "distribution")
    rows = [_labels(name, one) if isinstance(one, Labels) else _values(name, one, before.get(name)) for name, one in seen.items()]
    return tag("section", tag("h2", heading), _scrolled(heads, rows, texts=1))


def _values(name: str, values: Values, before: Values | Labels | None) -> Html:
    drawn = histogram(values, before if isinstance(before, Values) else None)
    return tag(
        "tr",
        tag("td", plain(name, 70), class_="text"),
        tag("td", count(values.count)),
        tag("td", count(values.nulls)),
        *_numbers(values),
        tag("td", drawn),
    )


def _labels(name: str, labels: Labels) -> Html:
    ordered = sorted(labels.counts.items(), key=lambda item: -item[1])
    whole = labels.count or 1
    told = ", ".join(f"{plain(label, 30)} {number / whole * 100:.0f} %" for label, number in ordered[:_LABELS])
    more = f" and {len(ordered) - _LABELS} more" if len(ordered) > _LABELS else ""
    return tag(
        "tr",
        tag("td", plain(name, 70), class_="text"),
        tag("td", count(labels.count)),
        tag("td", count(labels.nulls)),
        tag("td", told + more, class_="text", colspan="6"),
    )


def _weights(seen: ModelInspection) -> Html | None:
    before = {} if seen.baseline is None else {layer.name: layer.weights for layer in seen.baseline.layers}
    named = {f"{layer.name}.{name}": values for layer in seen.seen.layers for name, values in layer.weights.items()}
    then = {f"{layer}.{name}": values for layer, weights in before.items() for name, values in weights.items()}
    if not named:
        return None
    heads = ("name", "values", "nulls", "mean", "spread", "zeros", "NaN", "infinite", "distribution")
    rows = [_values(name, values, then.get(name)) for name, values in list(named.items())[:_ROWS]]
    return tag("details", tag("summary", "Weights"), _scrolled(heads, rows, texts=1))


def _drift(seen: ModelInspection) -> Html | None:
    if not seen.drift:
        return None
    heads = ("where", "measure", "then", "now", "threshold", "")
    rows = [
        tag(
            "tr",
            tag("td", f"{one.where} {plain(one.name, 60)}", class_="text"),
            tag("td", one.measure, class_="text"),
            *(tag("td", f"{value:.3f}") for value in (one.before, one.now, one.threshold)),
            tag("td", tag("b", "drift") if one.drifted else ""),
        )
        for one in seen.drift[:_ROWS]
    ]
    said = (
        "The stability index compares shares of ten groups of the baseline's values: 0 for the same, 0.2 and more is a shift. Its threshold is 0.2, or what "
        "chance brings about once in a thousand times with so few rows. Shares count as drift where they rise by more than their threshold."
    )
    return tag("section", tag("h2", "Against the baseline"), tag("p", said, class_="caption"), _scrolled(heads, rows, texts=2))


def _scrolled(heads: tuple[str, ...], rows: list[Html], texts: int) -> Html:
    head = tag("tr", *(tag("th", name, class_="text" if place < texts else None) for place, name in enumerate(heads)))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll")
