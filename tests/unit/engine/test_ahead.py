"""Calls under way: the device is not left waiting, and what goes wrong there is found as without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkinfer.backends.numpy import NumpyBackend
from sparkinfer.engine import partition
from sparkinfer.engine.partition import run_partition
from sparkinfer.exceptions import PredictError, SchemaError
from tests.unit.engine.test_partition import chunks, plan

if TYPE_CHECKING:
    import numpy as np

IN, COMPUTE, OUT, PREPARE, FINISH = 4, 12, 3, 6, 4  # milliseconds of a batch: on the device, and on the task's own thread


@dataclass(eq=False)
class Device:
    """An accelerator of one copy in, one computing and one copy out at a time, beside each other; its time is a number, and nobody waits."""

    most_rows: int = 1 << 30
    events: list[str] = field(default_factory=list)
    now: int = 0
    busy: int = 0
    free: dict[str, int] = field(default_factory=lambda: {"in": 0, "compute": 0, "out": 0})

    def start(self, inputs: Any) -> Callable[[], Any]:
        x = next(iter(inputs.arrays.values()))
        self.events.append(f"start {int(x[0])}")
        done = self._through("out", self._through("compute", self._through("in", self.now, IN), COMPUTE), OUT)
        self.busy += COMPUTE

        def wait() -> Any:
            self.events.append(f"wait {int(x[0])}")
            self.now = max(self.now, done)
            if len(x) > self.most_rows:
                raise MemoryError
            return 2 * x

        return wait

    def predict(self, inputs: Any) -> Any:
        return self.start(inputs)()

    def _through(self, engine: str, ready: int, takes: int) -> int:
        self.free[engine] = max(ready, self.free[engine]) + takes
        return self.free[engine]

    def device_peak_bytes(self) -> None:
        return None

    def device_bytes(self) -> None:
        """Nothing is known."""

    def release(self) -> None:
        pass


class InTurn(Device):
    """The same without calls under way."""

    start = None  # type: ignore[assignment]

    def predict(self, inputs: Any) -> Any:
        return Device.start(self, inputs)()


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], Device]:
    """Have the loop load a device's model."""

    def put(device: Device) -> Device:
        class Backend(NumpyBackend):
            def load(self, *_: Any) -> Any:
                return device

        monkeypatch.setattr(partition, "backend_named", lambda _: Backend())
        return device

    return put


def load() -> Callable[..., Any]:
    return lambda x: x


def score(source: Iterator[pa.RecordBatch], **said: Any) -> list[Any]:
    made = plan(load, models_per_worker=0, **said)
    return [row for chunk in run_partition(made, source, files=dict, partition=1) for row in chunk.to_pylist()]


def test_batches_are_started_before_the_last_one_is_waited_for(on: Callable[[Device], Device]) -> None:
    """Two calls more are under way, in order, and the last ones are waited for, too."""
    device = on(Device())
    assert [row["y"] for row in score(chunks(5, 3), batch_size=2)] == [float(i) for i in range(8)]
    assert device.events == ["start 0", "start 1", "start 2", "wait 0", "start 3", "wait 1", "wait 2", "wait 3"]


DEVICE: list[Device] = []  # whose clock the functions of the next test move; they travel by reference


def prepare(x: np.ndarray) -> np.ndarray:
    DEVICE[-1].now += PREPARE
    return x


def finish(y: np.ndarray) -> np.ndarray:
    DEVICE[-1].now += FINISH
    return y


def rate(device: Device) -> float:
    """Give the share of the time in which the device computes, from the partition's begin to its end."""
    DEVICE[:] = [device]
    assert len(score(chunks(400), batch_size=4, preprocess_batch=prepare, postprocess=finish, prefetch_batches=0)) == 400
    return device.busy / device.now


def test_a_simulated_accelerator_is_kept_busy(on: Callable[[Device], Device]) -> None:
    """Copies, preparing and encoding hide behind computing: 0.93 of the device's own rate and more, where in turn it is less than half."""
    assert rate(on(Device())) >= 0.93
    assert rate(on(InTurn())) < 0.5


@pytest.mark.parametrize("on_error", ["raise", "null"])
def test_a_batch_that_does_not_fit_is_cut_as_without(on: Callable[[Device], Device], on_error: str) -> None:
    """Out of memory shows when results are waited for; every row is there once, and later batches are started at the size that fits."""
    on(Device(most_rows=4))
    assert [row["y"] for row in score(chunks(40), batch_size=16, on_error=on_error)] == [float(i) for i in range(40)]


def test_what_no_size_helps_says_where_and_with_how_many(on: Callable[[Device], Device]) -> None:
    """C37: partition, batch size, device and who shares it; the next job in this process works."""
    on(Device(most_rows=0))
    made = plan(load, models_per_worker=0, batch_size=16)
    told = r"single row \(of a batch of 16\) on cpu, which up to 8 Python workers share: .*partition 3"
    with pytest.raises(PredictError, match=told):
        list(run_partition(made, chunks(40), files=dict, partition=3, slots=8))
    on(Device())
    assert len(score(chunks(8), batch_size=4)) == 8


@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_no_row_of_a_batch_with_a_refused_null_is_started(on: Callable[[Device], Device], prefetch_batches: int) -> None:
    """As without calls under way: the device sees the whole batches before the null, and nothing of the one that it is in."""
    device = on(Device())
    values = pa.RecordBatch.from_pydict({"id": pa.array(range(7)), "x": pa.array([0.0, 1.0, 2.0, 3.0, 4.0, None, 6.0])})
    with pytest.raises(SchemaError, match="row 5"):
        score(iter([values]), batch_size=2, prefetch_batches=prefetch_batches)
    assert device.events == ["start 0", "start 2", "wait 0", "wait 2"]


def test_a_model_without_start_is_called_batch_by_batch() -> None:
    """Nothing lags where nothing is gained."""
    seen: list[int] = []

    def source() -> Iterator[pa.RecordBatch]:
        for chunk in chunks(2, 2):
            seen.append(chunk.num_rows)
            yield chunk

    scored = run_partition(plan(load, batch_size=2, prefetch_batches=0), source(), files=dict)
    next(scored)
    assert seen == [2]
    scored.close()  # type: ignore[attr-defined]
