"""Model files made to do harm: none runs code, leads out of its folder, swells, or hangs; each is refused in words, on the driver and by workers."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the TensorFlow backend needs TensorFlow")
pytest.importorskip("torch", reason="the torch backend needs torch")

import h5py
import keras
import tensorflow as tf
import torch

from sparkinfer import TensorFlowModel, TorchModel
from sparkinfer.artifacts import sha256_of, sniff
from sparkinfer.backends.torch_sources import read_weights
from sparkinfer.exceptions import ModelLoadError

# Keras 3.15 saves its variables by a call that NumPy 2 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")


class Marks:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


class Net(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1)


# --- archives


def archive(path: Path, *entries: tuple[str, bytes], packed: bool = False) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as made:
        warnings.simplefilter("ignore")  # of names that come twice
        for name, content in entries:
            made.writestr(name, content)
    return path


def overlapping(path: Path) -> Path:
    """Let two entries of the directory point to the same bytes, as David Fifield's bombs do."""
    archive(path, ("m/data.pkl", b"x" * 1000), ("m/data_pkl", b"x" * 1000))
    content = bytearray(path.read_bytes())
    second = content.rindex(b"PK\x01\x02")
    content[second + 42 : second + 46] = struct.pack("<I", 0)
    first = content.index(b"PK\x03\x04", 4)
    del content[first : content.index(b"PK\x01\x02")]
    end = content.rindex(b"PK\x05\x06")
    content[end + 16 : end + 20] = struct.pack("<I", first)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pt2", ".keras"])
@pytest.mark.parametrize(
    ("entries", "told"),
    [
        pytest.param([("m/data.pkl", b""), ("../../x", b"")], "leads out of the folder", id="parent"),
        pytest.param([("m/data.pkl", b""), ("/etc/x", b"")], "leads out of the folder", id="absolute"),
        pytest.param([("m/data.pkl", b""), ("m\\..\\..\\x", b"")], "leads out of the folder", id="backslashes"),
        pytest.param([("m/data.pkl", b"a"), ("m/data.pkl", b"b")], "there twice", id="twice"),
        pytest.param([("config.json", b"0" * 70_000_000), ("metadata.json", b"")], "would swell", id="bomb"),
    ],
)
def test_an_archive_that_no_framework_writes_is_not_read(tmp_path: Path, suffix: str, entries: list[Any], told: str) -> None:
    """Only its directory is looked at; nothing is unpacked."""
    path = archive(tmp_path / f"evil{suffix}", *entries, packed=True)
    model = TensorFlowModel(path) if suffix == ".keras" else TorchModel(path)
    with pytest.raises(ModelLoadError, match=told):
        model.describe()
    with pytest.raises(ModelLoadError, match=told):
        TorchModel(Net, weights=path).describe()


def test_entries_that_share_their_bytes_are_not_read(tmp_path: Path) -> None:
    """A small file may hold petabytes so."""
    with pytest.raises(ModelLoadError, match="share their bytes"):
        sniff(overlapping(tmp_path / "evil.pt"))


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    """Opening it would wait for ever."""
    os.mkfifo(tmp_path / "model.pt")
    with pytest.raises(ModelLoadError, match="neither a file nor a directory"):
        TorchModel(tmp_path / "model.pt").describe()


# --- PyTorch


@pytest.mark.parametrize("way", ["zip", "legacy", "plain pickle", "tar"])
def test_no_pickle_is_read_on_the_driver_or_on_a_worker(tmp_path: Path, way: str) -> None:
    """As a source, as weights, and where a file was exchanged after the driver saw it."""
    mark, path = tmp_path / "mark", tmp_path / "evil.pt"
    if way == "plain pickle":
        path.write_bytes(pickle.dumps({"w": Marks(mark)}))
    elif way == "tar":
        import tarfile

        with tarfile.open(path, "w") as made:
            for name in ("storages", "tensors", "pickle"):
                content = pickle.dumps(Marks(mark))
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                made.addfile(entry, io.BytesIO(content))
    else:
        torch.save({"w": Marks(mark)}, path, _use_new_zipfile_serialization=way == "zip")
    for model in (TorchModel(path), TorchModel(Net, weights=path)):
        with pytest.raises(ModelLoadError):
            model.describe()
    for source in (str(path), path.read_bytes()):  # as a worker does
        with pytest.raises(ModelLoadError):
            read_weights(source)
    assert not mark.exists()


def header(length: int, told: dict[str, Any]) -> bytes:
    text = json.dumps(told).encode()
    return struct.pack("<Q", length or len(text)) + text


