"""Pieces of files are shared out whole, in order, and evenly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.engine.splits import Piece, SourceFile, share_out


def pieces_of(weights: list[list[int]]) -> list[Piece]:
    """One file for each list, one row group for each weight."""
    files = [SourceFile(f"file:///{number}", 1, None) for number in range(len(weights))]
    return [Piece(file, (group,), 7, weight) for file, row in zip(files, weights, strict=True) for group, weight in enumerate(row)]


@given(weights=st.lists(st.lists(st.integers(0, 1000), max_size=6), max_size=8), shares=st.integers(1, 12))
def test_every_piece_is_in_one_share_and_in_order(weights: list[list[int]], shares: int) -> None:
    """Neighbours of one file come as one split; rows and bytes add up; no share is empty."""
    pieces = pieces_of(weights)
    made = share_out(pieces, shares)
    flat = [(split.file.url, group) for share in made for split in share for group in split.groups]
    assert flat == [(piece.file.url, piece.groups[0]) for piece in pieces]
    assert all(made)
    assert len(made) <= shares
    assert sum(split.rows for share in made for split in share) == 7 * len(pieces)
    assert all(len({split.file.url for split in share}) == len(share) for share in made)


@given(weights=st.lists(st.lists(st.integers(1, 1000), max_size=6), min_size=1, max_size=8), shares=st.integers(1, 12))
def test_no_share_is_much_larger_than_the_mean(weights: list[list[int]], shares: int) -> None:
    """By no more than the largest piece, since pieces are not cut."""
    pieces = pieces_of(weights)
    every = [piece.weight for piece in pieces]
    for share in share_out(pieces, shares):
        assert sum(split.weight for split in share) <= sum(every) / shares + max(every)


def test_equal_pieces_are_shared_equally() -> None:
    """Twenty row groups of four files among eight partitions: two or three each."""
    made = share_out(pieces_of([[10] * 5] * 4), 8)
    assert sorted(sum(len(split.groups) for split in share) for share in made) == [2, 2, 2, 2, 3, 3, 3, 3]


def test_whole_files_stay_whole() -> None:
    """A picture is one split, without row groups."""
    files = [SourceFile(f"file:///{number}.png", 5, None) for number in range(4)]
    made = share_out([Piece(file, None, 1, 5) for file in files], 2)
    assert [[(split.file.url, split.groups, split.rows) for split in share] for share in made] == [
        [("file:///0.png", None, 1), ("file:///1.png", None, 1)],
        [("file:///2.png", None, 1), ("file:///3.png", None, 1)],
    ]
