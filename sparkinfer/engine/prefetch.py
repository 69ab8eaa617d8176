"""Read ahead of a slow consumer, in order, on one thread.

Runs on: worker (no Spark, no framework needed).

Invariant: at most ``depth`` items wait in the queue, one is in the producer's hand and one in the consumer's;
the thread is joined before ``read_ahead`` returns, whichever way it is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["read_ahead"]

T = TypeVar("T")


@dataclass(frozen=True)
class _Item(Generic[T]):
    value: T


@dataclass(frozen=True)
class _End:
    """The source is exhausted (``error is None``) or failed."""

    error: BaseException | None = None


@contextmanager
def read_ahead(source: Iterator[T], depth: int, meter: QueueMeter | None = None) -> Iterator[Iterator[T]]:
    """Pull ``source`` on a thread of its own, up to ``depth`` items ahead.

    The order is the source's. An error of the source is raised in the consumer after every item that came before it, with
    its own traceback. The thread starts at the consumer's first ``next``. Leaving the block early (an exception, or Spark
    closing the task's generator at a ``limit``) stops the producer at its next item; a producer that is blocked inside
    ``next(source)`` cannot be interrupted and is waited for, since Spark's iterator must not be pulled after its task has
    ended.

    Args:
        source: pulled by one thread only, never by the caller once the block is entered.
        depth: items, at least 1. Memory held is about ``depth + 2`` items.
        meter: is told of the queue.

    Raises:
        ValueError: ``depth`` is below 1.

    Example:
        >>> with read_ahead(iter(range(3)), depth=2) as items:
        ...     list(items)
        [0, 1, 2]
    """
    if depth < 1:
        msg = f"depth is {depth}, but reading ahead needs room for at least 1 item"
        raise ValueError(msg)
    queue: Queue[_Item[T] | _End] = Queue(maxsize=depth)
    abandoned = Event()
    producer = Thread(target=_produce, args=(source, queue, abandoned, meter), name="sparkinfer-read-ahead")
    try:
        yield _consume(queue, producer, meter)
    finally:
        abandoned.set()
        _drain(queue)  # a producer blocked on a full queue sees room, then the flag: it puts once more at most
        if producer.ident is not None:
            producer.join()


def _produce(source: Iterator[T], queue: Queue[_Item[T] | _End], abandoned: Event, meter: QueueMeter | None) -> None:
    try:
        for value in source:
            if meter is None:
                queue.put(_Item(value))
            else:
                begun = meter.putting()
                queue.put(_Item(value))
                meter.put(begun)
            if abandoned.is_set():
                return
    except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
        queue.put(_End(error))
    else:
        queue.put(_End())


def _consume(queue: Queue[_Item[T] | _End], producer: Thread, meter: QueueMeter | None) -> Iterator[T]:
    producer.start()
    while isinstance(entry := queue.get(), _Item):
        if meter is not None:
            meter.got()
        yield entry.value
    if entry.error is not None:
        raise entry.error


def _drain(queue: Queue[_Item[T] | _End]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
