"""A partition's stopwatch: exclusive stages that add up to wall time; and a meter for the queue before the model.

Runs on: worker.

Invariant: every moment between ``start`` and ``finish`` is in exactly one stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

__all__ = ["QueueMeter", "Stopwatch"]


class Stopwatch:
    """Gives the time since the last lap to the stage that has just ended.

    Example:
        >>> ticks = iter([0.0, 2.0, 5.0])
        >>> watch = Stopwatch(clock=lambda: next(ticks))
        >>> watch.lap("input_wait")
        2.0
        >>> watch.lap("compute")
        3.0
        >>> watch.seconds
        {'input_wait': 2.0, 'compute': 3.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start."""
        self._clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, stage: str) -> float:
        """End a stage, and give the seconds that it took this time."""
        now = self._clock()
        took = now - self._last
        self._last = now
        self.seconds[stage] = self.seconds.get(stage, 0.0) + took
        return took

    @property
    def wall_seconds(self) -> float:
        """All stages together."""
        return sum(self.seconds.values())


class QueueMeter:
    """Between a producer and a consumer: how many items waited, and how long the producer waited for room.

    The depth is weighted by time, and not sampled at puts: a queue that is mostly full but drained in bursts reads so.

    Example:
        >>> ticks = iter([0.0, 1.0, 1.0, 4.0, 4.0])
        >>> meter = QueueMeter(clock=lambda: next(ticks))
        >>> meter.put(meter.putting())  # from 1 to 1
        >>> meter.got()
        >>> meter.mean_depth  # one item for 3 of 4 seconds
        0.75
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start, empty."""
        self._clock = clock
        self._lock = Lock()
        self._depth = 0
        self._begin()

    def restart(self) -> None:
        """Forget the time that is past, and keep what waits: called when warm-up is over."""
        with self._lock:
            self._begin()

    def putting(self) -> float:
        """Begin a put that may wait for room; what is given goes to ``put``."""
        return self._clock()

    def put(self, begun: float) -> None:
        """Tell that the put has been made."""
        with self._lock:  # the clock is read inside: a move that came first is never later than the next
            now = self._clock()
            self.blocked_seconds += now - max(begun, self._begun)
            self._move(now, 1)

    def got(self) -> None:
        """Tell that an item was taken."""
        with self._lock:
            self._move(self._clock(), -1)

    @property
    def seconds(self) -> float:
        """The time that the figures are of: from the start to the last move."""
        return self._last - self._begun

    @property
    def mean_depth(self) -> float:
        """Items that waited, on the average of the time."""
        return self._filled / self.seconds if self.seconds > 0 else 0.0

    @property
    def empty_fraction(self) -> float:
        """Share of the time in which none waited."""
        return self._empty / self.seconds if self.seconds > 0 else 0.0

    def _begin(self) -> None:
        self._begun = self._last = self._clock()
        self._filled = 0.0  # items times seconds
        self._empty = 0.0
        self.blocked_seconds = 0.0

    def _move(self, now: float, change: int) -> None:
        spent = now - self._last
        if self._depth > 0:
            self._filled += self._depth * spent
        else:  # below 0 for a moment, where an item is taken before its put has come back
            self._empty += spent
        self._depth += change
        self._last = now
