"""One thread a Python worker that looks at the host and the cards while partitions run.

Runs on: worker.

Invariant: the thread starts with the first partition's window, is shared by those that come while it runs, and ends with the last;
nothing here raises into the partition, and a driver that hangs costs one partition ``patience`` seconds, and the next ones nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Event, Lock, Thread

from sparkinfer.engine.gpu import GpuSampler
from sparkinfer.engine.samples import NoSampler, Sampler, Samples

__all__ = ["SamplingThread", "sampling"]

_SHORTEST = 0.05  # seconds between two looks

OpenSamplers = Callable[[tuple[str, ...] | None, float], Sequence[Sampler]]


@contextmanager
def sampling(interval: float = 1.0, addresses: tuple[str, ...] | None = None) -> Iterator[Samples]:
    """Watch the host, and the cards that this task owns, while the block runs.

    What is yielded is empty until the block is left. Entering takes no time: NVML is set up on the thread.

    Args:
        interval: seconds between two looks; where several partitions run in one process, the shortest counts for all.
        addresses: ``TaskContext.resources()["gpu"].addresses``; ``None`` for all cards that CUDA_VISIBLE_DEVICES leaves visible.

    Example:
        >>> with sampling() as samples:
        ...     work = sum(range(1000))
        >>> [series.name for series in samples.series if series.name.startswith("system")]
        ['system_memory_usage_megabytes', 'system_memory_usage_percentage']
    """
    for module in ("sparkinfer.engine.host", "sparkinfer.engine.nvml"):
        with suppress(ImportError):  # told by the sampler itself
            import_module(module)  # here: a loader process that is forked meanwhile would inherit a half-held import lock
    with _of_this_process.window(interval, addresses) as samples:
        yield samples


class _Window:
    """A partition's stay."""

    def __init__(self, interval: float, addresses: tuple[str, ...] | None, started: float) -> None:
        self.interval = max(interval, _SHORTEST)
        self.addresses = addresses
        self.started = started
        self.samplers: list[Sampler] | None = None
        self.seen = Samples()
        self.left = Event()
        self.done = Event()
        self.last = False  # the thread ends with it


class SamplingThread:
    """The thread, and the windows that it serves.

    Only the thread touches the samplers: drivers' handles are not shared, and a call that hangs blocks no partition.
    """

    def __init__(self, open_samplers: OpenSamplers, clock: Callable[[], float] = time.time, patience: float = 2.0) -> None:
        """Start nothing yet.

        Args:
            open_samplers: makes a window's samplers from the task's addresses and the window's start; called on the thread.
            clock: seconds since 1970.
            patience: seconds that a partition waits for its last samples.
        """
        self._open = open_samplers
        self._clock = clock
        self._patience = patience
        self._lock = Lock()
        self._wake = Event()
        self._windows: list[_Window] = []
        self._thread: Thread | None = None
        self._stuck = False

    @contextmanager
    def window(self, interval: float, addresses: tuple[str, ...] | None = None) -> Iterator[Samples]:
        """Watch while the block runs; see ``sampling``."""
        process = os.getpid()
        window = _Window(interval, addresses, self._clock())
        samples = Samples()
        entered = self._enter(window)
        try:
            yield samples
        finally:
            if not entered:
                samples.remarks = ("no samples of host and cards: the sampler did not come back from an earlier look",)
            elif os.getpid() == process:  # in a forked child neither the thread nor its locks are there
                self._leave(window, samples)

    def _enter(self, window: _Window) -> bool:
        with self._lock:
            if self._stuck:
                return False
            self._windows.append(window)
            if self._thread is not None:
                self._wake.set()
            else:
                self._thread = Thread(target=self._run, name="sparkinfer-sampling", daemon=True)
                self._thread.start()
        return True

    def _leave(self, window: _Window, samples: Samples) -> None:
        thread = self._thread
        window.left.set()
        self._wake.set()
        if not window.done.wait(self._patience):
            with self._lock:
                if not window.done.is_set():
                    self._stuck = True
                    self._windows.remove(window)
                    samples.remarks = (f"no samples of host and cards: the sampler did not answer for {self._patience:g} s",)
                    return
        samples.take([window.seen])
        if window.last and thread is not None:
            thread.join(self._patience)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                windows = list(self._windows)
            finished = [window for window in windows if self._serve(window)]
            with self._lock:
                self._stuck = False
                self._windows = [window for window in self._windows if window not in finished]
                ended = not self._windows
                if ended:
                    self._thread = None
                for window in finished:
                    window.last = ended
                    window.done.set()
                interval = min((window.interval for window in self._windows), default=0.0)
            if ended:
                return
            self._wake.wait(interval)

    def _serve(self, window: _Window) -> bool:
        """Look for a window, and tell whether it was for the last time."""
        leaving = window.left.is_set()  # before the look: what happened up to then is in it
        if window.samplers is None:
            window.samplers = self._opened(window)
        for place, sampler in enumerate(window.samplers):
            try:
                sampler.sample()
            except Exception as error:  # noqa: BLE001 - samplers catch what they expect; by the rest no partition ends, nor another sampler
                window.samplers[place] = _broken(error)
        if leaving:
            window.seen.take(map(_finished, window.samplers))
        return leaving

    def _opened(self, window: _Window) -> list[Sampler]:
        try:
            return list(self._open(window.addresses, window.started))
        except Exception as error:  # noqa: BLE001 - see above
            return [_broken(error)]


def _finished(sampler: Sampler) -> Samples:
    try:
        return sampler.finish()
    except Exception as error:  # noqa: BLE001 - see above
        return _broken(error).finish()


def _broken(error: Exception) -> NoSampler:
    return NoSampler(f"a sampler of host or cards broke: {type(error).__name__}: {error}")


def _open_samplers(addresses: tuple[str, ...] | None, started: float) -> Sequence[Sampler]:
    return _host(), _cards(addresses, started)


def _host() -> Sampler:
    try:
        from sparkinfer.engine.host import HostSampler  # noqa: PLC0415 - psutil may be missing
    except ImportError as error:
        return NoSampler(f"no figures of the host: {error}; pip install 'sparkinfer[host]' on the workers brings them")
    return HostSampler()


def _cards(addresses: tuple[str, ...] | None, started: float) -> Sampler:
    try:
        from sparkinfer.engine.nvml import Nvml  # noqa: PLC0415 - nvidia-ml-py may be missing
    except ImportError as error:
        return NoSampler(f"no GPU figures: {error}; pip install 'sparkinfer[gpu]' on the workers brings them")
    return GpuSampler(Nvml(), addresses=addresses, visible=os.environ.get("CUDA_VISIBLE_DEVICES"), started=started)


def _renew() -> None:
    """After a fork: the thread is not there, and its lock may have been held."""
    global _of_this_process  # noqa: PLW0603 - one thread a process is what this module is for
    _of_this_process = SamplingThread(_open_samplers)


_of_this_process = SamplingThread(_open_samplers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
