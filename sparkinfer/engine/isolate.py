"""What becomes of a bad row where ``on_error="null"``: it is found, left out, and named in the error column.

Runs on: worker.

Invariant: every row of a batch ends up either with its prediction or with a reason, in its own place; k bad rows among n cost
O(k log n) calls of what fails as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from sparkinfer.engine.batch import BadRow, Breach, Failure, Fault, Inputs

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


def by_halves(do: Callable[[int, int], T], rows: int) -> tuple[list[Piece[T]], list[tuple[int, Fault]]]:
    """Do for all rows what may fail for some, and find those.

    Args:
        do: is given a start and a stop, and raises a ``Fault`` if a row between them is bad; where the fault names the row, counted from
            the start, there is nothing to search.
        rows: how many there are.

    Returns:
        What was made, in order, and the bad rows with what was raised for them.

    Raises:
        Breach: from ``do``: there is no row to find.

    Example:
        >>> def roots(start, stop):
        ...     if 5 in range(start, stop):
        ...         raise Fault(ValueError, "no root")
        ...     return stop - start
        >>> pieces, bad = by_halves(roots, 8)
        >>> [piece[:2] for piece in pieces], [row for row, _ in bad]
        ([(0, 4), (4, 5), (6, 8)], [5])
    """
    pieces: list[Piece[T]] = []
    bad: list[tuple[int, Fault]] = []
    waiting = [(0, rows)] if rows else []
    while waiting:
        start, stop = waiting.pop()
        try:
            pieces.append(Piece(start, stop, do(start, stop)))
        except Breach:
            raise
        except Fault as fault:
            middle = (start + stop) // 2
            parts = [(start, middle), (middle, stop)]
            if stop - start == 1 or fault.row is not None:
                row = start + (fault.row or 0)
                bad.append((row, fault))
                parts = [(start, row), (row + 1, stop)]
            waiting += [part for part in reversed(parts) if part[0] < part[1]]
    return pieces, bad


def separate(make: Callable[[np.ndarray], Inputs], rows: np.ndarray, fault: Fault) -> tuple[Inputs | None, list[BadRow]]:
    """Make the inputs of all rows but those to blame, after ``make(rows)`` has raised ``fault``.

    Rows that are fine alone but differ in shape from most of the batch are to blame too: a model call needs one shape.

    Args:
        make: gives the inputs of the rows with these numbers.
        rows: the numbers in the batch.
        fault: what was raised.

    Returns:
        The inputs, or ``None`` where no row is left, and the bad rows.
    """
    if fault.row is None:
        found = by_halves(lambda start, stop: make(rows[start:stop]), len(rows))[1]
    else:
        found = [(number, alone) for number, row in enumerate(rows) if (alone := _fails_alone(make, row)) is not None]
    bad = [BadRow.of(Failure.of(cause), int(rows[number])) for number, cause in found]
    good = np.delete(rows, [number for number, _ in found])
    if not len(good):
        return None, bad
    try:
        return make(good), bad
    except Fault:  # each is fine alone
        odd = _odd_ones(make, good)
    bad += odd
    good = good[~np.isin(good, [one.row for one in odd])]
    try:
        return make(good), bad
    except Fault as last:
        return None, bad + [BadRow.of(Failure.of(last), int(row)) for row in good]


def _fails_alone(make: Callable[[np.ndarray], Inputs], row: np.intp) -> Fault | None:
    try:
        make(np.array([row]))
    except Fault as fault:
        return fault
    return None


def _odd_ones(make: Callable[[np.ndarray], Inputs], rows: np.ndarray) -> list[BadRow]:
    shapes = [_shapes(make(np.array([row])).arrays) for row in rows]
    common = Counter(shapes).most_common(1)[0][0]
    message = "its inputs have the shapes {}, and those of most rows of its batch {}: give every row one shape, or a TensorSpec with pad="
    return [
        BadRow(int(row), "decode", "SchemaError", message.format(_told(shape), _told(common)))
        for row, shape in zip(rows, shapes, strict=True)
        if shape != common
    ]


Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def _shapes(arrays: Mapping[str, Any]) -> Shapes:
    return tuple((name, tuple(np.shape(array)[1:])) for name, array in arrays.items())


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
