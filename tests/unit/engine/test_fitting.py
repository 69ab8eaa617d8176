"""Out of memory: batches are cut until they fit, the ceiling is remembered, and no row is lost."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import sparkinfer as si
from sparkinfer.engine.fitting import is_out_of_memory
from sparkinfer.engine.partition import run_partition
from sparkinfer.engine.recorder import Recorder
from sparkinfer.exceptions import PredictError
from tests.unit.engine.test_partition import chunks, plan


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class Small:
    """A model whose memory holds ``most`` rows."""

    def __init__(self, most: int, error: Exception | None = None, sizes: list[int] | None = None) -> None:
        self.most = most
        self.error = error or OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.sizes = [] if sizes is None else sizes

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.sizes.append(len(x))
        if len(x) > self.most:
            raise self.error
        return 2 * x


SIZES: list[int] = []


def load_small() -> Small:
    """A loader that travels by reference, so that the test sees what its model saw."""
    return Small(4, sizes=SIZES)


def test_a_batch_that_does_not_fit_is_halved_and_the_ceiling_remembered() -> None:
    """C37: 40 rows in batches of 16 where 4 fit: every row once and right, the figure says 4, and later batches begin there."""
    SIZES.clear()
    recorder = Recorder()
    scored = list(run_partition(plan(load_small, batch_size=16), chunks(40), files=dict, recorder=recorder))
    assert [row["y"] for chunk in scored for row in chunk.to_pylist()] == [float(i) for i in range(40)]
    assert [16, 8, *[4] * 10] == SIZES
    assert recorder.figures()["batch_rows_fit"] == 4


def test_one_row_that_does_not_fit_is_an_error_with_the_way_out() -> None:
    """C37: it says so, with the device, the batch and what to change; the next partition in the same process works."""
    with pytest.raises(PredictError, match=r"out of memory.*for a single row on cpu: give the worker more memory.*row 0"):
        list(run_partition(plan(lambda: Small(0), batch_size=16), chunks(8), files=dict))
    assert len(list(run_partition(plan(lambda: Small(8), batch_size=8), chunks(8), files=dict))) == 1


def test_a_row_that_does_not_fit_is_a_bad_row_where_these_are_allowed() -> None:
    """on_error='null': its neighbours are scored, in smaller batches."""

    def picky(x: np.ndarray) -> np.ndarray:
        if 3 in x:
            raise MemoryError
        return x

    found = si.predict_local(
        pd.DataFrame({"x": np.arange(6)}), si.PythonModel(lambda: picky), inputs="x", outputs="y long", on_error="null"
    )
    assert found["y"].isna().tolist() == [False, False, False, True, False, False]
    assert found["error"].iloc[3]["type"] == "MemoryError"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("x"), True),
        (type("ResourceExhaustedError", (Exception,), {})("OOM when allocating tensor"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_an_error_of_memory_is_told_from_others(error: Exception, told: bool) -> None:
    """By its kind or, where libraries below the framework disguise it, by its words."""
    assert is_out_of_memory(error) is told
