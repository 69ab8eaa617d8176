"""What held a run back, on what evidence, and the one setting that would help most.

Runs on: driver (standard library only).

Invariant: ``judge`` never raises, whatever was recorded; a verdict rests on the figures that it shows, and what was measured too briefly
is ``inconclusive``.

After warm-up, with I = the consumer's wait on an empty queue and P = the producer's wait on a full one, as shares of the time::

    I >= 5 %, P <  5 %    input-bound, or transfer-bound where the copy to the device is what the input waits for
    I <  5 %, P >= 5 %    compute-bound, or transfer-bound where the answers' way back is most of it
    I >= 5 %, P >= 5 %    bursty; where one is four times the other, that one decides
    I <  5 %, P <  5 %    balanced
    nothing ahead         serial, where either side could hide at least 5 % behind the other

The wait for a partition's first rows (half of all wall time, spent in reading), start-up (20 %) and skew (the longest partition over 1.5 times the 75th percentile and 10 s, or task slots idle a fifth of
the time) are judged beside that, and of the verdicts that hold the one with the most to gain is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from sparkinfer.analysis.case import BLOCKED, MOST_GAIN, Case, Cause
from sparkinfer.analysis.evidence import evidence_of
from sparkinfer.metrics import PartitionMetrics, RunMetrics

__all__ = ["Cause", "Kind", "Verdict", "judge"]

Kind = Literal["input-bound", "compute-bound", "transfer-bound", "balanced", "serial", "skewed", "start-up-bound", "bursty", "inconclusive"]

_FELT = 0.05  # a wait below this share is noise: xprof's threshold for moderately input-bound
_DOMINANT = 4.0
_START_UP = 0.20
_FIRST_WAIT = 0.50
_SKEW, _SKEW_SECONDS = 1.5, 10.0
_IDLE = 0.20
_LEAST_SECONDS, _LEAST_BATCHES = 1.0, 10
_SHORT_CALL = 0.005  # seconds of a model call, under which the call itself is felt
_LARGE_BATCH = 1024
_MOST_WORKERS, _MOST_AT_WORK = 16, 4  # loader processes that wait for disks and networks, and those that compute


@dataclass(frozen=True)
class Verdict:
    """What held a run back.

    Attributes:
        kind: ``input-bound``, ``compute-bound``, ``transfer-bound``, ``balanced``, ``serial`` (nothing is prepared ahead of the model),
            ``skewed``, ``start-up-bound``, ``bursty`` (both sides wait in turn) or ``inconclusive``.
        cause: ``source``, ``preprocess``, ``transfer``, ``model``, ``postprocess``, ``batch size``, ``threads`` or ``few partitions``;
            ``None`` where there is none to name.
        evidence: the figures that it rests on, by name.
        advice: one sentence, which names one setting and a value where one follows.
        gain: rows/s to expect from the advice, as a factor of what they are: from, to. By Amdahl's law on the measured seconds: at the upper
            end all that the advice aims at is gone, at the lower end half of it, or what is sure. ``None`` where nothing can be said.
    """

    kind: Kind
    cause: Cause | None
    evidence: Mapping[str, float]
    advice: str
    gain: tuple[float, float] | None

    def __str__(self) -> str:
        """Give it in a sentence or two, for people."""
        cause = f" ({self.cause})" if self.cause else ""
        gain = f" To expect: {self.gain[0]:.1f} to {self.gain[1]:.1f} times the rows/s." if self.gain else ""
        return f"{self.kind}{cause}. {self.advice}{gain}"

    def _repr_html_(self) -> str:
        """Show it at the end of a notebook's cell, with the figures that it rests on."""
        rows = (f"<tr><th style='text-align: left'>{escape(name)}</th><td>{value:.3g}</td></tr>" for name, value in self.evidence.items())
        return f"<div style='max-width: 60em'>{escape(str(self))}</div><table>{''.join(rows)}</table>"


