"""The settings of a run: one frozen value for all roads.

Runs on: both (standard library only).

Invariant: an ``InferenceConfig`` that exists is valid; it is checked when it is made, on the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from sparkinfer.exceptions import ConfigError, nearest

__all__ = ["FIRST_ROWS", "InferenceConfig", "refuse_unknown"]

FIRST_ROWS = 64
"""Rows of a model call with which ``batch_size="auto"`` begins, and by which it is reckoned where nothing has settled yet."""

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """Settings that every road shares; each can also be given to ``predict`` by its name.

    Attributes:
        batch_size: rows of one model call, at least 1. Does not depend on the chunks that Spark sends. ``"auto"`` settles it in the first batches
            of a Python worker: it is doubled from 64 on for as long as a row gets cheaper and memory allows.
        num_workers: loader processes that decode and preprocess for one Python worker; 0 runs ``preprocess``
            on the read-ahead thread.
        prefetch_batches: batches that wait ready ahead of the model, in all; 0 reads, prepares and predicts
            in turn, on one thread.
        max_records_per_batch: rows of the chunks that Spark sends (``spark.sql.execution.arrow.maxRecordsPerBatch``).
            A transport setting of the session: ``inference_run`` sets it for its length; given to a bare ``predict``
            it is compared with the session's value, and a difference is told.
        threads: intra-op threads of the framework in each Python worker; ``None`` takes the task's CPUs.
        device: ``"auto"`` takes the CUDA card that Spark assigned to the task, or else, of those that the framework sees, the one that the fewest
            processes hold, or the CPU; ``"cuda"`` takes a card likewise, and none is an error; ``"cpu"`` and ``"cuda:1"`` are taken literally,
            and a device that is missing is an error.
        precision: ``"fp32"``, the model as it was made; PyTorch: ``"bf16"`` and (on cards) ``"fp16"`` by autocast, ``"tf32"`` on cards; Keras models:
            ``"bf16"`` and (on cards) ``"fp16"`` by Keras' mixed policies. What the model or the device cannot do is an error.
        tasks_per_gpu: Python workers that have a model on one card at a time; the others wait. ``"auto"`` takes as many as fit, by what the first
            one needed (PyTorch); ``None`` leaves it to Spark.
        pin_memory: page-locked buffers for copies to a card; ``"auto"`` pins when the device is a card.
        pad_tail: calls of fewer rows than ``batch_size``, a partition's last one above all, are filled up by repeats of their last row, and the answers
            to those are cut off. ``"auto"`` does so where another number of rows costs a compilation (XLA, ``torch.compile``) or is
            impossible (a model that was exported for one batch size).
        models_per_worker: models that one Python worker keeps loaded, the least recently used let go first;
            0 keeps none after its task.
        metrics: measure every partition and bring the figures back to the driver.
        max_errors: with ``on_error="null"``, the bad rows that one partition may have; one more ends the job. ``None``: any number.
        max_error_fraction: the same as a share of the rows that a partition has seen, 0 to 1; looked at from 100 rows on, and at the
            partition's end.

        preprocess_timeout_seconds: what one call of ``preprocess`` (for a row) or ``preprocess_batch`` (for a batch) may take in a loader
            process; needs ``num_workers`` above 0. ``None``: any time.
        max_in_flight_bytes: inputs that are prepared, or on their way through loader processes, ahead of the model, in one Python worker.
            One batch goes through alone, whatever its size.

    Raises:
        ConfigError: a value is out of its range; the message names the setting and the range.

    Example:
        >>> InferenceConfig(batch_size=256).batch_size
        256
    """

    batch_size: int | Literal["auto"] = 64
    num_workers: int = 0
    prefetch_batches: int = 2
    max_records_per_batch: int | None = None
    threads: int | None = None
    device: str = "auto"
    precision: Precision = "fp32"
    tasks_per_gpu: int | Literal["auto"] | None = None
    pin_memory: bool | Literal["auto"] = "auto"
    pad_tail: bool | Literal["auto"] = "auto"
    models_per_worker: int = 3
    metrics: bool = True
    max_errors: int | None = None
    max_error_fraction: float | None = None
    preprocess_timeout_seconds: float | None = None
    max_in_flight_bytes: int = 512 * 2**20

    def __post_init__(self) -> None:
        """Check every value once, so that nobody downstream has to."""
        if self.batch_size != "auto":
            _at_least("batch_size", self.batch_size, 1, " or 'auto'")
        _at_least("num_workers", self.num_workers, 0)
        _at_least("prefetch_batches", self.prefetch_batches, 0)
        _at_least("models_per_worker", self.models_per_worker, 0)
        if self.max_records_per_batch is not None:
            _at_least("max_records_per_batch", self.max_records_per_batch, 1)
        if self.threads is not None:
            _at_least("threads", self.threads, 1)
        if self.max_errors is not None:
            _at_least("max_errors", self.max_errors, 0)
        _share("max_error_fraction", self.max_error_fraction)
        _above_zero("preprocess_timeout_seconds", self.preprocess_timeout_seconds)
        _at_least("max_in_flight_bytes", self.max_in_flight_bytes, 1)
        if not _is_text(self.device):
            msg = f"device is {self.device!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:<number>'"
            raise ConfigError(msg)
        _one_of("precision", self.precision, get_args(Precision))
        if self.tasks_per_gpu is not None and self.tasks_per_gpu != "auto":
            _at_least("tasks_per_gpu", self.tasks_per_gpu, 1)
        _one_of("metrics", self.metrics, (True, False))
        _one_of("pin_memory", self.pin_memory, (True, False, "auto"))
        _one_of("pad_tail", self.pad_tail, (True, False, "auto"))

    @property
    def batch_rows(self) -> int:
        """Rows of a batch to reckon with: ``batch_size``, or what ``"auto"`` begins with."""
        return FIRST_ROWS if self.batch_size == "auto" else self.batch_size

    @classmethod
    def build(cls, config: InferenceConfig | None, overrides: dict[str, Any]) -> InferenceConfig:
        """Lay ``overrides`` over ``config`` over the defaults.

        Raises:
            ConfigError: an override is no setting (the nearest right name is told), or its value is wrong.
        """
        known = [field.name for field in fields(cls)]
        for name in overrides:
            if name not in known:
                raise _unknown(name, known)
        if config is not None and not isinstance(config, cls):
            msg = f"config is {type(config).__name__}, expected InferenceConfig"
            raise ConfigError(msg)
        return replace(config or cls(), **overrides)


def refuse_unknown(arguments: Iterable[str], known: Iterable[str]) -> None:
    """Refuse what is not among the keywords that a function knows.

    Raises:
        ConfigError: the nearest keyword or setting is told.
    """
    names = tuple(known)
    for name in arguments:
        if name not in names:
            raise _unknown(name, [*names, *InferenceConfig.__dataclass_fields__])


def _unknown(name: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(f"{name!r} is neither an argument nor a setting. {nearest(name, known)}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        msg = f"{name} is {value!r}, expected {' or '.join(map(repr, allowed))}"
        raise ConfigError(msg)


def _share(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        msg = f"{name} is {value!r}, expected a number from 0 to 1"
        raise ConfigError(msg)


def _above_zero(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        msg = f"{name} is {value!r}, expected a number above 0"
        raise ConfigError(msg)


def _at_least(name: str, value: object, least: int, other: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} is {value!r} ({type(value).__name__}), expected a whole number of at least {least}{other}"
        raise ConfigError(msg)
    if value < least:
        msg = f"{name} is {value}, expected at least {least}{other}"
        raise ConfigError(msg)
