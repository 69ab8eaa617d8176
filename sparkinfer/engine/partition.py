"""The loop: chunks of one partition in, chunks of predictions out.

Runs on: worker (or in any process, for ``predict_local``).

What is in flight, with ``prefetch_batches=2`` and ``num_workers=0``::

    chunks ──1──► rebatch ──2──► prepare ──3──► [ batch | batch ] ──4──► predict ──5──► encode ──6──► regroup ──7──► chunks
             └───── one read-ahead thread ────┘   at most 2 wait      └───────── the task's own thread ────────┘

On a card, batches n + 1 and n + 2 are started there before the results of n are waited for (``ahead.py``).

Invariant: rows in = rows out, in order, with the chunks' own borders, or an error that says where; whatever ends the loop, the
threads that it started are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np
import pyarrow as pa

from sparkinfer.engine.admission import FILLED, admitted
from sparkinfer.engine.ahead import Started, started_ahead
from sparkinfer.engine.batch import BadRow, Batch, Breach, Failure, Fault, Fed, Inputs, bounded, traced
from sparkinfer.engine.columns import bad_nulls, describe_null
from sparkinfer.engine.encode import OutputColumn, check_rows, encode_outputs
from sparkinfer.engine.fitting import OutOfMemoryFault, fitting, is_device_lost, is_out_of_memory, most_rows
from sparkinfer.engine.isolate import ERROR_TYPE, assemble, by_halves
from sparkinfer.engine.model_cache import process_models
from sparkinfer.engine.profiling import NO_PROFILING, NoProfiling
from sparkinfer.engine.rebatch import Regroup, rebatch
from sparkinfer.engine.recorder import NO_RECORDER, NoRecorder
from sparkinfer.engine.repeating import Repeating
from sparkinfer.engine.settling import sizing_of, timed_for
from sparkinfer.engine.tail import with_full_batches
from sparkinfer.exceptions import BadRowsError, OutputError, Place, PredictError, SchemaError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.admission import Admission
    from sparkinfer.engine.contracts import Backend, LoadedModel, ModelPlan
    from sparkinfer.engine.prepare import Prepare

__all__ = ["OnNull", "PartitionPlan", "backend_named", "run_partition"]

OnNull = Literal["raise", "null", "pass"]
Files = Mapping[str, "str | bytes"]
_LONGEST_KEY = 200  # characters of each of a row's keys
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
        trivial: the model only repeats its first answers: what a diagnosis measures everything else by.
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
    trivial: bool = False

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
    addresses: Sequence[str] | None = None,
    slots: int | None = None,
    recorder: NoRecorder = NO_RECORDER,
    profiling: NoProfiling = NO_PROFILING,
    file_of: Callable[[int], str | None] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Score one partition.

    Args:
        plan: what to do.
        chunks: record batches that hold ``plan.columns`` and ``plan.keep``; pulled by one thread at a time.
        files: gives the model's files.
        partition: Spark's partition id, for messages.
        cpus: the task's CPUs, for the framework's threads.
        addresses: Spark's, of the cards that are the task's; the first is taken where the device is a card without a number.
        slots: tasks that share a CPU's memory, for messages.
        recorder: is told of every step.
        profiling: watches some model calls.
        file_of: names the file of a row, for messages.

    Yields:
        For each chunk, in order, one of the same number of rows: the kept columns, then the outputs.

    Raises:
        SchemaError, PreprocessError, PredictError, OutputError: a row or a batch is bad; the message has column, partition and row.
        ModelLoadError: the model cannot be loaded here.
        BadRowsError: more rows are bad than the settings allow.
    """
    where = _Where(plan, partition, file_of)
    regroup = Regroup(plan.keep, plan.output_schema, partition)
    read = where.up_to_a_null(recorder.chunks(chunks))  # 1 read
    threads = plan.config.threads or cpus
    sizing = sizing_of(plan, threads)
    batches = rebatch(read, plan.columns, sizing.rows, regroup, where.unscored)  # 2 rebatch
    first = next(batches, None)
    recorder.lap("input_wait")
    if first is None:  # nothing for the model to see: it is not even loaded
        where.check_nulls()
        yield from _put_out(regroup.finish(), recorder)
        return
    batches = recorder.batches(first, batches)
    backend = backend_named(plan.model.backend)
    found = files()  # for a model that is loaded too: its weights may be mapped from a file that has changed since, which this tells

    def load() -> LoadedModel:
        recorder.loaded()
        with admission.loading():
            model = backend.load(plan.model, found, admission.device, threads)
        return Repeating(model) if plan.trivial else model

    # loader processes start on entering the feed, before the model does: a fork after a framework's threads can deadlock
    with (
        admitted(backend, plan.config, addresses, model=plan.model.fingerprint, evict=_evict) as admission,
        backend.feed(chain((first,), batches), plan.prepare, plan.config, admission.device, recorder.queue) as fed,  # 3 feed
        process_models.borrow(_key(plan, admission, threads), load, plan.config.models_per_worker) as loaded,
        profiling.watching(loaded, admission.device, recorder, partial(plan.prepare, first.data)) as watched,
    ):
        model = with_full_batches(watched, plan.model, plan.config, sizing.rows, retraces=getattr(loaded, "retraces", False))
        device_seconds: Callable[[], Mapping[str, float]] = getattr(loaded, "device_seconds", dict)
        device_seconds()  # what a partition before this one left there
        where.runs_on(admission, slots)
        recorder.ran_on(admission.device, admission.waited_seconds)
        recorder.lap("model_load")  # and all before the first batch: the framework's import, loader processes, the wait for a card
        peak = _Peak(model, admission)
        timing = timed_for(
            sizing, plan.config, slots, lambda: peak.doubles(backend.card_memory_bytes(admission.device)), partial(most_rows, model)
        )
        for batch, inputs, started in started_ahead(fed, model, recorder, lambda batch: not sizing.settled or where.cut_short(batch)):
            if where.cut_short(batch):  # the model sees no row of a batch with a null that is refused
                if isinstance(inputs, Failure):
                    where.fail(batch, inputs)
                continue
            with timing(Fed(batch, inputs)):
                predictions = _predict(model, batch, inputs, where, recorder, started) if batch.data.num_rows else []
            yield from _put_out(regroup.add(predictions), recorder)  # 7 yield
            if batch.index and sizing.settled:  # by then the first batches lie beside each other
                peak.look()
        recorder.lap("input_wait")  # for the end of the source
        recorder.rows_settled(sizing.told())
        recorder.device_peak(peak.ask)
        recorder.device_end(model.device_bytes)
        recorder.device_time(device_seconds)
    where.check_nulls()
    where.check_allowed(ended=True)
    recorder.lap("other")  # what the feed and the cache did on leaving
    yield from _put_out(regroup.finish(), recorder)


