"""Pipelines whose steps sleep: drawn by chance, with a backend for the loop's own feed and model.

A pipeline's dominant step costs at least twice the next one of its own side (input or model), and at least twice the other side as a whole, since a side's
steps run on one thread. Balanced pipelines have two sides of the same cost.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from sparkinfer.engine.batch import Fed, Inputs
from sparkinfer.engine.contracts import ModelPlan
from sparkinfer.engine.prefetch import read_ahead

__all__ = [
    "CAUSES",
    "CHUNK",
    "KINDS",
    "PARTITIONS",
    "SLOTS",
    "Pipeline",
    "SleepingSpec",
    "Source",
    "install",
    "pipelines",
    "sleeping_preprocess",
]

KINDS = ("source", "preprocess", "model", "transfer", "tiny batches", "skew", "cold starts", "threads", "balanced")
CAUSES = {
    "source": ("input-bound", "source"),
    "preprocess": ("input-bound", "preprocess"),
    "model": ("compute-bound", "model"),
    "transfer": ("transfer-bound", "transfer"),
    "tiny batches": ("compute-bound", "batch size"),
    "skew": ("skewed", None),
    "cold starts": ("start-up-bound", "model"),
    "threads": ("compute-bound", "threads"),
}
SLOTS = 4
PARTITIONS = 8
CHUNK = 64  # rows


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Seconds that each step sleeps: for a row, ``call`` for a model call, ``load`` for a load."""

    kind: str
    batch_size: int
    source: float
    preprocess: float
    transfer: float
    call: float
    row: float
    threads: int = 1
    per_thread: float = 0.0  # what each further thread adds to the model's time, as a share
    load: float = 0.0
    rows: tuple[int, ...] = ()
    models_per_worker: int = 3

    @property
    def crowd(self) -> float:
        """How many times its time the model takes with this many threads."""
        return 1 + self.per_thread * (self.threads - 1)


def drawn(kind: str, chance: random.Random) -> Pipeline:  # noqa: PLR0911 - one for each kind
    """Draw a pipeline whose dominant step is this one."""
    batch = chance.choice((16, 32, 64))
    unit = chance.uniform(0.03, 0.05) / batch  # seconds of the dominant step for a row: far above what a busy machine adds to a sleep

    def least(side: float) -> float:
        return chance.uniform(0.05, 0.5) * side

    def shared(side: float) -> tuple[float, ...]:
        cuts = np.array([chance.uniform(0.1, 1) for _ in range(3)])
        return tuple(float(cut) for cut in cuts / cuts.sum() * side)

    source, preprocess, transfer = shared(least(unit))
    call, row = chance.uniform(0.1, 0.33) * unit * batch * 0.5, unit * 0.8
    base = {"kind": kind, "batch_size": batch}
    if kind in ("source", "preprocess", "transfer"):
        model = least(unit)
        steps = {name: least(unit) for name in ("source", "preprocess", "transfer")} | {kind: unit}
        return Pipeline(**base, **steps, call=0.2 * model * batch, row=0.8 * model)
    given: dict[str, Any] = {**base, "source": source, "preprocess": preprocess, "transfer": transfer}
    if kind == "model":
        return Pipeline(**given, call=call / 2, row=unit)
    if kind == "tiny batches":
        batch = chance.choice((1, 2, 4))
        source, preprocess, transfer = shared(least(0.02 / batch))
        given |= {"source": source, "preprocess": preprocess, "transfer": transfer}
        call = chance.uniform(0.02, 0.03)
        return Pipeline(**{**given, "batch_size": batch}, call=call, row=call / batch * chance.uniform(0.05, 0.5))
    if kind == "threads":
        return Pipeline(**given, call=0.1 * unit * batch, row=unit / 6, threads=8, per_thread=chance.uniform(0.4, 0.9))
    if kind == "balanced":
        half = unit / 2
        steps3 = shared(half * chance.uniform(0.97, 1.03))
        return Pipeline(**base, source=steps3[0], preprocess=steps3[1], transfer=steps3[2], call=0.1 * half * batch, row=0.9 * half)
    if kind == "skew":
        return Pipeline(**given, call=call / 4, row=unit / 2, rows=(40 * batch, *(chance.randrange(1, batch) for _ in range(7))))
    rows = tuple(chance.randrange(3, 6) * batch for _ in range(PARTITIONS))
    each = max(source + preprocess + transfer, call / batch + row)
    return Pipeline(
        **given, call=call, row=row, rows=rows, models_per_worker=0, load=sum(rows) / PARTITIONS * each * chance.uniform(2.2, 4)
    )


