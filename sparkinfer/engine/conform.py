"""From natural arrays to exactly what a ``TensorSpec`` asks for: shape, padding, dtype.

Runs on: worker, on the read-ahead thread or in a loader process.

Invariant: a cast never changes a value, but for floats, which are rounded to the narrower type; where nothing changes, nothing
is copied; every array keeps its rows and their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkinfer.engine.batch import Fault
from sparkinfer.exceptions import PreprocessError, SchemaError
from sparkinfer.schema import pad_fits

if TYPE_CHECKING:
    from sparkinfer.schema import TensorSpec

__all__ = ["as_array", "conform", "cut_rows", "inexact", "is_ragged", "objects", "stack_rows", "uneven"]

Shape = tuple[int, ...]
_MAKES_RAGGED = np.lib.NumpyVersion(np.__version__) < "1.24.0"  # object arrays of uneven lists, with a warning


def conform(array: Any, name: str, spec: TensorSpec) -> dict[str, np.ndarray]:
    """Give one model input the shape and the dtype that are asked for.

    Args:
        array: ``(rows, ...)``, or an object array ``(rows,)`` of arrays of unequal shape.
        name: the model input's.
        spec: what is asked for.

    Returns:
        The input under ``name``, and the mask and the lengths under their own names, if ``spec`` has them.

    Raises:
        Fault: a shape or a value does not fit; it has the row.
    """
    array = as_array(array)
    if spec.pad is None:
        if is_ragged(array):
            shapes = [np.shape(row) for row in array]
            row = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
            raise uneven(shapes[0], shapes[row], row)
        return {name: _cast(_reshape(array, name, spec.shape), name, spec.dtype)}
    padded, lengths = _pad(array, name, spec)
    arrays = {name: _cast(_reshape(padded, name, spec.shape), name, spec.dtype)}
    if spec.mask is not None:
        places = np.arange(padded.shape[1])
        held = places < lengths[:, None] if spec.pad_side == "right" else places >= padded.shape[1] - lengths[:, None]
        arrays[spec.mask] = held.astype(np.int64)
    if spec.lengths is not None:
        arrays[spec.lengths] = lengths
    return arrays


def cut_rows(array: Any, name: str, spec: TensorSpec) -> int:
    """Count the rows that ``conform`` cuts to ``spec.max_length``."""
    limit = spec.max_length
    return 0 if limit is None else sum(len(row) > limit for row in _unpadded(as_array(array), name, spec))


def stack_rows(values: Sequence[object], name: str) -> np.ndarray:
    """Make one array of what ``preprocess`` gave for each row.

    Args:
        values: arrays, tensors, numbers, or text, one a row.
        name: the model input's.

    Returns:
        ``(rows, ...)``; text, and arrays of unequal shape, as an object array ``(rows,)``.

    Raises:
        Fault: a row is ``None``, or a list that is no array.
    """
    if any(isinstance(value, (str, bytes)) for value in values):
        return objects(values)
    rows = []
    for row, value in enumerate(values):
        if value is None:
            raise Fault(PreprocessError, f"preprocess gave None for input {name!r}, expected an array or a value", row=row)
        try:
            rows.append(as_array(value))
        except ValueError as error:
            text = f"preprocess gave for input {name!r} a {type(value).__name__} that is no array ({error}): give all its items one shape"
            raise Fault(PreprocessError, text, row=row) from error
    if len({row.shape for row in rows}) > 1:
        return objects(rows)
    try:
        return np.stack(rows) if rows else np.empty(0)
    except (TypeError, ValueError) as error:
        text = f"preprocess gave for input {name!r} values that do not go into one array ({error}): give the same type for every row"
        raise Fault(PreprocessError, text) from error


def as_array(value: Any) -> np.ndarray:
    """Make a NumPy array of an array, a tensor (with a gradient, on a device, bfloat16) or a list.

    Text and bytes become object arrays, whose items keep their own length. A NumPy array, masked ones too, is given back as it is.

    Raises:
        ValueError: a list's items differ in shape.
    """
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # NumPy has no such type
            value = value.float()
    if _MAKES_RAGGED:
        _shape(value)
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.dtype.kind in "US":
        # From the value itself where it is none of NumPy's own: an S array has lost the zeros at the end of bytes
        return array.astype(object) if isinstance(value, np.ndarray) else np.array(value, dtype=object)
    if array.dtype.kind == "V" and "float" in array.dtype.name:  # bfloat16 and float8 of ml_dtypes, as TensorFlow gives them
        return array.astype(np.float32)
    return array


def _shape(value: Any) -> Shape:
    """Tell the shape of a list of anything; ``ValueError`` if its items differ in it, as from NumPy 1.24 on."""
    if not isinstance(value, (list, tuple)):
        return tuple(getattr(value, "shape", ()))
    shapes = {_shape(item) for item in value}
    if len(shapes) > 1:
        msg = f"its items differ in shape: {', '.join(map(str, sorted(shapes)))}"
        raise ValueError(msg)
    return (len(value), *next(iter(shapes), ()))


def objects(values: Iterable[object]) -> np.ndarray:
    """Make an object array ``(rows,)`` of anything, looking into nothing."""
    items = list(values)
    array = np.empty(len(items), dtype=object)
    for row, item in enumerate(items):  # array[:] = items would look into arrays of equal length
        array[row] = item
    return array


def is_ragged(array: np.ndarray) -> bool:
    """Say whether the rows are arrays of their own."""
    return array.dtype.kind == "O" and array.ndim == 1 and any(isinstance(row, np.ndarray) for row in array)


def uneven(expected: Shape | int, found: Shape | int, row: int, column: str | None = None) -> Fault:
    """Tell of rows of unequal length; the batch's first row is what the others are held to."""
    expected, found = ((size[0] if isinstance(size, tuple) and len(size) == 1 else size) for size in (expected, found))
    text = (
        f"the rows of a batch differ in length: expected {expected}, found {found}. Make them equal, or ask for padding with "
        "TensorSpec(..., pad=0) beside the column"
    )
    return Fault(SchemaError, text, column=column, row=row)


