"""A place on a card for each process that holds a model there: counted, bounded, and freed by the kernel when a process dies.

Runs on: worker (standard library only; where there is no ``fcntl``, there are no places, and every process goes on without one).

Invariant: at most ``limit`` processes hold a card's places below it; a process holds one place at a time on a card, whatever runs in it, and an
idle one gives way, its models let go first, as soon as another process waits for that card.

::

    <folder>/<card>/place-0, place-1, ...   each locked by the process that holds it
    <folder>/<card>/waiting                 locked by one of those that wait
    <folder>/choosing                       locked while one process counts and takes

Locks are ``flock``'s: of an open file, so that a second look of the same process is refused like another's, and gone with the last process that
has the file open. A forked child closes its copies, or a loader process would keep its killed parent's place.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Berth", "Berths", "NoPlaceKept", "process_berths", "runtime_folder"]

_MOST = 4096  # places of a card that has no limit
_LOOK_EVERY = 0.1  # seconds; no system call waits for any one of several locks
_FOLDER = "SPARKINFER_RUNTIME_FOLDER"

Limit = Callable[[str], "int | None"]


class NoPlaceKept(OSError):  # noqa: N818 - a fact that the caller may ignore
    """Lock files cannot be kept here."""


@dataclass(frozen=True)
class Berth:
    """A place that is held.

    Attributes:
        card: its name on the host.
        position: of the card among those that were asked for.
        place: its number.
        waited_seconds: before it was free; ``None`` where no place is kept.
    """

    card: str
    position: int
    place: int
    waited_seconds: float | None


@dataclass
class _Held:
    descriptor: int
    place: int
    users: int = 0
    idle: threading.Event | None = None  # set when it is wanted again, or no more
    watch: threading.Thread | None = None
    evict: Callable[[str], None] = lambda _: None


def runtime_folder() -> Path:
    """Give this user's folder of lock files, the same one for all of their processes on the host; it may not exist yet.

    ``TMPDIR`` is not asked: Spark's executors often have their own.
    """
    said = os.environ.get(_FOLDER)
    if said:
        return Path(said)
    base = Path("/tmp")  # noqa: S108 - the folder's owner and mode are checked before it is used
    return (base if base.is_dir() else Path(tempfile.gettempdir())) / f"sparkinfer-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


class Berths:
    """The places that this process holds."""

    def __init__(
        self, folder: Callable[[], Path] = runtime_folder, look_every: float = _LOOK_EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Hold none yet.

        Args:
            folder: where the lock files are.
            look_every: seconds between two looks of who waits, and of an idle holder whether somebody waits.
            clock: rising seconds.
        """
        self._folder = folder
        self._look_every = look_every
        self._clock = clock
        self._lock = threading.Lock()
        self._entering = threading.Lock()
        self._held: dict[str, _Held] = {}

    @contextmanager
    def hold(
        self, cards: Sequence[str], limit: Limit = lambda _: None, *, evict: Callable[[str], None] = lambda _: None, keep: bool = True
    ) -> Iterator[Berth]:
        """Hold a place on the card that the fewest processes hold, while the block runs; wait where all are full.

        A card on which this process has a place already is taken again: its model is loaded there.

        Args:
            cards: names on the host, the first of equals preferred.
            limit: the most places of a card; ``None`` for any number. Asked again at every look.
            evict: lets go of what this process has on a card; called when nobody uses it and another process waits.
            keep: hold the place on after the block, until another process waits for it or this process ends: what is loaded stays there.

        Raises:
            NoPlaceKept: lock files cannot be kept here.
        """
        with self._entering:
            berth = self._enter(cards, limit, evict)
        try:
            yield berth
        finally:
            self._leave(berth.card, keep=keep)

    def holders(self, card: str) -> int:
        """Count the processes that hold a place on a card, this one among them.

        Raises:
            NoPlaceKept: lock files cannot be kept here.
        """
        with self._choosing():
            return self._count(card)

    def forget(self) -> None:
        """In a forked child: close the copies of the parent's locks, which stay the parent's."""
        held, self._held = self._held, {}
        self._lock, self._entering = threading.Lock(), threading.Lock()  # either may have been held
        for one in held.values():
            os.close(one.descriptor)

    def release(self) -> None:
        """Give back every place that nobody in this process uses, and end the threads that watch over them."""
        with self._lock:
            idle = {card: held for card, held in self._held.items() if not held.users}
            for card in idle:
                self._give_back(card)
        for held in idle.values():
            if held.watch is not None:
                held.watch.join()

    def _enter(self, cards: Sequence[str], limit: Limit, evict: Callable[[str], None]) -> Berth:
        begun = self._clock()
        found = self._again(cards, evict) or self._take(cards, limit, evict)
        if found is None:
            with self._queue(cards) as ring:
                while (found := self._take(cards, limit, evict)) is None:
                    ring()
                    time.sleep(self._look_every)
        card, place = found
        return Berth(card, list(cards).index(card), place, self._clock() - begun)

    def _again(self, cards: Sequence[str], evict: Callable[[str], None]) -> tuple[str, int] | None:
        with self._lock:
            for card in cards:
                if card in self._held:
                    return card, self._use(card, evict)
        return None

    def _use(self, card: str, evict: Callable[[str], None]) -> int:
        held = self._held[card]
        held.users += 1
        held.evict = evict
        if held.idle is not None:
            held.idle.set()
            held.idle = None
        return held.place

    def _take(self, cards: Sequence[str], limit: Limit, evict: Callable[[str], None]) -> tuple[str, int] | None:
        with self._choosing():
            counts = {card: self._count(card) for card in cards}
            for card in sorted(cards, key=lambda card: counts[card]):  # stable: the first of equals
                most = limit(card)
                for place in range(_MOST if most is None else most):
                    descriptor = _locked(self._file(card, f"place-{place}"))
                    if descriptor is not None:
                        with self._lock:
                            self._held[card] = _Held(descriptor, place)
                            self._use(card, evict)
                        return card, place
        return None

    def _leave(self, card: str, *, keep: bool) -> None:
        with self._lock:
            held = self._held.get(card)
            if held is None:  # a forked child leaves the block that its parent entered
                return
            held.users -= 1
            if held.users:
                return
            if not keep or self._wanted(card):
                self._give_back(card)
                return
            held.idle = threading.Event()
            held.watch = threading.Thread(target=self._watch, args=(card, held, held.idle), name="sparkinfer-place", daemon=True)
            held.watch.start()

    def _watch(self, card: str, held: _Held, over: threading.Event) -> None:
        """Give an idle place back when another process waits for the card. A daemon: it ends with an idle worker."""
        while not over.wait(self._look_every):
            if self._wanted(card):
                with self._lock:
                    if not over.is_set() and self._held.get(card) is held:
                        self._give_back(card)
                return

    def _give_back(self, card: str) -> None:
        held = self._held.pop(card)
        if held.idle is not None:
            held.idle.set()
        try:
            held.evict(card)
        finally:
            fcntl.flock(held.descriptor, fcntl.LOCK_UN)  # a child that is being forked may not have closed its copy yet
            os.close(held.descriptor)

    def _wanted(self, card: str) -> bool:
        """Tell whether a process waits for the card; a shared lock, so that two that ask do not take each other for one that waits."""
        descriptor = _locked(self._file(card, "waiting"), fcntl.LOCK_SH)
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    @contextmanager
    def _queue(self, cards: Sequence[str]) -> Iterator[Callable[[], None]]:
        """Give what tells the holders of the cards that a process waits; one bell a card, which whoever waits may hold."""
        bells: dict[str, int] = {}

        def ring() -> None:
            for card in cards:
                if card not in bells and (descriptor := _locked(self._file(card, "waiting"))) is not None:
                    bells[card] = descriptor

        try:
            yield ring
        finally:
            for descriptor in bells.values():
                os.close(descriptor)

    @contextmanager
    def _choosing(self) -> Iterator[None]:
        descriptor = _opened(self._checked_folder() / "choosing")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _count(self, card: str) -> int:
        """Count a card's locked places; called while choosing, so that a look never costs another process its place."""
        taken = 0
        with self._lock:
            own = {held.place for name, held in self._held.items() if name == card}
        for path in self._file(card, "waiting").parent.glob("place-*"):
            if int(path.name.removeprefix("place-")) in own or (descriptor := _locked(path)) is None:
                taken += 1
            else:
                os.close(descriptor)
        return taken

    def _file(self, card: str, name: str) -> Path:
        folder = self._checked_folder() / re.sub(r"[^A-Za-z0-9._-]", "_", card)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _not_here(folder, str(error)) from error
        return folder / name

    def _checked_folder(self) -> Path:
        """Make the folder, and refuse one that is another user's: who owns it could hold every place."""
        folder = self._folder()
        if fcntl is None:
            raise _not_here(folder, "this system has no flock")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            raise _not_here(folder, str(error)) from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise _not_here(folder, "it is no folder of this user's")
        return folder


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_here(path, str(error)) from error


def _locked(path: Path, kind: int | None = None) -> int | None:
    """Open a file and lock it; ``None`` where another open file holds the lock."""
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if kind is None else kind) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _not_here(path: Path, why: str) -> NoPlaceKept:
    return NoPlaceKept(
        f"places on cards cannot be kept in {str(path)!r} ({why}): set {_FOLDER} to a folder that all workers of a host share"
    )


process_berths = Berths()
"""The places of this Python process."""


def _renew() -> None:
    with suppress(OSError):
        process_berths.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
