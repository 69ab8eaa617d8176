"""``si.tune`` beside an exhaustive grid: its choice and the grid's best, run again in turn.

``python -m benchmarks.tune_grid [w1 w3 w4] [--engine local] [--quick]``. From a start that nobody would choose, the grid's 24 settings each score all rows;
then ``tune`` gets less than a quarter of the time that this took. What is reached: at least 0.93 of the best's rows/s, in at most a quarter of the time.
Each work's result goes into ``benchmarks/results/tune_grid.json`` beside those that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import sparkinfer as si
from benchmarks.data import photos, small_vectors, vectors
from benchmarks.machine import describe_machine
from benchmarks.models import decode_photo, efficientnet, mlp
from benchmarks.spark import noop, session
from benchmarks.works import w4
from sparkinfer.analysis.intervals import of_positive

RESULTS = Path(__file__).parent / "results" / "tune_grid.json"
REACH, SHARE = 0.93, 0.25
_ASKED = 0.8  # of that share: tune ends with the round that is under way

Settings = Mapping[str, Any]
Run = Callable[[Settings], float]  # gives the seconds of a whole job


@dataclass(frozen=True)
class Pipeline:
    """One work: what is scored by what.

    Attributes:
        folder: gives the files of so many rows.
        rows: in a full run, and in a quick one.
        model: makes the model.
        arguments: ``predict``'s.
        start: what ``tune`` begins with.
        grid: values of each setting; with loader processes of its own where Spark's tasks have one CPU.
        chunk: rows that a local reader gives at once: an arm of a tuning goes through whole chunks.
        rounds: of the grid, in a full run.
    """

    folder: Callable[[int], Path]
    rows: tuple[int, int]
    model: Callable[[], Any]
    arguments: Mapping[str, Any]
    start: Settings
    grid: Mapping[str, tuple[Any, ...]]
    chunk: int = 10_000
    rounds: int = 1

    def settings(self) -> list[dict[str, Any]]:
        """Give the grid's settings, each with what the start has elsewhere."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]


def _w1() -> Pipeline:
    return Pipeline(
        folder=vectors,
        rows=(200_000, 50_000),
        model=lambda: si.TorchModel(mlp()),
        arguments={"inputs": "x", "outputs": "y array<float>", "keep": ["id"]},
        start={"batch_size": 8, "prefetch_batches": 0},
        grid={"batch_size": (16, 64, 256, 1024, 2048, 4096), "prefetch_batches": (0, 2), "num_workers": (0, 1)},
        rounds=2,
    )


def _w3() -> Pipeline:
    return Pipeline(
        folder=photos,
        rows=(160, 64),
        model=lambda: si.TorchModel(efficientnet()),
        arguments={"inputs": "content", "outputs": "y array<float>", "keep": ["id"], "preprocess": decode_photo},
        start={"batch_size": 2, "prefetch_batches": 0},
        grid={"batch_size": (4, 8, 16, 32), "prefetch_batches": (0, 2), "num_workers": (0, 1, 2)},
        chunk=16,
    )


def _w4() -> Pipeline:
    return Pipeline(
        folder=partial(small_vectors, files=2),
        rows=(64 * 100, 64 * 40),
        model=lambda: si.PythonModel(lambda: w4.predict),
        arguments={"inputs": "x", "outputs": "y array<float>", "keep": ["id"], "preprocess_batch": w4.prepare},
        start={"batch_size": 8, "prefetch_batches": 0},
        grid={"batch_size": (16, 64, 256, 1024), "prefetch_batches": (0, 2), "num_workers": (0, 1, 2)},
        chunk=256,
    )


WORKS = {"w1": _w1, "w3": _w3, "w4": _w4}


