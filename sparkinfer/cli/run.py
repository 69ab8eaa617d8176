"""``sparkinfer run``: a job file's rows, scored and written.

Runs on: driver.

Invariant: what is wrong with the file, its functions, its model or its columns is told before a row is scored; what came out of the environment is in no
line that is printed.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import sparkinfer
from sparkinfer.cli.functions import Functions, functions_beside
from sparkinfer.cli.job import Job, Resume, Sink, Source, parse_job
from sparkinfer.cli.read import Document, read_job
from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError, MissingDependencyError, ModelLoadError, SparkInferError, nearest

if TYPE_CHECKING:
    from sparkinfer.cli.keys import Section
    from sparkinfer.run import InferenceRun

__all__ = ["JobFailedError", "OpenedJob", "opened_job", "run_job", "told"]

_FUNCTIONS = ("preprocess", "preprocess_batch", "preprocess_on_device", "postprocess")
_OURS = re.compile(rf"{re.escape(SparkInferError.__module__)}\.(\w+: .*)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")  # its frames are indented, its last line is not
_WRONG_SQL = re.compile(r"\[(UNRESOLVED_|PARSE_SYNTAX_ERROR|DATATYPE_MISMATCH)")  # Spark's error classes of what the file itself says


class JobFailedError(SparkInferError, RuntimeError):
    """Spark could not read, score or write the rows; chained to what it raised."""


def run_job(
    path: Path, *, changes: tuple[str, ...] = (), check: bool = False, trace: bool = False, say: Callable[[str], None] = print
) -> InferenceRun | None:
    """Run the job of a file.

    Args:
        path: the job file.
        changes: ``key.path=value`` texts, laid over it.
        check: stop before the first row: the file, its functions, the model, the source's columns and types are checked.
        trace: let pyspark log the queries that fail, which may hold values of the environment.
        say: takes each line for people.

    Returns:
        The run, ended; ``None`` for a check.

    Raises:
        ConfigError, SchemaError: the file, or what it names, is wrong.
        JobFailedError: the job failed; the message has the first cause.
    """
    with opened_job(path, changes, trace=trace, say=say) as opened:
        document, job = opened.document, opened.job
        _check_report(job)
        with opened.rows() as rows:
            if check:
                settings = replace(opened.config, max_records_per_batch=None)  # in force only while a run is open
                scored = _predicted(rows, opened.model, settings, opened.keywords, document, job)
                columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in scored.schema)
                opened.say(f"{path} is in order: {opened.model} would give {columns}")
                return None
            return _score(rows, opened.model, opened.keywords, document, job, opened.name, opened.say)


@dataclass(frozen=True)
class OpenedJob:
    """A job file that was read and checked, with the library's own values.

    Attributes:
        document: the file.
        job: what it says.
        name: of the job.
        model: the model.
        keywords: ``predict``'s.
        trace: let pyspark log the queries that fail.
        say: takes each line for people, which it rids of the environment's values.
    """

    document: Document
    job: Job
    name: str
    model: Any
    keywords: dict[str, Any]
    trace: bool
    say: Callable[[str], None]

    @property
    def config(self) -> InferenceConfig:
        """The settings."""
        return InferenceConfig(**cast("Section", self.job.config).given())

    @contextmanager
    def rows(self) -> Iterator[Any]:
        """Open the session, and give the source's rows."""
        from sparkinfer.spark.job_session import job_session, queries_unlogged  # noqa: PLC0415 - brings pyspark, which a wrong file needs not

        spark = self.job.spark
        app_name = spark.app_name or f"sparkinfer {self.name}"
        with nullcontext() if self.trace else queries_unlogged(), job_session(spark.master, app_name, spark.conf) as session:
            with told("source", self.document):
                rows = _read(session, self.job.source)
                rows.schema  # noqa: B018 - Spark Connect resolves the names no sooner
            yield rows


@contextmanager
def opened_job(path: Path, changes: tuple[str, ...], *, trace: bool, say: Callable[[str], None]) -> Iterator[OpenedJob]:
    """Read a job file, and find its functions and its model."""
    document = read_job(path, changes)
    job = parse_job(document)
    with _without_secrets(document, trace=trace), functions_beside(path) as functions:
        functions.check(_named_functions(job))
        yield OpenedJob(
            document,
            job,
            job.run.name or path.stem,
            _model(job, functions),
            _keywords(job, functions),
            trace,
            lambda line: say(document.hide(line)),
        )


