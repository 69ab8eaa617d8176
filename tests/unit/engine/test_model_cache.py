"""A model is loaded once, kept while it is wanted, bounded in number, and let go properly."""

from __future__ import annotations

import threading

import pytest

from sparkinfer.engine.batch import Inputs
from sparkinfer.engine.model_cache import ModelCache
from sparkinfer.exceptions import SparkInferWarning


class Model:
    """Counts its loads and releases in a list that it is given."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events
        events.append(f"load {name}")

    def predict(self, inputs: Inputs) -> str:
        return self.name

    def device_peak_bytes(self) -> None:
        return None

    def release(self) -> None:
        self.events.append(f"release {self.name}")


def test_the_same_key_is_loaded_once() -> None:
    """Three borrowings of one key are one load and no release."""
    cache, events = ModelCache(), []
    for _ in range(3):
        with cache.borrow("a", lambda: Model("a", events), limit=2) as model:
            assert model.predict(Inputs("single")) == "a"
    assert events == ["load a"]


def test_the_least_recently_used_model_goes_first_and_before_the_next_load() -> None:
    """With room for two, the third one lets go of the one not used longest, and its memory is free before the load."""
    cache, events = ModelCache(), []
    for name in ("a", "b", "a", "c"):
        with cache.borrow(name, lambda name=name: Model(name, events), limit=2):
            pass
    assert events == ["load a", "load b", "release b", "load c"]


def test_a_limit_of_none_keeps_nothing_after_the_task() -> None:
    """With limit 0 the model is let go as the block is left."""
    cache, events = ModelCache(), []
    with cache.borrow("a", lambda: Model("a", events), limit=0):
        assert events == ["load a"]
    assert events == ["load a", "release a"]
    assert len(cache) == 0


def test_a_model_in_use_is_never_let_go() -> None:
    """A second model may exceed the limit, but the one in use stays until its user leaves."""
    cache, events = ModelCache(), []
    with cache.borrow("a", lambda: Model("a", events), limit=1):
        with cache.borrow("b", lambda: Model("b", events), limit=1):
            assert events == ["load a", "load b"]
        assert events == ["load a", "load b", "release b"]
    assert len(cache) == 1


def test_two_threads_that_ask_at_once_share_one_load() -> None:
    """The second waits for the first one's load instead of starting its own."""
    cache, events = ModelCache(), []
    started, go_on = threading.Event(), threading.Event()

    def slow() -> Model:
        started.set()
        assert go_on.wait(10)
        return Model("a", events)

    def borrow() -> None:
        with cache.borrow("a", slow, limit=1):
            pass

    threads = [threading.Thread(target=borrow) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert events == ["load a"]


def test_a_failed_load_leaves_nothing_behind() -> None:
    """The error is the loader's own, and the next borrower loads afresh."""
    cache, events = ModelCache(), []

    def broken() -> Model:
        msg = "no such file"
        raise OSError(msg)

    with pytest.raises(OSError, match="no such file"), cache.borrow("a", broken, limit=1):
        pass
    assert len(cache) == 0
    with cache.borrow("a", lambda: Model("a", events), limit=1):
        assert events == ["load a"]


def test_a_close_that_fails_costs_neither_predictions_nor_the_next_model() -> None:
    """The user's close() raises: one warning, and the models after it are let go all the same."""

    class Stuck(Model):
        def release(self) -> None:
            super().release()
            msg = "cannot close"
            raise RuntimeError(msg)

    cache, events = ModelCache(), []
    told = pytest.warns(SparkInferWarning, match="could not be closed: RuntimeError: cannot close")
    with told, cache.borrow("a", lambda: Stuck("a", events), limit=0) as model:
        answer = model.predict(Inputs("single"))
    assert answer == "a"
    assert events == ["load a", "release a"]
    assert len(cache) == 0
