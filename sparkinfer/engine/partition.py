"""The loop: chunks of one partition in, chunks of predictions out.

Runs on: worker (or in any process, for ``predict_local``).

What is in flight, with ``prefetch_batches=2`` and ``num_workers=0``::

    chunks ──1──► rebatch ──2──► prepare ──3──► [ batch | batch ] ──4──► predict ──5──► encode ──6──► regroup ──7──► chunks
             └───── one read-ahead thread ────┘   at most 2 wait      └───────── the task's own thread ────────┘

Invariant: rows in = rows out, in order, with the chunks' own borders, or an error that says where; whatever ends the loop, the
threads that it started are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import pyarrow as pa

from sparkinfer.engine.batch import Batch, Failure, Fault, Inputs
from sparkinfer.engine.columns import bad_nulls, describe_null
from sparkinfer.engine.encode import OutputColumn, check_rows, encode_outputs
from sparkinfer.engine.model_cache import process_models
from sparkinfer.engine.rebatch import Regroup, rebatch
from sparkinfer.engine.recorder import NO_RECORDER, NoRecorder
from sparkinfer.errors import OutputError, Place, PredictError, SchemaError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    import numpy as np

    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.contracts import Backend, LoadedModel, ModelPlan
    from sparkinfer.engine.prepare import Prepare

__all__ = ["OnNull", "PartitionPlan", "backend_named", "run_partition"]

OnNull = Literal["raise", "null", "pass"]
Files = Mapping[str, "str | bytes"]


@dataclass(frozen=True, kw_only=True)
class PartitionPlan:
    """All that the loop needs, as one frozen value that travels to the workers.

    Attributes:
        model: the model, described.
        prepare: from columns to inputs.
        postprocess: the user's function from the model's arrays to output columns, pickled; empty if there is none.
        outputs: the columns that are added.
        keep: the columns of a chunk that come back beside them.
        key: columns whose values an error names beside the row.
        on_null: what a null in an input column means.
        config: the settings.
    """

    model: ModelPlan
    prepare: Prepare
    postprocess: bytes
    outputs: tuple[OutputColumn, ...]
    keep: tuple[str, ...]
    key: tuple[str, ...]
    on_null: OnNull
    config: InferenceConfig

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input columns, each once."""
        return tuple(dict.fromkeys(binding.column for binding in self.prepare.bindings))

    @property
    def columns(self) -> tuple[str, ...]:
        """What a batch holds: the input columns and the key columns, each once."""
        return tuple(dict.fromkeys((*self.inputs, *self.key)))

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the columns that are added."""
        return pa.schema([pa.field(column.name, column.type) for column in self.outputs])


def backend_named(name: str) -> Backend:
    """Import the backend: the only place where a framework is first touched."""
    return cast("Backend", import_module(f"sparkinfer.backends.{name}").BACKEND)


def run_partition(
    plan: PartitionPlan,
    chunks: Iterator[pa.RecordBatch],
    *,
    files: Callable[[], Files],
    partition: int | None = None,
    cpus: int = 1,
    recorder: NoRecorder = NO_RECORDER,
) -> Iterator[pa.RecordBatch]:
    """Score one partition.

    Args:
        plan: what to do.
        chunks: record batches that hold ``plan.columns`` and ``plan.keep``; pulled by one thread at a time.
        files: gives the model's files.
        partition: Spark's partition id, for messages.
        cpus: the task's CPUs, for the framework's threads.
        recorder: is told of every step.

    Yields:
        For each chunk, in order, one of the same number of rows: the kept columns, then the outputs.

    Raises:
        SchemaError, PreprocessError, PredictError, OutputError: a row or a batch is bad; the message has column, partition and row.
        ModelLoadError: the model cannot be loaded here.
    """
    where = _Where(plan, partition)
    regroup = Regroup(plan.keep, plan.output_schema)
    batches = rebatch(recorder.chunks(chunks), plan.columns, plan.config.batch_size, regroup, where.unscored)  # 1 read, 2 rebatch
    first = next(batches, None)
    recorder.lap("input_wait")
    if first is None:  # nothing for the model to see: it is not even loaded
        yield from _put_out(regroup.finish(), recorder)
        return
    backend = backend_named(plan.model.backend)
    device = backend.resolve_device(plan.config.device)
    threads = plan.config.threads or cpus
    found = files()  # for a model that is loaded too: its weights may be mapped from a file that has changed since, which this tells

    def load() -> LoadedModel:
        recorder.loaded()
        return backend.load(plan.model, found, device, threads)

    key = (plan.model.fingerprint, device, threads)
    # loader processes start on entering the feed, before the model does: a fork after a framework's threads can deadlock
    with (
        backend.feed(chain((first,), batches), plan.prepare, plan.config, device, recorder.queue) as fed,  # 3 feed
        process_models.borrow(key, load, plan.config.models_per_worker) as model,
    ):
        recorder.ran_on(device)
        recorder.lap("model_load")  # and all that comes before the first batch: the framework's import, loader processes
        for batch, inputs in fed:
            recorder.lap("input_wait")
            predictions = _predict(plan, model, batch, inputs, where, recorder) if batch.data.num_rows else []
            yield from _put_out(regroup.add(predictions), recorder)  # 7 yield
        recorder.lap("input_wait")  # for the end of the source
        recorder.device_peak(model.device_peak_bytes)
    recorder.lap("other")  # what the feed and the cache did on leaving
    yield from _put_out(regroup.finish(), recorder)


def _put_out(chunks: Iterator[pa.RecordBatch], recorder: NoRecorder) -> Iterator[pa.RecordBatch]:
    for chunk in chunks:
        recorder.put_out(chunk)
        recorder.lap("encode")
        yield chunk
        recorder.lap("output_wait")


def _predict(
    plan: PartitionPlan, model: LoadedModel, batch: Batch, inputs: Inputs | Failure, where: _Where, recorder: NoRecorder
) -> list[pa.Array]:
    if isinstance(inputs, Failure):
        where.fail(batch, inputs)
    rows = batch.data.num_rows
    recorder.batch(rows, inputs.seconds)
    try:
        result = _call(model, inputs)  # 4 predict
        recorder.lap("compute")
        check_rows(result, rows)
        if plan.postprocess:
            result = _postprocess(plan.postprocess, result)  # 5 postprocess
            check_rows(result, rows)
            recorder.lap("postprocess")
        encoded = encode_outputs(result, plan.outputs, rows)  # 6 encode
        recorder.lap("encode")
    except Fault as fault:
        where.fail(batch, Failure.of(fault), fault)
    return encoded


def _call(model: LoadedModel, inputs: Inputs) -> Any:
    try:
        return model.predict(inputs)
    except Fault:
        raise
    except Exception as error:
        raise Fault(PredictError, f"the model raised {type(error).__name__}: {error}") from error


def _postprocess(pickled: bytes, result: Any) -> Any:
    function = _loaded(pickled)
    try:
        return function(result)
    except Exception as error:
        raise Fault(OutputError, f"postprocess raised {type(error).__name__}: {error}") from error


@lru_cache(maxsize=16)
def _loaded(pickled: bytes) -> Callable[[Any], Any]:
    return cast("Callable[[Any], Any]", loads(pickled, "postprocess"))


class _FirstCause(Exception):  # noqa: N818 - carries a traceback from another process, as multiprocessing does
    """The traceback of the first cause, as text."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


