"""The first few rows of a DataFrame, as the workers get them, on the driver.

Runs on: driver (``first_rows``), worker (the rest).

Invariant: types and names are those that a partition's chunks have, in every Spark and in every kind of session: the rows come by the map
road itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkinfer.exceptions import ConfigError
from sparkinfer.spark.arrival import travelling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["first_rows"]


def first_rows(data: DataFrame, columns: Sequence[Column], names: Sequence[str], rows: int) -> pa.RecordBatch:
    """Fetch some rows; runs a job.

    Args:
        data: no stream.
        columns: as they travel to the workers.
        names: what they are called.
        rows: how many; fewer where there are fewer.

    Raises:
        ConfigError: ``data`` is a stream.
    """
    if data.isStreaming:
        msg = "optimize= looks at the data's first rows, and a stream cannot be looked at: give the model example_inputs="
        raise ConfigError(msg)
    source = data.select(*(column.alias(f"c{position}") for position, column in enumerate(columns))).limit(rows)
    packed = source.mapInArrow(travelling(_Pack(tuple(names)).pack), "rows binary").collect()
    tables = [pa.ipc.open_stream(bytes(row.rows)).read_all() for row in packed]
    batches = pa.concat_tables(tables).combine_chunks().to_batches() if tables else []
    return batches[0] if batches else pa.RecordBatch.from_pydict({name: pa.array([], pa.null()) for name in names})


@dataclass(frozen=True)
class _Pack:
    """Makes one row of a chunk: its Arrow stream."""

    names: tuple[str, ...]

    def pack(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as a ``mapInArrow`` function."""
        for chunk in chunks:
            named = pa.RecordBatch.from_arrays(chunk.columns, names=list(self.names))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, named.schema) as stream:
                stream.write_batch(named)
            yield pa.RecordBatch.from_pydict({"rows": pa.array([sink.getvalue().to_pybytes()], pa.binary())})
