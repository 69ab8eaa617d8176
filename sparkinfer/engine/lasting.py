"""What lives as long as the Python worker is kept out of the garbage collector's sight.

Runs on: worker.

pyspark collects all garbage after every task, and a full collection looks at every object there is: with PyTorch imported that is 0.1 s of each task,
while the next one waits for its worker. ``gc.freeze`` has it look at new objects only.

Invariant: a model that is let go can be collected; what was frozen beside it is looked at once more, too.
"""

from __future__ import annotations

import gc

__all__ = ["Lasting", "process_objects"]


class Lasting:
    """Keeps the objects of loaded models, and all the modules that came with them, frozen."""

    def __init__(self) -> None:
        """Freeze nothing yet."""
        self._new = False
        self._frozen = False

    def loaded(self) -> None:
        """Hear that something came that will stay."""
        self._new = True

    def settle(self) -> None:
        """Freeze what is there, if something new came; to be called between tasks, when garbage has just been collected."""
        if self._new:
            gc.freeze()
            self._new, self._frozen = False, True

    def released(self) -> None:
        """Show the collector everything again, before something that stayed is let go; the next ``settle`` freezes what remains."""
        if self._frozen:
            gc.unfreeze()
            self._new, self._frozen = True, False


process_objects = Lasting()
"""The objects of this Python process."""
