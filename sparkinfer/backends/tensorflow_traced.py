"""The user's ``tf.function``, run inside tf.data: how it is called, and what it gives back.

Runs on: worker.

Invariant: it is called, and its result is read, as those of a Python ``preprocess`` or ``preprocess_batch`` would be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from sparkinfer.engine.batch import BadRow, Failure, Fault, Inputs, Style
from sparkinfer.exceptions import PreprocessError

__all__ = ["TracedFunction"]

_NO_SOURCE = (
    "(A function from a notebook or a script travels without its source, and without it TensorFlow cannot trace Python's if, for and "
    "while over tensors: use tf.where, tf.cond and tf.map_fn, or import the function from a module that the workers have.)"
)


@dataclass(frozen=True)
class TracedFunction:
    """A ``tf.function`` and how it is called; equal to another one of the same fingerprint.

    Attributes:
        fingerprint: stands for the function.
        style: how it gets its columns.
        names: the columns, in order.
        per_row: it takes one row.
        function: what the user gave.
    """

    fingerprint: str
    style: Style
    names: tuple[str, ...]
    per_row: bool
    function: Callable[..., Any] = field(compare=False)

    @classmethod
    def of(cls, prepare: Any, style: Style, names: tuple[str, ...]) -> TracedFunction:
        """Take the function out of a traceable step."""
        row = prepare.traced_row
        return cls(prepare.fingerprint, style, names, row is not None, prepare.traced_batch if row is None else row)

    @property
    def what(self) -> str:
        """The argument by which the user gave it."""
        return "preprocess" if self.per_row else "preprocess_batch"

    def bind(self, specs: tuple[tf.TensorSpec, ...]) -> Callable[..., Any]:
        """Give the function of a batch's columns that tf.data maps."""
        if not self.per_row:
            return self._call
        made = tf.function(self._call).get_concrete_function(*(tf.TensorSpec(spec.shape[1:], spec.dtype) for spec in specs))
        row = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), made.structured_outputs)
        return lambda *columns: tf.map_fn(lambda values: self._call(*values), columns, fn_output_signature=row)

    def _call(self, *values: Any) -> Any:
        return self.function(**dict(zip(self.names, values, strict=True))) if self.style == "named" else self.function(*values)

    def inputs(self, made: Any, rows: int, bad: tuple[BadRow, ...] = ()) -> Inputs | Failure:
        """Give the model's inputs: one tensor, a tuple, or a dict, as the function gave them; without the batch's bad rows."""
        if isinstance(made, Mapping):
            inputs = Inputs("named", {str(name): tensor for name, tensor in made.items()})
        elif isinstance(made, (tuple, list)):
            names = self.names if len(self.names) == len(made) else [f"input_{position}" for position in range(len(made))]
            inputs = Inputs("positional", dict(zip(names, made, strict=True)))
        else:
            inputs = Inputs("single", {self.names[0] if len(self.names) == 1 else "input": made})
        for name, tensor in inputs.arrays.items():
            if not tensor.shape.rank or tensor.shape[0] != rows:
                found = f"{tensor.shape[0]} rows" if tensor.shape.rank else "a scalar"
                return Failure(PreprocessError, f"{self.what} was given {rows} rows and gave back {found} for input {name!r}")
        return replace(inputs, bad=bad)

    def failure(self, error: Exception) -> Failure:
        """Tell what went wrong in the function, without TensorFlow's names of nodes."""
        if isinstance(error, tf.errors.OpError):  # the cause stands first, then where it was
            told = re.sub(r"\{\{[^}]*\}\}\s*", "", error.message.strip()).partition("\n")[0]
            text = re.sub(r"^Error in user-defined function passed to .*? transformation with iterator: \S+: ", "", told)
        else:  # "in user code:", the traceback, and the cause last
            text = str(error).strip().rpartition("\n")[2].strip()
        if isinstance(error, tf.errors.OperatorNotAllowedInGraphError):
            text += f" {_NO_SOURCE}"
        fault = Fault(PreprocessError, f"{self.what} raised {type(error).__name__}: {text}")
        fault.__cause__ = error
        return Failure.of(fault)
