"""One model per fingerprint, device and thread count in a Python process, over tasks, calls and jobs.

Runs on: worker (and the driver, for ``predict_local``).

Invariant: a model is loaded by one thread while the others that want it wait; it is released only when nobody uses it, and
at most ``limit`` idle models are kept, the least recently used let go first.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from sparkinfer.engine.lasting import process_objects
from sparkinfer.exceptions import SparkInferWarning

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import LoadedModel

__all__ = ["ModelCache", "process_models"]


@dataclass
class _Entry:
    loading: Lock = field(default_factory=Lock)
    model: LoadedModel | None = None
    users: int = 0


class ModelCache:
    """Loaded models by key.

    Example:
        >>> class Model:
        ...     def predict(self, inputs): ...
        ...     def release(self): print("let go")
        >>> cache = ModelCache()
        >>> with cache.borrow("a", Model, limit=1) as model: pass
        >>> with cache.borrow("b", Model, limit=1) as model: pass
        let go
        >>> len(cache)
        1
    """

    def __init__(self) -> None:
        """Start empty."""
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def __len__(self) -> int:
        """Count the models that are held."""
        return len(self._entries)

    @contextmanager
    def borrow(self, key: Hashable, load: Callable[[], LoadedModel], limit: int) -> Iterator[LoadedModel]:
        """Give the model of ``key``, loaded if it is not there, and keep it afterwards if ``limit`` allows.

        Room is made before the load, so that the old model's memory is free for the new one.

        Args:
            key: same key, same model.
            load: called at most once while the model is held. What it raises is raised here, and nothing is kept.
            limit: idle models to keep, at least 0.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            entry.users += 1
        try:
            with entry.loading:
                if entry.model is None:
                    self._let_go(limit)
                    entry.model = load()
                    process_objects.loaded()
            yield entry.model
        finally:
            with self._lock:
                entry.users -= 1
                if entry.model is None and not entry.users:
                    self._entries.pop(key, None)
            self._let_go(limit)

    def discard(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Let go of the idle models whose keys are unwanted."""
        with self._lock:
            idle = [key for key, entry in self._entries.items() if not entry.users and entry.model is not None and unwanted(key)]
            released = [self._entries.pop(key) for key in idle]
        for entry in released:
            if entry.model is not None:
                _release(entry.model)

    def _let_go(self, limit: int) -> None:
        released = []
        with self._lock:
            idle = [key for key, entry in self._entries.items() if not entry.users and entry.model is not None]
            surplus = max(0, len(self._entries) - limit)
            released = [self._entries.pop(key) for key in idle[:surplus]]
        for entry in released:
            if entry.model is not None:
                _release(entry.model)


def _release(model: LoadedModel) -> None:
    """Let a model go; its own ``close()`` may fail, which must not cost the predictions that are made, nor the next model's turn."""
    process_objects.released()
    try:
        model.release()
    except Exception as error:  # noqa: BLE001 - whatever the user's close() raises
        warnings.warn(f"a model could not be closed: {type(error).__name__}: {error}", SparkInferWarning, stacklevel=2)


process_models = ModelCache()
"""The models of this Python process."""
