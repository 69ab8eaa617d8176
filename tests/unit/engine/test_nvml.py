"""The real nvidia-ml-py over a libnvidia-ml.so.1 of our own: struct layouts, refusals, MIG, lost cards, old drivers, forks.

Each test runs a fresh interpreter that finds the fake first, so the library is loaded as a driver's is. Its script is in tests/fakes/nvml.c.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

ROOT = Path(__file__).resolve().parents[3]
NOW = 1_800_000_000_000_000  # microseconds: the driver's clock when it is first asked for samples

WATCH = """
import json, os
from dataclasses import asdict
from sparkinfer.engine.gpu import GpuSampler
from sparkinfer.engine.nvml import Nvml

begun = float(os.environ.get("BEGUN", {now} / 1e6 - 1))
addresses = tuple(os.environ["ADDRESSES"].split(",")) if "ADDRESSES" in os.environ else None
ticks = [begun]
backend = Nvml(clock=lambda: ticks[0])
sampler = GpuSampler(backend, addresses=addresses, visible=os.environ.get("CUDA_VISIBLE_DEVICES"), started=begun, clock=lambda: ticks[0])
for _ in range(7):
    ticks[0] += 1
    sampler.sample()
seen = sampler.finish()
""".replace("{now}", str(NOW))

PRINT = "print(json.dumps(asdict(seen)))\n"


def build(folder: Path, *flags: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("the fake libnvidia-ml.so.1 is built by gcc on Linux, which is not here")
    source = ROOT / "tests" / "fakes" / "nvml.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(folder / "libnvidia-ml.so.1"), str(source)],
        check=True,
        timeout=120,
    )
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a present-day driver's library."""
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def old_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that lacks what came later: GPM, MIG, energy, the versioned calls."""
    return build(tmp_path_factory.mktemp("old_driver"), "-DOLD_DRIVER")


def run(library: Path, code: str, **script: Any) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("CUDA_VISIBLE_DEVICES", "COVERAGE_PROCESS_START")}
    environment = {**kept, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(ROOT), "FAKE_NVML_NOW": str(NOW)}
    environment |= {name: str(value) for name, value in script.items()}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=library, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Seen:
    """What a sampler saw in another process."""

    def __init__(self, printed: str) -> None:
        seen = json.loads(printed)
        self.values = {series["name"]: series["values"] for series in seen["series"]}
        self.times = {series["name"]: series["times_unix"] for series in seen["series"]}
        self.devices = {series["name"]: series["device"] for series in seen["series"]}
        self.gauges = seen["gauges"]
        self.remarks = seen["remarks"]
        self.names = {*self.values, *self.gauges}


def watch(library: Path, **script: Any) -> Seen:
    return Seen(run(library, WATCH + PRINT, **script))


def test_every_counter_comes_through_the_real_binding(driver: Path) -> None:
    """On a Hopper card every figure is there with its value, its unit and the card's UUID, and there is nothing to remark."""
    seen = watch(driver, FAKE_NVML_CARDS=1, FAKE_NVML_GPM=1, FAKE_NVML_REASONS="0x1,0x4,0x2,0x20,0x8,0x0,0x10", FAKE_NVML_PATTERN="90")
    assert {name: set(values) for name, values in seen.values.items() if "energy" not in name} == {
        "gpu_0_utilization_percentage": {90},
        "gpu_0_memory_usage_megabytes": {20000},
        "gpu_0_memory_usage_percentage": {25},
        "gpu_0_power_usage_watts": {350},
        "gpu_0_power_usage_percentage": {50},
        "gpu_0_sm_clock_megahertz": {1980},
        "gpu_0_temperature_celsius": {55},
        "gpu_0_sm_activity_percentage": {42},
        "gpu_0_tensor_activity_percentage": {45},
        "gpu_0_dram_bandwidth_percentage": {50},
        "gpu_0_pcie_tx_mebibytes_per_second": {60},
        "gpu_0_pcie_rx_mebibytes_per_second": {61},
    }
    assert set(seen.devices.values()) == {"GPU-00000000-0000"}
    assert seen.gauges == {
        "gpu_0_idle_fraction": 0,
        "gpu_0_longest_idle_seconds": 0,
        "gpu_0_throttled_fraction": pytest.approx(3 / 7),
        "gpu_0_throttled_power_fraction": pytest.approx(1 / 7),
        "gpu_0_throttled_thermal_fraction": pytest.approx(1 / 7),
        "gpu_0_energy_joules": 2100,
    }
    assert seen.remarks == []


