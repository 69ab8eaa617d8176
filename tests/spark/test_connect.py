"""Spark Connect: the same answers, and nothing of the session touched that it does not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark(since=(4, 0), why="pyspark 3.5 comes without a Connect server: its jar is a download of its own")

SCRIPT = Path(__file__).with_name("connect_script.py")
ROOT = SCRIPT.parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script found; it runs once for all tests, in a process of its own."""
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    pytest.importorskip("grpc_status", reason="Spark Connect needs pyspark[connect]")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("connect"))]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    answers = [line.removeprefix("RESULTS ") for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    assert answers, f"the script said nothing (exit code {done.returncode}):\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(answers[0])
    return found


def test_the_session_is_a_connect_session(results: dict[str, Any]) -> None:
    """Or else the tests below would look at a classic one."""
    assert results["session"].startswith("pyspark.sql.connect")


@pytest.mark.parametrize("step", ["map_road", "column_road", "predict_udf", "loader_processes"])
def test_answers_equal_a_direct_call(results: dict[str, Any], step: str) -> None:
    """On both roads, as a column, and with loader processes: every row once, with its own answer."""
    assert results[step] is True


def test_preview_gives_exact_rows(results: dict[str, Any]) -> None:
    """Four rows were asked for."""
    assert results["preview"] == [4, ["id", "y"], True]


def test_a_large_module_in_memory_goes_once_by_add_artifacts(results: dict[str, Any]) -> None:
    """Two predict calls on two roads send one file."""
    assert results["large_module_in_memory"] == [[True, True], 1]


def test_a_saved_model_directory_goes_once_by_add_artifacts(results: dict[str, Any]) -> None:
    """As one zip, named by its content."""
    answers, sent = results["saved_model_directory"]
    assert answers == [True, True]
    assert len(sent) == 1
    assert sent[0].startswith("sparkinfer-")
    assert sent[0].endswith(".zip")


def test_an_overwritten_file_is_a_new_model(results: dict[str, Any]) -> None:
    """Each predict call sends what the file held then; what becomes of the file afterwards does not matter."""
    assert results["overwritten_file"] == [True, True]


def test_an_error_names_the_place_and_the_first_cause(results: dict[str, Any]) -> None:
    """The text comes through the server as a whole."""
    told = results["error_names_the_place"]
    assert "PreprocessError: preprocess raised ValueError: bad 17" in told
    assert "column 'x', partition 0" in told
    assert "row 17" in told


def test_a_run_sets_the_transport_setting_and_puts_it_back(results: dict[str, Any]) -> None:
    """Chunks of seven rows are carried over into one batch of all."""
    assert results["transport_setting"] == ["7", True, [23]]


def test_what_a_connect_session_lacks_is_never_touched(results: dict[str, Any]) -> None:
    """C49: neither the SparkContext nor the JVM is asked for, not even in a try."""
    assert results["touched"] == []
