"""Work that is done on some rows of tables in this process, and tells a few figures: ``spark/sampled.py`` without Spark.

Runs on: driver, or any Python process.

Invariant: the loop is the very one that ``predict_local`` runs; a list of tables is taken for partitions, and the rows are spread over each.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from sparkinfer.artifacts import local_files
from sparkinfer.config import refuse_unknown
from sparkinfer.local import open_local, planned, predict_local

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.contracts import Describable
    from sparkinfer.engine.partition import PartitionPlan
    from sparkinfer.profiles import ProfilePlan

__all__ = ["LocalSample"]

_SLICES = 8  # of a table, spread over it
_FIRST_ROWS = 64


class LocalSample:
    """Some rows of tables, and the plan that they are scored by; answers what ``SparkSample`` answers."""

    def __init__(self, data: Any, model: Describable, arguments: dict[str, Any], config: InferenceConfig) -> None:
        """Check everything, as ``predict_local`` does.

        Raises:
            ConfigError, SchemaError, ModelLoadError: an argument is wrong.
        """
        refuse_unknown(arguments, inspect.signature(predict_local).parameters.keys() - {"stop_at"})  # nobody looks while it is timed
        tables = isinstance(data, (list, tuple)) and bool(data) and all(map(_is_table, data))
        self._partitions = list(data) if tables else [data]
        self._seen: list[pa.RecordBatch] = []
        schema, self._first = open_local(self._partitions[0])
        self.plan: PartitionPlan = planned(model, schema, self._first_rows, **{**arguments, "keep": [], "config": config})

    def run(self, work: Callable[..., dict[str, Any]], watched: ProfilePlan, rows: int) -> list[dict[str, Any]]:
        """Have it done in the partitions that are asked for, one after the other; give what they tell.

        Args:
            work: called with a partition's chunks, ``files``, ``partition`` and ``cpus``.
            watched: which partitions.
            rows: of each that the work needs.
        """
        files = partial(local_files, self.plan.model)
        chosen = [number for number in range(len(self._partitions)) if watched.watches(number)]
        return [work(self._read(number, rows), files=files, partition=number, cpus=os.cpu_count() or 1) for number in chosen]

    def _first_rows(self, plan: PartitionPlan) -> pa.RecordBatch:
        batch = next(self._first)
        self._seen.append(batch)
        return batch.select(list(plan.columns)).slice(0, _FIRST_ROWS)

    def _read(self, number: int, rows: int) -> Iterator[pa.RecordBatch]:
        one = self._partitions[number]
        if _is_table(one):
            return _spread(one, rows)
        return chain(self._seen, self._first)  # record batches, which may come only once


def _is_table(data: object) -> bool:
    return isinstance(data, (pd.DataFrame, pa.Table))


def _spread(table: Any, rows: int) -> Iterator[pa.RecordBatch]:
    """Give slices that are spread evenly over a table: its first rows alone may not be like the others."""
    if len(table) <= rows:
        return open_local(table)[1]
    pieces = min(_SLICES, rows)
    ends = [rows * piece // pieces for piece in range(pieces + 1)]  # in the sample
    gaps = [(len(table) - rows) * piece // max(1, pieces - 1) for piece in range(pieces)]  # rows that are left out before
    spans = [slice(begin + gap, end + gap) for begin, end, gap in zip(ends, ends[1:], gaps, strict=False)]
    cut = (table.iloc[one] if isinstance(table, pd.DataFrame) else table.slice(one.start, one.stop - one.start) for one in spans)
    return chain.from_iterable(open_local(piece)[1] for piece in cut)
