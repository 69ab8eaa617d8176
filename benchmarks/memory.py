"""Rows of megabytes: what do Python's processes hold at most, on each road, with and without loader processes?

2,000 rows of 2 MB (4 GB in all), and one row of 300 MB between small ones, each through real Spark in a session of its own with two task slots. The rows of the
map and the column road are made by the JVM, those of the direct road lie in a Parquet file. ``preprocess`` gives an array as large as the row, the model is its
mean, and every answer is checked. The figures are the systems' own peaks of resident memory (``VmHWM``): of the Python worker that had most, of the loader process
that had most, of all of them together (the sum of their own peaks, which need not fall together), and of the JVM; beside them, what the same processes had
after a few small rows.

``python -m benchmarks.memory``: printed, and written to ``benchmarks/results/memory.json``; ``--only NAME`` runs one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import sparkinfer as si

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

RESULT = Path(__file__).parent / "results" / "memory.json"
LETTERS = 26
ROW, ROWS, PARTITIONS = 2_000_000, 2_000, 4
HUGE = 300_000_000


@dataclass(frozen=True)
class Case:
    """One way through.

    Attributes:
        road: ``map``, ``column`` or ``direct``.
        huge: one row of 300 MB between eight small ones, instead of 2,000 rows of 2 MB.
        num_workers: loader processes of each Python worker.
        max_in_flight_bytes: the setting; ``None`` leaves its default of 512 MiB.
    """

    road: str
    huge: bool = False
    num_workers: int = 0
    max_in_flight_bytes: int | None = None


CASES = {
    "map": Case("map"),
    "map, 64 MiB in flight": Case("map", max_in_flight_bytes=2**26),
    "map, 64 MiB in flight, loader processes": Case("map", max_in_flight_bytes=2**26, num_workers=2),
    "column, 64 MiB in flight": Case("column", max_in_flight_bytes=2**26),
    "column, 64 MiB in flight, loader processes": Case("column", max_in_flight_bytes=2**26, num_workers=2),
    "direct, 64 MiB in flight": Case("direct", max_in_flight_bytes=2**26),
    "one row of 300 MB, map": Case("map", huge=True),
    "one row of 300 MB, map, loader processes": Case("map", huge=True, num_workers=2),
    "one row of 300 MB, column": Case("column", huge=True),
    "one row of 300 MB, direct": Case("direct", huge=True),
}


def pixels(content: bytes) -> np.ndarray:
    """Decode: as many numbers as bytes."""
    return np.frombuffer(content, np.uint8).copy()


def load() -> Any:
    """Give the mean of each row."""
    return lambda x: x.mean(axis=1)


def made_by_jvm(spark: SparkSession, sizes: str, rows: int, partitions: int) -> DataFrame:
    """Rows of one letter each, which is the row's answer."""
    text = f"repeat(chr(cast(65 + id % {LETTERS} as int)), {sizes})"
    return spark.range(0, rows, 1, partitions).selectExpr("id", f"cast({text} as binary) as content")


def in_a_file(path: str, sizes: Iterator[int]) -> str:
    """Write the same rows, a row group for every 32."""
    schema = pa.schema([("id", pa.int64()), ("content", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        group: list[dict[str, Any]] = []
        for number, size in enumerate(sizes):
            group.append({"id": number, "content": bytes([65 + number % LETTERS]) * size})
            if len(group) == 32:
                writer.write_table(pa.Table.from_pylist(group, schema))
                group = []
        if group:
            writer.write_table(pa.Table.from_pylist(group, schema))
    return path


def source(spark: SparkSession, case: Case, folder: str) -> Any:
    """Give the rows, by the JVM or as a file."""
    if case.road == "direct":
        sizes = (HUGE if number == 4 else 10 for number in range(9)) if case.huge else (ROW for _ in range(ROWS))
        return in_a_file(f"{folder}/rows.parquet", sizes)
    if case.huge:
        return made_by_jvm(spark, f"if(id = 4, {HUGE}, 10)", 9, 1)
    return made_by_jvm(spark, str(ROW), ROWS, PARTITIONS)


def right_rows(data: Any, case: Case) -> int:
    """Score, and count the rows whose answer is their own letter."""
    said: dict[str, Any] = {} if case.max_in_flight_bytes is None else {"max_in_flight_bytes": case.max_in_flight_bytes}
    batch = 1 if case.huge else 32  # rows of unequal length go to the model one by one
    road = {} if case.road == "direct" else {"road": case.road}
    scored = si.predict(
        data,
        si.PythonModel(load),
        inputs="content",
        outputs="y double",
        keep=["id"],
        preprocess=pixels,
        batch_size=batch,
        num_workers=case.num_workers,
        **road,
        **said,
    )
    return int(scored.selectExpr(f"sum(if(abs(y - (65 + id % {LETTERS})) < 1e-9, 1, 0)) as n").collect()[0].n)


def peaks() -> dict[str, int]:
    """Give the peaks of resident memory so far, in megabytes."""
    java = next(one for one in psutil.Process().children(recursive=True) if one.name() == "java")
    daemons = [one for one in java.children() if one.name().startswith("python")]
    workers = [one for daemon in daemons for one in daemon.children()]
    loaders = [one for worker in workers for one in worker.children(recursive=True)]
    return {
        "python_worker": max(map(_peak, workers), default=0),
        "loader_process": max(map(_peak, loaders), default=0),
        "all_python": sum(map(_peak, [*workers, *loaders])),
        "jvm": _peak(java),
    }


def _peak(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return round(int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1000)


def run_one(name: str) -> dict[str, Any]:
    """Run a case in this process."""
    from benchmarks.spark import session

    case = CASES[name]
    spark = session(**{"spark.driver.memory": "4g"})
    small = made_by_jvm(spark, "10", 8, 2)
    right_rows(small, Case("map" if case.road == "direct" else case.road, num_workers=case.num_workers))
    before = peaks()
    with tempfile.TemporaryDirectory() as folder:
        data = source(spark, case, folder)
        begun = time.monotonic()
        right = right_rows(data, case)
    seconds = time.monotonic() - begun
    told = {"name": name, **asdict(case), "right_rows": right, "of": 9 if case.huge else ROWS, "seconds": round(seconds, 1)}
    told |= {"peak_megabytes": peaks(), "after_small_rows_megabytes": before}
    spark.stop()
    return told


def main() -> None:
    """Run all, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--here", action="store_true", help="run the one case in this process, and print it")
    said = parser.parse_args()
    names = said.only or list(CASES)
    if said.here:
        print(json.dumps(run_one(names[0])))
        return
    from benchmarks.machine import describe_machine

    there = {one["name"]: one for one in json.loads(RESULT.read_text(encoding="utf-8"))["cases"]} if RESULT.exists() else {}
    for name in names:
        command = [sys.executable, "-m", "benchmarks.memory", "--here", "--only", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])  # noqa: S603 - this file
        there[name] = json.loads(done.stdout.strip().splitlines()[-1])
        print(json.dumps(there[name]), flush=True)
        told = {"machine": describe_machine(), "cases": [there[one] for one in CASES if one in there]}
        RESULT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