def judge(run: RunMetrics | Sequence[PartitionMetrics], settings: Mapping[str, Any] | None = None) -> Verdict:
    """Say what a run's first execution, or some partitions, were held back by.

    Args:
        run: what was measured.
        settings: ``InferenceConfig``'s by name, ``backend``, ``road``, and ``slots`` (tasks that the cluster can run at once); those that are
            missing are taken for the defaults or left out of account. A run's own by default.

    Example:
        >>> judge([]).kind
        'inconclusive'
    """
    if isinstance(run, RunMetrics):
        settings = run.settings if settings is None else settings
        run = run.partitions
    case = Case(tuple(run), evidence_of(run), settings or {})
    if case.of("inference/partition_seconds_total") < _LEAST_SECONDS or not case.of("inference/batches_total"):
        return _inconclusive(case)
    found = [verdict for verdict in (_steady(case), _first_wait(case), _start_up(case), _spread(case)) if verdict is not None]
    return max(found, key=lambda verdict: verdict.gain[1] if verdict.gain else 0.0)  # the first of equals


_WAITS = ("bottleneck/steady_seconds", "bottleneck/steady_input_wait_fraction", BLOCKED)
_INPUT = tuple(f"producer/{stage}_seconds" for stage in ("read", "decode", "preprocess", "collate", "transfer"))
_OUTPUT = tuple(f"stage/{stage}_seconds" for stage in ("compute", "postprocess", "encode", "output_wait"))


def _inconclusive(case: Case) -> Verdict:
    evidence = case.evidence("inference/partition_seconds_total", "inference/batches_total", "inference/rows_total", _WAITS[0])
    rows, batches = case.of("inference/scored_rows_total"), case.of("inference/batches_total")
    partitions = max(1.0, case.of("inference/partitions_total"))
    least = f"{_LEAST_SECONDS:g} s after warm-up, and {_LEAST_BATCHES} batches beyond each partition's first"
    if not case.partitions:
        advice = "No partition reported: run an action on predictions inside the run, such as a write, and let it end."
        return Verdict("inconclusive", None, evidence, advice, None)
    if not rows or not batches:
        return Verdict("inconclusive", None, evidence, f"Score more rows before asking what to change: it takes {least}.", None)
    needed = rows / batches * (partitions + _LEAST_BATCHES)
    if case.steady > 0:
        needed = max(needed, rows * _LEAST_SECONDS / case.steady)
    elif (wall := case.of("inference/partition_seconds_total")) > 0:
        needed = max(needed, rows * _LEAST_SECONDS / wall)
    rounded = _round_up(min(needed, 1e15))
    return Verdict("inconclusive", None, evidence, f"Score about {rounded:,} rows before asking what to change: it takes {least}.", None)


def _round_up(value: float) -> int:
    unit = int(10 ** max(0, math.floor(math.log10(max(1.0, value))) - 1))
    return math.ceil(value / unit) * unit


# --- after warm-up -----------------------------------------------------------------------------------------------------


def _steady(case: Case) -> Verdict:
    beyond_first = case.of("inference/batches_total") - case.of("inference/partitions_total")
    if case.steady < _LEAST_SECONDS or beyond_first < _LEAST_BATCHES:
        return _inconclusive(case)
    waits = case.waited / case.steady
    blocked = min(1.0, case.blocked / case.steady)
    if case.serial:
        return _serial(case) or (_input_bound(case) if case.waited > case.busy else _model_side(case))
    if waits < _FELT:
        return _model_side(case) if blocked >= _FELT else _balanced(case)
    if blocked < _FELT or BLOCKED not in case.figures:  # what was not measured cannot speak against a wait that was
        return _input_bound(case)
    in_turn = case.of("bottleneck/steady_both_fraction") >= _FELT  # and not one partition this, another that
    if in_turn and max(waits, blocked) < _DOMINANT * min(waits, blocked):
        return _bursty(case)
    return _input_bound(case) if waits >= blocked else _model_side(case)


def _balanced(case: Case) -> Verdict:
    gain = case.gain(max(case.waited, case.blocked), sure=0.0)
    advice = f"Leave the settings as they are: neither side waits for the other, and no single one is worth more than {gain[1] - 1:.0%}."
    return Verdict("balanced", None, case.evidence(*_WAITS), advice, gain)


