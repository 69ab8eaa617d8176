"""Reading ahead keeps order, bounds memory, loses no error and leaves no thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.engine.prefetch import read_ahead


def live_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sparkinfer")]


@given(items=st.lists(st.integers()), depth=st.integers(1, 5))
def test_every_item_comes_once_and_in_order(items: list[int], depth: int) -> None:
    """Whatever the depth, the consumer sees what the source gave."""
    with read_ahead(iter(items), depth) as ahead:
        assert list(ahead) == items
    assert live_threads() == []


def test_the_source_is_never_more_than_depth_plus_one_ahead() -> None:
    """Two wait in the queue and one in the producer's hand: the source has given 1 + 2 + 1 when the consumer holds the first."""
    pulled: list[int] = []
    reached = threading.Event()

    def source() -> Iterator[int]:
        for number in range(100):
            pulled.append(number)
            if number == 3:
                reached.set()
            yield number

    with read_ahead(source(), depth=2) as ahead:
        next(ahead)
        assert reached.wait(5)
        assert pulled == [0, 1, 2, 3]
    assert live_threads() == []


def test_an_error_arrives_after_the_items_before_it() -> None:
    """The consumer gets 0..2 and then the source's own exception, with its own traceback."""

    def source() -> Iterator[int]:
        yield from range(3)
        msg = "disk gone"
        raise OSError(msg)

    got: list[int] = []
    with pytest.raises(OSError, match="disk gone") as caught, read_ahead(source(), depth=1) as ahead:
        got.extend(ahead)
    assert caught.traceback[-1].name == "source"
    assert live_threads() == []


def test_leaving_early_stops_a_producer_that_waits_for_room() -> None:
    """A consumer that stops (Spark's limit) leaves no thread, though the source has no end."""
    with read_ahead(iter(int, 1), depth=3) as ahead:
        next(ahead)
    assert live_threads() == []


def test_a_block_that_asks_for_nothing_pulls_nothing() -> None:
    """The thread starts at the first next: whoever enters and leaves has not touched the source."""
    source = iter([1, 2])
    with read_ahead(source, depth=1):
        pass
    assert list(source) == [1, 2]


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_below_one_is_refused(depth: int) -> None:
    """The message carries the value."""
    with pytest.raises(ValueError, match=f"depth is {depth}"), read_ahead(iter([]), depth):
        pass
