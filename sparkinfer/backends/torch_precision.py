"""In which numbers a PyTorch model computes.

Runs on: worker.

Invariant: a precision that the device or the model cannot have is an error and not another precision; torch's own switches are as they were
after every call.

``bf16`` and ``fp16`` are torch's autocast: products and convolutions in half width, sums, norms and softmax in float32, as torch sorts them. It
takes every source (a converted module breaks where forward makes float32 tensors, and an exported graph has its types written into it) and
leaves the weights in float32, so that the memory of the model stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sparkinfer.exceptions import ConfigError

__all__ = ["at_precision", "checked_precision", "refuse_without_effect"]

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_AMPERE = (8, 0)


def checked_precision(precision: str, device: str) -> str:
    """Give the precision, where the device has it.

    Raises:
        ConfigError: it has not.
    """
    if precision in ("tf32", "fp16") and not device.startswith("cuda"):
        instead = "'fp32'" if precision == "tf32" else "'bf16'"
        msg = f"precision is {precision!r}, and the model runs on {device!r}, expected a CUDA card: take {instead} there"
        raise ConfigError(msg)
    if precision in ("tf32", "bf16") and device.startswith("cuda") and torch.cuda.get_device_capability(device) < _AMPERE:
        msg = f"precision is {precision!r}, but {torch.cuda.get_device_name(device)} ({device}) is older than Ampere, the first to have it: take 'fp16'"
        raise ConfigError(msg)
    return precision


def refuse_without_effect(precision: str, dtype: torch.dtype | None) -> None:
    """Refuse a precision that would change nothing.

    Raises:
        ConfigError: the weights are in other numbers than float32, which autocast and TF32 leave alone.
    """
    if precision != "fp32" and dtype not in (None, torch.float32):
        msg = f"precision is {precision!r}, but the model's weights are {str(dtype).removeprefix('torch.')}, expected float32: leave precision out"
        raise ConfigError(msg)


@contextmanager
def at_precision(precision: str, device_type: str) -> Iterator[None]:
    """Compute in it while the block runs."""
    if precision in _HALF:
        with torch.autocast(device_type, dtype=_HALF[precision]):
            yield
        return
    if precision != "tf32":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
