"""Sample inputs for ``optimize=``: what a model is exported with, and what its answers are compared on.

Runs on: driver.

Invariant: the data are looked at only where nothing else tells what the model gets; what was made up is the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sparkinfer.arguments import model_names
from sparkinfer.artifacts import fingerprint_of
from sparkinfer.engine.batch import Failure, Inputs
from sparkinfer.exceptions import ConfigError
from sparkinfer.schema import NUMERIC

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Style
    from sparkinfer.engine.contracts import ModelPlan
    from sparkinfer.engine.partition import PartitionPlan
    from sparkinfer.engine.prepare import Prepare

__all__ = ["SAMPLE_ROWS", "Sample", "resized", "sample_of", "with_free_axes"]

SAMPLE_ROWS = 8
"""Rows of the data that are looked at."""

_EXPORTED_ROWS = 5  # more than one, which torch.export would take for a constant, and seldom another axis's size
_COMPARED_ROWS = (1, 3, 8)
_OTHER_SIZES: tuple[Callable[[int], int], ...] = (
    lambda _: 1,
    lambda _: 2,
    lambda size: size + 1,
    lambda size: 2 * size + 3,
)  # of free axes


@dataclass(frozen=True)
class Sample:
    """Inputs to export with, and to compare on.

    Attributes:
        traced: a batch of more than one row.
        batches: of several sizes, one row among them.
        free: by input, its axes that are free besides the batch's.
        own_names: the inputs are named as the model's own parameters are, in their order.
        origin: where they come from, for messages.
        declared: the shapes are the model's own or the ``TensorSpec``s', so that no row has another one unnoticed.
    """

    traced: Inputs
    batches: tuple[Inputs, ...]
    free: Mapping[str, frozenset[int]]
    own_names: bool
    origin: str
    declared: bool = False

    @property
    def others(self) -> tuple[Inputs, ...]:
        """Batches with other sizes of the free axes, which the model may refuse; none where no axis is free."""
        if not any(self.free.values()):
            return ()
        return tuple(resized(_rows(self.traced, 3), self.free, size) for size in _OTHER_SIZES)

    @property
    def fingerprint(self) -> str:
        """Hash the values: what was found with these says nothing of others."""
        return fingerprint_of(*(part for inputs in (self.traced, *self.batches) for part in _content(inputs)))

    @property
    def signature(self) -> tuple[object, ...]:
        """Types and shapes, without the free axes' sizes: with the model, all that decides the export."""
        inputs = [
            (name, str(array.dtype), [None if axis in self.free.get(name, ()) else size for axis, size in enumerate(array.shape) if axis])
            for name, array in self.traced.arrays.items()
        ]
        return self.traced.style, inputs, sorted((name, sorted(axes)) for name, axes in self.free.items()), self.own_names


def sample_of(plan: PartitionPlan, model: object, rows: Callable[[], pa.RecordBatch] | None) -> Sample:
    """Find sample inputs: the user's own, or made up by the shapes that the model or the ``TensorSpec``s declare, or the data's first rows.

    Raises:
        ConfigError: there are none, or they do not fit ``inputs=``.
    """
    given = getattr(model, "example_inputs", None)
    if given is not None:
        return _repeated(plan, _of_example(plan, given), "example_inputs")
    declared = _of_model(plan.model)
    if declared is not None:
        ordered = plan.model.options.get("ordered", True) or declared.style == "single"
        return replace(_repeated(plan, declared, "made up by the model's own shapes", own_names=ordered), declared=True)
    specified = _of_specs(plan.prepare)
    if specified is not None:
        return replace(_repeated(plan, specified, "made up by the TensorSpecs"), declared=True)
    if rows is None:
        msg = (
            f"{plan.model.label}: optimize needs to know what the model gets, and there are no data yet: give example_inputs=, such as an array "
            "(rows, *shape), or declare every input as (column, TensorSpec(dtype, shape))"
        )
        raise ConfigError(msg)
    return _of_data(plan, rows())


def _repeated(plan: PartitionPlan, inputs: Inputs, origin: str, *, own_names: bool = False) -> Sample:
    batches = tuple(_rows(inputs, count) for count in _COMPARED_ROWS)
    return Sample(_rows(inputs, _EXPORTED_ROWS), batches, _free(plan, inputs, ()), own_names, origin)


def _rows(inputs: Inputs, count: int) -> Inputs:
    """Give as many rows as are asked for, from the beginning again where there are fewer."""
    return Inputs(inputs.style, {name: array[np.arange(count) % len(array)] for name, array in inputs.arrays.items()})


