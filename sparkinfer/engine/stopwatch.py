"""A partition's stopwatch: exclusive stages that add up to wall time; and a meter for the queue before the model.

Runs on: worker.

Invariant: every moment between ``start`` and ``finish`` is in exactly one stage.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["QueueMeter", "Stopwatch"]

_MOVES_AT_ONCE = 4096


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

    The depth is weighted by time, and not sampled at puts: a queue that is mostly full but drained in bursts reads so. Each thread only
    notes when it did what, and the consumer adds up: a lock between the two cost more than all else that is measured of a batch.

    Example:
        >>> ticks = iter([0.0, 1.0, 1.0, 4.0])
        >>> meter = QueueMeter(clock=lambda: next(ticks))
        >>> meter.put(meter.putting())  # from 1 to 1
        >>> meter.got()
        >>> meter.mean_depth  # one item for 3 of 4 seconds
        0.75
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start, empty."""
        self._clock = clock
        self._puts: deque[tuple[float, float]] = deque()  # begun and made, of items whose taking is not added up yet
        self._gots: deque[float] = deque()
        self._taken = clock()  # when the last item went whose time is added up
        self._sums = _Sums(self._taken)
        self._begun = self._taken

    def restart(self) -> None:
        """Forget the time that is past, and keep what waits: called by the consumer when warm-up is over."""
        self._add_up()
        self._begun = self._clock()
        self._sums = _Sums(self._begun)

    def putting(self) -> float:
        """Begin a put that may wait for room; what is given goes to ``put``."""
        return self._clock()

    def put(self, begun: float) -> None:
        """Tell that the put has been made."""
        self._puts.append((begun, self._clock()))

    def got(self) -> None:
        """Tell that an item was taken."""
        self._gots.append(self._clock())
        if len(self._gots) >= _MOVES_AT_ONCE:
            self._add_up()

    @property
    def waiting(self) -> int:
        """Items that wait now."""
        return max(0, len(self._puts) - len(self._gots))

    @property
    def seconds(self) -> float:
        """The time that the figures are of: from the start to the last move."""
        return self._now().last - self._begun

    @property
    def mean_depth(self) -> float:
        """Items that waited, on the average of the time."""
        return self._share(self._now().filled)

    @property
    def empty_fraction(self) -> float:
        """Share of the time in which none waited."""
        return self._share(self._now().empty)

    @property
    def full_fraction(self) -> float:
        """Share of the time in which the producer stood before a full queue."""
        return min(1.0, self._share(self._now().blocked))

    @property
    def blocked_seconds(self) -> float:
        """How long the producer waited for room."""
        return self._now().blocked

    def _share(self, amount: float) -> float:
        return amount / self.seconds if self.seconds > 0 else 0.0

    def _add_up(self) -> None:
        """Add what is known of the items that came and went."""
        puts, gots = self._puts, self._gots
        known = min(len(puts), len(gots))
        self._sums, self._taken = self._with([(*puts.popleft(), gots.popleft()) for _ in range(known)])

    def _now(self) -> _Sums:
        """Add to that the items that wait, up to the last move."""
        self._add_up()
        waiting = list(self._puts)
        last = max([self._sums.last, *(made for _, made in waiting), *self._gots])
        return self._with([(begun, made, last) for begun, made in waiting])[0]._replace(last=last)

    def _with(self, items: list[tuple[float, float, float]]) -> tuple[_Sums, float]:
        """Add items, each as when its put began, when it was made, and when it was taken; time before the start counts for nothing."""
        start, taken = self._begun, self._taken
        last, filled, empty, blocked = self._sums
        for begun, made, got in items:
            came = min(made, got)  # taken while its put had not come back: it never waited
            filled += max(0.0, got - max(came, start))
            empty += max(0.0, came - max(taken, start))
            blocked += max(0.0, made - max(begun, start))
            last = max(last, made, got)
            taken = got
        return _Sums(last, filled, empty, blocked), taken


class _Sums(NamedTuple):
    """What a queue's items add up to.

    Attributes:
        last: when the last move was.
        filled: items times the seconds that they waited.
        empty: seconds in which none waited: first in, first out, so from the last item's going to the next one's coming.
        blocked: seconds of waiting for room.
    """

    last: float
    filled: float = 0.0
    empty: float = 0.0
    blocked: float = 0.0
