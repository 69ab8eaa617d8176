"""A diagnosis's arms in this process, without Spark.

Runs on: driver, or any Python process.

Invariant: the arms run the very loop that ``predict_local`` runs, one partition after the other; the data is read again by each arm that reads.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from sparkinfer.analysis.rounds import Arm, arm_of
from sparkinfer.artifacts import local_files
from sparkinfer.config import InferenceConfig, refuse_unknown
from sparkinfer.engine.partition import PartitionPlan, run_partition
from sparkinfer.engine.probe import Called, call_model, pull, within
from sparkinfer.engine.recorder import Recorder
from sparkinfer.exceptions import ConfigError
from sparkinfer.local import open_local, planned, predict_local
from sparkinfer.metrics import PartitionMetrics

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import Describable

__all__ = ["LocalArms"]

_SLICES = 8  # of a table, spread over it
_CHUNK_ROWS = 10_000


class LocalArms:
    """The arms over a table, or over several as partitions; answers ``diagnosing.Arms``."""

    apart = False
    chunk_rows = 0  # the source's own

    def __init__(self, data: Any, model: Describable, arguments: dict[str, Any], config: InferenceConfig, slots: int | None) -> None:
        """Check everything; nothing is read but the first batch.

        Raises:
            ConfigError, SchemaError, ModelLoadError: an argument is wrong, or the data can be read only once.
        """
        self._partitions = list(data) if isinstance(data, (list, tuple)) and all(_is_table(one) for one in data) and data else [data]
        for one in self._partitions:
            if hasattr(one, "__next__"):
                msg = (
                    f"data is {type(one).__name__}, which can be read only once, and a diagnosis reads it again and again: give a table, a list of "
                    "record batches, or an object whose __iter__ begins anew"
                )
                raise ConfigError(msg)
        refuse_unknown(arguments, inspect.signature(predict_local).parameters.keys() - {"stop_at"})  # nobody looks while it is timed
        schema, _ = open_local(self._partitions[0])
        self._plan = planned(model, schema, self._first_rows, **{"keep": [], **arguments, "config": config})
        self.slots = slots or 1
        self.cpus = self.cores = os.cpu_count() or 1
        self.job_rows = tuple(map(len, self._partitions)) if all(map(_is_table, self._partitions)) else ()
        self.remarks: list[str] = []
        self._sample: list[list[pa.RecordBatch]] = []
        self._rows = 1
        self._given = (data, arguments, slots)

    def alike(self, model: Describable, config: InferenceConfig) -> LocalArms:
        """Give arms over the same rows for another model, or for settings that make it another."""
        data, arguments, slots = self._given
        other = LocalArms(data, model, arguments, config, slots)
        other._rows = self._rows
        return other

    @property
    def plan(self) -> PartitionPlan:
        """What is done."""
        return self._plan

    def _first_rows(self, plan: PartitionPlan) -> pa.RecordBatch:
        batch = next(open_local(self._partitions[0])[1])
        return batch.select(list(plan.columns)).slice(0, 64)

    def sample(self, rows: int, most_bytes: int, seconds: float) -> int:
        """Keep some rows, spread over the data; give how many."""
        each = max(1, rows // len(self._partitions))
        self._sample = []
        size = 0
        for one in self._partitions:
            kept = list(within(self._read(one, each), each, seconds / len(self._partitions)))
            size += sum(chunk.nbytes for chunk in kept)
            if kept:
                self._sample.append(kept)
            if size > most_bytes:
                self.remarks.append(f"the sample ends after {size:,} bytes, before the rows that were asked for")
                break
        self._rows = each
        return sum(chunk.num_rows for kept in self._sample for chunk in kept)

    def limit(self, rows: int) -> None:
        """Let each arm go through about so many rows of each partition."""
        self._rows = max(1, rows // max(1, len(self._sample)))

    def source(self, seconds: float) -> Arm:
        """Read, and nothing else."""
        pulled = [pull(self._read(one, self._rows), self._rows, seconds) for one in self._partitions]
        return Arm(
            rows=max(1, sum(one.rows for one in pulled)),
            seconds=max(1e-9, sum(one.seconds for one in pulled)),
            bytes=sum(one.bytes for one in pulled),
        )

    def identity(self) -> None:
        """Give nothing: no row travels."""

    def trivial(self, config: InferenceConfig) -> Arm:
        """Everything but the model, over the sample."""
        plan = replace(self._plan, config=config, trivial=True)
        return self._scored(plan, [within(iter(kept), self._rows) for kept in self._sample])

    def everything(self, config: InferenceConfig) -> Arm:
        """The pipeline as it is."""
        plan = replace(self._plan, config=config)
        return self._scored(plan, [within(self._read(one, self._rows), self._rows) for one in self._partitions])

    def synthetic(self, config: InferenceConfig, sizes: Sequence[int], seconds: float) -> list[Called]:
        """The model alone."""
        plan = replace(self._plan, config=config)
        data = self._sample[0][0].select(list(plan.columns)).slice(0, max(sizes))
        files = partial(local_files, plan.model)
        return [call_model(plan, data, files=files, sizes=sizes, seconds=seconds, cpus=self.cpus, card=None)]

    def close(self) -> None:
        """Let go of the sample."""
        self._sample = []

    def _read(self, one: Any, rows: int) -> Iterator[pa.RecordBatch]:
        if _is_table(one):
            return _spread(one, rows)
        return _lazily(one)

    def _scored(self, plan: PartitionPlan, parts: Sequence[Iterator[pa.RecordBatch]]) -> Arm:
        return arm_of([self._record(plan, number, part) for number, part in enumerate(parts)])

    def _record(self, plan: PartitionPlan, number: int, part: Iterator[pa.RecordBatch]) -> PartitionMetrics:
        recorder = Recorder(clock=time.perf_counter)
        files = partial(local_files, plan.model)
        for _ in run_partition(plan, part, files=files, partition=number, cpus=self.cpus, recorder=recorder):
            pass
        return PartitionMetrics(call="", execution=None, partition=number, task_attempt=0, host="", pid=os.getpid(), **recorder.figures())


def _lazily(source: Any) -> Iterator[pa.RecordBatch]:
    """Read nothing before the first batch is asked for: its time is the source's."""
    yield from open_local(source)[1]


def _is_table(data: object) -> bool:
    return isinstance(data, (pd.DataFrame, pa.Table))


def _spread(table: Any, rows: int) -> Iterator[pa.RecordBatch]:
    """Give slices that are spread evenly over a table: the first rows alone may not be like the others."""
    if len(table) <= rows:
        return open_local(table)[1]
    pieces = min(_SLICES, rows)
    each = -(-rows // pieces)
    starts = [position * (len(table) - each) // max(1, pieces - 1) for position in range(pieces)]
    cut = (table.iloc[start : start + each] if isinstance(table, pd.DataFrame) else table.slice(start, each) for start in starts)
    return chain.from_iterable(open_local(piece)[1] for piece in cut)
