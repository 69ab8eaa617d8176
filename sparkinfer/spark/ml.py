"""``Predictor``: a model as a stage of a ``pyspark.ml`` pipeline.

Runs on: driver.

Invariant: a stage scores as ``predict`` does with the same arguments; what is plain (names, types, settings) is a ``Param``, the model and the
functions are attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.ml import Transformer
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql.types import StructField, StructType

from sparkinfer.arguments import check_columns, check_output_names, column_names, parse_inputs, parse_outputs
from sparkinfer.artifacts import sha256_of
from sparkinfer.config import InferenceConfig
from sparkinfer.defaults import default_inputs, default_outputs
from sparkinfer.engine.isolate import ERROR_TYPE
from sparkinfer.exceptions import ConfigError, ModelLoadError, nearest
from sparkinfer.planning import Functions, describe, refuse_unsaid
from sparkinfer.schema import to_ddl
from sparkinfer.spark.ml_files import PredictorReader, PredictorWriter, trusted_pickles
from sparkinfer.spark.predict import predict
from sparkinfer.spark.types import to_spark
from sparkinfer.spark.udf import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkinfer.engine.contracts import Describable

__all__ = ["Predictor"]


class Predictor(Transformer, MLWritable, MLReadable["Predictor"]):
    """Scores a DataFrame with a model, as a stage of a pipeline.

    Args:
        model: ``TorchModel``, ``TensorFlowModel``, ``MlflowModel`` or ``PythonModel``.
        preprocess: as in ``predict``, like the three that follow.
        preprocessBatch: takes the columns of a batch.
        preprocessOnDevice: takes the inputs as tensors on the model's device.
        postprocess: takes what the model gave.
        **params: ``predict``'s other keywords (but ``scan`` and ``resource_profile``) and the settings of ``InferenceConfig``, as Params in
            pyspark.ml's spelling: ``inputs``, ``outputs``, ``keep``, ``onNull``, ``onError``, ``errorColumn``, ``key``, ``road``, ``batchSize``,
            ``numWorkers``, ... Each has a setter and a getter, and ``explainParams()`` lists them. A model with a signature needs neither
            ``inputs`` nor ``outputs``.

    A stage can be saved, alone or in a pipeline: Params as text, a model that is a path as that path with its sha256. A model in memory and
    functions are pickled beside them, and are read back only with ``trust_pickle=True`` or under ``trusted_pickles()``.

    Raises:
        ConfigError: there is no such Param, or a value is wrong.

    Example:
        ::

            tagger = si.ml.Predictor(si.TorchModel("tagger.pt2"), inputs="features", outputs="label long", batchSize=256)
            Pipeline(stages=[VectorAssembler(inputCols=["a", "b"], outputCol="features"), tagger]).fit(df).transform(df)
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Give a Param, its setter or its getter: they are made below, one for each keyword."""

    def __init__(
        self,
        model: Describable | None = None,
        *,
        preprocess: Callable[..., Any] | None = None,
        preprocessBatch: Callable[..., Any] | None = None,  # noqa: N803 - pyspark.ml's spelling
        preprocessOnDevice: Callable[..., Any] | None = None,  # noqa: N803
        postprocess: Callable[..., Any] | None = None,
        **params: Any,
    ) -> None:
        """Make a stage."""
        super().__init__()
        self.preprocess = preprocess
        self.preprocessBatch = preprocessBatch
        self.preprocessOnDevice = preprocessOnDevice
        self.postprocess = postprocess
        self._model = model
        self._files: Mapping[str, str] = {}
        self._setDefault(**_DEFAULTS)
        self.setParams(**params)

    def setParams(self, **params: Any) -> Predictor:  # noqa: N802 - pyspark.ml's spelling
        """Set several Params by name.

        Raises:
            ConfigError: there is no such Param (the nearest right one is told), or a value is wrong.
        """
        for name, value in params.items():
            if not self.hasParam(name):
                msg = f"{name!r} is no Param of Predictor. {nearest(name, _PARAMS)}"
                raise ConfigError(msg)
            self._set(**{name: value})
        return self

    def setModel(self, model: Describable) -> Predictor:  # noqa: N802
        """Take another model, such as the same one in another place."""
        self._model = model
        self._files = {}
        return self

    def getModel(self) -> Describable | None:  # noqa: N802
        """Give the model."""
        return self._model

    def transformSchema(self, schema: StructType) -> StructType:  # noqa: N802
        """Give the columns that ``transform`` would give, without a DataFrame; the model is read only for inputs or outputs that are not set.

        Raises:
            ConfigError: inputs or outputs is not set, and the model does not tell them.
            SchemaError: a column is not there, or an output has the name of a kept one.
        """
        inputs, outputs, keep = (self.getOrDefault(name) for name in ("inputs", "outputs", "keep"))
        functions = Functions(
            preprocess=self.preprocess,
            preprocess_batch=self.preprocessBatch,
            preprocess_on_device=self.preprocessOnDevice,
            postprocess=self.postprocess,
        )
        refuse_unsaid(inputs, outputs, functions)
        described = describe(self._chosen()) if inputs is None or outputs is None else None
        outputs = parse_outputs(outputs) if outputs is not None or described is None else default_outputs(described)
        _, bindings = parse_inputs(inputs) if inputs is not None or described is None else default_inputs(described, schema.names)
        names = schema.names if keep is None else keep
        check_columns([binding.column for binding in bindings], schema.names, "inputs")
        check_columns(names, schema.names, "keep")
        error_column = self.getOrDefault("errorColumn") if self.getOrDefault("onError") == "null" else None
        check_output_names(outputs, error_column, names)
        added = [StructField(column.name, to_spark(column.type)) for column in outputs]
        if error_column is not None:
            added.append(StructField(error_column, to_spark(ERROR_TYPE)))
        return StructType([*(schema[name] for name in names), *added])

    def write(self) -> PredictorWriter:
        """Give the writer: ``.overwrite()``, ``.save(path)``."""
        return PredictorWriter(self)

    @classmethod
    def read(cls) -> PredictorReader:
        """Give the reader: ``.load(path)``."""
        return PredictorReader(cls)

    @classmethod
    def load(cls, path: str, *, trust_pickle: bool = False) -> Predictor:
        """Read a stage that was saved.

        Args:
            path: where it was saved.
            trust_pickle: let pickled models and functions be read, which runs what they hold.

        Raises:
            ModelLoadError: something was pickled, and ``trust_pickle`` is not given; or it is not what was saved.
        """
        with trusted_pickles() if trust_pickle else nullcontext():
            loaded: Predictor = cls.read().load(path)
        return loaded

    def _transform(self, dataset: DataFrame) -> DataFrame:
        model = self._chosen()
        self._check_files()
        return predict(
            dataset,
            model,
            preprocess=self.preprocess,
            preprocess_batch=self.preprocessBatch,
            preprocess_on_device=self.preprocessOnDevice,
            postprocess=self.postprocess,
            config=InferenceConfig(**{name: self.getOrDefault(_camel(name)) for name in _SETTINGS}),
            **{name: self.getOrDefault(_camel(name)) for name in _ARGUMENTS},
        )

    def _chosen(self) -> Describable:
        if self._model is None:
            msg = f"{self.uid} has no model: Predictor(model, ...) or setModel(model)"
            raise ConfigError(msg)
        return self._model

    def _check_files(self) -> None:
        """Compare the files of a stage that was saved with what they held then; a model that was set since is not compared."""
        for path, sha256 in self._files.items():
            if sha256_of(path) != sha256:
                msg = (
                    f"{path!r} is another file than when {self.uid} was saved (sha256 {sha256_of(path)}, then {sha256}): bring the old one back, or "
                    "take the new one with setModel(...) and save the stage again"
                )
                raise ModelLoadError(msg)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _read_inputs(value: Any) -> Any:
    if value is not None:
        parse_inputs(value)
    return value


def _read_outputs(value: Any) -> str | None:
    if value is None:
        return None
    columns = parse_outputs(value)
    return value if isinstance(value, str) else ", ".join(f"{quoted(column.name)} {to_ddl(column.type)}" for column in columns)


def _read_names(argument: str, value: Any) -> list[str]:
    return list(column_names(value, argument))


def _read_setting(name: str, value: Any) -> Any:
    InferenceConfig(**{name: value})
    return value


_ARGUMENTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "inputs": (
        "a column, a list of columns, or {model input: column}; each may come with a TensorSpec; the model's own, if it is not set",
        _read_inputs,
    ),
    "outputs": ("DDL of the columns that are added, such as 'label string, score float'; the model's own, if it is not set", _read_outputs),
    "keep": ("the columns that come back beside them; all, if it is not set", partial(_read_names, "keep")),
    "on_null": ("'raise', 'null' (a null prediction) or 'pass' (the model gets it)", TypeConverters.toString),
    "on_error": ("'raise' or 'null' (a bad row is null, and errorColumn says why)", TypeConverters.toString),
    "error_column": ("the column for reasons of bad rows", TypeConverters.toString),
    "key": ("columns whose values an error names beside the row", partial(_read_names, "key")),
    "road": ("'map', 'column' or 'auto'", TypeConverters.toString),
}
_SETTINGS = tuple(setting.name for setting in fields(InferenceConfig))
_PARAMS = tuple(map(_camel, (*_ARGUMENTS, *_SETTINGS)))
_DEFAULTS = {
    "inputs": None,
    "outputs": None,
    "keep": None,
    "onNull": "raise",
    "onError": "raise",
    "errorColumn": "error",
    "key": None,
    "road": "auto",
    **{_camel(setting.name): setting.default for setting in fields(InferenceConfig)},
}


def _declare(name: str, told: str, convert: Callable[[Any], Any]) -> None:
    """Give ``Predictor`` a Param with its setter and its getter."""
    param = _camel(name)

    def set_it(self: Predictor, value: Any) -> Predictor:
        return self.setParams(**{param: value})

    def get_it(self: Predictor) -> Any:
        return self.getOrDefault(param)

    set_it.__doc__ = f"Set ``{param}``: {told}."
    get_it.__doc__ = f"Give ``{param}``: {told}."
    setattr(Predictor, param, Param(Params._dummy(), param, told, convert))  # noqa: SLF001 - how every Param of pyspark.ml is declared
    for prefix, accessor in (("set", set_it), ("get", get_it)):
        accessor.__name__ = f"{prefix}{param[0].upper()}{param[1:]}"
        accessor.__qualname__ = f"Predictor.{accessor.__name__}"
        setattr(Predictor, accessor.__name__, accessor)


for _name, (_told, _convert) in _ARGUMENTS.items():
    _declare(_name, _told, _convert)
for _name in _SETTINGS:
    _declare(_name, f"as {_name} of InferenceConfig", partial(_read_setting, _name))

Predictor.__module__ = "sparkinfer.ml"  # saved pipelines hold the name: it is the public one
