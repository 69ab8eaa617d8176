"""Batches that do not fit into memory: cut in halves until they do, and remembered for the next ones.

Runs on: worker.

Invariant: no row is lost or scored twice in the result; what does not fit for one row alone is an error that says so.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from sparkinfer.engine.batch import Fault
from sparkinfer.exceptions import PredictError

__all__ = ["OutOfMemoryFault", "fitting", "is_device_lost", "is_out_of_memory", "most_rows"]

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


_LOST = re.compile("CUDA error: (device-side assert|an illegal memory access|unspecified launch failure|misaligned address)")


def is_device_lost(error: BaseException) -> bool:
    """Tell an error after which every call of this process on the device fails: no row's, though a row may have brought it about."""
    return _LOST.search(str(error)) is not None


_PATIENCE = 32  # calls that fit before a larger one is tried again: what did not fit may have been one long row


@dataclass
class _Ceiling:
    """The most rows that are sent to a loaded model at once."""

    rows: int
    fitted: int = 0
    patience: int = _PATIENCE
    rose: bool = False

    def lower(self, rows: int) -> None:
        """Take fewer: these did not fit. A rise that was in vain is not tried again so soon."""
        self.patience *= 4 if self.rose else 1
        self.rows, self.fitted, self.rose = max(1, min(self.rows, rows // 2)), 0, False

    def fits(self, rows: int) -> None:
        """Let the ceiling rise, after many calls that fitted."""
        if rows < self.rows:
            return
        self.fitted += 1
        if self.fitted >= self.patience:
            self.rows, self.fitted, self.rose = 2 * self.rows, 0, True


_ceilings: WeakKeyDictionary[Any, _Ceiling] = WeakKeyDictionary()  # loaded model -> its ceiling, once a call did not fit


def most_rows(model: Any) -> int | None:
    """Give the rows that are sent to a loaded model at most; ``None`` where every call fitted so far."""
    ceiling = _ceilings.get(model)
    return None if ceiling is None else ceiling.rows


def fitting(
    score: Callable[[int, int], list[pa.Array]], start: int, stop: int, *, model: Any, device: Callable[[], str], cut: Callable[[int], None]
) -> list[pa.Array]:
    """Score the rows from ``start`` to before ``stop`` in pieces that fit into memory.

    Args:
        score: scores the rows between two numbers; raises ``OutOfMemoryFault`` where they are too many.
        start: the first row.
        stop: the row after the last.
        model: the loaded model, whose ceiling is kept for as long as it is loaded; called from one thread.
        device: names where it runs, and with how many others, for messages.
        cut: is told to how many rows the batch had to be cut, if it had to be.

    Returns:
        The output columns.

    Raises:
        Fault: not even one row fits; or what ``score`` raises, its row counted from ``start``.
    """
    pieces: list[list[pa.Array]] = []
    at = start
    before = replace(_ceilings[model]) if model in _ceilings else None
    while at < stop:
        ceiling = _ceilings.get(model)
        size = stop - at if ceiling is None else min(stop - at, ceiling.rows)
        try:
            pieces.append(score(at, at + size))
        except OutOfMemoryFault as fault:
            if size == 1:
                _restore(model, before)  # it was not the number of rows
                raise _hopeless(fault, at - start, stop - start, device()) from fault.__cause__
        except Fault as fault:
            if fault.row is not None:
                fault.row += at - start
            raise
        else:
            at += size
            if ceiling is not None:
                ceiling.fits(size)
            continue
        _ceilings.setdefault(model, _Ceiling(size)).lower(size)
        gc.collect()  # the failed call's arrays may hang in cycles of its traceback's frames, which have just been let go
    if len(pieces) == 1:
        return pieces[0]
    cut(_ceilings[model].rows if model in _ceilings else stop - start)
    return [pa.concat_arrays(list(column)) for column in zip(*pieces, strict=True)]


def _restore(model: Any, before: _Ceiling | None) -> None:
    if before is None:
        _ceilings.pop(model, None)
    else:
        _ceilings[model] = before


def _hopeless(fault: Fault, row: int, rows: int, device: str) -> Fault:
    text = (
        f"{fault.text}, for a single row (of a batch of {rows}) on {device}: give the worker more memory, let fewer tasks share it "
        "(tasks_per_gpu, spark.task.resource.gpu.amount, spark.executor.cores), or take a smaller model"
    )
    return Fault(PredictError, text, row=row)
