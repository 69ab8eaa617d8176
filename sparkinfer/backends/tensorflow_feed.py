"""Feed a TensorFlow model through a tf.data pipeline.

Runs on: worker.

Invariant: batches, failures and the source's own error come out in the source's order; nobody pulls the source once the feed is
left.

What is in flight, for ``prefetch_batches=2`` (`>` is a thread's border)::

    source, prepare ── from_generator ── map (traced functions) ── prefetch 2  >  consumer
                                           num_workers, in order     2 ready       1 at the model
            └── Fed values wait in ``passed``, beside the tensors ──────────────────────┘

Plain columns, with no function of the user's, need no pipeline: a thread reads ahead (``engine/prefetch.py``), at a third of the cost.

For a card, the thread that reads ahead also copies: the plain columns' own, or one behind the pipeline that holds one batch more. tf.data's
own ``prefetch_to_device`` copies all of a batch or nothing: text cannot go, and integers are compared and cast on the host first.

Tensors alone go through tf.data. It would turn an exception into the text of an ``UnknownError``, so errors, failures and batches
without rows go around it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf

from sparkinfer.backends.tensorflow_arrays import portable
from sparkinfer.backends.tensorflow_setup import place_of
from sparkinfer.backends.tensorflow_traced import TracedFunction
from sparkinfer.engine.batch import Failure, Fault, Fed, Inputs
from sparkinfer.engine.pool import prepare_in_processes
from sparkinfer.engine.prefetch import Gate, read_ahead
from sparkinfer.engine.room import fed_bytes, shares
from sparkinfer.engine.stopwatch import QueueMeter
from sparkinfer.exceptions import PreprocessError

if TYPE_CHECKING:
    import numpy as np

    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch

__all__ = ["feed"]

Specs = tuple[tf.TensorSpec, ...]
_HOST = "/CPU:0"
_COPIED = (tf.uint8, tf.int8, tf.bool, tf.float16, tf.bfloat16, tf.float32, tf.float64)
"""What goes to a card ahead of the model. Other integers are small, and the model may take another width of them, which is checked on the host."""


@contextmanager
def feed(
    source: Iterator[Batch],
    prepare: Any,
    config: InferenceConfig,
    device: str,
    meter: QueueMeter | None = None,
) -> Iterator[Iterator[Fed]]:
    """Prepare the batches ahead of the model, in order; see ``Backend.feed``.

    Args:
        source: batches in order; pulled by tf.data's thread.
        prepare: the step; if it is ``traceable`` also ``columns`` and one of ``traced_row`` and ``traced_batch``.
        config: ``num_workers`` loader processes, or parallel calls of a traced function; ``prefetch_batches`` wait ready.
        device: where the model is. For a card, floats and bytes are copied there ahead of the model, unless nothing is to be ahead.
        meter: is told of the batches that wait ready.
    """
    place = place_of(device) if config.prefetch_batches else _HOST
    with ExitStack() as stack:
        fed: Iterator[Fed]
        ahead_bytes = config.max_in_flight_bytes
        if prepare.traceable:
            fed = (Fed(batch, prepare.columns(batch.data)) for batch in source)
        elif prepare.plain and not config.num_workers:
            fed = (_as_tensors(_as_numpy(Fed(batch, prepare(batch.data))), place) for batch in source)
            if config.prefetch_batches:
                fed = stack.enter_context(read_ahead(fed, config.prefetch_batches, meter, Gate(config.max_in_flight_bytes, fed_bytes)))
            yield fed
            return
        elif config.num_workers:
            out_bytes, ahead_bytes = shares(config.max_in_flight_bytes, config.num_workers, config.prefetch_batches)
            limits: dict[str, Any] = {"timeout_seconds": config.preprocess_timeout_seconds, "most_bytes": out_bytes}
            fed = stack.enter_context(prepare_in_processes(source, prepare, config.num_workers, depth=1, **limits))
        else:
            fed = (Fed(batch, prepare(batch.data)) for batch in source)
        reader = _Reader(fed, Gate(max(1, ahead_bytes), fed_bytes))
        last = meter if place == _HOST else None
        batches: Iterator[Fed] = stack.enter_context(closing(_batches(reader, prepare, config, last or QueueMeter())))
        stack.callback(reader.leave)  # comes first on the way out: then no new pull can begin while tf.data shuts down
        if place != _HOST:
            batches = stack.enter_context(read_ahead((_as_tensors(item, place) for item in batches), 1, meter))
        yield batches


class _Reader:
    """Pulls prepared batches on one thread at a time, and none once it is left."""

    def __init__(self, fed: Iterator[Fed], gate: Gate[Fed]) -> None:
        self._fed = fed
        self.gate = gate
        self._back: Fed | None = None
        self._left = False
        self._lock = Lock()

    def pull(self) -> Fed | None:
        with self._lock:
            if self._left:
                return None
            back, self._back = self._back, None
            if back is not None:
                return back
            item = next(self._fed, None)
        return None if item is None else _as_numpy(item)

    def push_back(self, item: Fed) -> None:
        self._back = item

    def leave(self) -> None:
        self._left = True
        self.gate.abandon()
        with self._lock:  # a pull that is under way cannot be interrupted and is waited for
            return


def _as_numpy(item: Fed) -> Fed:
    if isinstance(item.inputs, Failure):
        return item
    try:
        arrays = {name: portable(name, array) for name, array in item.inputs.arrays.items()}
    except Fault as fault:
        return Fed(item.batch, Failure.of(fault))
    return Fed(item.batch, replace(item.inputs, arrays=arrays))


def _as_tensors(item: Fed, place: str) -> Fed:
    if isinstance(item.inputs, Failure):
        return item
    begun = time.perf_counter()
    with tf.device(_HOST):  # where tf.data, too, leaves them
        arrays = {name: tf.convert_to_tensor(array) for name, array in item.inputs.arrays.items()}
    if place != _HOST:
        arrays = {name: _copied(tensor, place) if tensor.dtype in _COPIED else tensor for name, tensor in arrays.items()}
    return Fed(item.batch, replace(item.inputs, arrays=arrays, seconds={**item.inputs.seconds, "transfer": time.perf_counter() - begun}))


def _copied(tensor: tf.Tensor, place: str) -> tf.Tensor:
    try:
        with tf.device(place):
            return tf.identity(tensor)
    except tf.errors.OpError:  # no room ahead of the model: its own call finds out whether there is any
        return tensor


def _batches(reader: _Reader, prepare: Any, config: InferenceConfig, meter: QueueMeter) -> Generator[Fed, None, None]:
    """Run one segment after another: a new one begins after a failure, or where dtype or rank change."""
    names: tuple[str, ...] = ()
    specs: Specs = ()
    while (first := reader.pull()) is not None:
        if isinstance(first.inputs, Failure) or not first.inputs.arrays:
            yield first
            continue
        names = names or tuple(first.inputs.arrays)
        if set(first.inputs.arrays) != set(names):
            yield Fed(first.batch, _renamed(list(first.inputs.arrays), list(names)))
            continue
        specs = _specs([first.inputs.arrays[name] for name in names], specs, static=prepare.traceable)
        traced = TracedFunction.of(prepare, first.inputs.style, names) if prepare.traceable else None
        try:
            pipeline = _pipeline(traced, specs, config.num_workers, config.prefetch_batches)
        except Exception as error:  # tracing runs the user's function, and anything may happen in it
            if traced is None:
                raise
            yield Fed(first.batch, traced.failure(error))
            continue
        yield from _Segment(reader, first, names, specs, meter).run(pipeline, traced)


def _rows(item: Fed) -> int:
    """Count the rows that the model is to see: none of an empty batch, nor of one whose rows are all bad."""
    rows: int = item.batch.data.num_rows
    return rows - len(getattr(item.inputs, "bad", ()))


def _renamed(came: list[str], expected: list[str]) -> Failure:
    text = f"expected the inputs {expected}, as in the first batch, but {came} came: give the same names for every batch"
    return Failure(PreprocessError, text)


def _dtype(array: np.ndarray) -> tf.DType:
    return tf.string if array.dtype == object else tf.as_dtype(array.dtype)


def _specs(arrays: list[np.ndarray], before: Specs, *, static: bool) -> Specs:
    """Leave the batch axis free, and the others too, except that a traced function may need those that never changed."""
    shapes = [tf.TensorShape([None, *(array.shape[1:] if static else [None] * (array.ndim - 1))]) for array in arrays]
    specs = tuple(tf.TensorSpec(shape, _dtype(array)) for shape, array in zip(shapes, arrays, strict=True))
    if [(spec.dtype, spec.shape.rank) for spec in specs] != [(spec.dtype, spec.shape.rank) for spec in before]:
        return specs
    return tuple(
        tf.TensorSpec(spec.shape.most_specific_compatible_shape(old.shape), spec.dtype) for spec, old in zip(specs, before, strict=True)
    )


class _Segment:
    """One run of a pipeline: batches whose tensors are of one kind."""

    def __init__(self, reader: _Reader, first: Fed, names: tuple[str, ...], specs: Specs, meter: QueueMeter) -> None:
        self._reader = reader
        self._first = first
        self._names = names
        self._specs = specs
        self._meter = meter
        self._passed: deque[Fed] = deque()  # those that went into the dataset, or by it, and have not come out
        self._error: BaseException | None = None

    def run(self, pipeline: _Pipeline, traced: TracedFunction | None) -> Iterator[Fed]:
        with pipeline.lock:  # until the generator has begun, and so has taken this segment
            pipeline.segment = self
            iterator = iter(pipeline.dataset)
            made = self._next(iterator, traced)
        try:
            while made is not None:
                while not _rows(self._passed[0]):
                    yield self._passed.popleft()
                self._meter.got()
                taken = self._passed.popleft()
                self._reader.gate.taken(fed_bytes(taken))
                yield Fed(taken.batch, made)
                made = self._next(iterator, traced)
        finally:
            del iterator  # closes the generator and joins tf.data's threads
        yield from self._passed
        if self._error is not None:
            raise self._error

    def _next(self, iterator: Iterator[Any], traced: TracedFunction | None) -> Inputs | Failure | None:
        try:
            element = next(iterator)
        except StopIteration:
            return None
        except tf.errors.OpError as error:  # of one element; tf.data goes on with the next one
            if traced is None or not self._passed:
                raise
            return traced.failure(error)
        item = next(item for item in list(self._passed) if _rows(item))  # a copy: the other thread appends
        if traced is not None:
            return traced.inputs(element, _rows(item), cast("Inputs", item.inputs).bad)
        return replace(cast("Inputs", item.inputs), arrays=dict(zip(self._names, element, strict=True)))

    def elements(self) -> Iterator[tuple[np.ndarray, ...]]:
        item: Fed | None = self._first
        while item is not None:
            if isinstance(item.inputs, Failure) or not self._fits(item):
                self._reader.push_back(item)
                return
            self._passed.append(item)
            if _rows(item):
                self._reader.gate.made(item)
                begun = self._meter.putting()
                yield tuple(item.inputs.arrays[name] for name in self._names)
                self._reader.gate.wait()  # for bytes, where tf.data has room for one more
                self._meter.put(begun)  # the generator rested while what is ready filled the pipeline
            try:
                item = self._reader.pull()
            except BaseException as error:  # noqa: BLE001 - raised in the consumer, after the batches before it
                self._error = error
                return

    def _fits(self, item: Fed) -> bool:
        if not _rows(item):
            return True
        arrays: Mapping[str, np.ndarray] = getattr(item.inputs, "arrays", {})
        return set(arrays) == set(self._names) and all(
            _dtype(arrays[name]) == spec.dtype and spec.shape.is_compatible_with(arrays[name].shape)
            for name, spec in zip(self._names, self._specs, strict=True)
        )


class _Pipeline:
    """A dataset that is run for one segment after another.

    It is kept for the next partition: making one takes a tenth of a second, and TensorFlow never lets go of a generator that it was
    given (2.21 keeps its callbacks with the process's default graph).
    """

    def __init__(self, traced: TracedFunction | None, specs: Specs, num_workers: int, prefetch_batches: int) -> None:
        self.lock = Lock()
        self.segment: _Segment | None = None
        dataset = tf.data.Dataset.from_generator(self._elements, output_signature=specs)
        if traced is not None:
            calls = max(1, num_workers) if prefetch_batches else None
            dataset = dataset.map(traced.bind(specs), num_parallel_calls=calls, deterministic=None if calls is None else True)
        dataset = dataset.with_options(_options(num_workers))
        self.dataset = dataset.prefetch(prefetch_batches) if prefetch_batches else dataset

    def _elements(self) -> Iterator[tuple[np.ndarray, ...]]:
        segment, self.segment = self.segment, None
        return segment.elements() if segment is not None else iter(())


@lru_cache(maxsize=8)
def _pipeline(traced: TracedFunction | None, specs: Specs, num_workers: int, prefetch_batches: int) -> _Pipeline:
    return _Pipeline(traced, specs, num_workers, prefetch_batches)


def _options(num_workers: int) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False  # what waits ahead is prefetch_batches, no more
    # threads of its own: the generator blocks one, and a model with one inter-op thread would wait for it
    options.threading.private_threadpool_size = num_workers + 2
    return options
