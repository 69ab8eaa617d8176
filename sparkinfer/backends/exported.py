"""How an exported model is called: its inputs in order, of the types and shapes that it was exported for, and its answers' names.

Runs on: both (NumPy only).

Invariant: what reaches the engine is what the model itself would have got; what does not fit the export is a ``Fault`` that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sparkinfer.engine.batch import Fault, Inputs, Style
from sparkinfer.exceptions import MissingDependencyError, SchemaError

__all__ = ["Exported", "ExportedInput", "Structure", "feed_name", "first_line", "flat", "missing", "ordered", "structure_of", "structured"]

Structure = Literal["one", "sequence", "mapping"]


@dataclass(frozen=True)
class ExportedInput:
    """One input of an exported model.

    Attributes:
        name: the model's own name for it; it counts where inputs come by name.
        dtype: of the arrays that the engine gets, by NumPy's name.
        shape: without the batch axis; ``None`` for a free axis.
        casts_floats: the model itself casts floating values to ``dtype``; where it does not, others are a ``Fault``.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    casts_floats: bool = True


@dataclass(frozen=True)
class Exported:
    """What an engine's file does not say of itself.

    Attributes:
        style: how the model is called; ``None`` where its names are those of its own parameters, so that every way is right.
        inputs: in the order of the engine's own.
        structure: one array, several in order, or several by name.
        names: of the answers; positions where they have none.
    """

    style: Style | None
    inputs: tuple[ExportedInput, ...]
    structure: Structure
    names: tuple[str, ...]


def feed_name(position: int) -> str:
    """Name an input in an engine's file: the model's own names may be no names there."""
    return f"in{position}"


def missing(error: ImportError, package: str, extra: str) -> MissingDependencyError:
    """Say why an engine's package cannot be imported, and what to do."""
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        text = f"the package {package!r}, which runs the exported model, is not installed here: pip install 'sparkinfer[{extra}]'"
    else:
        text = (
            f"the package {package!r}, which runs the exported model, is installed here, but cannot be imported ({type(error).__name__}: {error}): "
            f"mend the installation, as with pip install --force-reinstall {package}"
        )
    return MissingDependencyError(text)


def first_line(error: BaseException) -> str:
    """Give an error's type and the first line of its text, if it has one."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def structure_of(answer: Any) -> tuple[Structure, tuple[str, ...]]:
    """Tell how a model answers.

    Args:
        answer: NumPy arrays, as a backend's ``predict`` gives them.
    """
    if isinstance(answer, dict):
        return "mapping", tuple(answer)
    if isinstance(answer, (list, tuple)):
        return "sequence", tuple(str(position) for position in range(len(answer)))
    return "one", ("0",)


def flat(answer: Any) -> list[np.ndarray]:
    """Give an answer's arrays in the order of ``structure_of``'s names."""
    values = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, (list, tuple)) else [answer]
    return [np.asarray(value) for value in values]


def structured(exported: Exported, arrays: Sequence[np.ndarray]) -> Any:
    """Give the engine's arrays the structure of the model's own answer."""
    if exported.structure == "mapping":
        return dict(zip(exported.names, arrays, strict=True))
    return list(arrays) if exported.structure == "sequence" else arrays[0]


def ordered(exported: Exported, inputs: Inputs) -> list[np.ndarray]:
    """Give the engine's inputs in its order, each as the engine takes it.

    Raises:
        Fault: another number of inputs came, other names, another type or another shape.
    """
    names = [one.name for one in exported.inputs]
    arrays = inputs.arrays
    by_name = inputs.style == "named"
    same_way = exported.style is None or by_name == (exported.style == "named")
    if not same_way or len(arrays) != len(names) or (by_name and set(arrays) != set(names)):
        came = f"{len(arrays)} came {'by name' if by_name else 'by position'} ({', '.join(arrays)})"
        how = "by name" if exported.style == "named" else "by position" if exported.style else "by name or by position"
        text = f"the model was exported for {len(names)} inputs {how} ({', '.join(names)}), but {came}: give example_inputs= of that form"
        raise Fault(SchemaError, text)
    values = [arrays[name] for name in names] if by_name else list(arrays.values())
    return [_fitted(one, value) for one, value in zip(exported.inputs, values, strict=True)]


def _fitted(wanted: ExportedInput, value: Any) -> np.ndarray:
    array = np.asarray(value)
    came = array.shape[1:]
    fits = len(came) == len(wanted.shape) and all(want in (None, have) for want, have in zip(wanted.shape, came, strict=True))
    if not fits:
        text = (
            f"the model was exported for input {wanted.name!r} of the shape {_shown(wanted.shape)}, but {_shown(came)} came: bring every row to one "
            "shape, declare free axes with a TensorSpec (None in its shape, or pad=), or leave optimize out"
        )
        raise Fault(SchemaError, text)
    if array.dtype.kind in "mM":
        array = array.view(np.int64)
    return np.ascontiguousarray(_cast(wanted, array))


def _cast(wanted: ExportedInput, array: np.ndarray) -> np.ndarray:
    dtype = np.dtype(wanted.dtype)
    if array.dtype == dtype:
        return array
    floats = dtype.kind == "f" == array.dtype.kind
    if (floats and wanted.casts_floats) or np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    if dtype.kind in "iu" and array.dtype.kind in "iu":
        made = array.astype(dtype)
        if ((made == array) & ((made < 0) == (array < 0))).all():
            return made
    text = (
        f"the model was exported for {wanted.dtype} in input {wanted.name!r}, but {array.dtype} came, which it cannot hold: cast the column"
    )
    raise Fault(SchemaError, text)


def _shown(shape: Sequence[int | None]) -> str:
    return f"({', '.join(('rows', *('?' if size is None else str(size) for size in shape)))})"
