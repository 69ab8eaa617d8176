"""Is an accelerator kept busy? The engine alone feeds a simulated one in real time: no Spark, no framework, no card.

The device has three queues that run beside each other: a copy in of 4 ms, a computation of 12 ms, a copy out of 3 ms for each batch. It takes none of
the host's time: a batch's end is worked out when it is handed over, and whoever asks for its results sleeps until then. So the share of the time in which it
computes is what the engine reaches of the device's own rate. The host has 6 ms of ``preprocess_batch`` on the read-ahead thread and 3 ms of
``postprocess`` for each batch, in three ways: it waits (a disk, a decoder that lets go of the interpreter), it works in NumPy, or it works in Python, which
holds the interpreter. In turn, the same without calls under way, is the comparison of the same run.

Rounds are interleaved; printed are medians. ``--write`` keeps them in ``benchmarks/results/feeding.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import sparkinfer as si
from benchmarks.machine import describe_machine
from sparkinfer.backends.numpy import NumpyBackend
from sparkinfer.config import InferenceConfig
from sparkinfer.engine import partition
from sparkinfer.engine.partition import run_partition
from sparkinfer.local import planned

IN, COMPUTE, OUT = 0.004, 0.012, 0.003  # seconds of a batch on the device
PREPARE, FINISH = 0.006, 0.003  # and on the host
ROWS, WIDTH = 32, 1024
RESULT = Path(__file__).parent / "results" / "feeding.json"


@dataclass(eq=False)
class Device:
    """An accelerator whose batches end when they would; answers ``LoadedModel``, with calls under way."""

    busy: float = 0.0
    free: dict[str, float] = field(default_factory=lambda: {"in": 0.0, "compute": 0.0, "out": 0.0})

    def start(self, inputs: Any) -> Callable[[], Any]:
        """Hand a batch over; what is given waits for its end."""
        x = next(iter(inputs.arrays.values()))
        done = self._through("out", self._through("compute", self._through("in", time.perf_counter(), IN), COMPUTE), OUT)
        self.busy += COMPUTE

        def wait() -> Any:
            while (left := done - time.perf_counter()) > 0:
                time.sleep(left)
            return x[:, :8]

        return wait

    def _through(self, queue: str, ready: float, takes: float) -> float:
        self.free[queue] = max(ready, self.free[queue]) + takes
        return self.free[queue]

    def predict(self, inputs: Any) -> Any:
        """Hand a batch over, and wait."""
        return self.start(inputs)()

    def device_peak_bytes(self) -> None:
        """Tell nothing."""

    def device_bytes(self) -> None:
        """Tell nothing."""

    def release(self) -> None:
        """Do nothing."""


class InTurn(Device):
    """The same without calls under way."""

    start = None  # type: ignore[assignment]

    def predict(self, inputs: Any) -> Any:
        """Hand a batch over, and wait."""
        return Device.start(self, inputs)()


def wait(seconds: float) -> None:
    """Let go of the interpreter."""
    time.sleep(seconds)


def in_numpy(seconds: float) -> None:
    """Work on arrays, with the interpreter let go inside most calls."""
    until = time.perf_counter() + seconds
    block = np.ones((256, 256), dtype=np.float32)
    while time.perf_counter() < until:
        block = np.sqrt(block + 1.0)


def in_python(seconds: float) -> None:
    """Hold the interpreter."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(200))


HOST: list[Callable[[float], None]] = [wait]  # what the functions below do; taken along when a plan is made


def prepare(x: np.ndarray) -> np.ndarray:
    """Take the host's time before the model."""
    HOST[0](PREPARE)
    return x


def finish(y: np.ndarray) -> np.ndarray:
    """Take the host's time after it."""
    HOST[0](FINISH)
    return y


@contextmanager
def loaded(device: Device) -> Iterator[None]:
    """Have the loop load a device's model."""

    class Backend(NumpyBackend):
        def load(self, *_: Any) -> Any:
            return device

    before = partition.backend_named
    partition.backend_named = lambda _: Backend()
    try:
        yield
    finally:
        partition.backend_named = before


def share(device: Device, host: Callable[[float], None], batches: int) -> float:
    """Give the share of a partition's time in which the device computes, from the first chunk asked for to the last one given."""
    HOST[0] = host
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(ROWS * WIDTH, dtype=np.float32)), WIDTH)
    chunk = pa.RecordBatch.from_arrays([values], names=["x"])
    config = InferenceConfig(batch_size=ROWS, models_per_worker=0)
    said: dict[str, Any] = {"inputs": "x", "outputs": "y array<float>", "keep": [], "preprocess_batch": prepare, "postprocess": finish}
    plan = planned(si.PythonModel(dict), chunk.schema, lambda _: chunk, config=config, **said)
    with loaded(device):
        begun = time.perf_counter()
        rows = sum(scored.num_rows for scored in run_partition(plan, iter([chunk] * batches), files=dict))
        seconds = time.perf_counter() - begun
    assert rows == batches * ROWS
    return device.busy / seconds


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    said = parser.parse_args()
    hosts = {"waits": wait, "works in NumPy": in_numpy, "works in Python": in_python}
    found: dict[str, list[float]] = {f"{way}, the host {name}": [] for name in hosts for way in ("under way", "in turn")}
    for _ in range(said.rounds):
        for name, host in hosts.items():
            found[f"under way, the host {name}"].append(share(Device(), host, said.batches))
            found[f"in turn, the host {name}"].append(share(InTurn(), host, said.batches))
    print(f"{said.batches} batches of {COMPUTE * 1000:.0f} ms, median of {said.rounds}: share of the device's own rate")
    for name, shares in found.items():
        print(f"{name:<36} {statistics.median(shares):5.3f}   ({min(shares):.3f} to {max(shares):.3f})")
    if said.write:
        told = {
            "what": "share of a simulated accelerator's own rate that the engine reaches",
            "batches": said.batches,
            "milliseconds": {"copy_in": 4, "compute": 12, "copy_out": 3, "preprocess": 6, "postprocess": 3},
            "shares": {name: [round(one, 4) for one in shares] for name, shares in found.items()},
            "machine": describe_machine(),
        }
        RESULT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