def test_gpm_samples_are_given_back(driver: Path) -> None:
    """Two samples are held at most while the sampler runs, and none after it."""
    code = WATCH.replace("seen = sampler.finish()", "import pynvml; held = pynvml.nvmlLib.fake_live_gpm_samples(); seen = sampler.finish()")
    assert run(driver, code + "print(held, pynvml.nvmlLib.fake_live_gpm_samples())", FAKE_NVML_GPM=1).split() == ["2", "0"]


def test_names_and_values_are_those_of_mlflows_own_monitor(driver: Path) -> None:
    """MLflow's GPU monitor reads the same two cards: each of its names is here, with the same value in the same unit."""
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    code = """
import json
from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
monitor = GPUMonitor()
monitor.collect_metrics()
print(json.dumps(monitor.aggregate_metrics()))
"""
    theirs = json.loads(run(driver, code, FAKE_NVML_PATTERN="63"))
    ours = watch(driver, FAKE_NVML_PATTERN="63")
    assert len(theirs) == 10
    for name, value in theirs.items():
        assert set(ours.values[name]) == {value}, name


@pytest.mark.parametrize(
    ("function", "gone"),
    [
        ("nvmlDeviceGetMemoryInfo", {"memory_usage_megabytes", "memory_usage_percentage"}),
        ("nvmlDeviceGetPowerUsage", {"power_usage_watts", "power_usage_percentage"}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_usage_percentage"}),
        ("nvmlDeviceGetTotalEnergyConsumption", {"energy_joules", "energy_counter_joules"}),
        ("nvmlDeviceGetClockInfo", {"sm_clock_megahertz"}),
        ("nvmlDeviceGetTemperatureV", {"temperature_celsius"}),
        ("nvmlDeviceGetCurrentClocksEventReasons", {"throttled_fraction", "throttled_power_fraction", "throttled_thermal_fraction"}),
        ("gpm5", {"tensor_activity_percentage"}),
    ],
)
def test_a_counter_that_the_card_does_not_have_is_absent_and_alone(driver: Path, function: str, gone: set[str]) -> None:
    """One call that says "Not Supported" leaves every other figure where it was."""
    if function.startswith("nvml") and not hasattr(pynvml, function):
        pytest.skip(f"this nvidia-ml-py does not know {function} yet")
    whole = watch(driver, FAKE_NVML_CARDS=1, FAKE_NVML_GPM=1)
    seen = watch(driver, FAKE_NVML_CARDS=1, FAKE_NVML_GPM=1, FAKE_NVML_UNSUPPORTED=function)
    assert whole.names - seen.names == {f"gpu_0_{name}" for name in gone}
    [remark] = seen.remarks
    assert remark.startswith("not measured on NVIDIA Fake: ")
    assert remark.endswith("(Not Supported)")


def test_without_the_sample_buffer_utilization_is_polled(driver: Path) -> None:
    """A card without buffered samples has its present utilization, once a look; without that too, none."""
    polled = watch(driver, FAKE_NVML_CARDS=1, FAKE_NVML_UNSUPPORTED="nvmlDeviceGetSamples")
    assert polled.values["gpu_0_utilization_percentage"] == [60] * 7
    neither = watch(driver, FAKE_NVML_CARDS=1, FAKE_NVML_UNSUPPORTED="nvmlDeviceGetSamples nvmlDeviceGetUtilizationRates")
    assert not [name for name in neither.names if "utilization" in name or "idle" in name]
    assert "not measured on NVIDIA Fake: utilization (Not Supported)" in neither.remarks


def test_a_lazily_fed_card_is_seen_between_the_looks(driver: Path) -> None:
    """Half a second busy, half a second idle: a look a second would see one or the other, the driver's samples see both."""
    seen = watch(driver, FAKE_NVML_CARDS=1, FAKE_NVML_PATTERN="95,95,95,95,95,0,0,0,0,0")
    assert seen.gauges["gpu_0_idle_fraction"] == pytest.approx(0.5, abs=0.02)
    assert seen.gauges["gpu_0_longest_idle_seconds"] == pytest.approx(0.5, abs=0.01)
    assert set(seen.values["gpu_0_utilization_percentage"]) == {0, 95}


def test_a_driver_without_new_samples_is_asked_again(driver: Path) -> None:
    """The answer "Not Found" says only that there is none yet: for the first three looks here, then they come."""
    seen = watch(driver, FAKE_NVML_CARDS=1, BEGUN=NOW / 1e6 + 2.5)
    assert len(seen.values["gpu_0_utilization_percentage"]) == 35
    assert not [remark for remark in seen.remarks if "utilization" in remark]


def test_two_workers_on_a_card_see_the_same_samples(driver: Path) -> None:
    """A worker that joins 3 s later has, from then on, the very samples of the first: same UUID, same time, same value."""
    pattern = ",".join(str(7 * place % 64) for place in range(64))
    later = {"FAKE_NVML_NOW": NOW + 3_000_000, "BEGUN": NOW / 1e6 + 2}
    name = "gpu_0_utilization_percentage"
    first, second = (watch(driver, FAKE_NVML_PATTERN=pattern, FAKE_NVML_CARDS=1, **script) for script in ({}, later))
    [ones, others] = [dict(zip(seen.times[name], seen.values[name], strict=True)) for seen in (first, second)]
    shared = ones.keys() & others.keys()
    assert len(shared) >= 10
    assert {time: ones[time] for time in shared} == {time: others[time] for time in shared}
    assert first.devices[name] == second.devices[name]


def test_only_the_tasks_own_cards_are_read(driver: Path) -> None:
    """Of four cards those by Spark's address, or by CUDA_VISIBLE_DEVICES as index or UUID, under NVML's index."""
    for script, cards in (
        ({"ADDRESSES": "2"}, {"GPU-22220000-0000"}),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, {"GPU-33330000-0000", "GPU-11110000-0000"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1111"}, {"GPU-11110000-0000"}),
        ({"CUDA_VISIBLE_DEVICES": "3,1", "ADDRESSES": "0"}, {"GPU-33330000-0000"}),
    ):
        seen = watch(driver, FAKE_NVML_CARDS=4, **script)
        assert set(seen.devices.values()) == cards
        assert {name.split("_")[1] for name in seen.names} == {uuid[4] for uuid in cards}


def test_a_mig_slice_has_memory_and_gpm_activity(driver: Path) -> None:
    """Utilization, which NVML does not have of slices, is absent and not 0; the slice's own activity comes by its GPU instance."""
    slice_ = watch(driver, FAKE_NVML_MIG=0, FAKE_NVML_GPM=1, CUDA_VISIBLE_DEVICES="MIG-00220000-0000")
    assert {name: set(values) for name, values in slice_.values.items()} == {
        "gpu_0_mig_2_memory_usage_megabytes": {2500},
        "gpu_0_mig_2_memory_usage_percentage": {25},
        "gpu_0_mig_2_sm_activity_percentage": {24},
        "gpu_0_mig_2_tensor_activity_percentage": {27},
        "gpu_0_mig_2_dram_bandwidth_percentage": {32},
        "gpu_0_mig_2_pcie_tx_mebibytes_per_second": {42},
        "gpu_0_mig_2_pcie_rx_mebibytes_per_second": {43},
    }
    assert slice_.gauges == {}
    assert slice_.remarks == [
        "not measured on NVIDIA Fake MIG 1g.10gb: utilization, power, power limit, energy, SM clock, temperature, throttle reasons (Not Supported)"
    ]
    first = watch(driver, FAKE_NVML_MIG=0, FAKE_NVML_GPM=1, FAKE_NVML_CARDS=1)
    assert set(first.devices.values()) == {"MIG-00110000-0000"}


@pytest.mark.parametrize("reads", [-1, 3])
def test_a_lost_card_harms_no_other(driver: Path, reads: int) -> None:
    """A card that is lost from the start has nothing, one that is lost on the way what it had; the other card has all."""
    seen = watch(driver, FAKE_NVML_LOST=f"0:{reads}")
    assert len(seen.values.get("gpu_0_memory_usage_megabytes", [])) == max(0, reads)
    assert len(seen.values["gpu_1_memory_usage_megabytes"]) == 7
    assert [remark for remark in seen.remarks if "GPU is lost" in remark] == [
        f"gpu_0 ({'no UUID' if reads < 0 else 'GPU-00000000-0000'}) cannot be read any more: GPU is lost"
    ]


def test_an_old_driver_gives_what_it_has(old_driver: Path) -> None:
    """Without GPM, energy, MIG and the newer names of calls: the older names serve, the rest is absent and named."""
    seen = watch(old_driver, FAKE_NVML_CARDS=1, FAKE_NVML_REASONS="0x4")
    assert set(seen.values["gpu_0_temperature_celsius"]) == {55}
    assert seen.gauges["gpu_0_throttled_fraction"] == 1
    assert not [name for name in seen.names if "energy" in name or "activity" in name]
    assert seen.remarks == ["not measured on NVIDIA Fake: energy, GPM activity (Function Not Found)"]


def test_errors_that_are_no_nvml_errors_are_caught_too(old_driver: Path) -> None:
    """A call that a newer binding refuses with its own exception, and one that an older binding does not know, are unreadable."""
    code = """
import pynvml
from sparkinfer.engine import nvml
from sparkinfer.engine.cards import Unreadable

card = nvml.Nvml().cards()[0]
for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlNoSuchFunction"):
    try:
        nvml._call(name, card.handle.device)
    except Unreadable as why:
        print(type(why.__cause__).__name__, why.for_good, why.reason, sep="|")
"""
    assert run(old_driver, code).splitlines() == [
        "NVMLLibraryMismatchError|True|the driver is older than nvidia-ml-py here",
        "AttributeError|True|nvidia-ml-py here has no nvmlNoSuchFunction",
    ]


def test_nvml_is_set_up_once_a_process_and_again_after_a_fork(driver: Path) -> None:
    """Three samplers make one set-up; a forked child, where NVML is of no use, makes its own, and reads."""
    code = """
import os, pynvml
from sparkinfer.engine.nvml import Nvml

for _ in range(3):
    cards = Nvml().cards()
assert pynvml.nvmlLib.fake_inits() == 1, pynvml.nvmlLib.fake_inits()
pid = os.fork()
if pid == 0:
    watts = Nvml().power(Nvml().cards()[0])
    os._exit(0 if watts == 350 and pynvml.nvmlLib.fake_inits() == 2 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert Nvml().power(Nvml().cards()[0]) == 350
print(pynvml.nvmlLib.fake_inits())
"""
    assert run(driver, code).split() == ["1"]


def test_no_library_is_one_remark(tmp_path: Path) -> None:
    """Where no libnvidia-ml.so.1 can be loaded there are no figures of cards and one remark; nothing fails."""
    (tmp_path / "libnvidia-ml.so.1").write_text("this is no library")
    seen = watch(tmp_path)
    assert seen.names == set()
    assert seen.remarks == ["no GPU figures: NVML Shared Library Not Found"]


def test_the_sampling_thread_reads_the_cards(driver: Path) -> None:
    """As a partition calls it: figures of host and card come out of the block, and no thread is left."""
    code = """
import json, threading
from dataclasses import asdict
from sparkinfer.engine.sampling import sampling

with sampling(addresses=("1",)) as seen:
    pass
assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
print(json.dumps(asdict(seen)))
"""
    seen = Seen(run(driver, code))
    assert "system_memory_usage_megabytes" in seen.names
    assert set(seen.values["gpu_1_power_usage_watts"]) == {350}
    assert "gpu_0_power_usage_watts" not in seen.names


@pytest.fixture
def real_card() -> Any:
    """NVML's handle of the first card."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        pytest.skip(f"needs an NVIDIA card: {error}")
    try:
        sliced = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:
        sliced = False
    if sliced:
        pytest.skip("needs a whole NVIDIA card: the first one is in MIG mode, where most counters are absent")
    return handle


@pytest.mark.gpu
def test_a_real_card(real_card: Any) -> None:
    """The card answers: its figures are possible, the UUID is NVML's, and on Hopper and later there is activity."""
    import pynvml

    from sparkinfer.engine.sampling import sampling

    with sampling(0.5, addresses=("0",)) as seen:
        time.sleep(7)  # a real driver's buffer and energy counter need real time
    now = time.time()
    series = {one.name.removeprefix("gpu_0_"): one for one in seen.series if one.device is not None}
    assert {one.device for one in series.values()} == {pynvml.nvmlDeviceGetUUID(real_card)}
    assert all(0 < used <= pynvml.nvmlDeviceGetMemoryInfo(real_card).total / 1e6 for used in series["memory_usage_megabytes"].values)
    assert all(0 < watts < 2000 for watts in series["power_usage_watts"].values)
    assert all(0 <= percent <= 100 for percent in series["utilization_percentage"].values)
    assert all(now - 10 < when <= now for when in series["utilization_percentage"].times_unix)
    if pynvml.nvmlDeviceGetCudaComputeCapability(real_card) >= (7, 0):
        assert seen.gauges["gpu_0_energy_joules"] > 0
    if pynvml.nvmlDeviceGetCudaComputeCapability(real_card) >= (9, 0):
        assert all(0 <= percent <= 100 for percent in series["sm_activity_percentage"].values)
