"""A PyTorch model compiled ahead of time by AOTInductor, on the CPU: the backend's verbs.

Runs on: worker.

Invariant: nothing is compiled here: the machine code comes from the driver, in a package that this library made there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sparkinfer.backends.exported import Exported, ordered, structured
from sparkinfer.backends.torch_feed import feed
from sparkinfer.backends.torch_values import to_arrays
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.exceptions import ConfigError, ModelLoadError

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed, Inputs
    from sparkinfer.engine.contracts import ModelPlan, PrepareStep
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["BACKEND"]


class TorchAotBackend:
    """Answers ``Backend``."""

    name = "torch_aot"

    def resolve_device(self, device: str) -> str:
        """Give ``"cpu"``, for which the model was compiled.

        Raises:
            ConfigError: a card was asked for by name.
        """
        if device not in ("auto", "cpu"):
            msg = f"device is {device!r}, but optimize='aot' compiles for the CPU: leave device out, or leave optimize out"
            raise ConfigError(msg)
        return "cpu"

    def feed(
        self, source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
    ) -> AbstractContextManager[Iterator[Fed]]:
        """Prepare the batches ahead of the model, by a ``DataLoader``."""
        return feed(source, prepare, config, device, meter)

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> AotLoaded:
        """Load the package.

        Raises:
            ModelLoadError: the machine code does not fit this worker's torch or system.
        """
        del device
        mark_framework_used()
        try:
            with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
                found = files["model"]
                path = Path(folder) / "model.pt2" if isinstance(found, bytes) else Path(found)
                if isinstance(found, bytes):
                    path.write_bytes(found)
                model = torch._inductor.aoti_load_package(str(path))  # noqa: SLF001 - documented under this name
        except Exception as error:
            msg = (
                f"{plan.label}, compiled on the driver, cannot be loaded here by torch {torch.__version__} ({type(error).__name__}: {error}): the "
                "workers need the driver's torch, and a processor with the instructions of the driver's"
            )
            raise ModelLoadError(msg) from error
        return AotLoaded(model, plan.options["exported"], threads)


BACKEND = TorchAotBackend()


class AotLoaded:
    """A compiled model; answers ``LoadedModel``."""

    def __init__(self, model: Any, exported: Exported, threads: int) -> None:
        """Keep the model, and the threads that it is to run on."""
        self._model = model
        self._exported = exported
        self._threads = threads

    def predict(self, inputs: Inputs) -> Any:
        """Run the model once."""
        if torch.get_num_threads() != self._threads:  # the process's, and another model may have had its own
            torch.set_num_threads(self._threads)
        arrays = ordered(self._exported, inputs)
        with torch.inference_mode():
            answers = self._model(*(torch.tensor(array) for array in arrays))  # copies: Arrow's memory is not aligned as the code wants it
            return structured(self._exported, to_arrays([answer.clone() for answer in answers]))  # the code may write there again

    def device_peak_bytes(self) -> None:
        """Give nothing: it is on the CPU."""

    def release(self) -> None:
        """Let go of the model."""
        self._model = None