def _arrays(named: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value.detach().cpu() if hasattr(value, "detach") else value) for name, value in named.items()}


def _content(inputs: Inputs) -> list[str | bytes]:
    parts: list[str | bytes] = []
    for name, array in inputs.arrays.items():
        values = repr(array.tolist()) if array.dtype == object else np.ascontiguousarray(array).tobytes()
        parts += [name, str(array.dtype), str(array.shape), values]
    return parts


# --- axes that are free


def resized(inputs: Inputs, free: Mapping[str, frozenset[int]], size: Callable[[int], int]) -> Inputs:
    """Give the free axes other sizes, with the values from the beginning again; axes of one size keep one size."""
    arrays = {}
    for name, array in inputs.arrays.items():
        made = array
        for axis in sorted(free.get(name, ())):
            if made.shape[axis]:
                made = np.take(made, np.arange(size(made.shape[axis])) % made.shape[axis], axis=axis)
        arrays[name] = made
    return Inputs(inputs.style, arrays)


def with_free_axes(sample: Sample, takes: Callable[[Inputs], bool]) -> Sample:
    """Free the axes that nobody declared, and that the model takes in another size: a later row may have it.

    Args:
        sample: as it was found.
        takes: tells whether the model answers.
    """
    if sample.declared:
        return sample
    one = _rows(sample.traced, 1)
    axes = [(name, axis) for name, array in one.arrays.items() for axis in range(1, array.ndim) if axis not in sample.free.get(name, ())]
    found = {name: set(free) for name, free in sample.free.items()}
    lengths = sorted({one.arrays[name].shape[axis] for name, axis in axes})
    # together too: ids and their mask, say
    groups = [{pair} for pair in axes] + [{pair for pair in axes if one.arrays[pair[0]].shape[pair[1]] == length} for length in lengths]
    for group in groups:
        free = {name: frozenset(axis for other, axis in group if other == name) for name, _ in group}
        if any(takes(resized(one, free, size)) for size in (lambda size: size + 1, lambda size: 2 * size)):
            for name, axis in group:
                found[name].add(axis)
    return replace(sample, free={name: frozenset(free) for name, free in found.items()})


# --- the user's own


def _of_example(plan: PartitionPlan, given: Any) -> Inputs:
    prepare = plan.prepare
    names = [name for binding in prepare.bindings for name in model_names(binding)]
    by_name = {str(name): value for name, value in given.items()} if isinstance(given, Mapping) else None
    parts = list(given) if isinstance(given, (list, tuple)) else [given]
    made: Inputs
    if prepare.function or (
        len(names) == 1 and by_name is not None and prepare.style != "named"
    ):  # its result, or the fields of a struct column: as they are given
        if by_name is not None:
            made = Inputs("named", _arrays(by_name))
        else:
            names = names if len(names) == len(parts) else [f"input_{position}" for position in range(len(parts))]
            style: Style = "positional" if isinstance(given, (list, tuple)) else "single"
            made = Inputs(style, _arrays(dict(zip(names, parts, strict=True))))
    else:
        if set(by_name or names) != set(names) or len(by_name or parts) != len(names):
            came = f"the names {', '.join(map(repr, by_name))}" if by_name is not None else f"{len(parts)} arrays"
            msg = f"{plan.model.label}: example_inputs has {came}, but by inputs= the model gets {', '.join(map(repr, names))}: give one for each"
            raise ConfigError(msg)
        arrays = by_name if by_name is not None else dict(zip(names, parts, strict=True))
        style = "positional" if prepare.style == "single" and len(names) > 1 else prepare.style
        made = Inputs(style, _arrays({name: arrays[name] for name in names}))
    lengths = {name: len(array) for name, array in made.arrays.items()}
    if len(set(lengths.values())) > 1:
        msg = f"{plan.model.label}: example_inputs has arrays of unequal numbers of rows ({lengths}): their first axis is the batch's"
        raise ConfigError(msg)
    return made


# --- made up


def _of_model(model: ModelPlan) -> Inputs | None:
    """Make inputs up by what the model says of its own; ``None`` where it leaves something open."""
    infos = [info for info in model.inputs or () if not info.optional]
    shapes = {info.name: (info.dtype, info.shape) for info in infos}
    made = _made_up(shapes)
    return None if made is None else Inputs("single" if len(infos) == 1 else "named", made)


