"""The report's table of labels and predictions.

Runs on: driver (standard library only).

Invariant: at most 20 classes; without the counts of all pairs there is no table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkinfer.reporting.markup import Html, tag
from sparkinfer.reporting.words import count, plain

if TYPE_CHECKING:
    from sparkinfer.quality import Quality

__all__ = ["confusion_table"]

_CLASSES = 20


def confusion_table(quality: Quality | None) -> Html | None:
    """Make the section; none where no classes were compared, or too many to be read."""
    if quality is None or not quality.pairs or len(quality.classes) > _CLASSES:
        return None
    pairs, classes = quality.pairs, quality.classes
    heads = [tag("th", plain(one, 40), scope="col") for one in classes]
    rows = [
        tag(
            "tr",
            tag("th", plain(true, 40), class_="text", scope="row"),
            *(_cell(pairs.get((true, predicted), 0), right=true == predicted) for predicted in classes),
        )
        for true in classes
    ]
    label, output = plain(quality.label, 80), plain(quality.output, 80)
    left_out = f"; {count(quality.left_out)} rows were left out, with a null on either side" if quality.left_out else ""
    table = tag("table", tag("thead", tag("tr", tag("th", label, class_="text"), *heads)), tag("tbody", *rows))
    return tag(
        "section",
        tag("h2", "Labels and predictions"),
        tag("p", f"Rows by label ({label}, down) and prediction ({output}, across){left_out}.", class_="caption"),
        tag("div", table, class_="scroll"),
    )


def _cell(rows: int, *, right: bool) -> Html:
    return tag("td", tag("b", count(rows)) if right else count(rows))
