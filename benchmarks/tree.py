"""What a tree of processes costs: CPU seconds, and memory by kind of process."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple

import psutil

__all__ = ["Spent", "cpu_seconds", "memory", "quiet", "spent", "watching_memory"]


class Spent(NamedTuple):
    """What a process had spent at one moment, in CPU seconds: itself, and the children that it had waited for."""

    parent: int
    own: float
    reaped: float


def spent(root: psutil.Process) -> dict[psutil.Process, Spent]:
    """Say what a process and its living descendants have spent so far."""
    found = {}
    for process in _tree(root):
        try:
            times = process.cpu_times()
            found[process] = Spent(process.ppid(), times.user + times.system, times.children_user + times.children_system)
        except psutil.Error:
            continue  # ended meanwhile: its parent has its seconds
    return found


def cpu_seconds(before: dict[psutil.Process, Spent], after: dict[psutil.Process, Spent]) -> float:
    """Give the CPU seconds that a tree spent between two looks.

    A process that ended in between brings its parent all of its life's seconds, of which those before the first look are taken off again; where its
    parent did not wait for it (Ray's workers) they never came, and nothing is taken off.
    """
    gone: dict[int, float] = defaultdict(float)
    for process, then in before.items():
        if process not in after:
            gone[then.parent] += then.own + then.reaped
    total = 0.0
    for process, now in after.items():
        then = before.get(process, Spent(now.parent, 0.0, 0.0))
        total += now.own - then.own + max(0.0, now.reaped - then.reaped - gone[process.pid])
    return total


def memory(root: psutil.Process) -> dict[str, int]:
    """Add up the proportional set sizes, in bytes: ``all``, and ``workers``, the Python processes below the root.

    Pages that processes share count in each by its part, so that the sum is what the machine holds.
    """
    found = {"all": 0, "workers": 0}
    for process in _tree(root):
        try:
            with open(f"/proc/{process.pid}/smaps_rollup", "rb") as rollup:  # noqa: PTH123 - read many times a second
                pss = next(int(line.split()[1]) * 1024 for line in rollup if line.startswith(b"Pss:"))
            name = process.name()
        except (OSError, StopIteration, psutil.Error):
            continue
        found["all"] += pss
        if process.pid != root.pid and name.startswith("python"):
            found["workers"] += pss
    return found


@contextmanager
def watching_memory(root: psutil.Process, every_seconds: float = 0.25) -> Iterator[dict[str, int]]:
    """Keep the peaks while the block runs; looking costs some CPU, so no round that is timed is watched."""
    peaks = memory(root)
    ended = Event()

    def watch() -> None:
        while not ended.wait(every_seconds):
            for kind, size in memory(root).items():
                peaks[kind] = max(peaks[kind], size)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        ended.set()
        watcher.join()


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def quiet(seconds: float = 0.5) -> None:
    """Wait a moment: what a round leaves behind (a JVM's collector) is not the next one's."""
    time.sleep(seconds)
