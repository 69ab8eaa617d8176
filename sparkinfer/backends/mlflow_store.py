"""What MLflow knows of a model: its files on the driver's disk, its flavours, its signature, its params.

Runs on: driver.

Invariant: no run is started and nothing is written to the store; what was fetched stays on the driver's disk until it ends, one folder
for each content, since a session that is made later may still have it shipped.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import mlflow
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.types.schema import ParamSpec

from sparkinfer.artifacts import driver_folder, is_address, local_path, sha256_of, without_userinfo
from sparkinfer.exceptions import ConfigError, ModelLoadError, nearest

if TYPE_CHECKING:
    from sparkinfer.models import MlflowModel

__all__ = ["Logged", "checked_params", "fetch", "read"]

_REGISTERED_META = "registered_model_meta"  # MLflow writes the name and version asked for beside the files: not the model's content
_ALIAS = re.compile(r"models:/+(?P<name>[^/@]+)@(?P<alias>[^/@]+)")
_VERSION = re.compile(r"models:/+(?P<name>[^/@]+)/(?P<version>[0-9]+)")
_LOGGED = re.compile(r"models:/+(?P<id>m-[0-9a-f]{32})")

_fetching = Lock()
_fetched: dict[tuple[object, ...], Path] = {}


@dataclass(frozen=True)
class Logged:
    """What the file ``MLmodel`` says.

    Attributes:
        flavors: each flavour's settings by its name.
        inputs: the signature's inputs, each as MLflow writes it (a dict of ``type``, ``name``, ...); ``None`` without one.
        outputs: likewise.
        params: the specs of the params; ``None`` without a schema.
        model_id: of the logged model, from MLflow 3 on.
    """

    flavors: Mapping[str, Mapping[str, Any]]
    inputs: list[dict[str, Any]] | None
    outputs: list[dict[str, Any]] | None
    params: list[ParamSpec] | None
    model_id: str | None = None


def fetch(model: MlflowModel) -> Path:
    """Bring a model's files to the driver's disk.

    A path is used in place. A registered version, and a logged model of MLflow 3, never change, and are fetched once for this process;
    what ``runs:/`` and other addresses name is fetched each time.

    Raises:
        ModelLoadError: MLflow has no such model, or cannot be reached.
    """
    uri = os.fspath(model.uri)
    if not is_address(uri):
        return local_path(uri)
    try:
        with _fetching:
            uri, key = _resolved(uri)
            if key not in _fetched:
                folder = _download(uri)
                if key is None:
                    return folder
                _fetched[key] = folder
            return _fetched[key]
    except (MlflowException, OSError) as error:
        msg = (
            f"{model}: MLflow gives no model for it ({type(error).__name__}: {_first_line(error)}). The tracking store is "
            f"{mlflow.get_tracking_uri()!r}, the registry {mlflow.get_registry_uri()!r}"
        )
        raise ModelLoadError(without_userinfo(msg)) from (error if without_userinfo(str(error)) == str(error) else None)


def _resolved(uri: str) -> tuple[str, tuple[object, ...] | None]:
    """Give the URI that an alias stands for now, and a key under which the same content can be found again, if it never changes."""
    if found := _LOGGED.fullmatch(uri):
        return uri, (mlflow.get_tracking_uri(), found["id"])
    registry = mlflow.MlflowClient()
    if found := _ALIAS.fullmatch(uri):
        version = registry.get_model_version_by_alias(found["name"], found["alias"])
    elif found := _VERSION.fullmatch(uri):
        version = registry.get_model_version(found["name"], found["version"])
    else:
        return uri, None
    # a registered model that was deleted and made anew counts its versions from 1 again
    key = (mlflow.get_registry_uri(), version.name, version.version, version.creation_timestamp, version.source)
    return f"models:/{version.name}/{version.version}", key


def _download(uri: str) -> Path:
    draft = tempfile.mkdtemp(dir=driver_folder())
    found = Path(download_artifacts(artifact_uri=uri, dst_path=draft))
    (found / _REGISTERED_META).unlink(missing_ok=True)
    target = driver_folder() / sha256_of(found)[:32]
    if not target.exists():
        found.rename(target)
    shutil.rmtree(draft, ignore_errors=True)
    return target


def read(model: MlflowModel, folder: Path) -> Logged:
    """Read the file ``MLmodel``.

    Raises:
        ModelLoadError: there is none, or it cannot be read.
    """
    if not (folder / "MLmodel").is_file():
        msg = f"{model}: there is no file MLmodel in {str(folder)!r}, so this is no MLflow model. Name the folder that log_model or save_model wrote"
        raise ModelLoadError(msg)
    try:
        told = Model.load(str(folder))
        inputs, outputs, params = (getattr(told.signature, side, None) for side in ("inputs", "outputs", "params"))
        return Logged(
            flavors=told.flavors,
            inputs=None if inputs is None else inputs.to_dict(),
            outputs=None if outputs is None else outputs.to_dict(),
            params=None if params is None else list(params.params),
            model_id=getattr(told, "model_id", None),
        )
    except Exception as error:
        msg = f"{model}: MLflow {mlflow.__version__} cannot read {str(folder / 'MLmodel')!r} ({type(error).__name__}: {_first_line(error)})"
        raise ModelLoadError(msg) from error


def checked_params(model: MlflowModel, logged: Logged) -> dict[str, Any] | None:
    """Compare the user's params with the model's schema; gives them as MLflow converts them.

    Raises:
        ConfigError: the model takes none (MLflow would leave them out with a warning), has none of that name, or not of that type.
    """
    if model.params is None:
        return None
    specs = {spec.name: spec for spec in logged.params or ()}
    if not specs:
        msg = (
            f"{model}: params has {', '.join(map(repr, model.params))}, but the model's signature has no params schema. Leave params out, or log the model again "
            "with infer_signature(..., params={...})"
        )
        raise ConfigError(msg)
    given = {}
    for name, value in model.params.items():
        if name not in specs:
            msg = f"{model}: params names {name!r}, which the model does not take. {nearest(str(name), list(specs))}"
            raise ConfigError(msg)
        given[name] = _converted(model, specs[name], value)
    return given


def _converted(model: MlflowModel, spec: ParamSpec, value: Any) -> Any:
    check: Callable[[Any, ParamSpec], Any] = ParamSpec.validate_param_spec
    try:
        return check(value, spec)
    except MlflowException:
        msg = f"{model}: params gives {spec.name!r} a value of type {type(value).__name__}, which does not fit its schema {spec}"
        raise ConfigError(msg) from None  # MLflow's own words show the value, which may be a key


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
