"""Log a run to MLflow, from the driver and nowhere else.

Runs on: driver. MLflow may be absent and is slow to import: that is done in the thread that logs.

Invariant: ``report`` never raises, waits no longer than its timeout, and warns once at most; a run that the user has open stays open.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sparkinfer.artifacts import without_userinfo
from sparkinfer.exceptions import MissingDependencyError, remark
from sparkinfer.metrics import Execution, RunMetrics, found_before
from sparkinfer.reporting.mlflow_entries import (
    Entries,
    Point,
    VerdictLike,
    dataset_of,
    entries_of,
    partition_table,
    run_parameters,
    run_tags,
    summary_json,
)

__all__ = ["MlflowSink", "active_run_id", "use_local_store"]

MOST_CHILDREN = 50

_METRICS_A_BATCH = 1_000  # the server's limits; a metric is some 150 bytes, so a batch stays below its 1 MB
_PARAMETERS_A_BATCH = 100
_CONNECT_SECONDS = 5.0

T = TypeVar("T")


def use_local_store(folder: Path, experiment: str) -> str:
    """Keep runs in a folder: a SQLite store and its artifacts, where the user has set no store of their own.

    Args:
        folder: made if it is not there.
        experiment: whose runs they are.

    Returns:
        The command that opens the store in a browser.

    Raises:
        MissingDependencyError: MLflow is not installed.
    """
    try:
        import mlflow  # noqa: PLC0415 - see the module's docstring
    except ImportError as error:
        msg = "keeping runs needs MLflow: pip install 'sparkinfer[mlflow]'"
        raise MissingDependencyError(msg) from error
    if "MLFLOW_TRACKING_URI" not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)
        mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
    if mlflow.get_experiment_by_name(experiment) is None:
        mlflow.create_experiment(experiment, artifact_location=(folder / "artifacts").absolute().as_uri())
    mlflow.set_experiment(experiment)
    return f"mlflow ui --backend-store-uri {shlex.quote(mlflow.get_tracking_uri())}"


class MlflowSink:
    """Logs runs into the active MLflow run; into one of its own, where there is none.

    An active run that holds another report already gets a child: nothing in it is written over.
    """

    def __init__(self, *, run_id: str | None = None, timeout_seconds: float = 60.0) -> None:
        """Configure; nothing is imported, and no server is asked.

        Args:
            run_id: log into this MLflow run, whatever is active.
            timeout_seconds: the longest that ``report`` waits. MLflow itself retries for minutes; it is then left to a daemon thread,
                which stops at its next step.
        """
        self._run_id = run_id
        self._timeout = timeout_seconds

    def report(
        self,
        run: RunMetrics,
        verdict: VerdictLike | None = None,
        report_html: str | None = None,
        *,
        complete: bool | None = None,
    ) -> str | None:
        """Log a run; its later executions become child runs.

        Args:
            run: what was measured. Its settings ``data_name`` and ``data_source`` name the dataset, ``model_id`` MLflow's logged model.
            verdict: becomes a tag, and is in ``sparkinfer/summary.json``.
            report_html: becomes ``sparkinfer/report.html``.
            complete: whether all partitions reported, where that is known.

        Returns:
            The id of the MLflow run that the figures went to; ``None`` if there was none, and none could be begun.

        Warns:
            SparkInferWarning: something could not be logged. Nothing is ever raised.
        """
        job = _Job(run, verdict, report_html, complete, self._run_id or active_run_id(), self._timeout)
        logger = Thread(target=job.do, name="sparkinfer-mlflow", daemon=True)  # a hanging server must not keep the process from ending
        try:
            logger.start()
            logger.join(self._timeout)
            if logger.is_alive():
                job.problems.append(f"it took longer than {self._timeout:g} s")
        finally:
            job.given_up.set()
        if job.problems:
            told = "; ".join(job.problems[:3])
            more = f" (and {len(job.problems) - 3} more)" if len(job.problems) > 3 else ""
            remark(
                f"MLflow does not have all of the run's figures: {told}{more}. The predictions and the run's own figures are unaffected."
            )
        return job.target


def active_run_id() -> str | None:
    """Find the user's run: MLflow keeps it per thread, so this is asked in the user's own, and never imports MLflow."""
    try:
        mlflow = sys.modules.get("mlflow")
        active = mlflow.active_run() if mlflow is not None else None
        return str(active.info.run_id) if active is not None else os.environ.get("MLFLOW_RUN_ID") or None
    except Exception:  # noqa: BLE001 - half an MLflow, or another package of that name: there is no active run
        return None


@dataclass
class _Job:
    """One report, on its thread: steps, each of which may fail by itself."""

    run: RunMetrics
    verdict: VerdictLike | None
    report_html: str | None
    complete: bool | None
    target: str | None
    timeout: float
    given_up: Event = field(default_factory=Event)
    problems: list[str] = field(default_factory=list)
    client: Any = None
    uri: str = ""
    gone: bool = False

    def do(self) -> None:
        """Log; whatever happens ends up in ``problems``."""
        try:
            import mlflow  # noqa: PLC0415 - see the module's docstring

            self.uri = mlflow.get_tracking_uri()
            self._connect()
            self.client = mlflow.MlflowClient(tracking_uri=self.uri)
            self._log()
        except ImportError as error:
            self.problems.append(f"mlflow cannot be imported ({error}); pip install 'sparkinfer[mlflow]'")
        except Exception as error:  # noqa: BLE001 - whatever MLflow, a server or a proxy raises
            self.problems.append(_one_line(error))

    def _connect(self) -> None:
        """Fail at once where nobody listens: MLflow would try for four minutes."""
        address = urlsplit(self.uri)
        if address.scheme not in {"http", "https"} or not address.hostname:
            return
        if address.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(address.hostname):
            return
        port = address.port or (443 if address.scheme == "https" else 80)
        try:
            socket.create_connection((address.hostname, port), timeout=min(_CONNECT_SECONDS, self.timeout)).close()
        except OSError as error:
            self.gone = True
            msg = f"no server answers at {address.scheme}://{address.hostname}:{port} ({error})"
            raise ConnectionError(msg) from error

    def _log(self) -> None:
        theirs = self.target
        found = self.client.get_run(theirs) if theirs is not None else None
        if found is None or "sparkinfer.run_id" in found.data.tags:
            experiment = found.info.experiment_id if found is not None else _experiment_id()
            self.target = self._start(experiment, self.run.name or _default_name(self.run), parent=theirs)
            taken: Mapping[str, str] = {}
        else:
            experiment, taken = found.info.experiment_id, found.data.params
        try:
            self._log_run(str(self.target), taken)
            self._log_children(str(self.target), experiment)
        finally:
            if self.target != theirs and not self.gone:  # a run of our own, and somebody to tell of its end
                self._end(str(self.target), self.run.ended_unix)

    def _log_run(self, target: str, taken: Mapping[str, str]) -> None:
        """Log in the order of worth: a server that goes away in the middle leaves what matters most."""
        run = self.run
        first = run.executions[0] if run.executions else Execution("", None, (), 0)
        entries = entries_of(first, found_before(run.settings))
        summary = summary_json(run, self.verdict)
        tags = {**entries.tags, **run_tags(run, _version(), self.verdict, complete=self.complete)}
        self._step("summary metrics", lambda: self._points(target, entries.summary))
        self._step("tags", lambda: self._tags(target, tags))
        self._step("parameters", lambda: self._parameters(target, taken))
        self._step("summary.json", lambda: self.client.log_text(target, summary, "sparkinfer/summary.json"))
        if self.report_html is not None:
            self._step("the report", lambda: self.client.log_text(target, self.report_html, "sparkinfer/report.html"))
        self._step("dataset and model", lambda: self._inputs(target))
        self._series(target, entries, first)

    def _log_children(self, target: str, experiment: str) -> None:
        later = self.run.executions[1:]
        if len(later) > MOST_CHILDREN:
            told = {"sparkinfer.children": f"the first {MOST_CHILDREN} of {len(later)} later executions; summary.json has all"}
            self._step("tags", lambda: self._tags(target, told))
        for execution in later[:MOST_CHILDREN]:
            self._step("a later execution", partial(self._log_child, target, experiment, execution))

    def _log_child(self, target: str, experiment: str, execution: Execution) -> None:
        started = min(record.started_unix for record in execution.partitions)
        ended = max(record.started_unix + record.wall_seconds for record in execution.partitions)
        child = self._start(experiment, f"execution {execution.execution or execution.call}", parent=target, started=started)
        entries = entries_of(execution)
        self._step("summary metrics", lambda: self._points(child, entries.summary))
        self._step("tags", lambda: self._tags(child, {**entries.tags, "sparkinfer.run_id": self.run.id, "sparkinfer.version": _version()}))
        self._series(child, entries, execution)
        self._end(child, ended)

    def _series(self, target: str, entries: Entries, execution: Execution) -> None:
        self._step("partition series", lambda: self._points(target, entries.partitions))
        if execution.partitions:
            table = partition_table(execution.partitions)
            self._step("the partition table", lambda: self.client.log_table(target, table, "sparkinfer/partitions.json"))
        self._step("host and GPU series", lambda: self._points(target, entries.system))

    def _step(self, what: str, do: Callable[[], object]) -> None:
        """Do one step if there is still time; a failure is noted, and ends the job only where the server is gone."""
        if self.given_up.is_set():
            return
        try:
            do()
        except Exception as error:  # noqa: BLE001 - as in ``do``
            self.problems.append(f"{what}: {_one_line(error)}")
            self._connect()

    def _start(self, experiment: str, name: str, *, parent: str | None, started: float | None = None) -> str:
        """Create a run without making it active, with the times of what it measured."""
        from mlflow.tracking.context.registry import resolve_tags  # noqa: PLC0415

        tags = resolve_tags({"mlflow.parentRunId": parent} if parent is not None else {})  # user, source, notebook: as start_run does
        begun = self.run.started_unix if started is None else started
        created = self.client.create_run(experiment, start_time=_milliseconds(begun), tags=tags, run_name=name)
        return str(created.info.run_id)

    def _end(self, target: str, ended: float) -> None:
        self.client.set_terminated(target, "FAILED" if self.problems else "FINISHED", end_time=_milliseconds(ended))

    def _points(self, target: str, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415

        for some in _pieces(points, _METRICS_A_BATCH):
            if self.given_up.is_set():
                return
            metrics = [Metric(point.name, point.value, _milliseconds(point.unix), point.step) for point in some]
            self.client.log_batch(target, metrics=metrics, synchronous=True)

    def _tags(self, target: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag  # noqa: PLC0415

        self.client.log_batch(target, tags=[RunTag(name, value) for name, value in tags.items()], synchronous=True)

    def _parameters(self, target: str, taken: Mapping[str, str]) -> None:
        """Log parameters, which MLflow lets nobody change: one that the user's run has already stays as it is."""
        from mlflow.entities import Param  # noqa: PLC0415

        new = {name: value for name, value in run_parameters(self.run).items() if name not in taken}
        for some in _pieces(list(new.items()), _PARAMETERS_A_BATCH):
            self.client.log_batch(target, params=[Param(name, value) for name, value in some], synchronous=True)

    def _inputs(self, target: str) -> None:
        from mlflow import entities  # noqa: PLC0415

        scored = dataset_of(self.run)
        if scored is not None:
            dataset = entities.Dataset(scored.name, scored.digest, scored.source_type, scored.source, profile=scored.profile)
            tags = [entities.InputTag("mlflow.data.context", "inference")]
            self.client.log_inputs(target, datasets=[entities.DatasetInput(dataset, tags)])
        model = self.run.settings.get("model_id")
        if model is not None and hasattr(entities, "LoggedModelInput"):  # MLflow 3
            self.client.log_inputs(target, models=[entities.LoggedModelInput(str(model))])


def _experiment_id() -> str:
    """Ask MLflow where a run would go: ``set_experiment``, the environment, a Databricks notebook's own."""
    from mlflow.tracking import fluent  # noqa: PLC0415

    found = getattr(fluent, "_get_experiment_id", lambda: None)()  # there from 1.0 to 3.17; there is no public road without starting a run
    return str(found or "0")


def _default_name(run: RunMetrics) -> str:
    return f"sparkinfer: {run.settings['model']}" if run.settings.get("model") else "sparkinfer"


def _version() -> str:
    try:
        return version("sparkinfer")
    except PackageNotFoundError:  # run from a checkout
        return "unknown"


def _pieces(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _milliseconds(unix: float) -> int:
    return int(unix * 1000)


def _one_line(error: BaseException) -> str:
    text = " ".join(without_userinfo(str(error)).split())
    return f"{type(error).__name__}: {text[:300]}{'...' if len(text) > 300 else ''}"
