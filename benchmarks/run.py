"""Run a work: every contestant in a process of its own, checked, warmed up, then timed in interleaved rounds.

``python -m benchmarks.run w1 [--scale quick] [--rounds 5] [--only a,b] [--fresh]``. Each finished round is kept at once in
``benchmarks/results/raw``; a run that was stopped goes on where it was, and ``--fresh`` begins anew. A last round, not timed, watches memory; the quick
form leaves it out.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import describe_machine
from benchmarks.tables import write_results
from benchmarks.tree import cpu_seconds, quiet, spent, watching_memory
from benchmarks.work import Contestant, Work, work_named

RAW = Path(__file__).parent / "results" / "raw"
ROOT = Path(__file__).parents[1]


class Process:
    """A contestant's process, seen from here."""

    def __init__(self, work: Work, contestant: Contestant, scale: str) -> None:
        """Start it."""
        self.contestant = contestant
        self._child = subprocess.Popen(  # noqa: S603 - this package, by this interpreter
            [sys.executable, "-m", "benchmarks.child", work.name, contestant.name, scale],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(RAW / f"{work.name}.{scale}.{contestant.name}.log").open("w"),
            text=True,
        )
        self.root = psutil.Process(self._child.pid)

    def wait(self) -> None:
        """Wait until it is set up."""
        self._answer()

    def ask(self, word: str) -> dict[str, Any]:
        """Say a word, and give the answer."""
        assert self._child.stdin is not None
        self._child.stdin.write(word + "\n")
        self._child.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Let it end, or end it."""
        below = self.root.children(recursive=True) if self._child.poll() is None else []
        try:
            assert self._child.stdin is not None
            self._child.stdin.write("stop\n")
            self._child.stdin.close()
            self._child.wait(timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            self._child.kill()
        for process in below:
            try:
                process.kill()
            except psutil.Error:
                continue

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        said: dict[str, Any] = json.loads(line) if line else {"error": "the process ended: see its log in benchmarks/results/raw"}
        if "error" in said:
            sys.exit(f"{self.contestant.name}: {said['error']}")
        return said


def run(work: Work, scale: str, *, rounds: int, only: list[str], fresh: bool) -> dict[str, Any]:
    """Run what is missing of a work at a scale, write its table, and give its results."""
    RAW.mkdir(parents=True, exist_ok=True)
    kept = RAW / f"{work.name}.{scale}.jsonl"
    if fresh:
        kept.unlink(missing_ok=True)
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    taking_part = [one for one in work.at(scale) if not only or one.name in only]
    missing = {one.name: _missing(one, done, rounds) for one in taking_part}
    waiting = [one for one in taking_part if missing[one.name]]
    with ExitStack() as open_processes, kept.open("a") as journal:
        processes = [Process(work, contestant, scale) for contestant in waiting]  # they set themselves up side by side
        for process in processes:
            open_processes.callback(process.close)
        for process in processes:
            contestant = process.contestant
            process.wait()
            checked = process.ask("check")["checked"]
            _note(journal, contestant=contestant.name, checked=checked)
            process.ask("run")  # warm-up
            print(f"{work.name} {scale} {contestant.name}: ready, {checked}", flush=True)
        order = random.Random(0)  # noqa: S311 - an order needs no cryptography
        for number in range(rounds):
            order.shuffle(processes)
            for process in processes:
                if number in missing[process.contestant.name]:
                    _note(journal, contestant=process.contestant.name, round=number, **_timed(process))
        for process in processes:
            if "memory" in missing[process.contestant.name] and scale != "quick":
                with watching_memory(process.root) as peaks:
                    process.ask("run")
                _note(journal, contestant=process.contestant.name, memory=dict(peaks))
    return write_results(work, scale, describe_machine())


def _missing(contestant: Contestant, done: list[dict[str, Any]], rounds: int) -> list[Any]:
    there = [one for one in done if one["contestant"] == contestant.name]
    wanted = range(min(rounds, contestant.rounds or rounds))
    missing: list[Any] = [number for number in wanted if not any(one.get("round") == number for one in there)]
    if not any("memory" in one for one in there):
        missing.append("memory")
    return missing


def _timed(process: Process) -> dict[str, Any]:
    process.ask("wake")
    quiet()
    before = spent(process.root)
    said = process.ask("run")
    cpu = cpu_seconds(before, spent(process.root))
    print(
        f"  {process.contestant.name:<22} {said['wall_seconds']:8.2f} s  {said['rows'] / said['wall_seconds']:12,.0f} /s  cpu {cpu:7.2f} s",
        flush=True,
    )
    return {**said, "cpu_seconds": cpu, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def _note(journal: Any, **said: Any) -> None:
    journal.write(json.dumps(said) + "\n")
    journal.flush()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="+", help="w1 ... w9")
    parser.add_argument("--scale", default="full", help="quick, full, or another of the work's scales")
    parser.add_argument("--rounds", type=int, help="timed rounds; as many as the work says by default")
    parser.add_argument("--only", default="", help="contestants, with commas between them")
    parser.add_argument("--fresh", action="store_true", help="forget the rounds of an earlier run")
    said = parser.parse_args()
    for name in said.works:
        work = work_named(name)
        if said.scale in work.scales:
            run(work, said.scale, rounds=said.rounds or work.rounds, only=[one for one in said.only.split(",") if one], fresh=said.fresh)


if __name__ == "__main__":
    main()
