"""A long session of jobs with faults: does anything grow in the driver, in Spark's Python workers, or in their temporary folder?

For ``--minutes``, one session runs small jobs one after the other, drawn by a seed: undisturbed ones on each road, with and without loader processes, with bad
rows, and for a quarter of the time also limits, models that fail, lose rows or hang until their job is cancelled: those cost Python workers, which else live long
enough to be measured. Every answer is checked. After each job the processes are looked at: the driver's memory, threads and open files, the same of every Python
worker, the number of processes, and of files in the workers' temporary folder.

Slopes are Theil and Sen's (the median of all pairs', which a few outliers do not move), over medians of ten jobs, with the upper end of their 95 % interval. They
are per 100 partitions of the session, and leave out the first 200 jobs, whose figures the library keeps, and the first ten minutes; of a shorter soak the first
half. A worker's slope counts from its twentieth job on and is the median over the workers that lived through 60 jobs. Python's own part of the driver is measured,
not the JVM.

``--trace`` says which lines hold what grew in the driver (by tracemalloc, which slows it), and of which kinds there are more objects.

Prints the figures, and writes them to ``benchmarks/results/soak.json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
import uuid
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

import sparkinfer as si
from sparkinfer.testing import EchoModel, Ledger, RaisingModel, ShortModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT = Path(__file__).parent / "results" / "soak.json"
ROWS, PARTITIONS, BAD = 2000, 4, 1313
MARK = "SPARKINFER_SOAK"
_REMEMBERED = 200  # calls whose figures the library keeps: up to then the driver grows by design
CALM = {"whole": 4, "bad rows": 1}  # how often each
ROUGH = {"whole": 4, "bad rows": 2, "limit": 3, "failing model": 3, "short model": 2, "cancelled": 2}
_LONG = 60  # jobs that a process lived through, to be measured
_STRETCH = 40  # jobs: three such are calm, the fourth is rough


# --- what runs on the workers


def double(x: np.ndarray) -> np.ndarray:
    """Prepare a row."""
    return np.asarray(x, np.float32) * 2


def choosy(x: np.ndarray) -> np.ndarray:
    """Prepare a row, but not every one."""
    if x[0] % 100 == 13:
        msg = "13 is not for me"
        raise ValueError(msg)
    return double(x)


@dataclass(frozen=True)
class Waits:
    """A preprocess that hangs at a row."""

    ledger: Ledger

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Prepare, or wait to be ended."""
        if x[0] == BAD:
            self.ledger.write("waiting")
            time.sleep(600)
        return double(x)


# --- jobs


@dataclass
class Soak:
    """The session, and what a job needs."""

    spark: SparkSession
    folder: Path
    dice: random.Random
    jobs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    def one_job(self) -> None:
        """Run one, and check what came."""
        kinds = ROUGH if self.jobs // _STRETCH % 4 == 3 else CALM
        kind = self.dice.choices(list(kinds), list(kinds.values()))[0]
        road, num_workers = self.dice.choice(("map", "column")), self.dice.choice((0, 0, 2))
        df = self.spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "array(cast(id as float), 1f) as x")
        told = {"inputs": "x", "outputs": "y array<float>", "keep": ["id"], "batch_size": 64, "road": road, "num_workers": num_workers}
        getattr(self, f"_{kind.replace(' ', '_')}")(df, told)
        self.jobs += 1
        self.kinds[kind] += 1

    def _whole(self, df: DataFrame, told: dict[str, Any]) -> None:
        with si.inference_run(mlflow=False) as run:
            rows = si.predict(df, self._echo(), preprocess=double, **told).collect()
        assert {row.id: row.y for row in rows} == {number: [2.0 * number, 2.0] for number in range(ROWS)}
        assert run.summary["inference/rows_total"] == ROWS

    def _bad_rows(self, df: DataFrame, told: dict[str, Any]) -> None:
        rows = si.predict(df, self._echo(), preprocess=choosy, on_error="null", **told).collect()
        assert {row.id for row in rows if row.error} == {number for number in range(ROWS) if number % 100 == 13}
        assert all(row.y == [2.0 * row.id, 2.0] for row in rows if not row.error)

    def _limit(self, df: DataFrame, told: dict[str, Any]) -> None:
        rows = si.predict(df, self._echo(), preprocess=double, **told).limit(5).collect()
        assert len(rows) == 5
        assert all(row.y == [2.0 * row.id, 2.0] for row in rows)

    def _failing_model(self, df: DataFrame, told: dict[str, Any]) -> None:
        scored = si.predict(df, si.PythonModel(RaisingModel(trigger=2.0 * BAD)), preprocess=double, **told)
        assert "the model raised, as it was told to" in _error_of(scored)

    def _short_model(self, df: DataFrame, told: dict[str, Any]) -> None:
        scored = si.predict(df, si.PythonModel(ShortModel()), preprocess=double, **told)
        assert "expected 64 rows, found 63" in _error_of(scored)

    def _cancelled(self, df: DataFrame, told: dict[str, Any]) -> None:
        ledger, group = Ledger(str(self.folder / uuid.uuid4().hex)), f"soak {self.jobs}"
        scored = si.predict(df, self._echo(), preprocess=Waits(ledger), **told)
        errors: list[str] = []

        def run() -> None:
            self.spark.sparkContext.setJobGroup(group, group, interruptOnCancel=True)
            errors.append(_error_of(scored))

        thread = threading.Thread(target=run)
        thread.start()
        while not ledger.count("waiting"):
            assert thread.is_alive(), errors
            time.sleep(0.05)
        self.spark.sparkContext.cancelJobGroup(group)
        thread.join(60)
        assert not thread.is_alive(), "a cancelled job hangs"
        assert "cancelled" in errors[0], errors[0][:2000]

    def _echo(self) -> Any:
        """The same model most of the time, now and then a new one that the workers have to load."""
        number = self.dice.choice((0, 0, 0, self.jobs))
        return si.PythonModel(EchoModel(), version=str(number))