LARGE = {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
WRAPS = {"w": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 16]}}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(header(2**63, LARGE), id="endless header"),
        pytest.param(header(2**32, LARGE) + b"\0" * 16, id="longer than the file"),
        pytest.param(header(0, LARGE) + b"\0" * 16, id="terabytes"),
        pytest.param(header(0, WRAPS) + b"\0" * 16, id="sizes that wrap around"),
        pytest.param(header(0, {"w": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}) + b"\0" * 16, id="backwards"),
        pytest.param(header(0, {"w": []}) + b"\0" * 16, id="no tensors"),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path, content: bytes) -> None:
    """Before any room is made for what it claims."""
    path = tmp_path / "evil.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError):
        TorchModel(Net, weights=path).describe()
    with pytest.raises(ModelLoadError):
        read_weights(content)


# --- pins


@pytest.mark.parametrize("suffix", [".pt", ".pt2", ".keras", ".h5", "", ".safetensors"])
def test_a_wrong_pin_is_told_before_anything_looks_into_the_file(tmp_path: Path, suffix: str) -> None:
    """A file that no reader could take is refused for its hash, not for what it is; so is a directory."""
    path = tmp_path / f"evil{suffix}"
    path.write_bytes(b"PK\x03\x04 no zip") if suffix else path.mkdir()
    pin = {"sha256": "0" * 64}
    models = (
        [TorchModel(path, **pin), TorchModel(Net, weights=path, **pin), TensorFlowModel(path, **pin)]
        if suffix
        else [TensorFlowModel(path, **pin)]
    )
    for model in models:
        with pytest.raises(ModelLoadError, match="was asked for: it is another file"):
            model.describe()


def test_a_hash_is_not_remembered_for_another_content_of_the_same_size_and_time(tmp_path: Path) -> None:
    """Anybody can set a modification time; the inode's own time tells."""
    path = tmp_path / "weights.pt"
    path.write_bytes(b"a" * 100)
    before, status = sha256_of(path), path.stat()
    path.write_bytes(b"b" * 100)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert sha256_of(path) != before


# --- Keras


def small() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense"), keras.layers.Activation("relu", name="act")])


def keras_file(path: Path, change: Callable[[dict[str, Any]], None], *, weights: Callable[[h5py.File], None] | None = None) -> Path:
    """Save a model, its configuration and its weights changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small().save(path)
    if path.suffix == ".h5":
        with h5py.File(path, "a") as file:
            config = json.loads(file.attrs["model_config"])
            change(config)
            file.attrs["model_config"] = json.dumps(config)
            if weights:
                weights(file)
        return path
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    config = json.loads(entries["config.json"])
    change(config)
    entries["config.json"] = json.dumps(config).encode()
    if weights:
        buffer = io.BytesIO(entries["model.weights.h5"])
        with h5py.File(buffer, "a") as file:
            weights(file)
        entries["model.weights.h5"] = buffer.getvalue()
    return archive(path, *entries.items())


def act(config: dict[str, Any]) -> dict[str, Any]:
    return next(layer for layer in config["config"]["layers"] if layer["config"]["name"] == "act")


def activation(**reference: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: act(config)["config"].update(activation={"class_name": "function", "registered_name": None, **reference})


def layer(module: str | None, name: str, **inner: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: act(config).update(module=module, class_name=name, registered_name=None, config={"name": "act", **inner})


def nothing(config: dict[str, Any]) -> None:
    pass


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(activation(module="os", config="system"), "os.system", id="a module's function"),
        pytest.param(activation(module="builtins", config="exec"), "builtins.exec", id="exec"),
        pytest.param(activation(module="keras.utils", config="get_file"), "keras.utils.get_file", id="get_file"),
        pytest.param(
            activation(module="keras.config", config="enable_unsafe_deserialization"), "enable_unsafe", id="switches the check off"
        ),
        pytest.param(activation(module="keras.models", config="load_model"), "keras.models.load_model", id="loads another file"),
        pytest.param(layer("subprocess", "Popen", args="true"), "subprocess.Popen", id="a module's class"),
        pytest.param(layer("keras.saving", "load_model"), "keras.saving.load_model", id="a function as a class"),
        pytest.param(layer("keras.layers", "TFSMLayer", filepath="/tmp/x"), "TFSMLayer", id="TFSMLayer"),
        pytest.param(layer("keras.layers", "TorchModuleWrapper"), "TorchModuleWrapper", id="TorchModuleWrapper"),
        pytest.param(layer("keras.layers", "StringLookup", vocabulary="/etc/passwd"), "/etc/passwd", id="reads a file"),
        pytest.param(layer(None, "TextVectorization", vocabulary="/etc/passwd"), "/etc/passwd", id="reads a file, without module"),
    ],
)
def test_a_keras_file_names_nothing_but_parts_of_models(tmp_path: Path, suffix: str, change: Any, told: str) -> None:
    """What it names is looked up nowhere: not imported, not called."""
    path = keras_file(tmp_path / f"evil{suffix}", change)
    with pytest.raises(ModelLoadError, match="would reach out of the model") as caught:
        TensorFlowModel(path).describe()
    assert told in str(caught.value)


def linked(file: h5py.File) -> None:
    file["elsewhere"] = h5py.ExternalLink("/etc/hosts", "/")


def stored_elsewhere(file: h5py.File) -> None:
    file.create_dataset("secret", shape=(4,), dtype="u1", external=[("/etc/hosts", 0, 4)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(4,), dtype="u1")
    layout[:] = h5py.VirtualSource("/etc/hosts", "x", shape=(4,))
    file.create_virtual_dataset("secret", layout)


def huge(file: h5py.File) -> None:
    file.create_dataset("zeros", shape=(2**40,), chunks=(2**20,), dtype="f4")


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize(
    ("weights", "told"),
    [(linked, "a link to another file"), (stored_elsewhere, "another file"), (virtual, "another file"), (huge, "tensors of")],
)
def test_weights_lie_in_the_file_itself(tmp_path: Path, suffix: str, weights: Callable[[h5py.File], None], told: str) -> None:
    """HDF5 can point into other files, and declare terabytes in a few bytes."""
    path = keras_file(tmp_path / f"evil{suffix}", nothing, weights=weights)
    with pytest.raises(ModelLoadError, match=told):
        TensorFlowModel(path).describe()


@pytest.mark.parametrize(("suffix", "first"), [(".h5", "zip"), (".hdf5", "zip"), (".keras", "hdf5"), (".h5", "hdf5"), (".hdf5", "hdf5")])
def test_a_file_that_is_two_kinds_at_once_is_checked_as_what_is_read(tmp_path: Path, suffix: str, first: str) -> None:
    """Keras chooses its reader by the name, and a zip may stand behind anything, an HDF5 file behind 512 bytes: the Lambda is found, or refused."""
    clean = keras_file(tmp_path / "clean.keras", nothing)
    evil = tmp_path / "lambda.h5"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with h5py.File(evil, "w", userblock_size=65536 if first == "zip" else 0) as file:
            inner = {"name": "old", "function": ["4wEAAAA=", None, None], "function_type": "lambda"}
            model = {"class_name": "Sequential", "config": {"layers": [{"class_name": "Lambda", "config": inner}]}}
            file.attrs["model_config"] = json.dumps(model)
    path = tmp_path / f"both{suffix}"
    if first == "zip":  # read from its end, where the directory is
        content = bytearray(evil.read_bytes())
        content[: len(clean.read_bytes())] = clean.read_bytes()
        path.write_bytes(content)
    else:
        path.write_bytes(evil.read_bytes() + clean.read_bytes())
    with pytest.raises(ModelLoadError):
        TensorFlowModel(path).describe()


def test_a_deep_configuration_is_refused_in_words(tmp_path: Path) -> None:
    """Python's own limit of recursion is no message."""
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    with pytest.raises(ModelLoadError, match="cannot be read"):
        TensorFlowModel(archive(tmp_path / "deep.keras", ("config.json", deep), ("metadata.json", b"{}"))).describe()


