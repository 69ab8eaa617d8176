"""How long batches took on a device, by events that the device itself stamps, and that are read when it is known to be through.

Runs on: worker.

Invariant: measuring makes nobody wait and raises nothing: an event that is not through when it is read is let go, and its time is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

__all__ = ["BatchTime", "DeviceTime", "Event"]


class Event(Protocol):
    """A mark in a device's stream: ``torch.cuda.Event(enable_timing=True)``, or a fake."""

    def record(self, stream: Any) -> Any:
        """Have the device stamp it when it has done what is in the stream so far."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Give the milliseconds to another one; raise where either is not stamped yet."""
        ...


class DeviceTime:
    """Adds up the seconds of a device's stages over batches.

    Args:
        event: makes an event; those that were read are used again.
    """

    def __init__(self, event: Callable[[], Event]) -> None:
        """Start at nothing."""
        self._make = event
        self._idle: list[Event] = []
        self._seconds: dict[str, float] = {}

    def batch(self) -> BatchTime:
        """Begin a batch."""
        return BatchTime(self)

    def take(self) -> dict[str, float]:
        """Give the seconds by stage since this was last asked."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _event(self) -> Event:
        return self._idle.pop() if self._idle else self._make()

    def _add(self, stage: str, begun: Event, ended: Event) -> None:
        with suppress(Exception):  # whatever a driver raises, the answers count
            self._seconds[stage] = self._seconds.get(stage, 0.0) + begun.elapsed_time(ended) / 1000
            self._idle += (begun, ended)


class BatchTime:
    """One batch's events."""

    def __init__(self, device: DeviceTime) -> None:
        """Begin."""
        self._device = device
        self._laps: list[tuple[str, Event, Event]] = []

    @contextmanager
    def lap(self, stage: str, stream: Any) -> Iterator[None]:
        """Surround what is put into a stream."""
        begun, ended = self._device._event(), self._device._event()  # noqa: SLF001 - the two are one
        begun.record(stream)
        yield
        ended.record(stream)
        self._laps.append((stage, begun, ended))

    def read(self) -> None:
        """Add the batch's seconds up; called once, when the device is known to be through with it."""
        for lap in self._laps:
            self._device._add(*lap)  # noqa: SLF001
        self._laps.clear()
