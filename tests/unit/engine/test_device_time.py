"""A device's own time: read when it is through, never waited for, and never an error."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkinfer.engine.device_time import DeviceTime
from sparkinfer.engine.recorder import Recorder
from sparkinfer.metrics import PartitionMetrics, summarise


@dataclass
class Stream:
    """A device's stream, whose clock a test moves; an event that was put into it is stamped when it gets there."""

    now: float = 0.0
    waiting: list[FakeEvent] = field(default_factory=list)

    def work(self, milliseconds: float) -> None:
        """Do what was put in so far, and then something that takes so long."""
        for event in self.waiting:
            event.stamp = self.now
        self.waiting.clear()
        self.now += milliseconds


@dataclass(eq=False)
class FakeEvent:
    """An event as torch.cuda has it."""

    stamp: float | None = None

    def record(self, stream: Stream) -> None:
        self.stamp = None
        stream.waiting.append(self)

    def elapsed_time(self, end_event: FakeEvent) -> float:
        if self.stamp is None or end_event.stamp is None:
            raise RuntimeError("both events must be recorded and through")
        return end_event.stamp - self.stamp


def batch(device: DeviceTime, stream: Stream, copy: float, compute: float) -> None:
    """One batch, to its end."""
    one = device.batch()
    for stage, milliseconds in (("copy_in", copy), ("compute", compute)):
        with one.lap(stage, stream):
            stream.work(milliseconds)
    stream.work(0)  # what stamps the last one
    one.read()


def test_seconds_add_up_by_stage_and_are_taken_once() -> None:
    """Two batches of 4 and 12 ms, and of 5 and 20 ms; a partition that comes after starts at nothing."""
    device, stream = DeviceTime(FakeEvent), Stream()
    batch(device, stream, 4, 12)
    batch(device, stream, 5, 20)
    assert {stage: round(seconds, 6) for stage, seconds in device.take().items()} == {"copy_in": 0.009, "compute": 0.032}
    assert device.take() == {}


def test_events_are_used_again() -> None:
    """A partition of a million batches makes as many events as are under way at once."""
    made: list[FakeEvent] = []

    def make() -> FakeEvent:
        made.append(FakeEvent())
        return made[-1]

    device, stream = DeviceTime(make), Stream()
    for _ in range(10):
        batch(device, stream, 1, 1)
    assert len(made) == 4


def test_what_is_not_through_is_left_out() -> None:
    """Nobody waits for it, and nothing is raised; the events are not used again, since the device still holds them."""
    device, stream = DeviceTime(FakeEvent), Stream()
    one = device.batch()
    with one.lap("compute", stream):
        pass
    one.read()
    assert device.take() == {}


def test_a_stage_that_raises_is_left_out() -> None:
    """The model's error goes through; half of a pair is no figure."""
    device, stream = DeviceTime(FakeEvent), Stream()
    one = device.batch()
    try:
        with one.lap("compute", stream):
            raise ValueError
    except ValueError:
        pass
    stream.work(0)
    one.read()
    assert device.take() == {}


def record(**measured: object) -> PartitionMetrics:
    who = {"call": "c", "execution": None, "partition": 0, "task_attempt": 0, "host": "h", "pid": 1}
    return PartitionMetrics(**{**who, "started_unix": 0.0, "wall_seconds": 4.0, **measured})


def test_the_run_tells_what_the_cards_did() -> None:
    """The recorder asks, the record travels, and the share is of the wall time of those partitions that measured it."""
    recorder = Recorder()
    recorder.device_time(lambda: {"copy_in": 0.5, "compute": 3.0})
    made = record(device_seconds=recorder.figures()["device_seconds"])
    again = PartitionMetrics.from_json(made.to_json())
    assert again.device_seconds == {"copy_in": 0.5, "compute": 3.0}
    figures = summarise([again, record()])
    assert {name: value for name, value in figures.items() if name.startswith("gpu/")} == {
        "gpu/copy_in_seconds": 0.5,
        "gpu/compute_seconds": 3.0,
        "gpu/compute_fraction": 0.75,
    }


def test_where_nothing_is_measured_nothing_is_told() -> None:
    """No zeros: on a CPU, and where asking fails."""
    recorder = Recorder()
    recorder.device_time(lambda: 1 / 0)
    made = record(device_seconds=recorder.figures()["device_seconds"])
    assert "device_seconds" not in made.to_json()
    assert not any(name.startswith("gpu/") for name in summarise([made]))
