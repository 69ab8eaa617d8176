"""Models as frozen values: where a model comes from, and how it is to be read.

Runs on: driver.

Invariant: making one of these reads nothing; ``describe()`` reads, checks and fails, before any job. This module imports no
framework: the backend of a model is imported when the model is described.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

from sparkinfer.artifacts import fingerprint_of, sha256_of, without_userinfo
from sparkinfer.engine.contracts import ModelPlan
from sparkinfer.exceptions import ConfigError, MissingDependencyError, nearest
from sparkinfer.pickling import dumps

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["MlModel", "MlflowModel", "PythonModel", "TensorFlowModel", "TorchModel"]

Flavor = Literal["auto", "pyfunc"]
Ship = Literal["auto", "path", "files", "value"]
TorchEngine = Literal["auto", "onnxruntime", "openvino", "compile", "channels_last"]
TensorFlowEngine = Literal["auto", "openvino", "xla"]
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class TorchModel:
    """A PyTorch model. Evaluation mode and ``torch.inference_mode`` are set by the library.

    Attributes:
        source: an ``nn.Module`` (it is not changed); a factory, which is an ``nn.Module`` class or a function without arguments
            that gives a module; or the path of a ``torch.export`` archive (.pt2) or a TorchScript file.
        weights: for a factory: the path of a safetensors file or of a ``state_dict`` written by ``torch.save``. Names and shapes
            are compared with the module's on the driver; on the workers the file is memory-mapped.
        trust_pickle: allow ``source`` to be a file that runs code when it is read, such as a whole module written by
            ``torch.save``.
        sha256: the content that the file (``weights``, or else ``source``) must have, in hex.
        ship: how the bytes reach the workers. ``"path"``: every worker sees the path. ``"files"``: once per session, by Spark.
            ``"value"``: with each task. ``"auto"`` chooses.
        optimize: what runs the model; the answers are compared with the model's own on the driver before. ``None``: the model as it is.
            ``"onnxruntime"``, ``"openvino"``: exported once on the driver, for the CPU. ``"compile"`` (``torch.compile``) and
            ``"channels_last"``: where the model is loaded. ``"auto"``: the first of ONNX Runtime, OpenVINO and channels_last that is
            installed and right, on a CPU; else the model as it is, and a warning says why.
        example_inputs: for ``optimize``: inputs of the model with a leading batch axis, as it gets them after ``preprocess``: an array, a
            tuple in order, or a dict by name. ``None`` takes the shapes that the model or each ``TensorSpec`` declares, or else the
            first rows of the data.

    Raises:
        ConfigError: an argument is none of these.

    Example:
        >>> TorchModel("efficientnet.pt2")
        TorchModel('efficientnet.pt2')
    """

    source: Any
    weights: PathLike | None = field(default=None, kw_only=True)
    trust_pickle: bool = field(default=False, kw_only=True)
    sha256: str | None = field(default=None, kw_only=True)
    ship: Ship = field(default="auto", kw_only=True)
    optimize: TorchEngine | None = field(default=None, kw_only=True)
    example_inputs: Any = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        """Check what can be checked without reading anything."""
        _check_ship(self, self.ship)
        _check_pin(self, self.sha256)
        _check_optimize(self, self.optimize, get_args(TorchEngine), self.example_inputs)
        _check_weights(self, self.weights)

    def __repr__(self) -> str:
        """Give a label that fits into a message, without the module's layers."""
        return _label(self, self.source)

    def describe(self) -> ModelPlan:
        """Read and check the model on the driver.

        Returns:
            The plan that travels to the workers; an unchanged model has the same fingerprint each time.

        Raises:
            ModelLoadError: the file is missing, is of another kind, runs code when read, or does not fit the factory.
            ConfigError: the source is no model, or cannot travel.
            MissingDependencyError: torch is not installed.
        """
        plan: ModelPlan = _backend("torch").describe(self)
        return plan