def _key(plan: PartitionPlan, admission: Admission, threads: int) -> Hashable:
    model = f"trivial {plan.model.fingerprint}" if plan.trivial else plan.model.fingerprint
    return model, admission.device, threads, admission.devices


def _evict(device: str) -> None:
    """Let go of what idles on a device."""
    process_models.discard(lambda key: isinstance(key, tuple) and key[1] == device)


class _Peak:
    """The device's peak, told as early as it says something: others may wait for it."""

    def __init__(self, model: LoadedModel, admission: Admission) -> None:
        self._model = model
        self._admission = admission
        self._most: int | None = None
        self._told = False

    def look(self) -> None:
        if not self._told:
            self.ask()

    def ask(self) -> int | None:
        self._told = True
        self._admission.measured(self.now())
        return self._most

    def now(self) -> int | None:
        now = self._model.device_peak_bytes()
        self._most = now if self._most is None or now is None else max(now, self._most)
        return self._most

    def doubles(self, card_bytes: int | None) -> bool:
        """Tell whether twice of it would fit on the card, beside the others there; yes where that is not known."""
        now = self.now()
        return now is None or card_bytes is None or 2 * now <= FILLED * card_bytes / (self._admission.sharing() or 1)


def _put_out(chunks: Iterator[pa.RecordBatch], recorder: NoRecorder) -> Iterator[pa.RecordBatch]:
    for chunk in chunks:
        recorder.put_out(chunk)
        recorder.lap("encode")
        yield chunk
        recorder.lap("output_wait")


