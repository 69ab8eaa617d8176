"""A hundred pipelines of known, simulated costs: is the verdict right, and does the predicted gain hold the measured one?

    python -m benchmarks.diagnose_pipelines [--clock virtual|wall] [--only KIND] [--count N] [--seed N] [--out benchmarks/results/diagnose.json]

Every step sleeps, and the loop is the real one, with its threads and queues. By the virtual clock (the default) sleeping takes no time and no other work on
the machine changes a figure; noise is added instead: each sleep differs from what was asked by a tenth, and whole seconds by a twentieth. By the wall clock
the sleeps are real, and so is the noise.

What a change gives is measured beside the pipeline as it was, in turn, three times: the steady pace where the diagnosis knew of no job, and the whole job where
it did.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import sparkinfer as si
from benchmarks.sleeping import CAUSES, CHUNK, KINDS, SLOTS, Pipeline, SleepingSpec, Source, install, pipelines, sleeping_preprocess
from benchmarks.virtual_time import VirtualTime
from sparkinfer.engine.recorder import Recorder
from sparkinfer.engine.stopwatch import Stopwatch

PAIRS = 3
SPREAD, DRIFT = 0.1, 0.05
_LEAST_WAVES = 24  # of batches through all loader processes
_LEAST_BATCHES = 40
_BEGINNING = 4  # the first quarter of a stream is not its steady pace
_runs = count(1)
_clock: list[VirtualTime] = []  # of this process, if it is virtual


def begin(clock: str) -> None:
    """Prepare a process: the backend that sleeps, and the clock."""
    install()
    if clock == "virtual":
        made = VirtualTime()
        made.install()
        _clock.append(made)
        Stopwatch.__init__.__defaults__ = (made.now,)  # bound when the module was imported
        Recorder.__init__.__defaults__ = (made.now, lambda: 0.0, None)


def slots_of(pipeline: Pipeline) -> int:
    """Give how many partitions run at once: threads of one process would share a loaded model, which task slots do not."""
    return 1 if pipeline.load else SLOTS


def arguments_of(pipeline: Pipeline) -> dict[str, Any]:
    """Give ``predict``'s keywords; where the job's partitions are known, they are tables, and their source sleeps in preprocess."""
    ahead = pipeline.preprocess + (pipeline.source if pipeline.rows else 0.0)
    return {
        "inputs": "x",
        "outputs": "y double",
        "preprocess_batch": sleeping_preprocess(ahead),
        "batch_size": pipeline.batch_size,
        "threads": pipeline.threads,
        "models_per_worker": pipeline.models_per_worker,
        "device": f"cpu:{pipeline.transfer:.9f}",
    }


def tables_of(pipeline: Pipeline) -> list[pa.Table]:
    """Give the job's partitions."""
    return [pa.table({"x": np.arange(float(rows))}) for rows in pipeline.rows]


def diagnosed(pipeline: Pipeline, seconds: float) -> si.Diagnosis:
    """Diagnose it: as one stream, or as partitions where the job's layout matters."""
    model, arguments = SleepingSpec(pipeline), arguments_of(pipeline)
    if pipeline.rows:
        return si.diagnose(tables_of(pipeline), model, seconds=seconds, slots=slots_of(pipeline), **arguments)
    return si.diagnose(Source(100_000, pipeline.source), model, seconds=seconds, **arguments)


