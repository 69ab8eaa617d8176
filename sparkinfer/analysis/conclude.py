"""From the rounds of a diagnosis to its verdict.

Runs on: driver (standard library only).

Invariant: a side is called the bottleneck only where the interval of its cost over the other's lies beyond 1.15 as a whole; where it does not tell,
the verdict is ``inconclusive`` with the rows that would, and sides that are known to be nearly equal are ``balanced``.

What takes most of the job decides: slots that wait for the largest partitions (``skewed``), loads of the model (``start-up-bound``), or the work
itself. Of the work, the side that costs more a row, input or model, and on that side the step that costs the most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from sparkinfer.analysis.changes import Limits, Measured, changes_of
from sparkinfer.analysis.costs import Costs, Layout, Shape, job_seconds
from sparkinfer.analysis.diagnosis import Ceiling, Change, Diagnosis
from sparkinfer.analysis.intervals import Interval, of_positive
from sparkinfer.analysis.verdict import Kind, Verdict

if TYPE_CHECKING:
    from sparkinfer.analysis.case import Cause
    from sparkinfer.analysis.rounds import Arm, Round

__all__ = ["Found", "conclude"]

_FELT = 1.15  # sides that differ by less are equal for all that tuning is worth
_TELLS = 1.6  # an interval of a ratio that is wider than this tells nothing
_HIDDEN = 0.05  # of a row's time, that would vanish behind the rest
_COMPUTES = 0.5  # of a task's time on the CPU, from which on its preprocess is taken to compute
_MOST_WORKERS, _MOST_AT_WORK = 16, 4


@dataclass(frozen=True, kw_only=True)
class Found:
    """All that was measured.

    Attributes:
        rounds: at least one.
        shape: the settings of the measurements.
        layout: the whole job's; without rows where it is not known.
        other_threads: the model's time with another number of threads, as a share of what it is.
        load: seconds of a model's load.
        sample_rows: that the arms went through.
        seconds: that it all took.
        settings: by name.
        batch_is_fixed: the model takes batches of one size only.
        cores: that a task slot has; 0 where it is not known.
        apart: whether the source runs in another process.
        remarks: what was left out of account.
    """

    rounds: Sequence[Round]
    shape: Shape
    layout: Layout
    other_threads: Sequence[tuple[int, float]] = ()
    load: float = 0.0
    sample_rows: int = 0
    seconds: float = 0.0
    settings: Mapping[str, Any]
    batch_is_fixed: bool = False
    cores: float = 0.0
    apart: bool = False
    remarks: Sequence[str] = ()


def conclude(found: Found) -> Diagnosis:
    """Say what the measurements say."""
    costs = [
        one.costs(found.shape, other_threads=found.other_threads, load=found.load, cores=found.cores, apart=found.apart)
        for one in found.rounds
    ]
    everything = [one.everything.each for one in found.rounds]
    slower = [one.slower(each, found.shape) for one, each in zip(found.rounds, costs, strict=True)]
    measured = Measured(costs=costs, slower=slower, shape=found.shape, layout=found.layout)
    changes = changes_of(measured, _limits(found))
    typical = _typical(costs)
    slowest = [each.seconds_per_row(found.shape) for each in costs]
    efficiency = median(low / took for low, took in zip(slowest, everything, strict=True))
    return Diagnosis(
        verdict=_verdict(found, measured, typical, changes),
        ceilings=tuple(_ceilings(found, costs)),
        overlap_efficiency=min(1.0, efficiency),
        changes=tuple(changes),
        costs=typical,
        rows=found.sample_rows,
        rounds=len(found.rounds),
        seconds=found.seconds,
        settings=found.settings,
        remarks=tuple(found.remarks),
    )


def _limits(found: Found) -> Limits:
    trivial = found.rounds[0].trivial
    computes = trivial.cpu_seconds > _COMPUTES * trivial.seconds
    return Limits(num_workers=_MOST_AT_WORK if computes else _MOST_WORKERS, batch_size=0 if found.batch_is_fixed else 4096)


def _typical(costs: Sequence[Costs]) -> Costs:
    names = ("source", "preprocess", "transfer", "call", "row", "postprocess", "encode", "busy")
    return replace(costs[0], **{name: median(getattr(one, name) for one in costs) for name in names})


def _ceilings(found: Found, costs: Sequence[Costs]) -> list[Ceiling]:
    slots = found.layout.slots

    def ceiling(name: str, seconds: Sequence[float]) -> Ceiling:
        return Ceiling(name=name, rows_per_second=of_positive([slots / max(each, 1e-12) for each in seconds]), repeats=len(seconds))

    arms: dict[str, list[Arm]] = {
        "source": [one.source for one in found.rounds],
        "transport": [one.identity for one in found.rounds if one.identity is not None],
        "everything but the model": [one.trivial for one in found.rounds],
        "everything": [one.everything for one in found.rounds],
    }
    told = {name: ceiling(name, [arm.each for arm in some]) for name, some in arms.items() if some}
    last = told.pop("everything")
    model = ceiling("model", [each.model_side(found.shape) for each in costs])
    return [*told.values(), model, last]


# --- the verdict ---------------------------------------------------------------------------------------------------------


def _verdict(found: Found, measured: Measured, costs: Costs, changes: Sequence[Change]) -> Verdict:
    return _job_verdict(found, measured, costs, changes) or _work_verdict(found, measured, costs, changes)


def _work_verdict(found: Found, measured: Measured, costs: Costs, changes: Sequence[Change]) -> Verdict:
    shape = found.shape
    ratio = of_positive([max(1e-12, each.input_side(shape)) / max(1e-12, each.model_side(shape)) for each in measured.costs])
    evidence = _evidence(costs, shape, ratio)
    hidden = min(costs.input_side(shape), costs.model_side(shape)) / costs.seconds_per_row(shape)
    if hidden >= _HIDDEN and _helps(changes, "prefetch_batches"):  # where the cores have nothing left, reading ahead hides nothing
        return _advised("serial", _slowest_input(costs, shape), evidence, changes, ("prefetch_batches",))
    if ratio.low > _FELT:
        return _input_bound(costs, shape, evidence, changes)
    if ratio.high < 1 / _FELT:
        return _model_bound(costs, shape, evidence, changes)
    if ratio.width < _TELLS and 1 / _FELT <= ratio.middle <= _FELT:
        advice = "Leave the settings as they are, or make both sides faster: input and model cost nearly the same."
        return Verdict("balanced", None, evidence, advice, None)
    return _inconclusive(found, ratio, evidence)


def _helps(changes: Sequence[Change], setting: str) -> bool:
    return any(change.setting == setting and change.gain.middle >= 1 + _HIDDEN for change in changes)


def _evidence(costs: Costs, shape: Shape, ratio: Interval) -> dict[str, float]:
    steps = {
        "source": costs.source,
        "preprocess": costs.preprocess,
        "transfer": costs.transfer,
        "model_call": costs.call / shape.batch_size,
        "model_row": costs.row,
        "postprocess": costs.postprocess,
        "encode": costs.encode,
    }
    told = {f"diagnose/{name}_seconds_per_row": value for name, value in steps.items()}
    ends = {"low": ratio.low, "high": ratio.high}
    return told | {f"diagnose/input_over_model_{end}": value for end, value in ends.items() if math.isfinite(value)}


def _inconclusive(found: Found, ratio: Interval, evidence: Mapping[str, float]) -> Verdict:
    """Say how many rows it would take: an interval narrows with the root of what is measured."""
    apart = max(abs(math.log(ratio.middle)), math.log(_FELT)) / 2
    half = math.log(ratio.width) / 2 if math.isfinite(ratio.width) and ratio.width > 1 else 2 * apart
    needed = found.sample_rows * max(2.0, min(1e4, (half / apart) ** 2))
    told = f"{ratio.low:.2f} to {ratio.high:.2f} times" if math.isfinite(ratio.width) else f"about {ratio.middle:.2f} times, measured once,"
    more = f"Diagnose about {_rounded(needed):,} rows, with seconds= to match"
    if found.sample_rows and needed > sum(found.layout.rows) > 0:  # there are no more rows
        more = f"Diagnose the {found.sample_rows:,} rows for longer, with seconds={_rounded(max(1.0, found.seconds * needed / found.sample_rows))}"
    advice = f"{more}: the input costs {told} what the model costs, which does not tell them apart."
    return Verdict("inconclusive", None, evidence, advice, None)


def _rounded(number: float) -> int:
    """Give it in two digits, no smaller."""
    unit = int(10 ** max(0, math.floor(math.log10(number)) - 1))
    return math.ceil(number / unit) * unit


def _input_bound(costs: Costs, shape: Shape, evidence: Mapping[str, float], changes: Sequence[Change]) -> Verdict:
    cause = _slowest_input(costs, shape)
    if cause == "transfer":
        return _advised("transfer-bound", cause, evidence, changes, ("transfer",))
    return _advised("input-bound", cause, evidence, changes, ("num_workers", "preprocess") if cause == "preprocess" else ("source",))


def _slowest_input(costs: Costs, shape: Shape) -> Cause:
    seconds: dict[Cause, float] = {
        "source": costs.source,
        "preprocess": costs.preprocess / max(1, shape.num_workers),
        "transfer": costs.transfer,
    }
    return max(seconds, key=lambda name: seconds[name])


def _model_bound(costs: Costs, shape: Shape, evidence: Mapping[str, float], changes: Sequence[Change]) -> Verdict:
    call = costs.call / shape.batch_size
    best = min((share for _, share in costs.other_threads), default=1.0)
    spared = max(0.0, 1 - best)
    steps: dict[str, float] = {
        "threads": (call + costs.row) * spared,
        "batch size": call * (1 - spared),
        "model": costs.row * (1 - spared),
        "postprocess": costs.postprocess,
        "encode": costs.encode,
    }
    largest = max(steps, key=lambda name: steps[name])
    if largest == "encode":
        advice = "Let outputs be smaller: to make Arrow of the answers takes longer than the model."
        return Verdict("transfer-bound", "transfer", evidence, advice, None)
    causes: dict[str, tuple[Cause, tuple[str, ...]]] = {
        "threads": ("threads", ("threads",)),
        "batch size": ("batch size", ("batch_size", "model")),
        "model": ("model", ("model",)),
        "postprocess": ("postprocess", ("postprocess",)),
    }
    cause, settings = causes[largest]
    return _advised("compute-bound", cause, evidence, changes, settings)


def _job_verdict(found: Found, measured: Measured, costs: Costs, changes: Sequence[Change]) -> Verdict | None:
    """Find a job whose slots mostly wait for the largest partition, or for the model's load; ``None`` where the work is most of it."""
    layout = found.layout
    if not sum(layout.rows):
        return None
    slower = median(measured.slower)

    def partition(rows: int) -> float:
        return slower * costs.partition_seconds(rows, found.shape, layout.chunk_rows)

    whole = job_seconds(layout, partition, costs.load)
    slots = min(layout.slots, max(1, len(layout.rows)))
    work = sum(map(partition, layout.rows)) / layout.slots
    loads = costs.load * (len(layout.rows) / slots if layout.loads_each else 1)
    idle = max(0.0, whole - job_seconds(layout.evened() if layout.slots > 1 else layout, partition, costs.load))
    if layout.loads_each:  # evened out, it would have other partitions to load for
        idle = max(0.0, job_seconds(layout, partition, 0.0) - work)
    if max(idle, loads) <= work or whole <= 0:
        return None
    evidence = {
        "diagnose/job_seconds": whole,
        "diagnose/work_seconds": work,
        "diagnose/load_seconds": loads,
        "diagnose/idle_seconds": idle,
    }
    if idle >= loads:
        few = max(layout.rows) <= 1.5 * sum(layout.rows) / len(layout.rows)
        return _advised("skewed", "few partitions" if few else "source", evidence, changes, ("partitions",))
    return _advised("start-up-bound", "model", evidence, changes, ("models_per_worker", "load"))


def _advised(kind: Kind, cause: Cause, evidence: Mapping[str, float], changes: Sequence[Change], settings: Sequence[str]) -> Verdict:
    """Advise the first of some settings for which there is a change."""
    for setting in settings:
        for change in changes:
            if change.setting == setting:
                return Verdict(kind, cause, evidence, _sentence(change), (change.gain.low, change.gain.high))
    return Verdict(kind, cause, evidence, f"Make the {cause} faster: no setting is known that would.", None)


def _sentence(change: Change) -> str:
    if change.is_setting:
        return f"Set {change.setting}={change.value}: {change.why[0].lower()}{change.why[1:]}"
    if change.setting == "partitions":
        return f"Use {change.value}: {change.why[0].lower()}{change.why[1:]}"
    part = "model's load" if change.setting == "load" else change.setting
    return f"Make the {part} faster. {change.why}"
