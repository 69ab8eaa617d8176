"""What was seen inside a model: figures of layers, inputs and outputs, as plain values that merge.

Runs on: both (NumPy only).

Invariant: the buckets are the same everywhere and do not depend on the data, so that what two partitions saw can be added, and what two months saw can
be compared; whatever the order of merging, counts come out the same.

A bucket is what the upper twelve bits of a float32 tell: its sign, its exponent and three bits of its fraction. There are eight to each doubling, from
the smallest float to the largest, and their number says where they lie: 0 holds zero (and what is smaller than any number that is computed with), negative ones are below it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

__all__ = [
    "OTHERS",
    "GraphNode",
    "Insides",
    "Labels",
    "LayerSeen",
    "ModelGraph",
    "Values",
    "bucket_bounds",
    "merge_insides",
    "most_labels",
    "packed",
]

OTHERS = "(others)"
"""The label under which those are counted that are too many to be kept."""

_SHIFT = 20  # of a float32's 32 bits, the lower ones that no bucket looks at
_BELOW_ZERO = 1 << (31 - _SHIFT)
_MOST_LABELS = 200
_LARGEST = float(np.finfo(np.float32).max)


def bucket_bounds(bucket: int) -> tuple[float, float]:
    """Give the numbers that a bucket holds: from the first to before the second, for negative ones the other way round.

    Example:
        >>> bucket_bounds(1016), bucket_bounds(-1016)
        ((1.0, 1.125), (-1.125, -1.0))
    """
    ends = (np.array([abs(bucket), abs(bucket) + 1], np.uint32) << np.uint32(_SHIFT)).view(np.float32)
    low, high = float(ends[0]), float(ends[1])
    if bucket == 0:
        return -high, high
    return (low, high) if bucket > 0 else (-high, -low)


def _buckets_of(numbers: np.ndarray) -> dict[int, int]:
    """Count finite numbers, of 64 bits, by bucket; what a float32 cannot hold is in the outermost one."""
    narrow = np.clip(numbers, -_LARGEST, _LARGEST).astype(np.float32)
    counts = np.bincount(narrow.view(np.uint32) >> np.uint32(_SHIFT), minlength=2 * _BELOW_ZERO)
    counts[0] += counts[_BELOW_ZERO]  # -0.0
    counts[_BELOW_ZERO] = 0
    return {int(one) if one < _BELOW_ZERO else _BELOW_ZERO - int(one): int(counts[one]) for one in np.flatnonzero(counts)}


@dataclass(frozen=True, kw_only=True)
class Values:
    """Figures of many numbers.

    Attributes:
        count: all of them, and nulls.
        nulls: of a column.
        nans: not a number.
        infinities: of either sign.
        zeros: exactly 0.
        measured: the finite ones that the figures below are of: all, or evenly chosen ones of many.
        mean: of them; 0 where there are none.
        squares: the sum of their squared distances from the mean.
        low: the least.
        high: the greatest.
        buckets: how many lie in each bucket.
    """

    count: int = 0
    nulls: int = 0
    nans: int = 0
    infinities: int = 0
    zeros: int = 0
    measured: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    buckets: Mapping[int, int] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, array: np.ndarray, *, most: int | None = None, nulls: int = 0) -> Values:
        """Count an array's numbers, whatever its shape.

        Args:
            array: numbers or booleans; complex ones count by their absolute values.
            most: numbers that mean, spread and buckets are taken of at most, evenly chosen; NaN, infinite values and zeros are always counted in all.
            nulls: beside the array.

        Example:
            >>> seen = Values.of(np.array([0.0, 1.0, 3.0, float("nan")]))
            >>> seen.count, seen.nans, seen.zeros, seen.mean, dict(seen.buckets)
            (4, 1, 1, 1.3333333333333333, {0: 1, 1016: 1, 1028: 1})
        """
        flat = array.reshape(-1)
        flat = np.abs(flat) if flat.dtype.kind == "c" else flat
        if flat.dtype.kind != "f":
            flat = flat.astype(np.float64)
        nans = int(np.count_nonzero(np.isnan(flat)))
        finite = np.isfinite(flat)
        numbers = int(np.count_nonzero(finite))
        chosen = flat if numbers == flat.size else flat[finite]
        if most is not None and numbers > most:
            chosen = chosen[:: _step(numbers, most)]
        wide = chosen.astype(np.float64)
        with np.errstate(over="ignore"):  # the largest floats, added up
            mean = float(wide.mean()) if wide.size else 0.0
            squares = float(np.square(wide - mean).sum()) if wide.size else 0.0
        return cls(
            count=flat.size + nulls,
            nulls=nulls,
            nans=nans,
            infinities=flat.size - numbers - nans,
            zeros=flat.size - int(np.count_nonzero(flat)),
            measured=wide.size,
            mean=mean,
            squares=squares,
            low=float(wide.min()) if wide.size else math.inf,
            high=float(wide.max()) if wide.size else -math.inf,
            buckets=_buckets_of(wide),
        )

    @property
    def spread(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.squares / self.measured) if self.measured else 0.0

    @property
    def zero_fraction(self) -> float:
        """The share of zeros."""
        return self.zeros / self.count if self.count else 0.0

    @property
    def nan_fraction(self) -> float:
        """The share that is no number."""
        return self.nans / self.count if self.count else 0.0

    @property
    def infinite_fraction(self) -> float:
        """The share of infinite values."""
        return self.infinities / self.count if self.count else 0.0

    def __add__(self, other: Values) -> Values:
        """Count both."""
        measured = self.measured + other.measured
        apart = other.mean - self.mean
        share = other.measured / measured if measured else 0.0
        return Values(
            count=self.count + other.count,
            nulls=self.nulls + other.nulls,
            nans=self.nans + other.nans,
            infinities=self.infinities + other.infinities,
            zeros=self.zeros + other.zeros,
            measured=measured,
            mean=self.mean + apart * share,
            squares=self.squares + other.squares + apart * apart * self.measured * share,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            buckets=_added(self.buckets, other.buckets),
        )

    def told(self) -> dict[str, Any]:
        """Give it as JSON's values; ends that are not there are left out, since JSON has no infinity."""
        values = {name: value for name, value in asdict(self).items() if name != "buckets" and value and not _is_infinite(value)}
        return {**values, "buckets": {str(bucket): count for bucket, count in sorted(self.buckets.items())}}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Values:
        """Read what ``told`` gave."""
        buckets = {int(bucket): count for bucket, count in told.get("buckets", {}).items()}
        ends = {"low": 0.0, "high": 0.0} if told.get("measured") else {}  # an end of 0 was left out with the zeros
        values: dict[str, Any] = {**ends, **_known(cls, told), "buckets": buckets}
        return cls(**values)


