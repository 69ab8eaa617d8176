"""What becomes of a bad row where ``on_error="null"``: it is found, left out, and named in the error column.

Runs on: worker.

Invariant: every row of a batch ends up either with its prediction or with a reason, in its own place; k bad rows among n cost
O(k log n) calls of what fails as a whole, and O(n log n) rows of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from sparkinfer.engine.batch import BadRow, Breach, Fault, Inputs

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ERROR_TYPE", "Piece", "assemble", "by_halves", "separate"]

T = TypeVar("T")

ERROR_TYPE = pa.struct([("stage", pa.string()), ("type", pa.string()), ("message", pa.string())])
"""The error column's type."""


class Piece(NamedTuple, Generic[T]):
    """What was made of the rows from ``start`` to before ``stop``."""

    start: int
    stop: int
    made: T


def by_halves(do: Callable[[int, int], T], rows: int) -> tuple[list[Piece[T]], list[BadRow]]:
    """Do for all rows what may fail for some, and find those.

    Args:
        do: is given a start and a stop, and raises a ``Fault`` if a row between them is bad; where the fault names the row, counted from
            the start, that one need not be searched.
        rows: how many there are.

    Returns:
        What was made, in order, and the bad rows with their reasons.

    Raises:
        Breach: from ``do``: there is no row to find.

    Example:
        >>> def roots(start, stop):
        ...     if 5 in range(start, stop):
        ...         raise Fault(ValueError, "no root")
        ...     return stop - start
        >>> pieces, bad = by_halves(roots, 8)
        >>> [piece[:2] for piece in pieces], [one.row for one in bad]
        ([(0, 4), (4, 5), (6, 8)], [5])
    """
    pieces: list[Piece[T]] = []
    bad: list[BadRow] = []
    waiting = [(0, rows)] if rows else []
    while waiting:
        start, stop = waiting.pop()
        row: int | None = None
        try:
            pieces.append(Piece(start, stop, do(start, stop)))
            continue
        except Breach:
            raise
        except Fault as fault:
            if stop - start == 1 or fault.row is not None:
                row = start + (fault.row or 0)
                bad.append(BadRow.of(fault, row))
        # what comes behind a row that was named is halved all the same: it may hold another one, and all before that would be done again
        cuts = [start, (start + stop) // 2, stop] if row is None else [start, row, row + 1, (row + 1 + stop) // 2, stop]
        parts = [(first, last) for first, last in pairwise(cuts) if first < last and first != row]
        waiting += reversed(parts)
    return pieces, bad


def separate(make: Callable[[np.ndarray], Inputs], rows: np.ndarray, *, uneven: Collection[str] = ()) -> tuple[Inputs | None, list[BadRow]]:
    """Make the inputs of all rows but those to blame, after ``make(rows)`` has failed.

    Rows that are fine alone but differ in shape from most of the batch are to blame too: a model call needs one shape.

    Args:
        make: gives the inputs of the rows with these numbers.
        rows: the numbers in the batch.
        uneven: inputs whose shape may differ, since they are padded to one.

    Returns:
        The inputs, or ``None`` where no row is left, and the bad rows.

    Raises:
        Breach: from ``make``.
    """
    pieces, named = by_halves(lambda start, stop: make(rows[start:stop]), len(rows))
    bad: dict[int, BadRow] = {}
    for one in named:  # perhaps only compared with a first row that is the odd one itself
        alone, reasons = by_halves(partial(_at, make, rows[one.row : one.row + 1]), 1)
        if reasons:
            bad[one.row] = replace(reasons[0], row=one.row)
        else:
            pieces.append(Piece(one.row, one.row + 1, alone[0].made))
    bad.update(_odd_ones(pieces, uneven))
    good = np.delete(rows, list(bad))
    told = [replace(one, row=int(rows[number])) for number, one in bad.items()]
    if not len(good):
        return None, told
    whole, reasons = by_halves(partial(_at, make, good), 1)
    if whole:
        return whole[0].made, told
    return None, told + [replace(reasons[0], row=int(row)) for row in good]  # each is fine alone, and they do not go together


def _at(make: Callable[[np.ndarray], Inputs], rows: np.ndarray, _start: int, _stop: int) -> Inputs:
    return make(rows)


def _odd_ones(pieces: Sequence[Piece[Inputs]], uneven: Collection[str]) -> dict[int, BadRow]:
    """Find the rows whose shapes are not those of most."""
    shapes = [_shapes(piece.made.arrays, uneven) for piece in pieces]
    counts: Counter[Shapes] = Counter()
    for piece, shape in zip(pieces, shapes, strict=True):
        counts[shape] += piece.stop - piece.start
    if len(counts) < 2:
        return {}
    common = counts.most_common(1)[0][0]
    message = "its inputs have the shapes {}, and those of most rows of its batch {}: give every row one shape, or a TensorSpec with pad="
    return {
        row: BadRow(row, "decode", "SchemaError", message.format(_told(shape), _told(common)))
        for piece, shape in zip(pieces, shapes, strict=True)
        if shape != common
        for row in range(piece.start, piece.stop)
    }


Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def _shapes(arrays: Mapping[str, Any], uneven: Collection[str]) -> Shapes:
    return tuple((name, tuple(np.shape(array)[1:])) for name, array in arrays.items() if name not in uneven)


def _told(shapes: Shapes) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes)


def assemble(pieces: Sequence[Piece[list[pa.Array]]], types: Sequence[pa.DataType], rows: int, bad: Sequence[BadRow]) -> list[pa.Array]:
    """Lay the predictions of the good rows in their places, and say of the others why they have none.

    Args:
        pieces: the output columns of the good rows, in order.
        types: of the output columns.
        rows: of the batch.
        bad: the other rows.

    Returns:
        The output columns, and after them the error column; each ``rows`` long.
    """
    if len(pieces) == 1 and not bad:
        return [*pieces[0].made, pa.nulls(rows, ERROR_TYPE)]
    good = np.ones(rows, bool)
    good[[one.row for one in bad]] = False
    where = pa.array(np.cumsum(good) - 1, mask=~good)
    columns = []
    for number, data_type in enumerate(types):
        made = pa.concat_arrays([piece.made[number] for piece in pieces]) if pieces else pa.nulls(0, data_type)
        columns.append(made.take(where) if len(made) else pa.nulls(rows, data_type))
    reasons: list[dict[str, str] | None] = [None] * rows
    for one in bad:
        reasons[one.row] = {"stage": one.stage, "type": one.type, "message": one.message}
    return [*columns, pa.array(reasons, ERROR_TYPE)]
