"""A run: the block around the actions that belong together, and what they measured.

Runs on: driver.

Invariant: what a run changes in the session is as it was when the run has ended; measuring never raises into the user's code, never
runs a job, and never waits for more than it says.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError, MissingDependencyError, remark
from sparkinfer.metrics import Execution, RunMetrics, group_executions, merged_quality, scored_again

if TYPE_CHECKING:
    import pandas as pd

    from sparkinfer.analysis.verdict import Verdict
    from sparkinfer.metrics import PartitionMetrics
    from sparkinfer.spark.channels import Logged

__all__ = ["Action", "InferenceRun", "environment_of", "inference_run", "last_run"]

_PACKAGES = ("pyspark", "torch", "tensorflow", "pyarrow", "numpy", "pandas", "mlflow")


@dataclass(frozen=True)
class Action:
    """One action inside a run.

    Attributes:
        execution: Spark's execution id, where it has one.
        description: Spark's own words, such as ``save at job.py:12``.
        rows: rows that were put out by the partitions that reported.
        partitions: how many reported.
        complete: whether every partition reported, as far as can be told. A ``show`` or ``limit`` runs few partitions, and may stop their
            tasks before they can report: the plan of a classic session tells; elsewhere another action of the same call with more partitions.
        error: why it failed; empty if it did not.
        failed_attempts: attempts at tasks that failed, in classic sessions; ``None`` where that is not told. What they had scored is in no figure.
        failed_seconds: how long they ran, in all: what was paid for and thrown away; ``None`` where that is not told.
    """

    execution: str | None
    description: str
    rows: int
    partitions: int
    complete: bool
    error: str = ""
    failed_attempts: int | None = None
    failed_seconds: float | None = None


class InferenceRun:
    """A run, open or ended; made by ``inference_run``.

    Attributes:
        id: unique.
        name: as it was given.
        label: the column that the predictions are compared with, if any.
        max_records_per_batch: what the run asked for; ``None`` leaves the session's own.
        mlflow_run_id: the MLflow run that has the figures, once the run has ended.
    """

    def __init__(
        self,
        name: str | None,
        *,
        max_records_per_batch: int | None = None,
        measured: bool = True,
        label: str | None = None,
        logged: bool = True,
    ) -> None:
        """Begin."""
        self.id = uuid4().hex[:12]
        self.name = name
        self.max_records_per_batch = max_records_per_batch
        self.measured = measured
        self.label = label
        self._logged = logged
        self._begun = time.time()
        self._ended: float | None = None
        self.session: Any = None
        self.before: frozenset[tuple[str, int, float]] = frozenset()  # over Connect: what was logged before this run
        self.calls_before = 0
        self._last_before = -1
        self._frozen: RunMetrics | None = None
        self._actions: tuple[Action, ...] = ()
        self.mlflow_run_id: str | None = None

    @property
    def metrics(self) -> RunMetrics:
        """Everything that was measured, as one value: what sinks get."""
        return self._frozen or self._collect()

    @property
    def summary(self) -> dict[str, float]:
        """The figures of the first action that reported, by documented names (``inference/rows_total``)."""
        return self.metrics.summary

    @property
    def partitions(self) -> pd.DataFrame:
        """One row a partition of that action, one column a field of ``PartitionMetrics``; stages are seconds."""
        import pandas as pd  # noqa: PLC0415 - most runs are read from their summary

        return pd.DataFrame([record.flat() for record in self.metrics.partitions])

    @property
    def bad_rows(self) -> dict[str, int]:
        """Rows of that action that have a reason and no prediction, by stage and type, such as ``{"preprocess ValueError": 37}``."""
        counted: Counter[str] = Counter()
        for record in self.metrics.partitions:
            counted.update(record.bad_rows)
        return dict(counted.most_common())

    @property
    def confusion(self) -> pd.DataFrame | None:
        """Rows of that action by label (down) and prediction (across); ``None`` where no classes were compared, or too many."""
        import pandas as pd  # noqa: PLC0415 - most runs are read from their summary

        quality = self.metrics.quality
        if quality is None or not quality.pairs:
            return None
        classes = quality.classes
        counts = [[quality.pairs.get((true, predicted), 0) for predicted in classes] for true in classes]
        return pd.DataFrame(counts, index=pd.Index(classes, name=quality.label), columns=pd.Index(classes, name=quality.output))

    @property
    def actions(self) -> tuple[Action, ...]:
        """Every action inside, in order; the first that reported is the run, later ones are its children."""
        if self._frozen is None:
            self._collect()
        return self._actions

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was not measured or not compared, and what would help."""
        return self.metrics.remarks

    @property
    def verdict(self) -> Verdict:
        """What the run was bound by, on what evidence, and the one thing to change."""
        from sparkinfer.analysis.verdict import judge  # noqa: PLC0415

        return judge(self.metrics)

    def figures(self) -> dict[str, Any]:
        """Draw the run: matplotlib figures by name."""
        drawn: dict[str, Any] = import_module("sparkinfer.reporting.figures").figures(self.metrics)
        return drawn

    def save_report(self, path: str | Path) -> Path:
        """Write the report, one self-contained HTML file.

        Returns:
            Where it is.
        """
        saved: Path = import_module("sparkinfer.reporting.html").save_report(self.metrics, path, self.verdict)
        return saved

    def __repr__(self) -> str:
        """Show what it has."""
        rows = self.summary.get("inference/rows_total", 0)
        return f"InferenceRun(name={self.name!r}, rows={rows}, actions={len(self.actions)})"

    def _repr_html_(self) -> str:
        """Show the figures at the end of a notebook's cell."""
        shown: str = import_module("sparkinfer.reporting.cell").cell(
            self.metrics,
            str(self.verdict),
            ended=self._frozen is not None,
            actions=len(self.actions),
            mlflow_run_id=self.mlflow_run_id,
        )
        return shown

    @property
    def over_connect(self) -> bool:
        """Whether the session talks to its server by Spark Connect."""
        return type(self.session).__module__.startswith("pyspark.sql.connect")

    def _enter(self, session: Any) -> None:
        self.session = session
        self._last_before = _seen(session)
        self.calls_before = import_module("sparkinfer.spark.calls").calls_made()
        if self.over_connect:
            logged = _logged(session)
            self.before = frozenset(map(_key, (*logged.records, *logged.begun)))

    def _ended_with(self) -> tuple[int, int] | None:
        """Give the rows and partitions of all actions, once the run has ended."""
        if self._frozen is None:
            return None
        return sum(action.rows for action in self._actions), sum(action.partitions for action in self._actions)

    def _end(self) -> None:
        self._ended = time.time()
        self._frozen = self._collect()

    def _report(self) -> None:
        """Log the run to MLflow, where it is wanted and installed; a run that measured nothing is not logged."""
        if not self._logged or not self.measured or not self.metrics.executions:
            return
        if find_spec("mlflow") is None:
            _say_once(
                "MLflow is not installed here, so the run is not logged; its figures are in run.summary, its page in run.save_report(path)"
            )
            return
        verdict = self.verdict
        try:
            page: str | None = import_module("sparkinfer.reporting.html").render(self.metrics, verdict)
        except MissingDependencyError:  # MLflow without the report is still MLflow
            page = None
        complete = all(action.complete for action in self.actions if action.execution == self.metrics.executions[0].execution)
        self.mlflow_run_id = (
            import_module("sparkinfer.reporting.mlflow").MlflowSink().report(self.metrics, verdict, page, complete=complete)
        )

    def _collect(self) -> RunMetrics:
        records, begun, settings = _records_of(self) if self.measured else ([], [], {})
        executions = group_executions(records)
        self._actions = _actions(executions, group_executions(begun), self.session, self._last_before)
        complete = {action.execution for action in self._actions if action.complete}
        executions.sort(key=lambda one: one.execution not in complete)  # stable: the first complete one is the run
        remarks = (
            *(forgotten := _forgotten_remark(self)),
            *_remarks(self._actions, self.session, measured=self.measured, all_known=not forgotten),
            *_repeat_remark([execution for execution in executions if execution.execution in complete]),
            *_stream_remarks(executions, self.session),
            *_memory_remark(executions),
            *_label_remark(self, executions),
        )
        return RunMetrics(
            id=self.id,
            name=self.name,
            started_unix=self._begun,
            ended_unix=self._ended or time.time(),
            executions=tuple(executions),
            settings=settings,
            environment=environment_of(self.session),
            remarks=remarks,
        )


