"""From a batch's columns to a model's inputs: decode, the user's ``preprocess``, conform to what was declared.

Runs on: worker, on the read-ahead thread or in a loader process.

Invariant: what comes out has one row for each row that went in, in order; what the user's function raises comes out as a
``Failure`` with the row, and never as an exception.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from sparkinfer.engine.batch import Failure, Fault, Inputs, Style
from sparkinfer.engine.columns import conform, decode, decode_rows, stack_rows
from sparkinfer.engine.conform import is_ragged
from sparkinfer.engine.stopwatch import Stopwatch
from sparkinfer.errors import PreprocessError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkinfer.schema import TensorSpec

__all__ = ["Binding", "Prepare"]


@dataclass(frozen=True)
class Binding:
    """One model input and the column that it comes from.

    Attributes:
        name: the model's name for it; the column's name where the user gave none.
        column: the column.
        spec: what is to reach the model, if it was declared.
    """

    name: str
    column: str
    spec: TensorSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """The step from columns to inputs; answers ``PrepareStep``.

    Attributes:
        style: how the user named the inputs.
        bindings: the inputs, in order.
        function: the user's ``preprocess`` or ``preprocess_batch``, pickled; empty if there is none.
        per_row: ``function`` takes one row.
        traceable: ``function`` is a ``tf.function``.
        nulls: ``"refuse"``: no null arrives here; ``"pass"``: they are handed on.
        ragged: the model takes rows of unequal length, as an object array of arrays.
    """

    style: Style
    bindings: tuple[Binding, ...]
    function: bytes = b""
    per_row: bool = False
    traceable: bool = False
    nulls: Literal["refuse", "pass"] = "refuse"
    ragged: bool = False

    @property
    def fingerprint(self) -> str:
        """Hex of everything that decides the answer."""
        plain = replace(self, function=b"")
        return hashlib.sha256(repr(plain).encode() + self.function).hexdigest()

    @property
    def traced_row(self) -> Callable[..., Any] | None:
        """The per-row ``tf.function``, if that is what the user gave."""
        return _function(self.function) if self.traceable and self.per_row else None

    @property
    def traced_batch(self) -> Callable[..., Any] | None:
        """The per-batch ``tf.function``, if that is what the user gave."""
        return _function(self.function) if self.traceable and not self.per_row else None

    def __call__(self, data: pa.RecordBatch) -> Inputs | Failure:
        """Make the inputs of ``data``; no rows give no arrays."""
        try:
            if not data.num_rows:
                return Inputs(self.style)
            watch = Stopwatch()
            if not self.function:
                made = self._decode(data)
                watch.lap("decode")
            elif self.per_row:
                made = self._each_row(data, watch)
            else:
                made = self._whole_batch(data, watch)
            conformed = self._conform(made)
            watch.lap("collate")
            return replace(conformed, seconds=watch.seconds)
        except Fault as fault:
            return Failure.of(fault)

    def columns(self, data: pa.RecordBatch) -> Inputs | Failure:
        """Decode only: for the feed that runs the user's function itself."""
        try:
            return self._decode(data) if data.num_rows else Inputs(self.style)
        except Fault as fault:
            return Failure.of(fault)

    def _decode(self, data: pa.RecordBatch) -> Inputs:
        ragged = bool(self.function) or self.ragged
        arrays: dict[str, Any] = {}
        style = self.style
        for binding in self.bindings:
            spec = binding.spec
            column = data.column(data.schema.get_field_index(binding.column))
            array = decode(column, binding.column, ragged=ragged or (spec is not None and spec.pad is not None), nulls=self.nulls)
            if isinstance(array, dict):  # a struct: its fields are the inputs
                arrays.update(array)
                style = "named"
            else:
                arrays[binding.name] = array
        return Inputs(style, arrays)

    def _each_row(self, data: pa.RecordBatch, watch: Stopwatch) -> Inputs:
        function = _function(self.function)
        columns = [decode_rows(data.column(data.schema.get_field_index(binding.column)), binding.column) for binding in self.bindings]
        names = [binding.name for binding in self.bindings]
        blamed = self.bindings[0].column if len(self.bindings) == 1 else None
        watch.lap("decode")
        rows: list[Inputs] = []
        for number, values in enumerate(zip(*columns, strict=True)):
            try:
                made = function(**dict(zip(names, values, strict=True))) if self.style == "named" else function(*values)
            except Exception as error:
                raise _user_fault(error, "preprocess", column=blamed, row=number) from error
            row = self._by_name(made)
            if rows and (row.style != rows[0].style or list(row.arrays) != list(rows[0].arrays)):
                text = f"preprocess gave {_told(row)} here, and {_told(rows[0])} for the batch's first row: give the same for every row"
                raise Fault(PreprocessError, text, column=blamed, row=number)
            rows.append(row)
        watch.lap("preprocess")
        first = rows[0]
        return Inputs(first.style, {name: stack_rows([row.arrays[name] for row in rows], name) for name in first.arrays})

    def _whole_batch(self, data: pa.RecordBatch, watch: Stopwatch) -> Inputs:
        function = _function(self.function)
        given = self._decode(data)
        watch.lap("decode")
        try:
            made = function(**given.arrays) if given.style == "named" else function(*given.arrays.values())
        except Exception as error:
            raise _user_fault(error, "preprocess_batch") from error
        watch.lap("preprocess")
        result = self._by_name(made)
        arrays = {name: _array(value) for name, value in result.arrays.items()}
        for name, array in arrays.items():
            if array.ndim == 0 or len(array) != data.num_rows:
                found = "a scalar" if array.ndim == 0 else f"{len(array)} rows"
                text = f"preprocess_batch was given {data.num_rows} rows and gave back {found} for input {name!r}"
                raise Fault(PreprocessError, text)
        _check_fresh(arrays)
        return Inputs(result.style, arrays)

    def _by_name(self, made: object) -> Inputs:
        """Give the user's result names: its own, or those of the bindings."""
        if isinstance(made, Mapping):
            return Inputs("named", {str(name): value for name, value in made.items()})
        if isinstance(made, tuple):
            names = [binding.name for binding in self.bindings]
            if len(names) != len(made):
                names = [f"input_{position}" for position in range(len(made))]
            return Inputs("positional", dict(zip(names, made, strict=True)))
        return Inputs("single", {self.bindings[0].name if len(self.bindings) == 1 else "input": made})

    def _conform(self, inputs: Inputs) -> Inputs:
        specs = {binding.name: binding.spec for binding in self.bindings if binding.spec is not None}
        if not specs:
            return self._no_ragged(inputs)
        arrays: dict[str, Any] = {}
        columns = {binding.name: binding.column for binding in self.bindings}
        lost = [name for name in specs if name not in inputs.arrays] if self.function else []
        if lost:
            text = (
                f"a TensorSpec was declared for the input {lost[0]!r}, but preprocess gave {list(inputs.arrays)}: give a dict with that name, or "
                "leave the TensorSpec out"
            )
            raise Fault(PreprocessError, text, column=columns[lost[0]])
        for name, array in inputs.arrays.items():
            spec = specs.get(name)
            try:
                arrays.update({name: array} if spec is None else conform(array, name, spec))
            except Fault as fault:
                fault.column = fault.column or columns[name]
                raise
        style = inputs.style
        if style == "single" and len(arrays) > 1:  # a mask or the lengths joined
            style = "positional"
        return self._no_ragged(Inputs(style, arrays))

    def _no_ragged(self, inputs: Inputs) -> Inputs:
        if not self.function or self.ragged:
            return inputs
        return Inputs(inputs.style, {name: _even(array, name) for name, array in inputs.arrays.items()})


