"""One partition of a DataFrame, on the driver: to score it step by step where a debugger is.

Runs on: driver (``partition_of``), worker (the rest).

Invariant: the rows are those that a task of that number gets, in its order, and as its chunks have them; no other task reads a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

from sparkinfer.arguments import check_columns, column_names
from sparkinfer.exceptions import ConfigError
from sparkinfer.spark.arrival import travelling
from sparkinfer.spark.chosen import collect_in
from sparkinfer.spark.packed import PACKED, packed, unpacked
from sparkinfer.spark.udf import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["partition_of"]


def partition_of(data: DataFrame, partition: int, *, columns: Sequence[str] | None = None) -> pa.Table:
    """Fetch one partition's rows, for ``predict_local`` or ``profile``: a slow or a failing task, in this process.

    The plan runs anew. Where it is not deterministic (a shuffle's order, ``rand()``), or where a run read its files by the direct road, whose
    partitions are its own, the rows may be others than that run's.

    Args:
        data: the DataFrame that was scored, classic or Connect; no stream.
        partition: its number, as in the column ``partition`` of ``run.partitions``, and as error messages name it.
        columns: to fetch; ``None`` takes all.

    Returns:
        An Arrow table. All of it comes to the driver: ``spark.driver.maxResultSize`` bounds it.

    Raises:
        ConfigError: ``data`` is a stream, or has no such partition.
        SchemaError: there is no such column.

    Example:
        >>> slowest = run.partitions.nlargest(1, "wall_seconds")["partition"].item()  # doctest: +SKIP
        >>> rows = si.partition_of(photos, slowest)  # doctest: +SKIP
        >>> si.predict_local(rows, model, inputs="content", outputs="label string", stop_at=("predict", 1234))  # doctest: +SKIP
    """
    if data.isStreaming:
        msg = "data is a stream, whose partitions are gone when its batch is done: give a table with its rows"
        raise ConfigError(msg)
    names = data.columns if columns is None else column_names(columns, "columns")
    check_columns(names, data.columns, "columns")
    source = data.select(*(F.col(quoted(name)).alias(f"c{position}") for position, name in enumerate(names)))
    sent = collect_in(source.mapInArrow(travelling(_Sent(partition, tuple(names)).pack), PACKED), (partition,))
    tables = [pa.Table.from_batches([chunk]) for chunk in unpacked(bytes(row.rows) for row in sent)]
    if not tables:
        msg = f"partition is {partition!r}, but data has none of that number: they are counted from 0, as in run.partitions"
        raise ConfigError(msg)
    return pa.concat_tables(tables[:-1] or tables)


@dataclass(frozen=True)
class _Sent:
    """Makes a row of each chunk of one partition: its Arrow stream; and a last one, of no rows, that says that the partition is there."""

    partition: int
    names: tuple[str, ...]

    def pack(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as a ``mapInArrow`` function."""
        context: Any = TaskContext.get()
        if context is None or context.partitionId() != self.partition:
            return
        for chunk in chunks:
            yield packed(pa.RecordBatch.from_arrays(chunk.columns, names=list(self.names)))
        yield packed(pa.RecordBatch.from_pydict({name: pa.array([], pa.null()) for name in self.names}))
