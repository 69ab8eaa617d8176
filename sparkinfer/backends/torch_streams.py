"""A PyTorch model on a card, with calls under way: copies in, computing and copies out on streams of their own.

Runs on: worker. Written against torch's documentation; not run on a card yet.

Invariant: nothing on the host waits for the card but the one who asks for a call's results, and a tensor's memory is not used again by torch
before the stream that reads it is through (``record_stream``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from sparkinfer.backends.torch_model import TorchLoaded
from sparkinfer.backends.torch_precision import at_precision
from sparkinfer.backends.torch_values import map_tensors, plain_structure, to_arrays, to_plain, to_tensor
from sparkinfer.engine.device_time import DeviceTime

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Inputs

__all__ = ["TorchOnCard"]


class TorchOnCard(TorchLoaded):
    """Answers ``LoadedModel``, and ``start`` and ``device_seconds``: what the loop asks for; for a module that is on one card.

    Args:
        cuda: ``torch.cuda``, or a stand-in that takes down what is asked of it, for a module on the CPU.
    """

    def __init__(self, *args: Any, cuda: Any = torch.cuda, **settings: Any) -> None:
        """Make the streams."""
        super().__init__(*args, **settings)
        self._cuda = cuda
        self._inward = cuda.Stream(self._device)
        self._outward = cuda.Stream(self._device)
        self._time = DeviceTime(lambda: cuda.Event(enable_timing=True))

    def start(self, inputs: Inputs) -> Callable[[], Any]:
        """Begin a call, and give what waits for its results.

        The copy in is asynchronous where the feed has pinned the tensors (``pin_memory``).
        """
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        computing = self._cuda.current_stream(self._device)
        came = {name: to_tensor(array) for name, array in inputs.arrays.items()}
        batch = self._time.batch()
        with torch.inference_mode(), self._cuda.device(self._device):
            with self._cuda.stream(self._inward), batch.lap("copy_in", self._inward):
                arguments = {name: self._place(value) for name, value in came.items()}
            computing.wait_stream(self._inward)
            for value in arguments.values():
                if _is_on_card(value):
                    value.record_stream(computing)
            style = inputs.style
            if self._on_device is not None:
                with batch.lap("preprocess", computing):
                    style, arguments = self._ready(style, arguments)
            with batch.lap("compute", computing), at_precision(self._precision, self._device.type):
                result = map_tensors(to_plain, plain_structure(self._call(style, arguments)))
            self._outward.wait_stream(computing)
            with self._cuda.stream(self._outward):
                with batch.lap("copy_out", self._outward):
                    fetched = map_tensors(self._fetch, result)
                done = self._cuda.Event()
                done.record(self._outward)

        def wait(held: Any = (came, result)) -> Any:  # noqa: ARG001 - pinned memory and results must outlive the copies
            done.synchronize()
            batch.read()  # the copy out was the last of it, so every event of this batch is stamped
            return to_arrays(fetched)

        return wait

    def device_seconds(self) -> dict[str, float]:
        """Give what the calls that were started took on the card, by stage, since this was last asked."""
        return self._time.take()

    def _fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy to page-locked memory, without waiting."""
        if not _is_on_card(tensor):
            return tensor
        tensor.record_stream(self._outward)
        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return there.copy_(tensor, non_blocking=True)


def _is_on_card(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"
