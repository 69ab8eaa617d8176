"""What can go wrong, as a small tree of exceptions, and where it went wrong, as a value.

Runs on: both (standard library only).

Invariant: every message says what was expected, what came, where, and what to do.

::

    SparkInferError
    ├── ConfigError             a setting or an argument is wrong                    (driver)
    ├── SchemaError             a column, type, shape or null does not fit           (driver, worker)
    ├── MissingDependencyError  a package that this call needs is not installed      (driver, worker)
    ├── ReadError               a file cannot be read, or changed since              (driver, worker)
    ├── ModelLoadError          a model cannot be read, shipped or built             (driver, worker)
    ├── PreprocessError         the user's preprocess raised, hung or killed         (worker)
    ├── LoaderProcessError      loader processes died, and no row is to blame        (worker)
    ├── PredictError            the model raised, or gave back the wrong rows        (worker)
    ├── OutputError             what the model gave does not fit the declared output (worker)
    └── BadRowsError            more rows are bad than was allowed                   (worker)
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

__all__ = [
    "BadRowsError",
    "CallSite",
    "ConfigError",
    "LoaderProcessError",
    "MissingDependencyError",
    "ModelLoadError",
    "OutputError",
    "Place",
    "PredictError",
    "PreprocessError",
    "ReadError",
    "SchemaError",
    "SparkInferError",
    "SparkInferWarning",
    "nearest",
    "remark",
]


_MOST_NAMES = 60  # in a message; tables of thousands of columns are common
_LONGEST_NAME = 200


class SparkInferError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigError(SparkInferError, ValueError):
    """A setting or an argument is wrong; raised on the driver, before any job."""


class SchemaError(SparkInferError, ValueError):
    """A column, type, shape or null does not fit what the model is to get."""


class MissingDependencyError(SparkInferError, ImportError):
    """A package that this call needs is not installed here; the message names the extra."""


class ReadError(SparkInferError, OSError):
    """A file that the workers read themselves is gone, has changed, or cannot be read."""


class ModelLoadError(SparkInferError, RuntimeError):
    """A model cannot be read, shipped or built."""


class PreprocessError(SparkInferError, RuntimeError):
    """The user's function before the model raised (chained to the first cause), took too long, or ended its loader process."""


class LoaderProcessError(SparkInferError, RuntimeError):
    """Loader processes ended (killed, out of memory, ``os._exit``), and no row of the data is to blame."""


class PredictError(SparkInferError, RuntimeError):
    """The model raised, or gave back another number of rows than it was given."""


class OutputError(SparkInferError, ValueError):
    """What the model (or ``postprocess``) gave back does not fit the declared output columns."""


class BadRowsError(SparkInferError, RuntimeError):
    """More rows are bad than ``max_errors`` or ``max_error_fraction`` allows."""


class SparkInferWarning(UserWarning):
    """A remark that changes no answer: a setting that Spark will not honour, a slower road taken."""


@dataclass(frozen=True)
class Place:
    """Where in the data something happened; only what is known is told.

    Attributes:
        column: the input column.
        partition: Spark's partition id, from 0.
        batch: the model batch within the partition, from 0.
        row: the row within the partition, from 0.
        key: the row's ``key=`` columns, as ``name=value`` text.
        file: the file of the row, where the worker read it itself.
    """

    column: str | None = None
    partition: int | None = None
    batch: int | None = None
    row: int | None = None
    key: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        """Give ``column 'x', partition 0, row 17 (path='a.png')``."""
        told = ((field.name, getattr(self, field.name)) for field in fields(self))
        words = [
            f"column {value!r}" if name == "column" else f"{name} {value}" for name, value in told if value is not None and name != "key"
        ]
        return ", ".join(words) + (f" ({self.key})" if self.key else "")


def remark(text: str) -> None:
    """Warn at the line outside this library that led here, whatever lies between: context managers, other modules of it."""
    _, level = _outside()
    warnings.warn(text, SparkInferWarning, stacklevel=level)


@dataclass(frozen=True)
class CallSite:
    """The line outside this library that led here, for a remark that is made later, on another thread."""

    file: str
    line: int

    @classmethod
    def here(cls) -> CallSite:
        """Take the present one."""
        frame, _ = _outside()
        return cls(frame.f_code.co_filename, frame.f_lineno) if frame is not None else cls("sparkinfer", 1)

    def remark(self, text: str) -> None:
        """Warn at that line."""
        warnings.warn_explicit(text, SparkInferWarning, self.file, self.line)


def _outside() -> tuple[FrameType | None, int]:
    """Give the frame outside this library that led here, and the ``stacklevel`` by which the caller of this warns there."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - what warnings itself uses
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("sparkinfer", "contextlib"):
        frame, level = frame.f_back, level + 1
    return frame, level


def nearest(word: str, known: Iterable[str]) -> str:
    """Give a hint for a wrong name: the nearest right one, or all of them.

    Args:
        word: what came.
        known: what would have been right.

    Returns:
        One sentence, without a leading space.

    Example:
        >>> nearest("bath_size", ["batch_size", "device"])
        "Did you mean 'batch_size'?"
    """
    names = list(known)
    spelt = {name.lower(): name for name in names}
    close = get_close_matches(word, names, n=1, cutoff=0.6)
    close = close or [spelt[lower] for lower in get_close_matches(word.lower(), spelt, n=1, cutoff=0.6)]
    if close:
        return f"Did you mean {close[0]!r}?"
    told = ", ".join(repr(name)[:_LONGEST_NAME] for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"There is: {told}{more}." if names else "There is none."
