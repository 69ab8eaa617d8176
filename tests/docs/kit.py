"""How the tests read Markdown."""

from __future__ import annotations

import re
from pathlib import Path


def fenced(text: str, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def broken_links(text: str, folder: Path) -> list[str]:
    """The relative links that lead to no file."""
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    return [link for link in links if not (folder / link).exists()]
