"""``sparkinfer run``: a job file's rows, scored and written.

Runs on: driver.

Invariant: what is wrong with the file, its functions, its model or its columns is told before a row is scored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import sparkinfer
from sparkinfer.cli.opened import OpenedJob, opened_job, told
from sparkinfer.exceptions import ConfigError, MissingDependencyError, nearest

if TYPE_CHECKING:
    from sparkinfer.cli.job import Job, Resume, Sink
    from sparkinfer.cli.read import Document
    from sparkinfer.config import InferenceConfig
    from sparkinfer.run import InferenceRun

__all__ = ["run_job"]


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
        _check_report(opened.job)
        with opened.rows() as rows:
            if check:
                settings = replace(opened.config, max_records_per_batch=None)  # in force only while a run is open
                scored = _predicted(rows, opened, settings)
                columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in scored.schema)
                opened.say(f"{path} is in order: {opened.model} would give {columns}")
                return None
            return _score(rows, opened)


def _score(rows: Any, opened: OpenedJob) -> InferenceRun:
    job, config = opened.job, opened.config
    measured = job.run.metrics and config.metrics
    records = config.max_records_per_batch
    with sparkinfer.inference_run(
        opened.name, max_records_per_batch=records, metrics=measured, label=job.run.label, mlflow=job.run.mlflow
    ) as run:
        scored = _predicted(rows, opened, config)
        begun = time.perf_counter()
        with told("sink", opened.document):
            done = _write(scored, job.sink) if job.sink.resume is None else _score_to(rows, opened)
        seconds = time.perf_counter() - begun
    for line in (*_summary(run, seconds, job, opened.document), *done):
        opened.say(line)
    return run


def _score_to(rows: Any, opened: OpenedJob) -> tuple[str, ...]:
    sink = opened.job.sink
    resume = cast("Resume", sink.resume)
    arguments = {name: value for name, value in opened.keywords.items() if name != "key"}
    done = sparkinfer.score_to(
        rows, cast("str", sink.path), opened.model, key=resume.key, retry_errors=resume.retry_errors, config=opened.config, **arguments
    )
    there = done.rows - done.rows_written
    failed = f", {done.rows_failed:,} of them without a prediction" if done.rows_failed else ""
    return (f"{done.rows:,} rows are there{failed}: {done.rows_written:,} written now, {there:,} before",)


def _predicted(rows: Any, opened: OpenedJob, config: InferenceConfig) -> Any:
    with told("predict", opened.document):
        scored = sparkinfer.predict(rows, opened.model, config=config, **opened.keywords)
    _check_names(opened.job, scored.columns, opened.job.predict.keep or rows.columns)
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
