"""The pages under docs/ work: their examples run from top to bottom, and their links and names lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import sparkinfer as si
from tests.docs.kit import broken_links, fenced

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WITH_EXAMPLES = [page for page in PAGES if fenced(page.read_text(encoding="utf-8"), "python")]


def by_name(page: Path) -> str:
    return page.name


# what MLflow and the frameworks warn of in one another is none of a page's concern; what the library itself warns of is
@pytest.mark.filterwarnings("default", "error::sparkinfer.SparkInferWarning")
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=by_name)
def test_the_examples_of_a_page_run(spark: Any, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, as one program that has ``spark`` and ``folder``, an empty place; their asserts hold."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    known: dict[str, Any] = {"__name__": "__main__", "spark": spark, "folder": str(tmp_path)}
    for block in fenced(text, "python"):
        line = text[: text.index(block)].count("\n")
        exec(compile("\n" * line + block, str(page), "exec"), known)  # noqa: S102


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_and_names_lead_somewhere(page: Path) -> None:
    """Relative links to files; every ``si.name`` to something public."""
    text = page.read_text(encoding="utf-8")
    assert broken_links(text, DOCS) == []
    assert {name for name in re.findall(r"\bsi\.(\w+)", text) if not hasattr(si, name)} == set()
