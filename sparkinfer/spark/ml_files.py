"""How a ``Predictor`` is saved and read back.

Runs on: driver.

Invariant: nothing is unpickled, and no file that runs code is read, unless the reader has said so; files are written and read by Spark alone, so
that a stage may lie wherever a DataFrame may.

::

    path/metadata    one line of JSON: pyspark.ml's own (class, uid, Params), and under "sparkinfer" the model, its files' sha256, what is pickled
    path/pickled     Parquet (name, content): a model in memory, functions; only if there are any
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.ml.util import MLReader, MLWriter

import sparkinfer
from sparkinfer.arguments import parse_inputs
from sparkinfer.artifacts import is_address, local_path, sha256_of
from sparkinfer.exceptions import ModelLoadError
from sparkinfer.pickling import dumps, loads
from sparkinfer.schema import TensorSpec

if TYPE_CHECKING:
    from sparkinfer.spark.ml import Predictor

__all__ = ["PredictorReader", "PredictorWriter", "trusted_pickles"]

_FUNCTIONS = ("preprocess", "preprocessBatch", "preprocessOnDevice", "postprocess")
_PATHS = ("source", "weights", "files", "uri")  # the fields of our models that name files; a uri may be an address too
_trusted: ContextVar[bool] = ContextVar("sparkinfer_trusted_pickles", default=False)


@contextmanager
def trusted_pickles() -> Iterator[None]:
    """Let stages with pickled models and functions be read inside, which runs what they hold: for ``PipelineModel.load``, which takes no argument.

    Example:
        ::

            with si.ml.trusted_pickles():
                pipeline = PipelineModel.load("pipelines/tagger")
    """
    before = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(before)


class PredictorWriter(MLWriter):
    """Saves a stage."""

    def __init__(self, instance: Predictor) -> None:
        """Take the stage."""
        super().__init__()
        self._instance = instance

    def save(self, path: str) -> None:
        """Write it; what is there already is replaced only after ``overwrite()``.

        Raises:
            ConfigError: a function or the model cannot be pickled.
            AnalysisException: Spark's own, where something is there already and ``overwrite()`` is missing.
            ModelLoadError: one of the model's files is missing.
        """
        model = _settled(self._instance.getModel())
        plain = _told(model)
        pickled = {name: getattr(self._instance, name) for name in _FUNCTIONS if getattr(self._instance, name) is not None}
        if model is not None and plain is None:
            pickled["model"] = model
        contents = {name: dumps(value, f"{name} of {self._instance.uid}") for name, value in pickled.items()}
        ours = {
            "version": sparkinfer.__version__,
            "model": plain,
            "files": _files_of(model),
            "pickled": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        }
        self._write("metadata", [(self._metadata(ours),)], "value string", path, "text")
        if contents:
            rows = [(name, bytearray(content)) for name, content in contents.items()]
            self._write("pickled", rows, "name string, content binary", path, "parquet")

    def _write(self, part: str, rows: list[Any], schema: str, path: str, form: str) -> None:
        mode = "overwrite" if self.shouldOverwrite else "error"
        self.sparkSession.createDataFrame(rows, schema).coalesce(1).write.mode(mode).format(form).save(_part(path, part))

    def _metadata(self, ours: dict[str, Any]) -> str:
        """Write what ``pyspark.ml`` reads of every stage; its own writer needs a SparkContext before Spark 4."""
        stage = self._instance
        return json.dumps(
            {
                "class": f"{type(stage).__module__}.{type(stage).__name__}",
                "timestamp": round(time.time() * 1000),
                "sparkVersion": self.sparkSession.version,
                "uid": stage.uid,
                "paramMap": _params_told(stage._paramMap),  # noqa: SLF001 - as pyspark.ml's own writer reads them
                "defaultParamMap": _params_told(stage._defaultParamMap),  # noqa: SLF001
                "sparkinfer": ours,
            },
            separators=(",", ":"),
        )


class PredictorReader(MLReader["Predictor"]):
    """Reads a stage back."""

    def __init__(self, cls: type[Predictor]) -> None:
        """Take the class of the stage."""
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Predictor:
        """Read it.

        Raises:
            ModelLoadError: it holds what runs code when it is read, and nobody said that it is trusted; it was changed; or it is of a newer version.
        """
        metadata = json.loads(self.sparkSession.read.text(_part(path, "metadata")).collect()[0][0])
        ours = metadata["sparkinfer"]
        _refuse_untrusted(path, ours)
        pickled = self._pickled(path, ours["pickled"])
        stage = self._cls(**{name: pickled.get(name) for name in _FUNCTIONS})
        stage._resetUid(metadata["uid"])  # noqa: SLF001 - how pyspark.ml's own readers do it
        stage._setDefault(**_params_read(metadata["defaultParamMap"]))  # noqa: SLF001
        stage.setParams(**_params_read(metadata["paramMap"]))
        model = pickled.get("model") or _read(ours["model"], path)
        if model is not None:
            stage.setModel(model)
        stage._files = ours["files"]  # noqa: SLF001 - the two are one
        return stage

    def _pickled(self, path: str, expected: Mapping[str, str]) -> dict[str, Any]:
        if not expected:
            return {}
        contents = {row["name"]: bytes(row["content"]) for row in self.sparkSession.read.parquet(_part(path, "pickled")).collect()}
        for name, sha256 in expected.items():
            if hashlib.sha256(contents.get(name, b"")).hexdigest() != sha256:
                msg = f"{path!r}: the pickled {name} is not the one that was saved here: part of the folder was lost or replaced"
                raise ModelLoadError(msg)
        return {name: loads(contents[name], f"{name} in {path!r}") for name in expected}


def _refuse_untrusted(path: str, ours: Mapping[str, Any]) -> None:
    runs = [f"pickled code ({', '.join(ours['pickled'])})"] if ours["pickled"] else []
    if ours["model"] is not None and ours["model"]["fields"].get("trust_pickle"):
        runs.append("a model that was saved with trust_pickle=True")
    if runs and not _trusted.get():
        msg = (
            f"{path!r} holds {' and '.join(runs)}, which runs when it is read. If you trust who wrote it, load it under "
            "`with sparkinfer.ml.trusted_pickles():`, or one stage alone with Predictor.load(path, trust_pickle=True). A model that is the path of a file "
            "without code (.pt2, SavedModel), without functions, is saved without a pickle"
        )
        raise ModelLoadError(msg)


def _part(path: str, part: str) -> str:
    return f"{str(path).rstrip('/')}/{part}"


# --- the model ----------------------------------------------------------------------------------------------------------


def _is_ours(model: object) -> bool:
    return is_dataclass(model) and type(model).__name__ in sparkinfer.__all__ and getattr(sparkinfer, type(model).__name__) is type(model)


def _settled(model: Any) -> Any:
    """Make a model's paths absolute: a stage is read back in another folder."""
    if not _is_ours(model):
        return model
    found = {name: value for name in _PATHS if (value := getattr(model, name, None)) is not None and not _is_elsewhere(name, value)}
    return replace(model, **{name: _absolute(value) for name, value in found.items()})


