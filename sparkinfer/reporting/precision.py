"""Two precisions side by side, as a notebook's cell and as a page.

Runs on: driver (standard library only).

Invariant: all that came from data is escaped.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sparkinfer.reporting.markup import Html, tag
from sparkinfer.reporting.words import count, plain, rate

if TYPE_CHECKING:
    from sparkinfer.analysis.intervals import Interval
    from sparkinfer.analysis.precision import OutputDifference, PrecisionComparison

__all__ = ["cell", "render"]


def render(found: PrecisionComparison) -> str:
    """Write the page.

    Raises:
        MissingDependencyError: matplotlib, which the page's styles come with, is not installed.
    """
    rows = f"{count(found.rows)} rows, {found.rounds} rounds"
    body = tag(
        "main",
        tag(
            "header",
            tag("p", f"precision · {plain(found.model, 80)} · {rows}", class_="kicker"),
            tag("h1", f"{found.precision} beside fp32"),
            tag("p", found.verdict, class_="advice"),
        ),
        tag("section", tag("h2", "Speed"), tag("div", _speeds(found), class_="scroll")),
        tag("section", tag("h2", "Answers"), tag("div", _answers(found), class_="scroll")),
    )
    page: str = import_module("sparkinfer.reporting.html").page_of("precision", body)
    return page


def cell(found: PrecisionComparison) -> str:
    """Write what a notebook shows."""
    heading = tag("p", tag("b", f"{found.precision} beside fp32: {found.verdict}"), f", {count(found.rows)} rows, {found.rounds} rounds")
    return str(tag("div", heading, _speeds(found), _answers(found), style="max-width: 60em"))


def _speeds(found: PrecisionComparison) -> Html:
    rows = [
        _row("fp32", found.fp32, "rows/s of a task"),
        _row(found.precision, found.other, "rows/s of a task"),
        _row("gain", found.gain, "times the rows/s"),
        _row("gain of the model's calls", found.model_gain, "times as fast"),
    ]
    return tag("table", tag("tr", *(tag("th", name) for name in ("", "middle", "95 % interval", ""))), *rows)


def _answers(found: PrecisionComparison) -> Html:
    heads = ("output", "rows", "changed", "largest difference", "mean difference", "of the mean size", "finite in one only")
    return tag("table", tag("tr", *(tag("th", name) for name in heads)), *map(_output, found.outputs))


def _row(name: str, found: Interval, unit: str) -> Html:
    ends = f"{rate(found.low)} to {rate(found.high)}"
    return tag("tr", tag("td", name), tag("td", rate(found.middle)), tag("td", ends), tag("td", unit))


def _output(one: OutputDifference) -> Html:
    changed = "" if one.changed is None else f"{count(one.changed)} ({one.changed_fraction:.2%})"
    told = ["" if value is None else f"{value:.3g}" for value in (one.max_abs, one.mean_abs)]
    relative = "" if one.relative is None else f"{one.relative:.2%}"
    cells = (plain(one.name, 60), count(one.rows), changed, *told, relative, count(one.lost))
    return tag("tr", *(tag("td", value) for value in cells))
