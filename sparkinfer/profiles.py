"""What a profile asks for, and what it found in a partition: plain values that merge.

Runs on: both (standard library only).

Invariant: times and counts of the same operator add up over partitions; what a profiler does not measure is ``None`` and never 0; what is
cut for size is added to the row of the others, so that sums stay right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from sparkinfer.exceptions import ConfigError

__all__ = ["OTHERS", "Operator", "PartitionProfile", "ProfilePlan", "merge_operators", "merge_stacks", "top_operators", "top_stacks"]

OTHERS = "(others)"
"""The name of the row and of the stack that what was cut for size is added to."""

_SUMS = ("self_cpu_us", "total_cpu_us", "self_device_us", "total_device_us", "self_cpu_bytes", "self_device_bytes")


@dataclass(frozen=True, kw_only=True)
class ProfilePlan:
    """Which batches of which partitions a profiler watches, and what may come back of it.

    Attributes:
        partitions: a number takes the partitions 0, 1, ... below it, of which there always are some; a tuple names them.
        skip: model calls before the profiler starts, at least 0: the first call warms up.
        take: model calls that it watches, at least 1.
        operators: rows of the operator table that a partition sends; the rest comes as one row.
        trace_bytes: a compressed trace of at most so many bytes comes back with the partition's record.
        path: a folder or URL that all workers can write, for the traces that are larger; ``None``: they are let go, and a remark says so.
        bounded: batches that a watched partition reads at most, the others reading none; ``None``: the run is as it is. ``si.profile`` bounds.

    Raises:
        ConfigError: a value is out of its range.

    Example:
        >>> plan = ProfilePlan(partitions=2, take=4)
        >>> plan.watches(1), plan.watches(2), ProfilePlan.from_text(plan.to_text()) == plan
        (True, False, True)
    """

    partitions: int | tuple[int, ...] = 2
    skip: int = 1
    take: int = 3
    operators: int = 50
    trace_bytes: int = 200_000
    path: str | None = None
    bounded: int | None = None

    def __post_init__(self) -> None:
        """Check every value once."""
        for name, least in (("skip", 0), ("take", 1), ("operators", 1), ("trace_bytes", 0)):
            _at_least(name, getattr(self, name), least)
        if self.bounded is not None:
            _at_least("bounded", self.bounded, 1)
        if isinstance(self.partitions, int):
            _at_least("partitions", self.partitions, 1)
        elif not self.partitions or not all(map(_is_id, self.partitions)):
            msg = f"partitions is {self.partitions!r}, expected a number of at least 1, or a tuple of partition ids"
            raise ConfigError(msg)
        if self.path is not None and not _is_text(self.path):
            msg = f"path is {self.path!r}, expected a folder or a URL that all workers can write"
            raise ConfigError(msg)

    @property
    def numbers(self) -> Sequence[int]:
        """The partitions that are watched, whether they are there or not."""
        return range(self.partitions) if isinstance(self.partitions, int) else self.partitions

    def watches(self, partition: int) -> bool:
        """Tell whether a partition is watched."""
        return partition in self.numbers

    def to_text(self) -> str:
        """Write the plan as a task's mark carries it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> ProfilePlan:
        """Read what ``to_text`` wrote; a field of a newer version is left out."""
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in json.loads(text).items() if name in known}
        if isinstance(values.get("partitions"), list):
            values["partitions"] = tuple(values["partitions"])
        return cls(**values)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        msg = f"{name} is {value!r}, expected a whole number of at least {least}"
        raise ConfigError(msg)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One row of the operator table.

    Attributes:
        name: the framework's own, such as ``aten::addmm`` or ``MatMul``; of a Python profile, the function and its line.
        shapes: of its inputs, where the profiler tells; rows of other shapes are rows of their own.
        calls: how often it ran.
        self_cpu_us: microseconds on the host, without what it called.
        total_cpu_us: with what it called.
        self_device_us: microseconds on the device, without what it called; ``None`` where no device was watched.
        total_device_us: with what it called.
        self_cpu_bytes: host memory that it took and did not give back, without what it called; ``None`` where the profiler does not tell.
        self_device_bytes: likewise on the device.
    """

    name: str
    shapes: str = ""
    calls: int
    self_cpu_us: float
    total_cpu_us: float
    self_device_us: float | None = None
    total_device_us: float | None = None
    self_cpu_bytes: float | None = None
    self_device_bytes: float | None = None

    @property
    def self_us(self) -> float:
        """Where it ran: on the device if it was there at all, else on the host."""
        return self.self_cpu_us + (self.self_device_us or 0.0)

    def __add__(self, other: Operator) -> Operator:
        """Count both; the name is the first one's."""
        sums: dict[str, Any] = {name: _plus(getattr(self, name), getattr(other, name)) for name in _SUMS}
        return replace(self, calls=self.calls + other.calls, **sums)


