"""Spark Connect: the same answers, and nothing of the session touched that it does not have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sparkinfer
from tests.spark.bare_python import bare_python, clean

pytestmark = pytest.mark.spark(since=(4, 0), why="pyspark 3.5 comes without a Connect server: its jar is a download of its own")

SCRIPT = Path(__file__).with_name("connect_script.py")
ROOT = SCRIPT.parents[2]
PAGE = (ROOT / "docs" / "connect.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python connect\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script found; it runs once for all tests, in a process of its own."""
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    pytest.importorskip("grpc_status", reason="Spark Connect needs pyspark[connect]")
    pytest.importorskip("mlflow", reason="a run over Connect is logged to MLflow")
    folder = tmp_path_factory.mktemp("connect")
    (folder / "installed").mkdir()  # empty until the script puts the library there
    environment = {
        **clean(os.environ),
        "PYSPARK_PYTHON": str(bare_python(folder / "bare", folder / "installed")),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }
    command = [sys.executable, str(SCRIPT), str(ROOT), str(folder), *CODE]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=540, check=False)
    answers = [line.removeprefix("RESULTS ") for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    assert answers, f"the script said nothing (exit code {done.returncode}):\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(answers[0])
    return found


def test_the_session_is_a_connect_session(results: dict[str, Any]) -> None:
    """Or else the tests below would look at a classic one."""
    assert results["session"].startswith("pyspark.sql.connect")


def test_a_worker_without_the_library_says_so_in_one_sentence(results: dict[str, Any]) -> None:
    """The server hands it on to the client."""
    assert f"ModuleNotFoundError: this worker has no sparkinfer, and the driver has {sparkinfer.__version__}: call" in results["no_library"]
    assert "No module named" not in results["no_library"]


def test_ship_library_brings_it_once_by_add_artifacts(results: dict[str, Any]) -> None:
    """All that follows runs on workers that have nothing but this zip."""
    name, already_there, sent = results["ship_library"]
    assert re.fullmatch(rf"sparkinfer-{re.escape(sparkinfer.__version__)}-[0-9a-f]+\.zip", name)
    assert already_there == [False, True]
    assert sent == [name]


@pytest.mark.parametrize("step", ["map_road", "column_road", "predict_udf", "loader_processes"])
def test_answers_equal_a_direct_call(results: dict[str, Any], step: str) -> None:
    """On both roads, as a column, and with loader processes: every row once, with its own answer."""
    assert results[step] is True


def test_the_workers_read_the_files(results: dict[str, Any]) -> None:
    """By a path and by a DataFrame's plan; the reason is told where it is more than files."""
    answers, refused = results["direct_road"]
    assert answers == [True, True, True]
    reasons = [
        "its plan has a filter above",
        "it computes or renames a column",
        "its plan has a project|range|it computes",
        "its files are of the format 'orc'",
    ]
    for reason, said in zip(reasons, refused, strict=True):
        assert re.search(rf"scan='direct' needs a DataFrame that is nothing but Parquet or binary files, but ({reason})", said), said


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


def test_several_columns_by_position_and_by_name(results: dict[str, Any]) -> None:
    """A Python model of numbers and texts gives two columns by name."""
    assert results["python_model_of_several_columns"] == [[44, "ROW22"], [44, "ROW22"]]


def test_functions_around_the_model_and_a_struct_of_predictions(results: dict[str, Any]) -> None:
    """What preprocess and postprocess do to the last two rows, as fields of one column."""
    assert results["functions_and_struct"] == [[21, "low", 20.0], [22, "high", 21.0]]


def test_a_tensor_spec_casts_and_reshapes(results: dict[str, Any]) -> None:
    """The flat array of floats is a column of doubles to the model."""
    assert results["tensor_spec"] == ["('float64', 3, 1)"]


def test_nulls_by_each_policy(results: dict[str, Any]) -> None:
    """A null prediction; the model's own answer to NaN; an error with the place."""
    null, passed, raised = results["nulls"]
    assert null == [2.5, None]
    assert passed == [2.5, -1.0]
    assert "SchemaError: the value is null, at column 'v', partition 0, row 3" in raised


def test_a_model_in_sql(results: dict[str, Any]) -> None:
    """Registered by its name."""
    assert results["sql"] == [0, 10, 20]


def test_a_stream_is_scored_where_the_library_is_installed(results: dict[str, Any]) -> None:
    """Over Connect a stream does not get the session's Python files, and its worker says what it lacks."""
    without, scored = results["streaming"]
    assert "this worker has no sparkinfer" in without
    assert scored is True


def test_a_run_is_measured_and_logged(results: dict[str, Any]) -> None:
    """1,000 rows in four partitions: the figures, MLflow's own, and the report among the artifacts."""
    run = results["measured_run"]
    assert run["written"] == 1000
    assert run["rows"] == 1000
    assert run["partitions"] == [4, [0, 1, 2, 3]]
    assert run["logged"] == ["FINISHED", 1000, 4]
    assert "sparkinfer/report.html" in run["artifacts"]


def test_a_show_and_a_write_are_both_listed(results: dict[str, Any]) -> None:
    """The show ran one partition and is incomplete; the write after it is the run; what scored all again after that is told."""
    run = results["measured_run"]
    assert run["actions"] == [[250, 1, False], [1000, 4, True], [1000, 4, True]]
    cut_short, again = run["remarks"]
    assert cut_short.startswith("an action was cut short (limit, show, first and take stop their tasks early) or failed")
    assert again.startswith("the same predictions were scored a second time (1,000 rows)")


def test_a_label_is_compared(results: dict[str, Any]) -> None:
    """Its name reaches the workers as a tag: every tenth parity is wrong."""
    assert results["measured_run"]["accuracy"] == pytest.approx(0.9)


def test_progress_is_shown_while_it_runs(results: dict[str, Any]) -> None:
    """Partitions and time left of all actions, the rows at the end; a notice that makes no sense does not disturb the action."""
    lines, handlers = results["measured_run"]["lines"], results["measured_run"]["handlers"]
    assert any(re.fullmatch(r"\d+ of \d+ partitions \| .+ left", line) for line in lines[:-1]), lines
    assert re.fullmatch(r"2,250 rows \| 9 of 9 partitions \| .+ rows/s \| took .+", lines[-1]), lines
    assert handlers == [1, 0]  # inside and after


def test_an_inner_run_has_its_own_actions(results: dict[str, Any]) -> None:
    """They are told apart by tags, which are as they were when a run has ended; the user's own tag stays."""
    runs = results["runs_in_runs"]
    assert runs["rows"] == [23, 23]
    assert runs["actions"][1] == [[23, True]]
    assert runs["tags"] == [True, ["mine"], ["mine"]]


def test_an_action_that_a_limit_stops_is_listed(results: dict[str, Any]) -> None:
    """Its one partition began and never reported."""
    runs = results["runs_in_runs"]
    assert runs["stopped"] == 3
    assert runs["actions"][0] == [[0, False], [23, True]]
    assert any(remark.startswith("an action was cut short") for remark in runs["remarks"])


def test_nothing_is_shown_where_nobody_looks(results: dict[str, Any]) -> None:
    """Standard error is no terminal."""
    assert results["runs_in_runs"]["shown"] == []


def test_the_page_on_connect_shows_what_works(results: dict[str, Any]) -> None:
    """Its examples run, one after the other."""
    assert CODE
    assert results["documented"] == [len(CODE), 23]


def test_an_error_names_the_place_and_the_first_cause(results: dict[str, Any]) -> None:
    """The text comes through the server as a whole."""
    told = results["error_names_the_place"]
    assert "PreprocessError: preprocess raised ValueError: bad 17" in told
    assert "column 'x', partition 0" in told
    assert "row 17" in told


def test_a_run_sets_the_transport_setting_and_puts_it_back(results: dict[str, Any]) -> None:
    """Chunks of seven rows are carried over into one batch of all."""
    assert results["transport_setting"] == ["7", True, [23]]


def test_a_model_is_called_in_sql(results: dict[str, Any]) -> None:
    """By name, and another number of columns is told in our words through the server."""
    assert results["sql_function"] == [[0, 2, 4], True]


def test_a_stage_of_a_pipeline_is_saved_and_read_back(results: dict[str, Any]) -> None:
    """Behind Spark's own VectorAssembler, whose stages the server holds."""
    assert results["pipeline_stage"] == [True, True]


def test_score_to_goes_on_where_it_was(results: dict[str, Any]) -> None:
    """Each key once in the client's own folder, and another model is refused by name."""
    ended, equal, refused = results["score_to"]
    assert ended == [[10, 10], [23, 13]]
    assert equal is True
    assert "What differs: model" in refused


def test_a_second_execution_is_among_the_remarks_of_the_run(results: dict[str, Any]) -> None:
    """The workers' logs tell of both."""
    (said,) = results["second_execution"]
    assert said.startswith("the same predictions were scored a second time (23 rows)")


def test_what_a_connect_session_lacks_is_never_touched(results: dict[str, Any]) -> None:
    """C49: neither the SparkContext nor the JVM is asked for, not even in a try."""
    assert results["touched"] == []