def inexact(array: np.ndarray, dtype: np.dtype) -> tuple[int, ...] | None:
    """Find the first value that ``dtype`` cannot hold as it is; floats may be rounded to a narrower float.

    Args:
        array: of numbers.
        dtype: of numbers.

    Returns:
        The value's index, or ``None`` where all fit.
    """
    if np.can_cast(array.dtype, dtype, "safe") and not (array.dtype.kind in "iu" and dtype.kind == "f"):
        return None
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.dtype.kind == "f":
            wide = array.astype(np.float64)
            bad = ~((wide >= limits.min) & (wide < limits.max + 1.0) & (wide == np.trunc(wide)))
        else:
            bad = (array < limits.min) | (array > limits.max)
    elif array.dtype.kind in "iu":
        whole = 2 ** (np.finfo(dtype).nmant + 1)  # up to here every integer is a float of this type
        bad = (array > whole) | (array < -whole)
    else:
        return None
    return tuple(int(axis) for axis in np.argwhere(bad)[0]) if bad.any() else None


# --- shape -------------------------------------------------------------------------------------------------------------


def _reshape(array: np.ndarray, name: str, shape: tuple[int | None, ...] | None) -> np.ndarray:
    if shape is None:
        return array
    view = _view(array.shape[1:], shape)
    if view is None:
        raise _misshapen(name, shape, array.shape[1:])
    return array if view == array.shape[1:] else array.reshape(len(array), *view)


def _view(found: Shape, shape: tuple[int | None, ...]) -> Shape | None:
    """Give the shape that an array of shape ``found`` takes under ``shape``, both without rows; ``None`` if it does not fit."""
    if len(found) == len(shape):
        fits = all(want is None or want == have for want, have in zip(shape, found, strict=True))
        return found if fits else None
    if len(found) > 1 or shape.count(None) > 1:
        return None
    size, known = prod(found), prod(axis for axis in shape if axis is not None)
    free, rest = divmod(size, known) if known else (0, size)
    if rest or (None not in shape and size != known):
        return None
    return tuple(free if axis is None else axis for axis in shape)


def _misshapen(name: str, shape: tuple[int | None, ...], found: Shape, row: int | None = None) -> Fault:
    expected, came = (f"({', '.join(map(str, ('rows', *axes)))})" for axes in (shape, found))
    text = f"input {name!r} has the wrong shape: expected {expected}, found {came}. Preprocess the column, or change its TensorSpec"
    return Fault(SchemaError, text, row=row)


# --- padding -----------------------------------------------------------------------------------------------------------