def _plus(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other


def merge_operators(tables: Iterable[Iterable[Operator]]) -> tuple[Operator, ...]:
    """Add tables up, by name and shapes; the slowest (by self time) first, the row of the others last."""
    merged: dict[tuple[str, str], Operator] = {}
    for table in tables:
        for row in table:
            key = row.name, row.shapes
            merged[key] = merged[key] + row if key in merged else row
    return tuple(sorted(merged.values(), key=lambda row: (row.name == OTHERS, -row.self_us, row.name, row.shapes)))


def top_operators(rows: Sequence[Operator], most: int) -> tuple[Operator, ...]:
    """Keep the slowest rows, and add all others to one row.

    Example:
        >>> rows = [Operator(name=name, calls=1, self_cpu_us=us, total_cpu_us=us) for name, us in (("a", 5.0), ("b", 9.0), ("c", 1.0))]
        >>> [(row.name, row.calls, row.self_cpu_us) for row in top_operators(rows, 1)]
        [('b', 1, 9.0), ('(others)', 2, 6.0)]
    """
    ordered = merge_operators([rows])
    named = [row for row in ordered if row.name != OTHERS]
    cut = [*named[most:], *(row for row in ordered if row.name == OTHERS)]
    if not cut:
        return ordered
    others = replace(cut[0], name=OTHERS, shapes="")
    for row in cut[1:]:
        others = others + row
    return (*named[:most], others)


def merge_stacks(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add up the microseconds of stacks, each spelt ``outer;inner;innermost``."""
    merged: dict[str, float] = {}
    for part in parts:
        for stack, us in part.items():
            merged[stack] = merged.get(stack, 0.0) + us
    return merged


def top_stacks(stacks: Mapping[str, float], most: int) -> dict[str, float]:
    """Keep the heaviest stacks, and add all others to one."""
    ordered = sorted(stacks.items(), key=lambda item: (item[0] == OTHERS, -item[1], item[0]))
    kept = dict(ordered[:most])
    rest = sum(us for _, us in ordered[most:])
    if rest:
        kept[OTHERS] = kept.get(OTHERS, 0.0) + rest
    return {stack: round(us, 1) for stack, us in kept.items()}


@dataclass(frozen=True, kw_only=True)
class PartitionProfile:
    """What was seen in one partition.

    Attributes:
        profiler: ``torch``, ``tensorflow`` or ``python``.
        model: how people call the model; empty where nothing was watched.
        batches: model calls that the profiler watched.
        seconds: their wall time, under the profiler: longer than without it.
        started_unix: when the profiler began, seconds since 1970.
        operators: the slowest ones, and one row of the others.
        stacks: self microseconds by stack of calls, the outermost first, joined by ``;``.
        laps: the loop's stages as they were, in this partition's first moments: stage, begin (seconds since the partition's), seconds.
        depths: batches that waited ready, at the same moments: seconds since the partition's begin, depth.
        trace: the compressed trace as base64; ``None`` where it is elsewhere, or gone.
        trace_path: where it was written, if it was.
        trace_kind: ``chrome`` (trace-event JSON, gzip) or ``xplane`` (a tar of TensorBoard's ``plugins/profile`` folder, gzip).
        trace_bytes: its compressed size, wherever it is.
        probes: bytes of the process's own memory after each of some calls more, with the same rows, of ``preprocess`` and of ``model`` alone.
        remarks: what could not be had, and why.
    """

    profiler: str
    model: str = ""
    batches: int = 0
    seconds: float = 0.0
    started_unix: float = 0.0
    operators: tuple[Operator, ...] = ()
    stacks: Mapping[str, float] = field(default_factory=dict)
    laps: tuple[tuple[str, float, float], ...] = ()
    depths: tuple[tuple[float, int], ...] = ()
    trace: str | None = field(default=None, repr=False)
    trace_path: str | None = None
    trace_kind: str = "chrome"
    trace_bytes: int = 0
    probes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def told(self) -> dict[str, Any]:
        """Give the profile as JSON's values, what is absent left out."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values["operators"] = [
            {name: round(value, 1) if isinstance(value, float) else value for name, value in asdict(row).items() if value not in (None, "")}
            for row in self.operators
        ]
        values["stacks"] = dict(self.stacks)
        values["probes"] = {name: list(sizes) for name, sizes in self.probes.items()}
        return {name: value for name, value in values.items() if value not in (None, (), [], {})}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> PartitionProfile:
        """Read what ``told`` gave; a field of a newer version is left out."""
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in told.items() if name in known}
        values["operators"] = tuple(Operator(**row) for row in values.get("operators", ()))
        values["laps"] = tuple((stage, begin, took) for stage, begin, took in values.get("laps", ()))
        values["depths"] = tuple((when, depth) for when, depth in values.get("depths", ()))
        values["remarks"] = tuple(values.get("remarks", ()))
        values["probes"] = {name: tuple(sizes) for name, sizes in values.get("probes", {}).items()}
        return cls(**values)

    def shortened(self, most: int) -> PartitionProfile:
        """Keep what fits into a line of a log: the slowest operators, and neither trace nor stacks."""
        said = "over this channel come the slowest operators only: neither traces, nor stacks, nor the loop's steps"
        return replace(
            self, operators=top_operators(self.operators, most), stacks={}, laps=(), depths=(), trace=None, remarks=(*self.remarks, said)
        )