@dataclass(frozen=True)
class TensorFlowModel:
    """A TensorFlow or Keras model.

    Attributes:
        source: the path of a SavedModel directory, of a ``.keras`` archive or of an ``.h5`` file; or a Keras model.
        signature: which signature of a SavedModel to call; ``None`` takes ``serving_default``, or the only one.
        trust_pickle: allow a ``.keras`` or ``.h5`` file with Lambda layers or other code that runs when it is read, or that reads other files;
            and a SavedModel whose operations run Python, write files or speak to other machines.
        sha256: the content that the file or directory must have, in hex.
        ship: as in ``TorchModel``.
        optimize: as in ``TorchModel``: ``None``, ``"openvino"``, ``"xla"`` (compiled where the model is loaded, anew for each shape), or
            ``"auto"``, which takes OpenVINO, or else XLA.
        example_inputs: as in ``TorchModel``.

    Raises:
        ConfigError: an argument is none of these.

    Example:
        >>> TensorFlowModel("saved_model/", signature="predict")
        TensorFlowModel('saved_model/')
    """

    source: Any
    signature: str | None = field(default=None, kw_only=True)
    trust_pickle: bool = field(default=False, kw_only=True)
    sha256: str | None = field(default=None, kw_only=True)
    ship: Ship = field(default="auto", kw_only=True)
    optimize: TensorFlowEngine | None = field(default=None, kw_only=True)
    example_inputs: Any = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        """Check what can be checked without reading anything."""
        _check_ship(self, self.ship)
        _check_pin(self, self.sha256)
        _check_optimize(self, self.optimize, get_args(TensorFlowEngine), self.example_inputs)

    def __repr__(self) -> str:
        """Give a label that fits into a message, without the model's layers."""
        return _label(self, self.source)

    def describe(self) -> ModelPlan:
        """Read and check the model on the driver.

        Returns:
            The plan that travels to the workers; an unchanged model has the same fingerprint each time.

        Raises:
            ModelLoadError: the path is missing, is of another kind, or has no such signature.
            ConfigError: the source is no model, or cannot travel.
            MissingDependencyError: TensorFlow is not installed.
        """
        plan: ModelPlan = _backend("tensorflow").describe(self)
        return plan


@dataclass(frozen=True)
class PythonModel:
    """Any model, by a function that loads it on the worker.

    Attributes:
        load: takes no arguments and gives the model: a function of arrays, or an object with ``predict``. It is called with
            NumPy arrays ``(rows, *shape)``: one input as one argument, a list of inputs as positional arguments, named inputs
            by keyword. An object's ``close()`` is called when the worker lets go of it.
        files: paths that ``load`` reads on the workers (each must see them). They are not shipped: their contents count in the
            fingerprint, so that a changed file is a new model.
        version: anything that tells this model from an earlier one that looks alike.

    Raises:
        ConfigError: ``load`` is no function without arguments.

    Example:
        >>> PythonModel(lambda: abs)
        PythonModel(<lambda>)
    """

    load: Callable[[], Any]
    files: Sequence[PathLike] = field(default=(), kw_only=True)
    version: str | int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check that ``load`` can be called as it will be."""
        files = (self.files,) if isinstance(self.files, (str, os.PathLike)) else tuple(self.files)
        object.__setattr__(self, "files", files)
        _check_loader(self, self.load)

    def __repr__(self) -> str:
        """Give a label that fits into a message."""
        return _label(self, self.load)

    def describe(self) -> ModelPlan:
        """Pickle the loading function, and hash it with the files that it reads.

        Returns:
            The plan that travels to the workers.

        Raises:
            ConfigError: the function, or what it closes over, cannot travel.
            ModelLoadError: one of ``files`` is missing.
        """
        payload = dumps(self.load, f"the loader of {self}")
        fingerprint = fingerprint_of("python", payload, repr(self.version), *map(sha256_of, self.files))
        return ModelPlan(backend="numpy", kind="python", fingerprint=fingerprint, label=repr(self), payload=payload)


@dataclass(frozen=True)
class MlflowModel:
    """A model as MLflow keeps it, by its URI.

    The pytorch, tensorflow and keras flavours run in the native backends, as ``TorchModel`` and ``TensorFlowModel`` do; every other
    flavour (scikit-learn, transformers, ...) runs as MLflow's pyfunc. MLflow is asked on the driver alone; a worker loads the files once
    and starts no run.

    What a pyfunc gets is built by its MLflow signature: columns make a pandas DataFrame of the signature's names and types, tensors an
    array, or a dict of arrays where they have names. Without a signature, a single input is handed over as an array, and several or named
    ones as a DataFrame. Under ``on_null="pass"`` a null arrives as ``None`` in text and bytes, as NaN in floats and as NaT in times.

    Attributes:
        uri: ``models:/name/version``, ``models:/name@alias``, ``models:/m-id`` (MLflow 3), ``runs:/id/path``, the address of an artifact,
            or a path. An alias is looked up each time the model is described, which ``predict`` does.
        params: for a pyfunc whose signature has a params schema; checked against it on the driver.
        trust_pickle: allow a model that runs code of its own when it is read, as most of MLflow's formats do. Without it only
            torch.export archives, TorchScript, SavedModels, ``.keras`` and ``.h5`` files without Lambda layers, scikit-learn models in
            MLflow 3's skops format, and transformers with safetensors are read.
        flavor: ``"auto"``, or ``"pyfunc"`` to run also a pytorch, tensorflow or keras model as MLflow's pyfunc does.
        ship: as in ``TorchModel``.

    Raises:
        ConfigError: an argument is none of these.

    Example:
        >>> MlflowModel("models:/tagger@champion")
        MlflowModel('models:/tagger@champion')
    """

    uri: PathLike
    params: Mapping[str, Any] | None = field(default=None, kw_only=True)
    trust_pickle: bool = field(default=False, kw_only=True)
    flavor: Flavor = field(default="auto", kw_only=True)
    ship: Ship = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        """Check what can be checked without asking MLflow."""
        _check_mlflow(self, self.uri, self.params, self.flavor)
        _check_ship(self, self.ship)

    def __repr__(self) -> str:
        """Give a label that fits into a message."""
        return _label(self, self.uri)

    def describe(self) -> ModelPlan:
        """Fetch the model, read what MLflow says of it, and choose the backend.

        Returns:
            The plan that travels to the workers; the same content under another URI has the same fingerprint.

        Raises:
            ModelLoadError: there is no such model, it runs code when it is read, or its backend cannot take it.
            ConfigError: ``params`` do not fit the model.
            MissingDependencyError: MLflow, or the model's framework, is not installed.
        """
        plan: ModelPlan = _backend("mlflow_describe", package="mlflow").describe(self)
        return plan


MlModel = TorchModel | TensorFlowModel | MlflowModel | PythonModel


def required_arguments(function: Callable[..., Any]) -> list[str]:
    """Name the arguments without which ``function`` cannot be called; none where Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C, without a signature
        return []
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in free]


