"""``si.tune``: the fastest settings, found by the costs and then measured side by side.

Runs on: driver.

Invariant: no more time is spent than was given, but for the round that is under way; what is returned was itself measured beside the start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkinfer.analysis.batching import with_batches
from sparkinfer.analysis.costs import Shape
from sparkinfer.analysis.tuning import Tried, Tuning, candidates, other_chunks
from sparkinfer.diagnosing import measure, opened
from sparkinfer.exceptions import ConfigError, nearest
from sparkinfer.racing import LEAST_ROUNDS, ROUNDS, WORTH_A_SHUFFLE, Job, Memory, Runner, gain, more_by_partitions, race, try_partitions

if TYPE_CHECKING:
    from sparkinfer.analysis.costs import Costs
    from sparkinfer.analysis.diagnosis import Diagnosis
    from sparkinfer.config import InferenceConfig
    from sparkinfer.diagnosing import Arms
    from sparkinfer.engine.contracts import Describable

__all__ = ["tune"]

_ALLOWED = ("precision", "optimize")
_MOST_CANDIDATES = 5
_WORTH_IT = 1.02  # times the start's rows/s: less is not worth a change
_FOR_THE_COSTS = 0.35  # of the time
_FOR_BATCHES = 0.1  # of the time
_LARGER, _TOLD_APART = 16, 4  # times the start's batch, by which what a batch costs is told apart: as a rule, and at least
_TURNS = 2
_FOR_PARTITIONS = 0.25  # of the time, where other partitions may be tried
_FEWEST_BATCHES = 4  # of the largest partition: fewer have nothing to overlap with
_MOST_WORKERS = 16


def tune(
    data: Any,
    model: Describable,
    *,
    rows: int = 20_000,
    seconds: float = 180.0,
    memory_bytes: int | None = None,
    max_batch_size: int = 4096,
    allow: Sequence[str] = (),
    slots: int | None = None,
    config: InferenceConfig | None = None,
    **arguments: Any,
) -> Tuning:
    """Find the fastest settings on a sample, within a time and a memory.

    A diagnosis of the start gives the costs of each step; they choose the few settings that are worth a try, which then run side by side with the
    start, round after round. What is clearly slower than the leader is stopped early. On Spark the rows of a chunk are tried where chunks are tiny or
    huge, and other partitions where they are few or uneven: by the whole job, if there is the time. No sink is written. In an open MLflow run, each
    setting becomes a child run, and the diagnosis of the start is among the artifacts.

    Args:
        data: as in ``diagnose``.
        model: as in ``predict``.
        rows: of the sample, at most.
        seconds: to spend, in about.
        memory_bytes: of a task's process; settings that should need more, by what was measured so far, are not tried, and those that do are not chosen.
            ``None``: no limit but the machine's.
        max_batch_size: the largest batch that is tried.
        allow: what may change the answers a little, or the model's engine: ``"precision"`` (bf16, on cards also tf32 and fp16), ``"optimize"`` (the model
            with ``optimize="auto"``).
        slots: as in ``diagnose``.
        config: the start; single settings by name beat it. A ``batch_size`` of ``"auto"`` starts from 64.
        **arguments: ``predict``'s keywords.

    Returns:
        A ``Tuning``: its ``config`` goes to ``predict``; ``partitions`` and ``optimize`` are for the data and the model, where they are not ``None``.

    Raises:
        ConfigError, SchemaError, ModelLoadError, PredictError: as in ``diagnose``.

    Example:
        ::

            found = si.tune(photos, model, inputs="content", outputs="score float", seconds=120)
            si.predict(photos, model, inputs="content", outputs="score float", config=found.config)
    """
    begun = time.perf_counter()
    allowed = _checked(allow)
    with opened(data, model, slots=slots, config=config, arguments=arguments, rows=rows, seconds=seconds) as (arms, start):
        diagnosis = measure(arms, start, rows=rows, seconds=seconds * _FOR_THE_COSTS)
        largest = _largest(arms, max_batch_size)
        costs = _costs(diagnosis, arms, start, largest, rows=rows, seconds=seconds * _FOR_BATCHES)
        chosen = _candidates(costs, diagnosis, start, largest)
        runners = [
            Runner({}, start, 1.0, arms),
            *(Runner(changed, replace(start, **changed), predicted, arms) for changed, predicted in chosen),
        ]
        runners = _with_chunks(runners, arms)
        runners += _others(model, runners, allowed, arms)
        memory = Memory(memory_bytes)
        job = arms if isinstance(arms, Job) and more_by_partitions(arms, start) >= WORTH_A_SHUFFLE else None
        until = begun + seconds * (1 if job is None else 1 - _FOR_PARTITIONS)
        _enough_rows(arms, runners, diagnosis, until - time.perf_counter(), rows)
        race(runners, until, memory, time.perf_counter)
        best = _best(runners)
        parted = None if job is None else try_partitions(job, best.config, best.median, begun + seconds, time.perf_counter)
        found = _result(runners, best, parted, memory, _Found(start, diagnosis, arms, time.perf_counter() - begun))
    findings = import_module("sparkinfer.reporting.mlflow_findings")
    findings.log_tuning(found)
    findings.log_page("diagnosis", found.diagnosis)
    return found


def _checked(allow: Sequence[str]) -> tuple[str, ...]:
    names = (allow,) if isinstance(allow, str) else tuple(allow)
    for name in names:
        if name not in _ALLOWED:
            msg = f"allow has {name!r}, expected some of {', '.join(map(repr, _ALLOWED))}. {nearest(str(name), list(_ALLOWED))}"
            raise ConfigError(msg)
    return names


def _largest(arms: Arms, max_batch_size: int) -> int:
    """Give the rows of the largest batch that is tried; 0 where the model was made for one size."""
    fixed = arms.plan.model.options.get("rows") is not None
    return 0 if fixed else min(max_batch_size, max(arms.job_rows, default=0) // _FEWEST_BATCHES or max_batch_size)


def _costs(diagnosis: Diagnosis, arms: Arms, start: InferenceConfig, largest: int, *, rows: int, seconds: float) -> Costs:
    """Tell apart what batches and what rows cost, by everything but the model in larger batches too: where rows are dear they hide what batches cost."""
    costs, small = diagnosis.costs, start.batch_rows
    shape = Shape(batch_size=small, num_workers=start.num_workers, prefetch_batches=start.prefetch_batches)
    each = costs.input_side(shape) + costs.postprocess + costs.encode
    there = min(rows, sum(arms.job_rows) or rows) // arms.slots
    large = min(_LARGER * small, largest, there // 2, int(seconds / (4 * _TURNS * max(each, 1e-9))))
    if large < _TOLD_APART * small:
        return costs
    arms.limit(max(diagnosis.rows, 2 * large * arms.slots))
    kept = replace(start, models_per_worker=max(2, start.models_per_worker))
    turns = [(arms.trivial(kept), arms.trivial(replace(kept, batch_size=large))) for _ in range(_TURNS)]
    arms.limit(diagnosis.rows)
    best = [min(arms_of_size, key=lambda arm: arm.each) for arms_of_size in zip(*turns, strict=True)]
    return with_batches(costs, best[0], best[1], (small, large), serial=not (start.num_workers or start.prefetch_batches))


def _candidates(costs: Costs, diagnosis: Diagnosis, start: InferenceConfig, largest: int) -> list[tuple[dict[str, Any], float]]:
    limit = next((change.value for change in diagnosis.changes if change.setting == "num_workers"), 0)
    return candidates(
        costs,
        Shape(batch_size=start.batch_rows, num_workers=start.num_workers, prefetch_batches=start.prefetch_batches),
        [threads for threads, share in costs.other_threads if share < 1],
        most=_MOST_CANDIDATES,
        most_workers=min(_MOST_WORKERS, limit),
        most_rows=largest,
    )


def _with_chunks(runners: list[Runner], arms: Any) -> list[Runner]:
    """Add the start and the best by the costs with other chunks, where Spark's are worth another size; the others then run with Spark's as they are."""
    if not arms.chunk_rows:  # no rows travel
        return runners
    now = runners[0].config.max_records_per_batch or arms.chunk_rows
    wanted = other_chunks(now, arms.row_bytes)
    if wanted is None:
        return runners
    asis = [replace(one, config=replace(one.config, max_records_per_batch=now)) for one in runners]
    return [*asis, *(_changed(one, one.arms, max_records_per_batch=wanted) for one in asis[:2])]


def _others(model: Any, runners: Sequence[Runner], allowed: Sequence[str], arms: Any) -> Iterator[Runner]:
    """Give the best by the costs with what changes the model itself: each a plan of its own."""
    first = runners[min(1, len(runners) - 1)]
    if "optimize" in allowed and getattr(model, "optimize", "") is None:
        yield from _tried(arms, first, replace(model, optimize="auto"), {"optimize": "auto"})
    if "precision" in allowed and arms.plan.model.backend == "torch" and first.config.precision == "fp32":
        on_card = arms.everything(first.config).device.startswith("cuda")
        for precision in ("bf16", "tf32", "fp16") if on_card else ("bf16",):
            yield from _tried(arms, first, model, {"precision": precision})


def _tried(arms: Any, first: Runner, model: Any, told: Mapping[str, Any]) -> Iterator[Runner]:
    config = replace(first.config, **{name: value for name, value in told.items() if name != "optimize"})
    try:
        yield Runner({**first.overrides, **told}, config, None, arms.alike(model, config))
    except Exception as error:  # noqa: BLE001 - what cannot be had is not raced, and said
        arms.remarks.append(f"{', '.join(f'{name}={value}' for name, value in told.items())} could not be tried: {error}")


def _changed(one: Runner, arms: Any, **told: Any) -> Runner:
    return Runner({**one.overrides, **told}, replace(one.config, **told), None, arms)


def _enough_rows(arms: Arms, runners: Sequence[Runner], diagnosis: Diagnosis, seconds: float, rows: int) -> None:
    """Let each go through so many rows that the time is used: the more, the less a batch's beginning and end count."""
    each = sum(1 / max(1e-9, diagnosis.rows_per_second.middle * (runner.predicted or 1.0)) for runner in runners)
    most = int(max(0.0, seconds) / (ROUNDS * each))
    if min(rows, most) > diagnosis.rows:
        arms.limit(min(rows, most))


