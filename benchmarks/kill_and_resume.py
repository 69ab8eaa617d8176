"""Drivers killed by SIGKILL at seeded moments, each run again: is the table the same every time?

Each kill is of a whole process group, Python and JVM. The first fifty come at a random moment between the beginning of ``score_to`` and the time that it takes
as a whole; whether it came before the run's own end is counted. Those behind them come at the commit: at most 50 ms after a random one of the changes to the
table's folder that an undisturbed run makes (a lease, staged files, parts, a journal, and their end). Every second kill is of a run that retries failed rows. This process's own session then takes over, and ends the table. Printed, and written to ``benchmarks/results/kill_and_resume.json``: how often
which phase was met, how many final tables are not what they should be, and how many left more than their manifest behind.

``python -m benchmarks.kill_and_resume --kills 100 --seed 0``: some ten seconds a kill on two quiet cores, most of it a JVM's start. What was stopped goes on with
``--resume``: a kill's share of the time follows from the seed and its number.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import sparkinfer as si

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "kill_and_resume.json"
ROWS, PARTITIONS = 64, 8
ANY_TIME = 50  # kills at any moment, before those at the commit
EXPECTED = [{"id": row, "x": row, "y": 3 * row, "error": None} for row in range(ROWS)]


def load() -> Any:
    """Give a model that takes its time, and fails on some rows while the table is prepared."""
    from pyspark import TaskContext

    def predict(x: np.ndarray) -> np.ndarray:
        time.sleep(0.05)
        context = TaskContext.get()
        if context is not None and context.getLocalProperty("kill_and_resume.storm") and (x % 5 == 0).any():
            msg = "storm"
            raise ValueError(msg)
        return 3 * x

    return predict


def session() -> SparkSession:
    """Start a session, or give the one that runs."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", str(ROOT))
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def score(folder: str, *, retry: bool = False, storm: bool = False) -> None:
    """Score what is missing."""
    spark = session()
    spark.sparkContext.setLocalProperty("kill_and_resume.storm", "yes" if storm else None)  # type: ignore[arg-type]
    data = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "id AS x")
    said: dict[str, Any] = {"key": "id", "inputs": "x", "outputs": "y long", "on_error": "null", "batch_size": 2}
    si.score_to(data, f"{folder}/scored", si.PythonModel(load), retry_errors=retry, **said)


def drive(folder: str, *, retry: bool) -> None:
    """Be the driver that may be killed; begin and end are told by files."""
    session()
    Path(folder, "begun").touch()
    score(folder, retry=retry)
    Path(folder, "ended").touch()


def listed(table: Path) -> set[str]:
    """Give the paths of all that is in a folder."""
    return {f"{folder}/{name}" for folder, _, names in os.walk(table) for name in names}


