"""Show how far a run is, while it runs: rows, partitions, rows a second, time left.

Runs on: driver (standard library; IPython where a notebook has loaded it).

Invariant: nothing is shown where nobody looks, nothing is raised into the user's code, and the thread has ended when the block is left.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from importlib import import_module
from threading import Event, Thread
from types import TracebackType
from typing import Any, Literal, Protocol, TextIO

__all__ = ["Display", "Progress", "Snapshot", "in_notebook", "progress_line"]

Snapshot = tuple["int | None", int, "int | None"]
"""Rows and partitions that are done, and how many partitions there are; ``None`` while nobody knows."""

_EVERY_SECONDS = 0.5
_STOP_SECONDS = 5.0  # a look at Spark that hangs is not waited for any longer


class Display(Protocol):
    """Where the line is shown."""

    def show(self, line: str) -> None:
        """Show the line in place of the one before."""

    def close(self) -> None:
        """Leave the last line, and what comes next below it."""


class Progress:
    """Looks at a run now and then, on a thread of its own, and shows one line.

    Example:
        ::

            with Progress(snapshot):
                scored.write.parquet("scored/")
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        *,
        show: bool | Literal["auto"] = "auto",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """Prepare; nothing is shown yet.

        Args:
            snapshot: gives rows, partitions that are done, and partitions in all. It may raise: then the line stays as it was.
            show: ``"auto"`` shows the line in a notebook and in a terminal; ``True`` also where the output is neither; ``False`` never.
            stream: the terminal; standard error if not given.
            clock: seconds.
            wait: waits so many seconds at most, and tells whether the block was left.
        """
        self._snapshot = snapshot
        self._show = show
        self._stream = stream
        self._clock = clock
        self._left = Event()
        self._wait = self._left.wait if wait is None else wait
        self._begun = 0.0
        self._seen: Snapshot | None = None
        self._display: Display | None = None
        self._thread: Thread | None = None

    def __enter__(self) -> Progress:  # noqa: PYI034 - Python 3.10 has no typing.Self
        """Begin, if anybody looks."""
        self._begun = self._clock()
        self._display = _quietly(lambda: _display(self._stream, show=self._show))
        if self._display is not None:
            # A daemon: a look at a Spark that has gone away may hang, and must not keep the process.
            self._thread = Thread(target=self._watch, args=(self._display,), name="sparkinfer-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Show how it ended, and stop."""
        self._left.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _watch(self, display: Display) -> None:
        shown = ""
        while not self._wait(_EVERY_SECONDS):
            self._look()
            shown = self._draw(display, shown, ended=False)
        self._look()
        self._draw(display, shown, ended=True)
        _quietly(display.close)

    def _look(self) -> None:
        """Look; rows and partitions that were done stay done, though Spark forgets the jobs that have ended."""
        seen = _quietly(self._snapshot)
        if seen is None:
            return
        rows, done, total = self._seen or (None, 0, None)
        done = max(done, seen[1])
        total = total if seen[2] is None else max(done, seen[2])
        self._seen = max((known for known in (rows, seen[0]) if known is not None), default=None), done, total

    def _draw(self, display: Display, shown: str, *, ended: bool) -> str:
        """Show the line if it has changed."""
        if self._seen is None:
            return shown
        line = progress_line(*self._seen, self._clock() - self._begun, ended=ended)
        if line != shown:
            _quietly(lambda: display.show(line))
        return line


def progress_line(rows: int | None, done: int, total: int | None, seconds: float, *, ended: bool = False) -> str:
    """Write the line.

    The time left is what the partitions that are done took, for those that are not: it is not told before the first is done.

    Args:
        rows: that are done; ``None`` where that is not known.
        done: partitions that are done.
        total: partitions in all, where that is known.
        seconds: since the beginning.
        ended: there is nothing left to wait for.

    Example:
        >>> progress_line(500, 2, 4, 10.0)
        '500 rows | 2 of 4 partitions | 50 rows/s | 10 s left'
        >>> progress_line(1000, 4, 4, 3700.0, ended=True)
        '1,000 rows | 4 of 4 partitions | 0.27 rows/s | took 1 h 01 min'
    """
    parts = [f"{rows:,} rows"] if rows is not None else []
    parts.append(f"{done:,} of {total:,} partitions" if total is not None else f"{done:,} partitions")
    if rows and seconds > 0:
        rate = rows / seconds
        parts.append(f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.2g} rows/s")
    if ended:
        parts.append(f"took {_duration(seconds)}")
    elif total is not None and 0 < done <= total:
        parts.append(f"{_duration(seconds / done * (total - done))} left")
    return " | ".join(parts)


def in_notebook() -> bool:
    """Tell whether a notebook's kernel runs this; IPython is looked for and never imported."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return hasattr(running, "kernel")


class _Terminal:
    """One line of a terminal, written over and over; no control codes but the carriage return, which every terminal has."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._width = 0

    def show(self, line: str) -> None:
        fitting = line[: shutil.get_terminal_size().columns - 1]  # a line that wraps could not be written over
        self._stream.write("\r" + fitting.ljust(self._width))
        self._stream.flush()
        self._width = len(fitting)

    def close(self) -> None:
        if self._width:
            self._stream.write("\n")
            self._stream.flush()


class _Notebook:
    """One output of a cell, shown where the block was entered and updated in place."""

    def __init__(self) -> None:
        # by name: the notebook has loaded IPython, and nothing else here needs it
        self._handle: Any = import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, line: str) -> None:
        self._handle.update({"text/plain": line}, raw=True)

    def close(self) -> None:
        """The cell's output needs no end."""


def _display(stream: TextIO | None, *, show: bool | Literal["auto"]) -> Display | None:
    """Choose: a notebook, a terminal, or nothing."""
    if show is False:
        return None
    if stream is None and in_notebook():
        return _Notebook()
    stream = sys.stderr if stream is None else stream
    return _Terminal(stream) if show is True or stream.isatty() else None


def _quietly(do: Callable[[], Any]) -> Any:
    """Do it; ``None`` where it fails: a line that cannot be shown is no reason to fail a run."""
    try:
        return do()
    except Exception:  # noqa: BLE001 - a closed stream, a stopped Spark, a notebook of another kind
        return None


def _duration(seconds: float) -> str:
    """Write ``7 s``, ``2 min 05 s`` or ``3 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
