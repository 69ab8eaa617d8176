"""Files cut into pieces, and the pieces shared out among partitions.

Runs on: driver (``share_out``), worker (what a ``Split`` says).

Invariant: every piece is in exactly one share, in the order of the files; no share is empty, and none is larger than the mean by more
than its largest piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

__all__ = ["Piece", "SourceFile", "Split", "share_out"]


@dataclass(frozen=True)
class SourceFile:
    """A file as the driver saw it.

    Attributes:
        url: where it is: ``file:///...``, ``s3://...``, or a path of the file system that the reading names.
        size: bytes.
        modified_ns: when it was last written; ``None`` where the file system does not tell.
        constants: the values of its partition columns, by name.
    """

    url: str
    size: int
    modified_ns: int | None
    constants: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Split:
    """What one partition reads of one file.

    Attributes:
        file: the file.
        groups: the row groups, ascending; ``None`` where the file is read as a whole.
        rows: how many rows these hold before any filter.
        weight: bytes of the columns that are read.
    """

    file: SourceFile
    groups: tuple[int, ...] | None
    rows: int
    weight: int


Piece = Split  # a split of one row group, or of one whole file


def share_out(pieces: Sequence[Piece], shares: int) -> list[tuple[Split, ...]]:
    """Share pieces out by weight, neighbours together, and join those of one file.

    Args:
        pieces: in the order of the files.
        shares: how many are wanted; fewer come where there are fewer pieces.

    Example:
        >>> file = SourceFile("file:///a.parquet", 30, None)
        >>> [[split.groups for split in share] for share in share_out([Split(file, (i,), 5, 10) for i in range(3)], 2)]
        [[(0,)], [(1, 2)]]
    """
    weights = [max(1, piece.weight) for piece in pieces]  # a piece without bytes is opened all the same
    total = sum(weights)
    middles = (end - weight / 2 for end, weight in zip(accumulate(weights), weights, strict=True))
    numbered = ((min(shares - 1, int(middle * shares / total)), piece) for middle, piece in zip(middles, pieces, strict=True))
    return [tuple(_joined(piece for _, piece in share)) for _, share in groupby(numbered, key=lambda one: one[0])]


def _joined(pieces: Iterator[Piece]) -> Iterator[Split]:
    for _, same in groupby(pieces, key=lambda piece: id(piece.file)):
        found = list(same)
        groups = None if found[0].groups is None else tuple(group for piece in found for group in piece.groups or ())
        yield replace(found[0], groups=groups, rows=sum(one.rows for one in found), weight=sum(one.weight for one in found))
