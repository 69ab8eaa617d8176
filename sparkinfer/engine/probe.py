"""What a diagnosis runs on a worker beside the loop itself: a source that is only read, rows that only travel, a model that is only called.

Runs on: worker (or in any process).

Invariant: none of it writes anywhere, and what it gives back is a few figures, or the rows as they came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sparkinfer.engine.batch import Batch, Failure
from sparkinfer.engine.encode import encode_outputs
from sparkinfer.engine.model_cache import process_models
from sparkinfer.engine.partition import backend_named
from sparkinfer.exceptions import PredictError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.contracts import LoadedModel
    from sparkinfer.engine.partition import Files, PartitionPlan
    from sparkinfer.engine.recorder import NoRecorder

__all__ = ["Called", "Pulled", "call_model", "pass_on", "pull", "within"]

_LEAST_CALLS, _MOST_CALLS = 3, 1000


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What reading took.

    Attributes:
        rows: that came.
        bytes: of them.
        seconds: of waiting for them.
        ended: whether there were no more.
    """

    rows: int
    bytes: int
    seconds: float
    ended: bool


@dataclass(frozen=True, kw_only=True)
class Called:
    """What the model took, on one batch again and again.

    Attributes:
        seconds: of a call, the median, by its rows.
        postprocess: seconds for a row.
        encode: seconds for a row.
        load: seconds of the load, with the first call.
    """

    seconds: Mapping[int, float]
    postprocess: float
    encode: float
    load: float


def within(chunks: Iterator[pa.RecordBatch], most_rows: int | None, seconds: float | None = None) -> Iterator[pa.RecordBatch]:
    """Pass whole chunks on until there were enough rows, or the time is up."""
    rows, begun = 0, time.perf_counter()
    for chunk in chunks:
        yield chunk
        rows += chunk.num_rows
        if (most_rows is not None and rows >= most_rows) or (seconds is not None and time.perf_counter() - begun >= seconds):
            return


def pull(chunks: Iterator[pa.RecordBatch], most_rows: int, seconds: float) -> Pulled:
    """Read, and nothing else."""
    rows = size = 0
    begun = time.perf_counter()
    while rows < most_rows and time.perf_counter() - begun < seconds:
        chunk = next(chunks, None)
        if chunk is None:
            return Pulled(rows=rows, bytes=size, seconds=time.perf_counter() - begun, ended=True)
        rows, size = rows + chunk.num_rows, size + chunk.nbytes
    return Pulled(rows=rows, bytes=size, seconds=time.perf_counter() - begun, ended=False)


def pass_on(plan: PartitionPlan, chunks: Iterator[pa.RecordBatch], recorder: NoRecorder) -> Iterator[pa.RecordBatch]:
    """Give kept columns back, and nulls for the outputs: what travelling alone takes."""
    for chunk in recorder.chunks(chunks):
        recorder.lap("input_wait")
        nulls = [pa.nulls(chunk.num_rows, field.type) for field in plan.output_schema]
        out = pa.RecordBatch.from_arrays(
            [*(chunk.column(name) for name in plan.keep), *nulls], names=[*plan.keep, *plan.output_schema.names]
        )
        recorder.put_out(out)
        recorder.lap("encode")
        yield out
        recorder.lap("output_wait")
    recorder.lap("input_wait")


def call_model(
    plan: PartitionPlan,
    data: pa.RecordBatch,
    *,
    files: Callable[[], Files],
    sizes: Sequence[int],
    seconds: float,
    cpus: int,
    card: int | None,
) -> Called:
    """Call the model on one batch of each size again and again, its inputs prepared once by the backend's own feed.

    Args:
        plan: of the model.
        data: at least one row; repeated to the sizes.
        files: gives the model's files.
        sizes: rows of a call; one that the model fails on is left out, but for the first.
        seconds: for all of them.
        cpus: the task's CPUs.
        card: the task's card.

    Raises:
        PredictError: the rows cannot be prepared, or the model fails on the first size.
    """
    backend = backend_named(plan.model.backend)
    device = backend.resolve_device(plan.config.device)
    if plan.config.device in ("auto", "cuda") and card is not None and device.startswith("cuda"):
        device = backend.resolve_device(f"cuda:{card}")
    threads = plan.config.threads or cpus
    alone = replace(plan.config, num_workers=0, prefetch_batches=0)
    found = files()
    begun = time.perf_counter()
    with process_models.borrow(
        (plan.model.fingerprint, device, threads),
        lambda: backend.load(plan.model, found, device, threads),
        max(1, plan.config.models_per_worker),
    ) as model:
        load = time.perf_counter() - begun
        took: dict[int, float] = {}
        after: list[tuple[float, float]] = []
        for size in sizes:
            batch = Batch(0, _repeated(data, size), range(size))
            try:
                with backend.feed(iter((batch,)), plan.prepare, alone, device, None) as fed:
                    inputs = _prepared(next(iter(fed)).inputs)
                    medians = _timed(plan, model, inputs, seconds / len(sizes))
            except Exception as error:
                if not took:
                    if isinstance(error, PredictError):
                        raise
                    msg = f"the model could not be called on {size} rows alone: {type(error).__name__}: {error}"
                    raise PredictError(msg) from error
                continue
            took[size] = medians[0]
            after.append((medians[1] / size, medians[2] / size))
    return Called(seconds=took, postprocess=after[0][0], encode=after[0][1], load=load)


def _prepared(inputs: Inputs | Failure) -> Inputs:
    if isinstance(inputs, Failure):
        msg = f"the sample's first rows cannot be prepared: {inputs.text}"
        raise PredictError(msg)
    return inputs


def _timed(plan: PartitionPlan, model: LoadedModel, inputs: Inputs, seconds: float) -> tuple[float, ...]:
    """Give the medians of a call, of postprocess and of encoding; the first round is not counted."""
    laps: list[tuple[float, float, float]] = []
    postprocess = loads(plan.postprocess, "postprocess") if plan.postprocess else None
    until = time.perf_counter() + seconds
    while len(laps) < _MOST_CALLS and (len(laps) <= _LEAST_CALLS or time.perf_counter() < until):
        begun = time.perf_counter()
        result: Any = model.predict(inputs)
        called = time.perf_counter()
        if postprocess is not None:
            result = postprocess(result)
        done = time.perf_counter()
        encode_outputs(result, plan.outputs, len(next(iter(inputs.arrays.values()))))
        laps.append((called - begun, done - called, time.perf_counter() - done))
    return tuple(float(value) for value in np.median(np.array(laps[1:]), axis=0))


def _repeated(data: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    return data if data.num_rows == rows else data.take(pa.array(np.arange(rows) % data.num_rows))
