"""NVIDIA's cards through NVML.

Runs on: worker. The only file that imports pynvml (the package nvidia-ml-py).

NVML is set up once a process, at the first look, and again in a process that was forked from one that had it: its state does not
survive a fork. It is never shut down, since the framework may be using it and NVIDIA's driver has trouble with frequent set-ups.

Invariant: whatever a call raises comes out as ``Unreadable``: NVMLError, but also NVMLLibraryMismatchError (no NVMLError, raised by
nvidia-ml-py 13 when the driver is older) and AttributeError (when nvidia-ml-py is older).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pynvml

from sparkinfer.engine.cards import Card, CardLost, Unreadable

__all__ = ["Nvml"]

_MISMATCH: type[Exception] = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
_AGAIN = ("NVML_ERROR_TIMEOUT", "NVML_ERROR_UNKNOWN", "NVML_ERROR_IN_USE", "NVML_ERROR_NOT_READY", "NVML_ERROR_INSUFFICIENT_RESOURCES")
_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")

# bits of the clocks' event reasons; being idle (0x1), a set application clock (0x2), sync boost and display are no throttling
_POWER = 0x04 | 0x80  # software power cap, hardware power brake
_THERMAL = 0x20 | 0x40  # software and hardware thermal slowdown
_SLOWDOWN = 0x08  # hardware slowdown, of either cause

_GPM_SHORTEST = 0.1  # seconds between two samples, below which NVML gives no metrics
_GPM_METRICS = {  # NVML_GPM_METRIC_...: percentages, and throughput in MiB/s
    2: "sm_activity_percentage",
    5: "tensor_activity_percentage",
    10: "dram_bandwidth_percentage",
    20: "pcie_tx_mebibytes_per_second",
    21: "pcie_rx_mebibytes_per_second",
}

_setup = Lock()
_ready_in: list[int] = []  # the process that NVML was set up in


@dataclass(frozen=True)
class _Handle:
    device: Any
    parent: Any = None  # of a MIG slice
    instance: int | None = None  # its GPU instance


class Nvml:
    """Reads cards for one sampler; see ``GpuBackend`` for what each method gives."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take nothing yet."""
        self._clock = clock
        self._gpm: dict[str, tuple[Any, float]] = {}  # by UUID: the last sample and when it was taken

    def cards(self) -> Sequence[Card]:
        """Give all cards of the host; one that cannot be opened is told as broken."""
        _set_up()
        return [_card(index) for index in range(_call("nvmlDeviceGetCount"))]

    def utilization_samples(self, card: Card, after: int) -> Sequence[tuple[int, float]]:
        """Give the driver's buffered samples: every process that asks sees the same ones."""
        try:
            kind, samples = _call("nvmlDeviceGetSamples", card.handle.device, pynvml.NVML_GPU_UTILIZATION_SAMPLES, after)
        except Unreadable as why:
            if isinstance(why.__cause__, pynvml.NVMLError) and why.__cause__.value == pynvml.NVML_ERROR_NOT_FOUND:
                return []  # none since then
            raise
        field = {pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal", pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal"}.get(kind, "uiVal")
        return [(sample.timeStamp, float(getattr(sample.sampleValue, field))) for sample in samples]

    def utilization(self, card: Card) -> float:
        """Give the percentage of time with a kernel running, over the driver's last period (1/6 to 1 s)."""
        return float(_call("nvmlDeviceGetUtilizationRates", card.handle.device).gpu)

    def memory(self, card: Card) -> tuple[float, float]:
        """Give bytes in use, the driver's own among them, and in all."""
        memory = _call("nvmlDeviceGetMemoryInfo", card.handle.device)
        return float(memory.used), float(memory.total)

    def power(self, card: Card) -> float:
        """Give watts: a second's average on Ampere and later but for GA100, the present draw before."""
        return float(_call("nvmlDeviceGetPowerUsage", card.handle.device)) / 1e3

    def power_limit(self, card: Card) -> float:
        """Give the enforced limit in watts."""
        return float(_call("nvmlDeviceGetEnforcedPowerLimit", card.handle.device)) / 1e3

    def energy(self, card: Card) -> float:
        """Give joules since the driver was loaded (Volta and later)."""
        return float(_call("nvmlDeviceGetTotalEnergyConsumption", card.handle.device)) / 1e3

    def sm_clock(self, card: Card) -> float:
        """Give megahertz."""
        return float(_call("nvmlDeviceGetClockInfo", card.handle.device, pynvml.NVML_CLOCK_SM))

    def temperature(self, card: Card) -> float:
        """Give degrees Celsius."""
        # the second is deprecated, and the first is in neither old drivers nor old nvidia-ml-py
        return float(_first(("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), card.handle.device, pynvml.NVML_TEMPERATURE_GPU))

    def throttling(self, card: Card) -> Sequence[str]:
        """Give what holds the clocks down."""
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        bits = _first(names, card.handle.device)
        kinds = {"power": bits & _POWER, "thermal": bits & _THERMAL, "other": bits & _SLOWDOWN}
        return [kind for kind, found in kinds.items() if found]

    def activity(self, card: Card) -> Mapping[str, float | Unreadable]:
        """Give what GPM counted since the last call (Hopper and later): real work, where utilization counts any kernel as all of it."""
        handle: _Handle = card.handle
        now = self._clock()
        before = self._gpm.get(card.uuid)
        if before is None:
            if not _call("nvmlGpmQueryDeviceSupport", handle.parent or handle.device).isSupportedDevice:
                reason = "needs Hopper or newer"
                raise Unreadable(reason)
        elif now - before[1] < _GPM_SHORTEST:
            return {}
        taken = _gpm_sample(handle)
        self._gpm[card.uuid] = (taken, now)
        if before is None:
            return {}
        try:
            return _gpm_metrics(before[0], taken)
        finally:
            _gpm_free(before[0])

    def close(self) -> None:
        """Free the samples that are held."""
        while self._gpm:
            _, (sample, _) = self._gpm.popitem()
            _gpm_free(sample)


def _set_up() -> None:
    with _setup:
        if _ready_in != [os.getpid()]:
            _call("nvmlInit")
            _ready_in[:] = [os.getpid()]


def _call(name: str, *arguments: Any) -> Any:
    try:
        return getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        code = getattr(error, "value", None)
        if code in _codes(_LOST):
            raise CardLost(str(error)) from error
        raise Unreadable(str(error), for_good=code not in _codes(_AGAIN)) from error
    except _MISMATCH as error:
        reason = "the driver is older than nvidia-ml-py here"
        raise Unreadable(reason) from error
    except AttributeError as error:
        reason = f"nvidia-ml-py here has no {name}"
        raise Unreadable(reason) from error


def _first(names: Sequence[str], *arguments: Any) -> Any:
    """Call the first function that both nvidia-ml-py and the driver have."""
    for name in names[:-1]:
        try:
            return _call(name, *arguments)
        except CardLost:
            raise
        except Unreadable as why:
            if isinstance(why.__cause__, pynvml.NVMLError) and why.__cause__.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
    return _call(names[-1], *arguments)


def _codes(names: Sequence[str]) -> set[int]:
    return {getattr(pynvml, name) for name in names if hasattr(pynvml, name)}


def _card(index: int) -> Card:
    label = f"gpu_{index}"
    try:
        device = _call("nvmlDeviceGetHandleByIndex", index)
        uuid = _text(_call("nvmlDeviceGetUUID", device))
    except Unreadable as why:
        return Card(label, broken=why.reason)
    return Card(label, uuid, _product(device), _slices(label, device), handle=_Handle(device))


def _slices(label: str, parent: Any) -> tuple[Card, ...]:
    """List a card's MIG slices; none where MIG is off or unknown."""
    try:
        if not _call("nvmlDeviceGetMigMode", parent)[0]:
            return ()
        places = _call("nvmlDeviceGetMaxMigDeviceCount", parent)
    except Unreadable:
        return ()
    slices = []
    for place in range(places):
        try:
            device = _call("nvmlDeviceGetMigDeviceHandleByIndex", parent, place)
            instance = _call("nvmlDeviceGetGpuInstanceId", device)
            compute = _call("nvmlDeviceGetComputeInstanceId", device)
            uuid = _text(_call("nvmlDeviceGetUUID", device))
        except Unreadable:
            continue  # an empty place
        name = f"{label}_mig_{instance}" + (f"_{compute}" if compute else "")
        slices.append(Card(name, uuid, _product(device), handle=_Handle(device, parent, instance)))
    return tuple(slices)


def _product(device: Any) -> str:
    try:
        return _text(_call("nvmlDeviceGetName", device))
    except Unreadable:
        return ""


def _text(value: str | bytes) -> str:
    """Old nvidia-ml-py gives bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _gpm_sample(handle: _Handle) -> Any:
    sample = _call("nvmlGpmSampleAlloc")
    try:
        if handle.parent is None:
            _call("nvmlGpmSampleGet", handle.device, sample)
        else:  # utilization is not to be had of a slice, but this is
            _call("nvmlGpmMigSampleGet", handle.parent, handle.instance, sample)
    except Unreadable:
        _gpm_free(sample)
        raise
    return sample


def _gpm_metrics(before: Any, after: Any) -> dict[str, float | Unreadable]:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.sample1, asked.sample2 = before, after
    asked.numMetrics = len(_GPM_METRICS)
    for place, metric in enumerate(_GPM_METRICS):
        asked.metrics[place].metricId = metric
    _call("nvmlGpmMetricsGet", asked)
    found: dict[str, float | Unreadable] = {}
    for place, name in enumerate(_GPM_METRICS.values()):
        code = asked.metrics[place].nvmlReturn
        found[name] = asked.metrics[place].value if code == pynvml.NVML_SUCCESS else Unreadable(str(pynvml.NVMLError(code)))
    return found


def _gpm_free(sample: Any) -> None:
    try:
        _call("nvmlGpmSampleFree", sample)
    except Unreadable:
        return
