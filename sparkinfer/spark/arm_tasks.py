"""What the tasks of a diagnosis's arms do beside scoring: read, take a sample, call the model again and again.

Runs on: worker.

Invariant: figures and samples are bounded by rows, bytes and seconds; nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from sparkinfer.engine.placement import card_of
from sparkinfer.engine.probe import call_model, pull, within
from sparkinfer.spark.packed import packed, unpacked
from sparkinfer.spark.ship import ShippedFile, locate
from sparkinfer.spark.worker import cards_of

if TYPE_CHECKING:
    from sparkinfer.engine.partition import PartitionPlan

__all__ = ["Alone", "Brought", "Sampled"]


@dataclass(frozen=True)
class Sampled:
    """The first rows of a partition.

    Attributes:
        rows: at least; whole chunks come.
        most_bytes: of a partition's sample; 0 for any number.
        seconds: to spend.
    """

    rows: int
    most_bytes: int
    seconds: float

    def take(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give them, as a ``mapInArrow`` function."""
        size = 0
        for chunk in within(chunks, self.rows, self.seconds):
            yield chunk
            size += chunk.nbytes
            if self.most_bytes and size > self.most_bytes:
                return

    def pack(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give them as bytes, and of a chunk that is too large as many rows as fit, but one at least."""
        left = self.most_bytes
        for chunk in self.take(chunks):
            fit = chunk if chunk.nbytes <= left else chunk.slice(0, max(1, chunk.num_rows * max(left, 0) // chunk.nbytes))
            yield packed(fit)
            left -= fit.nbytes

    def read(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Tell what reading them took."""
        told = json.dumps(asdict(pull(chunks, self.rows, self.seconds)))
        yield pa.RecordBatch.from_pydict({"told": pa.array([told], pa.string())})


class Brought:
    """What ``Sampled.pack`` packed, in arrays."""

    def unpack(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the rows, as a ``mapInArrow`` function."""
        for chunk in chunks:
            yield from unpacked(row.as_buffer() for row in chunk.column(0).flatten())


@dataclass(frozen=True)
class Alone:
    """The model on a partition's first rows, again and again."""

    plan: PartitionPlan
    files: tuple[ShippedFile, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    seconds: float

    def run(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Tell what it took, as a ``mapInArrow`` function."""
        first = next((chunk for chunk in chunks if chunk.num_rows), None)
        if first is None:
            return
        for _ in chunks:  # a task that leaves rows unread costs the Python worker, and with it the loaded model (4.3)
            pass
        data = pa.RecordBatch.from_arrays(first.columns, names=list(self.names)).select(list(self.plan.columns))
        context = TaskContext.get()
        cpus = max(1, context.cpus()) if context is not None else 1
        called = call_model(
            self.plan,
            data.slice(0, max(self.sizes)),
            files=lambda: locate(self.files),
            sizes=self.sizes,
            seconds=self.seconds,
            cpus=cpus,
            card=card_of(cards_of(context), os.environ.get("CUDA_VISIBLE_DEVICES")) if context is not None else None,
        )
        told = json.dumps({**asdict(called), "cpus": cpus})
        yield pa.RecordBatch.from_pydict({"told": pa.array([told], pa.string())})
