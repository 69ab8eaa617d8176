"""The sampler's thread: one for all partitions of a process, there only while one runs, and never in a partition's way."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from sparkinfer.engine.samples import Sampler, Samples
from sparkinfer.engine.sampling import SamplingThread, sampling
from sparkinfer.metrics import Series

LONG = 3600.0  # seconds between looks: what is seen is seen on entering and on leaving


LOOKED = threading.Semaphore(0)  # once for each look


def live_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sparkinfer-sampling"]


class Counting:
    """Counts its looks and notes its threads."""

    def __init__(self, name: str = "looks") -> None:
        self.name = name
        self.looks = 0
        self.threads: set[int] = set()
        self.finished = 0

    def sample(self) -> None:
        self.looks += 1
        self.threads.add(threading.get_ident())
        LOOKED.release()

    def finish(self) -> Samples:
        self.finished += 1
        return Samples(
            (Series(self.name, None, (1.0,), (float(self.looks),)),), {f"{self.name}_total": self.looks}, (f"{self.name} ended",)
        )


@pytest.fixture
def made() -> Iterator[list[Counting]]:
    while LOOKED.acquire(blocking=False):
        pass
    yield []
    assert live_threads() == []


def counting(made: list[Counting]) -> Callable[..., list[Sampler]]:
    def opened(addresses: tuple[str, ...] | None, started: float) -> list[Sampler]:
        made.append(Counting(f"looks_{'_'.join(addresses or ())}"))
        return [made[-1]]

    return opened


def test_a_window_sees_its_beginning_and_its_end(made: list[Counting]) -> None:
    """A partition much shorter than the interval is looked at once on entering and once on leaving, on a thread that then ends."""
    thread = SamplingThread(counting(made), patience=60)
    with thread.window(LONG, ("0",)) as samples:
        assert LOOKED.acquire(timeout=60)
        assert [live.daemon for live in live_threads()] == [True]
        assert samples == Samples()
    assert live_threads() == []
    assert samples.gauges == {"looks_0_total": 2}
    assert samples.remarks == ("looks_0 ended",)
    assert made[0].threads.isdisjoint({threading.get_ident()})


def test_the_interval_makes_looks(made: list[Counting]) -> None:
    """While a partition runs it is looked at again and again."""
    with SamplingThread(counting(made), patience=60).window(0.05):
        for _ in range(4):
            assert LOOKED.acquire(timeout=60)
    assert made[0].looks >= 5


def test_partitions_of_one_process_share_the_thread(made: list[Counting]) -> None:
    """Two windows that overlap are served by one thread, each by samplers of its own; it ends when the last one is left."""
    thread = SamplingThread(counting(made), patience=60)
    with ExitStack() as first, ExitStack() as second:
        one = first.enter_context(thread.window(LONG, ("0",)))
        two = second.enter_context(thread.window(LONG, ("1",)))
        assert len(live_threads()) == 1
        first.close()
        assert one.remarks == ("looks_0 ended",)
        assert two == Samples()
        assert len(live_threads()) == 1
    assert two.remarks == ("looks_1 ended",)
    assert len({ident for sampler in made for ident in sampler.threads}) == 1
    assert [sampler.finished for sampler in made] == [1, 1]


def test_the_next_partition_gets_a_thread_again(made: list[Counting]) -> None:
    """A reused worker arms the sampler anew for every task."""
    thread = SamplingThread(counting(made), patience=60)
    for number in range(5):
        with thread.window(LONG, (str(number),)) as samples:
            pass
        assert samples.remarks == (f"looks_{number} ended",)
        assert live_threads() == []


def test_many_partitions_at_once_all_get_their_figures(made: list[Counting]) -> None:
    """Windows that open and close in many threads at the same time lose nothing and leave no thread."""
    sampler = SamplingThread(counting(made), patience=60)
    got: list[tuple[str, ...]] = []

    def partitions(number: int) -> None:
        for turn in range(20):
            with sampler.window(LONG, (f"{number}x{turn}",)) as samples:
                pass
            got.append(samples.remarks)

    tasks = [threading.Thread(target=partitions, args=(number,)) for number in range(4)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert sorted(got) == sorted((f"looks_{number}x{turn} ended",) for number in range(4) for turn in range(20))


def test_a_failing_partition_is_still_left_properly(made: list[Counting]) -> None:
    """The partition's own error goes through, and the thread ends."""
    with pytest.raises(ZeroDivisionError), SamplingThread(counting(made), patience=60).window(LONG):
        1 / 0  # noqa: B018 - it raises
    assert made[0].finished == 1


