"""Out of memory: batches are cut until they fit, the ceiling is remembered, and no row is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import sparkinfer as si
from sparkinfer.engine.fitting import _Ceiling, is_out_of_memory
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


def test_a_fault_behind_a_cut_names_its_own_row() -> None:
    """A value that does not fit its column is told in its place in the batch, not in the piece."""

    def small(x: np.ndarray) -> np.ndarray:
        if len(x) > 4:
            raise MemoryError
        return x

    data = pd.DataFrame({"id": range(8), "x": [0, 1, 2, 3, 4, 5, 1e12, 7]})
    arguments: dict[str, Any] = {"inputs": "x", "outputs": "y int", "batch_size": 8}
    found = si.predict_local(data, si.PythonModel(lambda: small), on_error="null", **arguments)
    assert found["y"].isna().tolist() == [row == 6 for row in range(8)]
    with pytest.raises(si.OutputError, match=r"row 6 \(id=6\)"):
        si.predict_local(data, si.PythonModel(lambda: small), key="id", **arguments)


def test_one_poisoned_row_does_not_make_later_batches_small() -> None:
    """Where a single row does not fit either, it was not the number of rows."""
    SIZES.clear()
    made = plan(load_poisoned, batch_size=32, on_error="null")
    scored = list(run_partition(made, chunks(256), files=dict))
    assert [row["id"] for chunk in scored for row in chunk.to_pylist() if row["y"] is None] == [26]
    assert SIZES[-7:] == [32] * 7
    assert len(SIZES) < 32


def load_poisoned() -> Any:
    """A model that has no memory for 13."""

    def predict(x: np.ndarray) -> np.ndarray:
        SIZES.append(len(x))
        if 13 in x:
            raise MemoryError
        return x

    return predict


def test_the_ceiling_rises_after_many_calls_that_fitted() -> None:
    """One long row among short ones is no reason to score single rows for ever."""
    ceiling = _Ceiling(32)
    patience = ceiling.patience
    ceiling.lower(32)
    ceiling.lower(16)
    assert (ceiling.rows, ceiling.patience) == (8, patience)  # however deep the way down was
    for _ in range(patience):
        ceiling.fits(8)
    assert ceiling.rows == 16
    ceiling.fits(3)
    assert (ceiling.rows, ceiling.fitted) == (16, 0)
    ceiling.lower(16)
    assert (ceiling.rows, ceiling.patience) == (8, 4 * patience)  # in vain


def test_a_partition_that_was_not_cut_says_nothing_of_it() -> None:
    """The advice was taken: the model's ceiling is no news."""
    SIZES.clear()
    for batch_size, told in ((16, 4), (4, None)):
        recorder = Recorder()
        list(run_partition(plan(load_small, batch_size=batch_size), chunks(40), files=dict, recorder=recorder))
        assert recorder.figures()["batch_rows_fit"] == told


def test_a_lost_device_ends_the_job() -> None:
    """After it every call fails, so that on_error='null' would write a table of nulls."""

    def lost(x: np.ndarray) -> np.ndarray:
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(PredictError, match="device-side assert"):
        si.predict_local(pd.DataFrame({"x": [1.0, 2.0]}), si.PythonModel(lambda: lost), inputs="x", outputs="y double", on_error="null")


def test_one_row_that_does_not_fit_is_an_error_with_the_way_out() -> None:
    """C37: it says so, with the device, the batch and what to change; the next partition in the same process works."""
    with pytest.raises(
        PredictError, match=r"out of memory.*for a single row \(of a batch of \d+\) on cpu: give the worker more memory.*row 0"
    ):
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
