"""The command line starts in every way in which it is started, also where its packages are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkinfer.cli import command

ROOT = Path(__file__).resolve().parents[3]

WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())

from sparkinfer.cli import main

sys.exit(main(["run", "job.yaml"]))
"""


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds the library, and its own folder's modules."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("missing", ["typer", "pydantic", "yaml"])
def test_a_missing_package_is_told_with_the_extra(missing: str, tmp_path: Path) -> None:
    """One sentence, and no traceback."""
    done = python("-c", WITHOUT.format(missing=missing), cwd=tmp_path)
    assert done.returncode == 1
    expected = f"sparkinfer: the command line needs the package {missing!r}, which is not installed here: pip install 'sparkinfer[cli]'\n"
    assert done.stderr == expected


def test_started_by_its_path_the_librarys_folder_is_no_place_of_modules(tmp_path: Path) -> None:
    """As spark-submit does it: a job's own ``models`` is not taken for the library's module of that name."""
    (tmp_path / "models.py").write_text("raise ImportError('the right one')", encoding="utf-8")
    job = "{version: 1, source: {table: t}, sink: {table: u}, predict: {inputs: x, outputs: y int}, model: {python: {load: 'models:load'}}}"
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    done = python(str(ROOT / "sparkinfer" / "__main__.py"), "run", "job.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "(ImportError: the right one)" in done.stderr, done.stderr


def test_the_entry_point_ends_with_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its caller takes no notice of what a function gives back."""
    monkeypatch.setattr(sys, "argv", ["sparkinfer", "run", "there-is-no-such-job.yaml"])
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 2
    monkeypatch.setattr(sys, "argv", ["sparkinfer", "--help"])
    assert command() is None
    assert 'sparkinfer = "sparkinfer.cli:command"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