class Broken:
    """A sampler with a mistake in it."""

    def __init__(self, where: str) -> None:
        self._where = where

    def sample(self) -> None:
        if self._where == "sample":
            msg = "a mistake"
            raise TypeError(msg)

    def finish(self) -> Samples:
        msg = "a mistake"
        raise TypeError(msg)


@pytest.mark.parametrize("where", ["sample", "finish"])
def test_a_broken_sampler_breaks_nothing_else(where: str, made: list[Counting]) -> None:
    """An error that nobody foresaw becomes a remark; the other sampler's figures are there."""
    with SamplingThread(lambda *_: [Broken(where), Counting()], patience=60).window(LONG) as samples:
        pass
    assert samples.gauges["looks_total"] >= 1
    assert samples.remarks == ("a sampler of host or cards broke: TypeError: a mistake", "looks ended")


def test_samplers_that_cannot_be_made_are_a_remark(made: list[Counting]) -> None:
    """An error on opening is told and not raised."""

    def opened(*_: object) -> list[Sampler]:
        msg = "no such thing"
        raise OSError(msg)

    with SamplingThread(opened, patience=60).window(LONG) as samples:
        pass
    assert samples == Samples(remarks=("a sampler of host or cards broke: OSError: no such thing",))


def test_a_driver_that_hangs_holds_up_one_partition_once(made: list[Counting]) -> None:
    """The first partition waits for its patience, those after it not at all; when the driver comes back, sampling goes on."""
    released = threading.Event()
    hanging = [True]

    class Hanging(Counting):
        def sample(self) -> None:
            super().sample()
            if hanging[0]:
                released.wait(60)

    thread = SamplingThread(lambda *_: [Hanging()], patience=0.01)
    with thread.window(LONG) as first:
        assert LOOKED.acquire(timeout=60)
    assert first.remarks == ("no samples of host and cards: the sampler did not answer for 0.01 s",)
    with thread.window(LONG) as second:
        pass
    assert second.remarks == ("no samples of host and cards: the sampler did not come back from an earlier look",)
    assert len(live_threads()) == 1
    hanging[0] = False
    [stuck] = live_threads()
    released.set()
    stuck.join(60)
    thread._patience = 60
    with thread.window(LONG) as third:
        pass
    assert third.remarks == ("looks ended",)
    assert live_threads() == []


def test_without_the_packages_there_are_two_remarks_and_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without psutil and nvidia-ml-py runs, and says what would help."""
    for package, module in (("psutil", "host"), ("pynvml", "nvml")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"sparkinfer.engine.{module}", raising=False)
    with sampling() as samples:
        pass
    assert (samples.series, samples.gauges) == ((), {})
    host, cards = samples.remarks
    assert host.startswith("no figures of the host: ")
    assert "sparkinfer[host]" in host
    assert cards.startswith("no GPU figures: ")
    assert "sparkinfer[gpu]" in cards


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_samples_anew() -> None:
    """A child that is forked while the parent samples leaves the parent's window alone and has a thread of its own."""
    with sampling() as outer:
        pid = os.fork()
        if pid == 0:
            with sampling() as inner:
                pass
            os._exit(0 if inner.series and not live_threads() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert any(series.name == "system_memory_usage_megabytes" for series in outer.series)
    assert live_threads() == []
