"""``batch_size="auto"``: the rows of a model call, settled by timing the first batches of a Python worker.

Runs on: worker.

Invariant: a size is doubled only after whole batches of it were timed, and only where twice as many rows fit; once settled it stays for as long
as the process lives. No row is lost by a change: a batch is cut when its turn comes, by the size of that moment.

::

    64 rows   | call | call call call |   a row costs 50 us
    128 rows  | call | call call call |   28 us: worth it
    256 rows  | call | call call call |   27 us: in vain, once
    512 rows  | call | call call call |   27 us: in vain, twice: settled at 128
              the first of a size is not timed: frameworks make ready for a new shape
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from sparkinfer.config import FIRST_ROWS
from sparkinfer.engine.berths import runtime_folder
from sparkinfer.engine.recorder import left_bytes, private_bytes
from sparkinfer.engine.room import fed_bytes

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Fed
    from sparkinfer.engine.partition import PartitionPlan

__all__ = ["Fixed", "HostRoom", "Kept", "Settling", "Sizing", "sizing_of", "timed_for"]

_MOST_ROWS = 4096
_CALLS = 3  # of a size that are timed
_ENOUGH = 1.0  # seconds of timed calls of a size: long calls spread little
_WORTH_IT = 0.95  # of the best size's seconds for a row, at most, for each doubling
_IN_VAIN = 2  # sizes in a row that were not worth it: one may be a bad moment, or just below the size at which threads begin to help
_FRESH = 24 * 3600.0  # seconds for which another process's size is taken


class Sizing(Protocol):
    """Says how many rows the next batch has."""

    @property
    def settled(self) -> bool:
        """Whether it will say the same from here on."""
        ...

    def rows(self) -> int:
        """Give the rows of the batch that is cut now."""
        ...

    def took(self, rows: int, seconds: float, fits: Callable[[], bool]) -> None:
        """Count a batch, and ask whether one of twice its rows would fit."""
        ...

    def at_most(self, rows: int) -> None:
        """Settle now: no more rows than these fit into memory."""
        ...

    def told(self) -> int | None:
        """Give the rows for the run's figures; ``None`` where there is nothing to tell."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The user's own number: the null object of ``Settling``."""

    size: int
    settled: bool = True

    def rows(self) -> int:
        """Give it."""
        return self.size

    def took(self, rows: int, seconds: float, fits: Callable[[], bool]) -> None:
        """Do nothing."""

    def at_most(self, rows: int) -> None:
        """Do nothing: batches are cut where they do not fit."""

    def told(self) -> None:
        """Give nothing."""


@dataclass(frozen=True)
class Kept:
    """What one process settled on, for those that come later on the host.

    Attributes:
        name: of what the size depends on.
        folder: this user's own; of another user's nothing is read.
        clock: seconds since 1970.
    """

    name: str
    folder: Callable[[], Path] = runtime_folder
    clock: Callable[[], float] = time.time

    def get(self) -> int | None:
        """Give it, where there is one of the last day."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if (hasattr(os, "getuid") and found.st_uid != os.getuid()) or self.clock() - found.st_mtime > _FRESH:
                    return None
                rows = int(file.read(20))
        except (OSError, ValueError):
            return None
        return rows if 1 <= rows <= _MOST_ROWS else None

    def put(self, rows: int) -> None:
        """Keep it; where that is not possible, the next process settles for itself."""
        with suppress(OSError):
            path = self._path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = path.parent.lstat()
            if not stat.S_ISDIR(owner.st_mode) or (hasattr(os, "getuid") and owner.st_uid != os.getuid()):
                return
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(str(rows), encoding="ascii")
            fresh.replace(path)

    @property
    def _path(self) -> Path:
        return self.folder() / "batch_sizes" / self.name


