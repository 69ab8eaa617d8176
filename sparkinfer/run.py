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
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache, wraps
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec
from uuid import uuid4

from sparkinfer.actions import actions_of
from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError, MissingDependencyError, remark
from sparkinfer.metrics import RunMetrics, group_executions
from sparkinfer.profiles import ProfilePlan
from sparkinfer.remarks import remarks_of

if TYPE_CHECKING:
    from types import TracebackType

    import pandas as pd

    from sparkinfer.actions import Action
    from sparkinfer.analysis.leaks import MemoryVerdict
    from sparkinfer.analysis.verdict import Verdict
    from sparkinfer.metrics import PartitionMetrics
    from sparkinfer.reporting.profile import Profile
    from sparkinfer.spark.channels import Logged

__all__ = ["InferenceRun", "environment_of", "inference_run", "last_run"]

_P = ParamSpec("_P")
_innermost: ContextVar[InferenceRun | None] = ContextVar("sparkinfer_run", default=None)

_PACKAGES = ("pyspark", "torch", "tensorflow", "onnxruntime", "openvino", "pyarrow", "numpy", "pandas", "mlflow")


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
        self.inner: list[str] = []  # the names of runs that were opened inside this one
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

    @property
    def profile(self) -> Profile:
        """What the profilers saw in the partitions of ``inference_run(profile=...)``; empty where none was watched."""
        from sparkinfer.reporting.profile import Profile  # noqa: PLC0415

        return Profile(self.metrics, self.memory)

    @property
    def memory(self) -> MemoryVerdict:
        """Whether the Python workers' memory grows: from batch to batch, or from task to task."""
        from sparkinfer.analysis.leaks import judge_memory  # noqa: PLC0415

        return judge_memory(self.metrics.partitions)

    def save_trace(self, path: str | Path) -> Path:
        """Write one trace of the run for trace viewers (Perfetto, chrome://tracing): gzip, in the trace-event format.

        Returns:
            Where it is.
        """
        saved: Path = import_module("sparkinfer.reporting.run_trace").save_trace(self.metrics, path)
        return saved

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
        self._actions = actions_of(executions, group_executions(begun), self.session, self._last_before, self.id)
        complete = {action.execution for action in self._actions if action.complete}
        executions.sort(key=lambda one: one.execution not in complete)  # stable: the first complete one is the run
        return RunMetrics(
            id=self.id,
            name=self.name,
            started_unix=self._begun,
            ended_unix=self._ended or time.time(),
            executions=tuple(executions),
            settings=settings,
            environment=environment_of(self.session),
            remarks=remarks_of(self, executions, self._actions),
        )


_last: InferenceRun | None = None


def last_run() -> InferenceRun | None:
    """Give the ``inference_run`` that ended last; ``None`` before the first."""
    return _last


class _Block(AbstractContextManager["InferenceRun"]):
    """What is to be entered by ``with``: who takes it for the run itself is told so."""

    def __init__(self, surroundings: AbstractContextManager[InferenceRun]) -> None:
        self._surroundings = surroundings

    def __enter__(self) -> InferenceRun:
        return self._surroundings.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return self._surroundings.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        msg = f"a run surrounds its actions: with si.inference_run(...) as run: ..., and then run.{name}"
        raise AttributeError(msg)


def _block(surround: Callable[_P, Iterator[InferenceRun]]) -> Callable[_P, _Block]:
    """Do as ``contextmanager`` does, and give a ``_Block``."""
    made = contextmanager(surround)

    @wraps(surround)
    def block(*args: _P.args, **kwargs: _P.kwargs) -> _Block:
        return _Block(made(*args, **kwargs))

    return block


@_block
def inference_run(
    name: str | None = None,
    *,
    max_records_per_batch: int | None = None,
    metrics: bool = True,
    progress: bool | Literal["auto"] = "auto",
    label: str | None = None,
    mlflow: bool = True,
    profile: bool | ProfilePlan | None = None,
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
        profile: watch a few batches of a few partitions by the framework's own profiler; ``True`` takes ``ProfilePlan``'s defaults. What it
            saw is ``run.profile``; watched batches are in no latency figure. Needs ``metrics``.

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
    watched = _plan_of(profile)
    run = InferenceRun(name, max_records_per_batch=max_records_per_batch, measured=metrics, label=label, logged=mlflow)
    outer = _innermost.get()
    if outer is not None:
        outer.inner.append(name or run.id)
    with ExitStack() as changed:
        changed.callback(_innermost.reset, _innermost.set(run))
        spark = import_module("sparkinfer.spark.runs")  # brings pyspark, which a run is about
        session = changed.enter_context(spark.surrounded(run.id, max_records_per_batch, label, watched))
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


def _plan_of(profile: Any) -> ProfilePlan | None:
    if profile is None or profile is False:
        return None
    plan = ProfilePlan() if profile is True else profile
    if not isinstance(plan, ProfilePlan):
        msg = f"profile is {profile!r}, expected True, False or a ProfilePlan"
        raise ConfigError(msg)
    return plan


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
