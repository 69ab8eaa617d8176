"""One loader process for the batches that have cost others their lives: asked one thing at a time, replaced when it dies.

Runs on: worker.

Invariant: an answer, or a ``Death`` that says at which row; the process ends with the ``with`` block.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from sparkinfer.engine.batch import Failure, Fault, Inputs
from sparkinfer.engine.lifeline import Lifeline, loader_context
from sparkinfer.engine.watch import LoaderProcessDied, PreprocessTimeout, Slot, Slots, at_batch, how_it_ended
from sparkinfer.exceptions import PreprocessError
from sparkinfer.pickling import dumps, loads

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from sparkinfer.engine.contracts import PrepareStep

__all__ = ["Cell", "Death", "from_bytes", "to_bytes"]


class Death(Fault):
    """The end of a loader process, told as a fault of what it was at."""

    def __init__(self, text: str, column: str | None, row: int | None, *, late: bool) -> None:
        """Keep what happened; ``late``: it was ended for being at it for too long."""
        super().__init__(PreprocessError, text, column=column, row=row)
        self.late = late
        self.__cause__ = (PreprocessTimeout if late else LoaderProcessDied)(text)

    @classmethod
    def of(cls, slot: Slot | None, slots: Slots, code: int | None, column: str | None) -> Death:
        """Tell it from what the dead process has written, and its exit code."""
        row = slot.row if slot is not None and slot.row >= 0 else None
        at = "this row" if row is not None else "this batch"
        if slot is not None and slots.was_late(slot, code):
            text = (
                f"preprocess took more than preprocess_timeout_seconds={slots.timeout_seconds:g} for {at}, and did not give way to an "
                "exception: its loader process was killed"
            )
            return cls(text, column, row, late=True)
        return cls(f"the loader process that prepared {at} {how_it_ended(code)}", column, row, late=False)


class Cell:
    """A loader process that is started when it is first asked."""

    def __init__(self, prepare: PrepareStep, timeout_seconds: float | None, preload: Sequence[str] = ()) -> None:
        """Keep what it is to run; ``preload``: see ``loader_context``."""
        self._preload = preload or ("sparkinfer.engine.prepare", __name__)
        self._prepare = prepare
        self._timeout_seconds = timeout_seconds
        self._process: BaseProcess | None = None

    def __enter__(self) -> Cell:  # noqa: PYI034 - Python 3.10 has no typing.Self
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._end()

    def ask(self, data: pa.RecordBatch) -> Inputs | Failure:
        """Prepare rows.

        Raises:
            Death: the process ended; the next call has another.
        """
        if self._process is None:
            self._start()
        process = cast("BaseProcess", self._process)
        try:
            self._pipe.send_bytes(to_bytes(data))
            while not wait([self._pipe, process.sentinel], self._slots.pause_seconds if self._timeout_seconds is not None else None):
                self._slots.kill_late()
            return cast("Inputs | Failure", pickle.loads(self._pipe.recv_bytes()))  # noqa: S301 - from the process that we started
        except (EOFError, OSError):
            process.join(1)  # a connection breaks a moment before its process has ended
        death = Death.of(self._slots.of(process.pid), self._slots, process.exitcode, self._prepare.only_column)
        self._end()
        raise death

    def _start(self) -> None:
        context: Any = loader_context(*self._preload)
        self._slots = Slots(context, 1, self._timeout_seconds)
        self._pipe: Connection
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, Lifeline(), self._slots, dumps(self._prepare, "preprocess")), name="sparkinfer-cell"
        )
        self._process.start()
        theirs.close()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            self._pipe.close()


def to_bytes(data: pa.RecordBatch) -> bytes:
    """Arrow IPC sends only the slice; pickle would send the whole chunk that it is a view of."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_batch(data)
    return cast("bytes", sink.getvalue().to_pybytes())


def from_bytes(data: bytes) -> pa.RecordBatch:
    """Read it again, without a copy."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def _serve(pipe: Connection, lifeline: Lifeline, slots: Slots, pickled: bytes) -> None:
    lifeline(0)
    slots.sit()
    step: PrepareStep = loads(pickled, "preprocess")
    while True:
        data = from_bytes(pipe.recv_bytes())
        with at_batch(1):
            made = step(data)
        pipe.send_bytes(pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
