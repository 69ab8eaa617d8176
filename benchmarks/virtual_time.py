"""A clock that goes on only while every thread of the process sleeps: what is simulated by sleeping takes no time, and a busy machine changes no figure.

``time.sleep`` and ``time.perf_counter`` are replaced. When all threads but the clock's own stand still, the clock jumps to the earliest moment for which a
sleeper waits, and wakes it. Threads, locks and queues are the real ones: only the waiting is simulated. What is computed takes no time at all.

How it is known that all stand still: Linux tells of each thread whether it sleeps, and how often it was switched. Where two looks, one after the other, find
every thread asleep with the same counts, each of them slept from the first look to the second, so all slept at the moment between the two; and then nobody is
left who could wake one. Between the looks the clock's thread sleeps for real, so that a thread that waits for the interpreter's lock gets it and is seen.
"""

from __future__ import annotations

import heapq
import math
import random
import re
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

__all__ = ["VirtualTime"]

_BETWEEN_LOOKS = 1e-4  # real seconds
_WINDOW = 1.0  # seconds for which the machine is as slow as it is
_really_sleep = time.sleep
_THREAD = re.compile(rb"State:\t(\S).*voluntary_ctxt_switches:\t(\d+)\nnonvoluntary_ctxt_switches:\t(\d+)", re.DOTALL)


class VirtualTime:
    """The clock of this process from ``install`` on."""

    def __init__(self) -> None:
        """Begin at 0, without noise."""
        self._now = 0.0
        self._asked = threading.Condition()
        self._sleepers: list[tuple[float, int, Any]] = []
        self._numbers = count()
        self._clock = threading.Thread(target=self._run, name="virtual time", daemon=True)
        self.restart(random.Random(0), 0.0, 0.0)  # noqa: S311 - noise

    def restart(self, chance: random.Random, spread: float, drift: float) -> None:
        """Begin other noise, while nobody sleeps.

        Args:
            chance: of the noise.
            spread: by which sleeps differ from what was asked: the deviation of their logarithm.
            drift: likewise, by which whole seconds do, as on a machine that others use too.
        """
        self._chance, self._spread, self._drift = chance, spread, drift
        self._windows: dict[int, float] = {}

    def install(self) -> None:
        """Replace the functions of ``time``, and start."""
        time.sleep = self.sleep
        time.perf_counter = self.now
        self._clock.start()

    def now(self) -> float:
        """Give the seconds since the beginning."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Wait for the clock."""
        gate = threading.Lock()
        gate.acquire()
        with self._asked:
            heapq.heappush(self._sleepers, (self._now + seconds * self._noise(), next(self._numbers), gate))
            self._asked.notify()
        gate.acquire()

    def _noise(self) -> float:
        window = int(self._now / _WINDOW)
        if window not in self._windows:
            self._windows[window] = self._chance.gauss(0, self._drift)
        return math.exp(self._chance.gauss(0, self._spread) + self._windows[window])

    def _run(self) -> None:
        while True:
            with self._asked:
                self._asked.wait_for(lambda: self._sleepers)
            while not _all_asleep():
                pass
            with self._asked:
                self._now, _, gate = heapq.heappop(self._sleepers)
            gate.release()


def _all_asleep() -> bool:
    first = _look()
    _really_sleep(_BETWEEN_LOOKS)
    return first is not None and first == _look()


def _look() -> dict[str, tuple[bytes, bytes]] | None:
    """Give how often each other thread was switched; ``None`` where one does not sleep."""
    found = {}
    mine = str(threading.get_native_id())
    for thread in Path("/proc/self/task").iterdir():
        if thread.name == mine:
            continue
        try:
            told = _THREAD.search((thread / "status").read_bytes())
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            return None
        if told is None or told[1] != b"S":
            return None
        found[thread.name] = (told[2], told[3])
    return found
