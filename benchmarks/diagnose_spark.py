"""Ten pipelines of known, simulated costs on real Spark: is the verdict right, and does the predicted gain hold the measured one?

    python -m benchmarks.diagnose_spark [--seed N] [--first N] [--count N] [--out benchmarks/results/diagnose.json]

Every step sleeps; all else is Spark's own: the source is another Python worker upstream, tasks start, rows travel. The job runs as it was, and changed, in
turn, twice, after a small job that starts the workers and their loader processes. What ``--out`` holds of other pipelines of the same seed is kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import sparkinfer as si
from benchmarks.diagnose_pipelines import judged, keep, show, summed
from benchmarks.sleeping import CHUNK, PARTITIONS, SLOTS, Pipeline, pipelines
from benchmarks.spark import noop, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("source", "preprocess", "model", "tiny batches", "skew", "cold starts", "balanced", "source", "preprocess", "model")
PAIRS = 2
_BATCHES = 60  # of a partition: of 40 ms each
_LONGER = 6  # times the rows of a job whose layout is the matter: tasks and shuffles take their tenths of a second
_runs = count(1)


def drawn(seed: int) -> list[Pipeline]:
    """Draw the ten; what a transfer would take is the preprocess's, since no backend of Spark's workers sleeps on the way."""
    found = []
    for number, kind in enumerate(KINDS):
        (one,) = pipelines(1, seed + number, kind)
        rows = tuple(each * _LONGER for each in one.rows) or (_BATCHES * one.batch_size,) * PARTITIONS
        one = replace(one, preprocess=one.preprocess + one.transfer, transfer=0.0, rows=rows, load=one.load * _LONGER)
        if kind in ("skew", "cold starts"):  # where a shuffle would part them
            one = replace(one, preprocess=one.preprocess + one.source, source=0.0)
        found.append(one)
    return found


def source(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Make a DataFrame whose partitions come as slowly as the source gives them."""
    rows, each = pipeline.rows, pipeline.source

    def give(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in chunks:
            for number in chunk.column(0).to_pylist():
                for start in range(0, rows[number], CHUNK):
                    some = min(CHUNK, rows[number] - start)
                    time.sleep(each * some)
                    yield pa.RecordBatch.from_pydict({"x": np.arange(float(some))})

    return spark.range(0, len(rows), 1, len(rows)).mapInArrow(give, "x double")


def arguments_of(pipeline: Pipeline) -> dict[str, Any]:
    """Give ``predict``'s arguments; nobody has loaded the model before."""
    call, row, load, each = pipeline.call, pipeline.row, pipeline.load, pipeline.preprocess

    def loaded() -> Callable[[np.ndarray], np.ndarray]:
        time.sleep(load)

        def predict(x: np.ndarray) -> np.ndarray:
            time.sleep(call + row * len(x))
            return x

        return predict

    def preprocess(x: np.ndarray) -> np.ndarray:
        time.sleep(each * len(x))
        return x

    return {
        "model": si.PythonModel(loaded, version=str(next(_runs))),
        "inputs": "x",
        "outputs": "y double",
        "preprocess_batch": preprocess,
        "batch_size": pipeline.batch_size,
        "models_per_worker": pipeline.models_per_worker,
        "road": "map",
    }


def seconds_of(spark: SparkSession, pipeline: Pipeline, settings: dict[str, Any], partitions: int | None = None) -> float:
    """Run the job, its rows spread anew over so many partitions where that is asked, and give the seconds that its action took."""
    few = replace(pipeline, rows=(2 * pipeline.batch_size,) * SLOTS)
    warmed = arguments_of(pipeline) | settings
    noop(si.predict(source(spark, few), **warmed))
    job = warmed if pipeline.models_per_worker and not pipeline.load else arguments_of(pipeline) | settings
    rows = source(spark, pipeline)
    scored = si.predict(rows if partitions is None else rows.repartition(partitions), **job)
    begun = time.perf_counter()
    noop(scored)
    return time.perf_counter() - begun


def tried(spark: SparkSession, pipeline: Pipeline, seconds: float) -> dict[str, Any]:
    """Diagnose a pipeline, carry the advice out, and compare."""
    found = si.diagnose(source(spark, pipeline), seconds=seconds, rows=100_000, **arguments_of(pipeline))

    def measured(before: Pipeline, after: Pipeline, settings: dict[str, Any]) -> list[float]:
        spread = len(after.rows) if after.rows != before.rows else None
        after = replace(after, rows=before.rows)
        return [seconds_of(spark, before, {}) / seconds_of(spark, after, settings, spread) for _ in range(PAIRS)]

    return judged(pipeline, found, measured)


def main() -> None:
    """Try them, print a line each, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each diagnosis")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=len(KINDS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    spark = session(SLOTS, **{"spark.sql.execution.arrow.maxRecordsPerBatch": str(CHUNK)})
    made: dict[str, Any] = {}
    if asked.out and asked.out.exists():
        there = json.loads(asked.out.read_text(encoding="utf-8")).get("spark", {})
        made = there.get("each", {}) if there.get("seed") == asked.seed else {}
    for number, pipeline in list(enumerate(drawn(asked.seed)))[asked.first : asked.first + asked.count]:
        one = tried(spark, pipeline, asked.seconds)
        show(number, one)
        made[str(number)] = one
        if asked.out:
            keep(asked.out, "spark", summed(list(made.values())) | {"seed": asked.seed, "diagnosis_seconds": asked.seconds, "each": made})
    print(summed(list(made.values())))
    spark.stop()


if __name__ == "__main__":
    main()
