"""PyTorch: the backend's verbs.

Runs on: worker; ``describe`` on the driver.

Invariant: a model runs in evaluation mode, under ``torch.inference_mode``, and never writes into the memory that its input came
in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

import torch

from sparkinfer.backends.torch_describe import describe
from sparkinfer.backends.torch_feed import feed
from sparkinfer.backends.torch_sources import build, read_export, read_pickled_module, read_script, read_weights, thaw
from sparkinfer.backends.torch_values import to_arrays, to_tensor
from sparkinfer.engine.batch import Fault
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.exceptions import ConfigError, PredictError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed, Inputs
    from sparkinfer.engine.contracts import ModelPlan, PrepareStep
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["BACKEND", "describe"]


class TorchBackend:
    """Answers ``Backend``."""

    name = "torch"

    def resolve_device(self, device: str) -> str:
        """Turn ``"auto"`` into a device that is there.

        Raises:
            ConfigError: the device is not there, or is no device.
        """
        if device == "auto":
            return "cuda:0" if torch.cuda.is_available() else "cpu"
        try:
            asked = torch.device(device)
        except RuntimeError as error:
            msg = f"device is {device!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:<number>'"
            raise ConfigError(msg) from error
        if asked.type == "cpu":
            return "cpu"
        if asked.type == "cuda":
            cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if (asked.index or 0) < cards:
                return f"cuda:{asked.index or 0}"
            msg = f"device is {device!r}, but torch {torch.__version__} sees {cards} CUDA cards here. device='auto' takes the CPU where there is none"
            raise ConfigError(msg)
        if asked.type == "mps" and torch.backends.mps.is_available():
            return "mps"
        msg = f"device is {device!r}, which torch {torch.__version__} does not have here, expected 'auto', 'cpu', 'cuda' or 'cuda:<number>'"
        raise ConfigError(msg)

    def feed(
        self, source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
    ) -> AbstractContextManager[Iterator[Fed]]:
        """Prepare the batches ahead of the model, by a ``DataLoader``."""
        return feed(source, prepare, config, device, meter)

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> TorchLoaded:
        """Load the model on a device, in evaluation mode.

        Raises:
            ModelLoadError: it cannot be read or built here.
        """
        mark_framework_used()
        module = _read(plan, files, device)
        if isinstance(module, torch.nn.Module):
            with suppress(NotImplementedError):  # an exported program's module: its mode was set, and checked, when it was exported
                module.eval()
            module = module.to(device)
        return TorchLoaded(
            _changed(module, plan.options.get("optimize")), torch.device(device), threads, channels_last=_is_channels_last(plan)
        )


BACKEND = TorchBackend()


def _read(plan: ModelPlan, files: Mapping[str, str | bytes], device: str) -> Any:
    if plan.kind == "module":
        return thaw(plan.payload, files["weights"], plan.label)
    if plan.kind == "factory":
        factory = loads(plan.payload, f"the factory of {plan.label}")
        return build(factory, read_weights(files["weights"]) if "weights" in files else None, plan.label)
    if plan.kind == "export":
        program = read_export(files["model"], trust_pickle=plan.options.get("trust_pickle", False))
        if device != "cpu":  # constants inside the graph name the device that they were exported on
            from torch.export.passes import move_to_device_pass  # noqa: PLC0415 - torch 2.6 on

            program = move_to_device_pass(program, device)
        return program.module()
    if plan.kind == "script":
        return read_script(files["model"])
    return read_pickled_module(files["model"], plan.label)


def _is_channels_last(plan: ModelPlan) -> bool:
    return plan.options.get("optimize") == "channels_last"


def _changed(module: Any, optimize: str | None) -> Any:
    """Make the module faster in place: what needs no file of its own happens where the model is loaded."""
    if optimize == "channels_last":
        return module.to(memory_format=torch.channels_last)
    if optimize == "compile":
        return torch.compile(module, dynamic=True)  # else a partition's last batch would be compiled for
    return module


def _writes_to(tensor: torch.Tensor) -> int:
    """Count the writes that torch has seen, under ``inference_mode`` too."""
    return tensor._version  # noqa: SLF001 - documented in torch's notes on autograd, and nowhere offered without the underscore


class TorchLoaded:
    """A PyTorch model in memory; answers ``LoadedModel``."""

    def __init__(self, module: Any, device: torch.device, threads: int, *, channels_last: bool = False) -> None:
        """Keep the module, the dtype that its floating inputs are cast to, and the threads that it is to run on."""
        self._threads = threads
        self._module = module
        self._channels_last = channels_last
        self._device = device
        parameters = module.parameters() if isinstance(module, torch.nn.Module) else ()
        self._float_dtype = next((p.dtype for p in parameters if p.is_floating_point()), None)
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
            result = self._call(inputs.style, arguments)
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

    def _call(self, style: str, arguments: dict[str, Any]) -> Any:
        return self._module(**arguments) if style == "named" else self._module(*arguments.values())

    def _watch(self, versions: Mapping[str, int], arguments: Mapping[str, Any]) -> None:
        written = [name for name, version in versions.items() if _writes_to(arguments[name]) != version]
        if self._writes is None:
            self._writes = bool(written)
        elif written and not self._writes:
            text = (
                f"the model wrote into its input {written[0]!r}, which it did not do in its first call: that memory belongs to Spark's data. "
                "Copy it in forward before writing: x = x.clone()"
            )
            raise Fault(PredictError, text)
