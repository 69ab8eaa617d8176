"""Loader processes for the backends that have no loader of their own: batches prepared in parallel, in order.

Runs on: worker.

Invariant: order is the source's; at most ``num_workers + depth`` batches are out; the processes live on for the next partition
that needs the same step, and end with this process, whatever ends it.
"""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from sparkinfer.engine.batch import Batch, Failure, Fed, Inputs
from sparkinfer.engine.cell import Death, from_bytes, to_bytes
from sparkinfer.engine.contain import Lost, contained
from sparkinfer.engine.lifeline import Lifeline, loader_context
from sparkinfer.engine.room import Room
from sparkinfer.engine.watch import Slots, at_batch, how_it_ended, remark_grown, serials, watching
from sparkinfer.exceptions import LoaderProcessError, SparkInferWarning
from sparkinfer.pickling import dumps, loads

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import PrepareStep

__all__ = ["prepare_in_processes"]

Key = tuple[str, int, float | None]  # step, processes, what one call may take

_idle: dict[Key, _Pool] = {}  # waits for the next partition; at most one, the last that was given back
_SECONDS_TO_END = 2.0  # for the signal that may be ignored


@contextmanager
def prepare_in_processes(
    source: Iterator[Batch],
    prepare: PrepareStep,
    num_workers: int,
    depth: int,
    *,
    timeout_seconds: float | None = None,
    most_bytes: int | None = None,
) -> Iterator[Iterator[Fed]]:
    """Prepare ``source``'s batches in ``num_workers`` processes.

    Entering starts the processes, in the calling thread; the iterator pulls ``source`` in whichever thread runs it. Leaving
    early drops what is out: a batch that a process is at work on is finished there, and thrown away.

    Args:
        source: batches in order.
        prepare: made into inputs by this step; picklable by cloudpickle.
        num_workers: at least 1. Where processes may not have children (a daemonic process), the work is done in this one, with
            one remark.
        depth: batches that may be out beyond one for each process.
        timeout_seconds: what one call of the user's function may take.
        most_bytes: of the batches that are out, as they come back; one batch is out all the same.

    Raises:
        LoaderProcessError: loader processes die, and no row of the data is to blame.
    """
    if multiprocessing.current_process().daemon:
        warnings.warn(
            f"num_workers={num_workers} needs loader processes, but this process is daemonic and may have none: preparing in this "
            "process instead",
            SparkInferWarning,
            stacklevel=3,
        )
        yield (Fed(batch, prepare(batch.data)) for batch in source)
        return
    lent = _Lent((prepare.fingerprint, num_workers, timeout_seconds), prepare, Room(most_bytes, num_workers + depth))
    try:
        lent.take()
        with closing(contained(source, lent.epoch, lent.take, prepare, timeout_seconds)) as fed:
            yield fed
    finally:
        lent.leave()


@dataclass
class _Pool:
    """An executor, and where its processes are."""

    executor: ProcessPoolExecutor
    slots: Slots

    def processes(self) -> list[BaseProcess]:
        return list((self.executor._processes or {}).values())  # noqa: SLF001 - the public face has neither pids nor exit codes

    def end(self) -> list[BaseProcess]:
        """End the processes, whatever they are at, and name those of a broken pool that had ended by themselves."""
        processes = self.processes()
        broken = self.executor._broken  # noqa: SLF001
        own = []
        for process in processes if broken else ():
            process.join(_SECONDS_TO_END)
            if process.exitcode is None:
                process.kill()  # it ignores the signal by which the executor ends those that are left
            elif process.exitcode not in (0, -signal.SIGTERM):
                own.append(process)
        self.executor.shutdown(wait=True, cancel_futures=True)
        return own


