"""How an output compares with the label column: counted chunk by chunk, as chunks go out.

Runs on: worker (``not_compared`` on the driver).

Invariant: no row is looked at in Python; what was compared is bounded, whatever the columns hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkinfer.exceptions import nearest
from sparkinfer.quality import MOST_PAIRS, Quality

if TYPE_CHECKING:
    from sparkinfer.engine.encode import OutputColumn

__all__ = ["Comparison", "not_compared"]


class Comparison:
    """Compares the label with the first output that has a type like it: an output of the same kind, else of numbers with numbers."""

    def __init__(self, label: str, outputs: Sequence[OutputColumn]) -> None:
        """Begin."""
        self.quality: Quality | None = None
        self._label = label
        self._outputs = outputs

    def add(self, chunk: pa.RecordBatch) -> None:
        """Compare the rows of a chunk that goes out."""
        label = chunk.column(self._label)
        found = _compared_with(label.type, self._outputs)
        if found is None:
            return
        compare = self._classes if _kind(label.type) == _kind(found.type) != "number" else self._numbers
        seen = compare(label, chunk.column(found.name), found.name)
        self.quality = seen if self.quality is None else self.quality + seen

    def _classes(self, label: pa.Array, prediction: pa.Array, output: str) -> Quality:
        common = _WIDEST[_kind(label.type)]
        table = pa.table({"label": label.cast(common), "prediction": prediction.cast(common)})
        known = table.filter(pc.and_(pc.is_valid(table["label"]), pc.is_valid(table["prediction"])))
        left_out = table.num_rows - known.num_rows
        grouped = known.group_by(["label", "prediction"], use_threads=False).aggregate([([], "count_all")])
        if grouped.num_rows <= MOST_PAIRS:
            keys = zip(grouped["label"].to_pylist(), grouped["prediction"].to_pylist(), strict=True)
            pairs = dict(zip(keys, grouped["count_all"].to_pylist(), strict=True))
            return Quality.of_classes(self._label, output, pairs, left_out)
        right = pc.sum(pc.equal(known["label"], known["prediction"])).as_py()
        return Quality(label=self._label, output=output, compared=known.num_rows, left_out=left_out, right=right)

    def _numbers(self, label: pa.Array, prediction: pa.Array, output: str) -> Quality:
        with np.errstate(all="ignore"):  # what is no finite number is left out
            error = np.abs(_floats(label) - _floats(prediction))
        known = error[np.isfinite(error)]
        left_out = len(error) - len(known)
        return Quality(label=self._label, output=output, compared=len(known), left_out=left_out, absolute_error=float(known.sum()))


def not_compared(label: str, *, road: str, keep: Sequence[str], outputs: Sequence[OutputColumn]) -> str:
    """Say why a call's predictions were not compared with the label column, and what to do."""
    asked = f"label={label!r} was not compared"
    advice = f"predict(..., road='map', keep=[{label!r}, ...])"
    if road != "map":
        return f"{asked}: on the {road} road the label does not come to the workers. Say {advice}"
    if label not in keep:
        return f"{asked}: it is none of the kept columns. {nearest(label, keep)} Say {advice}"
    told = ", ".join(f"{column.name} {column.type}" for column in outputs)
    return (
        f"{asked}: no output has a type that compares with it ({told}). Texts compare with texts, booleans with booleans, numbers with numbers: "
        f"cast the label, or declare such an output, and say {advice}"
    )


_WIDEST: dict[str | None, pa.DataType] = {"text": pa.large_string(), "boolean": pa.bool_(), "integer": pa.int64()}


def _kind(of: pa.DataType) -> str | None:
    if types.is_string(of) or types.is_large_string(of):
        return "text"
    if types.is_boolean(of):
        return "boolean"
    if types.is_integer(of):
        return "integer"
    return "number" if types.is_floating(of) or types.is_decimal(of) else None


def _compared_with(label: pa.DataType, outputs: Sequence[OutputColumn]) -> OutputColumn | None:
    kind = _kind(label)
    kinds = (kind, "number", "integer") if kind in {"integer", "number"} else (kind,)
    return next((column for wanted in kinds if wanted for column in outputs if _kind(column.type) == wanted), None)


def _floats(column: pa.Array) -> np.ndarray:
    """Give the numbers as doubles; a null is a NaN."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
