"""From a batch's columns to a model's inputs: decode, the user's ``preprocess``, conform to what was declared.

Runs on: worker, on the read-ahead thread or in a loader process.

Invariant: what comes out has one row for each row that went in, in order, but for those that it names as bad; what the user's function
raises comes out as a ``Failure`` with the row, or as a bad row, and never as an exception.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa

from sparkinfer.engine.batch import BadRow, Breach, Failure, Fault, Inputs, Style
from sparkinfer.engine.columns import bad_nulls, conform, decode, decode_rows, describe_null, stack_rows, whole_numbers
from sparkinfer.engine.conform import as_array, is_ragged
from sparkinfer.engine.isolate import separate
from sparkinfer.engine.stopwatch import Stopwatch
from sparkinfer.engine.watch import PreprocessTimeout, calling
from sparkinfer.exceptions import PreprocessError, SchemaError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
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
        nulls: ``"refuse"``: no null arrives here, or a row with one is bad; ``"pass"``: they are handed on.
        tolerant: a bad row is left out and named, and its batch goes on without it.
        ragged: the model takes rows of unequal length, as an object array of arrays.
    """

    style: Style
    bindings: tuple[Binding, ...]
    function: bytes = b""
    per_row: bool = False
    traceable: bool = False
    nulls: Literal["refuse", "pass"] = "refuse"
    tolerant: bool = False
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

    @property
    def plain(self) -> bool:
        """Whether it only decodes columns, with no function of the user's."""
        return not self.function

    @property
    def only_column(self) -> str | None:
        """The input column, if there is only one: what a message names."""
        return self.bindings[0].column if len(self.bindings) == 1 else None

    @property
    def joins_rows(self) -> bool:
        """Whether a row's inputs depend on the rows beside it: padded to the longest, or made by a function of the batch."""
        return bool(self.function and not self.per_row) or bool(self._uneven)

    def __call__(self, data: pa.RecordBatch) -> Inputs | Failure:
        """Make the inputs of ``data``; no rows give no arrays."""
        watch = Stopwatch()
        row_by_row = bool(self.function) and self.per_row
        return self._guarded(data, lambda rows: self._make(rows, watch), watch, row_by_row=row_by_row)

    def columns(self, data: pa.RecordBatch) -> Inputs | Failure:
        """Decode only: for the feed that runs the user's function itself."""
        return self._guarded(data, self._decode, Stopwatch(), row_by_row=False)

    def _guarded(
        self, data: pa.RecordBatch, make: Callable[[pa.RecordBatch], Inputs], watch: Stopwatch, *, row_by_row: bool
    ) -> Inputs | Failure:
        try:
            if not data.num_rows:
                return Inputs(self.style)
            made = self._without_bad_rows(data, make, watch, row_by_row=row_by_row) if self.tolerant else make(data)
            return replace(made, seconds=watch.seconds)
        except Fault as fault:
            return Failure.of(fault)

    def _make(self, data: pa.RecordBatch, watch: Stopwatch) -> Inputs:
        if not self.function:
            made = self._decode(data)
            watch.lap("decode")
        elif self.per_row:
            made = _stacked([inputs for _, inputs in self._each_row(data, watch)])
        else:
            made = self._whole_batch(data, watch)
        conformed = self._conform(made)
        watch.lap("collate")
        return conformed

    def _without_bad_rows(
        self, data: pa.RecordBatch, make: Callable[[pa.RecordBatch], Inputs], watch: Stopwatch, *, row_by_row: bool
    ) -> Inputs:
        """Make the inputs of the rows that are fine, each row's function called once, and name the others."""
        bad = self._null_rows(data) if self.nulls == "refuse" else []
        rows = np.delete(np.arange(data.num_rows), [one.row for one in bad])
        chosen = _taker(data, make)
        if row_by_row and len(rows):
            raised: list[BadRow] = []
            called = {int(rows[number]): inputs for number, inputs in self._each_row(_take(data, rows), watch, raised, rows)}
            odd = _unlike_most(called)
            bad += [*(replace(one, row=int(rows[one.row])) for one in raised), *odd]
            rows = np.array(sorted(called.keys() - {one.row for one in odd}), dtype=np.intp)

            def chosen(some: np.ndarray) -> Inputs:
                return self._conform(_stacked([called[int(row)] for row in some]))

        made: Inputs | None = None
        if len(rows):
            try:
                made = chosen(rows)
            except Breach:
                raise
            except Fault:
                made, more = separate(chosen, rows, uneven=self._uneven)
                bad += more
            watch.lap("collate")
        return replace(made or Inputs(self.style), bad=tuple(sorted(bad, key=lambda one: one.row)))

    @property
    def _uneven(self) -> set[str]:
        """Name the inputs that are padded, and their masks and lengths: of another shape in every batch."""
        padded = [binding for binding in self.bindings if binding.spec is not None and binding.spec.pad is not None]
        named = [(binding.name, binding.spec.mask, binding.spec.lengths) for binding in padded if binding.spec is not None]
        return {name for names in named for name in names if name}

    def _null_rows(self, data: pa.RecordBatch) -> list[BadRow]:
        bad: dict[int, BadRow] = {}
        for name in dict.fromkeys(binding.column for binding in self.bindings):
            column = data.column(data.schema.get_field_index(name))
            mask = bad_nulls(column)
            for row in np.flatnonzero(mask).tolist() if mask is not None else ():
                fault = Fault(SchemaError, describe_null(column, row), column=name)
                bad.setdefault(row, BadRow.of(fault, row))
        return list(bad.values())

    def _decode(self, data: pa.RecordBatch) -> Inputs:
        ragged = bool(self.function) or self.ragged
        arrays: dict[str, Any] = {}
        style = self.style
        for binding in self.bindings:
            spec = binding.spec
            column = data.column(data.schema.get_field_index(binding.column))
            if spec is not None and not self.function and str(spec.dtype).lstrip("u").startswith("int"):
                column = whole_numbers(column, binding.column)
            array = decode(column, binding.column, ragged=ragged or (spec is not None and spec.pad is not None), nulls=self.nulls)
            if isinstance(array, dict):  # a struct: its fields are the inputs
                arrays.update(array)
                style = "named"
            else:
                arrays[binding.name] = array
        return Inputs(style, arrays)

    def _each_row(
        self, data: pa.RecordBatch, watch: Stopwatch, bad: list[BadRow] | None = None, numbers: np.ndarray | None = None
    ) -> Iterator[tuple[int, Inputs]]:
        """Call the user's function for each row; where ``bad`` is given, what a row raises goes there, and the next row comes.

        ``numbers`` are the rows' own in the batch, where some were left out.
        """
        values = list(self._row_values(data, bad))
        watch.lap("decode")
        first: Inputs | None = None
        for number, given in values:
            try:
                made = self._one_row(given, number, first if bad is None else None, numbers)
            except Fault as fault:
                if bad is None:
                    raise
                bad.append(BadRow.of(fault, number))
            else:
                first = first or made
                yield number, made
        watch.lap("preprocess")

    def _one_row(self, given: tuple[object, ...], number: int, first: Inputs | None, numbers: np.ndarray | None = None) -> Inputs:
        function = _function(self.function)
        blamed = self.only_column
        try:
            with calling(number if numbers is None else int(numbers[number])):
                if self.style == "named":
                    made = function(**dict(zip((binding.name for binding in self.bindings), given, strict=True)))
                else:
                    made = function(*given)
        except (Exception, SystemExit, PreprocessTimeout) as error:
            raise _user_fault(error, "preprocess", column=blamed, row=number) from error
        row = self._by_name(made)
        if first is not None and (row.style != first.style or list(row.arrays) != list(first.arrays)):
            text = f"preprocess gave {_told(row)} here, and {_told(first)} for the batch's first row: give the same for every row"
            raise Fault(PreprocessError, text, column=blamed, row=number)
        return row

    def _row_values(self, data: pa.RecordBatch, bad: list[BadRow] | None) -> Iterator[tuple[int, tuple[object, ...]]]:
        def read(rows: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
            columns = [decode_rows(rows.column(rows.schema.get_field_index(binding.column)), binding.column) for binding in self.bindings]
            return zip(*columns, strict=True)

        try:
            whole = list(read(data))
        except Fault:
            if bad is None:
                raise
        else:
            yield from enumerate(whole)
            return
        for number in range(data.num_rows):
            try:
                yield number, next(read(data.slice(number, 1)))
            except Fault as fault:
                bad.append(BadRow.of(fault, number))

    def _whole_batch(self, data: pa.RecordBatch, watch: Stopwatch) -> Inputs:
        function = _function(self.function)
        given = self._decode(data)
        watch.lap("decode")
        try:
            with calling():
                made = function(**given.arrays) if given.style == "named" else function(*given.arrays.values())
        except (Exception, SystemExit, PreprocessTimeout) as error:
            raise _user_fault(error, "preprocess_batch") from error
        watch.lap("preprocess")
        result = self._by_name(made)
        arrays = {name: _array(value) for name, value in result.arrays.items()}
        for name, array in arrays.items():
            if array.ndim == 0 or array.shape[0] != data.num_rows:
                found = "a scalar" if array.ndim == 0 else f"{array.shape[0]} rows"
                text = f"preprocess_batch was given {data.num_rows} rows and gave back {found} for input {name!r}"
                raise Breach(PreprocessError, text)
        _check_fresh(arrays)
        return Inputs(result.style, arrays)

    def _by_name(self, made: object) -> Inputs:
        """Give the user's result names: its own, or those of the bindings."""
        if isinstance(made, (Mapping, tuple)) and not made:
            raise Fault(PreprocessError, f"preprocess gave an empty {type(made).__name__}, expected at least one input of the model")
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
            raise Breach(PreprocessError, text)
    _before.arrays = mine


@lru_cache(maxsize=16)
def _function(pickled: bytes) -> Callable[..., Any]:
    """Unpickle once a process, so that what a function keeps in its globals lives over tasks."""
    return cast("Callable[..., Any]", loads(pickled, "preprocess"))


def _stacked(rows: Sequence[Inputs]) -> Inputs:
    """Lay what the function gave for each row side by side."""
    first = rows[0]
    return Inputs(first.style, {name: stack_rows([row.arrays[name] for row in rows], name) for name in first.arrays})


def _unlike_most(rows: Mapping[int, Inputs]) -> list[BadRow]:
    """Find the rows whose inputs have other names, or another kind of values, than those of most rows: they would spoil a stack."""
    kinds = {row: (inputs.style, tuple((name, _kind(value)) for name, value in inputs.arrays.items())) for row, inputs in rows.items()}
    if len(set(kinds.values())) < 2:
        return []
    counted = Counter(kind for kind in kinds.values() if all(words != _NOTHING for _, words in kind[1]))
    if not counted:  # None everywhere: told with each row when the rows are stacked
        return []
    common = counted.most_common(1)[0][0]
    text = "preprocess gave {} here, and {} for most rows of the batch: give the same for every row"
    return [
        BadRow(row, "preprocess", "PreprocessError", text.format(_of_kind(kind), _of_kind(common)))
        for row, kind in kinds.items()
        if kind != common
    ]


_NOTHING = "None"
_KINDS = dict.fromkeys("biuf", "numbers") | dict.fromkeys("US", "text") | {"c": "complex numbers", "M": "dates", "m": "durations"}


def _kind(value: Any) -> str:
    """Name what goes together in one array."""
    if value is None:
        return _NOTHING
    if isinstance(value, (str, bytes)):
        return "text"
    try:
        return _KINDS.get(as_array(value).dtype.kind, "objects")
    except ValueError:  # an uneven list: told with its row when the rows are stacked
        return "numbers"


def _of_kind(kind: tuple[str, tuple[tuple[str, str], ...]]) -> str:
    return ", ".join(f"{words} for {name!r}" for name, words in kind[1])


def _take(data: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    return data if len(rows) == data.num_rows else data.take(pa.array(rows))


def _taker(data: pa.RecordBatch, make: Callable[[pa.RecordBatch], Inputs]) -> Callable[[np.ndarray], Inputs]:
    return lambda rows: make(_take(data, rows))


def _user_fault(error: BaseException, what: str, *, column: str | None = None, row: int | None = None) -> Fault:
    if isinstance(error, PreprocessTimeout):
        return Fault(PreprocessError, f"{what} took more than {error} for this {'batch' if row is None else 'row'}", column=column, row=row)
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