class Files:
    """A folder's rows in chunks, read anew each time."""

    def __init__(self, folder: Path, chunk: int) -> None:
        """Take the folder's files, and the rows of a chunk."""
        self.folder, self.chunk = folder, chunk

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read."""
        for path in sorted(self.folder.glob("*.parquet")):
            yield from pq.ParquetFile(path).iter_batches(self.chunk, use_threads=False)


def _locally(pipeline: Pipeline, model: Any, folder: Path) -> tuple[Any, Run]:
    def run(settings: Settings) -> float:
        begun = time.perf_counter()
        for _ in si.predict_local(Files(folder, pipeline.chunk), model, **pipeline.arguments, **settings):
            pass
        return time.perf_counter() - begun

    return Files(folder, pipeline.chunk), run


def _on_spark(pipeline: Pipeline, model: Any, folder: Path) -> tuple[Any, Run]:
    data = session(**{"spark.sql.files.maxPartitionBytes": "9m" if folder.name.startswith("photos") else "64m"}).read.parquet(str(folder))

    def run(settings: Settings) -> float:
        begun = time.perf_counter()
        noop(si.predict(data, model, **pipeline.arguments, **settings))
        return time.perf_counter() - begun

    return data, run


ENGINES = {"local": _locally, "spark": _on_spark}


def compare(name: str, engine: str, *, quick: bool) -> dict[str, Any]:
    """Run the grid, let ``tune`` choose, and run its choice beside the grid's best."""
    pipeline = WORKS[name]()
    rows = pipeline.rows[quick]
    folder = pipeline.folder(rows)
    model = pipeline.model()
    data, run = ENGINES[engine](pipeline, model, folder)
    load = os.getloadavg()[0]
    run({"batch_size": 64})  # the model is loaded, the files are in memory
    grid = [{"settings": one, "seconds": []} for one in pipeline.settings()]
    begun = time.perf_counter()
    for _ in range(1 if quick else pipeline.rounds):
        for one in grid:
            one["seconds"].append(run(one["settings"]))
            print(f"  {one['settings']}: {rows / one['seconds'][-1]:,.0f} rows/s", flush=True)
    grid_seconds = time.perf_counter() - begun
    best = min(grid, key=lambda one: min(one["seconds"]))["settings"]
    begun = time.perf_counter()
    found = si.tune(data, model, rows=rows, seconds=_ASKED * SHARE * grid_seconds, **pipeline.arguments, **pipeline.start)
    tune_seconds = time.perf_counter() - begun
    print(found, flush=True)
    chosen = {**pipeline.start, **found.overrides}
    again = [(run(chosen), run(best)) for _ in range(2 if quick else 5)]
    ratio = of_positive([of_best / of_choice for of_choice, of_best in again])
    start_seconds = run(pipeline.start)
    told = {
        "rows": rows,
        "start": {**pipeline.start, "rows_per_second": rows / start_seconds},
        "grid": grid,
        "grid_seconds": grid_seconds,
        "best": best,
        "best_rows_per_second": [rows / of_best for _, of_best in again],
        "tune_seconds": tune_seconds,
        "diagnosis_seconds": found.diagnosis.seconds,
        "choice": chosen,
        "choice_rows_per_second": [rows / of_choice for of_choice, _ in again],
        "tried": [{"overrides": dict(one.overrides), "gain": one.gain and one.gain.middle, "ended": one.ended} for one in found.tried],
        "ratio": asdict(ratio),
        "share_of_the_grids_time": tune_seconds / grid_seconds,
        "reached": ratio.middle >= REACH and tune_seconds <= SHARE * grid_seconds,
        "load_at_the_beginning": load,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    print(
        f"{name} {engine}: {ratio.middle:.2f} of the best ({best}) with {chosen}, in {told['share_of_the_grids_time']:.2f} of the grid's time"
    )
    return told


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=sorted(WORKS), help="w1, w3, w4")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="local")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds; nothing is written")
    said = parser.parse_args()
    for name in said.works:
        told = compare(name, said.engine, quick=said.quick)
        if not said.quick:
            there = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            made = {**there, "machine": describe_machine(), f"{name}.{said.engine}": told}
            RESULTS.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
