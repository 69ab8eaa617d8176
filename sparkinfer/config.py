"""The settings of a run: one frozen value for all roads.

Runs on: both (standard library only).

Invariant: an ``InferenceConfig`` that exists is valid; it is checked when it is made, on the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from sparkinfer.exceptions import ConfigError, nearest

__all__ = ["InferenceConfig"]

Precision = Literal["fp32"]


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """Settings that every road shares; each can also be given to ``predict`` by its name.

    Attributes:
        batch_size: rows of one model call, at least 1. Does not depend on the chunks that Spark sends.
        num_workers: loader processes that decode and preprocess for one Python worker; 0 runs ``preprocess``
            on the read-ahead thread.
        prefetch_batches: batches that wait ready ahead of the model, in all; 0 reads, prepares and predicts
            in turn, on one thread.
        max_records_per_batch: rows of the chunks that Spark sends (``spark.sql.execution.arrow.maxRecordsPerBatch``).
            A transport setting of the session: ``inference_run`` sets it for its length; given to a bare ``predict``
            it is compared with the session's value, and a difference is told.
        threads: intra-op threads of the framework in each Python worker; ``None`` takes the task's CPUs.
        device: ``"auto"`` takes the CUDA card that Spark assigned to the task, or else the first that the framework sees, or the CPU; ``"cuda"``
            takes a card likewise, and none is an error; ``"cpu"`` and ``"cuda:1"`` are taken literally, and a device that is missing is an
            error.
        precision: ``"fp32"``, the model as it was made.
        pin_memory: page-locked buffers for copies to a card; ``"auto"`` pins when the device is a card.
        models_per_worker: models that one Python worker keeps loaded, the least recently used let go first;
            0 keeps none after its task.
        metrics: measure every partition and bring the figures back to the driver.
        max_errors: with ``on_error="null"``, the bad rows that one partition may have; one more ends the job. ``None``: any number.
        max_error_fraction: the same as a share of the rows that a partition has seen, 0 to 1; looked at from 100 rows on, and at the
            partition's end.

    Raises:
        ConfigError: a value is out of its range; the message names the setting and the range.

    Example:
        >>> InferenceConfig(batch_size=256).batch_size
        256
    """

    batch_size: int = 64
    num_workers: int = 0
    prefetch_batches: int = 2
    max_records_per_batch: int | None = None
    threads: int | None = None
    device: str = "auto"
    precision: Precision = "fp32"
    pin_memory: bool | Literal["auto"] = "auto"
    models_per_worker: int = 3
    metrics: bool = True
    max_errors: int | None = None
    max_error_fraction: float | None = None

    def __post_init__(self) -> None:
        """Check every value once, so that nobody downstream has to."""
        _at_least("batch_size", self.batch_size, 1)
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
        if not _is_text(self.device):
            msg = f"device is {self.device!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:<number>'"
            raise ConfigError(msg)
        _one_of("precision", self.precision, ("fp32",))
        _one_of("metrics", self.metrics, (True, False))
        _one_of("pin_memory", self.pin_memory, (True, False, "auto"))

    @classmethod
    def build(cls, config: InferenceConfig | None, overrides: dict[str, Any]) -> InferenceConfig:
        """Lay ``overrides`` over ``config`` over the defaults.

        Raises:
            ConfigError: an override is no setting (the nearest right name is told), or its value is wrong.
        """
        known = [field.name for field in fields(cls)]
        for name in overrides:
            if name not in known:
                msg = f"{name!r} is neither an argument nor a setting. {nearest(name, known)}"
                raise ConfigError(msg)
        if config is not None and not isinstance(config, cls):
            msg = f"config is {type(config).__name__}, expected InferenceConfig"
            raise ConfigError(msg)
        return replace(config or cls(), **overrides)


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


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} is {value!r} ({type(value).__name__}), expected a whole number of at least {least}"
        raise ConfigError(msg)
    if value < least:
        msg = f"{name} is {value}, expected at least {least}"
        raise ConfigError(msg)