@dataclass(frozen=True)
class Driver:
    """A driver in a process group of its own, which is in ``score_to``."""

    process: subprocess.Popen[bytes]
    begun: float

    @classmethod
    def start(cls, folder: Path, *, retry: bool) -> Driver:
        """Start one, and wait for its beginning."""
        code = f"from benchmarks.kill_and_resume import drive; drive({str(folder)!r}, retry={retry})"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-c", code], env=environment, start_new_session=True, stderr=subprocess.DEVNULL
        )
        while not (folder / "begun").exists():
            assert process.poll() is None, "a driver failed before it began"
            time.sleep(0.01)
        return cls(process, time.monotonic())

    def whole(self, table: Path) -> tuple[float, int]:
        """Let it run to its end; give its seconds, and how often the table's folder changed."""
        changes = self.watch(table, sys.maxsize)
        assert self.process.wait(300) == 0, "a driver that nobody killed failed"
        return time.monotonic() - self.begun, changes

    def watch(self, table: Path, most: int) -> int:
        """Look at the table's folder until it has changed so often, or until the run ends; give how often it has."""
        seen, changes = listed(table), 0
        while changes < most and self.process.poll() is None:
            time.sleep(0.001)
            now = listed(table)
            changes += now != seen
            seen = now
        return changes

    def kill(self) -> None:
        """Kill Python and JVM."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def undisturbed(prepared: Path, *, retry: bool) -> tuple[float, int]:
    """Give the seconds of a run that nobody kills, and how often its folder changes."""
    with tempfile.TemporaryDirectory() as name:
        _begin(Path(name), prepared, retry=retry)
        return Driver.start(Path(name), retry=retry).whole(Path(name, "scored"))


def _begin(folder: Path, prepared: Path, *, retry: bool) -> None:
    """Leave rows that failed, where they are to be retried."""
    if retry:
        shutil.copytree(prepared / "scored", folder / "scored")


def kill_one(number: int, seed: int, usual: tuple[float, int], prepared: Path) -> dict[str, Any]:
    """Kill a driver after a share of the time that a whole run takes, or at a change of its folder; end its table, and compare."""
    retry, dice = number % 2 == 1, random.Random(f"{seed} {number}")  # noqa: S311 - moments need no cryptography
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _begin(folder, prepared, retry=retry)
        driver = Driver.start(folder, retry=retry)
        change = 0
        if number < ANY_TIME:
            time.sleep(dice.uniform(0, usual[0]))
        else:
            change = driver.watch(folder / "scored", dice.randint(1, usual[1]))
            time.sleep(dice.uniform(0, 0.05))
        wait = time.monotonic() - driver.begun
        ended = (folder / "ended").exists()
        driver.kill()
        state = folder / "scored" / "_sparkinfer"
        told = {
            "number": number,
            "after_seconds": round(wait, 3),
            "after_change": change,
            "before_its_end": not ended,
            "retry": retry,
            "parts": len(list((folder / "scored").glob("*.parquet"))),
            "staged": (state / "staged").exists(),
            "journal": (state / "journal.json").exists(),
            "lease": (state / "lease.json").exists(),
        }
        score(name, retry=retry)
        found = sorted(pq.read_table(folder / "scored").to_pylist(), key=lambda row: row["id"])
        left = sorted(one.name for one in state.iterdir() if not one.name.startswith("."))
        return {**told, "same": found == EXPECTED, "clean": left == ["manifest.json"]}


def summary(kills: list[dict[str, Any]]) -> dict[str, Any]:
    """Count."""
    return {
        "kills": len(kills),
        "same_table": sum(kill["same"] for kill in kills),
        "nothing_left_but_the_manifest": sum(kill["clean"] for kill in kills),
        "before_the_runs_end": sum(kill["before_its_end"] for kill in kills),
        "with_some_parts_there": sum(kill["parts"] > 0 for kill in kills),
        "with_a_lease": sum(kill["lease"] for kill in kills),
        "with_staged_files": sum(kill["staged"] for kill in kills),
        "with_a_journal": sum(kill["journal"] for kill in kills),
    }


def main() -> None:
    """Kill, run again, compare."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--kills", type=int, default=100)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--minutes", type=float, default=120.0, help="no further kill after so many")
    asked.add_argument("--resume", action="store_true", help="go on behind the kills of the result file")
    options = asked.parse_args()
    stop = time.monotonic() + 60 * options.minutes
    before = json.loads(RESULT.read_text(encoding="utf-8")) if options.resume and RESULT.exists() else {"each": [], "seed": options.seed}
    assert before["seed"] == options.seed, f"the result file's seed is {before['seed']}"
    kills: list[dict[str, Any]] = before["each"]
    with tempfile.TemporaryDirectory() as name:
        prepared = Path(name)
        score(name, storm=True)
        usual = {retry: undisturbed(prepared, retry=retry) for retry in (False, True)}
        for number in range(len(kills), options.kills):
            if time.monotonic() > stop:
                break
            kills.append(kill_one(number, options.seed, usual[number % 2 == 1], prepared))
            print(json.dumps(kills[-1]), flush=True)
            told = {
                "seed": options.seed,
                "seconds_of_a_run": {"plain": round(usual[False][0], 1), "retry": round(usual[True][0], 1)},
                "changes_of_a_run": {"plain": usual[False][1], "retry": usual[True][1]},
                **summary(kills),
                "at_the_commit": summary(kills[ANY_TIME:]),
                "each": kills,
            }
            RESULT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    session().stop()
    print(json.dumps(summary(kills), indent=1))


if __name__ == "__main__":
    from benchmarks import kill_and_resume  # the drivers import it by this name, and a table's functions are compared by theirs

    kill_and_resume.main()
