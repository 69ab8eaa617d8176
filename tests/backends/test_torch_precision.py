"""precision= for PyTorch models: what is computed, what comes back, and what is refused; and a module that spreads itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import sparkinfer as si
from sparkinfer.backends import torch as backend
from sparkinfer.backends.torch_model import is_spread
from sparkinfer.exceptions import ConfigError
from sparkinfer.planning import describe

X = np.linspace(-3, 3, 32, dtype=np.float32).reshape(8, 4)


class Seen(nn.Module):
    """A product in the precision of the call, with its dtype beside it: 1 for bfloat16."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 2, dtype=dtype)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.linear(x)
        return {"y": y, "half": torch.full((len(x),), float(y.dtype == torch.bfloat16))}


def score(module: nn.Module, **said: Any) -> pa.Table:
    table = pa.table({"x": list(X)})
    outputs = "y array<float>, half float"
    return si.predict_local(table, si.TorchModel(module), inputs="x", outputs=outputs, keep=[], batch_size=3, device="cpu", **said)


def test_bf16_computes_in_half_width_and_gives_floats() -> None:
    """NumPy has no bfloat16: the answers come as float32, within its 8 bits of the model's own, and are not the same."""
    exact, half = score(Seen()), score(Seen(), precision="bf16")
    assert (set(exact["half"].to_pylist()), set(half["half"].to_pylist())) == ({0.0}, {1.0})
    apart = np.abs(np.array(exact["y"].to_pylist()) - np.array(half["y"].to_pylist()))
    assert 0 < apart.max() < 0.05


def test_a_model_at_another_precision_is_another_model() -> None:
    """Both in one process, in turn: neither gets the other's answers, and torch's switch is back."""
    module = Seen()
    seen = [set(score(module, precision=said)["half"].to_pylist()) for said in ("bf16", "fp32", "bf16")]
    assert seen == [{1.0}, {0.0}, {1.0}]
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("precision", "dtype", "told"),
    [
        ("tf32", torch.float32, "precision is 'tf32', and the model runs on 'cpu', expected a CUDA card: take 'fp32'"),
        ("fp16", torch.float32, "precision is 'fp16', and the model runs on 'cpu', expected a CUDA card: take 'bf16'"),
        ("bf16", torch.float64, "precision is 'bf16', but the model's weights are float64, expected float32"),
    ],
)
def test_what_device_or_model_cannot_have_is_refused(precision: str, dtype: torch.dtype, told: str) -> None:
    """Never another precision than the one that was asked for."""
    with pytest.raises(ConfigError, match=told):
        score(Seen(dtype), precision=precision)


def test_other_backends_say_where_their_precision_is_decided() -> None:
    """On the driver, before any job."""
    model = si.PythonModel(lambda: lambda x: x)
    with pytest.raises(ConfigError, match=r"precision is 'bf16', and the backend 'numpy' .* leave precision out"):
        si.predict_local(pa.table({"x": [1.0]}), model, inputs="x", outputs="y float", precision="bf16")


def test_a_module_on_two_devices_is_left_there() -> None:
    """A model that its own factory splits must not be gathered on one card."""
    spread = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    assert (is_spread(spread), is_spread(spread[0]), is_spread(lambda x: x)) == (True, False, False)


def test_a_module_on_two_devices_has_no_calls_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """One card's streams would not wait for the other device's copies: it is called batch by batch."""
    spread = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    monkeypatch.setattr(backend, "_read", lambda *_: spread)
    loaded = backend.BACKEND.load(describe(si.TorchModel(nn.Linear(2, 2))), {}, "cuda:0", 1)
    assert not hasattr(loaded, "start")
