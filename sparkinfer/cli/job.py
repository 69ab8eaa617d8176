"""The job file's format, version 1, as frozen pydantic models.

Runs on: driver.

Invariant: a ``Job`` that exists has only known keys with values of their types; the keys of ``config``, of the models and of a ``TensorSpec`` are those
of the dataclasses themselves, not a second list. No module of the user's is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, Field, PlainValidator, ValidationError, model_validator

from sparkinfer import models
from sparkinfer.arguments import parse_inputs, parse_outputs
from sparkinfer.cli.keys import Count, Function, Options, Section, Texts, exactly_one, keys_of
from sparkinfer.cli.problems import MisplacedError, known_keys, sentences
from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError, SparkInferError, nearest
from sparkinfer.schema import TensorSpec

if TYPE_CHECKING:
    from sparkinfer.cli.read import Document

__all__ = ["Job", "Model", "Predict", "Run", "Sink", "Source", "Spark", "parse_job"]

Torch = keys_of(models.TorchModel, factory=True)
TensorFlow = keys_of(models.TensorFlowModel, factory=True)
Python = keys_of(models.PythonModel)
Config = keys_of(InferenceConfig, each=True)
Mlflow = keys_of(models.MlflowModel)


# --- inputs -------------------------------------------------------------------------------------------------------------

_SPEC = [field.name for field in fields(TensorSpec) if field.init]


def _inputs(value: Any) -> Any:
    """Read ``predict.inputs`` to what ``predict(inputs=)`` takes.

    A mapping with a text under ``column`` is one column with its ``TensorSpec``; any other is ``{model input: column}``.
    """
    if isinstance(value, list):
        read: Any = [_column(item, (position,)) for position, item in enumerate(value)]
    elif isinstance(value, dict) and not isinstance(value.get("column"), str):
        read = {name: _column(item, (name,)) for name, item in value.items()}
    else:
        read = _column(value, ())
    parse_inputs(read)
    return read


def _column(value: Any, way: tuple[str | int, ...]) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("column"), str):
        raise MisplacedError(way, "expected a column's name, or a mapping with the key column and a TensorSpec's keys")
    known = ("column", *_SPEC)
    for key in value:
        if key not in known:
            raise MisplacedError((*way, key), f"there is no such key. {nearest(key, known)}")
    spec = {key: item for key, item in value.items() if key != "column"}
    if not spec:
        return str(value["column"])
    try:
        return value["column"], TensorSpec(**spec)
    except SparkInferError as error:
        raise MisplacedError(way, str(error)) from error


def _outputs(value: str) -> str:
    parse_outputs(value)
    return value


# --- the sections -------------------------------------------------------------------------------------------------------


class Source(Section):
    """Where the rows come from: ``path`` in a ``format``, a ``table``, or a ``query``; a format such as jdbc needs options only."""

    format: str | None = None
    path: Texts | None = None
    table: str | None = None
    query: str | None = None
    options: Options = Field(default_factory=dict)
    ddl: str | None = Field(default=None, alias="schema")
    where: str | None = None
    select: Texts | None = None
    repartition: Count | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        given = [name for name in ("path", "table", "query") if getattr(self, name) is not None]
        if len(given) > 1 or not (given or self.format):
            msg = f"expected exactly one of path, table and query, or a format that needs none, got {' and '.join(given) or 'none'}"
            raise ValueError(msg)
        if self.query is not None and (self.format or self.options or self.ddl):
            msg = "format, options and schema do not go with query: Spark's SQL says it all"
            raise ValueError(msg)
        return self


class Model(Section):
    """The model: exactly one of the four."""

    torch: Torch | None = None  # type: ignore[valid-type]  # made of the dataclass
    tensorflow: TensorFlow | None = None  # type: ignore[valid-type]
    mlflow: Mlflow | None = None  # type: ignore[valid-type]
    python: Python | None = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def _one_model(self) -> Model:
        exactly_one(self, ("torch", "tensorflow", "mlflow", "python"))
        return self


class Predict(Section):
    """``predict``'s own keywords; a model with a signature needs neither inputs nor outputs."""

    inputs: Annotated[Any, PlainValidator(_inputs)] = None
    outputs: Annotated[str, AfterValidator(_outputs)] | None = None
    keep: Texts | None = None
    preprocess: Function | None = None
    preprocess_batch: Function | None = None
    preprocess_on_device: Function | None = None
    postprocess: Function | None = None
    on_null: Literal["raise", "null", "pass"] = "raise"
    on_error: Literal["raise", "null"] = "raise"
    error_column: str = "error"
    key: Texts | None = None
    road: Literal["auto", "map", "column"] = "auto"
    scan: Literal["spark"] = "spark"


