"""The same rows through two plans in turn, again and again: how fast each is, and how far the answers are apart.

Runs on: worker (or in any process).

Invariant: both plans get the same record batches, from memory; they take turns at being the first of a round, and rounds of one partition are paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkinfer.engine.partition import run_partition
from sparkinfer.engine.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkinfer.engine.partition import Files, PartitionPlan

__all__ = ["CompareWork", "column_difference"]

_LEAST_ROUNDS, _MOST_ROUNDS = 3, 8


@dataclass(frozen=True, kw_only=True)
class CompareWork:
    """What is done with a partition; picklable, to be called where the partition is.

    Attributes:
        first: the one that the other is compared with.
        second: the other; of the same columns.
        rows: of the partition, at least; whole chunks are taken, and cut.
        seconds: to spend, in about.
    """

    first: PartitionPlan
    second: PartitionPlan
    rows: int
    seconds: float

    def __call__(
        self,
        chunks: Iterator[pa.RecordBatch],
        *,
        files: Callable[[], Files],
        partition: int = 0,
        cpus: int = 1,
        addresses: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Compare on the first rows of a partition.

        Args:
            chunks: as in ``run_partition``; no more of them is pulled than is needed.
            files: of both plans, as in ``run_partition``.
            partition: as in ``run_partition``.
            cpus: likewise.
            addresses: likewise.

        Returns:
            ``rows``; ``rounds``, each of ``[seconds, model's seconds]`` of the first and of the second; ``outputs``: differences by column. Nothing of a
            partition without rows.

        Raises:
            SparkInferError: as ``run_partition`` does.
        """
        sample = _first(chunks, self.rows)
        rows = sum(chunk.num_rows for chunk in sample)
        if not rows:
            return {}

        def run(plan: PartitionPlan, batches: list[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], list[float]]:
            recorder = Recorder(clock=time.perf_counter)
            begun = time.perf_counter()
            done = list(
                run_partition(plan, iter(batches), files=files, partition=partition, cpus=cpus, addresses=addresses, recorder=recorder)
            )
            took = time.perf_counter() - begun
            return done, [took, recorder.figures()["stages"]["compute"]]

        kept = max(2, self.first.config.models_per_worker)  # both stay loaded
        plans = [replace(plan, config=replace(plan.config, models_per_worker=kept)) for plan in (self.first, self.second)]
        for plan in plans:
            run(plan, [sample[0].slice(0, plan.config.batch_rows)])  # loads, and warms up
        rounds: list[list[list[float]]] = []
        answers: list[list[pa.RecordBatch]] = [[], []]
        until = time.perf_counter() + self.seconds
        while len(rounds) < _MOST_ROUNDS and (len(rounds) < _LEAST_ROUNDS or time.perf_counter() < until):
            took: list[list[float]] = [[], []]
            for side in (0, 1) if len(rounds) % 2 == 0 else (1, 0):
                answers[side], took[side] = run(plans[side], sample)
            rounds.append(took)
        outputs = {column.name: _difference(column.name, *answers) for column in self.first.outputs}
        return {"rows": rows, "rounds": rounds, "outputs": outputs}


def _first(chunks: Iterator[pa.RecordBatch], rows: int) -> list[pa.RecordBatch]:
    kept: list[pa.RecordBatch] = []
    for chunk in chunks:
        kept.append(chunk.slice(0, rows))
        rows -= chunk.num_rows
        if rows <= 0:
            break
    return [chunk for chunk in kept if chunk.num_rows]


def _difference(name: str, one: list[pa.RecordBatch], other: list[pa.RecordBatch]) -> dict[str, Any]:
    columns = [
        pa.chunked_array([chunk.column(chunk.schema.get_field_index(name)) for chunk in chunks]).combine_chunks() for chunks in (one, other)
    ]
    whole = [pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return column_difference(whole[0], whole[1])


def column_difference(one: pa.Array, other: pa.Array) -> dict[str, Any]:
    """Tell how far two columns of the same type and length are apart.

    Returns:
        ``rows``; ``changed``: rows whose label (a text, a whole number, a truth value) or whose greatest value's place (of a vector) is another, where the
        column has such; of floats ``values``, ``max_abs``, ``sum_abs`` (of the differences), ``sum_reference`` (of the first's absolute values), over the
        values that are finite in both, and ``lost``: those that are finite in one of them only.

    Example:
        >>> told = column_difference(pa.array([[0.1, 0.9], [0.6, 0.4]]), pa.array([[0.1, 0.9], [0.4, 0.6]]))
        >>> told["rows"], told["changed"], round(told["max_abs"], 3)
        (2, 1, 0.2)
    """
    told: dict[str, Any] = {"rows": len(one)}
    first, second = _numbers(one), _numbers(other)
    if first is None or second is None:
        same = pc.fill_null(pc.equal(one, other), fill_value=False) if _is_label(one.type) else pa.array(_equal(one, other))
        both_null = pc.and_(one.is_null(), other.is_null())
        return {**told, "changed": len(one) - int(pc.sum(pc.or_(same, both_null)).as_py() or 0)}
    if len(first) != len(second):
        return {**told, "changed": len(one), "lost": max(len(first), len(second))}
    finite = np.isfinite(first) & np.isfinite(second)
    apart = np.abs(first[finite] - second[finite])
    told |= {
        "values": int(finite.sum()),
        "lost": int(np.count_nonzero(np.isfinite(first) != np.isfinite(second))),
        "max_abs": float(apart.max()) if apart.size else 0.0,
        "sum_abs": float(apart.sum()),
        "sum_reference": float(np.abs(first[finite]).sum()),
    }
    rows = len(one) - one.null_count
    width = len(first) // rows if rows and _is_list(one.type) and not _is_list(one.type.value_type) else 0
    if width > 1 and pc.min(pc.list_value_length(one)).as_py() == pc.max(pc.list_value_length(one)).as_py():
        places = [column.reshape(rows, width).argmax(axis=1) for column in (first, second)]
        told["changed"] = int(np.count_nonzero(places[0] != places[1]))
    return told


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_label(kind: pa.DataType) -> bool:
    return not types.is_nested(kind)


def _equal(one: pa.Array, other: pa.Array) -> list[bool]:
    """Compare what Arrow cannot: lists and structs."""
    return [a == b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)]


def _numbers(column: pa.Array) -> np.ndarray | None:
    """Give all floating values of a column, one after the other, nulls among them as NaN; nothing where it has others."""
    while _is_list(column.type):
        column = column.drop_null().flatten()
    if not types.is_floating(column.type):
        return None
    numbers: np.ndarray = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return numbers
