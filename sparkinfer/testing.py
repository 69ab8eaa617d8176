"""A kit for tests of models and pipelines: a ledger that every process can write to, and models with a known behaviour.

Runs on: both (standard library only; the models take and give NumPy arrays).

Invariant: what a process wrote to a ledger before it was killed can be read by every other one; no line is torn or lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EchoModel", "Event", "Ledger", "RaisingModel", "ShortModel"]


@dataclass(frozen=True)
class Event:
    """One line of a ledger.

    Attributes:
        kind: the writer's word for it, such as ``"load"`` or ``"predict"``.
        pid: the process that wrote it.
        rows: rows that it was about, if that was told.
        partition: Spark's partition id, if that was told.
    """

    kind: str
    pid: int
    rows: int | None = None
    partition: int | None = None


@dataclass(frozen=True)
class Ledger:
    """A record of what happened in which process, kept in a folder that all of them see.

    It pickles as its path, so a loader, a preprocess function or a model that holds one can write from Spark's workers.

    Attributes:
        folder: made at the first line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger(folder)
        ...     ledger.write("load")
        ...     ledger.write("predict", rows=64, partition=0)
        ...     ledger.write("predict", rows=36, partition=0)
        ...     ledger.count("load"), ledger.rows("predict"), len(ledger.pids("predict"))
        (1, [64, 36], 1)
    """

    folder: str

    def write(self, kind: str, *, rows: int | None = None, partition: int | None = None) -> None:
        """Append one line; when this returns, the line outlives this process.

        Args:
            kind: a word to find it by.
            rows: rows that it is about.
            partition: Spark's partition id.
        """
        path = self._path
        path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(asdict(Event(kind, os.getpid(), rows, partition))) + "\n"
        # One write with O_APPEND: POSIX places it at the end as a whole, whoever else writes. A buffered file could tear it.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def events(self, kind: str | None = None) -> list[Event]:
        """Give the lines in the order in which they were written; of one kind, or all."""
        if not self._path.exists():
            return []
        events = [Event(**json.loads(line)) for line in self._path.read_text(encoding="utf-8").splitlines()]
        return [event for event in events if kind in (None, event.kind)]

    def count(self, kind: str) -> int:
        """Count the lines of one kind."""
        return len(self.events(kind))

    def rows(self, kind: str) -> list[int]:
        """Give the rows of each line of one kind that told any: for ``"predict"``, the batches' sizes."""
        return [event.rows for event in self.events(kind) if event.rows is not None]

    def pids(self, kind: str) -> set[int]:
        """Give the processes that wrote lines of one kind."""
        return {event.pid for event in self.events(kind)}

    @property
    def _path(self) -> Path:
        return Path(self.folder) / "events.jsonl"


@dataclass(frozen=True)
class EchoModel:
    """A loader for ``PythonModel`` whose model gives back what it gets.

    One array comes back as it is, several as a tuple, named ones as a dict. With a ledger each load is a line ``"load"``, and
    each call a line ``"predict"`` with its rows.

    Attributes:
        ledger: where loads and calls are written down.

    Example:
        >>> predict = EchoModel()()
        >>> predict([1.0, 2.0]), predict([1.0], [2.0]), predict(a=[1.0])
        ([1.0, 2.0], ([1.0], [2.0]), {'a': [1.0]})
    """

    ledger: Ledger | None = None

    def __call__(self) -> Callable[..., Any]:
        """Load: give the predict function."""
        self._note("load")
        return self._predict

    def _predict(self, *arrays: np.ndarray, **named: np.ndarray) -> Any:
        self._note("predict", len(next(iter([*arrays, *named.values()]))))
        return named or (arrays[0] if len(arrays) == 1 else arrays)

    def _note(self, kind: str, rows: int | None = None) -> None:
        if self.ledger is not None:
            self.ledger.write(kind, rows=rows)


@dataclass(frozen=True)
class ShortModel(EchoModel):
    """An echo model that loses the last row of every batch: the fault that the row count must catch.

    Example:
        >>> ShortModel()()([1.0, 2.0, 3.0])
        [1.0, 2.0]
    """

    def _predict(self, *arrays: np.ndarray, **named: np.ndarray) -> Any:
        return _map(lambda array: array[:-1], super()._predict(*arrays, **named))


@dataclass(frozen=True)
class RaisingModel(EchoModel):
    """An echo model that raises when its first input holds ``trigger``.

    Attributes:
        trigger: the value that it cannot bear.
        error: what it raises.
        message: with these words.

    Example:
        >>> RaisingModel(trigger=13.0, error=ArithmeticError, message="13 is not for me")()([12.0, 13.0])
        Traceback (most recent call last):
        ArithmeticError: 13 is not for me
    """

    trigger: Any = 13
    error: type[Exception] = RuntimeError
    message: str = "the model raised, as it was told to"

    def _predict(self, *arrays: np.ndarray, **named: np.ndarray) -> Any:
        if self.trigger in next(iter([*arrays, *named.values()])):
            raise self.error(self.message)
        return super()._predict(*arrays, **named)


def _map(function: Callable[[Any], Any], result: Any) -> Any:
    if isinstance(result, Mapping):
        return {name: function(array) for name, array in result.items()}
    return tuple(map(function, result)) if isinstance(result, tuple) else function(result)
