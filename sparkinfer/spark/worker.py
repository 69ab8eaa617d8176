"""The worker's entry: what Spark calls for a partition, on each road.

Runs on: worker.

Invariant: only this frozen dataclass and its bound methods cross to the workers, as bytes that ``arrival.py`` opens there; what they
yield has the rows, the order and the chunk borders of what they were given.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Tuple  # noqa: UP035 - Spark 3.5 reads the hint of a UDF and knows only typing's Tuple

import pandas as pd  # noqa: TC002 - Spark reads the hints of a UDF
import pyarrow as pa
from pyspark import TaskContext

from sparkinfer.engine.lasting import process_objects
from sparkinfer.engine.partition import PartitionPlan, run_partition
from sparkinfer.engine.probe import pass_on, within
from sparkinfer.engine.profiling import NO_PROFILING, NoProfiling, Profiling, first_rows_of
from sparkinfer.engine.quality import Comparison
from sparkinfer.engine.reading import Origins
from sparkinfer.engine.recorder import NO_RECORDER, NoRecorder, Recorder, TracedRecorder
from sparkinfer.engine.sampling import sampling
from sparkinfer.exceptions import SchemaError
from sparkinfer.metrics import PartitionMetrics
from sparkinfer.spark.marks import Marks, read_marks
from sparkinfer.spark.pandas_form import FLAGS, column_from_pandas, series_of
from sparkinfer.spark.prompt_socket import answer_at_once
from sparkinfer.spark.ship import ShippedFile, locate

if TYPE_CHECKING:
    from sparkinfer.engine.reading import FileWork
    from sparkinfer.spark.channels import MetricsChannel

__all__ = ["PartitionTask", "cards_of"]


@dataclass(frozen=True, kw_only=True)
class PartitionTask:
    """A partition's work, whichever road its rows take.

    Attributes:
        plan: what to do.
        files: where the model's files are.
        call: the id of the ``predict`` or ``predict_udf`` that this is the work of.
        channel: where the partition's record goes.
        names: the map road only: what the chunks' columns are really called. Spark's own ``mapInArrow`` resolves the columns of its
            frame by unquoted names (seen up to 4.3), so that a dot in a name would be read as a field's.
        flagged: the pandas road only: ``pandas_form.flags`` follow each column.
        called: what SQL calls the function; empty where only Python calls it.
        work: the direct road only: the files that the partitions read.
        slots: tasks that one executor runs at once, for messages; ``None`` where the settings do not tell.
        arm: a diagnosis only: ``pass`` lets the rows travel and scores none.
        most_rows: a diagnosis only: a partition ends after the chunk that makes so many rows full.
    """

    plan: PartitionPlan
    files: tuple[ShippedFile, ...]
    call: str
    channel: MetricsChannel
    names: tuple[str, ...] = ()
    flagged: bool = False
    called: str = ""
    work: FileWork | None = None
    slots: int | None = None
    arm: str = ""
    most_rows: int | None = None

    def map_arrow(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as a ``mapInArrow`` function: kept columns and outputs together."""
        named = (pa.RecordBatch.from_arrays(chunk.columns, names=list(self.names)) for chunk in chunks)
        return self._run(named if self.most_rows is None else within(named, self.most_rows))

    def direct_arrow(self, tickets: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as a ``mapInArrow`` function over the numbers of the shares of files that are read here."""
        assert self.work is not None  # noqa: S101 - predict gives it
        origins = Origins()
        return self._run(self.work.read(tickets, origins), origins.file_of)

    def arrow_one(self, chunks: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Run as an iterator Arrow UDF over one column."""
        return self._column(self._batch(self._given(chunk)) for chunk in chunks)

    def arrow_many(self, chunks: Iterator[Tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # noqa: UP006 - see the import
        """Run as an iterator Arrow UDF over several columns."""
        return self._column(self._batch(self._given(chunk)) for chunk in chunks)

    def pandas_one(self, chunks: Iterator[pd.Series]) -> Iterator[pd.Series]:
        """Run as an iterator pandas UDF over one column; Spark hands a struct over as a DataFrame."""
        return self._series(self._batch(self._from_pandas(self._given(chunk))) for chunk in chunks)

    def pandas_many(self, chunks: Iterator[Tuple[pd.Series, ...]]) -> Iterator[pd.Series]:  # noqa: UP006 - see the import
        """Run as an iterator pandas UDF over several columns."""
        return self._series(self._batch(self._from_pandas(self._given(chunk))) for chunk in chunks)

    def _run(self, chunks: Iterator[pa.RecordBatch], file_of: Callable[[int], str | None] = lambda _: None) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        answer_at_once()
        process_objects.settle()
        if context is None or not self.channel.measures:
            yield from self._score(chunks, context, NO_RECORDER, NO_PROFILING, file_of)
            return
        marks = read_marks(context)
        profiling = self._profiling(marks, context)
        if marks.profile is not None and marks.profile.bounded is not None:
            if profiling is NO_PROFILING:
                return  # reads nothing, and tells nothing
            chunks = first_rows_of(chunks, marks.profile.bounded * self.plan.config.batch_rows)
        self.channel.begin(self._record(context, marks, started_unix=time.time(), wall_seconds=0.0, rows=0))
        recorder = (Recorder if profiling is NO_PROFILING else TracedRecorder)(comparison=self._comparison(marks))
        with sampling(addresses=cards_of(context)) as samples:
            yield from self._score(chunks, context, recorder, profiling, file_of)
            record = self._record(context, marks, **recorder.figures())  # here: the samplers' last look is none of the partition's time
        self.channel.send(replace(record, series=samples.series, gauges=samples.gauges, remarks=samples.remarks))

    def _profiling(self, marks: Marks, context: TaskContext) -> NoProfiling:
        """Watch the partition, if the run's profile is of it."""
        if marks.profile is None or not marks.profile.watches(context.partitionId()):
            return NO_PROFILING
        name = f"{marks.run or self.call}/p{context.partitionId()}-t{context.taskAttemptId()}"
        return Profiling(marks.profile, self.plan.model.backend, self.plan.model.label, name)

    def _score(
        self,
        chunks: Iterator[pa.RecordBatch],
        context: TaskContext | None,
        recorder: NoRecorder,
        profiling: NoProfiling,
        file_of: Callable[[int], str | None],
    ) -> Iterator[pa.RecordBatch]:
        if self.arm == "pass":
            return pass_on(self.plan, chunks, recorder)
        return run_partition(
            self.plan,
            chunks,
            files=lambda: locate(self.files),
            partition=context.partitionId() if context is not None else None,
            cpus=max(1, context.cpus()) if context is not None else 1,
            addresses=cards_of(context) if context is not None else None,
            slots=self.slots,
            recorder=recorder,
            profiling=profiling,
            file_of=file_of,
        )

    def _comparison(self, marks: Marks) -> Comparison | None:
        """Compare with the run's label column where it is in the chunks: kept, on the map road."""
        label = marks.label
        return Comparison(label, self.plan.outputs) if label is not None and label in self.plan.keep else None

    def _record(self, context: TaskContext, marks: Marks, **figures: Any) -> PartitionMetrics:
        return PartitionMetrics(
            call=self.call,
            run=marks.run,
            execution=context.getLocalProperty("spark.sql.execution.id"),
            partition=context.partitionId(),
            task_attempt=context.taskAttemptId(),
            host=socket.gethostname(),
            pid=os.getpid(),
            micro_batch=_micro_batch(context),
            **figures,
        )

    def _given(self, chunk: Any) -> Sequence[Any]:
        """Give the arguments of a UDF. Of a call in SQL nobody before has counted them: Spark hands over what is written there (up to 4.3)."""
        given = chunk if isinstance(chunk, tuple) else (chunk,)
        expected = self.plan.columns
        if len(given) != len(expected) * (1 + FLAGS if self.flagged else 1):
            columns = "1 column" if len(given) == 1 else f"{len(given)} columns"
            msg = f"{self.called or 'the model'} was called with {columns}, expected {len(expected)}: {', '.join(expected)}"
            raise SchemaError(msg)
        return given

    def _batch(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_plain(column) for column in columns], names=list(self.plan.columns))

    def _column(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.Array]:
        for scored in self._run(chunks):
            yield _only(scored)

    def _series(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        for scored in self._run(chunks):
            yield series_of(_only(scored))

    def _from_pandas(self, given: Sequence[Any]) -> list[pa.Array]:
        if not self.flagged:
            return [column_from_pandas(values, None, None, name) for values, name in zip(given, self.plan.columns, strict=True)]
        step = 1 + FLAGS
        starts = range(0, len(given), step)
        return [
            column_from_pandas(given[at], given[at + 1], given[at + 2], name) for at, name in zip(starts, self.plan.columns, strict=True)
        ]


def _micro_batch(context: TaskContext) -> str | None:
    """Name the micro-batch of a streaming query, in whose tasks Spark sets both properties, those of foreachBatch among them (seen on 4.3)."""
    query = context.getLocalProperty("sql.streaming.queryId")
    return f"{query}/{context.getLocalProperty('streaming.sql.batchId')}" if query is not None else None


def cards_of(context: TaskContext) -> tuple[str, ...] | None:
    """Give the addresses of the cards that Spark gave this task; ``None`` where Spark gives none."""
    cards = context.resources().get("gpu")
    return tuple(cards.addresses) if cards is not None else None


def _plain(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _only(scored: pa.RecordBatch) -> pa.Array:
    """Give the one column of a UDF: the output itself, or several as a struct."""
    if scored.num_columns == 1:
        return scored.column(0)
    return pa.StructArray.from_arrays(scored.columns, fields=list(scored.schema))