def _score(
    rows: Any, model: Any, keywords: dict[str, Any], document: Document, job: Job, name: str, say: Callable[[str], None]
) -> InferenceRun:
    config = InferenceConfig(**cast("Section", job.config).given())
    measured = job.run.metrics and config.metrics
    records = config.max_records_per_batch
    with sparkinfer.inference_run(name, max_records_per_batch=records, metrics=measured, label=job.run.label, mlflow=job.run.mlflow) as run:
        scored = _predicted(rows, model, config, keywords, document, job)
        begun = time.perf_counter()
        with told("sink", document):
            done = _write(scored, job.sink) if job.sink.resume is None else _score_to(rows, model, config, keywords, job.sink)
        seconds = time.perf_counter() - begun
    for line in (*_summary(run, seconds, job, document), *done):
        say(line)
    return run


def _score_to(rows: Any, model: Any, config: InferenceConfig, keywords: dict[str, Any], sink: Sink) -> tuple[str, ...]:
    resume = cast("Resume", sink.resume)
    arguments = {name: value for name, value in keywords.items() if name != "key"}
    done = sparkinfer.score_to(
        rows, cast("str", sink.path), model, key=resume.key, retry_errors=resume.retry_errors, config=config, **arguments
    )
    there = done.rows - done.rows_written
    failed = f", {done.rows_failed:,} of them without a prediction" if done.rows_failed else ""
    return (f"{done.rows:,} rows are there{failed}: {done.rows_written:,} written now, {there:,} before",)


def _predicted(rows: Any, model: Any, config: InferenceConfig, keywords: dict[str, Any], document: Document, job: Job) -> Any:
    with told("predict", document):
        scored = sparkinfer.predict(rows, model, config=config, **keywords)
    _check_names(job, scored.columns, job.predict.keep or rows.columns)
    return scored


def _check_names(job: Job, given: Sequence[str], kept: Sequence[str]) -> None:
    """Refuse names of columns that would be missed only when the rows are scored and written."""
    if job.run.label is not None and job.run.label not in kept:
        msg = f"run.label: the column {job.run.label!r} is not among the kept ones. {nearest(job.run.label, kept)}"
        raise ConfigError(msg)
    known = {name.lower() for name in given}  # by default Spark does not tell upper from lower case
    for key in ("partition_by", "repartition"):
        names = getattr(job.sink, key)
        for name in names if isinstance(names, tuple) else ():
            inside = key == "repartition" and ("." in name or "`" in name)  # a field of a struct, or quoted: Spark's to read
            if name.lower() not in known and not inside:
                msg = f"sink.{key}: the column {name!r} is not among those that are written. {nearest(name, given)}"
                raise ConfigError(msg)


# --- from the file to the library's own values ---------------------------------------------------------------------------


def _named_functions(job: Job) -> dict[str, str]:
    """Give every function's name by its key."""
    kind, section = next((name, value) for name, value in job.model.given().items() if value is not None)
    places = [(f"model.{kind}", section.given(), ("load", "factory")), ("predict", job.predict.given(), _FUNCTIONS)]
    return {f"{place}.{name}": given[name] for place, given, names in places for name in names if given.get(name) is not None}


def _model(job: Job, functions: Functions) -> Any:
    kind, section = next((name, value) for name, value in job.model.given().items() if value is not None)
    key = f"model.{kind}"
    given = {name: value for name, value in section.given().items() if value is not None}
    if kind == "python":
        given["load"] = functions.find(given["load"], f"{key}.load")
        return _made(sparkinfer.PythonModel, given, key)
    if "factory" in given:
        factory = functions.find(given.pop("factory"), f"{key}.factory")
        # a PyTorch module is made on the workers, from its weights; a Keras model is an object that travels
        given["source"] = factory if kind == "torch" else _called(factory, f"{key}.factory")
    kinds: dict[str, Any] = {"torch": sparkinfer.TorchModel, "tensorflow": sparkinfer.TensorFlowModel, "mlflow": sparkinfer.MlflowModel}
    return _made(kinds[kind], given, key)


def _called(factory: Callable[[], Any], key: str) -> Any:
    try:
        return factory()
    except Exception as error:
        msg = f"{key}: {getattr(factory, '__name__', factory)}() raised {type(error).__name__}: {error}"
        raise ModelLoadError(msg) from error


def _made(kind: Any, given: dict[str, Any], key: str) -> Any:
    first = {name: given.pop(name) for name in ("source", "load", "uri") if name in given}
    try:
        return kind(*first.values(), **given)
    except ConfigError as error:
        msg = f"{key}: {error}"
        raise ConfigError(msg) from error


def _keywords(job: Job, functions: Functions) -> dict[str, Any]:
    keywords = {name: value for name, value in job.predict.given().items() if value is not None}
    for name in _FUNCTIONS:
        if name in keywords:
            keywords[name] = functions.find(keywords[name], f"predict.{name}")
    return keywords


