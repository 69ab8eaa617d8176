"""What a path holds, and the hash of what it holds.

Runs on: both (standard library only).

Invariant: nothing here runs or unpickles what it looks at; only names, first bytes and zip directories are read.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import tempfile
import threading
import zipfile
from collections import Counter
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Literal

from sparkinfer.engine.contracts import ModelFile, ModelPlan
from sparkinfer.exceptions import ModelLoadError, nearest

__all__ = [
    "WORDS",
    "Kind",
    "check_pin",
    "driver_folder",
    "files_under",
    "fingerprint_of",
    "is_address",
    "local_files",
    "local_path",
    "memory_file",
    "model_file",
    "sha256_of",
    "sniff",
    "without_userinfo",
]

Kind = Literal[
    "saved_model",
    "keras",
    "hdf5",
    "safetensors",
    "torch_export",
    "torch_script",
    "torch_save",
    "torch_legacy",
    "pickle",
    "onnx",
    "directory",
    "unknown",
]

WORDS: dict[Kind, str] = {
    "saved_model": "a TensorFlow SavedModel directory",
    "keras": "a Keras .keras archive",
    "hdf5": "an HDF5 file (legacy Keras .h5)",
    "safetensors": "a safetensors file: weights without code",
    "torch_export": "a torch.export archive (.pt2)",
    "torch_script": "a TorchScript archive",
    "torch_save": "a file written by torch.save",
    "torch_legacy": "a file written by torch.save in its format before torch 1.6",
    "pickle": "a pickle",
    "onnx": "an ONNX model",
    "directory": "a directory that is no SavedModel (it has no saved_model.pb)",
    "unknown": "no model format that is known here",
}

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_TORCH_LEGACY_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the long 0x1950a86a20f9469cfc6c, pickled, after the protocol's two bytes
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:/")
_USERINFO = re.compile(r"(?<=//)[^/\s?#]*@")
_SECRETS = re.compile(r"(?i)(?<=[?&;])([\w.-]*(?:key|token|secret|passw|pwd|sig|credential)[\w.-]*)=[^&;\s'\"#]*")
_CHUNK_BYTES = 1 << 20
_MOST_FILES = 100_000
_SWELLS_TO_BYTES = 1 << 26  # an archive that unpacks to more than this, and to more than this many times its size, is no model's
_SWELLS_BY = 20
_BY_VALUE_BYTES = 1 << 20  # what only exists in memory travels inside the plan up to this size

_hashes: dict[tuple[object, ...], str] = {}


def is_address(text: str) -> bool:
    """Tell whether a text names something that is no path of this machine, such as ``s3://`` or ``models:/``."""
    return _SCHEME.match(text) is not None and not text.startswith("file:")


def without_userinfo(text: str) -> str:
    """Take user names and passwords out of the addresses in a text, and the values of keys and tokens out of their queries.

    Example:
        >>> without_userinfo("at ftp://bob:secret@host/data")
        'at ftp://host/data'
    """
    return _SECRETS.sub(r"\1=...", _USERINFO.sub("", text))


def local_path(path: str | os.PathLike[str]) -> Path:
    """Give the path, made absolute, of something that is there.

    Raises:
        ModelLoadError: nothing is there, or it is an address (``s3://``) and no path.
    """
    text = os.fspath(path)
    if text.startswith("file:"):
        text = re.sub(r"^file:(//)?(?=/)", "", text)
    if _SCHEME.match(text):
        msg = f"{without_userinfo(text)!r} is an address, but a model is read from a path: copy the file to a disk, or mount it (on Databricks /dbfs/ or /Volumes/)"
        raise ModelLoadError(msg)
    found = Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111 - resolve() would follow links, whose target may move
    if not found.exists():
        raise ModelLoadError(_missing(text, found))
    if not (found.is_file() or found.is_dir()):
        msg = f"{str(found)!r} is neither a file nor a directory, but a pipe, a socket or a device: reading it might never end"
        raise ModelLoadError(msg)
    return found


