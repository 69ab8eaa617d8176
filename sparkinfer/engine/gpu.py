"""The cards that a task owns, watched during one partition.

Runs on: worker. Knows no library: ``GpuBackend`` is what it asks of one, and ``engine/nvml.py`` has NVIDIA's.

Invariant: each counter is read by itself; one that cannot be read is absent, never 0, is named once, and takes no other with it.
A card that is lost keeps the figures that it had, and is not asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sparkinfer.engine.cards import CardLost, Unreadable, own_cards
from sparkinfer.engine.samples import Samples, Tracks
from sparkinfer.metrics import Series

if TYPE_CHECKING:
    from sparkinfer.engine.cards import Card, GpuBackend

__all__ = ["GpuSampler"]

_IDLE_PERCENT = 10.0  # below it a sample counts as idle: a card that is kept fed shows no such sample
_ENERGY_WINDOW = 5.0  # seconds: the driver renews its counter about ten times a second, so a shorter window is off by more than 2 %


class GpuSampler:
    """Watches a task's cards during one partition; ``sample`` and ``finish`` are called by one thread."""

    def __init__(
        self,
        backend: GpuBackend,
        *,
        addresses: Sequence[str] | None = None,
        visible: str | None = None,
        started: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Find the cards.

        Args:
            backend: reads them; closed by ``finish``.
            addresses: what Spark gave the task.
            visible: CUDA_VISIBLE_DEVICES.
            started: when the partition began, seconds since 1970; samples of the driver from before it are left out.
            clock: seconds since 1970.
        """
        self._backend = backend
        self._clock = clock
        self._watches: list[_Watch] = []
        self._remarks: list[str] = []
        try:
            cards = backend.cards()
        except Unreadable as why:
            self._remarks.append(f"no GPU figures: {why.reason}")
            return
        if not cards:
            self._remarks.append("no GPU figures: NVML finds no card on this host")
        owned, remarks = own_cards(cards, addresses, visible)
        self._remarks += remarks
        begun = clock() if started is None else started
        self._watches = [_Watch(backend, card, begun) for card in owned]

    def sample(self) -> None:
        """Look at every card once."""
        for watch in self._watches:
            watch.sample(self._clock())

    def finish(self) -> Samples:
        """Give what was seen, and close the backend."""
        self._backend.close()
        seen = Samples(remarks=tuple(self._remarks))
        seen.take(watch.samples() for watch in self._watches)
        return seen


class _Watch:
    """One card's figures."""

    def __init__(self, backend: GpuBackend, card: Card, started: float) -> None:
        self._backend = backend
        self._card = card
        self._lost = card.broken
        self._tracks = Tracks(f"{card.label}_", card.uuid)
        self._idle = _Idle(started)
        self._after = int(started * 1e6)
        self._buffered = True  # the driver keeps samples
        self._watts: float | None = None
        self._energy: list[tuple[float, float]] = []  # the first and the last reading
        self._throttled = {"power": 0, "thermal": 0, "any": 0}
        self._clock_looks = 0
        self._failed: dict[str, Unreadable] = {}
        self._had: set[str] = set()
        self._counters: dict[str, Callable[[float], bool]] = {
            "utilization": self._read_utilization,
            "memory": self._read_memory,
            "power": self._read_power,
            "power limit": self._read_power_limit,
            "energy": self._read_energy,
            "SM clock": self._read_clock,
            "temperature": self._read_temperature,
            "throttle reasons": self._read_throttling,
            "GPM activity": self._read_activity,
        }

    def sample(self, now: float) -> None:
        """Read every counter that is not known to be unreadable."""
        for name, read in self._counters.items():
            if self._lost is not None:
                return
            failure = self._failed.get(name)
            if failure is not None and failure.for_good:
                continue
            try:
                if read(now):
                    self._had.add(name)
            except CardLost as why:
                self._lost = why.reason
            except Unreadable as why:
                self._failed[name] = why

    def samples(self) -> Samples:
        """Give the figures."""
        return Samples(self._tracks.series() + self._energy_counter(), self._gauges(), tuple(self._remarks()))

    def _read_utilization(self, now: float) -> bool:
        if self._buffered:
            try:
                fresh = self._backend.utilization_samples(self._card, self._after)
            except CardLost:
                raise
            except Unreadable as why:
                if not why.for_good:
                    raise
                self._buffered = False
            else:
                for microseconds, percent in sorted(fresh):
                    if microseconds > self._after:
                        self._after = microseconds
                        self._keep_utilization(microseconds / 1e6, percent)
                return bool(fresh)
        self._keep_utilization(now, self._backend.utilization(self._card))
        return True

    def _keep_utilization(self, when: float, percent: float) -> None:
        self._tracks.add("utilization_percentage", when, percent)
        self._idle.add(when, percent)

    def _read_memory(self, now: float) -> bool:
        used, total = self._backend.memory(self._card)
        self._tracks.add("memory_usage_megabytes", now, used / 1e6)
        if total > 0:
            self._tracks.add("memory_usage_percentage", now, used / total * 100)
        return True

    def _read_power(self, now: float) -> bool:
        self._watts = None
        self._watts = self._backend.power(self._card)
        self._tracks.add("power_usage_watts", now, self._watts)
        return True

    def _read_power_limit(self, now: float) -> bool:
        limit = self._backend.power_limit(self._card)
        if self._watts is not None and limit > 0:
            self._tracks.add("power_usage_percentage", now, self._watts / limit * 100)
        return True

    def _read_energy(self, now: float) -> bool:
        self._energy = [*self._energy[:1], (now, self._backend.energy(self._card))]
        return True

    def _read_clock(self, now: float) -> bool:
        self._tracks.add("sm_clock_megahertz", now, self._backend.sm_clock(self._card))
        return True

    def _read_temperature(self, now: float) -> bool:
        self._tracks.add("temperature_celsius", now, self._backend.temperature(self._card))
        return True

    def _read_throttling(self, _now: float) -> bool:
        reasons = self._backend.throttling(self._card)
        self._clock_looks += 1
        self._throttled["any"] += bool(reasons)
        for kind in ("power", "thermal"):
            self._throttled[kind] += kind in reasons
        return True

    def _read_activity(self, now: float) -> bool:
        for name, value in self._backend.activity(self._card).items():
            if isinstance(value, Unreadable):
                self._failed.setdefault(name, value)
            else:
                self._had.add(name)
                self._tracks.add(name, now, value)
        return True

    def _energy_counter(self) -> tuple[Series, ...]:
        """Give the counter at both ends: several tasks on a card each see all of it, so a run's energy is the counter's span, and no sum."""
        if not self._energy:
            return ()
        times, joules = zip(*self._energy, strict=True)
        return (Series(f"{self._card.label}_energy_counter_joules", self._card.uuid, tuple(round(when, 3) for when in times), joules),)

    def _gauges(self) -> dict[str, float]:
        gauges = self._idle.gauges()
        if self._clock_looks:
            gauges["throttled_fraction"] = self._throttled["any"] / self._clock_looks
            gauges["throttled_power_fraction"] = self._throttled["power"] / self._clock_looks
            gauges["throttled_thermal_fraction"] = self._throttled["thermal"] / self._clock_looks
        if self._energy:
            (begun, before), (ended, after) = self._energy[0], self._energy[-1]
            if ended - begun >= _ENERGY_WINDOW and after >= before:
                gauges["energy_joules"] = after - before
        return {f"{self._card.label}_{name}": value for name, value in gauges.items()}

    def _remarks(self) -> list[str]:
        remarks = []
        if self._lost is not None:
            remarks.append(f"{self._card.label} ({self._card.uuid or 'no UUID'}) cannot be read any more: {self._lost}")
        # by product, and not by card, so that a run over many cards says it once
        owner = self._card.product or self._card.label
        grouped: dict[str, list[str]] = {}
        for name, why in self._failed.items():
            part = " for a part of the time" if name in self._had else ""
            grouped.setdefault(f"{why.reason}{part}", []).append(name)
        remarks += [f"not measured on {owner}: {', '.join(names)} ({reason})" for reason, names in grouped.items()]
        if self._lost is None and "utilization" not in self._failed and not self._idle.looks:
            remarks.append(f"not measured on {owner}: utilization (the driver took no sample during so short a partition)")
        return remarks


class _Idle:
    """How often, and how long on end, a card did nothing; a sample tells of the time since the one before it."""

    def __init__(self, started: float) -> None:
        self.looks = 0
        self._idle = 0
        self._longest = 0.0
        self._busy_until = started

    def add(self, when: float, percent: float) -> None:
        self.looks += 1
        if percent < _IDLE_PERCENT:
            self._idle += 1
            self._longest = max(self._longest, when - self._busy_until)
        else:
            self._busy_until = when

    def gauges(self) -> dict[str, float]:
        if not self.looks:
            return {}
        return {"idle_fraction": self._idle / self.looks, "longest_idle_seconds": self._longest}
