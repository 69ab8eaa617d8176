"""Where each loader process is, in memory that the worker sees as well: so that a hang is ended, and a death has a row.

Runs on: worker, and its loader processes (standard library only).

Invariant: what is read of a dead process is what it was at; a process is ended for being late only while it is in the user's function.

::

    loader process:  at_batch(7) ─ calling(0) ─ calling(1) ─ ... ─ end        writes: batch, row, since when
    worker:          watching(slots): one that is in calling() for too long is killed;  slots.of(pid): where was it?
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkinfer.exceptions import remark

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext
    from types import FrameType

__all__ = [
    "LoaderProcessDied",
    "PreprocessTimeout",
    "Slot",
    "Slots",
    "at_batch",
    "calling",
    "how_it_ended",
    "remark_grown",
    "serials",
    "watching",
]

GRACE_SECONDS = 1.0  # for a function that gives way to the exception; then its process is killed
MOST_GROWTH_BYTES = 2**30  # of a loader process's memory, from its first batches on, before it is replaced

_SLOT = struct.Struct("=qqqqqd")  # pid, memory after the first batches, batch, row, in the user's function, since
_FIRST_BATCHES = 3

serials = count(1)  # names batches over all partitions of this process: a late word of a batch before is nobody's


class PreprocessTimeout(BaseException):
    """Raised in the user's function when its time is over; no ``Exception``, so that its ``except Exception`` lets it pass."""


class LoaderProcessDied(Exception):  # noqa: N818 - the error column's word for it
    """The process in which the user's function ran has ended."""


class Slot(NamedTuple):
    """What one process has written.

    Attributes:
        pid: the process.
        first_bytes: its resident memory after its first batches; 0: not that far, or not known.
        serial: the batch that it is at; 0: none.
        row: the row of that batch, -1: none in particular.
        calling: it is in the user's function.
        since: when that began, on the monotonic clock, which all processes share.
    """

    pid: int
    first_bytes: int
    serial: int
    row: int
    calling: int
    since: float

    @property
    def grown_bytes(self) -> int:
        """By how much its resident memory has grown since its first batches."""
        return max(0, _resident_bytes(self.pid) - self.first_bytes) if self.first_bytes else 0


class Slots:
    """One slot for each process; made by the worker, and handed to the processes when they start."""

    def __init__(self, context: BaseContext, processes: int, timeout_seconds: float | None = None) -> None:
        """Lay them out, empty.

        Args:
            context: by which the processes are started.
            processes: how many.
            timeout_seconds: that one call of the user's function may take; ``None``: any time.
        """
        self.timeout_seconds = timeout_seconds
        self._processes = processes
        self._memory: Any = context.RawArray("c", processes * _SLOT.size)
        self._taken: Any = context.Value("i", 0)
        self._killed: list[Slot] = []  # by the worker, for being late

    def sit(self) -> None:
        """Take a slot: run in a loader process, in its main thread, before its work."""
        global _here  # noqa: PLW0603 - a process sits in one place
        with self._taken.get_lock():
            number = self._taken.value
            self._taken.value += 1
        _here = _Here(self._memory, number * _SLOT.size, self.timeout_seconds)

    def all(self) -> list[Slot]:
        """Read those that are taken."""
        read = [Slot(*_SLOT.unpack_from(self._memory, number * _SLOT.size)) for number in range(self._processes)]
        return [slot for slot in read if slot.pid]

    def of(self, pid: int | None) -> Slot | None:
        """Read a process's."""
        return next((slot for slot in self.all() if slot.pid == pid), None)

    @property
    def pause_seconds(self) -> float:
        """How often to look for the late."""
        return min(1.0, ((self.timeout_seconds or 0.0) + GRACE_SECONDS) / 8)

    def kill_late(self) -> None:
        """End the processes whose call takes too long, beyond the exception that ought to have ended it."""
        if self.timeout_seconds is None:
            return
        latest = time.monotonic() - self.timeout_seconds - GRACE_SECONDS
        for slot in self.all():
            if slot.calling and slot.since < latest and slot not in self._killed and self.of(slot.pid) == slot and not has_ended(slot.pid):
                self._killed.append(slot)
                kill(slot.pid)

    def was_late(self, slot: Slot, code: int | None) -> bool:
        """Tell whether a dead process was ended for that, and not on its own, which may take a while."""
        return slot in self._killed and code in (None, -signal.SIGKILL)

    def grown(self) -> Slot | None:
        """Find a process that has taken more memory than it should keep."""
        return next((slot for slot in self.all() if slot.grown_bytes > MOST_GROWTH_BYTES), None)