def _missing(text: str, found: Path) -> str:
    parent = next(p for p in found.parents if p.is_dir())
    if parent != found.parent:
        return f"there is no {text!r}: the folders exist only down to {str(parent)!r}"
    try:
        names = sorted(p.name for p in parent.iterdir())
    except OSError as error:
        return f"there is no {text!r}, and {str(parent)!r} cannot be listed ({error})"
    close = get_close_matches(found.name, names, n=1)
    return f"there is no {text!r} in {str(parent)!r}. {nearest(found.name, close or names[:8])}"


def sniff(path: str | os.PathLike[str]) -> Kind:
    """Tell what a path holds, by its content; the name's ending counts only where the content cannot tell (ONNX).

    Raises:
        ModelLoadError: nothing is there, or it cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sniff(folder)
        'directory'
    """
    found = local_path(path)
    if found.is_dir():
        return "saved_model" if (found / "saved_model.pb").is_file() or (found / "saved_model.pbtxt").is_file() else "directory"
    try:
        with found.open("rb") as file:
            head = file.read(64)
        return _sniff_zip(found) if head.startswith(b"PK\x03\x04") else _sniff_head(head, found)
    except OSError as error:
        msg = f"{str(found)!r} cannot be read: {error}"
        raise ModelLoadError(msg) from error


def _sniff_zip(path: Path) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            _refuse_tricks(archive, path)
    except zipfile.BadZipFile as error:
        msg = f"{str(path)!r} begins as a zip archive and is none ({error}): it may have been cut short in a copy"
        raise ModelLoadError(msg) from error
    if {"config.json", "metadata.json"} <= set(names):
        return "keras"
    inner = {name.split("/", 1)[1] if "/" in name else name for name in names}  # torch puts all under one folder
    if "archive_format" in inner or "serialized_exported_program.json" in inner:
        return "torch_export"
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "torch_script"
    return "torch_save" if "data.pkl" in inner else "unknown"


