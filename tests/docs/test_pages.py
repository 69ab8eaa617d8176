"""The pages under docs/ that list something list all of it, as the code has it."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import sparkinfer as si
from sparkinfer import exceptions

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Give what stands below a heading, up to the next one of its level."""
    return text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def table(text: str) -> dict[str, str]:
    """Give the first two cells of each row of a table whose first cells are code."""
    return {name: cell.strip("` ") for name, cell in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, flags=re.MULTILINE)}


def spelt(default: Any) -> str:
    """Spell a default as the page does: text with double quotes, and a dash where there is none."""
    if default is inspect.Parameter.empty:
        return "—"
    return f'"{default}"' if isinstance(default, str) else repr(default)


def anchors(text: str) -> set[str]:
    """Give the anchors that a page's headings make, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_settings_are_the_fields_of_the_config() -> None:
    """In their order, with their defaults."""
    told = table(section(page("settings.md"), "Fields of `InferenceConfig`"))
    assert list(told.items()) == [(field.name, spelt(field.default)) for field in fields(si.InferenceConfig)]


def test_the_arguments_are_those_of_predict() -> None:
    """In their order, with their defaults."""
    told = table(section(page("settings.md"), "Arguments of `predict`"))
    taken = [one for one in inspect.signature(si.predict).parameters.values() if one.kind is not one.VAR_KEYWORD]
    assert list(told.items()) == [(one.name, spelt(one.default)) for one in taken]


def test_every_error_has_its_paragraph() -> None:
    """A row in the table that says which of Python's own errors it is too, and a heading; no other error is listed."""
    text = page("errors.md")
    classes = {name: made for name, made in vars(exceptions).items() if isinstance(made, type) and issubclass(made, Warning | Exception)}
    listed = dict(re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \| `(\w+)` \|", text, flags=re.MULTILINE))
    expected = {name: made.__bases__[-1].__name__ for name, made in classes.items() if name != "SparkInferError"}
    assert listed == expected
    assert set(re.findall(r"^## (SparkInfer\w+|\w+Error)$", text, flags=re.MULTILINE)) == set(expected)


def test_every_page_is_in_the_index() -> None:
    """What nobody finds is not there."""
    index = page("index.md")
    assert [one.name for one in PAGES if one.name != "index.md" and f"({one.name})" not in index] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_into_pages_lead_to_headings(path: Path) -> None:
    """``page.md#heading`` and ``#heading`` name headings that are there."""
    links = re.findall(r"\]\(([\w./]*)#([\w-]+)\)", path.read_text(encoding="utf-8"))
    assert [(name, anchor) for name, anchor in links if anchor not in anchors(page(name or path.name))] == []
