"""PyTorch input, through a real ``torch.utils.data.DataLoader``.

Runs on: worker.

Invariant: one reader pulls the source; the order is the source's; loader processes live on for the next partition that needs the
same step, and end with this process.

::

    num_workers=0   source ── DataLoader: prepare, pin ── read_ahead thread ── model
    num_workers=n   source ── read_ahead thread ── DataLoader (Arrow bytes as indices) ══ n processes: prepare ══ pin ── model
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, cast

import torch

from sparkinfer.backends.torch_loader import PRELOAD, Key, Loader, finished, prepare_here
from sparkinfer.engine.contain import contained
from sparkinfer.engine.prefetch import Gate, read_ahead
from sparkinfer.engine.room import Room, fed_bytes
from sparkinfer.engine.watch import remark_grown
from sparkinfer.exceptions import ConfigError, SparkInferWarning

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed
    from sparkinfer.engine.contracts import PrepareStep
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["close_loaders", "feed"]

_idle: dict[Key, Loader] = {}  # loaders whose processes wait for the next partition


@contextmanager
def feed(
    source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
) -> Iterator[Iterator[Fed]]:
    """Prepare the batches ahead of the model, in order.

    Entering starts the loader processes; leaving early ends them, leaving after the last batch keeps them for the next feed.

    Raises:
        LoaderProcessError: loader processes die, and no row of the data is to blame.
    """
    pin = config.pin_memory is True or (config.pin_memory == "auto" and device.startswith("cuda"))
    if pin and not torch.cuda.is_available():
        msg = "pin_memory=True needs a CUDA card, and torch sees none here: say pin_memory='auto'"
        raise ConfigError(msg)
    num_workers = _allowed(config.num_workers)
    if num_workers:
        with _feed_from_processes(source, prepare, config, pin=pin) as fed:
            yield fed
        return
    made = prepare_here(source, prepare, pin=pin)
    if not config.prefetch_batches:
        yield made
        return
    with read_ahead(made, config.prefetch_batches, meter, Gate(config.max_in_flight_bytes, fed_bytes)) as ahead:
        yield ahead


def close_loaders() -> None:
    """End the loader processes that wait for another partition."""
    while _idle:
        _idle.popitem()[1].close()


def _allowed(num_workers: int) -> int:
    if num_workers and multiprocessing.current_process().daemon:
        warnings.warn(
            f"num_workers={num_workers} needs loader processes, but this process is daemonic and may have none: preparing in this "
            "process instead",
            SparkInferWarning,
            stacklevel=4,
        )
        return 0
    return num_workers


@contextmanager
def _feed_from_processes(source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, *, pin: bool) -> Iterator[Iterator[Fed]]:
    ahead_of_each = max(1, math.ceil(config.prefetch_batches / config.num_workers))
    timeout_seconds = config.preprocess_timeout_seconds
    lent = _Lent((prepare.fingerprint, config.num_workers, ahead_of_each, pin, timeout_seconds), prepare, config.max_in_flight_bytes)
    lent.take()
    try:
        with (
            read_ahead(source, depth=1) as ahead,
            closing(contained(ahead, lent.epoch, lent.take, prepare, timeout_seconds, finished, PRELOAD)) as fed,
        ):
            yield fed
    finally:
        lent.leave()


class _Lent:
    """The loader of one partition: the one that waited, and those that take its place when processes die."""

    def __init__(self, key: Key, prepare: PrepareStep, most_bytes: int) -> None:
        self._key = key
        self._prepare = prepare
        self._room = Room(most_bytes, sys.maxsize)  # how many batches are out is the DataLoader's matter
        self._loader: Loader | None = None

    def take(self) -> None:
        if self._loader is not None:
            self._loader.close()
        self._loader = None  # a start that fails leaves nothing to give back
        self._loader = _borrow(self._key, self._prepare)

    def epoch(self, source: Iterator[Batch]) -> Iterator[Fed]:
        return cast("Loader", self._loader).epoch(source, self._room)

    def leave(self) -> None:
        if self._loader is not None:
            _give_back(self._loader)


def _borrow(key: Key, prepare: PrepareStep) -> Loader:
    """Take the waiting loader of this step, or start one; at most one waits for each number of processes."""
    kept = _idle.pop(key, None)
    for other in [other for other in list(_idle) if other[1] == key[1]]:
        _idle.pop(other).close()
    if kept is not None and kept.alive():
        return kept
    if kept is not None:
        kept.close()
    return Loader(key, prepare)


def _give_back(loader: Loader) -> None:
    grown = loader.slots.grown()
    if grown is not None:
        remark_grown(grown)
    if loader.clean and loader.alive() and loader.key not in _idle and grown is None:
        _idle[loader.key] = loader
    else:
        loader.close()
