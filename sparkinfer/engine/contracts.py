"""The Protocols that the rings meet at: what a backend is, and what travels to the workers.

Runs on: both.

Invariant: only frozen values cross to the workers; a backend is one module whose ``BACKEND`` answers ``Backend``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Failure, Fed, Inputs
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["Backend", "Describable", "LoadedModel", "ModelFile", "ModelPlan", "OnDevice", "Optimized", "PrepareStep", "TensorInfo"]


@dataclass(frozen=True)
class TensorInfo:
    """What a model says of one of its inputs or outputs.

    Attributes:
        name: the model's own name for it.
        dtype: a NumPy dtype name, ``"string"``, ``"bytes"``, ``"datetime"``, or ``"object"`` for what has no such name.
        shape: without the batch axis; ``None`` for a free axis. ``None`` for an unknown rank.
        optional: an input that the model can do without.
        column: the column that an input is taken from where the user names none; ``None`` for one of its own name.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    optional: bool = False
    column: str | None = None


@dataclass(frozen=True)
class ModelFile:
    """One file or directory that a model needs on the workers.

    Attributes:
        role: the backend's word for it, such as ``"weights"``.
        sha256: of the content (for a directory, of its files' paths and contents).
        size_bytes: of the content.
        path: where it lies on the driver; ``None`` if it only exists as ``content``.
        directory: ``path`` is a directory.
        content: the bytes themselves, for a small model that only exists in memory.
        pinned: the user said what its content must be; workers compare it too.
    """

    role: str
    sha256: str
    size_bytes: int
    path: str | None = None
    directory: bool = False
    content: bytes | None = field(default=None, repr=False)
    pinned: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Optimized:
    """What became of ``optimize=``.

    Attributes:
        asked: what the user said.
        engine: what runs the model; ``None``: the model runs as it is, which only ``"auto"`` does.
        max_abs_difference: the largest absolute difference of the engine's answers from the model's own, on the sample rows.
        why: why what was tried before is not what runs; empty if nothing was.
    """

    asked: str
    engine: str | None
    max_abs_difference: float | None = None
    why: str = ""


@dataclass(frozen=True)
class OnDevice:
    """The user's ``preprocess_on_device``, in ``ModelPlan.options["on_device"]``: the plan's own ``inputs`` are ``None`` then.

    Attributes:
        function: pickled.
        inputs: what the model behind it says of its inputs.
    """

    function: bytes = field(repr=False)
    inputs: tuple[TensorInfo, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """A model, described on the driver: all that a worker needs to load it, and all that the driver can check.

    Attributes:
        backend: ``"torch"``, ``"tensorflow"``, ``"pyfunc"``, ``"numpy"``, or an engine's: the module under ``backends/``.
        kind: the backend's word for what it is, such as ``"state_dict"``.
        fingerprint: hex; the same fingerprint means the same answers, so no second load.
        label: how messages call it, such as ``TorchModel('effnet.pt2')``.
        payload: pickled code (factory, module skeleton, loader), by cloudpickle.
        files: what must be shipped.
        ship: ``"auto"``, ``"path"``, ``"files"`` or ``"value"``.
        options: the backend's own settings, such as the signature's name.
        inputs: what the model says of its inputs, if it says anything.
        outputs: likewise.
        float_dtype: floating inputs are cast to it; ``None`` leaves them as they are.
        model_id: MLflow's id of the logged model that this is, if it is one: a run's link to its model.
        optimized: what became of ``optimize=``; ``None`` where it was not given.
    """

    backend: str
    kind: str
    fingerprint: str
    label: str
    payload: bytes = field(default=b"", repr=False)
    files: tuple[ModelFile, ...] = ()
    ship: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorInfo, ...] | None = None
    outputs: tuple[TensorInfo, ...] | None = None
    float_dtype: str | None = None
    model_id: str | None = None
    optimized: Optimized | None = None


class Describable(Protocol):
    """A model as the user gives it: ``TorchModel``, ``TensorFlowModel``, ``MlflowModel``, ``PythonModel``."""

    def describe(self) -> ModelPlan:
        """Read and check the model on the driver."""
        ...


class LoadedModel(Protocol):
    """A model in memory, ready to be called from one thread.

    It may have more, which the loop asks for by name: ``start(inputs)`` begins a call and gives what waits for its results (``ahead.py``);
    ``retraces``, where true, says that another number of rows costs a compilation (``tail.py``); ``device_seconds()`` gives what calls took on the
    device since it was last asked, by stage (``device_time.py``).
    """

    def predict(self, inputs: Inputs) -> Any:
        """Run the model once; gives NumPy arrays: one, a sequence, or a mapping. Raises what the model raises."""
        ...

    def device_peak_bytes(self) -> int | None:
        """Give the device allocator's peak since the model was last asked; ``None`` where the framework has no such figure."""
        ...

    def device_bytes(self) -> int | None:
        """Give what the device's allocator holds now; ``None`` where the framework has no such figure."""
        ...

    def release(self) -> None:
        """Let go of memory, on the device too. Called once."""
        ...


class PrepareStep(Protocol):
    """Makes a model's inputs of a batch's rows; picklable, so that loader processes can hold it."""

    @property
    def fingerprint(self) -> str:
        """Same fingerprint, same step: a loader process that holds one may serve the other."""
        ...

    @property
    def traceable(self) -> bool:
        """Whether the user's function is a ``tf.function``, to be run inside tf.data by the TensorFlow feed."""
        ...

    @property
    def plain(self) -> bool:
        """Whether it only decodes columns, with no function of the user's."""
        ...

    @property
    def tolerant(self) -> bool:
        """Whether bad rows are left out and named, and their batch goes on without them."""
        ...

    @property
    def only_column(self) -> str | None:
        """The input column, if there is only one: what a message names."""
        ...

    def __call__(self, data: pa.RecordBatch) -> Inputs | Failure:
        """Decode, preprocess and conform; never raises what the user's function raised, but gives it as a ``Failure``."""
        ...


class Backend(Protocol):
    """One framework."""

    name: str

    def resolve_device(self, device: str) -> str:
        """Turn ``"auto"`` into a device that is there; raise ``ConfigError`` for one that is not."""
        ...

    def card_count(self) -> int:
        """Count the CUDA cards that the framework sees; none for a backend that puts no model on one."""
        ...

    def card_memory_bytes(self, device: str) -> int | None:
        """Give all of a card's memory; ``None`` where the framework does not tell."""
        ...

    def feed(
        self, source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
    ) -> AbstractContextManager[Iterator[Fed]]:
        """Prepare the batches ahead of the model, in order, at most ``config.prefetch_batches`` of them.

        Entering starts loader processes (before the model is loaded) but no thread pulls ``source`` before the iterator's
        first ``next``. Leaving joins what runs. ``source`` is pulled by one thread at a time. ``meter`` is told of the batches that wait
        ready, where the feed can tell.
        """
        ...

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> LoadedModel:
        """Load the model. ``files`` gives each role's local path, or its bytes if it came by value."""
        ...
