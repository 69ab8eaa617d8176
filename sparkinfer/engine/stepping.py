"""Stop in the debugger where a row is about to be preprocessed, scored, or postprocessed.

Runs on: driver (``predict_local(stop_at=)``): everything on one thread.

Invariant: it stops once, at the batch that holds the row, and changes no answer. A partition that is not stepped through runs the very objects that it
would run without this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparkinfer.engine.profiling import NoProfiling
from sparkinfer.engine.recorder import NoRecorder

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Batch, Inputs
    from sparkinfer.engine.contracts import LoadedModel

__all__ = ["STAGES", "Stepping", "Stopping"]

STAGES = ("preprocess", "predict", "postprocess")
_open: list[Stepping] = []  # the one that steps: what is unpickled in the loop finds it here


class Stepping(NoRecorder, NoProfiling):
    """Follows the batches of a partition, and knows where to stop.

    Args:
        stage: one of ``STAGES``.
        row: the number in the partition.
    """

    def __init__(self, stage: str, row: int) -> None:
        """Begin before the first batch."""
        self.stage, self.row = stage, row
        self.stopped = False
        self._rows: Any = ()
        self._calls = 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Be the one that steps."""
        _open.append(self)
        try:
            yield
        finally:
            _open.remove(self)

    def batches(self, first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
        """Note which batch is next."""
        self._begin(first)
        return self._noted(rest)

    def _noted(self, rest: Iterator[Batch]) -> Iterator[Batch]:
        for batch in rest:
            self._begin(batch)
            yield batch

    def _begin(self, batch: Batch) -> None:
        self._rows, self._calls = batch.rows, 0

    @contextmanager
    def watching(self, model: LoadedModel, device: str, recorder: NoRecorder, prepare: Callable[[], Any]) -> Iterator[LoadedModel]:
        """Give a model that stops before its call."""
        del device, recorder, prepare
        yield _StoppingModel(model)

    def is_here(self, stage: str, *, one_row: bool = False) -> bool:
        """Tell whether this call is the one to stop at; of calls for one row each, they are the batch's rows in turn."""
        if self.stopped or stage != self.stage:
            return False
        if one_row:
            here = self._rows[self._calls : self._calls + 1]
            self._calls += 1
        else:
            here = self._rows
        self.stopped = self.row in here
        return self.stopped


class Stopping:
    """The user's function, and a stop before it."""

    def __init__(self, function: Callable[..., Any], stage: str, *, one_row: bool = False) -> None:
        """Wrap it."""
        self.function, self.stage, self.one_row = function, stage, one_row

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Stop if this is the place; a step from here leads into the function."""
        if _stops(self.stage, one_row=self.one_row):
            breakpoint()  # noqa: T100 - it is what was asked for
        return self.function(*values, **named)


class _StoppingModel:
    """A loaded model, and a stop before its call."""

    start = None  # nothing is under way beside the call that is looked at

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict(self, inputs: Inputs) -> Any:
        if _stops("predict"):
            breakpoint()  # noqa: T100 - it is what was asked for
        return self._model.predict(inputs)


def _stops(stage: str, *, one_row: bool = False) -> bool:
    return bool(_open) and _open[-1].is_here(stage, one_row=one_row)
