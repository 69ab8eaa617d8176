"""What a benchmark is made of: works, contestants, reaches. Values only; ``run.py`` runs them.

A work is the same rows, cores and model for every contestant. A contestant is a function that sets itself up for a scale, in a process of its
own, and gives a ``Ready``: what one timed round runs, and how its answers are checked. A reach is a ratio between two contestants that the
library sets itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

__all__ = ["WORKS", "Contestant", "Reach", "Ready", "Work", "work_named"]

WORKS = ("w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9", "loop", "settings")


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A contestant that is set up.

    Attributes:
        run: one timed round, over all rows; gives how many they were, or figures by name with ``rows`` among them.
        check: gives the rows and the sum of the first output over them, however long it takes; ``None`` where nothing is predicted.
        close: ends what it started.
        wake: makes what has gone to sleep while the others ran ready again, untimed: Spark ends a Python worker that had nothing to do for a minute.
    """

    run: Callable[[], int | Mapping[str, float]]
    check: Callable[[], tuple[int, float]] | None = None
    close: Callable[[], None] = lambda: None
    wake: Callable[[], object] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way of doing the work.

    Attributes:
        name: the key in results and reaches.
        label: what the table says.
        make: sets up for a scale.
        scales: where it takes part; empty: everywhere.
        rounds: fewer timed rounds than the others, for what takes minutes; ``None``: as many.
    """

    name: str
    label: str
    make: Callable[[Mapping[str, Any]], Ready]
    scales: tuple[str, ...] = ()
    rounds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reach:
    """``figure`` of one contestant against that of another.

    Attributes:
        ours: a contestant's name.
        of: the other's name.
        bound: what the ratio ours / of must reach; with ``below`` what it must not pass.
        figure: ``rate`` (rows per wall second), ``cpu_rate`` (rows per CPU second), ``cpu_per_row`` or a figure that the rounds give.
        below: the bound is an upper one.
        scale: where it is measured.
        less: two more contestants, whose figures are taken from those of ours and of the other before they are compared.
        floor: a contestant that does only what none can leave out: its ratio to the other is the most that the bound could be.
    """

    ours: str
    of: str
    bound: float
    figure: str = "rate"
    below: bool = False
    scale: str = "full"
    less: tuple[str, str] | None = None
    floor: str | None = None

    @property
    def names(self) -> set[str]:
        """The contestants that are compared; the floor may be missing."""
        return {self.ours, self.of, *(self.less or ())}


@dataclass(frozen=True, kw_only=True)
class Work:
    """A table of the benchmark.

    Attributes:
        name: such as ``w1``.
        title: one line.
        unit: what a row is, in the plural.
        scales: settings by the scale's name; ``quick`` and ``full``, perhaps more; ``wake`` is what a contestant is woken with, ``quick`` where there is none, and nothing where neither is.
        contestants: in the order of the table.
        reaches: what is claimed of them.
        rounds: timed rounds where nothing else is said.
        tolerance: how far a contestant's checksum may be from the first one's, relative to it.
    """

    name: str
    title: str
    unit: str
    scales: Mapping[str, Mapping[str, Any]]
    contestants: tuple[Contestant, ...]
    reaches: tuple[Reach, ...] = ()
    rounds: int = 5
    tolerance: float = 1e-3
    notes: tuple[str, ...] = field(default=())

    def contestant(self, name: str) -> Contestant:
        """Find a contestant by its name."""
        return next(one for one in self.contestants if one.name == name)

    def at(self, scale: str) -> list[Contestant]:
        """Give the contestants of a scale."""
        return [one for one in self.contestants if not one.scales or scale in one.scales]


def work_named(name: str) -> Work:
    """Import a work."""
    found: Work = import_module(f"benchmarks.works.{name}").WORK
    return found