def _check_report(job: Job) -> None:
    if job.run.report is not None and find_spec("matplotlib") is None:
        msg = "run.report: the report is drawn by matplotlib, which is not installed here: pip install 'sparkinfer[report]', or leave the key out"
        raise MissingDependencyError(msg)
    if job.run.report is not None:
        _check_place(Path(job.run.report).expanduser())


def _check_place(report: Path) -> None:
    there = next(folder for folder in report.absolute().parents if folder.exists())  # what is below it will be made
    if report.is_dir():
        why = "which is a folder"
    elif not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        why = f"since {str(there)!r} is no folder that can be written to"
    else:
        return
    msg = f"run.report: the page cannot be written to {str(report)!r}, {why}: give the path of a file elsewhere"
    raise ConfigError(msg)


# --- Spark ---------------------------------------------------------------------------------------------------------------


def _read(session: Any, source: Source) -> Any:
    if source.query is not None:
        rows = session.sql(source.query)
    else:
        reader = session.read.options(**source.options)
        if source.format is not None:
            reader = reader.format(source.format)
        if source.ddl is not None:
            reader = reader.schema(source.ddl)
        if source.table is not None:
            rows = reader.table(source.table)
        else:
            rows = reader.load(list(source.path)) if source.path is not None else reader.load()
    if source.where is not None:
        rows = rows.where(source.where)
    if source.select is not None:
        rows = rows.selectExpr(*source.select)
    return rows if source.repartition is None else rows.repartition(source.repartition)


def _write(scored: Any, sink: Sink) -> tuple[str, ...]:
    if isinstance(sink.repartition, int):
        scored = scored.repartition(sink.repartition)
    elif sink.repartition is not None:
        scored = scored.repartition(*sink.repartition)
    if sink.coalesce is not None:
        scored = scored.coalesce(sink.coalesce)
    writer = scored.write.mode(sink.mode).options(**sink.options)
    if sink.format is not None:
        writer = writer.format(sink.format)
    if sink.partition_by is not None:
        writer = writer.partitionBy(*sink.partition_by)
    if sink.table is not None:
        writer.saveAsTable(sink.table)
    else:
        writer.save(sink.path)
    return ()


@contextmanager
def told(part: str, document: Document) -> Iterator[None]:
    """Have Spark's own errors told by the part of the job, in one line."""
    try:
        yield
    except SparkInferError:
        raise
    except Exception as error:
        text = document.hide(str(error))  # as a whole: a value may have several lines
        msg = f"{part}: {_cause(text) or f'{type(error).__name__}: {_first_line(text)}'}"
        wrong = part == "source" and _WRONG_SQL.match(text) is not None
        raise (ConfigError if wrong else JobFailedError)(msg) from error


def _cause(text: str) -> str | None:
    """Find what a worker raised: our own error, which ends its traceback, or else the last line of the last traceback."""
    found = _OURS.findall(text) or _TRACEBACK.findall(text)
    return found[-1].strip() if found else None


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


@contextmanager
def _without_secrets(document: Document, *, trace: bool) -> Iterator[None]:
    """Take what came out of the environment out of the library's own errors and of all warnings."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        told = document.hide(str(message))
        before(message if told == str(message) else category(told), category, *place, **more)

    warnings.showwarning = show
    try:
        yield
    except SparkInferError as error:
        shown_whole = trace and isinstance(error, JobFailedError)
        if shown_whole or all(document.hide(str(one)) == str(one) for one in _chain(error)):
            raise
        raise type(error)(document.hide(str(error))) from None  # the chain holds the value
    finally:
        warnings.showwarning = before


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


# --- what is said at the end ---------------------------------------------------------------------------------------------


def _summary(run: InferenceRun, seconds: float, job: Job, document: Document) -> Iterator[str]:
    rows = run.summary.get("inference/rows_total") if run.measured else None
    counted = (
        f"{rows:,.0f} rows in {seconds:.1f} s, {rows / seconds:,.0f} rows/s" if rows is not None else f"rows not counted, {seconds:.1f} s"
    )
    yield f"{counted}, the start of Python and of the model included"
    if run.measured:
        yield f"verdict: {run.verdict}"
        yield from (f"remark: {remark}" for remark in run.remarks)
    place = document.marked["sink"]
    yield f"result -> {place.get('table') or place.get('path') or job.sink.format}"
    if job.run.report is not None:
        with told("run.report", document):
            path = Path(job.run.report).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            saved = run.save_report(path)
        yield f"report -> {saved}"
    if run.mlflow_run_id is not None:
        yield f"MLflow run {run.mlflow_run_id}"
