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
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkinfer.engine.batch import Batch, Failure, Fed, Inputs
from sparkinfer.engine.lifeline import Lifeline, loader_context
from sparkinfer.exceptions import LoaderProcessError, SparkInferWarning
from sparkinfer.pickling import dumps, loads

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import PrepareStep

__all__ = ["prepare_in_processes"]

Key = tuple[str, int]  # step, processes

_idle: dict[Key, ProcessPoolExecutor] = {}  # waits for the next partition; at most one, the last that was given back


@contextmanager
def prepare_in_processes(source: Iterator[Batch], prepare: PrepareStep, num_workers: int, depth: int) -> Iterator[Iterator[Fed]]:
    """Prepare ``source``'s batches in ``num_workers`` processes.

    Entering starts the processes, in the calling thread; the iterator pulls ``source`` in whichever thread runs it. Leaving
    early drops what is out: a batch that a process is at work on is finished there, and thrown away.

    Args:
        source: batches in order.
        prepare: made into inputs by this step; picklable by cloudpickle.
        num_workers: at least 1. Where processes may not have children (a daemonic process), the work is done in this one, with
            one remark.
        depth: batches that may be out beyond one for each process.

    Raises:
        LoaderProcessError: a loader process died; it is told at once, and the next partition gets new ones.
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
    out: deque[tuple[Batch, Future[Inputs | Failure]]] = deque()
    key = (prepare.fingerprint, num_workers)
    pool = _borrow(key, prepare)
    whole = True
    try:
        pool.submit(_alive).result()  # starts the processes in this thread, which is the one that lives as long as they
        yield _in_order(source, pool, out, num_workers + depth)
    except BrokenProcessPool as error:
        whole = False
        msg = (
            f"one of the {num_workers} loader processes that run preprocess {_how_it_ended(pool)}: it was killed, ran out of memory, or "
            "left by os._exit (or, from a script of your own, the script starts its work without `if __name__ == '__main__':`). Run with "
            "num_workers=0 to see it in the worker itself, or give the workers more memory"
        )
        raise LoaderProcessError(msg) from error
    finally:
        for _, future in out:
            future.cancel()
        if whole:
            _give_back(key, pool)


def _in_order(
    source: Iterator[Batch], pool: ProcessPoolExecutor, out: deque[tuple[Batch, Future[Inputs | Failure]]], room: int
) -> Iterator[Fed]:
    for batch in source:
        out.append((batch, pool.submit(_prepare_here, _to_bytes(batch.data))))
        if len(out) >= room:
            yield _next(out)
    while out:
        yield _next(out)


def _next(out: deque[tuple[Batch, Future[Inputs | Failure]]]) -> Fed:
    batch, future = out.popleft()
    return Fed(batch, future.result())


def _to_bytes(data: pa.RecordBatch) -> bytes:
    """Arrow IPC sends only the slice; pickle would send the whole chunk that it is a view of."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_batch(data)
    return bytes(sink.getvalue())


def _borrow(key: Key, prepare: PrepareStep) -> ProcessPoolExecutor:
    """Take the waiting processes of this step, or make room for new ones; lent ones are nobody else's until they are given back."""
    kept = _idle.pop(key, None)
    while _idle:
        _end(_idle.popitem()[1])
    if kept is not None:
        try:
            kept.submit(_alive).result()
        except BrokenProcessPool:  # it died while nobody looked
            _end(kept)
        else:
            return kept
    return ProcessPoolExecutor(
        key[1],
        mp_context=loader_context("sparkinfer.engine.prepare", "sparkinfer.engine.pool"),
        initializer=_begin,
        initargs=(Lifeline(), dumps(prepare, "preprocess")),
    )


def _give_back(key: Key, pool: ProcessPoolExecutor) -> None:
    while _idle:
        _end(_idle.popitem()[1])
    _idle[key] = pool


def _end(pool: ProcessPoolExecutor) -> None:
    pool.shutdown(wait=True, cancel_futures=True)


def _how_it_ended(pool: ProcessPoolExecutor) -> str:
    """End the broken pool, and say with which exit code its first process went."""
    processes = list((pool._processes or {}).values())  # noqa: SLF001 - the public face has no exit codes
    _end(pool)
    # the executor ends those that are left by SIGTERM
    own = [(process.pid, process.exitcode) for process in processes if process.exitcode not in (None, 0, -signal.SIGTERM)]
    if not own:
        return "died"
    pid, code = own[0]
    return f"(pid {pid}) was killed by {signal.Signals(-code).name}" if code < 0 else f"(pid {pid}) ended with exit code {code}"


_step: PrepareStep | None = None  # what this loader process runs


def _begin(lifeline: Lifeline, pickled: bytes) -> None:
    global _step  # noqa: PLW0603 - a pool's initializer has nowhere else to leave it
    lifeline(0)
    _step = loads(pickled, "preprocess")


def _alive() -> None:
    """Answer: the process is there."""


def _prepare_here(data: bytes) -> Inputs | Failure:
    if _step is None:
        msg = "a loader process was asked to prepare before it was given its step"
        raise AssertionError(msg)
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return _step(reader.read_next_batch())
