"""What several unit tests share: a clock of their own."""

from __future__ import annotations

import threading
import time

import pytest

from sparkinfer.engine.stopwatch import Stopwatch

_LOOK = 1e-9  # seconds: time goes on, so that no rate is infinite


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is what the test's thread slept: no busy machine changes a figure, and no thread that another test has left behind sleeps it away."""
    now = [0.0]
    mine, really_sleep = threading.get_ident(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.get_ident() != mine:
            really_sleep(seconds)
            return
        now[0] += seconds

    def look() -> float:
        now[0] += _LOOK
        return now[0]

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", look)
    monkeypatch.setattr(Stopwatch.__init__, "__defaults__", (look,))  # bound when the module was imported
