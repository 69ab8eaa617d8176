"""What in a Keras file or a SavedModel could run code, or reach out of the model, when it is read or called.

Runs on: driver.

Invariant: nothing is built or imported here; what Keras would look up by a name that lies in the file is Keras's own to build models of, or was
registered by the user before. Keras's own ``safe_mode`` is on beside this: it differs between versions (2024 to 2026 saw several ways around it).
"""

from __future__ import annotations

import builtins
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import h5py  # type: ignore[import-untyped]  # it has none
import keras

__all__ = ["code_in_graph", "code_in_keras_file", "config_of"]

_MOST_CONFIG_BYTES = 1 << 27
_PARTS = "activations|applications|constraints|dtype_policies|initializers|layers|losses|metrics|models|ops|optimizers|quantizers|random|regularizers"
_CLASSES = re.compile(rf"keras|keras\.(src\.)?({_PARTS})(\.\w+)*")
_FUNCTIONS = re.compile(r"keras\.(src\.)?(activations|constraints|initializers|losses|metrics|ops|random|regularizers)(\.\w+)*")
_PREPROCESS = re.compile(r"keras\.(src\.)?applications(\.\w+)*\.preprocess_input")
_PLAIN = re.compile(r"__(keras_tensor|tensor|numpy|bytes|ellipsis|slice|tuple|typespec)__")
_READS_ELSEWHERE = (
    "TFSMLayer",
    "TorchModuleWrapper",
    "JaxLayer",
    "FlaxLayer",
)  # each unpickles, or loads a model from a path in its config
_OUTSIDE = re.compile(
    r"(Eager)?PyFunc(Stateless)?|WriteFile|Write\w*Summary|CreateSummary\w*Writer|DebugIdentity.*|.*Rpc.*|.*DataService.*|.*RemoteCall"
)
_SWELLS_TO_BYTES = 1 << 26  # declared tensors of more than this, and of more than this many times the file's size, are no model's
_SWELLS_BY = 20


def config_of(path: Path, kind: str) -> Any:
    """Read the architecture out of a ``.keras`` or ``.h5`` file; ``None`` where an ``.h5`` file holds weights alone.

    Raises:
        ValueError: it is too large, nested too deeply, or no JSON.
    """
    if kind == "keras":
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo("config.json").file_size
            if size > _MOST_CONFIG_BYTES:
                msg = f"its config.json has {size:,} bytes"
                raise ValueError(msg)
            text: Any = archive.read("config.json")
    else:
        with h5py.File(path) as file:
            text = file.attrs.get("model_config")
        if text is None:
            return None
    try:
        return json.loads(text)
    except RecursionError as error:
        msg = "its configuration is nested too deeply"
        raise ValueError(msg) from error


def code_in_keras_file(config: object, path: Path, kind: str) -> str | None:
    """Say what a file holds that could run code, or read other files, when Keras loads it; ``None`` if there is nothing.

    Args:
        config: the file's architecture.
        path: the file.
        kind: ``"keras"`` or ``"hdf5"``.
    """
    whole = {key: value for key, value in config.items() if key != "compile_config"} if isinstance(config, dict) else config
    found = next(_named(whole), None)
    if found is None and kind == "hdf5":
        return _links(path, path.stat().st_size)
    if found is None:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".h5") and found is None:
                    with archive.open(name) as weights:
                        found = _links(weights, archive.getinfo(name).file_size)
    return found


def _named(config: object) -> Iterator[str]:
    """Name what the configurations of layers look up, where that is not for building a model."""
    if isinstance(config, Mapping):
        if isinstance(config.get("class_name"), str):
            yield from _looked_up(config)
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            yield from _named(value)


def _looked_up(config: Mapping[str, Any]) -> Iterator[str]:
    name, module, inner = config["class_name"], config.get("module"), config.get("config")
    wanted = inner if name == "function" else name
    if name in _READS_ELSEWHERE:
        yield f"a {name}, which loads another model"
    elif isinstance(inner, Mapping) and isinstance(inner.get("vocabulary"), str):
        yield f"the vocabulary of a {name}, which is read from the file {inner['vocabulary'][:200]!r}"
    elif _PLAIN.fullmatch(name) or module is None or _is_registered(config, wanted):
        return
    elif not _builds(str(module), str(wanted), function=name == "function"):
        yield f"{str(module)[:100]}.{str(wanted)[:100]}, which is none of Keras's parts of models and not registered here"


def _builds(module: str, name: str, *, function: bool) -> bool:
    """Tell whether a name in a module is one that a model is built of; Keras finds functions under a class's keys too."""
    if function and module == "builtins":  # how Keras spells its own functions; older versions look into Python's too
        return not hasattr(builtins, name) or hasattr(keras.ops, name)
    if function or not name[:1].isupper():
        return bool(_FUNCTIONS.fullmatch(module) or _PREPROCESS.fullmatch(f"{module}.{name}"))
    return bool(_CLASSES.fullmatch(module)) and ".applications" not in module


def _is_registered(config: Mapping[str, Any], wanted: object) -> bool:
    names = (config.get("registered_name"), wanted)
    return any(isinstance(name, str) and keras.saving.get_registered_object(name) is not None for name in names)


def _links(path: Path | IO[bytes], size: int) -> str | None:
    """Look for values that lie outside of an HDF5 file, and for tensors that it only declares."""
    found: list[str] = []
    declared = 0

    def look(name: str, link: object) -> None:
        nonlocal declared
        if isinstance(link, h5py.ExternalLink):
            found.append(f"a link to another file, {str(link.filename)[:200]!r}")
        elif isinstance(link, h5py.HardLink) and isinstance(entry := file[name], h5py.Dataset):
            declared += entry.nbytes
            if entry.external or entry.is_virtual:
                found.append(f"{name[:200]!r}, whose values lie in another file")

    with h5py.File(path, "r") as file:
        file.visititems_links(look)
    if not found and declared > max(_SWELLS_TO_BYTES, _SWELLS_BY * size):
        found.append(f"tensors of {declared:,} bytes in {size:,}")
    return found[0] if found else None


def code_in_graph(graph: Any) -> list[str]:
    """Name the operations of a SavedModel's graph that run Python, write files, or speak to other machines.

    Args:
        graph: the ``MetaGraphDef``.
    """
    nodes = [*graph.graph_def.node, *(node for function in graph.graph_def.library.function for node in function.node_def)]
    return sorted({node.op for node in nodes if _OUTSIDE.fullmatch(node.op) or node.attr["output_stream"].s.startswith(b"file:")})
