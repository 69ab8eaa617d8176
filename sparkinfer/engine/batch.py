"""The values that travel through the loop: a batch of rows, the inputs made of it, and a failure as data.

Runs on: worker.

Invariant: these are plain frozen values; a failure crosses process borders as data and loses neither its first cause nor
its place.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from sparkinfer.exceptions import SparkInferError

_LONGEST_MESSAGE = 2000  # characters; some frameworks tell the whole model, and Python's own errors a whole text
_LONGEST_TRACEBACK = 20_000
_NOT_THE_USERS = re.compile(r"/sparkinfer/(engine|backends|spark)/|/site-packages/|/dist-packages/|/lib/python3|^<frozen|\.px[di]$|\.pyx$")

__all__ = ["BadRow", "Batch", "Breach", "Failure", "Fault", "Fed", "Inputs", "Style", "bounded", "traced"]

Style = Literal["single", "positional", "named"]


def bounded(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Make a text fit to be shown: no longer than ``longest`` characters but for a note in its middle, and UTF-8.

    A cell of 10 MB in a message would go through Spark's logs several times, and one lone surrogate in it would lose the whole message.

    Example:
        >>> bounded("x" * 100, 20)
        'xxxxxxxxxxxxxxx [... 80 characters ...] xxxxx'
    """
    if len(text) > longest:
        tail = longest // 4
        text = f"{text[: longest - tail]} [... {len(text) - longest} characters ...] {text[-tail:]}"
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Batch:
    """Rows of one model call, as they came.

    Attributes:
        index: the batch's number in the partition, from 0.
        data: the input columns (and the key columns), at most ``batch_size`` rows. No rows at all is allowed: such a batch
            only carries the news that chunks went by.
        rows: the number in the partition of each row of ``data``.
    """

    index: int
    data: pa.RecordBatch
    rows: range | np.ndarray


@dataclass(frozen=True)
class Inputs:
    """What one model call gets.

    Attributes:
        style: ``single``: one array, ``model(x)``. ``positional``: ``model(a, b)``. ``named``: ``model(a=..., b=...)``.
        arrays: by name, in order; each ``(rows, *shape)``, NumPy arrays or (after a feed) tensors of the backend. Text is an
            object array of ``str``, bytes an object array of ``bytes``.
        seconds: how long each producer stage was at work on them, where it was measured.
        bad: rows of the batch that are in no array, where ``on_error="null"``.
    """

    style: Style
    arrays: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    bad: tuple[BadRow, ...] = ()


class Fault(Exception):  # noqa: N818 - never leaves the library: it becomes the public error that it names
    """A fault inside one batch, told in the batch's own terms; the loop adds partition and row and raises ``kind``."""

    def __init__(
        self, kind: type[SparkInferError], text: str, *, column: str | None = None, row: int | None = None, stage: str | None = None
    ) -> None:
        """Keep what happened.

        Args:
            kind: the public error that this becomes.
            text: what was expected, what came, and what to do; without the place. A long one loses its middle.
            column: the input column, if one is to blame.
            row: the row within the batch, from 0, if one is to blame.
            stage: where it happened, if ``kind`` does not say so.
        """
        self.text = bounded(text)
        super().__init__(self.text)
        self.kind = kind
        self.column = column
        self.row = row
        self.stage = stage or _STAGES.get(kind.__name__, "predict")


class Breach(Fault):
    """No row's fault: a function broke its contract, such as rows out = rows in. Smaller batches would only hide it."""


_STAGES = {"SchemaError": "decode", "PreprocessError": "preprocess", "PredictError": "predict", "OutputError": "encode"}


@dataclass(frozen=True)
class Failure:
    """A fault as data: what a loader process sends back instead of inputs.

    Attributes:
        kind: the public error that it becomes.
        text: what happened, without the place.
        column: the input column, if one is to blame.
        row: the row within the batch, from 0, if one is to blame.
        cause: the first cause's traceback as text, or nothing. A long one loses its middle.
        raised_in: the innermost lines of the user's own code, as ``helper (job.py:14), called from prepare (job.py:16)``, or nothing. Spark
            drops chained causes from what the driver shows, so the message itself has to say it.
        final: the rows have ended processes, and are not to be prepared once more to find out which it was.
    """

    kind: type[SparkInferError]
    text: str
    column: str | None = None
    row: int | None = None
    cause: str = ""
    raised_in: str = ""
    final: bool = False

    @classmethod
    def of(cls, fault: Fault) -> Failure:
        """Turn a caught fault, and what it was raised from, into data."""
        first = fault.__cause__
        cause = traced(first) if first is not None else ""
        return cls(fault.kind, fault.text, fault.column, fault.row, bounded(cause, _LONGEST_TRACEBACK), _raised_in(first))


@dataclass(frozen=True)
class BadRow:
    """A row without a prediction, and why: what the error column says of it.

    Attributes:
        row: the row within the batch, from 0.
        stage: decode, preprocess, predict, postprocess or encode.
        type: of the first cause, such as ``ValueError``.
        message: what happened; at most 2,000 characters.
    """

    row: int
    stage: str
    type: str
    message: str

    @classmethod
    def of(cls, fault: Fault, row: int) -> BadRow:
        """Take the reason from a fault; nothing of the fault is kept, whose traceback may hold a whole batch."""
        column = f" (column {fault.column!r})" if fault.column is not None else ""
        where = _raised_in(fault.__cause__)
        message = f"{fault.text}{column}{f'. Raised in {where}' if where else ''}"
        named = type(fault.__cause__) if fault.__cause__ is not None else fault.kind
        return cls(row, fault.stage, named.__name__, message[:_LONGEST_MESSAGE])


def traced(error: BaseException) -> str:
    """Give an exception as Python prints it."""
    return "".join(traceback.format_exception(error))


def _raised_in(error: BaseException | None) -> str:
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    own = [frame for frame in frames if not _NOT_THE_USERS.search(frame.filename.replace("\\", "/"))]
    return ", called from ".join(f"{frame.name} ({_line_of(frame)})" for frame in reversed(own[-2:]))


def _line_of(frame: traceback.FrameSummary) -> str:
    file = frame.filename.replace("\\", "/").rpartition("/")[2]
    return f"line {frame.lineno}" if file.startswith("<") else f"{file}:{frame.lineno}"  # cloudpickle leaves a notebook's files unnamed


class Fed(NamedTuple):
    """A batch with the inputs made of it, ready for the model."""

    batch: Batch
    inputs: Inputs | Failure


Result = Any  # what a model gives back: one array, a sequence of arrays, or a mapping of arrays
Arrays = Mapping[str, Any] | Sequence[Any]