@dataclass
class Settling:
    """Doubles the rows of a batch for as long as a row gets cheaper; for one model, device and way of preparing in a process.

    Example:
        >>> sizing = Settling(size=64)
        >>> while not sizing.settled:  # 1 ms a call, 10 us a row
        ...     sizing.took(sizing.rows(), 0.001 + 0.00001 * sizing.rows(), fits=lambda: True)
        >>> sizing.rows()
        1024
    """

    size: int = FIRST_ROWS
    most: int = _MOST_ROWS
    keep: Callable[[int], None] = lambda _: None
    settled: bool = False
    _seconds: list[float] = field(default_factory=list)  # for a row, of the calls of the size at hand
    _best: tuple[float, int] = (inf, 0)  # seconds for a row, and the size
    _vain: int = 0
    _lock: Lock = field(default_factory=Lock)  # partitions of a process may run side by side, as threads

    def rows(self) -> int:
        """Give the rows of the batch that is cut now."""
        return self.size

    def took(self, rows: int, seconds: float, fits: Callable[[], bool]) -> None:
        """Count a batch.

        Args:
            rows: of the batch; one of another size was cut earlier, or is a partition's last, and tells nothing.
            seconds: of the model, postprocess and encoding.
            fits: tells whether a batch of twice the rows would fit into memory; asked once for a size.
        """
        with self._lock:
            if self.settled or rows != self.size:
                return
            self._seconds.append(seconds / rows)
            timed = self._seconds[1:]
            if len(timed) >= _CALLS or sum(timed) * rows >= _ENOUGH:
                self._judge(min(timed), fits)

    def at_most(self, rows: int) -> None:
        """Settle now: no more rows than these fit into memory. Once settled, batches are cut where they do not fit, as others are."""
        with self._lock:
            if not self.settled:
                self._settle(min(rows, self._best[1] or rows))

    def told(self) -> int | None:
        """Give the rows, once settled."""
        return self.size if self.settled else None

    def _judge(self, each: float, fits: Callable[[], bool]) -> None:
        if each <= _WORTH_IT ** (self._vain + 1) * self._best[0]:
            self._best, self._vain = (each, self.size), 0
        else:
            self._vain += 1
        if self._vain == _IN_VAIN or 2 * self.size > self.most or not fits():
            self._settle(self._best[1])
        else:
            self.size *= 2
            self._seconds.clear()

    def _settle(self, rows: int) -> None:
        self.size, self.settled = rows, True
        self.keep(rows)


class HostRoom:
    """Whether the host's memory holds larger batches: by what the process has grown by since the first."""

    def __init__(
        self, slots: int | None, own: Callable[[], int | None] = private_bytes, left: Callable[[], int | None] = left_bytes
    ) -> None:
        """Look at the process's memory now.

        Args:
            slots: tasks that share the memory, and grow as this one does.
            own: gives the process's own bytes.
            left: gives the bytes that it could still take.
        """
        self._slots = slots or 1
        self._own, self._left = own, left
        self._before = own()

    def doubles(self) -> bool:
        """Tell whether batches of twice the rows would leave half of what is left to others; yes where neither is known."""
        now, left = self._own(), self._left()
        if now is None or left is None or self._before is None:
            return True
        return 2 * self._slots * max(0, now - self._before) <= left


_process: dict[str, Settling] = {}
_lock = Lock()


def sizing_of(plan: PartitionPlan, threads: int, folder: Callable[[], Path] = runtime_folder) -> Sizing:
    """Give what says how many rows a partition's batches have: one for each model, device and way of preparing in a process."""
    config = plan.config
    if config.batch_size != "auto":
        return Fixed(config.batch_size)
    depends_on = (plan.model.fingerprint, config.device, str(threads), plan.prepare.fingerprint)
    name = hashlib.sha256("\n".join(depends_on).encode()).hexdigest()[:32]
    with _lock:
        if name not in _process:
            kept = Kept(name, folder)
            there = kept.get()
            _process[name] = Settling(size=there or FIRST_ROWS, settled=there is not None, keep=kept.put)
        return _process[name]


def timed_for(
    sizing: Sizing, config: InferenceConfig, slots: int | None, fits_card: Callable[[], bool], ceiling: Callable[[], int | None]
) -> Callable[[Fed], AbstractContextManager[None]]:
    """Give what a batch's turn at the model is surrounded with, once the model is loaded.

    Args:
        sizing: is told how long whole batches take, until it has settled.
        config: of which two batches are to fit into ``max_in_flight_bytes``, so that one waits ready.
        slots: tasks that share the host's memory.
        fits_card: tells whether batches of twice the rows would fit on the card.
        ceiling: gives the most rows that the model was found to have memory for; ``None`` where all fitted.
    """
    if sizing.settled:
        return lambda _: nullcontext()
    room = HostRoom(slots)

    @contextmanager
    def timing(fed: Fed) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        seconds = time.perf_counter() - begun
        if (most := ceiling()) is not None:
            sizing.at_most(most)
        sizing.took(
            fed.batch.data.num_rows, seconds, lambda: 4 * fed_bytes(fed) <= config.max_in_flight_bytes and fits_card() and room.doubles()
        )

    return timing
