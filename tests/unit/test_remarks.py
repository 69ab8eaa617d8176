"""What a run advises follows from its figures."""

from __future__ import annotations

import re

import pytest

from sparkinfer.metrics import PartitionMetrics
from sparkinfer.remarks import large_chunks


def record(row_bytes: int, chunk_rows: int, rows: int = 20_000) -> PartitionMetrics:
    """A partition whose chunks have so many rows."""
    place = {
        "call": "c",
        "execution": "1",
        "partition": 0,
        "task_attempt": 0,
        "host": "h",
        "pid": 1,
        "started_unix": 0.0,
        "wall_seconds": 1.0,
    }
    return PartitionMetrics(**place, rows=rows, bytes_in=rows * row_bytes, chunk_rows_max=chunk_rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(("row_bytes", "chunk_rows"), [(1_000_000, 10_000), (100_000, 4096), (200_000_000, 2), (10_000_000_000, 2)])
def test_large_chunks_are_told_with_a_number_of_rows_that_fits(row_bytes: int, chunk_rows: int) -> None:
    """C41: 10,000 rows of 1 MB and their like: so many rows as are advised have at most 64 MiB, or are one."""
    told = large_chunks([record(100, 10_000), record(row_bytes, chunk_rows)])
    assert told is not None
    assert f"chunks of {chunk_rows:,} rows" in told
    advised = int(re.search(r"max_records_per_batch=(\d+)", told)[1])  # type: ignore[index]
    assert advised == 1 or (advised + 1) * row_bytes > 64 * 2**20 >= advised * row_bytes


@pytest.mark.parametrize(("row_bytes", "chunk_rows"), [(100, 10_000), (2_000_000, 32), (300_000_000, 1)])
def test_nothing_is_said_of_others(row_bytes: int, chunk_rows: int) -> None:
    """Small ones, what Spark bounds by itself, and one row that is large."""
    assert large_chunks([record(row_bytes, chunk_rows)]) is None
    assert large_chunks([]) is None
    assert large_chunks([record(row_bytes, chunk_rows, rows=0)]) is None
