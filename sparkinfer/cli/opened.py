"""A job file, opened: read, checked, and turned into the library's own values.

Runs on: driver.

Invariant: every function that is named and not found is told at once; what came out of the environment is in no error and no warning.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import sparkinfer
from sparkinfer.cli.functions import functions_beside
from sparkinfer.cli.job import Job, Source, parse_job
from sparkinfer.cli.read import Document, read_job
from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError, ModelLoadError, SparkInferError

if TYPE_CHECKING:
    from sparkinfer.cli.keys import Section

__all__ = ["JobFailedError", "OpenedJob", "opened_job", "told"]

_FUNCTIONS = ("preprocess", "preprocess_batch", "preprocess_on_device", "postprocess")
_OURS = re.compile(rf"{re.escape(SparkInferError.__module__)}\.(\w+: .*)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")  # its frames are indented, its last line is not
_WRONG_SQL = re.compile(r"\[(UNRESOLVED_|PARSE_SYNTAX_ERROR|DATATYPE_MISMATCH)")  # Spark's error classes of what the file itself says


class JobFailedError(SparkInferError, RuntimeError):
    """Spark could not read, score or write the rows; chained to what it raised."""


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
    with _without_secrets(document, trace=trace), functions_beside(path) as beside:
        functions = beside.find_all(_named_functions(job))
        yield OpenedJob(
            document,
            job,
            job.run.name or path.stem,
            _model(job, functions),
            _keywords(job, functions),
            trace,
            lambda line: say(document.hide(line)),
        )


def _named_functions(job: Job) -> dict[str, str]:
    """Give every function's name by its key."""
    kind, section = _section_of(job)
    places = [(f"model.{kind}", section.given(), ("load", "factory")), ("predict", job.predict.given(), _FUNCTIONS)]
    return {f"{place}.{name}": given[name] for place, given, names in places for name in names if given.get(name) is not None}


def _section_of(job: Job) -> tuple[str, Any]:
    """Give the one kind of model that the file has, and what it says of it."""
    return next((name, value) for name, value in job.model.given().items() if value is not None)


def _model(job: Job, functions: Mapping[str, Callable[..., Any]]) -> Any:
    kind, section = _section_of(job)
    key = f"model.{kind}"
    given = {name: value for name, value in section.given().items() if value is not None}
    if kind == "python":
        given["load"] = functions[f"{key}.load"]
        return _made(sparkinfer.PythonModel, given, key)
    if "factory" in given:
        factory = functions[f"{key}.factory"]
        del given["factory"]
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


def _keywords(job: Job, functions: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    keywords = {name: value for name, value in job.predict.given().items() if value is not None}
    for name in _FUNCTIONS:
        if name in keywords:
            keywords[name] = functions[f"predict.{name}"]
    return keywords


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
