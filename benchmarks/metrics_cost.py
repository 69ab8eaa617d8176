"""What measuring costs: CPU seconds of the loop with and without its recorder and samplers, on a small model, in pairs.

256 floats a row, a small MLP in PyTorch, chunks of 10,000 rows as Spark sends them; batches of 1,024 rows, and of 64, where there is most to
measure. One process, many pairs, the measured way first in every second one: what runs second finds warmer caches. Printed are the medians and
the median of the pairs' ratios, with the middle half of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import torch

import sparkinfer as si
from sparkinfer.arguments import parse_outputs
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.partition import PartitionPlan, run_partition
from sparkinfer.engine.recorder import NO_RECORDER, Recorder
from sparkinfer.engine.sampling import sampling
from sparkinfer.local import local_files
from sparkinfer.planning import Functions, plan_partition

WIDTH, CHUNK, CHUNKS = 256, 10_000, 40


def chunks(chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Give the same chunk again and again."""
    for _ in range(CHUNKS):
        yield chunk


def cpu_seconds(plan: PartitionPlan, chunk: pa.RecordBatch, *, measured: bool) -> float:
    """Run one partition, and give what it cost."""
    begun = time.process_time()
    recorder = Recorder() if measured else NO_RECORDER
    with sampling() if measured else nullcontext():
        rows = sum(out.num_rows for out in run_partition(plan, chunks(chunk), files=lambda: local_files(plan.model), recorder=recorder))
    if isinstance(recorder, Recorder):
        recorder.figures()
    assert rows == CHUNK * CHUNKS
    return time.process_time() - begun


def pair(plan: PartitionPlan, chunk: pa.RecordBatch, *, measured_first: bool) -> tuple[float, float]:
    """Run both ways, and give the measured one's seconds and the other's."""
    seconds = {measured: cpu_seconds(plan, chunk, measured=measured) for measured in (measured_first, not measured_first)}
    return seconds[True], seconds[False]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    pairs = parser.parse_args().pairs
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    values = pa.array(np.random.default_rng(0).standard_normal(CHUNK * WIDTH, dtype=np.float32))
    offsets = pa.array(np.arange(CHUNK + 1, dtype=np.int32) * WIDTH)
    chunk = pa.RecordBatch.from_arrays([pa.ListArray.from_arrays(offsets, values)], names=["x"])
    for batch_size in (1024, 64):
        plan = plan_partition(
            si.TorchModel(model),
            inputs="x",
            outputs=parse_outputs("y array<float>"),
            keep=(),
            key=None,
            functions=Functions(),
            on_null="raise",
            on_error="raise",
            config=InferenceConfig(batch_size=batch_size, threads=1),
        )
        cpu_seconds(plan, chunk, measured=True)
        found = [pair(plan, chunk, measured_first=bool(number % 2)) for number in range(pairs)]
        ratios = sorted(on / off for on, off in found)
        print(
            f"batch_size {batch_size:>5}: {statistics.median(on for on, _ in found):.3f} s measured, "
            f"{statistics.median(off for _, off in found):.3f} s not, ratio {statistics.median(ratios):.3f} "
            f"({ratios[len(ratios) // 4]:.3f} to {ratios[3 * len(ratios) // 4]:.3f}, the middle half of {pairs} pairs)"
        )


if __name__ == "__main__":
    main()