_last: InferenceRun | None = None


def last_run() -> InferenceRun | None:
    """Give the ``inference_run`` that ended last; ``None`` before the first."""
    return _last


@contextmanager
def inference_run(
    name: str | None = None,
    *,
    max_records_per_batch: int | None = None,
    metrics: bool = True,
    progress: bool | Literal["auto"] = "auto",
    label: str | None = None,
    mlflow: bool = True,
) -> Iterator[InferenceRun]:
    """Surround the actions of a run, and measure them.

    Args:
        name: for people, and for MLflow.
        max_records_per_batch: rows of the chunks that Spark sends, for every action inside. Spark reads it when an action runs, so the
            action itself must be inside. The session's own value is put back at the end.
        metrics: bring the partitions' figures back.
        progress: show rows and time left while actions run; ``"auto"`` shows them in a terminal or notebook.
        label: a kept column with the truth: accuracy and ``run.confusion`` of texts, booleans and integers, else the mean absolute error, of
            the first output of the same kind. Needs ``road="map"`` and ``keep=`` with the column; where it cannot be compared, a remark
            of the run says why.
        mlflow: log the run where MLflow is installed.

    Yields:
        The run. Its figures are there while it is open, as far as partitions have ended, and afterwards.

    Raises:
        ConfigError: a value is below 1, the label is no name, or an overlapping run asked for another ``max_records_per_batch``. A session that does not let it be
            set is left as it is, with a warning.

    Example:
        ::

            with si.inference_run("nightly scoring", max_records_per_batch=2000) as run:
                scored.write.parquet("scored/")
            run.summary["inference/rows_per_second"]
    """
    global _last  # noqa: PLW0603 - the last run is the process's
    InferenceConfig(max_records_per_batch=max_records_per_batch)
    _check_label(label)
    run = InferenceRun(name, max_records_per_batch=max_records_per_batch, measured=metrics, label=label, logged=mlflow)
    with ExitStack() as changed:
        spark = import_module("sparkinfer.spark.runs")  # brings pyspark, which a run is about
        session = changed.enter_context(spark.surrounded(run.id, max_records_per_batch, label))
        run._enter(session)  # noqa: SLF001 - the two are one
        ended = False
        try:
            with _shown(run, progress=progress):
                try:
                    yield run
                finally:
                    ended = _never_raising(run._end)  # noqa: SLF001
        finally:
            if ended:
                _never_raising(run._report)  # noqa: SLF001
            _last = run