def applied(pipeline: Pipeline, found: si.Diagnosis) -> tuple[Pipeline, dict[str, Any], Any]:
    """Carry out the change that the verdict's gain is of: the pipeline and the settings after it."""
    wanted = found.verdict.gain
    change = next(one for one in found.changes if (one.gain.low, one.gain.high) == wanted)
    if change.is_setting:
        return pipeline, {change.setting: change.value}, change
    if change.setting == "partitions":
        total, many = sum(pipeline.rows), max(3 * SLOTS, len(pipeline.rows))
        return replace(pipeline, rows=tuple(total * (i + 1) // many - total * i // many for i in range(many))), {}, change
    if change.setting == "model":
        return replace(pipeline, call=pipeline.call / 2, row=pipeline.row / 2), {}, change
    return replace(pipeline, **{change.setting: getattr(pipeline, change.setting) / 2}), {}, change


def pace(pipeline: Pipeline, settings: dict[str, Any], rows: int) -> float:
    """Give the seconds for a row of a stream, its beginning left out."""
    arguments = arguments_of(pipeline) | settings
    out: list[tuple[int, float]] = []
    for chunk in si.predict_local(iter(Source(rows, pipeline.source)), SleepingSpec(pipeline, next(_runs)), **arguments):
        out.append(((out[-1][0] if out else 0) + chunk.num_rows, time.perf_counter()))
    (before, begun), (all_rows, ended) = out[len(out) // _BEGINNING], out[-1]
    return (ended - begun) / (all_rows - before)


def job_seconds(pipeline: Pipeline, settings: dict[str, Any]) -> float:
    """Give the seconds of the whole job on its slots."""
    model, arguments = SleepingSpec(pipeline, next(_runs)), arguments_of(pipeline) | settings
    begun = time.perf_counter()
    with ThreadPoolExecutor(slots_of(pipeline)) as pool:
        list(pool.map(lambda table: si.predict_local(table, model, **arguments), tables_of(pipeline)))
    return time.perf_counter() - begun


def measured(pipeline: Pipeline, after: Pipeline, settings: dict[str, Any]) -> list[float]:
    """Give how many times as fast it is after the change, in each of some pairs of runs, one beside the other."""
    if pipeline.rows:
        return [job_seconds(pipeline, {}) / job_seconds(after, settings) for _ in range(PAIRS)]
    batch = max(pipeline.batch_size, settings.get("batch_size", 0))
    rows = batch * max(_LEAST_BATCHES, _LEAST_WAVES * settings.get("num_workers", 0))
    few = max(4 * CHUNK, _LEAST_BATCHES * pipeline.batch_size)
    return [pace(pipeline, {}, few) / pace(after, settings, max(few, rows)) for _ in range(PAIRS)]


def tried(drawn: tuple[int, Pipeline], seed: int, seconds: float) -> dict[str, Any]:
    """Diagnose a pipeline, carry the advice out, and compare."""
    number, pipeline = drawn
    for clock in _clock:
        clock.restart(random.Random(f"{seed} {number}"), SPREAD, DRIFT)  # noqa: S311 - noise
    return judged(pipeline, diagnosed(pipeline, seconds), measured)


def judged(pipeline: Pipeline, found: si.Diagnosis, measure: Callable[[Pipeline, Pipeline, dict[str, Any]], list[float]]) -> dict[str, Any]:
    """Hold a diagnosis to what is known of the pipeline, and its gain to what is measured."""
    kind, cause = found.verdict.kind, found.verdict.cause
    if pipeline.kind == "balanced":
        right = not kind.endswith("-bound")
    else:
        expected = CAUSES[pipeline.kind]
        right = kind == expected[0] and expected[1] in (None, cause)
    told = {
        "pipeline": asdict(pipeline),
        "verdict": str(found.verdict),
        "kind": kind,
        "cause": cause,
        "right": right,
        "rounds": found.rounds,
        "input_over_model": [found.verdict.evidence.get(f"diagnose/input_over_model_{end}") for end in ("low", "high")],
    }
    if found.verdict.gain is not None:
        after, settings, change = applied(pipeline, found)
        ratios = measure(pipeline, after, settings)
        told |= {"change": f"{change.setting}={change.value}", "predicted": found.verdict.gain, "middle": change.gain.middle}
        told |= {"pairs": ratios, "measured": median(ratios)}
        told["held"] = bool(found.verdict.gain[0] <= told["measured"] <= found.verdict.gain[1])
    return told


def show(number: int, one: dict[str, Any]) -> None:
    """Print a line."""
    gain = f"{one['predicted'][0]:.2f}-{one['predicted'][1]:.2f}, measured {one['measured']:.2f}" if "predicted" in one else "-"
    missed = "" if one.get("held", True) else " MISSED"
    said = "right" if one["right"] else "WRONG"
    print(
        f"{number:3} {one['pipeline']['kind']:13} {said} {one['kind']} ({one['cause']}) {gain}{missed} {one['rounds']} rounds", flush=True
    )


def summed(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Count what was right, and what held."""
    gains = [one for one in found if "held" in one]
    widths = sorted(one["predicted"][1] / one["predicted"][0] for one in gains)
    off = sorted(abs(one["middle"] / one["measured"] - 1) for one in gains)
    return {
        "pipelines": len(found),
        "right": sum(one["right"] for one in found),
        "wrong_by_kind": dict(Counter(one["pipeline"]["kind"] for one in found if not one["right"])),
        "gains": len(gains),
        "gains_held": sum(bool(one["held"]) for one in gains),
        "missed_by_kind": dict(Counter(one["pipeline"]["kind"] for one in gains if not one["held"])),
        "median_width": round(median(widths), 3) if widths else None,  # the upper end over the lower
        "median_middle_off": round(median(off), 3) if off else None,
    }


def keep(path: Path, part: str, told: dict[str, Any]) -> None:
    """Write a part of the result beside the others."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**kept, part: told}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Try them, print a line each, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clock", choices=("virtual", "wall"), default="virtual")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each diagnosis, by the clock")
    parser.add_argument("--jobs", type=int, help="pipelines at once: by the wall clock they only sleep")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    begun = time.perf_counter()
    found = []
    drawn = pipelines(asked.count, asked.seed, asked.only)
    jobs = asked.jobs or (2 if asked.clock == "virtual" else 10)
    with ProcessPoolExecutor(jobs, initializer=begin, initargs=(asked.clock,)) as pool:
        for number, one in enumerate(pool.map(partial(tried, seed=asked.seed, seconds=asked.seconds), enumerate(drawn))):
            found.append(one)
            show(number, one)
    told = summed(found) | {"seed": asked.seed, "diagnosis_seconds": asked.seconds, "seconds": round(time.perf_counter() - begun, 1)}
    print(told)
    if asked.out:
        keep(asked.out, asked.clock, told | {"each": found})


if __name__ == "__main__":
    main()
