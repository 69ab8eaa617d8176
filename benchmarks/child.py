"""One contestant's process: sets up, then runs a round whenever it is told to.

``python -m benchmarks.child WORK CONTESTANT SCALE`` reads one word a line (``check``, ``run``, ``stop``) and answers with one line of JSON.
What libraries print goes to the standard error stream.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

from benchmarks.work import Ready, work_named


def main() -> None:
    """Serve."""
    work, name, scale = work_named(sys.argv[1]), sys.argv[2], sys.argv[3]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")

    try:
        begun = time.perf_counter()
        wake = work.scales.get("wake", work.scales.get("quick"))
        ready = work.contestant(name).make({"name": scale, **({"wake": wake} if wake else {}), **work.scales[scale]})
        answer(ready_seconds=time.perf_counter() - begun)
        for line in sys.stdin:
            if line.strip() == "stop":
                break
            answer(**_SERVED[line.strip()](ready))
        ready.close()
    except Exception:  # noqa: BLE001 - told to the one who asked, which stops the benchmark
        answer(error=traceback.format_exc())


def _check(ready: Ready) -> dict[str, Any]:
    if ready.check is None:
        return {"checked": None}
    rows, total = ready.check()
    return {"checked": [int(rows), float(total)]}


def _run(ready: Ready) -> dict[str, Any]:
    begun = time.perf_counter()
    found = ready.run()
    took = time.perf_counter() - begun
    figures = {"rows": found} if isinstance(found, int) else dict(found)
    return {"wall_seconds": took, **figures}


def _wake(ready: Ready) -> dict[str, Any]:
    ready.wake()
    return {}


_SERVED = {"check": _check, "run": _run, "wake": _wake}


if __name__ == "__main__":
    main()