def _never_raising(step: Callable[[], None]) -> bool:
    """Do a step of the measuring, which must never cost the predictions; tell whether it went well."""
    try:
        step()
    except Exception as error:  # noqa: BLE001 - whatever it is, the rows are scored
        remark(f"the run's figures could not be read: {type(error).__name__}: {error}")
        return False
    return True


def _check_label(label: Any) -> None:
    if label is not None and not (isinstance(label, str) and label):
        msg = f"label is {label!r}, expected the name of a kept column"
        raise ConfigError(msg)


@lru_cache
def _say_once(text: str) -> None:
    """Warn once a process."""
    remark(text)


@contextmanager
def _shown(run: InferenceRun, *, progress: bool | Literal["auto"]) -> Iterator[None]:
    """Show progress while actions run, where somebody looks and the session can tell."""
    if progress is False or run.session is None or not run.measured:
        yield
        return
    with ExitStack() as shown:
        with suppress(Exception):  # a session that hides its context, or an old Connect client, shows no progress
            look = _looked_at(run, shown)
            shown.enter_context(import_module("sparkinfer.reporting.progress").Progress(look, show=progress))
        yield


def _looked_at(run: InferenceRun, shown: ExitStack) -> Callable[[], Any]:
    spark = import_module("sparkinfer.spark.progress")
    look: Callable[[], Any]
    if run.over_connect:
        look = shown.enter_context(spark.connect_snapshot(run.session, run._ended_with))  # noqa: SLF001 - the two are one
    else:
        look = spark.classic_snapshot(run.session, lambda: _records_of(run)[0])
    return look


