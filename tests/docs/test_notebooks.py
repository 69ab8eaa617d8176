"""Every notebook runs from the top in a fresh interpreter, and shows what its text says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_of(notebook: Path) -> str:
    """The notebook's code cells as one script."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_a_clean_kernel(notebook: Path) -> None:
    """Its cells run in order in a new interpreter, and the coffee cup is an espresso by both roads."""
    checks = (
        "assert dict(zip(best['path'], best['label']))['coffee.png'] == 'espresso'\n"
        "assert set(sure['label']) >= {'espresso', 'tripod'} and (sure['score'] > 0.9).all()\n"
        "spark.stop()\nprint('told as written')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code_of(notebook)}\n{checks}"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "told as written" in done.stdout


def test_notebooks_are_committed_without_outputs() -> None:
    """Outputs in the repository would be figures that nobody measured."""
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert [cell["outputs"] for cell in cells if cell.get("outputs")] == [], notebook.name