class _Lent:
    """The processes of one partition: those that waited, and the ones that take their place when some die."""

    def __init__(self, key: Key, prepare: PrepareStep, room: Room) -> None:
        self._key = key
        self._prepare = prepare
        self._room = room
        self._out: deque[tuple[int, Batch, Future[Inputs | Failure]]] = deque()
        self._held: list[Batch] = []  # one that was pulled and is not out yet
        self._pool: _Pool | None = None

    def take(self) -> None:
        pool = self._pool = _borrow(self._key, self._prepare)
        try:
            pool.executor.submit(_alive).result()  # starts the processes in this thread, which is the one that lives as long as they
        except BrokenProcessPool as error:
            own, self._pool = pool.end(), None
            msg = (
                f"one of the {self._key[1]} loader processes that run preprocess{_ends(own)} when it started (or, from a script of your own, the "
                "script starts its work without `if __name__ == '__main__':`). Run with num_workers=0 to see it in the worker itself"
            )
            raise LoaderProcessError(msg) from error

    def epoch(self, source: Iterator[Batch]) -> Iterator[Fed]:
        if self._pool is None:
            msg = "the processes were lost, and no others taken"
            raise AssertionError(msg)
        out, pool, room = self._out, self._pool, self._room
        try:
            with watching(pool.slots):
                for batch in source:
                    self._held = [batch]
                    while not room.fits(batch):
                        yield self._next()
                    serial = next(serials)
                    out.append((serial, batch, pool.executor.submit(_prepare_here, serial, to_bytes(batch.data))))
                    room.enter(batch)
                    self._held = []
                    if len(out) >= room.most:
                        yield self._next()
                while out:
                    yield self._next()
        except BrokenProcessPool as error:
            raise self._lost(pool, source) from error

    def _next(self) -> Fed:
        _, batch, future = self._out[0]
        inputs = future.result()
        self._out.popleft()
        self._room.leave(batch, inputs)
        return Fed(batch, inputs)

    def _lost(self, pool: _Pool, source: Iterator[Batch]) -> Lost:
        own, self._pool = pool.end(), None
        deaths = {
            slot.serial: Death.of(slot, pool.slots, process.exitcode, self._prepare.only_column)
            for process in own
            if (slot := pool.slots.of(process.pid)) is not None
        }
        waiting = [(batch, deaths.get(serial)) for serial, batch, _ in self._out]
        source = chain(self._held, source)
        self._held = []
        self._out.clear()
        self._room.clear()
        return Lost(f"one of the {self._key[1]} loader processes that run preprocess{_ends(own)}", waiting, source)

    def leave(self) -> None:
        for _, _, future in self._out:
            future.cancel()
        if self._pool is not None:
            _give_back(self._key, self._pool)


def _ends(processes: list[BaseProcess]) -> str:
    return f" (pid {processes[0].pid}) {how_it_ended(processes[0].exitcode)}" if processes else " died"


def _borrow(key: Key, prepare: PrepareStep) -> _Pool:
    """Take the waiting processes of this step, or make room for new ones; lent ones are nobody else's until they are given back."""
    kept = _idle.pop(key, None)
    while _idle:
        _idle.popitem()[1].end()
    if kept is not None:
        try:
            kept.executor.submit(_alive).result()
        except BrokenProcessPool:  # it died while nobody looked
            kept.end()
        else:
            return kept
    context = loader_context("sparkinfer.engine.prepare", "sparkinfer.engine.pool")
    slots = Slots(context, key[1], key[2])
    begin = (Lifeline(), slots, dumps(prepare, "preprocess"))
    return _Pool(ProcessPoolExecutor(key[1], mp_context=context, initializer=_begin, initargs=begin), slots)


def _give_back(key: Key, pool: _Pool) -> None:
    while _idle:
        _idle.popitem()[1].end()
    if (grown := pool.slots.grown()) is not None:
        remark_grown(grown)
        pool.end()
    else:
        _idle[key] = pool


_step: PrepareStep | None = None  # what this loader process runs


def _begin(lifeline: Lifeline, slots: Slots, pickled: bytes) -> None:
    global _step  # noqa: PLW0603 - a pool's initializer has nowhere else to leave it
    lifeline(0)
    slots.sit()
    _step = loads(pickled, "preprocess")


def _alive() -> None:
    """Answer: the process is there."""


def _prepare_here(serial: int, data: bytes) -> Inputs | Failure:
    if _step is None:
        msg = "a loader process was asked to prepare before it was given its step"
        raise AssertionError(msg)
    with at_batch(serial):
        return _step(from_bytes(data))
