"""What the samplers share: their one shape, the one that has nothing to tell, and series that stay short.

Runs on: worker.

Invariant: a track never holds more than ``MAX_POINTS`` points, evenly spaced over all that it was given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sparkinfer.metrics import Series

__all__ = ["MAX_POINTS", "NoSampler", "Sampler", "Samples", "Track", "Tracks"]

MAX_POINTS = 64


@dataclass
class Samples:
    """What was seen in a partition's window.

    Attributes:
        series: quantities over time, at most ``MAX_POINTS`` points each.
        gauges: single figures of the whole window.
        remarks: what was not to be had, and why; each once.
    """

    series: tuple[Series, ...] = ()
    gauges: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def take(self, parts: Iterable[Samples]) -> None:
        """Hold what several samplers saw, besides what is held already."""
        for part in parts:
            self.series += part.series
            self.gauges = {**self.gauges, **part.gauges}
            self.remarks += tuple(remark for remark in part.remarks if remark not in self.remarks)


class Sampler(Protocol):
    """Watches one thing for the length of one partition."""

    def sample(self) -> None:
        """Look once."""

    def finish(self) -> Samples:
        """Give what was seen, and let go of everything; called once, and last."""


class NoSampler:
    """Sees nothing, and says why: the null object of ``Sampler``."""

    def __init__(self, remark: str) -> None:
        """Keep the reason."""
        self._remark = remark

    def sample(self) -> None:
        """Look at nothing."""

    def finish(self) -> Samples:
        """Give the reason."""
        return Samples(remarks=(self._remark,))


class Track:
    """One quantity over time. When it is full, every second point goes, and from then on half as many come in.

    Example:
        >>> track = Track()
        >>> for second in range(1000):
        ...     track.add(float(second), 50.0)
        >>> len(track.times), track.times[:3], track.times[-1]
        (63, [0.0, 16.0, 32.0], 992.0)
    """

    def __init__(self) -> None:
        """Start empty."""
        self.times: list[float] = []
        self.values: list[float] = []
        self._given = 0
        self._stride = 1

    def add(self, time_unix: float, value: float) -> None:
        """Give a point, later than all before; what is no number is not one."""
        if not math.isfinite(value):
            return
        if self._given % self._stride == 0:
            if len(self.times) == MAX_POINTS:
                del self.times[1::2], self.values[1::2]
                self._stride *= 2
            if self._given % self._stride == 0:
                self.times.append(round(time_unix, 3))
                self.values.append(round(value, 2))
        self._given += 1


class Tracks:
    """Tracks by name, made when the first value comes: what was never measured has none."""

    def __init__(self, prefix: str = "", device: str | None = None) -> None:
        """Start empty.

        Args:
            prefix: before each name.
            device: the card's UUID, where the values are a card's.
        """
        self._prefix = prefix
        self._device = device
        self._tracks: dict[str, Track] = {}

    def add(self, name: str, time_unix: float, value: float) -> None:
        """Give a point."""
        self._tracks.setdefault(name, Track()).add(time_unix, value)

    def series(self) -> tuple[Series, ...]:
        """Give what was measured."""
        return tuple(
            Series(self._prefix + name, self._device, tuple(track.times), tuple(track.values))
            for name, track in self._tracks.items()
            if track.times
        )
