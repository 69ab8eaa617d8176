"""Figures of the columns that come out: numbers by bucket, labels by name, and the greatest of each row of a vector.

Runs on: worker.

Invariant: each value of a chunk is counted once under its column, whatever lists and structs it lies in; what has neither numbers nor labels (bytes, times) is
left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkinfer.insides import Labels, Values, most_labels

__all__ = ["output_figures"]

_WIDEST = 100_000  # of a vector whose greatest value's place is told


def output_figures(chunk: pa.RecordBatch) -> dict[str, Values | Labels]:
    """Count each column of a chunk.

    Example:
        >>> chunk = pa.RecordBatch.from_pydict({"y": [[0.1, 0.9], [0.3, 0.7]], "label": ["cat", "cat"]})
        >>> {name: seen.count for name, seen in output_figures(chunk).items()}
        {'y': 4, 'argmax of y': 2, 'label': 2}
    """
    seen: dict[str, Values | Labels] = {}
    for name, column in zip(chunk.schema.names, chunk.columns, strict=True):
        seen.update(_figures(name, column))
    return seen


def _figures(name: str, column: pa.Array) -> Iterator[tuple[str, Values | Labels]]:
    if types.is_struct(column.type):
        for field, inner in zip(column.type, column.flatten(), strict=True):  # a null struct's fields are null
            yield from _figures(f"{name}.{field.name}", inner)
        return
    nulls = column.null_count
    values = column
    while _is_list(values.type):
        values = values.drop_null().flatten()
        nulls += values.null_count
    there = values.drop_null()
    if types.is_decimal(there.type):
        there = there.cast(pa.float64())
    if types.is_floating(there.type):
        numbers = there.to_numpy(zero_copy_only=False)
        yield name, Values.of(numbers, nulls=nulls)
        greatest = _greatest(column, numbers) if values.null_count == 0 else None
        if greatest is not None:
            yield f"argmax of {name}", greatest
    elif types.is_integer(there.type) or types.is_boolean(there.type) or types.is_string(there.type) or types.is_large_string(there.type):
        yield name, _labels(there, nulls)


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _greatest(column: pa.Array, values: np.ndarray) -> Labels | None:
    """Count the places of the greatest values, where each row is a vector of the same length; a NaN is no greatest value, and its row counts as null."""
    rows = len(column) - column.null_count
    if not _is_list(column.type) or _is_list(column.type.value_type) or not rows:
        return None
    width = len(values) // rows
    lengths = pc.list_value_length(column).drop_null()
    if not 2 <= width <= _WIDEST or pc.min(lengths).as_py() != pc.max(lengths).as_py():
        return None
    table = values.reshape(rows, width)
    whole = table[~np.isnan(table).any(axis=1)]
    places, counts = np.unique(whole.argmax(axis=1), return_counts=True)
    told = {str(place): int(count) for place, count in zip(places, counts, strict=True)}
    return Labels(counts=most_labels(told), nulls=column.null_count + rows - len(whole))


def _labels(there: pa.Array, nulls: int) -> Labels:
    counted = there.value_counts()
    told: dict[str, int] = {}
    for entry in counted:
        told[str(entry["values"].as_py())] = entry["counts"].as_py()
    return Labels(counts=most_labels(told), nulls=nulls)
