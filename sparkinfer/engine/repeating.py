"""A model that repeats the first answers of another one: what is left of a partition's time is everything but the model.

Runs on: worker.

Invariant: the answers have the model's own types and shapes, since they are its own, and one row for each row that came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.contracts import LoadedModel

__all__ = ["Repeating", "rows_of"]


class Repeating:
    """Answers ``LoadedModel``: calls the model once, lets go of it, and repeats the rows of its answer."""

    def __init__(self, model: LoadedModel) -> None:
        """Take a model that nobody else holds."""
        self._model: LoadedModel | None = model
        self._answer: Any = None

    def predict(self, inputs: Inputs) -> Any:
        """Give as many rows as came."""
        rows = len(next(iter(inputs.arrays.values())))
        if self._model is not None:
            self._answer = self._model.predict(inputs)
            self.release()
        return rows_of(self._answer, rows)

    def device_peak_bytes(self) -> None:
        """Give nothing: the model is gone."""

    def device_bytes(self) -> None:
        """Give nothing: the model is gone."""

    def release(self) -> None:
        """Let go of the model, if it is still there."""
        model, self._model = self._model, None
        if model is not None:
            model.release()


def rows_of(answer: Any, rows: int) -> Any:
    """Take the first rows of each output, or all of them again and again."""
    if isinstance(answer, Mapping):
        return {name: rows_of(value, rows) for name, value in answer.items()}
    if isinstance(answer, tuple):
        return tuple(rows_of(value, rows) for value in answer)
    if isinstance(answer, list):
        if answer and all(len(getattr(item, "shape", ())) for item in answer):  # several outputs
            return [rows_of(value, rows) for value in answer]
        return [answer[row % len(answer)] for row in range(rows)]
    again = np.arange(rows) % len(answer)
    if hasattr(answer, "iloc"):
        return answer.iloc[again]
    return answer[:rows] if rows <= len(answer) else answer[again]
