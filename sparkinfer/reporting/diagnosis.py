"""A diagnosis to look at: the chart, the page, the notebook's cell.

Runs on: driver; the chart and the page need matplotlib.

Invariant: the page fetches nothing, and escapes all that came from data.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sparkinfer.reporting.markup import Html, tag, trusted
from sparkinfer.reporting.words import STAGE_COLOURS, count, duration, percent, plain, rate

if TYPE_CHECKING:
    from pathlib import Path

    from sparkinfer.analysis.diagnosis import Change, Diagnosis
    from sparkinfer.reporting.drawing import Drawing

__all__ = ["cell", "draw", "render", "save"]

_COLOURS = {
    "source": STAGE_COLOURS["input_wait"],
    "transport": STAGE_COLOURS["output_wait"],
    "everything but the model": STAGE_COLOURS["encode"],
    "model": STAGE_COLOURS["compute"],
}
_FAR = 1000.0  # times the measured rate; a part that could do more is drawn as this
_MOST_CHANGES = 12
_SHOWN = ("batch_size", "num_workers", "prefetch_batches", "threads")
_GAINS = "Predicted from what the parts cost: from how well they overlap now to how well they could, with the spread of the rounds."


def draw(found: Diagnosis) -> Drawing:
    """Draw a bar for each part's rows/s with its interval, and the measured rows/s across.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    drawing = import_module("sparkinfer.reporting.drawing")
    row, paper = 0.34, drawing.PAPERS["wide"]
    parts = found.ceilings[:-1]
    measured = found.rows_per_second.middle
    limit = measured * _FAR
    with drawing.drawn():
        figure = drawing.sheet(paper, row * len(parts) + 0.95)
        axes = drawing.place(figure, 1.9, 0.35, 0.1, row * len(parts))
        lowest = min([measured, *(max(one.rows_per_second.low, one.rows_per_second.middle / 3) for one in parts)]) / 1.5
        highest = max([measured, *(min(one.rows_per_second.middle, limit) for one in parts)])
        for position, one in enumerate(parts):
            ends = one.rows_per_second
            shown = min(ends.middle, limit)
            drawing.blocks(axes, lowest, position + 0.18, shown - lowest, 0.64, _COLOURS[one.name])
            axes.plot([max(ends.low, lowest), min(ends.high, limit)], [position + 0.5] * 2, color=drawing.INK, linewidth=1.2)
            said = rate(ends.middle) if ends.middle <= limit else f"over {rate(limit)}"
            axes.annotate(
                said,
                (min(max(shown, min(ends.high, limit)), limit), position + 0.5),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
        axes.axvline(measured, color=drawing.INK, linewidth=1.2)
        axes.text(measured, -0.1, f"measured: {rate(measured)} rows/s", fontweight="bold", va="bottom")
        axes.set_xscale("log")
        axes.set_xlim(lowest, highest * (highest / lowest) ** 0.2 * 2)
        axes.xaxis.set_major_formatter(lambda value, _: rate(value))
        axes.xaxis.set_minor_formatter(lambda *_: "")
        axes.set_xlabel("rows/s, logarithmic")
        axes.set_ylim(len(parts), 0)
        axes.set_yticks([position + 0.5 for position in range(len(parts))], [one.name for one in parts])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
    caption = (
        f"What each part could do alone, with its 95 % interval over {found.rounds} rounds; together they do {found.overlap_efficiency:.0%} of what the "
        "slowest could."
    )
    made: Drawing = drawing.Drawing(figure, "What each part could do", caption)
    return made


def render(found: Diagnosis) -> str:
    """Write the page.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    drawing = draw(found)
    picture = trusted(import_module("sparkinfer.reporting.drawing").svg(drawing, "d"))
    heading = f"{found.verdict.kind}{f': {found.verdict.cause}' if found.verdict.cause else ''}"
    body = tag(
        "main",
        tag(
            "header",
            tag("p", _kicker(found), class_="kicker"),
            tag("h1", heading),
            tag("p", plain(found.verdict.advice, 600), class_="advice"),
        ),
        _numbers(found),
        tag("section", tag("h2", drawing.title), tag("p", drawing.caption, class_="caption"), tag("figure", picture)),
        tag("section", tag("h2", "What each change would give"), tag("p", _GAINS, class_="caption"), _scrolled(_changes(found.changes))),
        tag("section", tag("h2", "What a row costs"), _scrolled(_costs(found))),
        _care(found),
    )
    page: str = import_module("sparkinfer.reporting.html").page_of("diagnosis", body)
    return page


def _kicker(found: Diagnosis) -> str:
    said = ", ".join(f"{name}={found.settings[name]}" for name in _SHOWN if found.settings.get(name) is not None)
    return f"diagnosis · {count(found.rows)} rows, {found.rounds} rounds in {duration(found.seconds)}{f' · {said}' if said else ''}"


def _numbers(found: Diagnosis) -> Html:
    ends = found.rows_per_second
    told = [
        (rate(ends.middle), f"rows/s, {_ends(ends.low, ends.high)}"),
        (percent(found.overlap_efficiency), "of what the slowest part could do"),
    ]
    if found.verdict.gain is not None:
        low, high = found.verdict.gain
        told.append((f"{low:.2f} to {high:.2f}", "times the rows/s by the advice above"))
    return tag("div", *(tag("div", tag("b", value), tag("span", words)) for value, words in told), class_="numbers")


def _scrolled(table: Html) -> Html:
    return tag("div", table, class_="scroll")


def _care(found: Diagnosis) -> Html | None:
    remarks = _remarks(found)
    return tag("div", tag("b", "Read with care"), remarks, class_="care") if remarks is not None else None


def save(found: Diagnosis, path: Path) -> Path:
    """Write the page to a file; folders that are missing are made."""
    page = render(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def cell(found: Diagnosis) -> str:
    """Write what a notebook shows: tables alone, which need no matplotlib."""
    rows = (
        tag(
            "tr",
            tag("td", one.name),
            tag("td", rate(one.rows_per_second.middle)),
            tag("td", _ends(one.rows_per_second.low, one.rows_per_second.high)),
        )
        for one in found.ceilings
    )
    head = tag("tr", *(tag("th", word) for word in ("part", "rows/s", "95 % interval")))
    return tag(
        "div",
        tag("div", tag("b", plain(str(found.verdict), 600))),
        tag("table", head, *rows),
        _changes(found.changes),
        _remarks(found),
        style="max-width: 60em",
    )


def _ends(low: float, high: float) -> str:
    return f"{rate(low)} to {rate(high)}" if low > 0 else "one round: no spread"


def _changes(changes: tuple[Change, ...]) -> Html:
    rows = (
        tag(
            "tr",
            tag("td", one.setting, class_="text"),
            tag("td", plain(one.value), class_="text"),
            tag("td", f"{one.gain.low:.2f} to {one.gain.high:.2f}"),
            tag("td", plain(one.why, 400), class_="text told"),
        )
        for one in changes[:_MOST_CHANGES]
    )
    return tag("table", tag("tr", _head("change"), _head("to"), tag("th", "times the rows/s"), _head("why")), *rows)


def _costs(found: Diagnosis) -> Html:
    told = {name: value for name, value in vars(found.costs).items() if isinstance(value, float) and name != "busy"}
    units = {"call": "a model call", "load": "a model load"}
    rows = (
        tag("tr", tag("td", name, class_="text"), tag("td", duration(value)), tag("td", units.get(name, "a row"), class_="text"))
        for name, value in told.items()
    )
    return tag("table", tag("tr", _head("step"), tag("th", "time"), _head("for")), *rows)


def _head(name: str) -> Html:
    return tag("th", name, class_="text")


def _remarks(found: Diagnosis) -> Html | None:
    return tag("ul", *(tag("li", plain(one, 400)) for one in found.remarks)) if found.remarks else None