def _serial(case: Case) -> Verdict | None:
    """Judge a run that prepares nothing ahead; ``None`` where one side is so short that hiding it gains nothing."""
    hidden = min(case.waited, case.busy)
    if hidden < _FELT * case.steady:
        return None
    # What reads from Spark's socket lets the model run beside it; Python code may have to share the interpreter with it.
    sure = min(case.of("producer/read_seconds"), hidden)
    return Verdict(
        "serial",
        case.slowest_input,
        case.evidence(*_WAITS[:2], *_INPUT),
        "Set prefetch_batches=2: the next batch is then made ready while the model is at work on this one.",
        case.gain(hidden, sure),
    )


def _bursty(case: Case) -> Verdict:
    p50, p95 = case.of("inference/batch_latency_seconds_p50"), case.of("inference/batch_latency_seconds_p95")
    uneven_model = p50 > 0 and p95 > 2 * p50
    depth = max(2, 2 * case.whole("prefetch_batches", 2))
    advice = f"Set prefetch_batches={depth}: each side waits for the other in turn, and a deeper queue lends one's slack to the other."
    names = ("bottleneck/steady_both_fraction", "inference/batch_latency_seconds_p50", "inference/batch_latency_seconds_p95")
    return Verdict(
        "bursty",
        "model" if uneven_model else case.slowest_input,
        case.evidence(*_WAITS, *names),
        advice,
        case.gain(min(case.waited, case.blocked)),
    )


def _input_bound(case: Case) -> Verdict:
    input_seconds = case.input_seconds
    cause = case.slowest_input
    rest = sum(seconds for other, seconds in input_seconds.items() if other != cause)
    saved = max(0.0, case.waited - max(0.0, rest - case.busy))  # what else the input does would then be waited for
    evidence = case.evidence(*_WAITS, *_INPUT)
    gain = case.gain(saved)
    if cause == "transfer":
        return Verdict("transfer-bound", cause, evidence, _advice_for_copies(case), gain)
    if cause == "preprocess":
        return Verdict("input-bound", cause, evidence, _advice_for_preprocess(case), gain)
    more = case.evidence("arrow/chunk_rows_max", "inference/bytes_in_total", "inference/bytes_out_total", "inference/partitions_total")
    return Verdict("input-bound", cause, evidence | more, _advice_for_source(case), gain)


def _advice_for_copies(case: Case) -> str:
    if case.settings.get("pin_memory") is False:
        return "Set pin_memory=True: copies to the card then run beside the model."
    return 'Declare the input as TensorSpec("uint8", ...) and scale it inside the model: a quarter of the bytes then go to the card.'


def _advice_for_preprocess(case: Case) -> str:
    workers = case.whole("num_workers", 0)
    needed = case.input_seconds["preprocess"] * max(1, workers) / max(1e-9, case.busy)
    keeps_a_core = not workers and case.of("inference/cpu_seconds_total") > case.of("inference/partition_seconds_total") / 2
    most = _MOST_AT_WORK if keeps_a_core else _MOST_WORKERS
    wanted = max(workers + 1, math.ceil(min(needed, most)))
    if keeps_a_core:
        return f"Set num_workers={wanted}, and spark.task.cpus to {wanted + 1}: preprocess computes, so each loader process needs a core of its own."
    return f"Set num_workers={wanted}: so many loader processes keep pace with the model, if the executor has the cores for them."


def _advice_for_source(case: Case) -> str:
    largest, batch = case.of("arrow/chunk_rows_max"), case.whole("batch_size", 64)
    in_force = case.whole("max_records_per_batch", 0)
    if 0 < in_force < batch and largest <= in_force:
        return f"Set max_records_per_batch={4 * batch}: Spark sends chunks of {largest:.0f} rows, so that a batch waits for several."
    back, came = case.of("inference/bytes_out_total"), case.of("inference/bytes_in_total")
    if case.settings.get("road") == "map" and back > came / 2 > 0:
        return f'Set road="column": {back / came:.0%} of the bytes that travel to Python are only carried back.'
    partitions = max(1, math.ceil(case.of("inference/partitions_total")))
    return f"Spread the reading over more tasks with repartition({2 * partitions}) before predict, if cores are free for them."


# --- the model's side --------------------------------------------------------------------------------------------------


