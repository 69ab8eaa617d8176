"""What a job says when it fails: the first cause, and nothing that came out of the environment."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from sparkinfer.cli.opened import JobFailedError, _without_secrets
from sparkinfer.cli.opened import told as told_part
from sparkinfer.cli.read import Document
from sparkinfer.exceptions import ConfigError, PredictError, SparkInferWarning

DOCUMENT = Document(Path("job.yaml"), {}, {}, {"hunter2\nhunter3": "${env:PASSWORD}"})

FAILED = """Job aborted due to stage failure: Lost task 0.0: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/lib/worker.py", line 1, in main
    process()
    ^^^^^^^^^
{last}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (f"{PredictError.__module__}.PredictError: the model raised ValueError: no", "sink: PredictError: the model raised ValueError: no"),
        ("ModuleNotFoundError: this worker has no sparkinfer", "sink: ModuleNotFoundError: this worker has no sparkinfer"),
        ("OSError: of hunter2\nhunter3, no", "sink: OSError: of ${env:PASSWORD}, no"),
    ],
)
def test_the_last_line_of_the_workers_traceback_is_told(last: str, told: str) -> None:
    """Our own error, or whatever else it is, and not Spark's first line; a value of several lines is hidden before it is cut."""
    with pytest.raises(JobFailedError) as failed, told_part("sink", DOCUMENT):
        raise RuntimeError(FAILED.format(last=last))
    assert str(failed.value) == told


def test_an_error_without_a_traceback_is_told_by_its_first_line() -> None:
    """Spark's own, such as of a path that is not there."""
    with pytest.raises(JobFailedError, match=r"^source: RuntimeError: \[PATH_NOT_FOUND\] x$"), told_part("source", DOCUMENT):
        raise RuntimeError("[PATH_NOT_FOUND] x\nplan")


@pytest.mark.parametrize(("trace", "chained"), [(False, False), (True, True)])
def test_the_chain_of_an_error_is_cut_where_it_holds_a_value(trace: bool, chained: bool) -> None:
    """A traceback in a notebook would show it; --trace asks for that."""
    with (
        pytest.raises(JobFailedError, match=r"^sink: RuntimeError: \$\{env:PASSWORD\}$") as failed,
        _without_secrets(DOCUMENT, trace=trace),
        told_part("sink", DOCUMENT),
    ):
        raise RuntimeError("hunter2\nhunter3")
    assert (failed.value.__cause__ is not None) is chained
    with pytest.raises(ConfigError, match=r"^no value$") as refused, _without_secrets(DOCUMENT, trace=False):
        raise ConfigError("no value") from OSError("why")
    assert isinstance(refused.value.__cause__, OSError)


def test_a_warning_shows_no_value() -> None:
    """Whoever makes it, with its own category."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = warnings.showwarning
        with _without_secrets(DOCUMENT, trace=False):
            warnings.warn("at hunter3", SparkInferWarning, stacklevel=1)
        assert warnings.showwarning is before
    assert [(str(one.message), one.category) for one in seen] == [("at ${env:PASSWORD}", SparkInferWarning)]