def _is_elsewhere(name: str, value: Any) -> bool:
    """Tell a model in a registry: MLflow finds it by its address, from wherever the stage is read back."""
    return name == "uri" and is_address(os.fspath(value))


def _absolute(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_absolute, value))
    return str(local_path(value)) if isinstance(value, (str, os.PathLike)) else value


def _files_of(model: Any) -> dict[str, str]:
    """Hash the files that one of our models names."""
    named = {name: value for name in _PATHS if (value := getattr(model, name, None)) is not None} if _is_ours(model) else {}
    values = [value for name, value in named.items() if not _is_elsewhere(name, value)]
    paths = [path for value in values for path in (value if isinstance(value, tuple) else (value,)) if isinstance(path, str)]
    return {path: sha256_of(path) for path in paths}


def _told(model: Any) -> dict[str, Any] | None:
    """Give a model as JSON, if it is one of ours and all of it is plain."""
    if not _is_ours(model):
        return None
    values = {field.name: getattr(model, field.name) for field in fields(model)}
    try:
        json.dumps(values)
    except TypeError:
        return None
    return {"class": type(model).__name__, "fields": values}


def _read(told: Mapping[str, Any] | None, path: str) -> Any:
    if told is None:
        return None
    kind = getattr(sparkinfer, told["class"]) if told["class"] in sparkinfer.__all__ else None
    if kind is None or not hasattr(kind, "describe"):
        msg = f"{path!r} holds a {told['class']}, which sparkinfer {sparkinfer.__version__} does not know: was it saved by a newer version?"
        raise ModelLoadError(msg)
    return kind(**told["fields"])


# --- Params -------------------------------------------------------------------------------------------------------------


def _params_told(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {param.name: _inputs_told(value) if param.name == "inputs" else value for param, value in values.items()}


def _params_read(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _inputs_read(value) if name == "inputs" else value for name, value in told.items()}


def _inputs_told(inputs: Any) -> dict[str, Any] | None:
    """Give ``inputs=`` as JSON, which knows neither tuples nor a TensorSpec."""
    if inputs is None:
        return None
    if isinstance(inputs, Mapping):
        return {"named": {name: _column_told(column) for name, column in inputs.items()}}
    if parse_inputs(inputs)[0] == "single":
        return {"single": _column_told(inputs)}
    return {"positional": [_column_told(column) for column in inputs]}


def _inputs_read(told: Mapping[str, Any] | None) -> Any:
    if told is None:
        return None
    ((style, value),) = told.items()
    if style == "named":
        return {name: _column_read(column) for name, column in value.items()}
    return _column_read(value) if style == "single" else [_column_read(column) for column in value]


def _column_told(column: Any) -> Any:
    if isinstance(column, str):
        return column
    name, spec = column
    values = asdict(spec)
    if isinstance(spec.pad, bytes):
        values["pad"] = {"hex": spec.pad.hex()}
    return [name, values]


def _column_read(told: Any) -> Any:
    if isinstance(told, str):
        return told
    name, values = told
    if isinstance(values["pad"], Mapping):
        values = {**values, "pad": bytes.fromhex(values["pad"]["hex"])}
    return name, TensorSpec(**values)
