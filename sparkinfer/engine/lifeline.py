"""Child processes: how to start them safely, and that they end with the process that made them, whatever ended it.

Runs on: worker (standard library only).

Invariant: a child that has run its ``Lifeline`` does not outlive the process that made the ``Lifeline`` by more than a second
(a child that holds the GIL in C code ends with a forking parent only: PR_SET_PDEATHSIG needs no GIL).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sparkinfer.engine.scratch import keep_scratch

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

__all__ = ["Lifeline", "framework_used", "loader_context", "mark_framework_used"]

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5

_used = threading.Event()


def mark_framework_used() -> None:
    """Remember that a framework has run in this process: from now on a fork copies its locks but not its threads."""
    _used.set()


def framework_used() -> bool:
    """Whether a model was loaded in this process, so that new loader processes must not be forked from it."""
    return _used.is_set()


def loader_context(*preload: str) -> BaseContext:
    """Choose how loader processes are started.

    A fork is quick, but after a framework has run, its locks and CUDA's state are copied without their threads (a TensorFlow
    operation in such a child never returns). Then a fork server is used, which has the slow imports done once.

    Args:
        preload: modules that the fork server imports beforehand; counts only until its first process is started.
    """
    keep_scratch()
    methods = multiprocessing.get_all_start_methods()
    if "fork" in methods and sys.platform == "linux" and not framework_used() and not _cuda_started():
        return multiprocessing.get_context("fork")
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # A child imports the main module by its name first (in a Spark worker: pyspark.daemon, 5 s when it is not there already).
    main = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
    context.set_forkserver_preload(["sparkinfer.engine.fork_server", *([main] if main else []), "pyarrow", "cloudpickle", *preload])
    from multiprocessing import forkserver  # noqa: PLC0415 - a system that has none may fail to import it

    with _library_on_path():
        forkserver.ensure_running()
    return context


@contextmanager
def _library_on_path() -> Iterator[None]:
    """Let the fork server find this library where it came as a zip: Python 3.11's ignores the ``sys.path`` that it is told, and preloads nothing."""
    home = str(Path(__file__).parents[2])
    if not zipfile.is_zipfile(home):
        yield
        return
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([home, *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _cuda_started() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


class Lifeline:
    """A ``worker_init_fn`` for any start method: ties the process that runs it to the one that made it.

    Example:
        >>> Lifeline().owner == os.getpid()
        True
    """

    def __init__(self) -> None:
        """Remember the owner: this process."""
        self.owner = os.getpid()
        # The signal is sent when the *thread* that forked ends (prctl(2)), so it fits the main thread only.
        self._made_in_main_thread = threading.current_thread() is threading.main_thread()

    def __call__(self, worker_id: int = 0) -> None:
        """Run in the child, before its work; ends it at once if the owner is gone already."""
        del worker_id
        forked = os.getppid() == self.owner
        if forked and self._made_in_main_thread and sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if not _alive(self.owner) or (forked and os.getppid() != self.owner):
            os._exit(1)
        threading.Thread(target=_end_with, args=(self.owner,), name="sparkinfer-lifeline", daemon=True).start()


def _end_with(owner: int) -> None:
    """Wait for the owner's end: without waking up where the system has pidfd (Linux 5.3), else by looking now and then."""
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):  # macOS, an old kernel, a sandbox
        while _alive(owner):
            time.sleep(_POLL_SECONDS)
        os._exit(1)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os._exit(1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
