"""What a function that kills or hangs its process costs: its own row, and no other.

Runs on: worker.

Invariant: every batch of the source comes out once, in order; a row is blamed for a death only when its process has died at it twice,
and for a hang at once.

::

    source ── epoch: loader processes ──► Fed, Fed, Fed ... ✗ Lost(what was on its way, who was at what)
                 ▲                            │ up to the last batch that was at work in a dead process: one by one, in a cell
                 └── new processes ◄── the rest and the source
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sparkinfer.engine.batch import BadRow, Batch, Failure, Fed, Inputs
from sparkinfer.engine.cell import Cell, Death
from sparkinfer.engine.isolate import by_halves
from sparkinfer.exceptions import LoaderProcessError

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import PrepareStep

__all__ = ["Lost", "contained"]

_HINT = "Run with num_workers=0 to see it in the worker itself, or with fewer loader processes, a smaller batch_size, or more memory for the workers"


class Lost(Exception):  # noqa: N818 - never leaves the feed
    """Loader processes have ended."""

    def __init__(self, text: str, waiting: Sequence[tuple[Batch, Death | None]], rest: Iterator[Batch]) -> None:
        """Keep what is to be done again.

        Args:
            text: how they ended.
            waiting: the batches that have not come back, in order; with a ``Death`` those that a dead process was at.
            rest: the source behind them.
        """
        super().__init__(text)
        self.waiting = waiting
        self.rest = rest


def contained(
    source: Iterator[Batch],
    epoch: Callable[[Iterator[Batch]], Iterator[Fed]],
    renew: Callable[[], None],
    prepare: PrepareStep,
    timeout_seconds: float | None,
    finish: Callable[[Inputs | Failure], Inputs | Failure] = lambda made: made,
    preload: Sequence[str] = (),
) -> Generator[Fed, None, None]:
    """Prepare a source's batches by processes that may die.

    Args:
        source: batches in order.
        epoch: prepares batches by the processes, in order; raises ``Lost`` when some have died, after which none is left.
        renew: starts others.
        prepare: the step, for the batches in doubt.
        timeout_seconds: what one call of the user's function may take.
        finish: what ``epoch`` does beside the step.
        preload: what a fork server is to import, for the processes that come after the first.

    Raises:
        LoaderProcessError: processes die twice in a row without a batch at work.
    """
    told = False
    while True:
        try:
            for fed in epoch(source):
                told = False
                yield fed
        except Lost as lost:
            waiting, source, text = list(lost.waiting), lost.rest, str(lost)
        else:
            return
        doubts = max((number for number, (_, death) in enumerate(waiting, 1) if death is not None), default=0)
        if not doubts and told:
            msg = f"{text} between batches, and so did the ones after it. {_HINT}"
            raise LoaderProcessError(msg)
        told = not doubts
        if doubts:
            with Cell(prepare, timeout_seconds, preload) as cell:
                for batch, death in waiting[:doubts]:
                    yield Fed(batch, finish(_settled(cell, batch.data, death, prepare)))
        renew()
        source = chain([batch for batch, _ in waiting[doubts:]], source)


def _settled(cell: Cell, data: pa.RecordBatch, death: Death | None, prepare: PrepareStep) -> Inputs | Failure:
    """Make a batch's inputs in a cell, and find out which rows end it."""
    if death is None:
        try:
            return cell.ask(data)
        except Death as first:
            death = first
    trial = _Trial(cell, data)
    try:
        if prepare.tolerant:
            return trial.without_the_deadly(death)
        return trial.first_deadly(death)
    except _Told as told:
        return replace(told.failure, final=True)


class _Told(Exception):  # noqa: N818 - carries a failure that is no row's
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class _Trial:
    """A batch that has cost a process its life."""

    def __init__(self, cell: Cell, data: pa.RecordBatch) -> None:
        self._cell = cell
        self._data = data

    def first_deadly(self, death: Death) -> Inputs | Failure:
        """Name the first row that is to blame, or make the inputs if there is none after all."""
        for last in (False, True):
            if death.late:
                return Failure.of(death)
            if death.row is not None and (alone := self._dies_at(death.row)) is not None:
                return Failure.of(alone)
            if last:
                break
            try:
                return self._ask(np.arange(self._data.num_rows))
            except Death as again:
                death = again
        text = f"{death.text}, and so did the one after it, and no row can be blamed. {_HINT}"
        return replace(Failure.of(death), kind=LoaderProcessError, text=text)

    def without_the_deadly(self, death: Death) -> Inputs:
        """Leave out the rows that are to blame, and name them."""
        rows = self._data.num_rows
        known = [death] if death.row is not None else []  # one that names no row is tried once more, whole

        def do(start: int, stop: int) -> Inputs:
            if known:
                raise known.pop()
            return self._ask(np.arange(start, stop))

        pieces, bad = by_halves(do, rows)
        if not bad:
            return pieces[0].made
        bad = [one for one in bad if one.type == "PreprocessTimeout" or self._dies_at(one.row) is not None]
        good = np.delete(np.arange(rows), [one.row for one in bad])
        if not len(good):
            return Inputs("single", bad=tuple(bad))
        try:
            made = self._ask(good)
        except Death as together:
            bad += [BadRow.of(together, int(row)) for row in good]
            return Inputs("single", bad=tuple(sorted(bad, key=lambda one: one.row)))
        bad += [replace(one, row=int(good[one.row])) for one in made.bad]
        return replace(made, bad=tuple(sorted(bad, key=lambda one: one.row)))

    def _dies_at(self, row: int) -> Death | None:
        try:
            self._ask(np.array([row]))
        except Death as death:
            death.row = row
            return death
        return None

    def _ask(self, rows: np.ndarray) -> Inputs:
        """Make the inputs of some rows; a death at one of them names it as counted among these."""
        data = self._data if len(rows) == self._data.num_rows else self._data.take(pa.array(rows))
        made = self._cell.ask(data)
        if isinstance(made, Failure):
            raise _Told(made)
        return made
