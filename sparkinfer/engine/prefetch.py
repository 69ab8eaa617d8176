"""Read ahead of a slow consumer, in order, on one thread.

Runs on: worker (no Spark, no framework needed).

Invariant: at most ``depth`` items wait in the queue, one is in the producer's hand and one in the consumer's; with a ``Gate`` the first two
hold at most its bytes, or one item;
the thread is joined before ``read_ahead`` returns, whichever way it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["Gate", "read_ahead"]

T = TypeVar("T")


@dataclass(frozen=True)
class _Item(Generic[T]):
    value: T
    size: int = 0


@dataclass(frozen=True)
class _End:
    """The source is exhausted (``error is None``) or failed."""

    error: BaseException | None = None


class Gate(Generic[T]):
    """Stops the producer before it makes an item that would be too much beside those that wait: the next is taken to be as large as the last.

    Each side only adds to a number of its own; a lock is taken where the producer stands.
    """

    def __init__(self, most_bytes: int, weigh: Callable[[T], int]) -> None:
        """Begin open.

        Args:
            most_bytes: of all items that wait; one item goes through alone, whatever its size.
            weigh: gives an item's bytes.
        """
        self._most_bytes = most_bytes
        self._weigh = weigh
        self._made = 0
        self._taken = 0
        self._last = 0
        self._stands = False
        self._abandoned = False
        self._moved = Condition()

    def wait(self) -> None:
        """Wait for room: called by the producer."""
        if self._may_go():
            return
        with self._moved:
            self._stands = True
            self._moved.wait_for(self._may_go)
            self._stands = False

    def made(self, item: T) -> int:
        """Count an item, and give its bytes."""
        self._last = self._weigh(item)
        self._made += self._last
        return self._last

    def taken(self, size: int) -> None:
        """Count an item that the consumer has: called by it."""
        self._taken += size
        self._tell()

    def abandon(self) -> None:
        """Let the producer go, for it will see that nobody wants more."""
        self._abandoned = True
        self._tell()

    def _may_go(self) -> bool:
        held = self._made - self._taken
        return self._abandoned or held == 0 or held + self._last <= self._most_bytes

    def _tell(self) -> None:
        if self._stands:
            with self._moved:
                self._moved.notify_all()


@contextmanager
def read_ahead(source: Iterator[T], depth: int, meter: QueueMeter | None = None, gate: Gate[T] | None = None) -> Iterator[Iterator[T]]:
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
        gate: bounds the bytes as well.

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
    producer = Thread(target=_produce, args=(source, queue, abandoned, meter, gate), name="sparkinfer-read-ahead")
    try:
        yield _consume(queue, producer, meter, gate)
    finally:
        abandoned.set()
        if gate is not None:
            gate.abandon()
        _drain(queue)  # a producer blocked on a full queue sees room, then the flag: it puts once more at most
        if producer.ident is not None:
            producer.join()


def _produce(source: Iterator[T], queue: Queue[_Item[T] | _End], abandoned: Event, meter: QueueMeter | None, gate: Gate[T] | None) -> None:
    try:
        for value in source:
            item = _Item(value) if gate is None else _Item(value, gate.made(value))
            if meter is None:
                queue.put(item)
            else:
                begun = meter.putting()
                queue.put(item)
                meter.put(begun)
            del value, item  # the consumer's alone now: it need not be kept while the next one is made
            if gate is not None:
                gate.wait()
            if abandoned.is_set():
                return
    except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
        queue.put(_End(error))
    else:
        queue.put(_End())


def _consume(queue: Queue[_Item[T] | _End], producer: Thread, meter: QueueMeter | None, gate: Gate[T] | None) -> Iterator[T]:
    producer.start()
    while isinstance(entry := queue.get(), _Item):
        if meter is not None:
            meter.got()
        if gate is not None:
            gate.taken(entry.size)
        yield entry.value
    if entry.error is not None:
        raise entry.error


def _drain(queue: Queue[_Item[T] | _End]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