def _check_ship(model: object, ship: object) -> None:
    if ship not in get_args(Ship):
        msg = f"{model}: ship is {ship!r}. {nearest(str(ship), get_args(Ship))}"
        raise ConfigError(msg)


def _check_optimize(model: object, optimize: object, engines: tuple[str, ...], example_inputs: object) -> None:
    if optimize is not None and optimize not in engines:
        msg = f"{model}: optimize is {optimize!r}, expected None or an engine. {nearest(str(optimize), engines)}"
        raise ConfigError(msg)
    parts: Any = list(example_inputs.values()) if isinstance(example_inputs, Mapping) else example_inputs
    parts = parts if isinstance(parts, (list, tuple)) else [parts]
    if example_inputs is not None and not (parts and all(getattr(part, "ndim", 0) and len(part) for part in parts)):
        msg = (
            f"{model}: example_inputs is {type(example_inputs).__name__}, expected an array (rows, *shape) with at least one row, a tuple of them in "
            "order, or a dict of them by name"
        )
        raise ConfigError(msg)


def _check_pin(model: object, sha256: object) -> None:
    if sha256 is not None and not (isinstance(sha256, str) and re.fullmatch("[0-9a-fA-F]{64}", sha256)):
        msg = f"{model}: sha256 is {sha256!r}, expected 64 hex digits"
        raise ConfigError(msg)


def _check_mlflow(model: object, uri: object, params: object, flavor: object) -> None:
    if not isinstance(uri, (str, os.PathLike)) or not os.fspath(uri):
        msg = f"uri is {uri!r}, expected an MLflow URI such as 'models:/name@alias' or 'runs:/id/model', or a path"
        raise ConfigError(msg)
    if params is not None and not isinstance(params, Mapping):
        msg = f"{model}: params is {params!r}, expected a dict of names and values"
        raise ConfigError(msg)
    if flavor not in get_args(Flavor):
        msg = f"{model}: flavor is {flavor!r}, expected 'auto' or 'pyfunc'"
        raise ConfigError(msg)


def _check_weights(model: object, weights: object) -> None:
    if weights is not None and not isinstance(weights, (str, os.PathLike)):
        msg = (
            f"{model}: weights is {type(weights).__name__}, expected the path of a safetensors or state_dict file. Load weights that are in "
            "memory into the module, and give the module"
        )
        raise ConfigError(msg)


def _check_loader(model: object, load: object) -> None:
    if not callable(load):
        msg = f"load is {type(load).__name__}, expected a loading function (loader) without arguments: PythonModel(lambda: ...)"
        raise ConfigError(msg)
    if needed := required_arguments(load):
        msg = (
            f"{model}: load is called without arguments, but {_name(load)} needs {', '.join(map(repr, needed))}. Is it the model itself? "
            "Give a loading function (loader): PythonModel(lambda: ...)"
        )
        raise ConfigError(msg)


def _label(model: object, source: object) -> str:
    shown = repr(without_userinfo(str(os.fspath(source)))) if isinstance(source, (str, os.PathLike)) else _name(source)
    return f"{type(model).__name__}({shown})"


def _name(value: object) -> str:
    return str(getattr(value, "__name__", type(value).__name__))


def _backend(name: str, package: str | None = None) -> ModuleType:
    package = package or name
    try:
        return import_module(f"sparkinfer.backends.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        msg = f"the package {package!r} is not installed here: pip install 'sparkinfer[{package}]'"
        raise MissingDependencyError(msg) from error
