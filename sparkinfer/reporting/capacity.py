"""How many rows a second each stage could do if it alone set the pace.

Runs on: driver (standard library only).

Invariant: a stage that is busy all the time in every task slot could do exactly what the run did.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkinfer.metrics import PRODUCER_STAGES, RunMetrics

__all__ = ["Capacity", "capacities"]

_IN_LOADERS = ("decode", "preprocess", "collate")
_CONSUMER = ("compute", "postprocess", "encode", "output_wait")


@dataclass(frozen=True)
class Capacity:
    """What one stage, or one side of the queue, could do.

    Attributes:
        side: ``input`` (ahead of the model) or ``model`` (the task's own thread).
        stage: a stage's name; ``None`` for the side as a whole.
        rows_per_second: of the whole run, with as many partitions at once as it had on the average.
    """

    side: str
    stage: str | None
    rows_per_second: float


def capacities(run: RunMetrics) -> list[Capacity]:
    """Work out each side and its stages, in the data's order.

    ``rows / busy seconds`` of the run, times the partitions that ran at once. Where loader processes prepared the input, their
    stages' seconds are shared by ``num_workers``. The wait for input and the model's load are no stages of work.
    """
    summary = run.summary
    rows, elapsed = summary["inference/rows_total"], summary.get("inference/elapsed_seconds", 0.0)
    if not rows or elapsed <= 0 or "inference/partition_seconds_total" not in summary:
        return []
    at_once = summary["inference/partition_seconds_total"] / elapsed
    workers = _loader_processes(run)
    seconds = {stage: summary.get(f"producer/{stage}_seconds", 0.0) for stage in PRODUCER_STAGES}
    shared = {stage: spent / (workers if stage in _IN_LOADERS else 1) for stage, spent in seconds.items()}
    consumer = {stage: summary.get(f"stage/{stage}_seconds", 0.0) for stage in _CONSUMER}
    in_loaders = sum(shared[stage] for stage in _IN_LOADERS)
    # Loader processes work beside the reading thread, and the slower of the two sets the pace; without them one thread does it all.
    slowest = max(shared["read"], in_loaders, shared["transfer"]) if workers > 1 else sum(shared.values())
    found = []
    for side, whole, parts in (("input", slowest, shared), ("model", sum(consumer.values()), consumer)):
        for stage, spent in ((None, whole), *parts.items()):
            if spent > 0:
                found.append(Capacity(side, stage, rows * at_once / spent))
    return found


def _loader_processes(run: RunMetrics) -> int:
    workers = run.settings.get("num_workers")
    return max(1, workers) if isinstance(workers, int) else 1