def _error_of(scored: DataFrame) -> str:
    """Run a job that is to fail, and give its error's words."""
    try:
        scored.collect()
    except Exception as error:  # noqa: BLE001 - Spark's, with ours in its words
        return str(error)
    return "no error"


# --- what grows


Look = dict[str, float]


def look_at(process: psutil.Process) -> Look:
    """Take a process's figures; memory is what is its own, without what it shares with its parent."""
    with process.oneshot():
        return {
            "own_memory_megabytes": process.memory_full_info().uss / 1e6,
            "threads": process.num_threads(),
            "open_files": process.num_fds(),
        }


def python_workers(mark: str) -> list[psutil.Process]:
    """Find the processes of this session that Spark's daemon has forked, and those below them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


class Seen:
    """The looks of one process, in little memory: this program's own must not be what grows."""

    def __init__(self) -> None:
        self.jobs = array("d")
        self.figures: dict[str, array[float]] = defaultdict(lambda: array("d"))

    def note(self, jobs: int, look: Look) -> None:
        """Keep a look, taken after so many jobs."""
        self.jobs.append(jobs)
        for name, value in look.items():
            self.figures[name].append(value)

    def slopes(self, after: int) -> dict[str, dict[str, float]]:
        """Give each figure's slope from one look on, and its upper bound, per 100 partitions."""
        each = 100 / PARTITIONS
        told = {}
        for name, values in self.figures.items():
            found, bound = slope(_medians(list(zip(self.jobs, values, strict=True))[after:]))
            told[name] = {"slope": round(each * found, 4), "at_most": round(each * bound, 4)}
        return told


def _medians(points: Sequence[tuple[float, float]], size: int = 10) -> list[tuple[float, float]]:
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(statistics.median(x for x, _ in group), statistics.median(y for _, y in group)) for group in groups]


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Give the median slope of all pairs, and the upper end of its 95 % interval (Sen's, by Kendall's statistic)."""
    slopes = sorted((y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in combinations(points, 2) if x1 != x0)
    if not slopes:
        return 0.0, 0.0
    many = len(points)
    spread = 1.96 * math.sqrt(many * (many - 1) * (2 * many + 5) / 18)
    return statistics.median(slopes), slopes[min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))]


class Growth:
    """What the driver's Python holds more of, by line and by kind of object."""

    def __init__(self) -> None:
        gc.collect()
        self._kinds = Counter(type(one).__qualname__ for one in gc.get_objects())
        self._before = tracemalloc.take_snapshot()

    def told(self, most: int = 25) -> list[str]:
        """Give the lines and the kinds that grew most."""
        gc.collect()
        kinds = Counter(type(one).__qualname__ for one in gc.get_objects())
        kinds.subtract(self._kinds)
        changes = tracemalloc.take_snapshot().compare_to(self._before, "lineno")
        total = sum(one.size_diff for one in changes)
        return [
            f"{total / 1e3:,.0f} kB more by tracemalloc",
            *(str(one) for one in changes[:most]),
            *(f"{count:+,} {kind}" for kind, count in kinds.most_common(most)),
        ]