# --- a backend that sleeps -----------------------------------------------------------------------------------------------


class SleepingBackend:
    """Answers ``Backend``; the costs are in the model's options."""

    name = "sleeping"
    costs: dict[str, Pipeline] = {}  # noqa: RUF012 - by fingerprint: the feed is not told its model's

    def resolve_device(self, device: str) -> str:
        """Any is there."""
        return "cpu" if device == "auto" else device

    @contextmanager
    def feed(self, source: Any, prepare: Any, config: Any, device: str, meter: Any = None) -> Iterator[Iterator[Fed]]:
        """Prepare on a thread, or in as many threads as loader processes were asked for, and copy as fast as the pipeline does."""
        transfer = float(device.partition(":")[2] or 0)

        def copied(made: Iterator[Fed]) -> Iterator[Fed]:
            for batch, inputs in made:
                time.sleep(transfer * batch.data.num_rows)
                yield Fed(batch, replace(inputs, seconds={**inputs.seconds, "transfer": transfer * batch.data.num_rows}))

        with ExitStack() as stack:
            made: Iterator[Fed] = (Fed(batch, prepare(batch.data)) for batch in source)
            if config.num_workers:
                pool = stack.enter_context(ThreadPoolExecutor(config.num_workers))
                ahead = stack.enter_context(read_ahead(source, 1))
                made = stack.enter_context(read_ahead(_in_threads(ahead, prepare, pool, config.num_workers + 1), 1))
            made = copied(made)
            yield stack.enter_context(read_ahead(made, config.prefetch_batches, meter)) if config.prefetch_batches else made

    def load(self, plan: ModelPlan, files: Any, device: str, threads: int) -> SleepingModel:
        """Sleep for the load."""
        del files, device
        pipeline = self.costs[plan.fingerprint]
        time.sleep(pipeline.load)
        return SleepingModel(replace(pipeline, threads=threads))


def _in_threads(source: Iterator[Any], prepare: Any, pool: ThreadPoolExecutor, ahead: int) -> Iterator[Fed]:
    waiting: list[Any] = []
    for batch in source:
        waiting.append((batch, pool.submit(prepare, batch.data)))
        if len(waiting) > ahead:
            first, made = waiting.pop(0)
            yield Fed(first, made.result())
    for first, made in waiting:
        yield Fed(first, made.result())


class SleepingModel:
    """Answers ``LoadedModel``."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Keep the costs."""
        self._pipeline = pipeline

    def predict(self, inputs: Inputs) -> Any:
        """Sleep for a call."""
        (array,) = inputs.arrays.values()
        time.sleep((self._pipeline.call + self._pipeline.row * len(array)) * self._pipeline.crowd)
        return array

    def device_peak_bytes(self) -> None:
        """None."""

    def device_bytes(self) -> None:
        """None."""

    def release(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class SleepingSpec:
    """Answers ``Describable``."""

    pipeline: Pipeline
    run: int = 0  # another run, another worker: nothing is loaded

    def describe(self) -> ModelPlan:
        """Name the backend, and remember the costs."""
        fingerprint = str(hash((self.pipeline, self.run)))
        SleepingBackend.costs[fingerprint] = self.pipeline
        return ModelPlan(backend="sleeping", kind="sleeping", fingerprint=fingerprint, label="a sleeping model")


def install() -> None:
    """Make the backend known to the loop, in this process."""
    module = ModuleType("sparkinfer.backends.sleeping")
    module.BACKEND = SleepingBackend()  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module


class Source:
    """Chunks that come as slowly as the pipeline's source gives them."""

    def __init__(self, rows: int, each: float) -> None:
        """Keep how many, and the seconds of one."""
        self._rows, self._each = rows, each

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Begin anew."""
        for start in range(0, self._rows, CHUNK):
            rows = min(CHUNK, self._rows - start)
            time.sleep(self._each * rows)
            yield pa.RecordBatch.from_pydict({"x": np.arange(float(rows))})


def sleeping_preprocess(each: float) -> Any:
    """Make a function that sleeps for every row."""

    def preprocess(x: np.ndarray) -> np.ndarray:
        time.sleep(each * len(x))
        return x

    return preprocess


def pipelines(many: int, seed: int, only: str | None = None) -> list[Pipeline]:
    """Draw as many of each kind as there is room for."""
    chance = random.Random(seed)  # noqa: S311 - sample data
    return [drawn(only or KINDS[position % len(KINDS)], chance) for position in range(many)]