def _step(numbers: int, most: int) -> int:
    """Take every so many: an odd number, since the sizes of layers are mostly even, and one place of each row would be looked at again and again."""
    return (-(-numbers // most)) | 1


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and math.isinf(value)


def _added(one: Mapping[Any, int], other: Mapping[Any, int]) -> dict[Any, int]:
    both = dict(one)
    for key, count in other.items():
        both[key] = both.get(key, 0) + count
    return both


def _known(cls: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what a newer version wrote beside."""
    names = {one.name for one in fields(cls)}
    return {name: value for name, value in told.items() if name in names}


@dataclass(frozen=True, kw_only=True)
class Labels:
    """How often each label came, in a column of text, integers or booleans.

    Attributes:
        counts: by label; of those that are beyond 200, together under ``(others)``.
        nulls: beside them.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    nulls: int = 0

    @property
    def count(self) -> int:
        """All, and nulls."""
        return sum(self.counts.values()) + self.nulls

    def __add__(self, other: Labels) -> Labels:
        """Count both."""
        return Labels(counts=most_labels(_added(self.counts, other.counts), _MOST_LABELS), nulls=self.nulls + other.nulls)

    def told(self) -> dict[str, Any]:
        """Give it as JSON's values."""
        return {"counts": dict(self.counts), "nulls": self.nulls}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Labels:
        """Read what ``told`` gave."""
        return cls(**_known(cls, told))


def most_labels(counts: Mapping[str, int], most: int = _MOST_LABELS) -> dict[str, int]:
    """Keep the most frequent labels, and count all others together.

    Example:
        >>> most_labels({"cat": 5, "dog": 9, "cow": 1}, 1)
        {'dog': 9, '(others)': 6}
    """
    ordered = sorted(counts.items(), key=lambda item: (item[0] == OTHERS, -item[1], item[0]))
    kept = dict(ordered[:most])
    rest = sum(count for _, count in ordered[most:])
    if rest:
        kept[OTHERS] = kept.get(OTHERS, 0) + rest
    return kept


@dataclass(frozen=True, kw_only=True)
class LayerSeen:
    """What was seen of a layer.

    Attributes:
        name: its path in the model; ``relu (2)`` is its second use in a call.
        kind: its class.
        number: of the layers that hold no others, in the order of their first calls, from 1; 0 for one that holds others.
        shape: of what it gives, without the batch axis.
        calls: in which it was looked at.
        rows: of them.
        values: what it gave; without a count where it only hands on what its last part gave.
        nan_calls: calls in which it gave a NaN.
        nan_arising: of those, the calls in which nothing that came in was NaN, and no layer inside it is to blame.
        infinite_arising: likewise for infinite values, where neither NaN nor an infinite value came in.
        units: channels, features or heads of what it gives; ``None`` where they are not told apart.
        alive: a bit for each unit that was something else than 0 in any row, packed, as base64.
        weights: of its own parameters, by name.
        timed: calls that were timed.
        seconds: that they took, without the layers inside it.
    """

    name: str
    kind: str = ""
    number: int = 0
    shape: str = ""
    calls: int = 0
    rows: int = 0
    values: Values = field(default_factory=Values)
    nan_calls: int = 0
    nan_arising: int = 0
    infinite_arising: int = 0
    units: int | None = None
    alive: str = ""
    weights: Mapping[str, Values] = field(default_factory=dict, repr=False)
    timed: int = 0
    seconds: float = 0.0

    @property
    def dead(self) -> int:
        """Units that were 0 in every row that was looked at; 0 where units are not told apart."""
        return 0 if self.units is None else self.units - int(_bits(self.alive).sum())

    def __add__(self, other: LayerSeen) -> LayerSeen:
        """Count both; the weights are the same, and are not counted twice."""
        told_apart = self.units == other.units and self.units is not None
        return replace(
            self,
            number=self.number or other.number,
            shape=self.shape or other.shape,
            calls=self.calls + other.calls,
            rows=self.rows + other.rows,
            values=self.values + other.values,
            nan_calls=self.nan_calls + other.nan_calls,
            nan_arising=self.nan_arising + other.nan_arising,
            infinite_arising=self.infinite_arising + other.infinite_arising,
            units=self.units if told_apart else None,
            alive=packed(_bits(self.alive)[: self.units] | _bits(other.alive)[: self.units]) if told_apart else "",
            weights=self.weights or other.weights,
            timed=self.timed + other.timed,
            seconds=self.seconds + other.seconds,
        )

    def told(self) -> dict[str, Any]:
        """Give it as JSON's values, what is absent left out."""
        values = {name: getattr(self, name) for name in (one.name for one in fields(self))}
        values["values"] = self.values.told() if self.values.count else None
        values["weights"] = {name: one.told() for name, one in self.weights.items()}
        return {name: value for name, value in values.items() if value not in (None, "", 0, {})}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> LayerSeen:
        """Read what ``told`` gave."""
        weights = {name: Values.read(one) for name, one in told.get("weights", {}).items()}
        values: dict[str, Any] = {**_known(cls, told), "values": Values.read(told.get("values", {})), "weights": weights}
        return cls(**values)


def packed(bits: np.ndarray) -> str:
    """Write bits as text."""
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


def _bits(text: str) -> np.ndarray:
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8)).astype(bool)


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """One box of the picture.

    Attributes:
        name: of the layer, or of what happens between layers.
        kind: its class, or the operation.
        after: positions of the nodes whose results it takes; of a tree, the node that holds it.
    """

    name: str
    kind: str
    after: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelGraph:
    """A model as boxes and lines.

    Attributes:
        how: where it is from: ``torch.export``, ``Keras``, or ``tree``: which layer holds which, and no data's way.
        nodes: each after those that it takes from.
        why: why it is a tree.
    """

    how: str
    nodes: tuple[GraphNode, ...]
    why: str = ""

    def told(self) -> dict[str, Any]:
        """Give it as JSON's values."""
        return {"how": self.how, "why": self.why, "nodes": [[node.name, node.kind, list(node.after)] for node in self.nodes]}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> ModelGraph:
        """Read what ``told`` gave."""
        nodes = tuple(GraphNode(name=name, kind=kind, after=tuple(after)) for name, kind, after in told["nodes"])
        return cls(how=told["how"], why=told.get("why", ""), nodes=nodes)


@dataclass(frozen=True, kw_only=True)
class Insides:
    """What was seen in a partition, or in several.

    Attributes:
        layers: in the order of their first calls.
        inputs: what the model got, by name.
        outputs: the columns that came out, by name; ``argmax of y`` are the places of the greatest values of each row of ``y``.
        rows: that the model saw while it was looked at.
        batches: of them.
        partitions: that had rows.
        graph: the model's picture, where it was asked for.
        remarks: what could not be had, and why.
    """

    layers: tuple[LayerSeen, ...] = ()
    inputs: Mapping[str, Values] = field(default_factory=dict)
    outputs: Mapping[str, Values | Labels] = field(default_factory=dict)
    rows: int = 0
    batches: int = 0
    partitions: int = 0
    graph: ModelGraph | None = None
    remarks: tuple[str, ...] = ()

    def __add__(self, other: Insides) -> Insides:
        """Count both."""
        layers = {layer.name: layer for layer in self.layers}
        for layer in other.layers:
            layers[layer.name] = layers[layer.name] + layer if layer.name in layers else layer
        return Insides(
            layers=tuple(layers.values()),
            inputs=_summed(self.inputs, other.inputs),
            outputs=_summed(self.outputs, other.outputs),
            rows=self.rows + other.rows,
            batches=self.batches + other.batches,
            partitions=self.partitions + other.partitions,
            graph=self.graph or other.graph,
            remarks=tuple(dict.fromkeys((*self.remarks, *other.remarks))),
        )

    def told(self) -> dict[str, Any]:
        """Give it as JSON's values."""
        return {
            "layers": [layer.told() for layer in self.layers],
            "inputs": {name: values.told() for name, values in self.inputs.items()},
            "outputs": {name: seen.told() for name, seen in self.outputs.items()},
            "rows": self.rows,
            "batches": self.batches,
            "partitions": self.partitions,
            "graph": None if self.graph is None else self.graph.told(),
            "remarks": list(self.remarks),
        }

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Insides:
        """Read what ``told`` gave."""
        outputs: dict[str, Values | Labels] = {
            name: Labels.read(one) if "counts" in one else Values.read(one) for name, one in told["outputs"].items()
        }
        return cls(
            layers=tuple(LayerSeen.read(layer) for layer in told["layers"]),
            inputs={name: Values.read(one) for name, one in told["inputs"].items()},
            outputs=outputs,
            rows=told["rows"],
            batches=told["batches"],
            partitions=told["partitions"],
            graph=ModelGraph.read(told["graph"]) if told.get("graph") else None,
            remarks=tuple(told.get("remarks", ())),
        )


def _summed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(one)
    for name, seen in other.items():
        both[name] = both[name] + seen if name in both and type(both[name]) is type(seen) else seen
    return both


def merge_insides(parts: Iterable[Insides]) -> Insides:
    """Add up what partitions saw."""
    merged = Insides()
    for part in parts:
        merged = merged + part
    return merged