def _records_of(run: InferenceRun) -> tuple[list[PartitionMetrics], list[PartitionMetrics], dict[str, Any]]:
    """Give the run's records, over Connect the marks of the partitions that began, and the settings of its first call."""
    calls = {call.id: call for call in import_module("sparkinfer.spark.calls").known_calls()}
    begun: list[PartitionMetrics] = []
    if run.over_connect:
        logged = _logged(run.session)
        records, begun = [[one for one in some if _is_of(run, one)] for some in (logged.records, logged.begun)]
    else:
        records = [record for call in calls.values() for record in call.channel.records() if record.run == run.id]
    first = min(records, key=lambda record: record.started_unix, default=None)
    settings = calls[first.call].settings if first is not None and first.call in calls else {}
    return records, begun, settings


def _logged(session: Any) -> Logged:
    logged: Logged = import_module("sparkinfer.spark.channels").read_worker_logs(session)
    return logged


def _is_of(run: InferenceRun, record: PartitionMetrics) -> bool:
    """Tell whether what was logged is the run's: by its mark, or, where the server hands no marks on, since it is new."""
    return _key(record) not in run.before and record.run in (None, run.id)


def _key(record: PartitionMetrics) -> tuple[str, int, float]:
    return record.call, record.task_attempt, record.started_unix


def _seen(session: Any) -> int:
    seen: int = import_module("sparkinfer.spark.executions").last_execution(session)
    return seen


def _actions(executions: list[Execution], begun: list[Execution], session: Any, last_before: int) -> tuple[Action, ...]:
    executed = import_module("sparkinfer.spark.executions").executions_since(session, last_before) if session is not None else []
    told = {one.id: one for one in executed}
    most: dict[str, int] = {}
    for execution in executions:
        most[execution.call] = max(most.get(execution.call, 0), _reported(execution))
    started = {(one.call, one.execution): one for one in begun}
    actions = []
    for execution in executions:
        sql = told.pop(execution.execution or "", None)
        action = Action(
            execution=execution.execution,
            description=sql.description if sql is not None else "an action",
            rows=sum(record.rows for record in execution.partitions),
            partitions=_reported(execution),
            complete=_is_complete(execution, sql, most[execution.call], started.pop((execution.call, execution.execution), None)),
            error=sql.error if sql is not None else "",
            failed_attempts=sql.failed_attempts if sql is not None else None,
            failed_seconds=sql.failed_seconds if sql is not None else None,
        )
        actions.append((min(record.started_unix for record in execution.partitions), action))
    actions += [  # ran one of our functions, and nothing came back
        (sql.started_unix, _unreported(sql)) for sql in told.values()
    ]
    actions += [  # over Connect: began, and nothing came back
        (min(mark.started_unix for mark in one.partitions), Action(one.execution, "an action", 0, 0, complete=False))
        for one in started.values()
    ]
    return tuple(action for _, action in sorted(actions, key=lambda pair: pair[0]))


def _unreported(sql: Any) -> Action:
    return Action(
        sql.id,
        sql.description,
        0,
        0,
        complete=False,
        error=sql.error,
        failed_attempts=sql.failed_attempts,
        failed_seconds=sql.failed_seconds,
    )


def _is_complete(execution: Execution, sql: Any, most: int, begun: Execution | None) -> bool:
    """Tell whether every partition reported.

    By the plan and the error that Spark tells; elsewhere by the partitions that began and by the fullest action of the same call.
    """
    if sql is None:
        return _reported(execution) == most and (begun is None or _reported(begun) <= most)
    return not sql.limited and not sql.error


def _remarks(actions: tuple[Action, ...], session: Any, *, measured: bool, all_known: bool) -> tuple[str, ...]:
    if not measured:
        return ("not measured: the run was opened with metrics=False",)
    remarks = []
    over_connect = session is not None and type(session).__module__.startswith("pyspark.sql.connect")
    if all_known and any(not action.complete and not action.error for action in actions):
        remarks.append(
            f"an action was cut short (limit, show, first and take stop their tasks early){' or failed' if over_connect else ''}: its figures are of "
            "the partitions that reported, if any"
        )
    failed = sum(action.failed_attempts or 0 for action in actions)
    if failed:
        seconds = sum(action.failed_seconds or 0 for action in actions)
        remarks.append(
            f"{failed} attempts at tasks failed{f' after {seconds:.1f} s in all' if seconds else ''}; what they had scored is in no figure, and "
            "was scored again where Spark tried again"
        )
    if any(action.error for action in actions):
        remarks.append("an action failed: its partitions that did not finish are not counted")
    if over_connect and not any(action.partitions for action in actions):
        remarks.append(
            "not measured: nothing came back. Over Spark Connect the figures come in the workers' logs, which Spark has from 4.1 on; an action that a "
            "limit stops early (show, first, take) leaves none"
        )
    if not actions and session is not None and import_module("sparkinfer.spark.session").hides_context(session):
        remarks.append("not measured: this session does not give its SparkContext, by whose accumulators the partitions' figures come back")
    return tuple(remarks)