def _model_side(case: Case) -> Verdict:
    """The consumer never waits: say what it is at."""
    seconds = {name: case.of(f"stage/{name}_seconds") for name in ("compute", "postprocess")}
    seconds["output"] = case.of("stage/encode_seconds") + case.of("stage/output_wait_seconds")
    seconds["compute"] = max(0.0, seconds["compute"] - sum(record.warmup_seconds or 0.0 for record in case.partitions))
    largest = max(seconds, key=lambda name: seconds[name])
    evidence = case.evidence(*_WAITS, *_OUTPUT)
    saved = min(case.blocked, seconds[largest])  # then the input would set the pace
    if largest == "compute":
        return _compute_bound(case, evidence, saved)
    if largest == "postprocess":
        advice = "Vectorise postprocess, or leave it to Spark SQL: the model waits while it runs."
        return Verdict("compute-bound", "postprocess", evidence, advice, case.gain(saved))
    advice = "Give keep only the columns that are needed, or let outputs be smaller: the way back to Spark takes longer than the model."
    return Verdict("transfer-bound", "transfer", evidence, advice, case.gain(saved))


def _compute_bound(case: Case, evidence: dict[str, float], saved: float) -> Verdict:
    batch, threads = case.whole("batch_size", 64), case.whole("threads", 0)
    cores = case.of("inference/cpu_seconds_total") / case.of("inference/partition_seconds_total")
    if not case.on_card and threads > 1 and cores < threads / 2:
        fewer = max(1, math.ceil(cores))
        advice = f"Set threads={fewer}, and spark.task.cpus to the same: a task has {threads} threads and keeps {cores:.1f} cores busy."
        evidence |= case.evidence("inference/cpu_seconds_total", "inference/partition_seconds_total")
        return Verdict("compute-bound", "threads", evidence, advice, (1.0, min(MOST_GAIN, threads / fewer)))
    idle = [name for name, below in _IDLE_CARD.items() if case.on_card and case.figures.get(name, math.inf) < below]
    call = case.of("inference/batch_latency_seconds_p50")
    if idle or (0 < call < _SHORT_CALL and batch < _LARGE_BATCH):
        why = (
            "the card is not busy while the model runs" if idle else f"a call takes {call * 1000:.2g} ms, of which much is the call itself"
        )
        evidence |= case.evidence("inference/batch_latency_seconds_p50", *idle)
        # at best a quarter of the calls take a quarter of the time, at worst every row its own
        return Verdict("compute-bound", "batch size", evidence, f"Set batch_size={4 * batch}: {why}.", case.gain(saved * 3 / 4, sure=0.0))
    advice, least, most = _advice_for_model(case, batch)
    computed = case.of("stage/compute_seconds")
    gain = case.gain(min(saved, most * computed), sure=min(saved, least * computed))
    return Verdict("compute-bound", "model", evidence, advice, gain)


_IDLE_CARD = {"system/gpu_utilization_percentage_mean": 50.0, "system/gpu_sm_activity_percentage_mean": 30.0}


def _advice_for_model(case: Case, batch: int) -> tuple[str, float, float]:
    """Give advice, and the least and the most that it takes off the model's time; only what this version offers is advised."""
    if case.on_card and case.settings.get("backend") == "torch" and case.settings.get("precision", "fp32") == "fp32":
        return 'Set precision="bf16", and compare the answers: the card does half-width arithmetic several times faster.', 0.0, 1 / 2
    if not case.on_card and case.settings.get("backend") == "torch" and case.settings.get("optimize") is None:
        advice = 'Give the TorchModel optimize="auto": on a CPU an exported model is often several times faster than an eager one.'
        return advice, 0.0, 4 / 5
    return f"Set batch_size={2 * batch} and compare: the model's own calls are what takes the time.", 0.0, 1 / 2


# --- before the first batch, start-up and spread -----------------------------------------------------------------------------------------------


def _first_wait(case: Case) -> Verdict | None:
    """Find a source that takes most of the time before a partition's first rows come: with few chunks nothing is left to wait for after."""
    waited, wall = case.of("bottleneck/first_wait_seconds"), case.of("inference/partition_seconds_total")
    read = min(waited, case.of("producer/read_seconds"))
    if read < _LEAST_SECONDS or read < _FIRST_WAIT * wall:
        return None
    chunks = case.of("arrow/chunk_rows_max")
    advice = (
        f"Make the rows faster (a Python UDF, a join or a scan upstream), or spread them over more tasks with repartition before predict: {read:.0f} of "
        f"{wall:.0f} s were spent in waiting for the first of them, in chunks of up to {chunks:.0f} rows."
    )
    evidence = case.evidence(
        "bottleneck/first_wait_seconds", "producer/read_seconds", "inference/partition_seconds_total", "arrow/chunk_rows_max"
    )
    return Verdict("input-bound", "source", evidence, advice, case.gain(read))


