"""Run the properties of ``tests/fuzz`` for minutes, with new examples in each round: ``python benchmarks/fuzz.py --minutes 5``.

The summary goes to ``benchmarks/results/fuzz.json``; a property that breaks ends the run, and Hypothesis prints the example.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from pathlib import Path

from hypothesis import HealthCheck, seed, settings
from machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzz.properties import PROPERTIES, examples  # noqa: E402 - from the checkout

RESULT = Path(__file__).parent / "results" / "fuzz.json"
EXAMPLES_A_ROUND = 400


def main() -> None:
    """Share the time out among the properties, a round each in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next ones count on")
    asked = parser.parse_args()
    bounded = settings(max_examples=EXAMPLES_A_ROUND, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    properties = {name: bounded(run) for name, run in PROPERTIES.items()}
    seconds = dict.fromkeys(PROPERTIES, 0.0)
    begun = time.perf_counter()
    rounds = 0
    for rounds in itertools.count(1):
        for name, run in properties.items():
            started = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow, about damaged pictures
                seed(asked.seed + rounds)(run)()
            seconds[name] += time.perf_counter() - started
        if time.perf_counter() - begun >= 60 * asked.minutes:
            break
    told = {
        "seconds": round(time.perf_counter() - begun),
        "rounds": rounds,
        "first_seed": asked.seed + 1,
        "broken": 0,
        "properties": {name: {"examples": examples[name], "seconds": round(seconds[name])} for name in PROPERTIES},
        "machine": describe_machine(),
    }
    RESULT.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