def soak(session: Soak, mark: str, scratch: Path, minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Run jobs for so long, and give the figures."""
    begun = time.monotonic()
    driver = Seen()
    workers: dict[int, Seen] = defaultdict(Seen)  # those that live, and those that lived long
    ever: set[int] = set()
    growth: Growth | None = None
    ten_minutes = 0  # jobs
    while time.monotonic() < begun + 60 * minutes:
        session.one_job()
        living = python_workers(mark)
        now = {**look_at(psutil.Process()), "python_processes": float(len(living)), "temporary_files": float(len(list(scratch.iterdir())))}
        driver.note(session.jobs, now)
        for process in living:
            with suppress(psutil.Error):
                workers[process.pid].note(session.jobs, look_at(process))
        ever |= workers.keys()
        for pid in workers.keys() - {process.pid for process in living}:
            if len(workers[pid].jobs) < _LONG:
                del workers[pid]
        if time.monotonic() < begun + 600:
            ten_minutes = session.jobs
        if tracemalloc.is_tracing() and growth is None and session.jobs > _REMEMBERED + 20:
            growth = Growth()
        if session.jobs % 50 == 0:
            say(f"{session.jobs} jobs, {now}")
    if growth is not None:
        say("\n".join(growth.told()))
    long_lived = [seen for seen in workers.values() if len(seen.jobs) >= _LONG]
    slopes = [seen.slopes(20) for seen in long_lived]
    settled = max(_REMEMBERED, ten_minutes) if session.jobs > 1.5 * max(_REMEMBERED, ten_minutes) else session.jobs // 2
    return {
        "minutes": round((time.monotonic() - begun) / 60, 1),
        "jobs": session.jobs,
        "partitions": PARTITIONS * session.jobs,
        "kinds": dict(session.kinds),
        "driver_per_100_partitions": {"from_job": settled, **driver.slopes(settled)},
        "driver_last": {name: round(values[-1], 1) for name, values in driver.figures.items()},
        "most_python_processes": int(max(driver.figures["python_processes"])),
        "most_temporary_files": int(max(driver.figures["temporary_files"])),
        "processes_seen": len(ever),
        "processes_of_60_jobs": len(long_lived),
        "process_per_100_partitions": {
            name: {which: round(statistics.median(one[name][which] for one in slopes), 4) for which in ("slope", "at_most")}
            for name in slopes[0]
        }
        if slopes
        else {},
        "left_after_the_session": _left(session, mark),
    }


def _left(session: Soak, mark: str) -> list[str]:
    """Stop the session, and see who is still there after some seconds."""
    session.spark.stop()
    until = time.monotonic() + 30
    while (left := python_workers(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    told = [_told(process) for process in left]
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return told


def _told(process: psutil.Process) -> str:
    try:
        program, *arguments = process.cmdline() or [process.name()]
        command = " ".join([Path(program).name, *arguments])
        above = " < ".join(f"{one.name()} {one.pid}" for one in process.parents())
        waits = Path(f"/proc/{process.pid}/wchan").read_text(encoding="utf-8")
        age = time.time() - process.create_time()
        return f"{process.pid} {command} < {above}; {process.status()} in {waits}, {process.num_threads()} threads, {age:.0f} s old"
    except (psutil.Error, OSError) as error:
        return f"{process.pid}, which has just ended ({error})"


def main() -> None:
    """Soak, and write the result."""
    from pyspark.sql import SparkSession

    from benchmarks.machine import describe_machine

    os.environ["PYSPARK_PYTHON"] = sys.executable
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="say what grew in the driver; writes no result")
    said = parser.parse_args()
    if said.trace:
        tracemalloc.start(4)
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).resolve().parents[1]))
            .config("spark.executorEnv.TMPDIR", str(scratch))
            .config(f"spark.executorEnv.{MARK}", mark)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        session = Soak(spark, Path(folder), random.Random(said.seed))  # noqa: S311 - a fate needs no cryptography
        found = soak(session, mark, scratch, said.minutes, lambda text: print(text, flush=True))
    told = {"machine": describe_machine(), "seed": said.seed, **found}
    if not said.trace:
        RESULT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
