"""Start the next batches on the device before the last one's results are waited for.

Runs on: worker.

::

    device     [copy 1][ compute 1 ][ compute 2 ][ compute 3 ]
                    [copy 2]    [copy 3]
    this thread     start 3 · wait 1 · encode 1 · hand over 1 · start 4 · wait 2 · ...

Invariant: results come in the batches' order; what cannot be started, or fails there, is left to the ordinary call, which finds out why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sparkinfer.engine.batch import Failure
from sparkinfer.engine.fitting import most_rows

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Batch, Fed, Inputs
    from sparkinfer.engine.contracts import LoadedModel
    from sparkinfer.engine.recorder import NoRecorder

__all__ = ["Started", "started_ahead"]

_UNDER_WAY = 2  # beside the batch whose results are waited for: one computes, one is copied; with 1 a simulated card stood still for a fifth of its time


class Started:
    """A call that is under way on a device; calling it waits for its results, once."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        """Keep what waits."""
        self._wait = wait
        self.used = False

    def __call__(self) -> Any:
        """Give the results, or raise what became of the call."""
        self.used = True
        return self._wait()


def started_ahead(
    fed: Iterator[Fed], model: LoadedModel, recorder: NoRecorder, unseen: Callable[[Batch], bool] = lambda _: False
) -> Iterator[tuple[Batch, Inputs | Failure, Started | None]]:
    """Give each batch, its inputs, and its call where one is under way.

    Args:
        fed: batches, ready for the model.
        model: one with a method ``start(inputs)``, which begins a call and gives what waits for its results, has calls under way.
        recorder: is told when input came, and when a call was started.
        unseen: tells a batch of which the model is to see no row.
    """
    start = getattr(model, "start", None)
    waiting: deque[tuple[Batch, Inputs | Failure, Started | None]] = deque()
    for batch, inputs in fed:
        recorder.lap("input_wait")
        started = None
        if start is not None and _may_start(model, batch, inputs) and not unseen(batch):
            started = _start(start, inputs)
            recorder.started()
        waiting.append((batch, inputs, started))
        if start is None or len(waiting) > _UNDER_WAY:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def _may_start(model: LoadedModel, batch: Batch, inputs: Inputs | Failure) -> bool:
    """Leave out what has nothing to compute, and what is known not to fit at once."""
    most = most_rows(model)
    return not isinstance(inputs, Failure) and batch.data.num_rows > len(inputs.bad) and (most is None or batch.data.num_rows <= most)


def _start(start: Callable[[Any], Callable[[], Any]], inputs: Any) -> Started | None:
    try:
        return Started(start(inputs))
    except Exception:  # noqa: BLE001 - the ordinary call meets it again, in its batch's turn, and makes the public error of it
        return None