def _memory_remark(executions: list[Execution]) -> tuple[str, ...]:
    """Say what batch size fits into memory, where batches had to be cut."""
    fit = [record.batch_rows_fit for record in (executions[0].partitions if executions else ()) if record.batch_rows_fit is not None]
    return (f"the model ran out of memory, and its batches were cut to {min(fit)} rows: say batch_size={min(fit)}",) if fit else ()


def _forgotten_remark(run: InferenceRun) -> tuple[str, ...]:
    """Say that figures were let go, where there were more calls than are remembered: ``foreachBatch`` makes one a micro-batch."""
    calls = import_module("sparkinfer.spark.calls")
    made = calls.calls_made() - run.calls_before
    if made <= calls.CALLS_KEPT or run.over_connect:  # there the workers' logs have all
        return ()
    return (f"predict was called {made:,} times inside: the figures are of the newest {calls.CALLS_KEPT} calls",)


def _repeat_remark(complete: list[Execution]) -> tuple[str, ...]:
    """Say that the predictions of one ``predict`` were scored more than once; a UDF is called on many DataFrames."""
    roads = {call.id: call.road for call in import_module("sparkinfer.spark.calls").known_calls()}
    seen: dict[tuple[str, str | None], list[Mapping[int, int]]] = {}
    for execution in complete:
        rows = execution.rows_by_partition
        before = seen.setdefault((execution.call, execution.micro_batch), [])
        if roads.get(execution.call, "udf") != "udf" and any(scored_again(earlier, rows) for earlier in before):
            return (
                f"the same predictions were scored a second time ({sum(rows.values()):,} rows): cache() or write them once, and read that",
            )
        before.append(rows)
    return ()


def _stream_remarks(executions: list[Execution], session: Any) -> tuple[str, ...]:
    """Say what a run shows of a stream, whose micro-batches are actions each."""
    batches = {batch for execution in executions if (batch := execution.micro_batch) is not None}
    remarks = []
    if len(batches) > 1:
        remarks.append(
            f"{len(batches):,} micro-batches of a stream reported, each an action of its own: the figures are of one, run.actions lists all"
        )
    if {batch.partition("/")[0] for batch in batches} & import_module("sparkinfer.spark.runs").active_streams(session):
        remarks.append("the stream still runs: what it scores from here on is in no figure. Wait for it inside, with awaitTermination()")
    return tuple(remarks)


def _label_remark(run: InferenceRun, executions: list[Execution]) -> tuple[str, ...]:
    """Say why the label was not compared, where there were rows to compare."""
    scored = executions[0].partitions if executions else ()
    if run.label is None or not any(record.rows for record in scored) or merged_quality(scored) is not None:
        return ()
    if run.over_connect and all(record.run is None for record in scored):
        advice = f"Use a classic session with predict(..., road='map', keep=[{run.label!r}, ...])"
        return (
            f"label={run.label!r} was not compared: this Spark Connect server hands no tags on to the workers, so they do not know its name. {advice}",
        )
    known = import_module("sparkinfer.spark.calls").known_calls()
    call = next((one for one in known if one.id == executions[0].call), None)
    if call is None:
        return ()
    why: str = import_module("sparkinfer.engine.quality").not_compared(
        run.label, road=call.road, keep=call.plan.keep, outputs=call.plan.outputs
    )
    return (why,)


def environment_of(session: Any) -> Mapping[str, str]:
    """Give the versions that a run ran with, and the kind of session."""
    found = {"python": platform.python_version(), "machine": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if session is not None:
        found["session"] = "connect" if type(session).__module__.startswith("pyspark.sql.connect") else "classic"
    return found


def _reported(execution: Execution) -> int:
    """Count the partitions that reported, each once."""
    return len({record.partition for record in execution.partitions})
