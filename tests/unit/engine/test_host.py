"""The host's figures: right differences, MLflow's names and units, and one that is missing takes no other with it."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from sparkinfer.engine.host import HostSampler

if TYPE_CHECKING:
    from sparkinfer.engine.samples import Samples

Times = namedtuple("Times", "user system idle iowait guest guest_nice")  # noqa: PYI024 - psutil gives named tuples
RATES = {f"{name}_megabytes_per_second" for name in ("disk_read", "disk_write", "network_receive", "network_transmit")}


class Host:
    """A host by a script: what the counters stand at is set, not counted."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.times = Times(100.0, 50.0, 1000.0, 10.0, 20.0, 0.0)
        self.disk = SimpleNamespace(read_bytes=5_000_000, write_bytes=0)
        self.cards = {"lo": self.card(10**12), "eth0": self.card(1_000_000), "eth1": self.card(0)}

    @staticmethod
    def card(received: int, sent: int = 0) -> SimpleNamespace:
        return SimpleNamespace(bytes_recv=received, bytes_sent=sent)

    def clock(self) -> float:
        return self.now

    def cpu_times(self) -> Times:
        return self.times

    def virtual_memory(self) -> SimpleNamespace:
        return SimpleNamespace(used=4_000_000_000, total=16_000_000_000)

    def disk_usage(self, path: str) -> SimpleNamespace:
        return SimpleNamespace(percent=40.0, used=400_000_000, free=600_000_000)

    def disk_io_counters(self) -> SimpleNamespace | None:
        return self.disk

    def net_io_counters(self, *, pernic: bool) -> dict[str, SimpleNamespace]:
        return self.cards


def values(seen: Samples) -> dict[str, tuple[float, ...]]:
    return {series.name: series.values for series in seen.series}


def test_figures_are_differences_over_the_time_between() -> None:
    """Two seconds: 3 busy of 4 CPU seconds, 10 MB read, 20 MB written, 6 MB received; a guest's time is not counted twice."""
    host = Host()
    sampler = HostSampler(host.clock, host)
    host.now += 2
    host.times = Times(102.5, 50.5, 1000.75, 10.25, 21.0, 0.0)
    host.disk = SimpleNamespace(read_bytes=15_000_000, write_bytes=20_000_000)
    host.cards = {"lo": host.card(2 * 10**12, 10**12), "eth0": host.card(5_000_000, 1_000_000), "eth1": host.card(2_000_000)}
    sampler.sample()
    seen = sampler.finish()
    assert values(seen) == {
        "system_memory_usage_megabytes": (4000,),
        "system_memory_usage_percentage": (25,),
        "cpu_utilization_percentage": (75,),
        "disk_read_megabytes_per_second": (5,),
        "disk_write_megabytes_per_second": (10,),
        "network_receive_megabytes_per_second": (3,),
        "network_transmit_megabytes_per_second": (0.5,),
    }
    assert seen.gauges == {
        "disk_usage_percentage": 40,
        "disk_usage_megabytes": 400,
        "disk_available_megabytes": 600,
        "disk_read_megabytes": 10,
        "disk_write_megabytes": 20,
        "network_receive_megabytes": 6,
        "network_transmit_megabytes": 1,
    }
    assert {series.times_unix for series in seen.series} == {(1002.0,)}
    assert seen.remarks == ()


def test_a_window_too_short_for_differences_has_none() -> None:
    """In 50 ms a CPU clock that ticks in hundredths tells nothing: absent and not 0; memory is there."""
    host = Host()
    sampler = HostSampler(host.clock, host)
    host.now += 0.05
    sampler.sample()
    seen = sampler.finish()
    assert set(values(seen)) == {"system_memory_usage_megabytes", "system_memory_usage_percentage"}
    assert "network_receive_megabytes" not in seen.gauges


@pytest.mark.parametrize(
    ("function", "answer", "gone", "remark"),
    [
        ("cpu_times", PermissionError("not for you"), {"cpu_utilization_percentage"}, "CPU utilization (not for you)"),
        ("virtual_memory", RuntimeError("odd"), {"system_memory_usage_megabytes", "system_memory_usage_percentage"}, "memory (odd)"),
        ("disk_usage", OSError("gone"), set(), "disk usage (gone)"),
        ("disk_io_counters", None, {name for name in RATES if "disk" in name}, "disk throughput (no disks to be seen here)"),
        ("disk_io_counters", NotImplementedError(), {name for name in RATES if "disk" in name}, "disk throughput (NotImplementedError)"),
        (
            "net_io_counters",
            {"lo": Host.card(5)},
            {name for name in RATES if "network" in name},
            "network throughput (no network interface to be seen here but loopback)",
        ),
    ],
)
def test_what_cannot_be_had_is_absent_and_alone(function: str, answer: Any, gone: set[str], remark: str) -> None:
    """A figure that psutil cannot give is missing, named once, and every other is there."""

    def scripted(**_options: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def look(host: Host) -> Samples:
        sampler = HostSampler(host.clock, host)
        for _ in range(3):
            host.now += 1
            host.times = host.times._replace(user=host.times.user + 1)
            sampler.sample()
        return sampler.finish()

    whole = look(Host())
    host = Host()
    setattr(host, function, scripted if function != "disk_usage" else lambda _path: scripted())
    seen = look(host)
    assert set(values(whole)) - set(values(seen)) == gone
    assert seen.remarks == (f"not measured on the host: {remark}",)


def test_an_interface_that_goes_away_gives_no_negative_throughput() -> None:
    """When the sum falls, that look is left out."""
    host = Host()
    sampler = HostSampler(host.clock, host)
    for received in (3_000_000, None, 500_000):
        host.now += 1
        host.cards = {"eth1": host.card(0)} if received is None else {"eth0": host.card(received), "eth1": host.card(0)}
        sampler.sample()
    seen = sampler.finish()
    assert values(seen)["network_receive_megabytes_per_second"] == (2, 0.5)
    assert seen.gauges["network_receive_megabytes"] == 2.5


def test_this_host_has_figures() -> None:
    """psutil itself: shares are from 0 to 100, memory is what psutil says it is."""
    now = [1000.0]
    sampler = HostSampler(lambda: now[0])
    now[0] += 1
    sampler.sample()
    seen = sampler.finish()
    [memory] = values(seen)["system_memory_usage_megabytes"]
    assert 0 < memory < psutil.virtual_memory().total / 1e6
    for name, [value] in values(seen).items():
        assert value >= 0
        assert value <= 100 or not name.endswith("percentage")


def test_names_and_units_are_mlflows() -> None:
    """Each figure of MLflow's own host monitors is here by the same name, and the levels are the same to 5 %."""
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    now = [1000.0]
    sampler = HostSampler(lambda: now[0])
    now[0] += 1
    theirs: dict[str, float] = {}
    for monitor in (CPUMonitor(), DiskMonitor(), NetworkMonitor()):
        monitor.collect_metrics()
        theirs |= monitor.aggregate_metrics()
    sampler.sample()
    seen = sampler.finish()
    ours = {**seen.gauges, **{name: found[0] for name, found in values(seen).items()}}
    counters = set(psutil.net_io_counters(pernic=True)) - {"lo"}
    assert set(theirs) - set(ours) <= ({"cpu_utilization_percentage"} | (set() if counters else {n for n in theirs if "network" in n}))
    for name in theirs:
        if name.startswith(("system_memory", "disk")):
            assert ours[name] == pytest.approx(theirs[name], rel=0.05)
