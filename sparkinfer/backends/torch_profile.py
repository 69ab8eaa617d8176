"""PyTorch's profiler around some model calls.

Runs on: worker.

Invariant: one session at a time (its caller sees to it); operators of all threads are seen, kernels too where the model is on a card and
CUPTI lets this process look.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from sparkinfer.engine.chrome_trace import folded, slices_of, within
from sparkinfer.engine.profiling import Found
from sparkinfer.profiles import Operator

__all__ = ["TorchSession", "start"]

_STEP = "sparkinfer batch "
_OPERATORS = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset")


class TorchSession:
    """Answers ``profiling.Session``."""

    def __init__(self, device: str) -> None:
        """Start."""
        self._on_card = device.startswith("cuda")
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_card else [])]
        self._profiler = profile(activities=activities, record_shapes=True, profile_memory=True, with_stack=True)
        self._profiler.start()

    def step(self, number: int) -> AbstractContextManager[Any]:
        """Mark one model call in the trace."""
        marked: AbstractContextManager[Any] = record_function(f"{_STEP}{number}")
        return marked

    def finish(self) -> Found:
        """Stop; read the table and the trace."""
        if self._on_card:
            torch.cuda.synchronize()
        self._profiler.stop()
        trace = self._trace()
        events = json.loads(trace).get("traceEvents", ())
        operators = {event["name"] for event in events if event.get("cat") in _OPERATORS}  # Python's functions are in the table too
        averages = self._profiler.key_averages(group_by_input_shape=True)
        rows = [_row(event, on_card=self._on_card) for event in averages if event.key in operators]
        calls = slices_of(events, lambda event: event.get("cat") == "user_annotation" and str(event["name"]).startswith(_STEP))
        frames = slices_of(events, lambda event: event.get("cat") in (*_OPERATORS, "python_function"))
        stacks = folded(within(frames, calls))
        seen = not self._on_card or any(row.self_device_us for row in rows)
        blind = "the model ran on a card, but no kernel was seen: another profiler has it, or this process may not use CUPTI"
        return Found(rows, stacks, gzip.compress(trace, mtime=0), "chrome", () if seen else (blind,))

    def abandon(self) -> None:
        """Stop."""
        self._profiler.stop()

    def _trace(self) -> bytes:
        with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
            path = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(path))
            # not all that PyTorch writes is UTF-8 (seen with 2.13)
            return path.read_bytes().decode("utf-8", errors="replace").encode()


def start(device: str) -> TorchSession:
    """Start the profiler for a model on a device."""
    return TorchSession(device)


def _row(event: Any, *, on_card: bool) -> Operator:
    shapes = " ".join("x".join(map(str, shape)) for shape in event.input_shapes or () if shape and isinstance(shape, list))
    return Operator(
        name=event.key,
        shapes=shapes[:120],
        calls=int(event.count),
        self_cpu_us=float(event.self_cpu_time_total),
        total_cpu_us=float(event.cpu_time_total),
        self_device_us=_device(event, "self_device_time_total", "self_cuda_time_total") if on_card else None,
        total_device_us=_device(event, "device_time_total", "cuda_time_total") if on_card else None,
        self_cpu_bytes=float(event.self_cpu_memory_usage),
        self_device_bytes=_device(event, "self_device_memory_usage", "self_cuda_memory_usage") if on_card else None,
    )


def _device(event: Any, name: str, older: str) -> float:
    """Read a figure of the device: ``cuda`` stood in the names up to torch 2.3."""
    return float(getattr(event, name) if hasattr(event, name) else getattr(event, older))
