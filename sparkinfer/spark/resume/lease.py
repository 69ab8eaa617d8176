"""One run at a time on a table: a file that says who is at work, and that it still is.

Runs on: driver.

Invariant: of two runs, the second is refused by the first one's name, unless the first is known to be dead: its process is gone from this
machine, or it has given no sign of life for ``STALE_SECONDS`` by the file system's own clock.

A lease is created before it is written, so its writer can die in between and leave one without a name. Whoever wants it therefore leaves an empty file first
that has the owner in its own name, a claim, and deletes it last: a lease without a name belongs to one of the claims that are there.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from uuid import uuid4

from sparkinfer.exceptions import ConfigError

if TYPE_CHECKING:
    from sparkinfer.spark.resume.folders import Folder

__all__ = ["LEASE", "STALE_SECONDS", "Lease", "Owner", "leased"]

_PLACE = "_sparkinfer"
LEASE = f"{_PLACE}/lease.json"
BEAT_SECONDS = 20.0
STALE_SECONDS = 120.0


@dataclass(frozen=True)
class Owner:
    """A run that writes to a table.

    Attributes:
        run: unique.
        host: the driver's machine, or container.
        pid: of the driver.
        born: when that process began, as the kernel counts; empty where it does not tell.
    """

    run: str
    host: str
    pid: int
    born: str

    @classmethod
    def of_claim(cls, name: str) -> Owner | None:
        """Read the name of a claim; ``None`` for any other file."""
        parts = name.split("-", 4)
        if len(parts) != 5 or parts[0] != "claim" or not parts[2].isdigit():
            return None
        return cls(parts[1], unquote(parts[4]), int(parts[2]), parts[3])

    @property
    def claim(self) -> str:
        """The name of its claim."""
        return f"claim-{self.run}-{self.pid}-{self.born}-{quote(self.host, safe='')}"

    @classmethod
    def here(cls) -> Owner:
        """Name a new run of this process."""
        return cls(uuid4().hex[:12], socket.gethostname(), os.getpid(), _born(os.getpid()))

    def is_gone(self) -> bool:
        """Tell whether its process is known to have ended; of another machine nothing is known."""
        return self.host == socket.gethostname() and (not _lives(self.pid) or _born(self.pid) != self.born)


@dataclass(frozen=True)
class Lease:
    """The right to write to a table.

    Attributes:
        folder: the table's.
        owner: who has it.
    """

    folder: Folder
    owner: Owner

    def check(self) -> None:
        """See that nobody has taken it, before something is written that two runs must not write.

        Raises:
            ConfigError: another run has it.
        """
        there = _owner(self.folder)
        if there != self.owner:
            by = f"the run {there.run} on {there.host}" if there is not None else "somebody who deleted its file"
            msg = f"this run lost its lease on {self.folder.url} to {by}, after no sign of life for {STALE_SECONDS:.0f} s: run it again when that one is done"
            raise ConfigError(msg)


@contextmanager
def leased(folder: Folder, owner: Owner | None = None, beat_seconds: float = BEAT_SECONDS) -> Iterator[Lease]:
    """Hold a table's lease for the length of a block; a thread gives a sign of life, and ends with it.

    Args:
        folder: the table's.
        owner: ``None``: a new run of this process.
        beat_seconds: between two signs of life.

    Raises:
        ConfigError: another run has it, and may be alive.
    """
    lease = Lease(folder, owner or Owner.here())
    claim = f"{_PLACE}/{lease.owner.claim}"
    folder.create(claim, "")
    try:
        _take(lease)
    finally:
        folder.delete(claim)
    ended = Event()
    beat = Thread(target=_beat, args=(lease, ended, beat_seconds), name="sparkinfer-lease")
    beat.start()
    try:
        _clear(lease)
        yield lease
    finally:
        ended.set()
        beat.join()
        for name in _beats(folder, lease.owner):
            folder.delete(f"{_PLACE}/{name}")
        if _owner(folder) == lease.owner:
            folder.delete(LEASE)


def _take(lease: Lease) -> None:
    text = json.dumps(asdict(lease.owner))
    if lease.folder.create(LEASE, text):
        return
    there = _owner(lease.folder)
    quiet = _quiet_seconds(lease.folder, there)
    possible = [there] if there is not None else _claims(lease)
    if (possible and all(owner.is_gone() for owner in possible)) or quiet > STALE_SECONDS:
        lease.folder.delete(LEASE)
        if lease.folder.create(LEASE, text):
            return
        there = _owner(lease.folder)
    who = f"the run {there.run} (process {there.pid} on {there.host})" if there is not None else "a run that is just beginning"
    msg = (
        f"{who} is at work on {lease.folder.url}, and gave a sign of life {quiet:.0f} s ago: two at once would score the same rows. Wait for its end; a "
        f"dead one of another machine counts as gone after {STALE_SECONDS:.0f} s, or at once if you delete {lease.folder.url}/{LEASE}"
    )
    raise ConfigError(msg)


def _claims(lease: Lease) -> list[Owner]:
    """Give who else wants the lease, or has just got it."""
    found = (Owner.of_claim(entry.name) for entry in lease.folder.entries(_PLACE))
    return [owner for owner in found if owner is not None and owner != lease.owner]


def _clear(lease: Lease) -> None:
    """Delete what runs that were killed have left beside the lease, which is ours: their signs of life, claims and unfinished files."""
    for entry in lease.folder.entries(_PLACE):
        claims = Owner.of_claim(entry.name)
        killed = claims is not None and claims.is_gone()
        if (
            killed
            or entry.name.endswith(".tmp")
            or (entry.name.startswith("beat-") and not entry.name.startswith(f"beat-{lease.owner.run}-"))
        ):
            lease.folder.delete(f"{_PLACE}/{entry.name}")


def _owner(folder: Folder) -> Owner | None:
    text = folder.read(LEASE)
    with suppress(ValueError, TypeError):
        return Owner(**json.loads(text or ""))
    return None


def _quiet_seconds(folder: Folder, there: Owner | None) -> float:
    """Measure by a file that is written now: the machine's clock and the file system's need not agree."""
    now = f"{uuid4().hex}.tmp"
    folder.create(f"{_PLACE}/{now}", "")
    written = {entry.name: entry.changed_seconds for entry in folder.entries(_PLACE)}
    folder.delete(f"{_PLACE}/{now}")
    signs = [LEASE.rpartition("/")[2], *(_beats(folder, there) if there is not None else ())]
    last = max((written[name] for name in signs if name in written), default=None)
    return 0.0 if last is None else max(0.0, written.get(now, last) - last)


def _beats(folder: Folder, owner: Owner) -> list[str]:
    return [entry.name for entry in folder.entries(_PLACE) if entry.name.startswith(f"beat-{owner.run}-")]


def _beat(lease: Lease, ended: Event, seconds: float) -> None:
    """Write a new file and then delete the last one: there is no moment without one, and the lease itself is never written again."""
    while not ended.wait(seconds):
        with suppress(Exception):  # a file system that does not answer now may do so next time; check() says if the lease was lost
            before = _beats(lease.folder, lease.owner)
            lease.folder.create(f"{_PLACE}/beat-{lease.owner.run}-{uuid4().hex[:8]}", "")
            for name in before:
                lease.folder.delete(f"{_PLACE}/{name}")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _born(pid: int) -> str:
    with suppress(OSError, IndexError):
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )  # field 22, as proc(5) counts
    return ""