def _best(runners: Sequence[Runner]) -> Runner:
    """Choose the fastest of those that ran often enough, of equals the one that takes the least; the start, where nothing is clearly faster."""
    start = runners[0]
    left = [runner for runner in runners if not runner.ended and len(runner.took) >= LEAST_ROUNDS]
    fastest = min((runner.median for runner in left), default=start.median)
    equals = [runner for runner in left if runner.median <= _WORTH_IT * fastest]
    best = min(equals, key=lambda runner: (runner.config.num_workers, runner.config.batch_rows), default=start)
    if gain(start, best).middle < _WORTH_IT:
        best = start
    best.ended = "chosen"
    return best


@dataclass(frozen=True)
class _Found:
    start: InferenceConfig
    diagnosis: Diagnosis
    arms: Arms
    seconds: float


def _result(runners: Sequence[Runner], best: Runner, parted: tuple[int, Tried] | None, memory: Memory, found: _Found) -> Tuning:
    host, device = memory.fits
    start = runners[0]
    tried = [_told(start, runner) for runner in runners]
    overrides = {name: value for name, value in best.overrides.items() if name != "optimize"}
    return Tuning(
        config=replace(found.start, **overrides),
        overrides=overrides,
        gain=gain(start, best),
        rows_per_second=found.arms.slots / best.median,
        tried=tuple([*tried, parted[1]] if parted is not None else tried),
        diagnosis=found.diagnosis,
        seconds=found.seconds,
        remarks=tuple(found.arms.remarks),
        partitions=parted[0] if parted is not None and parted[1].ended == "chosen" else None,
        optimize=best.overrides.get("optimize"),
        memory=host,
        device_memory=device,
        memory_limit=memory.limit or _room(memory, found.arms.slots),
    )


def _room(memory: Memory, slots: int) -> int | None:
    """Give what each task's process could grow to on this machine."""
    return None if memory.left is None or not memory.host else max(memory.host.values()) + memory.left // slots


def _told(start: Runner, runner: Runner) -> Tried:
    return Tried(
        overrides=runner.overrides,
        predicted=runner.predicted,
        gain=gain(start, runner) if runner.took else None,
        rounds=len(runner.took),
        ended=runner.ended or "measured",
    )