def _start_up(case: Case) -> Verdict | None:
    share = case.of("bottleneck/start_up_fraction")
    if share < _START_UP:
        return None
    loads, workers = case.of("inference/model_loads_total"), case.of("inference/python_workers_total")
    slots, partitions = case.of("inference/partitions_at_once_max"), case.of("inference/partitions_total")
    cause: Cause = "model"
    without = sum(max(0.0, record.stages.get("model_load", 0.0)) for record in case.partitions if not record.model_loads)
    if loads > workers:
        kept = case.whole("models_per_worker", 3) + 1
        advice = f"Set models_per_worker={kept}: {loads:.0f} loads in {workers:.0f} Python workers say that a loaded model was let go."
    elif workers > 1.5 * max(1.0, slots):
        advice = "Set spark.python.worker.reuse=true: new Python workers came for later partitions, and each had to load the model."
    elif without > case.of("stage/model_load_seconds") / 2 and partitions > max(1.0, slots):
        cause = "preprocess" if case.whole("num_workers", 0) else "model"
        advice = f"Use repartition({max(1, math.ceil(slots))}): every partition starts its loaders anew, and larger ones do so less often."
    else:
        advice = "Keep the session and models_per_worker of at least 1 for the next run: its workers then find the model loaded."
    names = ("bottleneck/start_up_fraction", "stage/model_load_seconds", "inference/model_loads_total")
    evidence = case.evidence(*names, "inference/python_workers_total", "inference/partition_seconds_total")
    return Verdict("start-up-bound", cause, evidence, advice, case.gain(share * case.of("inference/partition_seconds_total")))


def _spread(case: Case) -> Verdict | None:
    """Find work that is spread unevenly over partitions, or over fewer partitions than there are slots."""
    elapsed, wall = case.of("inference/elapsed_seconds"), case.of("inference/partition_seconds_total")
    slots = max(case.whole("slots", 0), case.of("inference/partitions_at_once_max"))
    if elapsed < _SKEW_SECONDS or slots < 2:
        return None
    idle = max(0.0, slots * elapsed - wall)
    longest = case.of("skew/wall_seconds_max")
    uneven = longest > _SKEW_SECONDS and case.figures.get("skew/wall_max_over_p75", math.inf) > _SKEW
    if idle < (_FELT if uneven else _IDLE) * slots * elapsed:
        return None  # the long ones ran beside enough others: nobody waited for them
    partitions = max(1, math.ceil(case.of("inference/partitions_total")))
    wanted = math.ceil(min(max(3 * slots, partitions + 1 if uneven else 0), 1e6))
    cause: Cause = "few partitions"
    if uneven:
        cause = "source" if case.of("skew/rows_max_over_mean") > _SKEW else _cause_of_longest(case)
        why = f"the longest partition takes {longest:.0f} s and the others are done long before"
    else:
        why = f"{partitions} partitions leave {idle / (slots * elapsed):.0%} of {slots:.0f} task slots' time unused"
    names = ("skew/wall_max_over_p75", "skew/wall_seconds_max", "skew/rows_max_over_mean", "skew/slots_idle_fraction")
    evidence = case.evidence(*names, "inference/partitions_total", "inference/partitions_at_once_max", "inference/elapsed_seconds")
    high = min(MOST_GAIN, slots * elapsed / wall)
    low = 1 / (1 - (1 - 1 / high) / 2)
    return Verdict("skewed", cause, evidence, f"Use repartition({wanted}) before predict: {why}.", (low, high))


def _cause_of_longest(case: Case) -> Cause:
    longest = max(case.partitions, key=lambda record: record.wall_seconds)
    if longest.stages.get("input_wait", 0.0) <= longest.stages.get("compute", 0.0):
        return "model"
    read = longest.producer.get("read", 0.0)
    return "source" if read >= longest.stages.get("input_wait", 0.0) / 2 else "preprocess"
