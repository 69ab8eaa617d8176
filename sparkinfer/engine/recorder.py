"""What one partition measures while it runs: stages, batches, chunks, bytes, memory.

Runs on: worker.

Invariant: measuring changes no row, raises nothing into the loop, and costs a few clock reads a batch; ``NO_RECORDER`` costs none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkinfer.engine.stopwatch import QueueMeter, Stopwatch
from sparkinfer.metrics import CONSUMER_STAGES, Histogram

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkinfer.engine.batch import BadRow, Batch
    from sparkinfer.engine.quality import Comparison
    from sparkinfer.profiles import PartitionProfile

__all__ = ["NO_RECORDER", "NoRecorder", "Recorder", "TracedRecorder", "left_bytes", "private_bytes"]

_LATENCIES_AT_ONCE = 4096  # between the batches there is something better to do
_MEMORY_EVERY = 0.25  # seconds between two looks at the resident size
_SLOPE_SAMPLES = 8  # fewer tell no slope
_FELT = 1e-6  # seconds: what is shorter is no slice in a trace
_TOLD_SAMPLES = 24  # of a partition's memory, a dozen bytes each
_MOST_LAPS = 400  # of a watched partition's first moments
_MOST_SAMPLES = 512  # then every second one is let go: a partition of hours must not itself grow


class NoRecorder:
    """Measures nothing: the null object of ``Recorder``."""

    queue: QueueMeter | None = None

    def chunks(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass chunks through."""
        return source

    def batches(self, first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:  # noqa: ARG002 - the first is on its way already
        """Pass batches through, after the first."""
        return rest

    def lap(self, stage: str) -> None:
        """End a consumer stage."""

    def started(self) -> None:
        """Tell that a call was started whose results are waited for later."""

    def loaded(self) -> None:
        """Tell that the model was loaded, and not found loaded."""

    def ran_on(self, device: str, waited_seconds: float | None = None) -> None:
        """Tell where the model runs, and how long the partition waited for a place there."""

    def device_peak(self, ask: Callable[[], int | None]) -> None:
        """Ask for the device allocator's peak."""

    def device_end(self, ask: Callable[[], int | None]) -> None:
        """Ask for what the device's allocator holds now."""

    def device_time(self, ask: Callable[[], Mapping[str, float]]) -> None:
        """Ask for the seconds that calls took on the device, by stage."""

    def batch(self, rows: int, producer: Mapping[str, float]) -> None:
        """Tell that a batch came, and how long each producer stage was at it."""

    def bad_rows(self, bad: Sequence[BadRow]) -> None:
        """Tell of rows that have a reason and no prediction."""

    def rows_fit(self, rows: int) -> None:
        """Tell to how many rows a batch had to be cut for memory."""

    def rows_settled(self, rows: int | None) -> None:
        """Tell on how many rows of a batch ``batch_size="auto"`` has settled, if it has."""

    def put_out(self, chunk: pa.RecordBatch) -> None:
        """Tell that a chunk went out."""

    def not_measured(self) -> None:
        """Tell that the next lap of ``compute`` is under a profiler, and no batch's latency."""

    def profiled(self, profile: PartitionProfile) -> None:
        """Tell what a profiler saw."""

    def probed(self, probes: Mapping[str, tuple[int, ...]]) -> None:
        """Tell how memory grew in calls that were repeated."""


NO_RECORDER = NoRecorder()


class Recorder(NoRecorder):
    """Measures one partition; ``figures()`` gives ``PartitionMetrics``' fields but for who and where it was."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
        comparison: Comparison | None = None,
    ) -> None:
        """Start; a comparison gets every chunk that goes out."""
        self._comparison = comparison
        self.started_unix = time.time()
        self.queue: QueueMeter = QueueMeter(clock)
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._cpu_begun = cpu_clock()
        self._watch = Stopwatch(clock)
        self._producer: dict[str, float] = {"read": 0.0}
        self._latency = Histogram()
        self._latencies: list[float] = []  # not in the histogram yet
        self._warmup: float | None = None
        self._warmup_wait: float | None = None
        self._counts = dict.fromkeys(
            ("rows", "scored_rows", "batches", "chunks", "chunk_rows_max", "bytes_in", "bytes_out", "model_loads"), 0
        )
        self._bad_rows: dict[str, int] = {}
        self._rows_fit: int | None = None
        self._rows_settled: int | None = None
        self._device: str | None = None
        self._device_wait: float | None = None
        self._device_peak: int | None = None
        self._device_end: int | None = None
        self._device_seconds: dict[str, float] = {}
        self._memory = _Memory(clock)
        self._not_measured = False
        self._profile: PartitionProfile | None = None

    def chunks(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass chunks through; time the reads, in whichever thread they are made."""
        counts = self._counts
        while True:
            begun = self._clock()
            chunk = next(source, None)
            self._producer["read"] += self._clock() - begun
            if chunk is None:
                return
            counts["chunks"] += 1
            counts["bytes_in"] += _size(chunk)
            counts["chunk_rows_max"] = max(counts["chunk_rows_max"], chunk.num_rows)
            yield chunk

    def lap(self, stage: str) -> None:
        """End a consumer stage; a model call's seconds also count as a batch's latency, and the first one's as warm-up."""
        took = self._watch.lap(stage)
        if stage != "compute":
            return
        if self._not_measured:
            self._not_measured = False
            return
        if self._warmup is not None:
            self._latencies.append(took)
            if len(self._latencies) == _LATENCIES_AT_ONCE:
                self._count_latencies()
            return
        self._warmup = took
        self._warmup_wait = self._watch.seconds.get("input_wait", 0.0)
        self.queue.restart()

    def started(self) -> None:
        """Give the start's time to computing; the batch's latency is the wait for its results."""
        self._watch.lap("compute")

    def _count_latencies(self) -> None:
        for seconds in self._latencies:
            self._latency.add(seconds)
        self._latencies.clear()

    def loaded(self) -> None:
        """Tell that the model was loaded, and not found loaded."""
        self._counts["model_loads"] = 1

    def ran_on(self, device: str, waited_seconds: float | None = None) -> None:
        """Tell where the model runs, and how long the partition waited for a place there."""
        self._device = device
        self._device_wait = waited_seconds

    def device_peak(self, ask: Callable[[], int | None]) -> None:
        """Ask for the device allocator's peak; a framework that cannot tell has none."""
        with suppress(Exception):
            self._device_peak = ask()

    def device_end(self, ask: Callable[[], int | None]) -> None:
        """Ask for what the device's allocator holds now; a framework that cannot tell has no such figure."""
        with suppress(Exception):
            self._device_end = ask()

    def device_time(self, ask: Callable[[], Mapping[str, float]]) -> None:
        """Ask for the seconds that calls took on the device, by stage; a framework that cannot tell has none."""
        with suppress(Exception):
            self._device_seconds = dict(ask())

    def batch(self, rows: int, producer: Mapping[str, float]) -> None:
        """Tell that a batch came, and how long each producer stage was at it."""
        self._counts["batches"] += 1
        self._counts["scored_rows"] += rows
        for stage, seconds in producer.items():
            self._producer[stage] = self._producer.get(stage, 0.0) + seconds
        self._memory.look(self._counts["batches"])

    def bad_rows(self, bad: Sequence[BadRow]) -> None:
        """Count them by stage and type."""
        for one in bad:
            kind = f"{one.stage} {one.type}"
            self._bad_rows[kind] = self._bad_rows.get(kind, 0) + 1

    def rows_fit(self, rows: int) -> None:
        """Keep the fewest."""
        self._rows_fit = rows if self._rows_fit is None else min(rows, self._rows_fit)

    def rows_settled(self, rows: int | None) -> None:
        """Keep them."""
        self._rows_settled = rows

    def put_out(self, chunk: pa.RecordBatch) -> None:
        """Tell that a chunk went out."""
        self._counts["rows"] += chunk.num_rows
        self._counts["bytes_out"] += _size(chunk)
        if self._comparison is None:
            return
        try:
            self._comparison.add(chunk)
        except Exception:  # noqa: BLE001 - a strange label must not cost the predictions; half a comparison is none
            self._comparison = None

    def not_measured(self) -> None:
        """Leave the next lap of ``compute`` out of the latencies; in the stages it stays, for they add up to wall time."""
        self._not_measured = True

    def profiled(self, profile: PartitionProfile) -> None:
        """Keep what a profiler saw."""
        self._profile = profile

    def probed(self, probes: Mapping[str, tuple[int, ...]]) -> None:
        """Keep it with what the profiler saw."""
        if self._profile is not None:
            self._profile = replace(self._profile, probes=probes)

    def figures(self) -> dict[str, Any]:
        """Stop, and give what was measured; what could not be is absent."""
        self._watch.lap("other")
        self._count_latencies()
        measured: dict[str, Any] = {
            **self._counts,
            "started_unix": self.started_unix,
            "wall_seconds": self._watch.wall_seconds,
            "stages": {stage: self._watch.seconds.get(stage, 0.0) for stage in CONSUMER_STAGES},
            "producer": dict(self._producer),
            "latency": self._latency,
            "warmup_seconds": self._warmup,
            "warmup_wait_seconds": self._warmup_wait,
            "cpu_seconds": self._cpu_clock() - self._cpu_begun,
            "bad_rows": self._bad_rows,
            "batch_rows_fit": self._rows_fit,
            "batch_rows_settled": self._rows_settled,
            "device": self._device,
            "device_wait_seconds": self._device_wait,
            "device_peak_bytes": self._device_peak,
            "device_end_bytes": self._device_end,
            "device_seconds": self._device_seconds,
            "quality": self._comparison.quality if self._comparison is not None else None,
            "profile": self._profile,
            **self._memory.figures(),
        }
        if self.queue.seconds > 0:
            measured["producer_blocked_seconds"] = self.queue.blocked_seconds
            measured["queue_depth_mean"] = self.queue.mean_depth
            measured["queue_empty_fraction"] = self.queue.empty_fraction
            measured["queue_full_fraction"] = self.queue.full_fraction
        return measured


class TracedRecorder(Recorder):
    """Measures a watched partition: its first laps are kept one by one, for the trace of the run."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
        comparison: Comparison | None = None,
    ) -> None:
        """Start."""
        super().__init__(clock, cpu_clock, comparison)
        self._memory.every = 0.0  # a look at every batch
        self._laps: list[tuple[str, float, float]] = []
        self._depths: list[tuple[float, int]] = []

    def lap(self, stage: str) -> None:
        """End a consumer stage, and keep it, if it is one of the first that took any time."""
        begun = self._watch.wall_seconds
        super().lap(stage)
        ended = self._watch.wall_seconds
        if len(self._laps) < _MOST_LAPS and ended - begun >= _FELT:
            self._laps.append((stage, round(begun, 6), round(ended - begun, 6)))
            self._depths.append((round(ended, 6), self.queue.waiting))

    def figures(self) -> dict[str, Any]:
        """Stop, and give what was measured."""
        measured = super().figures()
        if self._profile is not None:
            measured["profile"] = replace(self._profile, laps=tuple(self._laps), depths=tuple(self._depths))
        return measured


class _Memory:
    """The process's resident size, looked at now and then."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = float("-inf")
        self.every = _MEMORY_EVERY
        self._peak: int | None = None
        self._samples: list[tuple[int, int]] = []  # batch, bytes
        self._private: list[tuple[int, int]] = []

    def look(self, batch: int) -> None:
        now = self._clock()
        if now - self._last < self.every:
            return
        self._last = now
        resident = _resident_bytes()
        if resident is None:
            return
        self._peak = max(self._peak or 0, resident)
        self._samples.append((batch, resident))
        self._private.append((batch, private_bytes() or 0))
        if len(self._samples) >= _MOST_SAMPLES:
            del self._samples[1::2], self._private[1::2]
            self.every = max(_MEMORY_EVERY, self.every * 2)

    def figures(self) -> dict[str, Any]:
        """Give the peak, and the slope where there are enough samples; without samples, the system's own idea of the peak."""
        last = _resident_bytes()
        if last is None:
            peak = _peak_bytes()
            return {} if peak is None else {"rss_peak_bytes": peak}
        figures: dict[str, Any] = {
            "rss_peak_bytes": max(self._peak or 0, last),
            "rss_end_bytes": last,
            "memory": tuple(_thinned(self._private, _TOLD_SAMPLES)),
            "memory_left_bytes": left_bytes(),
        }
        warm = self._samples[len(self._samples) // 4 :]
        if len(warm) >= _SLOPE_SAMPLES and warm[-1][0] > warm[0][0]:
            figures["rss_slope_bytes_per_batch"] = _slope(warm)
        return figures


def _slope(samples: list[tuple[int, int]]) -> float:
    """Fit a line by least squares."""
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread


def _size(chunk: pa.RecordBatch) -> int:
    """Give a chunk's bytes; a type whose size this pyarrow cannot tell counts as none."""
    try:
        return int(chunk.nbytes)
    except (NotImplementedError, TypeError, ValueError):  # pyarrow's own errors are kinds of these
        return 0


def _resident_bytes() -> int | None:
    """Read the resident size now; nothing where there is no /proc."""
    return _statm(lambda resident, _: resident)


def private_bytes() -> int | None:
    """Read how much memory is this process's own now: neither of files, such as mapped weights, nor shared; nothing where there is no /proc."""
    return _statm(lambda resident, shared: resident - shared)


def _statm(pages: Callable[[int, int], int]) -> int | None:
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - a path object would cost as much as the read
            return pages(*map(int, statm.read().split()[1:3])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def left_bytes() -> int | None:
    """Read how much this process could still take: the least of the host's and its control group's; ``None`` where neither tells."""
    left = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        left += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        most, now = (
            int(Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii")) for name in ("max", "current")
        )  # "max": no limit
        left.append(most - now)
    return max(0, min(left)) if left else None


def _thinned(samples: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Keep some, evenly spaced, the first and the last among them."""
    if len(samples) <= most:
        return samples
    return [samples[round(position * (len(samples) - 1) / (most - 1))] for position in range(most)]


def _peak_bytes() -> int | None:
    """Ask for the largest resident size since the process began; nothing on Windows."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, the others kilobytes
