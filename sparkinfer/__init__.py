"""Score a Spark DataFrame with a PyTorch or a TensorFlow model.

Importing this package imports nothing heavy, starts nothing and changes nothing: each name below is fetched when it is first
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkinfer.analysis.diagnosis import Diagnosis
    from sparkinfer.analysis.inspection import ModelInspection
    from sparkinfer.analysis.precision import PrecisionComparison
    from sparkinfer.analysis.tuning import Tuning
    from sparkinfer.autologging import autolog
    from sparkinfer.config import InferenceConfig
    from sparkinfer.diagnosing import diagnose
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
    from sparkinfer.inspecting import compare_precision, inspect_model
    from sparkinfer.local import predict_local
    from sparkinfer.models import MlflowModel, PythonModel, TensorFlowModel, TorchModel
    from sparkinfer.profiles import ProfilePlan
    from sparkinfer.profiling import profile
    from sparkinfer.reporting.profile import Profile
    from sparkinfer.run import InferenceRun, inference_run, last_run
    from sparkinfer.schema import TensorSpec
    from sparkinfer.spark.bad_rows import errors
    from sparkinfer.spark.files import FileSource, read_files
    from sparkinfer.spark.library import ship_library
    from sparkinfer.spark.one_partition import partition_of
    from sparkinfer.spark.predict import predict, preview
    from sparkinfer.spark.resume.score_to import Scored, score_to
    from sparkinfer.spark.sql import register
    from sparkinfer.spark.udf import predict_udf
    from sparkinfer.tuning import tune

__all__ = [
    "BadRowsError",
    "ConfigError",
    "Diagnosis",
    "FileSource",
    "InferenceConfig",
    "InferenceRun",
    "LoaderProcessError",
    "MissingDependencyError",
    "MlflowModel",
    "ModelInspection",
    "ModelLoadError",
    "OutputError",
    "PrecisionComparison",
    "PredictError",
    "PreprocessError",
    "Profile",
    "ProfilePlan",
    "PythonModel",
    "ReadError",
    "SchemaError",
    "Scored",
    "SparkInferError",
    "SparkInferWarning",
    "TensorFlowModel",
    "TensorSpec",
    "TorchModel",
    "Tuning",
    "autolog",
    "compare_precision",
    "diagnose",
    "errors",
    "inference_run",
    "inspect_model",
    "last_run",
    "partition_of",
    "predict",
    "predict_local",
    "predict_udf",
    "preview",
    "profile",
    "read_files",
    "register",
    "score_to",
    "ship_library",
    "tune",
]

__version__ = "0.1.0"

_HOMES = {
    "Diagnosis": "sparkinfer.analysis.diagnosis",
    "FileSource": "sparkinfer.spark.files",
    "InferenceConfig": "sparkinfer.config",
    "InferenceRun": "sparkinfer.run",
    "MlflowModel": "sparkinfer.models",
    "ModelInspection": "sparkinfer.analysis.inspection",
    "PrecisionComparison": "sparkinfer.analysis.precision",
    "Profile": "sparkinfer.reporting.profile",
    "ProfilePlan": "sparkinfer.profiles",
    "PythonModel": "sparkinfer.models",
    "Scored": "sparkinfer.spark.resume.score_to",
    "TensorFlowModel": "sparkinfer.models",
    "TensorSpec": "sparkinfer.schema",
    "TorchModel": "sparkinfer.models",
    "Tuning": "sparkinfer.analysis.tuning",
    "autolog": "sparkinfer.autologging",
    "compare_precision": "sparkinfer.inspecting",
    "diagnose": "sparkinfer.diagnosing",
    "errors": "sparkinfer.spark.bad_rows",
    "inference_run": "sparkinfer.run",
    "inspect_model": "sparkinfer.inspecting",
    "last_run": "sparkinfer.run",
    "partition_of": "sparkinfer.spark.one_partition",
    "predict": "sparkinfer.spark.predict",
    "predict_local": "sparkinfer.local",
    "predict_udf": "sparkinfer.spark.udf",
    "preview": "sparkinfer.spark.predict",
    "profile": "sparkinfer.profiling",
    "read_files": "sparkinfer.spark.files",
    "register": "sparkinfer.spark.sql",
    "score_to": "sparkinfer.spark.resume.score_to",
    "ship_library": "sparkinfer.spark.library",
    "tune": "sparkinfer.tuning",
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
