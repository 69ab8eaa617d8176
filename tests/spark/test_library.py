"""Workers that lack the library, or have another version: one sentence says so, and a zip sent by Spark helps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import sparkinfer
from sparkinfer.spark.library import pack_library
from tests.spark.bare_python import bare_python, clean

SCRIPT = Path(__file__).with_name("library_script.py")
ROOT = SCRIPT.parents[2]
HOME = Path(sparkinfer.__file__).parent
TWELVE = [float(row + 1) for row in range(12)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script found; it runs once for all tests, where the library lies on no worker's path."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "older" / "sparkinfer").mkdir(parents=True)
    (folder / "older" / "sparkinfer" / "__init__.py").write_text('__version__ = "0.0.9"\n', encoding="utf-8")
    bare, other = bare_python(folder / "bare"), bare_python(folder / "other", folder / "older")
    command = [sys.executable, str(SCRIPT), str(ROOT), str(bare), str(other), str(folder)]
    done = subprocess.run(command, env=clean(os.environ), cwd=folder, capture_output=True, text=True, timeout=400, check=False)
    answers = [line.removeprefix("RESULTS ") for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    assert answers, f"the script said nothing (exit code {done.returncode}):\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(answers[0])
    return {**found, "stderr": done.stderr}


def test_a_worker_without_the_library_says_so_in_one_sentence(results: dict[str, Any]) -> None:
    """On both roads the error ends with it, and with the two ways out; a raw "No module named" stands nowhere."""
    for told in results["none"]:
        last = told.rstrip().splitlines()[-1]
        assert last.startswith(f"ModuleNotFoundError: this worker has no sparkinfer, and the driver has {sparkinfer.__version__}: call si.")
        assert "si.ship_library(spark)" in last
        assert f"install sparkinfer=={sparkinfer.__version__}" in last
        assert "No module named" not in told


def test_a_worker_with_another_version_says_both_versions(results: dict[str, Any]) -> None:
    """It is the first thing that is looked at: the older package has no module that the task needs."""
    last = results["another"].rstrip().splitlines()[-1]
    assert last.startswith(f"ImportError: this worker has sparkinfer 0.0.9, the driver has {sparkinfer.__version__}: install the same")


@pytest.mark.parametrize(("step", "factor"), [("plain", 1), ("forked", 2), ("from a fork server", 3)])
def test_ship_library_brings_it(results: dict[str, Any], step: str, factor: int) -> None:
    """After the failure, in the same session: in the worker, in its forked loader processes, and in those of a fork server."""
    assert results[step] == [factor * value for value in TWELVE]
    assert re.search(r"/sparkinfer-[^/]+\.zip/sparkinfer/__init__\.py$", results["home"])


def test_the_fork_server_finds_the_zip(results: dict[str, Any]) -> None:
    """It preloads the library's own module that keeps Python's remark on the daemon's second import away."""
    assert "found in sys.modules" not in results["stderr"]


def test_it_is_sent_once_a_session(results: dict[str, Any]) -> None:
    """The second call says that it is there; it takes the active session."""
    (name, there), again = results["shipped"]
    assert (there, again) == (False, [name, True])


def test_it_goes_before_another_version(results: dict[str, Any]) -> None:
    """Where no worker has imported that one yet."""
    assert results["shipped over another"] == TWELVE


def test_the_zip_works_as_a_py_file_of_spark_submit(results: dict[str, Any]) -> None:
    """Without ship_library."""
    assert results["py-files"] == TWELVE


def test_the_zip_is_the_installed_package_and_nothing_else(tmp_path: Path) -> None:
    """Every file of the package, byte for byte; no tests, no caches; its name says the version."""
    packed = pack_library(tmp_path / "new folder")
    assert packed.name.startswith(f"sparkinfer-{sparkinfer.__version__}-")
    with zipfile.ZipFile(packed) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    there = {f"sparkinfer/{path.relative_to(HOME).as_posix()}": path for path in HOME.rglob("*") if path.is_file()}
    assert inside == {name: path.read_bytes() for name, path in there.items() if "__pycache__" not in name}
    assert {"sparkinfer/py.typed", "sparkinfer/spark/worker.py"} <= set(inside)


def test_the_same_code_gives_the_same_bytes_also_out_of_the_zip(tmp_path: Path) -> None:
    """A driver that itself runs from the zip, by the command that packs it, makes the same one."""
    packed = pack_library(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(packed)}
    command = [sys.executable, "-m", "sparkinfer.spark.library", "again"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    again = tmp_path / done.stdout.strip()
    assert again == tmp_path / "again" / packed.name
    assert again.read_bytes() == packed.read_bytes()


def test_the_command_without_a_folder_says_how_it_is_used() -> None:
    """In one line, and with the exit code of a wrong command."""
    command = [sys.executable, "-m", "sparkinfer.spark.library"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (2, "usage: python -m sparkinfer.spark.library FOLDER\n")


class _Hidden:
    """A session that does not let its SparkContext be had."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's own name
        raise RuntimeError("sparkContext is not supported here")


def test_a_session_that_takes_no_python_files_is_told() -> None:
    """With Spark's own reason, and what to do instead."""
    with pytest.raises(sparkinfer.ConfigError, match=r"RuntimeError: sparkContext is not supported here\): install sparkinfer=="):
        sparkinfer.ship_library(_Hidden())