def _predict(
    model: LoadedModel, batch: Batch, inputs: Inputs | Failure, where: _Where, recorder: NoRecorder, started: Started | None
) -> list[pa.Array]:
    plan = where.plan
    rows = batch.data.num_rows
    if isinstance(inputs, Failure) and not inputs.final and plan.error_column is not None:
        inputs = plan.prepare(batch.data)  # what prepares whole batches (tf.data) cannot tell which row it was; this can
    if isinstance(inputs, Failure):
        where.fail(batch, inputs)
    recorder.batch(rows - len(inputs.bad), inputs.seconds)
    pieces = _Pieces(model, batch, inputs, where, recorder, started)
    if plan.error_column is not None:
        return _isolated(pieces, batch, inputs, where, recorder)
    try:
        return pieces.score(0, rows)
    except Fault as fault:
        where.fail(batch, Failure.of(fault), fault)


def _isolated(scored: _Pieces, batch: Batch, inputs: Inputs, where: _Where, recorder: NoRecorder) -> list[pa.Array]:
    """Score the rows that can be scored, and say of the others why they cannot."""
    plan, rows = where.plan, batch.data.num_rows
    fed = np.delete(np.arange(rows), [one.row for one in inputs.bad])
    try:
        pieces, found = by_halves(scored.score, len(fed))
    except Breach as breach:
        where.fail(batch, Failure.of(breach), breach)
    bad = [*inputs.bad, *(replace(one, row=int(fed[one.row])) for one in found)]
    where.count(batch, bad)
    recorder.bad_rows(bad)
    try:
        encoded = assemble(pieces, [column.type for column in plan.outputs], rows, bad)
    except pa.ArrowInvalid as error:  # each part fits, and not all of them together
        text = f"the outputs of one batch are more than Arrow holds in one column, 2 GiB ({error}): make batch_size smaller"
        where.fail(batch, Failure.of(Breach(OutputError, text)))
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
    started: Started | None = None  # the call of the whole, if it is under way

    def score(self, start: int, stop: int) -> list[pa.Array]:
        """Score some of the rows that are no bad ones: at once, or in as many pieces as memory asks for."""
        return fitting(self._score, start, stop, model=self.model, device=self.where.shared_device, cut=self.recorder.rows_fit)

    def _score(self, start: int, stop: int) -> list[pa.Array]:
        part = self._part(start, stop)
        call = (
            self.started
            if self.started is not None and part is self.inputs and not self.started.used
            else partial(self.model.predict, part)
        )
        return _score(self.where.plan, call, stop - start, self.recorder)

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


def _score(plan: PartitionPlan, call: Callable[[], Any], rows: int, recorder: NoRecorder) -> list[pa.Array]:
    result = _result(call)  # 4 predict
    recorder.lap("compute")
    check_rows(result, rows)
    if plan.postprocess:
        result = _postprocess(plan.postprocess, result)  # 5 postprocess
        check_rows(result, rows)
        recorder.lap("postprocess")
    encoded = encode_outputs(result, plan.outputs, rows)  # 6 encode
    recorder.lap("encode")
    return encoded