class Spark(Section):
    """The session: of a running one, or under spark-submit, the master is what it is."""

    master: str | None = None
    app_name: str | None = None
    conf: Options = Field(default_factory=dict)


class Resume(Section):
    """``score_to`` in the place of a write: the key that names a row, and whether failed rows are scored again."""

    key: Texts
    retry_errors: bool = False


class Sink(Section):
    """Where the predictions go: ``path`` in a ``format``, a ``table``, or a format that needs neither."""

    format: str | None = None
    path: str | None = None
    table: str | None = None
    mode: Literal["errorifexists", "error", "append", "overwrite", "ignore"] = "errorifexists"
    options: Options = Field(default_factory=dict)
    partition_by: Texts | None = None
    repartition: Count | Texts | None = None
    coalesce: Count | None = None
    resume: Resume | None = None

    @model_validator(mode="after")
    def _parts_that_stay(self) -> Sink:
        if self.resume is None:
            return self
        others = [name for name in self.model_fields_set if name not in ("format", "path", "resume")]
        if others or self.path is None or self.format not in (None, "parquet"):
            came = (
                f"got {' and '.join(sorted(others))}"
                if others
                else f"got the format {self.format!r}"
                if self.path is not None
                else "got no path"
            )
            msg = f"resume writes plain Parquet to a path, a file for each task, and takes nothing beside it but format: parquet; {came}"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _one_place(self) -> Sink:
        given = [name for name in ("path", "table") if getattr(self, name) is not None]
        if len(given) > 1 or not (given or self.format):
            msg = f"expected exactly one of path and table, or a format that needs neither, got {' and '.join(given) or 'none'}"
            raise ValueError(msg)
        if self.repartition is not None and self.coalesce is not None:
            msg = "expected at most one of repartition and coalesce, got both"
            raise ValueError(msg)
        return self


class Run(Section):
    """What is measured, and where it goes."""

    name: str | None = None
    label: str | None = None
    report: str | None = None
    metrics: bool = True
    mlflow: bool = True

    @model_validator(mode="after")
    def _something_to_report(self) -> Run:
        if not self.metrics and (self.report or self.label):
            msg = "report and label need metrics: true"
            raise ValueError(msg)
        return self


class Job(Section):
    """A job: source, model, sink."""

    version: Literal[1]
    source: Source
    model: Model
    predict: Predict
    config: Config = Field(default_factory=Config)  # type: ignore[valid-type]
    spark: Spark = Field(default_factory=Spark)
    sink: Sink
    run: Run = Field(default_factory=Run)

    @model_validator(mode="after")
    def _measured(self) -> Job:
        if self.sink.resume is not None and self.predict.key not in (None, self.sink.resume.key):
            msg = "predict.key and sink.resume.key name different columns: leave predict.key out, an error names those of resume"
            raise ValueError(msg)
        for key in ("report", "label"):
            if getattr(self.run, key) is not None and getattr(self.config, "metrics", None) is False:
                msg = f"run.{key} needs measurements, which config.metrics: false switches off: leave one of the two out"
                raise ValueError(msg)
        return self


def parse_job(document: Document) -> Job:
    """Check what a job file says.

    Raises:
        ConfigError: names every wrong key with its path, what was expected, what came, and the nearest right key.
    """
    version = document.values.get("version")
    if version != 1 or isinstance(version, bool):
        came = "it is missing" if version is None else f"got {version!r}"
        msg = f"{document.path}: version: expected 1, the only version of job files that this sparkinfer reads, {came}"
        raise ConfigError(document.hide(msg))
    try:
        return Job.model_validate(dict(document.values))
    except ValidationError as error:
        told = sentences(error, document, _known)
    many = f"{document.path}: {len(told)} things are wrong"
    msg = f"{document.path}: {told[0]}" if len(told) == 1 else "\n  ".join([many, *told])
    raise ConfigError(msg) from None  # pydantic's own words would show values


def _known(way: Sequence[str | int]) -> list[str]:
    """Name the keys that a section has."""
    section: Any = Job
    for part in way:
        section = _section_of(section.model_fields[part].annotation)
    return known_keys(section)


def _section_of(hint: Any) -> type[BaseModel]:
    found = [one for one in (hint, *get_args(hint)) if isinstance(one, type) and issubclass(one, BaseModel)]
    return found[0]
