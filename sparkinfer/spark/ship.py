"""How a model's bytes reach the workers, in each kind of session.

Runs on: driver (``ship``), worker (``locate``).

Invariant: a file travels once a session, under a name made of its content's sha256, so that no session ever sees the same name
with other bytes (Spark 4.3 then fails every later job of that SparkContext).
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from pyspark import SparkFiles

from sparkinfer.artifacts import files_under, sha256_of
from sparkinfer.exceptions import ConfigError, ModelLoadError
from sparkinfer.spark.session import is_connect, is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sparkinfer.engine.contracts import ModelFile, ModelPlan

__all__ = ["ShippedFile", "deliver", "locate", "ship"]

_EVERYWHERE = ("/dbfs/", "/Volumes/", "/Workspace/")  # Databricks mounts these on every node


@dataclass(frozen=True)
class ShippedFile:
    """Where a worker finds one of a model's files.

    Attributes:
        role: the backend's word for it.
        how: ``path``: in place; ``file``: sent through Spark under ``name``; ``value``: the bytes are here.
        path: for ``path``, the place.
        stamp: for ``path``, size and modification time (ns) when the model was described; of a directory's files, their sum and the
            latest.
        name: for ``file``, what ``SparkFiles.get`` knows.
        directory: the file is a zip of a directory.
        content: for ``value``, the bytes.
        sha256: for ``path``, what the content must be, where the user pinned it.
    """

    role: str
    how: Literal["path", "file", "value"]
    path: str = ""
    stamp: tuple[int, int] | None = None
    name: str = ""
    directory: bool = False
    content: bytes = field(default=b"", repr=False)
    sha256: str | None = None


_sending = Lock()
_sent: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # session (or SparkContext) -> names that it has


def ship(plan: ModelPlan, session: Any) -> tuple[ShippedFile, ...]:
    """Bring a model's files to where the session's workers can read them.

    ``"auto"`` uses a path in place where every worker is known to see it (a local session, Databricks' mounts), sends small
    in-memory models by value, and everything else through Spark: ``addFile``, on Connect ``addArtifacts``.

    Raises:
        ConfigError: ``ship="value"`` for a directory.
        ModelLoadError: Spark would not take the file.
    """
    return tuple(_ship_one(file, plan, session) for file in plan.files)


def _ship_one(file: ModelFile, plan: ModelPlan, session: Any) -> ShippedFile:
    if file.content is not None:
        return ShippedFile(file.role, "value", content=file.content)
    path = str(file.path)
    if sha256_of(path) != file.sha256:
        raise ModelLoadError(_changed(path))
    in_place = is_local(session) or path.startswith(_EVERYWHERE)
    if plan.ship == "path" or (plan.ship == "auto" and in_place):
        return ShippedFile(file.role, "path", path=path, stamp=_stamp(path), sha256=file.sha256 if file.pinned else None)
    if plan.ship == "value":
        if file.directory:
            msg = f"ship='value' sends one file, but {path} is a directory: use ship='files' or ship='path'"
            raise ConfigError(msg)
        content = Path(path).read_bytes()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ModelLoadError(_changed(path))
        return ShippedFile(file.role, "value", content=content)
    name = f"sparkinfer-{file.sha256[:32]}{'.zip' if file.directory else Path(path).suffix}"
    if not is_connect(session):
        _check_context(session, path, directory=file.directory)
    try:
        deliver(name, session, lambda staged: _stage(file, path, staged))
    except ModelLoadError:
        raise
    except Exception as error:
        msg = f"Spark would not take the model's file {path} ({type(error).__name__}: {error}): put it where every worker sees it and say ship='path'"
        raise ModelLoadError(msg) from error
    return ShippedFile(file.role, "file", name=name, directory=file.directory)


def _stamp(path: str) -> tuple[int, int]:
    found = Path(path)
    files = [part.stat() for part in files_under(found)] if found.is_dir() else [found.stat()]
    return sum(status.st_size for status in files), max((status.st_mtime_ns for status in files), default=0)


def deliver(name: str, session: Any, write: Callable[[str], None], *, pyfile: bool = False) -> bool:
    """Send a file through Spark, once a session.

    Args:
        name: made of the file's content.
        session: its workers get the file.
        write: makes the file at the path that it is given; not called where the session has the name.
        pyfile: a zip that Python on the workers imports from.

    Returns:
        Whether it was sent now; the session had it before if not.

    Raises:
        Exception: what ``write`` or Spark raised; nothing was sent.
    """
    owner = session if is_connect(session) else session.sparkContext
    with _sending:  # two threads that ask at once would register the name twice
        sent = _sent.setdefault(owner, set())
        if name in sent:
            return False
        folder = tempfile.mkdtemp(prefix="sparkinfer-ship-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        staged = str(Path(folder) / name)
        try:
            write(staged)
            _send(staged, owner, connect=is_connect(session), pyfile=pyfile)
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        sent.add(name)
        return True


def _send(staged: str, owner: Any, *, connect: bool, pyfile: bool) -> None:
    if connect:
        owner.addArtifacts(staged, pyfile=pyfile, file=not pyfile)
        shutil.rmtree(Path(staged).parent)  # the server has the bytes now
    elif pyfile:
        owner.addPyFile(staged)
    else:
        owner.addFile(f"file://{staged}")  # the driver serves it from here for as long as it lives


def _changed(path: str) -> str:
    return f"the model's file {path} changed while predict was called: call it again, so that the new model is taken as a whole"


def _stage(file: ModelFile, path: str, staged: str) -> None:
    """Copy the content that the name promises; a hard link would change with the user's file."""
    if file.directory:
        _zip(path, staged)
    else:
        shutil.copyfile(path, staged)
    if sha256_of(path if file.directory else staged) != file.sha256:
        raise ModelLoadError(_changed(path))


def _check_context(session: Any, path: str, *, directory: bool) -> None:
    """Refuse a classic session that hides its SparkContext, by which alone a file can be sent."""
    try:
        session.sparkContext  # noqa: B018 - asked for, and not used yet
    except Exception as error:
        ways = "ship='path'" if directory else "ship='path', or have it sent in the task by ship='value'"
        msg = (
            f"this session does not give its SparkContext ({type(error).__name__}: {error}), so the model's file {path} cannot be sent to the "
            f"workers: put it where every worker sees it and say {ways}"
        )
        raise ModelLoadError(msg) from error


def _zip(folder: str, target: str) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:  # a zip's calendar begins in 1980
        for path in files_under(Path(folder)):  # what the hash is made of, and no more
            archive.write(path, path.relative_to(folder))


def locate(files: Iterable[ShippedFile]) -> dict[str, str | bytes]:
    """Find a model's files on this worker.

    Raises:
        ModelLoadError: a path is not there, or its file changed since the model was described.
    """
    return {file.role: _locate_one(file) for file in files}


def _locate_one(file: ShippedFile) -> str | bytes:
    if file.how == "value":
        return file.content
    if file.how == "file":
        here = SparkFiles.get(file.name)
        return _unzip(here) if file.directory else here
    if not Path(file.path).exists():
        msg = f"the model's file {file.path} is not on this worker: say ship='files' to send it, or put it where every worker sees it"
        raise ModelLoadError(msg)
    if _stamp(file.path) != file.stamp:
        msg = f"the model's file {file.path} changed after predict was called: call it again, so that the new model is taken as a whole"
        raise ModelLoadError(msg)
    if file.sha256 is not None and sha256_of(file.path) != file.sha256:
        msg = f"the model's file {file.path} has another content than sha256= asked for, and that the driver saw: who may write to it?"
        raise ModelLoadError(msg)
    return file.path


def _unzip(archive: str) -> str:
    """Unpack beside the archive, once for all workers of the host: the folder goes when Spark's own does."""
    target = Path(f"{archive}.d")
    if not target.exists():
        part = tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(part)
        try:
            Path(part).rename(target)
        except OSError:  # another worker was first; its folder is whole, since a rename is
            shutil.rmtree(part)
    return str(target)