@dataclass(frozen=True)
class _Where:
    """Turns what happened in a batch into the public error, with its place in the partition."""

    plan: PartitionPlan
    partition: int | None

    def unscored(self, data: pa.RecordBatch, first_row: int) -> np.ndarray | None:
        """Find the rows of a chunk that the model is not to see, by ``on_null``."""
        if self.plan.on_null == "pass":
            return None
        masks = [(name, mask) for name in self.plan.inputs if (mask := bad_nulls(_column(data, name))) is not None]
        if not masks:
            return None
        union = masks[0][1].copy()
        for _, mask in masks[1:]:
            union |= mask
        if self.plan.on_null == "null":
            return union
        row = int(union.argmax())
        name = next(name for name, mask in masks if mask[row])
        place = Place(column=name, partition=self.partition, row=first_row + row, key=self._key(data, row))
        msg = (
            f"{describe_null(_column(data, name), row)}, at {place}. The model takes no null here: fill or filter it before, or say "
            f"on_null='null' (a null prediction for that row) or on_null='pass' (the model gets it)"
        )
        raise SchemaError(msg)

    def fail(self, batch: Batch, failure: Failure, fault: Fault | None = None) -> NoReturn:
        """Raise the public error for ``failure``, chained to the first cause."""
        row = failure.row
        place = Place(
            column=failure.column,
            partition=self.partition,
            batch=batch.index,
            row=int(batch.rows[row]) if row is not None else None,
            key=self._key(batch.data, row) if row is not None else None,
        )
        span = "" if row is not None else f" (rows {batch.rows[0]} to {batch.rows[-1]})"
        raised_in = f". Raised in {failure.raised_in}" if failure.raised_in else ""
        error = failure.kind(f"{failure.text}. At {place}{span}{raised_in}")
        if fault is not None:
            raise error from fault.__cause__
        raise error from (_FirstCause(failure.cause) if failure.cause else None)

    def _key(self, data: pa.RecordBatch, row: int) -> str | None:
        return ", ".join(f"{name}={_column(data, name)[row].as_py()!r}" for name in self.plan.key) or None


def _column(data: pa.RecordBatch, name: str) -> pa.Array:
    return data.column(data.schema.get_field_index(name))
