"""Short batches, a partition's last one above all, filled up to full ones where another number of rows would cost a compilation.

Runs on: worker.

Invariant: the rows that fill a batch are repeats of its last one; what the model answers to them is cut off before anyone sees it, and the
number of its answers is checked before that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkinfer.engine.encode import check_rows
from sparkinfer.engine.fitting import most_rows
from sparkinfer.engine.repeating import rows_of

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.contracts import LoadedModel, ModelPlan

__all__ = ["Padded", "with_full_batches"]


def with_full_batches(
    model: LoadedModel, plan: ModelPlan, config: InferenceConfig, rows: Callable[[], int], *, retraces: bool
) -> LoadedModel:
    """Give the model itself, or one that sees full batches only.

    Args:
        model: as the loop is to call it.
        plan: tells of a batch axis that is fixed: ``options["rows"]``.
        config: ``pad_tail``.
        rows: gives the rows of a full batch, which ``batch_size="auto"`` changes until it has settled.
        retraces: the loaded model compiles anew for another number of rows.
    """
    fixed = plan.options.get("rows")
    if fixed is not None and config.pad_tail is not False:
        return Padded(model, lambda: fixed, fixed=True)
    if config.pad_tail is True or (config.pad_tail == "auto" and retraces):
        return Padded(model, rows)
    return model


class Padded:
    """Answers ``LoadedModel``; has calls under way where the model has them."""

    def __init__(self, model: LoadedModel, rows: Callable[[], int], *, fixed: bool = False) -> None:
        """Take a model.

        Args:
            model: that is called.
            rows: gives those of its next call.
            fixed: it takes no other number, so that batches that were cut for memory are filled up, too.
        """
        self._model = model
        self._rows = rows
        self._fixed = fixed
        if getattr(model, "start", None) is not None:  # what watches a model has calls one by one, and says so by None
            self.start = self._start

    def predict(self, inputs: Inputs) -> Any:
        """Run the model once, and give the answers to the rows that came."""
        rows, full, filled = self._filled(inputs)
        return self._model.predict(inputs) if filled is inputs else _cut(self._model.predict(filled), rows, full)

    def _start(self, inputs: Inputs) -> Callable[[], Any]:
        rows, full, filled = self._filled(inputs)
        wait: Callable[[], Any] = self._model.start(filled)  # type: ignore[attr-defined]  # it has one, or this would not be called
        return wait if filled is inputs else lambda: _cut(wait(), rows, full)

    def device_peak_bytes(self) -> int | None:
        """Ask the model."""
        return self._model.device_peak_bytes()

    def device_bytes(self) -> int | None:
        """Ask the model."""
        return self._model.device_bytes()

    def release(self) -> None:
        """Do nothing: the cache lets the model itself go."""

    def _filled(self, inputs: Inputs) -> tuple[int, int, Inputs]:
        rows, full = len(next(iter(inputs.arrays.values()))), self._rows()
        missing = full - rows
        if missing <= 0 or not rows or (not self._fixed and most_rows(self) is not None):  # a full batch did not fit into memory
            return rows, full, inputs
        return rows, full, replace(inputs, arrays={name: _longer(array, missing) for name, array in inputs.arrays.items()})


def _cut(answer: Any, rows: int, full: int) -> Any:
    check_rows(answer, full)
    return rows_of(answer, rows)


def _longer(array: Any, missing: int) -> Any:
    """Repeat the last row: unlike zeros, it is a row that the model takes, or that fails already."""
    if isinstance(array, list):
        return [*array, *array[-1:] * missing]
    values = np.asarray(array)  # a feed's tensor, too: models take arrays as well
    return np.concatenate([values, np.repeat(values[-1:], missing, axis=0)])