def _of_specs(prepare: Prepare) -> Inputs | None:
    if prepare.function or any(binding.spec is None or binding.spec.pad is not None for binding in prepare.bindings):
        return None
    specs = {binding.name: (binding.spec.dtype or "", binding.spec.shape) for binding in prepare.bindings if binding.spec is not None}
    made = _made_up(specs)
    return None if made is None else Inputs(prepare.style, made)


def _made_up(shapes: Mapping[str, tuple[str, tuple[int | None, ...] | None]]) -> dict[str, np.ndarray] | None:
    arrays = {}
    chance = np.random.default_rng(0)
    for name, (dtype, shape) in shapes.items():
        if dtype not in NUMERIC or shape is None or None in shape:
            return None
        size = (SAMPLE_ROWS, *(axis for axis in shape if axis is not None))
        if dtype.startswith("float"):
            arrays[name] = chance.standard_normal(size).astype(dtype)
        else:  # two values are in every vocabulary, and bytes are most often pixels
            arrays[name] = chance.integers(0, 256 if dtype == "uint8" else 2, size).astype(dtype)
    return arrays or None


# --- the data


def _of_data(plan: PartitionPlan, data: pa.RecordBatch) -> Sample:
    kept = _without_nulls(plan, data)
    if not kept.num_rows:
        msg = f"{plan.model.label}: optimize looks at the data's first rows, and there are none with a value in every input: give example_inputs="
        raise ConfigError(msg)
    if plan.error_column is not None:  # a bad row costs its own answer only, here as on the workers
        good = [row for row in range(kept.num_rows) if not _why_bad(plan.prepare(kept.slice(row, 1)))]
        kept = kept.take(pa.array(good)) if good else kept
    whole = _prepared(plan, kept)
    singles = [_prepared(plan, kept.slice(row, 1)) for row in range(kept.num_rows)]
    free = _free(plan, whole, singles)
    batches = (*(_rows(whole, count) for count in _COMPARED_ROWS), *singles[:2])
    return Sample(_rows(whole, _EXPORTED_ROWS), batches, free, own_names=False, origin="the data's first rows")


def _without_nulls(plan: PartitionPlan, data: pa.RecordBatch) -> pa.RecordBatch:
    if plan.on_null == "pass":
        return data
    complete = np.ones(data.num_rows, dtype=bool)
    for name in plan.inputs:
        complete &= data.column(data.schema.get_field_index(name)).is_valid().to_numpy(zero_copy_only=False)
    return data if complete.all() else data.filter(pa.array(complete))


def _prepared(plan: PartitionPlan, data: pa.RecordBatch) -> Inputs:
    made = plan.prepare(data)
    why = _why_bad(made)
    if isinstance(made, Failure) or why:
        msg = f"{plan.model.label}: optimize looks at the data's first rows, and they cannot be prepared here: {why}. Give example_inputs="
        raise ConfigError(msg)
    return Inputs(made.style, _arrays(made.arrays))


def _why_bad(made: Inputs | Failure) -> str:
    if isinstance(made, Failure):
        return made.text
    return "" if made.arrays and not made.bad else made.bad[0].message if made.bad else "it gave nothing"


def _free(plan: PartitionPlan, inputs: Inputs, others: Sequence[Inputs]) -> dict[str, frozenset[int]]:
    """Find the axes that are free: declared so, padded, or of another size in another batch."""
    found: dict[str, set[int]] = {name: set() for name in inputs.arrays}
    for binding in plan.prepare.bindings:
        spec = binding.spec
        if spec is None or binding.name not in found:
            continue
        sizes = spec.shape if spec.shape is not None else (None if spec.pad is not None else 0,) * (inputs.arrays[binding.name].ndim - 1)
        found[binding.name] |= {axis for axis, size in enumerate(sizes, 1) if size is None}
        if spec.mask in found and sizes[:1] == (None,):
            found[spec.mask] |= {1}
    infos = {info.name: info for info in plan.model.inputs or ()}
    if len(infos) == len(found) and not set(found) <= set(infos):
        infos = dict(zip(found, infos.values(), strict=True))
    for name in found:
        info = infos.get(name)
        if info is not None and info.shape is not None:
            found[name] |= {axis for axis, size in enumerate(info.shape, 1) if size is None and axis < inputs.arrays[name].ndim}
    for other in others:
        for name, array in inputs.arrays.items():
            shape = other.arrays[name].shape if name in other.arrays else array.shape
            found[name] |= {axis for axis, (one, two) in enumerate(zip(array.shape, shape, strict=False)) if axis and one != two}
    return {name: frozenset(axes) for name, axes in found.items()}