# --- SavedModels


def saved(folder: Path, function: Callable[[Any], Any]) -> Path:
    module = tf.Module()
    module.f = tf.function(function, input_signature=[tf.TensorSpec((None,), tf.float32, name="x")])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.f})
    return folder


def writes(x: Any) -> Any:
    with tf.control_dependencies([tf.io.write_file("/tmp/never", "x")]):
        return tf.identity(x)


def prints_to(x: Any) -> Any:
    tf.print(x, output_stream="file:///tmp/never")
    return x


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: tf.py_function(np.negative, [x], tf.float32), "EagerPyFunc"),
        (lambda x: tf.numpy_function(np.negative, [x], tf.float32), "PyFunc"),
        (writes, "WriteFile"),
        (prints_to, "PrintV2"),
    ],
)
def test_a_graph_that_reaches_out_is_refused(tmp_path: Path, function: Callable[[Any], Any], told: str) -> None:
    """At any depth: the operations of its functions too."""
    folder = saved(tmp_path / "m", function)
    with pytest.raises(ModelLoadError, match=rf"the operation {told}.*trust_pickle=True"):
        TensorFlowModel(folder).describe()
    assert TensorFlowModel(folder, trust_pickle=True).describe().kind == "saved_model"
    assert not Path("/tmp/never").exists()


@pytest.mark.parametrize("name", ["saved_model.cpb", "saved_model.pbtxt"])
def test_a_second_graph_beside_the_checked_one_is_refused(tmp_path: Path, name: str) -> None:
    """TensorFlow reads a .cpb first, where there is one."""
    folder = saved(tmp_path / "m", lambda x: x + 1)
    assert TensorFlowModel(folder).describe().kind == "saved_model"
    (folder / name).write_bytes(b"")
    with pytest.raises(ModelLoadError, match=f"{name} beside its saved_model.pb"):
        TensorFlowModel(folder).describe()
