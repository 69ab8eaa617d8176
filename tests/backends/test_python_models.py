"""Python models: any loader, called by style, with NumPy in and NumPy out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkinfer.backends.numpy import BACKEND
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.batch import Batch, Inputs
from sparkinfer.exceptions import ConfigError, ModelLoadError
from sparkinfer.models import PythonModel
from sparkinfer.testing import EchoModel, Ledger

A, B = np.arange(3), np.arange(3.0)


def _load(model: PythonModel) -> Any:
    plan = model.describe()
    return BACKEND.load(plan, {}, BACKEND.resolve_device("auto"), 1)


class Closing:
    """A model with ``predict`` and ``close``; both leave a line."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Double."""
        return x * 2

    def close(self) -> None:
        """Leave a line."""
        self.ledger.write("close")


class Tensor:
    """Looks like a torch tensor that needs a gradient and lies on a card: only a detached one on the CPU gives an array."""

    def __init__(self, where: str = "cuda") -> None:
        self.where = where

    def detach(self) -> Tensor:
        """Give one without a gradient."""
        return Tensor("detached")

    def cpu(self) -> Tensor:
        """Give one on the CPU."""
        return Tensor(self.where + " cpu")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        assert self.where == "detached cpu"
        return A


def test_a_model_is_called_by_style() -> None:
    """One array, arrays by position, arrays by name."""
    loaded = _load(PythonModel(EchoModel()))
    assert loaded.predict(Inputs("single", {"x": A})) is A
    first, second = loaded.predict(Inputs("positional", {"x": A, "y": B}))
    assert first is A
    assert second is B
    assert list(loaded.predict(Inputs("named", {"y": B, "x": A}))) == ["y", "x"]


def test_an_object_is_called_by_predict_and_closed_once(tmp_path: Path) -> None:
    """The worker's cache lets go of it: ``close`` is called, and the model cannot be called any more."""
    ledger = Ledger(str(tmp_path))
    loaded = _load(PythonModel(lambda: Closing(ledger)))
    assert loaded.predict(Inputs("single", {"x": A})).tolist() == [0, 2, 4]
    loaded.release()
    assert ledger.count("close") == 1
    with pytest.raises(RuntimeError, match="released"):
        loaded.predict(Inputs("single", {"x": A}))


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"a": t}, lambda t: (t, t), lambda t: [t]])
def test_tensors_of_any_framework_become_arrays(wrap: Callable[[Any], Any]) -> None:
    """Detached and copied to the CPU first, alone or inside a mapping or a sequence."""
    result = _load(PythonModel(lambda: lambda x: wrap(Tensor()))).predict(Inputs("single", {"x": A}))
    first = next(iter(result.values() if isinstance(result, dict) else result)) if isinstance(result, (dict, list, tuple)) else result
    assert isinstance(first, np.ndarray)
    assert first.tolist() == [0, 1, 2]


def test_a_loader_that_fails_or_gives_no_model_is_told() -> None:
    """The user's own error is in the text, and chained."""

    def broken() -> Any:
        raise OSError("disk gone")

    with pytest.raises(ModelLoadError, match="raised OSError: disk gone") as caught:
        _load(PythonModel(broken))
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(ModelLoadError, match="expected a function of arrays"):
        _load(PythonModel(lambda: 3))


def test_a_device_is_the_loaders_own_choice() -> None:
    """A card asked for by name would be ignored: it is refused."""
    with pytest.raises(ConfigError, match="choose it in load"):
        BACKEND.resolve_device("cuda:0")


@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_the_feed_keeps_the_order_and_pulls_nothing_before_it_is_asked(prefetch_batches: int) -> None:
    """On a thread or without one."""
    pulled: list[int] = []
    data = pa.RecordBatch.from_pydict({"x": A})

    class Step:
        fingerprint = "ids"
        traceable = False
        plain = False
        tolerant = False
        only_column = None

        def __call__(self, data: pa.RecordBatch) -> Inputs:
            return Inputs("single", {"x": data.column(0).to_numpy()})

    def source() -> Any:
        for i in range(5):
            pulled.append(i)
            yield Batch(i, data, range(i * 3, i * 3 + 3))

    with BACKEND.feed(source(), Step(), InferenceConfig(prefetch_batches=prefetch_batches), "cpu") as fed:
        assert pulled == []
        assert [item.batch.index for item in fed] == [0, 1, 2, 3, 4]
