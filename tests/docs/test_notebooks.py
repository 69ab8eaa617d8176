"""Every notebook runs from the top in a clean kernel, and shows what its text says."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

LAST_WORDS = {
    "photographs.ipynb": (
        "assert dict(zip(best['path'], best['label']))['coffee.png'] == 'espresso'\n"
        "assert set(sure['label']) >= {'espresso', 'tripod'} and (sure['score'] > 0.9).all()\n"
        "spark.stop()"
    ),
    "slow_to_fast.ipynb": "assert same and all(rate > rates[0] for rate in rates[1:])",  # on a busy machine no advice may be sure: then there is one step
    "source_code.ipynb": (
        "assert accuracy['.sh'] == 1 and accuracy['.py'] > 0.8\n"
        "assert run.summary['inference/rows_total'] == len(source_files()[::4])\n"
        "spark.stop()"
    ),
}
PICTURES = {"photographs.ipynb": 1, "slow_to_fast.ipynb": 2, "source_code.ipynb": 2}


def outputs(notebook: Any) -> Iterator[Any]:
    """What the cells of a notebook that was executed gave."""
    for cell in notebook.cells:
        yield from cell.get("outputs", [])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_a_clean_kernel(path: Path, tmp_path: Path, mlflow_apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells run in order, their figures are drawn, and what the text promises is so."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    notebook.cells.append(nbformat.v4.new_code_cell(LAST_WORDS[path.name]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel's own plumbing: sockets, event loops
        NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [output.ename for output in outputs(notebook) if output.output_type == "error"] == []
    drawn = [output for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(drawn) == PICTURES[path.name]
    assert not [output.text for output in outputs(notebook) if output.get("name") == "stderr" and "Traceback" in output.text]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    """Outputs in the repository would be figures that nobody measured."""
    assert list(outputs(nbformat.read(path, as_version=4))) == []