def _pad(array: np.ndarray, name: str, spec: TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    """Cut and fill the rows to one shape; gives them and their lengths."""
    uncut = _unpadded(array, name, spec)
    rows = uncut[:, : spec.max_length] if isinstance(uncut, np.ndarray) else [row[: spec.max_length] for row in uncut]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    extents = [_extent(row) for row in rows]
    longest = tuple(max(axis) for axis in zip_longest(*extents, fillvalue=0))
    shape = spec.shape if spec.shape is not None else (None,) * len(longest)
    target = tuple(have if want is None else want for want, have in zip_longest(shape, longest, fillvalue=0))
    for row, extent in enumerate(extents):
        wrong_rank = len(extent) != len(target) and 0 not in extent  # a row without items tells no rank
        if wrong_rank or any(have > room for have, room in zip(extent, target, strict=False)):
            raise _misshapen(name, target, extent, row)
    if isinstance(rows, np.ndarray) and rows.shape[1:] == target:
        return rows, lengths
    padded = np.full((len(rows), *target), spec.pad, dtype=_room(rows, spec))
    for place, row in zip(padded, rows, strict=True):
        _fill(place, row, left=spec.pad_side == "left")
    return padded, lengths


def _unpadded(array: np.ndarray, name: str, spec: TensorSpec) -> np.ndarray | list[np.ndarray]:
    """Give the rows, flat ones in the shape that is asked for."""
    if is_ragged(array):
        return [_unflatten(row, name, spec.shape, number) for number, row in enumerate(array)]
    if array.ndim < 2:
        text = f"input {name!r} is to be padded, but its rows are single values and no arrays: leave pad out of its TensorSpec"
        raise Fault(SchemaError, text)
    return array if spec.shape is None or len(spec.shape) == array.ndim - 1 else _reshape(array, name, spec.shape)


def _unflatten(row: np.ndarray, name: str, shape: tuple[int | None, ...] | None, number: int) -> np.ndarray:
    extent = _extent(row)
    if shape is None or len(shape) == len(extent) or not row.size:
        return row
    view = _view(extent, shape)
    if view is None:
        raise _misshapen(name, shape, extent, number)
    return row.reshape(view)


def _extent(row: np.ndarray) -> Shape:
    """Give the smallest shape that holds ``row``, whose items may be arrays of unequal shape."""
    if not (row.size and is_ragged(row)):
        return row.shape
    return (len(row), *(max(axis) for axis in zip_longest(*map(_extent, row), fillvalue=0)))


def _leaves(row: np.ndarray) -> Iterator[np.ndarray]:
    if is_ragged(row):
        for item in row:
            yield from _leaves(item)
    elif row.size or row.dtype.kind != "O":
        yield row


def _room(rows: Iterable[np.ndarray], spec: TensorSpec) -> np.dtype:
    """Choose a dtype that holds the rows and the fill as they are."""
    kinds = {leaf.dtype for row in rows for leaf in _leaves(row)}
    dtype = np.result_type(*kinds) if kinds else np.dtype(np.float64)
    pad = spec.pad
    if pad is None or pad_fits(pad, dtype.name):
        return dtype
    if spec.dtype not in (None, "string", "bytes") and dtype.kind != "O":
        return np.result_type(dtype, np.dtype(spec.dtype))  # such as whole numbers that NaN fills, for a model of floats
    raise Fault(SchemaError, f"pad is {pad!r}, but the rows hold {_told(dtype)}: give a fill value of their own type, or a dtype")


def _fill(place: np.ndarray, row: np.ndarray, *, left: bool) -> None:
    if not row.size:
        return
    if is_ragged(row):
        start = len(place) - len(row) if left else 0
        for number, item in enumerate(row):
            _fill(place[start + number], item, left=left)
        return
    place[tuple(slice(room - size, room) if left else slice(size) for room, size in zip(place.shape, row.shape, strict=True))] = row


# --- dtype -------------------------------------------------------------------------------------------------------------


def _cast(array: np.ndarray, name: str, wanted: str | None) -> np.ndarray:
    if wanted is None or array.dtype.name == wanted:
        return array
    if wanted in ("string", "bytes") or array.dtype.kind == "O":
        return _same_text(array, name, wanted)
    dtype = np.dtype(wanted)
    kinds = array.dtype.kind + dtype.kind
    if kinds == "Mi" and dtype.itemsize == 8 and not np.isnat(array).any():
        return array.astype(dtype)
    if kinds[0] not in "biuf" or (kinds[1] == "b" and kinds[0] != "b"):
        raise Fault(SchemaError, f"input {name!r} is {_told(array.dtype)}, which is never cast to {wanted}: convert it in preprocess")
    where = inexact(array, dtype) if dtype.kind != "f" else None  # asked for floats, a model gets them rounded
    if where is not None:
        text = f"input {name!r} is asked for as {wanted}, but {array[where]} is none: ask for a dtype that holds it, or preprocess it"
        raise Fault(SchemaError, text, row=where[0])
    with np.errstate(over="ignore"):  # beyond float16 is infinity, as in the model itself
        return array.astype(dtype)


def _same_text(array: np.ndarray, name: str, wanted: str) -> np.ndarray:
    """Pass text that is what was asked for: it is never made of anything else."""
    held = {"string": str, "bytes": bytes}.get(wanted)
    if array.dtype.kind != "O" or held is None:
        raise Fault(SchemaError, f"input {name!r} is asked for as {wanted}, but holds {_told(array.dtype)}: convert it in preprocess")
    for row, value in enumerate(array):
        for item in np.ravel(value) if isinstance(value, np.ndarray) else (value,):
            if item is not None and not isinstance(item, held):
                text = f"input {name!r} is asked for as {wanted}, but holds {type(item).__name__}: convert it in preprocess"
                raise Fault(SchemaError, text, row=row)
    return array


def _told(dtype: np.dtype) -> str:
    return "text or objects" if dtype.kind == "O" else dtype.name
