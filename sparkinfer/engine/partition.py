"""The loop: chunks of one partition in, chunks of predictions out.

Runs on: worker (or in any process, for ``predict_local``).

What is in flight, with ``prefetch_batches=2`` and ``num_workers=0``::

    chunks ──1──► rebatch ──2──► prepare ──3──► [ batch | batch ] ──4──► predict ──5──► encode ──6──► regroup ──7──► chunks
             └───── one read-ahead thread ────┘   at most 2 wait      └───────── the task's own thread ────────┘

Invariant: rows in = rows out, in order, with the chunks' own borders, or an error that says where; whatever ends the loop, the
threads that it started are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np
import pyarrow as pa

from sparkinfer.engine.batch import BadRow, Batch, Breach, Failure, Fault, Inputs
from sparkinfer.engine.columns import bad_nulls, describe_null
from sparkinfer.engine.encode import OutputColumn, check_rows, encode_outputs
from sparkinfer.engine.fitting import OutOfMemoryFault, fitting, is_device_lost, is_out_of_memory
from sparkinfer.engine.isolate import ERROR_TYPE, assemble, by_halves
from sparkinfer.engine.model_cache import process_models
from sparkinfer.engine.rebatch import Regroup, rebatch
from sparkinfer.engine.recorder import NO_RECORDER, NoRecorder
from sparkinfer.exceptions import BadRowsError, OutputError, Place, PredictError, SchemaError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.contracts import Backend, LoadedModel, ModelPlan
    from sparkinfer.engine.prepare import Prepare

__all__ = ["OnNull", "PartitionPlan", "backend_named", "run_partition"]

OnNull = Literal["raise", "null", "pass"]
Files = Mapping[str, "str | bytes"]
_ROWS_FOR_A_SHARE = 100  # before, one bad row would be a large share


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
        error_column: the column that says why a row has no prediction; ``None``: the first bad row ends the partition.
    """

    model: ModelPlan
    prepare: Prepare
    postprocess: bytes
    outputs: tuple[OutputColumn, ...]
    keep: tuple[str, ...]
    key: tuple[str, ...]
    on_null: OnNull
    config: InferenceConfig
    error_column: str | None = None

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
        fields = [pa.field(column.name, column.type) for column in self.outputs]
        return pa.schema(fields if self.error_column is None else [*fields, pa.field(self.error_column, ERROR_TYPE)])


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
    card: int | None = None,
    recorder: NoRecorder = NO_RECORDER,
    file_of: Callable[[int], str | None] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Score one partition.

    Args:
        plan: what to do.
        chunks: record batches that hold ``plan.columns`` and ``plan.keep``; pulled by one thread at a time.
        files: gives the model's files.
        partition: Spark's partition id, for messages.
        cpus: the task's CPUs, for the framework's threads.
        card: the card that is the task's, by CUDA's number; taken where the device is a card without a number.
        recorder: is told of every step.
        file_of: names the file of a row, for messages.

    Yields:
        For each chunk, in order, one of the same number of rows: the kept columns, then the outputs.

    Raises:
        SchemaError, PreprocessError, PredictError, OutputError: a row or a batch is bad; the message has column, partition and row.
        ModelLoadError: the model cannot be loaded here.
        BadRowsError: more rows are bad than the settings allow.
    """
    where = _Where(plan, partition, file_of)
    regroup = Regroup(plan.keep, plan.output_schema)
    batches = rebatch(recorder.chunks(chunks), plan.columns, plan.config.batch_size, regroup, where.unscored)  # 1 read, 2 rebatch
    first = next(batches, None)
    recorder.lap("input_wait")
    if first is None:  # nothing for the model to see: it is not even loaded
        yield from _put_out(regroup.finish(), recorder)
        return
    backend = backend_named(plan.model.backend)
    device = backend.resolve_device(plan.config.device)
    if plan.config.device in ("auto", "cuda") and card is not None and device.startswith("cuda"):
        device = backend.resolve_device(f"cuda:{card}")
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
        where.device = device
        recorder.ran_on(device)
        recorder.lap("model_load")  # and all that comes before the first batch: the framework's import, loader processes
        for batch, inputs in fed:
            recorder.lap("input_wait")
            predictions = _predict(model, batch, inputs, where, recorder) if batch.data.num_rows else []
            yield from _put_out(regroup.add(predictions), recorder)  # 7 yield
        recorder.lap("input_wait")  # for the end of the source
        recorder.device_peak(model.device_peak_bytes)
    where.check_allowed(ended=True)
    recorder.lap("other")  # what the feed and the cache did on leaving
    yield from _put_out(regroup.finish(), recorder)


def _put_out(chunks: Iterator[pa.RecordBatch], recorder: NoRecorder) -> Iterator[pa.RecordBatch]:
    for chunk in chunks:
        recorder.put_out(chunk)
        recorder.lap("encode")
        yield chunk
        recorder.lap("output_wait")


def _predict(model: LoadedModel, batch: Batch, inputs: Inputs | Failure, where: _Where, recorder: NoRecorder) -> list[pa.Array]:
    plan = where.plan
    rows = batch.data.num_rows
    if isinstance(inputs, Failure) and plan.error_column is not None:
        inputs = plan.prepare(batch.data)  # what prepares whole batches (tf.data) cannot tell which row it was; this can
    if isinstance(inputs, Failure):
        where.fail(batch, inputs)
    recorder.batch(rows - len(inputs.bad), inputs.seconds)
    if plan.error_column is not None:
        return _isolated(model, batch, inputs, where, recorder)
    try:
        return _Pieces(model, batch, inputs, where, recorder).score(0, rows)
    except Fault as fault:
        where.fail(batch, Failure.of(fault), fault)


def _isolated(model: LoadedModel, batch: Batch, inputs: Inputs, where: _Where, recorder: NoRecorder) -> list[pa.Array]:
    """Score the rows that can be scored, and say of the others why they cannot."""
    plan, rows = where.plan, batch.data.num_rows
    fed = np.delete(np.arange(rows), [one.row for one in inputs.bad])
    try:
        pieces, found = by_halves(_Pieces(model, batch, inputs, where, recorder).score, len(fed))
    except Breach as breach:
        where.fail(batch, Failure.of(breach), breach)
    bad = [*inputs.bad, *(replace(one, row=int(fed[one.row])) for one in found)]
    where.count(batch, bad)
    recorder.bad_rows(bad)
    encoded = assemble(pieces, [column.type for column in plan.outputs], rows, bad)
    recorder.lap("encode")
    return encoded


@dataclass(frozen=True)
class _Pieces:
    """A batch that may be scored in parts: for bad rows, or for memory."""

    model: LoadedModel
    batch: Batch
    inputs: Inputs
    where: _Where
    recorder: NoRecorder

    def score(self, start: int, stop: int) -> list[pa.Array]:
        """Score some of the rows that are no bad ones: at once, or in as many pieces as memory asks for."""
        return fitting(self._score, start, stop, model=self.model, device=self.where.device, cut=self.recorder.rows_fit)

    def _score(self, start: int, stop: int) -> list[pa.Array]:
        return _score(self.where.plan, self.model, self._part(start, stop), stop - start, self.recorder)

    def _part(self, start: int, stop: int) -> Inputs:
        inputs, data = self.inputs, self.batch.data
        if stop - start == data.num_rows - len(inputs.bad):
            return inputs
        if self.where.plan.prepare.joins_rows:  # a part of it would still be padded to a row that is in another part
            fed = np.delete(np.arange(data.num_rows), [one.row for one in inputs.bad])
            again = self.where.plan.prepare(data.take(pa.array(fed[start:stop])))
            if isinstance(again, Inputs) and not again.bad:
                return again
        return replace(inputs, arrays={name: array[start:stop] for name, array in inputs.arrays.items()})


def _score(plan: PartitionPlan, model: LoadedModel, inputs: Inputs, rows: int, recorder: NoRecorder) -> list[pa.Array]:
    result = _call(model, inputs)  # 4 predict
    recorder.lap("compute")
    check_rows(result, rows)
    if plan.postprocess:
        result = _postprocess(plan.postprocess, result)  # 5 postprocess
        check_rows(result, rows)
        recorder.lap("postprocess")
    encoded = encode_outputs(result, plan.outputs, rows)  # 6 encode
    recorder.lap("encode")
    return encoded


def _call(model: LoadedModel, inputs: Inputs) -> Any:
    try:
        return model.predict(inputs)
    except Fault:
        raise
    except Exception as error:
        kind = OutOfMemoryFault if is_out_of_memory(error) else Breach if is_device_lost(error) else Fault
        raise kind(PredictError, f"the model raised {type(error).__name__}: {error}{_hint(error)}") from error


def _hint(error: Exception) -> str:
    """Say what to do about what frameworks say of types in their own words."""
    if any(told in str(error) for told in ("must have the same dtype", "expected scalar type", "must be Tensor, not list")):
        return (
            ". If it computes in other numbers than the column holds, say so: inputs=(column, TensorSpec('float32', shape)); text becomes numbers "
            "in preprocess"
        )
    return ""


def _postprocess(pickled: bytes, result: Any) -> Any:
    function = _loaded(pickled)
    try:
        return function(result)
    except Exception as error:
        raise Fault(OutputError, f"postprocess raised {type(error).__name__}: {error}", stage="postprocess") from error


@lru_cache(maxsize=16)
def _loaded(pickled: bytes) -> Callable[[Any], Any]:
    return cast("Callable[[Any], Any]", loads(pickled, "postprocess"))


class _FirstCause(Exception):  # noqa: N818 - carries a traceback from another process, as multiprocessing does
    """The traceback of the first cause, as text."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class _Where:
    """Knows where in the partition a batch is: makes the public errors, with their places, and counts the bad rows."""

    def __init__(self, plan: PartitionPlan, partition: int | None, file_of: Callable[[int], str | None]) -> None:
        """Begin, with nothing bad."""
        self.plan = plan
        self.partition = partition
        self._file_of = file_of
        self.device = "cpu"
        self._rows = 0
        self._bad = 0
        self._last = ""

    def unscored(self, data: pa.RecordBatch, first_row: int) -> np.ndarray | None:
        """Find the rows of a chunk that the model is not to see, by ``on_null``."""
        if self.plan.on_null == "pass" or (self.plan.on_null == "raise" and self.plan.error_column is not None):
            return None  # in the second case a null makes a bad row, which is found where all others are
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
        number = first_row + row
        place = Place(column=name, partition=self.partition, row=number, file=self._file_of(number), key=self._key(data, row))
        msg = (
            f"{describe_null(_column(data, name), row)}, at {place}. The model takes no null here: fill or filter it before, or say "
            f"on_null='null' (a null prediction for that row) or on_null='pass' (the model gets it)"
        )
        raise SchemaError(msg)

    def count(self, batch: Batch, bad: Sequence[BadRow]) -> None:
        """Count a batch's bad rows.

        Raises:
            BadRowsError: they are too many now.
        """
        self._rows += batch.data.num_rows
        if bad:
            self._bad += len(bad)
            number = int(batch.rows[bad[-1].row])
            place = Place(partition=self.partition, row=number, file=self._file_of(number), key=self._key(batch.data, bad[-1].row))
            self._last = f"{bad[-1].type} in {bad[-1].stage}, at {place}: {bad[-1].message}"
            self.check_allowed()

    def check_allowed(self, *, ended: bool = False) -> None:
        """Refuse to go on where too many rows are bad; a share says something from some rows on, or at the end.

        Raises:
            BadRowsError: names the figures and the last bad row.
        """
        config = self.plan.config
        share = self._bad / self._rows if self._rows >= _ROWS_FOR_A_SHARE or (ended and self._rows) else 0.0
        if config.max_errors is not None and self._bad > config.max_errors:
            limit = f"max_errors={config.max_errors}"
        elif config.max_error_fraction is not None and share > config.max_error_fraction:
            limit = f"max_error_fraction={config.max_error_fraction}"
        else:
            return
        of = "" if self.partition is None else f" of partition {self.partition}"
        msg = f"{self._bad} of the first {self._rows} rows{of} are bad, more than {limit} allows. The last was a {self._last}"
        raise BadRowsError(msg)

    def fail(self, batch: Batch, failure: Failure, fault: Fault | None = None) -> NoReturn:
        """Raise the public error for ``failure``, chained to the first cause."""
        row = failure.row
        place = Place(
            column=failure.column,
            partition=self.partition,
            batch=batch.index,
            row=int(batch.rows[row]) if row is not None else None,
            file=self._file_of(int(batch.rows[row or 0])) if len(batch.rows) else None,
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
