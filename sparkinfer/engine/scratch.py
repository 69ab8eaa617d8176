"""The folder in which a process and its children keep the sockets by which they pass each other tensors and processes.

Runs on: worker (standard library only).

Invariant: a folder whose owner lives is never removed; of those whose owners ended none outlives the next ``keep_scratch`` over the same
temporary folder.

``multiprocessing`` makes the folder (``pymp-...``) and removes it when its process ends as Python ends. Spark's workers do not (up to 4.3): they leave by
``os._exit`` or a signal, and their loader processes by a signal too, so that each left a folder behind.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

__all__ = ["keep_scratch"]

_LOCK = "sparkinfer-owner"
_locks: dict[str, int] = {}  # folder -> descriptor of the lock that says that its owner lives


def keep_scratch() -> None:
    """Mark this process's folder as one whose owner lives, and remove those of our own whose owners have ended.

    To be called before loader processes are started, so that they inherit the folder and do not make one each. The lock is one of the file system and
    no process id: containers that share a folder count their processes each for themselves. It ends with the last process that was forked from
    the owner.
    """
    if multiprocessing.parent_process() is not None:  # a child: the folder is its parent's
        return
    with suppress(ImportError, OSError):  # Windows; a folder that is full or not ours: multiprocessing itself will say so
        folder = Path(util.get_temp_dir())
        if str(folder) in _locks:
            return
        unseen = folder / f"{_LOCK}.{os.getpid()}"
        _locks[str(folder)] = _locked(unseen, os.O_CREAT)
        unseen.rename(folder / _LOCK)  # who looks for folders that were left sees the file no sooner than it is locked
        for other in folder.parent.glob(f"pymp-*/{_LOCK}"):
            if other.parent != folder:
                _remove_if_left(other)


def _locked(path: Path, flags: int = 0) -> int:
    """Open and lock a file.

    Raises:
        OSError: it is not there, or another process holds it.
    """
    import fcntl  # noqa: PLC0415 - not on Windows

    descriptor = os.open(path, os.O_RDWR | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_if_left(lock: Path) -> None:
    with suppress(OSError):  # its owner lives, or another process was first
        descriptor = _locked(lock)
        try:
            shutil.rmtree(lock.parent)
        finally:
            os.close(descriptor)
