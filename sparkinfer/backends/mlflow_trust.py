"""What in an MLflow model could run code when it is read, found without reading it in.

Runs on: driver (standard library only).

Invariant: what is not known to be harmless counts as code; a model that passes holds no pickle, no Python file, and no settings by which
MLflow's own loader would take types or code from the model itself, or read anything that lies elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkinfer.artifacts import files_under, sniff

if TYPE_CHECKING:
    from sparkinfer.backends.mlflow_store import Logged

__all__ = ["CODE", "code_in_pyfunc"]

CODE = ("pickle", "torch_save", "torch_legacy")
"""The kinds of ``artifacts.sniff`` that run code when they are read."""

_ELSEWHERE = {"auto_map", "custom_pipelines", "base_model_name_or_path"}
"""The keys of transformers' JSON files by which it reads code or weights that are named there."""

_ONLY_DATA = (
    ".json",
    ".txt",
    ".yaml",
    ".yml",
    ".md",
    ".safetensors",
    ".skops",
    ".model",
    ".jinja",
    "LICENSE",
    "MLmodel",
    "registered_model_meta",
)


def code_in_pyfunc(logged: Logged, folder: Path) -> str | None:
    """Say what could run code when MLflow loads this model as a pyfunc; ``None`` if it is known that nothing would."""
    conf = logged.flavors["python_function"]
    loader = str(conf.get("loader_module"))
    check = {"mlflow.sklearn": _in_sklearn, "mlflow.transformers": _in_transformers}.get(loader)
    if conf.get("code") or conf.get("model_code_path"):
        return f"its own Python code, {conf.get('code') or conf.get('model_code_path')!r}"
    found = _file_with_code(folder)
    if found is not None:
        return f"the file {found!r}"
    if check is None:
        return f"what {loader} reads"
    # "data" would make the loader look into a folder, with settings of its own
    return "its data folder" if conf.get("data") else check(logged.flavors, folder)


def _file_with_code(folder: Path) -> str | None:
    """Name the first file that is not known to be data alone."""
    for path in files_under(folder):
        name = path.relative_to(folder).as_posix()
        if not name.endswith(_ONLY_DATA) or (name != "MLmodel" and path.name == "MLmodel") or sniff(path) in CODE:
            return name
    return None


def _elsewhere(folder: Path, names: Mapping[str, object]) -> str | None:
    """Name the first setting whose path is not inside the folder, where links lead to it too."""
    home = folder.resolve()
    outside = [setting for setting, name in names.items() if not (folder / str(name)).resolve().is_relative_to(home)]
    return f"what lies elsewhere ({outside[0]}: {names[outside[0]]})" if outside else None


def _in_sklearn(flavors: Mapping[str, Any], folder: Path) -> str | None:
    if (found := _elsewhere(folder, {"model_path": flavors["python_function"].get("model_path", "")})) is not None:
        return found
    conf = flavors.get("sklearn", {})
    if conf.get("serialization_format") != "skops":
        return f"scikit-learn's format {conf.get('serialization_format')!r}"
    trusted = conf.get("skops_trusted_types")
    return f"the types that the model itself asks to be trusted, {', '.join(map(str, trusted))}" if trusted else None


def _in_transformers(flavors: Mapping[str, Any], folder: Path) -> str | None:
    conf = flavors.get("transformers", {})
    elsewhere = [name for name in ("source_model_revision", "local_base_model_path", "peft_adaptor") if conf.get(name)]
    if elsewhere:
        return f"weights that lie elsewhere ({elsewhere[0]}: {conf[elsewhere[0]]})"
    named = conf.get("components") or ()
    if isinstance(named, str) or not isinstance(named, Sequence):
        return f"its components, which are no list ({named!r})"
    parts = {f"components[{position}]": Path("components", str(name)) for position, name in enumerate(named)}
    if (found := _elsewhere(folder, {"model_binary": conf.get("model_binary", ""), **parts})) is not None:
        return found
    return _in_json(folder)


def _in_json(folder: Path) -> str | None:
    for path in folder.rglob("adapter_config.json"):  # transformers reads the weights that it names before these
        return f"the file {path.relative_to(folder).as_posix()!r}, an adapter to weights that lie elsewhere"
    for path in folder.rglob("*.json"):
        name = path.relative_to(folder).as_posix()
        try:
            asked = _words(json.loads(path.read_bytes())) & _ELSEWHERE
        except (ValueError, RecursionError):
            return f"the file {name!r}, which is no JSON"
        if asked:
            return f"the code or the weights that {name!r} names in its {asked.pop()}"
    return None


def _words(value: Any) -> set[str]:
    """Collect the keys of a JSON value, at any depth."""
    if isinstance(value, dict):
        return set(value).union(*map(_words, value.values()))
    return set().union(*map(_words, value)) if isinstance(value, list) else set()
