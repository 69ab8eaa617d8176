"""Work that is done on the first rows of some partitions, and tells a few figures.

Runs on: driver; ``_OnSample`` on the workers.

Invariant: nothing is written; a partition that is not asked for reads nothing.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext

from sparkinfer.config import refuse_unknown
from sparkinfer.exceptions import ConfigError
from sparkinfer.spark.arrival import travelling
from sparkinfer.spark.chosen import collect_in
from sparkinfer.spark.predict import planned, predict, sent
from sparkinfer.spark.runs import surrounded
from sparkinfer.spark.scan import FileTable
from sparkinfer.spark.ship import ShippedFile, locate, ship
from sparkinfer.spark.worker import cards_of

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.contracts import Describable
    from sparkinfer.engine.partition import PartitionPlan
    from sparkinfer.profiles import ProfilePlan

__all__ = ["SparkSample"]

_LARGEST_CHUNK = 10_000  # Spark's own default


class SparkSample:
    """Some partitions of a DataFrame, and the plan that they are scored by."""

    def __init__(self, data: Any, model: Describable, arguments: dict[str, Any], config: InferenceConfig) -> None:
        """Check everything, as ``predict`` does.

        Raises:
            ConfigError, SchemaError, ModelLoadError: an argument is wrong, or ``data`` is a stream.
        """
        refuse_unknown(arguments, inspect.signature(predict).parameters)
        made = planned(data, model, **{**arguments, "keep": []}, config=config)
        source = made.source.to_dataframe() if isinstance(made.source, FileTable) else made.source
        if source.isStreaming:
            msg = "data is a stream, and this looks at a few partitions of a table: give a table with some of its rows"
            raise ConfigError(msg)
        self.plan: PartitionPlan = made.plan
        self._data = source

    def run(self, work: Callable[..., dict[str, Any]], watched: ProfilePlan, rows: int) -> list[dict[str, Any]]:
        """Have it done in the partitions that are asked for, by tasks that run beside each other; give what they tell.

        Args:
            work: picklable; called with a partition's chunks, ``files``, ``partition``, ``cpus`` and ``addresses``.
            watched: which partitions.
            rows: of each that the work needs: chunks are no larger.
        """
        task = _OnSample(work, ship(self.plan.model, self._data.sparkSession), self.plan.columns, watched)
        with surrounded(uuid4().hex[:12], min(_LARGEST_CHUNK, max(1, rows))):
            asked = sent(self._data, replace(self.plan, keep=())).mapInArrow(travelling(task.run), "told string")
            told = collect_in(asked, watched.numbers)
        return [json.loads(row.told) for row in told]


@dataclass(frozen=True)
class _OnSample:
    """A task of it."""

    work: Callable[..., dict[str, Any]]
    files: tuple[ShippedFile, ...]
    names: tuple[str, ...]
    watched: ProfilePlan

    def run(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do it, as a ``mapInArrow`` function."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        if not self.watched.watches(partition):
            return
        told = self.work(
            (pa.RecordBatch.from_arrays(chunk.columns, names=list(self.names)) for chunk in chunks),
            files=lambda: locate(self.files),
            partition=partition,
            cpus=max(1, context.cpus()) if context is not None else 1,
            addresses=cards_of(context) if context is not None else None,
        )
        yield pa.RecordBatch.from_pydict({"told": pa.array([json.dumps(told)], pa.string())})
