"""The table of faults names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "faults.md"


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def missing(cells: list[str]) -> list[str]:
    """Give the cells that name no test, and the tests that are not there."""
    named = {cell: re.findall(r"`([\w/]+\.py)::(\w+)`", cell) for cell in cells}
    absent = [f"{file}::{name}" for one in named.values() for file, name in one if name not in functions(TESTS / file)]
    return [cell for cell, one in named.items() if not one] + absent


def test_each_line_names_a_test_that_is_there() -> None:
    """Every fault has at least one, as file and function."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| .* \| .* \| (.*) \|$", text, flags=re.MULTILINE)[1:]
    assert len(rows) >= 15
    assert missing(rows) == []


def test_each_public_report_names_its_tests() -> None:
    """By its case, as file and function."""
    text = PAGE.read_text(encoding="utf-8").split("\n## Public reports\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (C\d\d): .* \| (.*) \|$", text, flags=re.MULTILINE)
    assert [case for case, _ in rows] == ["C04", "C06", "C12", "C15", "C18", "C22", "C26", "C31", "C37", "C41", "C43"]
    assert missing([cell for _, cell in rows]) == []
