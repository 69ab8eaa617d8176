"""What stays is frozen between tasks, and a model that is let go is found by the collector all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from sparkinfer.engine import lasting, model_cache


class Knot:
    """A model that holds itself, as Keras's do: only the collector ends it."""

    def __init__(self) -> None:
        self.myself = self

    def predict(self, inputs: Any) -> Any:
        return inputs

    def release(self) -> None:
        pass


@pytest.fixture(autouse=True)
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[lasting.Lasting]:
    mine = lasting.Lasting()
    monkeypatch.setattr(model_cache, "process_objects", mine)
    gc.unfreeze()
    yield mine
    gc.unfreeze()


def borrowed(cache: model_cache.ModelCache, key: str) -> weakref.ref[Any]:
    with cache.borrow(key, Knot, limit=1) as model:
        return weakref.ref(model)


def test_nothing_is_frozen_before_a_model_is_loaded(objects: lasting.Lasting) -> None:
    """A worker whose tasks met no model pays for nothing."""
    objects.settle()
    assert gc.get_freeze_count() == 0


def test_a_loaded_model_is_frozen_once(objects: lasting.Lasting) -> None:
    """From the next task on, and not again where nothing new was loaded."""
    cache = model_cache.ModelCache()
    borrowed(cache, "a")
    assert gc.get_freeze_count() == 0  # not within the task
    objects.settle()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    later = [[] for _ in range(100)]
    borrowed(cache, "a")
    objects.settle()  # nothing new came
    assert gc.get_freeze_count() <= frozen
    assert all(gc.is_tracked(one) for one in later)


def test_a_model_that_is_let_go_is_collected(objects: lasting.Lasting) -> None:
    """One that holds itself, too; what stays is frozen again afterwards."""
    cache = model_cache.ModelCache()
    first = borrowed(cache, "a")
    objects.settle()
    second = borrowed(cache, "b")  # lets the first one go
    gc.collect()
    assert first() is None
    assert second() is not None
    objects.settle()
    assert gc.get_freeze_count() > 1000
    cache.discard(lambda key: True)
    gc.collect()
    assert second() is None
