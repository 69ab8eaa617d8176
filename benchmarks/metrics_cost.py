"""What measuring costs: CPU seconds of the loop with and without its recorder and samplers, on a small model, in pairs.

256 floats a row, a small MLP in PyTorch, chunks of 10,000 rows as Spark sends them; batches of 1,024 rows, and of 64, where there is most to
measure. One process, many rounds; in each, one measured run and two that are not, in random order. Printed are the median ratio of the measured run to one
of the others, the same of the two others to each other (what the machine's noise is), and the ratio of the lower quartiles, which noise, that
only ever adds, moves least.
"""

from __future__ import annotations

import argparse
import random
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


def rounds(plan: PartitionPlan, chunk: pa.RecordBatch, number: int) -> dict[str, list[float]]:
    """Run everything in turns, and give the seconds of each way."""
    ways = {"measured": True, "not measured": False, "control": False}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    order = list(ways)
    shuffled = random.Random(0)  # noqa: S311 - an order needs no cryptography
    for _ in range(number):
        shuffled.shuffle(order)
        for way in order:
            seconds[way].append(cpu_seconds(plan, chunk, measured=ways[way]))
    return seconds


def ratio(above: list[float], below: list[float]) -> str:
    """Give the median of the rounds' ratios, and the middle half of them."""
    found = sorted(one / other for one, other in zip(above, below, strict=True))
    return f"{statistics.median(found):.3f} ({found[len(found) // 4]:.3f} to {found[3 * len(found) // 4]:.3f})"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    number = parser.parse_args().rounds
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
        seconds = rounds(plan, chunk, number)
        low = {way: statistics.quantiles(found, n=4)[0] for way, found in seconds.items()}
        print(
            f"batch_size {batch_size:>5}: {statistics.median(seconds['measured']):.3f} s measured, {statistics.median(seconds['not measured']):.3f} s "
            f"not; ratio {ratio(seconds['measured'], seconds['not measured'])}, of two that are not {ratio(seconds['control'], seconds['not measured'])}, "
            f"of the lower quartiles {2 * low['measured'] / (low['not measured'] + low['control']):.3f}; {number} rounds"
        )


if __name__ == "__main__":
    main()
