"""Describe an MLflow model: which backend runs it, what it takes and gives, and whether it may be read at all.

Runs on: driver.

Invariant: a model of the pytorch, tensorflow or keras flavour runs in the native backend or not at all, unless the user says
``flavor="pyfunc"``; nothing that runs code is read, or shipped, unless the user says ``trust_pickle=True``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkinfer.artifacts import WORDS, fingerprint_of, model_file, sniff
from sparkinfer.backends.mlflow_signature import inputs_of, layout_of, outputs_of
from sparkinfer.backends.mlflow_store import Logged, checked_params, fetch, read
from sparkinfer.backends.mlflow_trust import CODE, code_in_pyfunc
from sparkinfer.engine.contracts import ModelPlan, TensorInfo
from sparkinfer.exceptions import ConfigError, ModelLoadError
from sparkinfer.models import TensorFlowModel, TorchModel

if TYPE_CHECKING:
    from sparkinfer.models import MlflowModel

__all__ = ["describe"]

Infos = tuple[TensorInfo, ...]


def describe(model: MlflowModel) -> ModelPlan:
    """Fetch a model and make its plan.

    Raises:
        ModelLoadError: there is no such model, it runs code when it is read, or its backend cannot take it.
        ConfigError: ``params`` do not fit the model.
    """
    folder = fetch(model)
    logged = read(model, folder)
    native: dict[str, Callable[[MlflowModel, Logged, Path], TorchModel | TensorFlowModel]]
    native = {"pytorch": _torch, "tensorflow": _tensorflow, "keras": _keras}
    flavor = next((name for name in native if name in logged.flavors), None)
    if flavor is None or model.flavor == "pyfunc":
        return _pyfunc(model, logged, folder)
    if model.params is not None:
        msg = f"{model}: params go to a pyfunc, but this is a model of the {flavor} flavour, which runs natively: leave params out, or say flavor='pyfunc'"
        raise ConfigError(msg)
    return _native(model, native[flavor](model, logged, folder), logged, flavor)


# --- the native backends


def _native(model: MlflowModel, inner: TorchModel | TensorFlowModel, logged: Logged, flavor: str) -> ModelPlan:
    try:
        plan = inner.describe()
    except ModelLoadError as error:
        conf = logged.flavors[flavor]
        code = (
            f" It was logged with code of its own ({conf['code']!r}), which must be importable here and there." if conf.get("code") else ""
        )
        msg = (
            f"{model} has the {flavor} flavour, which runs natively on driver and workers, and cannot: {error}.{code} To run it as MLflow's "
            "pyfunc does, say flavor='pyfunc'"
        )
        raise ModelLoadError(msg) from error
    told = inputs_of(logged.inputs) if layout_of(logged.inputs) == "tensors" else None
    inputs = _native_inputs(plan, told)
    if told and inputs and _named(logged) and len(told) == len(inputs) == 1:
        inputs = (replace(inputs[0], column=told[0].name),)
    return replace(
        plan,
        label=repr(model),
        inputs=inputs,
        outputs=_native_outputs(plan, outputs_of(logged.outputs) if layout_of(logged.outputs) == "tensors" else None),
    )


def _native_inputs(plan: ModelPlan, told: Infos | None) -> Infos | None:
    """Take MLflow's word where the model itself says nothing; the names are those of the function that is called."""
    if plan.inputs is not None or told is None:
        return plan.inputs
    least, most, known = plan.options.get("forward", (0, None, ()))
    if not least <= len(told) <= (len(told) if most is None else most):
        return None
    if {info.name for info in told} <= set(known) or len(known) < len(told):
        return told
    return tuple(replace(info, name=name) for info, name in zip(told, known, strict=False))


def _native_outputs(plan: ModelPlan, told: Infos | None) -> Infos | None:
    """Take MLflow's word, unless the model's own outputs are several and have other names."""
    if told is None or plan.outputs is None:
        return told or plan.outputs
    fits = len(told) == len(plan.outputs) == 1 or {info.name for info in told} == {info.name for info in plan.outputs}
    return told if fits else plan.outputs


def _torch(model: MlflowModel, logged: Logged, folder: Path) -> TorchModel:
    data = _part(model, folder, logged.flavors["pytorch"].get("model_data", "data"))
    path = next((data / name for name in ("model.pt2", "model.pth") if (data / name).is_file()), data)
    if not model.trust_pickle and path.is_file() and (kind := sniff(path)) in CODE:
        name = path.relative_to(folder).as_posix()
        raise _untrusted(
            model, f"the file {name!r}, {WORDS[kind]}", "mlflow.pytorch.log_model(..., serialization_format='pt2') of MLflow 3"
        )
    return TorchModel(path, trust_pickle=model.trust_pickle, ship=model.ship)


def _tensorflow(model: MlflowModel, logged: Logged, folder: Path) -> TensorFlowModel:
    conf = logged.flavors["tensorflow"]
    if "saved_model_dir" in conf:
        return _saved(model, _part(model, folder, conf["saved_model_dir"]))
    return _saved(model, _keras_file(_part(model, folder, conf.get("data", "data"))))


def _keras(model: MlflowModel, logged: Logged, folder: Path) -> TensorFlowModel:
    return _saved(model, _keras_file(_part(model, folder, logged.flavors["keras"].get("data", "data"))))


def _keras_file(data: Path) -> Path:
    """Find the model in its folder: a ``.keras`` archive, an ``.h5`` file, or a SavedModel directory."""
    return next((data / name for name in ("model.keras", "model.h5", "model") if (data / name).exists()), data)


def _saved(model: MlflowModel, path: Path) -> TensorFlowModel:
    return TensorFlowModel(path, trust_pickle=model.trust_pickle, ship=model.ship)


def _part(model: MlflowModel, folder: Path, name: str) -> Path:
    """Give a part of the model's folder that its settings name."""
    part = (folder / name).resolve()
    if not part.is_relative_to(folder.resolve()) or not part.exists():
        msg = f"{model}: its MLmodel names {name!r}, which is not in {str(folder)!r}: it may have been cut short in a copy"
        raise ModelLoadError(msg)
    return folder / name


# --- pyfunc


def _pyfunc(model: MlflowModel, logged: Logged, folder: Path) -> ModelPlan:
    if "python_function" not in logged.flavors:
        msg = f"{model} has the flavours {', '.join(logged.flavors)}, and none of them can be run here: log it with a pyfunc flavour, or wrap it as PythonModel(load)"
        raise ModelLoadError(msg)
    code = None if model.trust_pickle else code_in_pyfunc(logged, folder)
    if code is not None:
        raise _untrusted(model, code, "scikit-learn in MLflow 3's skops format, transformers with safetensors")
    params = checked_params(model, logged)
    layout = layout_of(logged.inputs)
    file = model_file("model", folder)
    return ModelPlan(
        backend="pyfunc",
        kind="pyfunc",
        fingerprint=fingerprint_of("pyfunc", file.sha256, json.dumps(params, sort_keys=True, default=repr)),
        label=repr(model),
        files=(file,),
        ship=model.ship,
        options={"layout": layout, "named": _named(logged), "params": params, "ragged": layout != "tensors"},
        inputs=inputs_of(logged.inputs),
        outputs=outputs_of(logged.outputs),
    )


def _named(logged: Logged) -> bool:
    return any(spec.get("name") for spec in logged.inputs or ())


def _untrusted(model: MlflowModel, what: str, harmless: str) -> ModelLoadError:
    return ModelLoadError(
        f"{model}: reading this model can run code that comes with it, from {what}. If you trust where the model comes from, say trust_pickle=True; "
        f"or log it in a format that holds no code: {harmless}"
    )
