"""What ``diagnose``, ``tune``, ``profile``, ``inspect_model`` and ``compare_precision`` found, kept with the MLflow run that the user has open.

Runs on: driver.

Invariant: without an open run nothing happens; with one, nothing is ever raised, and no more than the timeout is waited.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any

from sparkinfer.exceptions import remark
from sparkinfer.reporting.mlflow import active_run_id

if TYPE_CHECKING:
    from sparkinfer.analysis.tuning import Tuning

__all__ = ["log_page", "log_tuning"]

_SECONDS = 60.0  # a server that hangs is left to a daemon thread


_WRITERS = {
    "diagnosis": "diagnosis",
    "profile": "profile_page",
    "inspection": "inspection",
    "precision": "precision",
}  # modules beside this one


def log_page(name: str, found: Any) -> None:
    """Keep what was found as the page ``sparkinfer/<name>.html`` among the artifacts of the open run; a second one of that name as ``<name>-2.html``.

    Args:
        name: ``diagnosis``, ``profile``, ``inspection`` or ``precision``.
        found: what the function of that name gives.

    Warns:
        SparkInferWarning: it could not be written or logged.
    """

    def log(client: Any, run: str) -> None:
        there = {artifact.path for artifact in client.list_artifacts(run, "sparkinfer")}
        names = (f"sparkinfer/{name}{'' if number == 1 else f'-{number}'}.html" for number in range(1, len(there) + 2))
        page = import_module(f"sparkinfer.reporting.{_WRITERS[name]}").render(found)
        client.log_text(run, page, next(free for free in names if free not in there))

    _in_the_open_run(f"the page of the {name}", log)


def log_tuning(found: Tuning) -> None:
    """Log what ``tune`` tried as child runs of the open run.

    Warns:
        SparkInferWarning: something could not be logged.
    """

    def log(client: Any, run: str) -> None:
        experiment = client.get_run(run).info.experiment_id
        for one in found.tried:
            name = ", ".join(f"{setting}={value}" for setting, value in one.overrides.items()) or "start"
            tags = {"mlflow.parentRunId": run, "sparkinfer.ended": one.ended}
            child = client.create_run(experiment, run_name=name, tags=tags).info.run_id
            for setting, value in one.overrides.items():
                client.log_param(child, f"sparkinfer.{setting}", value)
            if one.gain is not None:
                client.log_metric(child, "tune.gain", one.gain.middle)
            client.set_terminated(child)

    _in_the_open_run("all that tune tried", log)


def _in_the_open_run(what: str, log: Callable[[Any, str], None]) -> None:
    run = active_run_id()
    if run is None:
        return
    problems = [f"it took longer than {_SECONDS:g} s"]

    def work() -> None:
        try:
            import mlflow  # noqa: PLC0415 - slow, and it may be absent

            log(mlflow.MlflowClient(), run)
        except Exception as error:  # noqa: BLE001 - whatever MLflow, a server or a page's libraries raise
            problems.append(" ".join(f"{type(error).__name__}: {error}".split())[:300])
        else:
            problems.clear()

    worker = Thread(target=work, name="sparkinfer-mlflow", daemon=True)
    worker.start()
    worker.join(_SECONDS)
    if problems:
        remark(f"MLflow does not have {what}: {problems[-1]}. What was returned is unaffected.")
