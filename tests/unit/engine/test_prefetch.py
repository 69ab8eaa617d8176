"""Reading ahead keeps order, bounds memory, loses no error and leaves no thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.engine.prefetch import Gate, read_ahead


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


def pulled_when_the_first_is_in_hand(sizes: list[int], most_bytes: int, settled: int) -> list[int]:
    """Read ahead of a consumer that holds the first item until ``settled`` are pulled, and tell how far the source went."""
    pulled: list[int] = []
    reached = threading.Event()

    def source() -> Iterator[int]:
        for size in sizes:
            pulled.append(size)
            if len(pulled) == settled:
                reached.set()
            yield size

    with read_ahead(source(), 10, gate=Gate(most_bytes, lambda size: size)) as ahead:
        next(ahead)
        assert reached.wait(5)
        time.sleep(0.05)  # a producer that runs away has the time to
        before = list(pulled)
        assert [sizes[0], *ahead] == sizes
    assert live_threads() == []
    return before


def test_bytes_bound_what_waits_and_what_is_made() -> None:
    """Of items of 100 bytes three wait under a bound of 300, and the fourth is not begun; under no such bound ten would."""
    assert len(pulled_when_the_first_is_in_hand([100] * 12, 300, settled=4)) == 4
    assert len(pulled_when_the_first_is_in_hand([100] * 12, 10_000, settled=12)) == 12


def test_one_item_that_is_larger_than_all_room_goes_through_alone() -> None:
    """C41: nothing waits for ever, and the small ones behind it come."""
    assert len(pulled_when_the_first_is_in_hand([1000, 1000, 5, 5, 5], 300, settled=2)) == 2


def test_leaving_frees_a_producer_that_waits_for_bytes() -> None:
    """It stands before its third item; an early end joins it."""
    with read_ahead(iter(lambda: 100, None), 10, gate=Gate(100, lambda size: size)) as ahead:
        next(ahead)
    assert live_threads() == []


@given(sizes=st.lists(st.integers(0, 50)), most_bytes=st.integers(1, 100), depth=st.integers(1, 3))
def test_every_item_comes_once_and_in_order_whatever_its_size(sizes: list[int], most_bytes: int, depth: int) -> None:
    """No size and no bound stops or loses an item."""
    with read_ahead(iter(sizes), depth, gate=Gate(most_bytes, lambda size: size)) as ahead:
        assert list(ahead) == sizes
    assert live_threads() == []
