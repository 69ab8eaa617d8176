"""HTML that is escaped unless it was made here.

Runs on: driver (standard library only).

Invariant: a plain ``str`` can never become markup, whatever it holds; only ``tag`` and ``trusted`` make ``Html``.
"""

from __future__ import annotations

from html import escape
from typing import Any

from sparkinfer.reporting.words import printable

__all__ = ["Html", "tag", "trusted"]

_EMPTY = frozenset({"meta", "link"})
_LONGEST = 2000  # letters of one text; no name makes the page large


class Html(str):
    """Markup, as opposed to text."""

    __slots__ = ()


def trusted(markup: str) -> Html:
    """Take markup as it is: only for what this package has written itself."""
    return Html(markup)


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """Make an element.

    Args:
        name: of the element.
        children: ``Html`` stays, all else is text; ``None`` is left out.
        attributes: ``class_`` is ``class``, and ``data_metric`` is ``data-metric``; ``None`` is left out.

    Example:
        >>> tag("p", "a < b", tag("b", "!"), class_="note", title='"quoted"', id=None)
        '<p class="note" title="&quot;quoted&quot;">a &lt; b<b>!</b></p>'
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"' for key, value in attributes.items() if value is not None
    )
    if name in _EMPTY:
        return Html(f"<{name}{told}>")
    inside = "".join(child if isinstance(child, Html) else escape(_text(child)) for child in children if child is not None)
    return Html(f"<{name}{told}>{inside}</{name}>")


def _text(value: Any) -> str:
    text = printable(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
