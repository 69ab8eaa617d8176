"""Score a Spark DataFrame with a PyTorch or a TensorFlow model.

Importing this package imports nothing heavy, starts nothing and changes nothing: each name below is fetched when it is first
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkinfer.autologging import autolog
    from sparkinfer.config import InferenceConfig
    from sparkinfer.exceptions import (
        BadRowsError,
        ConfigError,
        LoaderProcessError,
        MissingDependencyError,
        ModelLoadError,
        OutputError,
        PredictError,
        PreprocessError,
        ReadError,
        SchemaError,
        SparkInferError,
        SparkInferWarning,
    )
    from sparkinfer.local import predict_local
    from sparkinfer.models import MlflowModel, PythonModel, TensorFlowModel, TorchModel
    from sparkinfer.run import InferenceRun, inference_run, last_run
    from sparkinfer.schema import TensorSpec
    from sparkinfer.spark.bad_rows import errors
    from sparkinfer.spark.files import FileSource, read_files
    from sparkinfer.spark.library import ship_library
    from sparkinfer.spark.predict import predict, preview
    from sparkinfer.spark.sql import register
    from sparkinfer.spark.udf import predict_udf

__all__ = [
    "BadRowsError",
    "ConfigError",
    "FileSource",
    "InferenceConfig",
    "InferenceRun",
    "LoaderProcessError",
    "MissingDependencyError",
    "MlflowModel",
    "ModelLoadError",
    "OutputError",
    "PredictError",
    "PreprocessError",
    "PythonModel",
    "ReadError",
    "SchemaError",
    "SparkInferError",
    "SparkInferWarning",
    "TensorFlowModel",
    "TensorSpec",
    "TorchModel",
    "autolog",
    "errors",
    "inference_run",
    "last_run",
    "predict",
    "predict_local",
    "predict_udf",
    "preview",
    "read_files",
    "register",
    "ship_library",
]

__version__ = "0.1.0"

_HOMES = {
    "FileSource": "sparkinfer.spark.files",
    "InferenceConfig": "sparkinfer.config",
    "InferenceRun": "sparkinfer.run",
    "MlflowModel": "sparkinfer.models",
    "PythonModel": "sparkinfer.models",
    "TensorFlowModel": "sparkinfer.models",
    "TensorSpec": "sparkinfer.schema",
    "TorchModel": "sparkinfer.models",
    "autolog": "sparkinfer.autologging",
    "errors": "sparkinfer.spark.bad_rows",
    "inference_run": "sparkinfer.run",
    "last_run": "sparkinfer.run",
    "predict": "sparkinfer.spark.predict",
    "predict_local": "sparkinfer.local",
    "predict_udf": "sparkinfer.spark.udf",
    "preview": "sparkinfer.spark.predict",
    "read_files": "sparkinfer.spark.files",
    "register": "sparkinfer.spark.sql",
    "ship_library": "sparkinfer.spark.library",
}
_MODULES = ("ml",)  # si.ml.Predictor: fetched likewise, since it brings pyspark


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home, or a public module, on first use (PEP 562)."""
    if name in _MODULES:
        return import_module(f"sparkinfer.{name}")
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_HOMES.get(name, "sparkinfer.exceptions")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, *_MODULES, "__version__"])