def _refuse_tricks(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse what no framework writes: entries that lead out of the folder, that share their bytes, or that swell when they are unpacked."""
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    outside = [name for name in names if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or re.match("[A-Za-z]:", name)]
    twice = [name for name, times in Counter(names).items() if times > 1]
    size = path.stat().st_size
    packed, unpacked = sum(entry.compress_size for entry in entries), sum(entry.file_size for entry in entries)
    why = (
        f"its entry {outside[0][:200]!r} leads out of the folder that it would be unpacked in"
        if outside
        else f"its entry {twice[0][:200]!r} is there twice, and readers differ on which one counts"
        if twice
        else f"its {len(entries)} entries share their bytes: they are {packed:,} bytes long in a file of {size:,}"
        if packed > size
        else f"its {size:,} bytes would swell to {unpacked:,}"
        if unpacked > max(_SWELLS_TO_BYTES, _SWELLS_BY * size)
        else ""
    )
    if why:
        msg = f"{str(path)!r} is not read: {why}. No framework writes such an archive: take the model from where it was made"
        raise ModelLoadError(msg)


def _sniff_head(head: bytes, path: Path) -> Kind:
    if head.startswith(_HDF5_MAGIC):
        return "hdf5"
    header_bytes = int.from_bytes(head[:8], "little")
    if len(head) >= 10 and head[8:9] == b"{" and 2 <= header_bytes <= path.stat().st_size - 8:
        return "safetensors"
    if head[2 : 2 + len(_TORCH_LEGACY_MAGIC)] == _TORCH_LEGACY_MAGIC:
        return "torch_legacy"
    if head[:1] == b"\x80" and 2 <= head[1:2][0] <= 5:
        return "pickle"
    return "onnx" if path.suffix == ".onnx" else "unknown"


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Hash a file's content, or a directory's files' names and contents.

    The hash is remembered for as long as path, inode, size and times stay as they are; that of the last change of the inode is among them, which
    nobody can set back.

    Raises:
        ModelLoadError: nothing is there.
    """
    found = local_path(path)
    files = files_under(found) if found.is_dir() else [found]
    key = tuple((str(p), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for p in files for s in [p.stat()])
    if key not in _hashes:
        _hashes[key] = _hash_directory(found, files) if found.is_dir() else _hash_file(found)
    return _hashes[key]


def files_under(folder: Path) -> list[Path]:
    """List a model directory's files, but for what Python itself writes beside code that it imports from there.

    Links to directories are followed, as frameworks do: what they read belongs to the model, to its hash and to what is sent.

    Raises:
        ModelLoadError: there are too many for a model, as links can make them.
    """
    found: list[Path] = []
    above: dict[str, frozenset[tuple[int, int]]] = {}  # the folders on the way to each, by device and inode
    for number, (where, folders, names) in enumerate(os.walk(folder, followlinks=True)):
        here, way = Path(where), above.get(os.path.dirname(where), frozenset())  # noqa: PTH120 - the text that os.walk gave
        status = here.stat()
        own = (status.st_dev, status.st_ino)
        if own in way:  # a link that leads back
            folders.clear()
            continue
        above[where] = way | {own}
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [here / name for name in names]
        if number + len(found) > _MOST_FILES:
            msg = f"{str(folder)!r} holds more than {_MOST_FILES:,} files and folders, links followed: is it a model's?"
            raise ModelLoadError(msg)
    return sorted(path for path in found if path.is_file())


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _hash_directory(root: Path, files: list[Path]) -> str:
    return fingerprint_of(*(part for p in files for part in (p.relative_to(root).as_posix(), _hash_file(p))))


def fingerprint_of(*parts: str | bytes) -> str:
    """Hash parts so that no two different lists of parts look alike.

    Example:
        >>> fingerprint_of("ab", "c") == fingerprint_of("a", "bc")
        False
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def model_file(role: str, path: str | os.PathLike[str]) -> ModelFile:
    """Describe the file or directory that plays a role in a model."""
    found = local_path(path)
    files = files_under(found) if found.is_dir() else [found]
    size = sum(p.stat().st_size for p in files)
    return ModelFile(role, sha256_of(found), size, path=str(found), directory=found.is_dir())


def memory_file(role: str, content: bytes, suffix: str) -> ModelFile:
    """Describe content that only exists in memory: a small one travels as it is, a large one becomes a file of this process."""
    sha256 = hashlib.sha256(content).hexdigest()
    if len(content) <= _BY_VALUE_BYTES:
        return ModelFile(role, sha256, len(content), content=content)
    path = driver_folder() / f"{sha256}{suffix}"
    if not path.exists():
        partial = path.with_suffix(f".{threading.get_ident()}")
        partial.write_bytes(content)
        partial.replace(path)  # another thread that describes the same model sees all of it or nothing
    return ModelFile(role, sha256, len(content), path=str(path))


def local_files(model: ModelPlan) -> dict[str, str | bytes]:
    """Give a model's files as they lie in this process."""
    found: dict[str, str | bytes] = {}
    for file in model.files:
        where = file.content if file.content is not None else file.path
        if where is None:
            msg = f"the file {file.role!r} of {model.label} has neither a path nor a content"
            raise AssertionError(msg)
        found[file.role] = where
    return found


def check_pin(file: ModelFile, sha256: str | None) -> ModelFile:
    """Compare a file with the content that the user pinned; gives the file, marked as pinned, so that workers compare it too.

    Raises:
        ModelLoadError: the content is another one.
    """
    if sha256 is not None and file.sha256 != sha256.lower():
        msg = f"{file.path!r} has the sha256 {file.sha256}, but sha256={sha256!r} was asked for: it is another file, or it was changed"
        raise ModelLoadError(msg)
    return file if sha256 is None else replace(file, pinned=True)


@lru_cache(maxsize=1)
def driver_folder() -> Path:
    """Give this process's folder for what it makes of models; it goes with the process, and not with a forked child of it."""
    folder = tempfile.mkdtemp(prefix="sparkinfer-")
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return Path(folder)
