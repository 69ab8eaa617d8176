"""The worker's host, as psutil sees it: CPU, memory, disk, network.

Runs on: worker. The only file that imports psutil.

Names and units are those of MLflow's own system metrics (3.17): megabytes are 1e6 bytes, shares are percentages. MLflow has no
throughput, so ``..._megabytes_per_second`` is added in its manner. Figures are the whole host's, not the process's.

Invariant: each figure is read by itself; one that cannot be had is absent, named once, and takes no other with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil

from sparkinfer.engine.samples import Samples, Tracks

__all__ = ["HostSampler"]

_SHORTEST = 0.1  # seconds between two readings of counters: Linux counts CPU time in hundredths of a second
_LOOPBACK = ("lo", "lo0", "Loopback Pseudo-Interface 1")


class HostSampler:
    """Watches the host during one partition.

    Series: ``cpu_utilization_percentage``, ``system_memory_usage_megabytes`` and ``_percentage``, and for disk ``read`` and
    ``write``, network ``receive`` and ``transmit`` the ``..._megabytes_per_second``. Gauges: the same four in all
    (``network_receive_megabytes``, ...), and how full the root disk was at the end (``disk_usage_percentage``,
    ``disk_usage_megabytes``, ``disk_available_megabytes``).
    """

    def __init__(self, clock: Callable[[], float] = time.time, source: Any = psutil) -> None:
        """Start with the first reading of the counters that only differences are taken of.

        Args:
            clock: seconds since 1970.
            source: psutil, or something with its functions.
        """
        self._clock = clock
        self._source = source
        self._tracks = Tracks()
        self._gauges: dict[str, float] = {}
        self._missing: dict[str, str] = {}
        self._counters = {
            "CPU utilization": _Counters(self._cpu, self._keep_cpu),
            "disk throughput": _Counters(self._disk, self._keep_throughput),
            "network throughput": _Counters(self._network, self._keep_throughput),
        }
        self._levels = {"memory": self._memory, "disk usage": self._disk_usage}
        now = clock()
        for name, counters in self._counters.items():
            self._read(name, partial(counters.prime, now))

    def sample(self) -> None:
        """Look once."""
        now = self._clock()
        for name, level in self._levels.items():
            self._read(name, partial(level, now))
        for name, counters in self._counters.items():
            self._read(name, partial(counters.advance, now))

    def finish(self) -> Samples:
        """Give what was seen."""
        remarks = (f"not measured on the host: {name} ({reason})" for name, reason in self._missing.items())
        return Samples(self._tracks.series(), self._gauges, tuple(remarks))

    def _read(self, name: str, read: Callable[[], None]) -> None:
        if name in self._missing:
            return
        try:
            read()
        # psutil raises what the system's files and calls make it raise: OSError, RuntimeError, NotImplementedError, KeyError, ...
        except Exception as error:  # noqa: BLE001 - a figure that cannot be had must not end a partition
            self._missing[name] = str(error) or type(error).__name__

    def _memory(self, now: float) -> None:
        memory = self._source.virtual_memory()
        self._tracks.add("system_memory_usage_megabytes", now, memory.used / 1e6)
        self._tracks.add("system_memory_usage_percentage", now, memory.used / memory.total * 100)

    def _disk_usage(self, _now: float) -> None:
        usage = self._source.disk_usage(os.sep)
        self._gauges["disk_usage_percentage"] = usage.percent
        self._gauges["disk_usage_megabytes"] = usage.used / 1e6
        self._gauges["disk_available_megabytes"] = usage.free / 1e6

    def _cpu(self) -> dict[str, float]:
        # not psutil.cpu_percent(): it remembers the last call for the whole process, or for the thread, and answers the first with 0
        times = self._source.cpu_times()._asdict()
        total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)  # Linux counts a guest's as the user's too
        return {"total": total, "idle": times["idle"] + times.get("iowait", 0.0)}

    def _keep_cpu(self, now: float, change: dict[str, float], _seconds: float) -> None:
        if change["total"] > 0:
            busy = 1 - change["idle"] / change["total"]
            self._tracks.add("cpu_utilization_percentage", now, min(1.0, max(0.0, busy)) * 100)

    def _disk(self) -> dict[str, float]:
        counted = self._source.disk_io_counters()
        if counted is None:
            msg = "no disks to be seen here"
            raise OSError(msg)
        return {"disk_read": counted.read_bytes, "disk_write": counted.write_bytes}

    def _network(self) -> dict[str, float]:
        # Without loopback, where MLflow counts it: Spark sends every row to its Python workers through it, and back.
        cards = [counted for name, counted in (self._source.net_io_counters(pernic=True) or {}).items() if name not in _LOOPBACK]
        if not cards:
            msg = "no network interface to be seen here but loopback"
            raise OSError(msg)
        return {"network_receive": sum(card.bytes_recv for card in cards), "network_transmit": sum(card.bytes_sent for card in cards)}

    def _keep_throughput(self, now: float, change: dict[str, float], seconds: float) -> None:
        for name, counted in change.items():
            if counted >= 0:  # an interface that went away takes its count along
                self._tracks.add(f"{name}_megabytes_per_second", now, counted / 1e6 / seconds)
                self._gauges[f"{name}_megabytes"] = self._gauges.get(f"{name}_megabytes", 0.0) + counted / 1e6


class _Counters:
    """Counters that only rise: what matters is how far since the last look."""

    def __init__(self, read: Callable[[], dict[str, float]], keep: Callable[[float, dict[str, float], float], None]) -> None:
        self._read = read
        self._keep = keep
        self._last: dict[str, float] = {}
        self._when = 0.0

    def prime(self, now: float) -> None:
        self._last, self._when = self._read(), now

    def advance(self, now: float) -> None:
        if now - self._when < _SHORTEST:
            return
        last, when = self._last, self._when
        self.prime(now)
        self._keep(now, {name: value - last[name] for name, value in self._last.items()}, now - when)
