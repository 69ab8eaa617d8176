"""Batches that do not fit into memory: cut in halves until they do, and remembered for the next ones.

Runs on: worker.

Invariant: no row is lost or scored twice in the result; what does not fit for one row alone is an error that says so.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from sparkinfer.engine.batch import Fault
from sparkinfer.exceptions import PredictError

__all__ = ["OutOfMemoryFault", "ceiling_of", "fitting", "is_out_of_memory"]

_KINDS = ("OutOfMemoryError", "ResourceExhaustedError")  # torch's, CUDA's other bindings', TensorFlow's
# what libraries below the frameworks say instead: a plan or a workspace that found no memory
_DISGUISES = re.compile(
    "out of memory|can't allocate memory|(CUDNN|CUBLAS|CUSPARSE|CUSOLVER)_STATUS_ALLOC_FAILED|OOM when allocating|std::bad_alloc",
    re.IGNORECASE,
)


class OutOfMemoryFault(Fault):
    """The model ran out of memory: the same rows may fit in smaller batches."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell an error of too little memory, on the host or on a device, from any other.

    Example:
        >>> is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
        True
        >>> is_out_of_memory(ValueError("shapes do not match"))
        False
    """
    if isinstance(error, MemoryError) or type(error).__name__ in _KINDS:
        return True
    return isinstance(error, RuntimeError) and _DISGUISES.search(str(error)) is not None


_lock = Lock()
_ceilings: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # loaded model -> rows that fitted, once more did not


def ceiling_of(model: Any) -> int | None:
    """Give the most rows that are sent to a loaded model at once; ``None`` while it has not run out of memory."""
    with _lock:
        return _ceilings.get(model)


def fitting(score: Callable[[int, int], list[pa.Array]], start: int, stop: int, model: Any, device: str) -> list[pa.Array]:
    """Score the rows from ``start`` to before ``stop`` in pieces that fit into memory.

    Args:
        score: scores the rows between two numbers; raises ``OutOfMemoryFault`` where they are too many.
        start: the first row.
        stop: the row after the last.
        model: the loaded model, whose ceiling is kept for as long as it is loaded.
        device: where it runs, for messages.

    Returns:
        The output columns.

    Raises:
        Fault: not even one row fits.
    """
    pieces: list[list[pa.Array]] = []
    at = start
    while at < stop:
        size = min(stop - at, ceiling_of(model) or stop - at)
        try:
            pieces.append(score(at, at + size))
            at += size
        except OutOfMemoryFault as fault:
            if size == 1:
                text = (
                    f"{fault.text}, for a single row on {device}: give the worker more memory, let fewer tasks share {device} "
                    "(spark.task.resource.gpu.amount, spark.executor.cores), or take a smaller model"
                )
                raise Fault(PredictError, text, row=at - start) from fault.__cause__
            with _lock:
                _ceilings[model] = max(1, size // 2)
            gc.collect()  # the failed call's arrays may hang in its traceback's frames
    return pieces[0] if len(pieces) == 1 else [pa.concat_arrays(list(column)) for column in zip(*pieces, strict=True)]