@contextmanager
def watching(slots: Slots) -> Iterator[None]:
    """Kill the processes that are late, from a thread, as long as this lasts; none where there is no limit.

    It looks now and then: a process that hangs can tell nobody.
    """
    if slots.timeout_seconds is None:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(slots, ended), name="sparkinfer-watch")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(slots: Slots, ended: threading.Event) -> None:
    while not ended.wait(slots.pause_seconds):
        slots.kill_late()


def remark_grown(slot: Slot) -> None:
    """Say that a process is replaced for its memory."""
    remark(
        f"a loader process (pid {slot.pid}) has grown by {slot.grown_bytes / 2**20:,.0f} MiB since its first batches, and is replaced: preprocess, "
        "or a library that it calls, keeps what it made"
    )


def kill(pid: int) -> None:
    """End a process, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Tell of a process that has ended, whether its parent (this process, or a fork server) has heard of it yet or not; where the system does not tell, none has.

    Example:
        >>> has_ended(os.getpid())
        False
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - as short as it can be: the kill comes right after it
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return os.path.exists("/proc/self/stat")  # noqa: PTH110 - likewise
    except (OSError, IndexError):
        return False


def how_it_ended(code: int | None) -> str:
    """Tell an exit code in words.

    Example:
        >>> how_it_ended(-9)
        'was killed by SIGKILL (often: out of memory)'
    """
    if code is None:
        return "died"
    if code >= 0:
        return f"ended with exit code {code}"
    hint = {-9: " (often: out of memory)", -7: " (its shared memory is full)"}.get(code, "")
    return f"was killed by {signal.Signals(-code).name}{hint}"


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:  # noqa: PTH123 - a path object costs more than the reading
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no such process, or a system without /proc
        return 0


# --- in a loader process


class _Here:
    """This process's slot: entered for each call of the user's function."""

    def __init__(self, memory: Any, offset: int, timeout_seconds: float | None) -> None:
        self._memory = memory
        self._offset = offset
        self._timeout_seconds = timeout_seconds
        self._pid = os.getpid()
        self._batches = 0
        self._first_bytes = 0
        self._serial = 0
        self._armed = False
        self.row = -1
        if timeout_seconds is not None:
            signal.signal(signal.SIGALRM, self._over)
        self._write(0)

    def _write(self, calling: int) -> None:
        _SLOT.pack_into(self._memory, self._offset, self._pid, self._first_bytes, self._serial, self.row, calling, time.monotonic())

    def open(self, serial: int) -> None:
        self._serial, self.row = serial, -1
        self._write(0)

    def close(self) -> None:
        self._batches += 1
        if self._batches == _FIRST_BATCHES:
            self._first_bytes = _resident_bytes(self._pid)
        self.open(0)

    def __enter__(self) -> None:
        self._write(1)
        if self._timeout_seconds is not None:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._timeout_seconds)

    def __exit__(self, *_: object) -> None:
        if self._timeout_seconds is None:  # nobody asks for how long: the next row, or the batch's end, writes over it
            return
        self._armed = False  # first: the signal may have come already, and Python calls its handler a moment later
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.row = -1
        self._write(0)

    def _over(self, _signal: int, _frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            msg = f"preprocess_timeout_seconds={self._timeout_seconds:g}"
            raise PreprocessTimeout(msg)


class _Unwatched:
    """A process that is no loader process: nothing is written, and nothing is limited."""

    row = -1

    def open(self, serial: int) -> None:
        """Begin a batch."""

    def close(self) -> None:
        """End it."""

    def __enter__(self) -> None:
        """Begin a call."""

    def __exit__(self, *_: object) -> None:
        """End it."""


_here: _Here | _Unwatched = _Unwatched()


@contextmanager
def at_batch(serial: int) -> Iterator[None]:
    """Be at a batch."""
    here = _here
    here.open(serial)
    try:
        yield
    finally:
        here.close()


def calling(row: int = -1) -> _Here | _Unwatched:
    """Enter the user's function, for a row of the batch or (-1) for all of it."""
    here = _here
    here.row = row
    return here