_before = threading.local()  # what preprocess_batch gave for the batch before, in this thread


def _check_fresh(arrays: Mapping[str, Any]) -> None:
    """Refuse a result in the memory of the one before, which may still wait for the model and would be changed under it."""
    mine = [array for array in arrays.values() if isinstance(array, np.ndarray) and array.flags.writeable]
    for array in mine:
        if any(np.may_share_memory(array, old) for old in getattr(_before, "arrays", ())):
            text = "preprocess_batch gave back the memory that it gave for the batch before, which still waits for the model: return a new array"
            raise Fault(PreprocessError, text)
    _before.arrays = mine


@lru_cache(maxsize=16)
def _function(pickled: bytes) -> Callable[..., Any]:
    """Unpickle once a process, so that what a function keeps in its globals lives over tasks."""
    return cast("Callable[..., Any]", loads(pickled, "preprocess"))


def _user_fault(error: Exception, what: str, *, column: str | None = None, row: int | None = None) -> Fault:
    return Fault(PreprocessError, f"{what} raised {type(error).__name__}: {error}", column=column, row=row)


def _even(array: Any, name: str) -> Any:
    """Stack an object array of arrays; refuse one whose rows differ in shape. Anything else is left as it is."""
    if not (isinstance(array, np.ndarray) and is_ragged(array)):
        return array
    shapes = [np.shape(row) for row in array]
    row = next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)
    if row is None:
        return np.stack(list(array))
    text = (
        f"preprocess gave input {name!r} the shape {shapes[row]} here, and {shapes[0]} for the batch's first row: give "
        "every row the same shape, or ask for padding with TensorSpec(..., pad=0) beside the column"
    )
    raise Fault(PreprocessError, text, row=row)


def _told(inputs: Inputs) -> str:
    return "one array" if inputs.style == "single" else f"{inputs.style} arrays {list(inputs.arrays)}"


def _array(value: Any) -> Any:
    """Leave arrays and tensors as they are; make one of a list."""
    if hasattr(value, "ndim") and hasattr(value, "dtype"):
        return value
    values = cast("Sequence[object]", value)
    return stack_rows(values, "input") if isinstance(value, (list, tuple)) else np.asarray(values)
