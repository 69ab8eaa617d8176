"""Rows as bytes: how chunks of any columns travel through Spark as rows of one binary column.

Runs on: worker (``packed``), worker or driver (``unpacked``).

Invariant: names, types and chunk borders come back as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

__all__ = ["PACKED", "packed", "unpacked"]

PACKED = "rows binary"  # the schema


def packed(chunk: pa.RecordBatch) -> pa.RecordBatch:
    """Make one row of a chunk: its Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, chunk.schema) as stream:
        stream.write_batch(chunk)
    return pa.RecordBatch.from_pydict({"rows": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def unpacked(rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Give the chunks of such rows; each is the bytes, or a buffer of them."""
    for one in rows:
        with pa.ipc.open_stream(one) as stream:
            yield from stream
