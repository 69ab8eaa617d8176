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
from sparkinfer.backends.torch_model import TorchLoaded, is_spread
from sparkinfer.backends.torch_precision import checked_precision
from sparkinfer.backends.torch_sources import build, read_export, read_pickled_module, read_script, read_weights, thaw
from sparkinfer.backends.torch_streams import TorchOnCard
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.exceptions import ConfigError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed
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

    def card_count(self) -> int:
        """Count the cards that torch sees."""
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def card_memory_bytes(self, device: str) -> int | None:
        """Give all of a card's memory."""
        return int(torch.cuda.mem_get_info(device)[1])

    def feed(
        self, source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
    ) -> AbstractContextManager[Iterator[Fed]]:
        """Prepare the batches ahead of the model, by a ``DataLoader``."""
        return feed(source, prepare, config, device, meter)

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> TorchLoaded:
        """Load the model on a device, in evaluation mode.

        Raises:
            ConfigError: the device does not compute at the precision that was asked for.
            ModelLoadError: it cannot be read or built here.
        """
        mark_framework_used()
        precision = checked_precision(plan.options.get("precision", "fp32"), device)
        module = _read(plan, files, device)
        if isinstance(module, torch.nn.Module):
            with suppress(NotImplementedError):  # an exported program's module: its mode was set, and checked, when it was exported
                module.eval()
            if not is_spread(module):
                module = module.to(device)
        on_device = plan.options.get("on_device")
        function = None if on_device is None else loads(on_device.function, "preprocess_on_device")
        changed = _changed(module, plan.options.get("optimize"))
        # one card's streams say nothing of what another device has computed or copied: a spread module is called batch by batch
        loaded = TorchOnCard if device.startswith("cuda") and not is_spread(module) else TorchLoaded
        last = _is_channels_last(plan)
        return loaded(changed, torch.device(device), threads, channels_last=last, precision=precision, on_device=function)


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
