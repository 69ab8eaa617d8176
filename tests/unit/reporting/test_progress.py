"""Progress shows what there is to show, where somebody looks, and never gets in the way."""

from __future__ import annotations

import io
import sys
import threading
import types
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.reporting.progress import Progress, Snapshot, progress_line


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """What a person sees: every line as the last text that was written over it."""
        lines = []
        for line in self.getvalue().split("\n"):
            seen = ""
            for text in line.split("\r"):
                seen = text + seen[len(text) :]
            lines.append(seen.rstrip())
        return lines


class Script:
    """A scripted run: each wait is one look and ten seconds; the last ends when the block is left."""

    def __init__(self, looks: Iterable[Snapshot | Exception]) -> None:
        self._left = list(looks)
        self._now = 0.0
        self.ended = threading.Event()
        self._last: Snapshot | Exception = (0, 0, None)

    def clock(self) -> float:
        return self._now

    def wait(self, seconds: float) -> bool:
        assert seconds > 0
        if not self._left:
            self.ended.set()
            return True
        self._now += 10.0
        self._last = self._left.pop(0)
        return False

    def snapshot(self) -> Snapshot:
        if isinstance(self._last, Exception):
            raise self._last
        return self._last


def watch(*looks: Snapshot | Exception, stream: io.StringIO | None = None, **changed) -> Terminal:
    """Run a script to its end, and give the terminal."""
    script, stream = Script(looks), Terminal() if stream is None else stream
    with Progress(script.snapshot, stream=stream, clock=script.clock, wait=script.wait, **changed):
        if changed.get("show") is not False and stream.isatty():
            assert script.ended.wait(10)
    return stream


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "sparkinfer-progress"]


def test_one_line_is_rewritten_and_ends_with_the_whole() -> None:
    """Each look replaces the line; at the end it tells the whole run, and what comes next is below it."""
    terminal = watch((0, 0, None), (250, 1, 4), (1000, 4, 4))
    assert terminal.screen() == ["1,000 rows | 4 of 4 partitions | 33 rows/s | took 30 s", ""]
    shown = [text.rstrip() for text in terminal.getvalue().split("\r")]
    assert shown[1:4] == [
        "0 rows | 0 partitions",
        "250 rows | 1 of 4 partitions | 12 rows/s | 1 min 00 s left",
        "1,000 rows | 4 of 4 partitions | 33 rows/s | 0 s left",
    ]
    assert threads() == []


def test_rows_that_nobody_knows_are_left_out() -> None:
    """Over Connect they are known when the run has ended; partitions and time left are told before."""
    shown = [text.rstrip() for text in watch((None, 1, 4), (1000, 4, 4), (None, 4, 4)).getvalue().split("\r")]
    assert shown[1] == "1 of 4 partitions | 30 s left"
    assert shown[2] == "1,000 rows | 4 of 4 partitions | 50 rows/s | 0 s left"
    assert shown[-1] == "1,000 rows | 4 of 4 partitions | 33 rows/s | took 30 s"


def test_a_shorter_line_leaves_nothing_of_the_longer_one() -> None:
    """The rest of a longer line is written over."""
    screen = watch((1, 1, 100), (1, 99, 100)).screen()
    assert screen == ["1 rows | 99 of 100 partitions | 0.05 rows/s | took 20 s", ""]


def test_what_is_done_stays_done() -> None:
    """A look that sees less than the one before, as when Spark forgets ended jobs, takes nothing back."""
    assert watch((500, 2, 4), (0, 0, None)).screen()[0].startswith("500 rows | 2 of 4 partitions")
    assert watch((500, 2, 8), (500, 5, 4)).screen()[0].startswith("500 rows | 5 of 5 partitions")


def test_a_look_that_fails_changes_nothing() -> None:
    """Errors of a look are swallowed, the line stays, and the next look counts."""
    screen = watch(RuntimeError("no Spark"), (250, 1, 4), RuntimeError("gone"), (500, 2, 4)).screen()
    assert screen[0].startswith("500 rows | 2 of 4 partitions")


