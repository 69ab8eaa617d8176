"""A PyTorch model in memory, and what it computes with.

Runs on: worker.

Invariant: a model runs in evaluation mode, under ``torch.inference_mode``, and never writes into the memory that its input came in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from sparkinfer.backends.torch_precision import at_precision, refuse_without_effect
from sparkinfer.backends.torch_values import to_arrays, to_tensor
from sparkinfer.engine.batch import Fault
from sparkinfer.engine.on_device import call_on_device
from sparkinfer.exceptions import PredictError

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Inputs, Style

__all__ = ["TorchLoaded", "is_spread"]


def is_spread(module: Any) -> bool:
    """Tell whether a module put its parts on several devices: then it is left there, and moves its own tensors from one to the other."""
    if not isinstance(module, torch.nn.Module):
        return False
    return len({str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}) > 1


def _writes_to(tensor: torch.Tensor) -> int:
    """Count the writes that torch has seen, under ``inference_mode`` too."""
    return tensor._version  # noqa: SLF001 - documented in torch's notes on autograd, and nowhere offered without the underscore


class TorchLoaded:
    """A PyTorch model in memory; answers ``LoadedModel``."""

    def __init__(
        self,
        module: Any,
        device: torch.device,
        threads: int,
        *,
        channels_last: bool = False,
        precision: str = "fp32",
        on_device: Callable[..., Any] | None = None,
    ) -> None:
        """Keep the module, the dtype that its floating inputs are cast to, the threads that it is to run on, and what is called before it.

        Raises:
            ConfigError: the precision would change nothing of this module.
        """
        self._threads = threads
        self._module = module
        self._channels_last = channels_last
        self._precision = precision
        self._on_device = on_device
        self.retraces = hasattr(module, "_orig_mod")  # torch.compile's wrapper; its dynamic graphs are compiled anew for a single row
        parameters = list(module.parameters()) if isinstance(module, torch.nn.Module) else []
        self._float_dtype = next((p.dtype for p in parameters if p.is_floating_point()), None)
        self._device = parameters[0].device if parameters and is_spread(module) else device  # a module that spreads itself begins there
        refuse_without_effect(precision, self._float_dtype)
        self._writes: bool | None = None  # into its inputs; not known before the first call

    def predict(self, inputs: Inputs) -> Any:
        """Run the model once.

        Raises:
            Fault: it gave something else than tensors, or wrote into its input after the first call did not.
        """
        if torch.get_num_threads() != self._threads:  # the process's, and another model may have had its own
            torch.set_num_threads(self._threads)
        came = {name: to_tensor(array) for name, array in inputs.arrays.items()}
        arguments = {name: self._place(value) for name, value in came.items()}
        shared = [name for name, value in arguments.items() if isinstance(value, torch.Tensor) and value is came[name]]
        if self._writes is not False:  # the first call runs on copies, which show whether the model writes
            arguments.update({name: arguments[name].clone() for name in shared})
        versions = {name: _writes_to(arguments[name]) for name in shared}
        with torch.inference_mode():
            style, ready = self._ready(inputs.style, arguments)
            with at_precision(self._precision, self._device.type):
                result = self._call(style, ready)
                self._watch(versions, arguments)
                return to_arrays(result)

    @property
    def module(self) -> Any:
        """The module itself, in evaluation mode: what an engine exports."""
        return self._module

    @property
    def float_dtype(self) -> torch.dtype | None:
        """What floating inputs are cast to; ``None`` where they stay as they come."""
        return self._float_dtype

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """Give what the module is called with, by the names of its inputs."""
        return {name: self._place(to_tensor(array)) for name, array in inputs.arrays.items()}

    def device_peak_bytes(self) -> int | None:
        """Give the most that torch's allocator held on the card since this was last asked; ``None`` on a CPU."""
        if self._device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return peak

    def device_bytes(self) -> int | None:
        """Give what torch's allocator holds on the card; ``None`` on a CPU."""
        return torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else None

    def release(self) -> None:
        """Let go of the module, and of the card's memory that it held."""
        self._module = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _place(self, value: Any) -> Any:
        """Move a tensor to the model's device and, if it is floating, to the model's dtype; the same tensor if it is there."""
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self._float_dtype if self._float_dtype is not None and value.is_floating_point() else value.dtype
        if self._channels_last and value.ndim == 4:
            return value.to(device=self._device, dtype=dtype, non_blocking=True, memory_format=torch.channels_last)
        return value.to(device=self._device, dtype=dtype, non_blocking=True)

    def _ready(self, style: Style, arguments: dict[str, Any]) -> tuple[Style, dict[str, Any]]:
        """Do what the user has done on the device, in the numbers that are written there: autocast is for the model."""
        if self._on_device is None:
            return style, arguments
        style, made = call_on_device(self._on_device, style, arguments, torch.Tensor)
        return style, {name: self._place(value) for name, value in made.items()}

    def _call(self, style: str, arguments: dict[str, Any]) -> Any:
        return self._module(**arguments) if style == "named" else self._module(*arguments.values())

    def _watch(self, versions: Mapping[str, int], arguments: Mapping[str, Any]) -> None:
        written = [name for name, version in versions.items() if _writes_to(arguments[name]) != version]
        if self._writes is None:
            self._writes = bool(written)
        elif written and not self._writes:
            writer, place = ("the model", "forward") if self._on_device is None else ("preprocess_on_device or the model", "it")
            text = (
                f"{writer} wrote into its input {written[0]!r}, which it did not do in its first call: that memory belongs to Spark's data. "
                f"Copy it in {place} before writing: x = x.clone()"
            )
            raise Fault(PredictError, text)