def _result(call: Callable[[], Any]) -> Any:
    try:
        return call()
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
        self._device = "cpu"
        self._sharing: Callable[[], int | None] = lambda: None
        self._rows = 0
        self._bad = 0
        self._last = ""
        self._refused: SchemaError | None = None
        self._null_row = 0

    def runs_on(self, admission: Admission, slots: int | None) -> None:
        """Keep where the model runs, and who knows how many run there."""
        self._device = admission.device
        self._sharing = admission.sharing if admission.device != "cpu" else lambda: slots

    def shared_device(self) -> str:
        """Name the device, with the number of Python workers on it where that is known; counted when it is asked."""
        sharing = self._sharing()
        if sharing is None:
            return self._device
        up_to = "up to " if self._device == "cpu" else ""  # task slots: not all need be in use
        return f"{self._device}, which {up_to}{sharing} Python worker{'' if sharing == 1 else 's'} share{'s' if sharing == 1 else ''}"

    def up_to_a_null(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the chunks up to a null that is refused, for ``check_nulls`` to tell when all rows before it are scored: one of them may be bad, too."""
        if self.plan.on_null != "raise" or self.plan.error_column is not None:
            yield from chunks
            return
        seen = 0
        for chunk in chunks:
            masks = self._masks(chunk)
            if masks:
                row = int(_union(masks).argmax())
                self._null_row = seen + row
                self._refused = self._refuse(chunk, row, next(name for name, mask in masks if mask[row]))
                yield chunk.slice(0, row)
                return
            yield chunk
            seen += chunk.num_rows

    def cut_short(self, batch: Batch) -> bool:
        """Whether a null that is refused would have been the batch's next row."""
        rows, size = batch.rows, self.plan.config.batch_size
        short = size == "auto" or len(rows) < size  # of "auto" nobody knows any more; a whole one is then left out, too, and the null told
        return self._refused is not None and len(rows) > 0 and short and rows[-1] + 1 == self._null_row

    def check_nulls(self) -> None:
        """Refuse the null at which the chunks ended.

        Raises:
            SchemaError: names it.
        """
        if self._refused is not None:
            raise self._refused

    def unscored(self, data: pa.RecordBatch, _first_row: int) -> np.ndarray | None:
        """Find the rows of a chunk that the model is not to see."""
        masks = self._masks(data) if self.plan.on_null == "null" else []  # else none are there, or they are bad rows, or the model's
        return _union(masks) if masks else None

    def _masks(self, data: pa.RecordBatch) -> list[tuple[str, np.ndarray]]:
        """Give the input columns with nulls, and where those are."""
        return [(name, mask) for name in self.plan.inputs if (mask := bad_nulls(_column(data, name))) is not None]

    def _refuse(self, data: pa.RecordBatch, row: int, name: str) -> SchemaError:
        number = self._null_row
        place = Place(column=name, partition=self.partition, row=number, file=self._file_of(number), key=self._key(data, row))
        return SchemaError(
            f"{describe_null(_column(data, name), row)}, at {place}. The model takes no null here: fill or filter it before, or say "
            f"on_null='null' (a null prediction for that row) or on_null='pass' (the model gets it)"
        )

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
        first = fault.__cause__ if fault is not None else None
        if fault is not None and (first is None or traced(first) == failure.cause):
            raise error from first
        raise error from (_FirstCause(failure.cause) if failure.cause else None)

    def _key(self, data: pa.RecordBatch, row: int) -> str | None:
        return ", ".join(f"{name}={_shown(_column(data, name)[row])}" for name in self.plan.key) or None


def _shown(value: pa.Scalar) -> str:
    try:
        return bounded(repr(value.as_py()), _LONGEST_KEY)
    except (ValueError, OverflowError):  # a text that is no UTF-8, a date that Python does not have
        return f"<a {value.type} that Python cannot show>"


def _union(masks: Sequence[tuple[str, np.ndarray]]) -> np.ndarray:
    return cast("np.ndarray", np.logical_or.reduce([mask for _, mask in masks]))


def _column(data: pa.RecordBatch, name: str) -> pa.Array:
    return data.column(data.schema.get_field_index(name))