def test_looks_that_all_fail_show_nothing() -> None:
    """Not even an empty line."""
    assert watch(RuntimeError("no Spark"), RuntimeError("no Spark")).getvalue() == ""


def test_it_is_silent_where_the_output_is_no_terminal() -> None:
    """A file or a pipe gets nothing, nobody looks at Spark, and no thread is started."""
    looked: list[int] = []

    def snapshot() -> Snapshot:
        looked.append(1)
        return 1, 1, 1

    stream = io.StringIO()
    with Progress(snapshot, stream=stream):
        assert threads() == []
    assert stream.getvalue() == ""
    assert looked == []


def test_it_can_be_switched_off_and_forced() -> None:
    """False is silent in a terminal too; True shows it in a file."""
    assert watch((1, 1, 1), show=False).getvalue() == ""
    stream = io.StringIO()
    script = Script([(1000, 4, 4)])
    with Progress(script.snapshot, show=True, stream=stream, clock=script.clock, wait=script.wait):
        assert script.ended.wait(10)
    assert "1,000 rows" in stream.getvalue()


def test_leaving_the_block_ends_the_thread_at_once() -> None:
    """With its real waiting the thread does not sleep its pause out: it looks once more, shows the end, and is gone."""
    terminal = Terminal()
    with Progress(lambda: (7, 1, 1), stream=terminal):
        assert threads() == ["sparkinfer-progress"]
    assert threads() == []
    assert terminal.screen()[0].startswith("7 rows | 1 of 1 partitions")


def test_an_error_inside_the_block_goes_through() -> None:
    """The user's own exception is not touched, and the thread has ended."""
    with pytest.raises(ZeroDivisionError), Progress(lambda: (1, 1, 1), stream=Terminal()):
        raise ZeroDivisionError
    assert threads() == []


def test_a_stream_that_breaks_is_no_error() -> None:
    """A terminal that was closed meanwhile costs nothing."""

    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    watch((1, 1, 1), stream=Broken())


def test_no_standard_error_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without standard error runs on, silently."""
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(lambda: (1, 1, 1)):
        assert threads() == []


def test_a_line_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow terminal gets a part of it: a line that wraps could not be written over."""
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "10")
    assert watch((1000, 4, 4)).screen()[0] == "1,000 rows | 4 of 4"


def test_a_notebook_has_one_output_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel the line goes to a display of its own, and none to standard error."""
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(data["text/plain"])

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        assert data == {"text/plain": ""}
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    script = Script([(250, 1, 4), (1000, 4, 4)])
    with Progress(script.snapshot, clock=script.clock, wait=script.wait):
        assert script.ended.wait(10)
    assert shown[0].startswith("250 rows | 1 of 4")
    assert shown[-1] == "1,000 rows | 4 of 4 partitions | 50 rows/s | took 20 s"
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (lambda: progress_line(0, 0, 4, 0.0), "0 rows | 0 of 4 partitions"),
        (lambda: progress_line(0, 0, 0, 1.0), "0 rows | 0 of 0 partitions"),
        (lambda: progress_line(10, 1, None, 1.0), "10 rows | 1 partitions | 10 rows/s"),
        (lambda: progress_line(10, 1, 3, 3600.0), "10 rows | 1 of 3 partitions | 0.0028 rows/s | 2 h 00 min left"),
        (lambda: progress_line(12_000, 5, 3, 1.0), "12,000 rows | 5 of 3 partitions | 12,000 rows/s"),
    ],
)
def test_a_line_tells_only_what_is_known(line: Callable[[], str], told: str) -> None:
    """No rate before rows, no time left before the first partition or beyond the last."""
    assert line() == told


@given(rows=st.integers(0, 10**12), done=st.integers(0, 10**6), total=st.none() | st.integers(0, 10**6), seconds=st.floats(0, 1e9))
def test_a_line_can_always_be_written(rows: int, done: int, total: int | None, seconds: float) -> None:
    """Whatever the figures, there is one line."""
    assert "\n" not in progress_line(rows, done, total, seconds)
