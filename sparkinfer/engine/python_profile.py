"""Python's own profiler, for models that no framework's profiler can look into.

Runs on: worker.

Invariant: only the thread that calls the model is watched.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterator
from contextlib import contextmanager

from sparkinfer.engine.profiling import Found
from sparkinfer.profiles import Operator

__all__ = ["PythonSession", "start"]

_MOST_FRAMES = 40


class PythonSession:
    """Answers ``profiling.Session``."""

    def __init__(self) -> None:
        """Make the profiler; it runs within steps only."""
        self._profile = cProfile.Profile()

    @contextmanager
    def step(self, number: int) -> Iterator[None]:  # noqa: ARG002 - Session's shape
        """Watch one model call."""
        self._profile.enable()
        try:
            yield
        finally:
            self._profile.disable()

    def finish(self) -> Found:
        """Give a row a function."""
        stats = pstats.Stats(self._profile).stats  # type: ignore[attr-defined]  # documented in profile.py's source only
        rows = [
            Operator(name=_said(where), calls=calls, self_cpu_us=own * 1e6, total_cpu_us=total * 1e6)
            for where, (_, calls, own, total, _) in stats.items()
            if "_lsprof" not in where[2] and not where[0].endswith("python_profile.py")
        ]
        return Found(rows, _stacks(stats), remarks=("a Python model: functions by cProfile, without memory, shapes or a trace",))

    def abandon(self) -> None:
        """Stop."""
        self._profile.disable()


def start(device: str) -> PythonSession:  # noqa: ARG001 - the shape of the frameworks' own
    """Start."""
    return PythonSession()


def _said(where: tuple[str, int, str]) -> str:
    file, line, name = where
    short = "/".join(file.replace("\\", "/").rsplit("/", 2)[-2:])
    return name if file == "~" else f"{name} ({short}:{line})"


def _stacks(
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, dict[tuple[str, int, str], tuple[int, int, float, float]]]],
) -> dict[str, float]:
    """Make stacks of who called whom: cProfile keeps pairs only, so a function's self time is shared out by the time in its callers' calls."""
    stacks: dict[str, float] = {}
    for where, (_, _, own, _, callers) in stats.items():
        if own <= 0 or "_lsprof" in where[2]:
            continue
        path = [where]
        seen = {where}
        above = callers
        while above and len(path) < _MOST_FRAMES:
            heaviest = max(above, key=lambda caller: above[caller][3])
            if heaviest in seen:
                break
            path.append(heaviest)
            seen.add(heaviest)
            above = stats[heaviest][4] if heaviest in stats else {}
        names = [_said(one).replace(";", ",") for one in reversed(path) if not one[0].endswith("python_profile.py")]
        stack = ";".join(names)
        stacks[stack] = stacks.get(stack, 0.0) + own * 1e6
    return stacks
