"""A run as the rules of the verdict see it: finite figures, and settings that may be missing.

Runs on: driver (standard library only).

Invariant: no property raises, whatever was recorded; all are finite and at least 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sparkinfer.metrics import PartitionMetrics

__all__ = ["BLOCKED", "MOST_GAIN", "Case", "Cause"]

Cause = Literal["source", "preprocess", "transfer", "model", "postprocess", "batch size", "threads", "few partitions"]

BLOCKED = "bottleneck/steady_producer_blocked_fraction"
MOST_GAIN = 100.0  # beyond it the arithmetic says nothing
_LARGEST = 10**9  # of a setting that is believed


@dataclass(frozen=True)
class Case:
    """What was measured, and the seconds that follow from it.

    Attributes:
        partitions: the records.
        figures: what ``evidence_of`` makes of them.
        settings: by name; any may be missing.
    """

    partitions: tuple[PartitionMetrics, ...]
    figures: Mapping[str, float]
    settings: Mapping[str, Any]

    def of(self, name: str) -> float:
        """Give a figure that is at least 0; 0 where it was not measured."""
        return max(0.0, self.figures.get(name, 0.0))

    def whole(self, name: str, default: int) -> int:
        """Give a setting that is a whole number of at least 0, or what ``"auto"`` settled on; the default where it is missing or anything else."""
        value = self.settings.get(name)
        if value == "auto":
            value = int(self.figures.get(f"config/{name}", default))
        return int(value) if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else default

    def evidence(self, *names: str) -> dict[str, float]:
        """Give those of the figures that were measured."""
        return {name: self.figures[name] for name in names if name in self.figures}

    def gain(self, saved: float, sure: float | None = None) -> tuple[float, float]:
        """Turn seconds saved, of all partitions' wall time, into a factor of rows/s: what is sure (by default half), and all."""
        wall = self.of("inference/partition_seconds_total")
        high = _factor(saved, wall)
        return min(high, _factor(saved / 2 if sure is None else sure, wall)), high

    @property
    def on_card(self) -> bool:
        """Whether the model ran on a CUDA card."""
        return any((record.device or "").startswith("cuda") for record in self.partitions)

    @property
    def steady(self) -> float:
        """Seconds after warm-up."""
        return self.of("bottleneck/steady_seconds")

    @property
    def waited(self) -> float:
        """Seconds of waiting for input after warm-up."""
        return self.steady * self.of("bottleneck/steady_input_wait_fraction")

    @property
    def busy(self) -> float:
        """Seconds after warm-up in which the consumer did not wait for input."""
        return max(0.0, self.steady - self.waited)

    @property
    def serial(self) -> bool:
        """Whether nothing was prepared ahead of the model."""
        return self.whole("prefetch_batches", 2) == 0 and self.whole("num_workers", 0) == 0

    @property
    def input_seconds(self) -> dict[str, float]:
        """How long each part of the input takes, with its loader processes side by side."""
        made = [f"producer/{stage}_seconds" for stage in ("decode", "preprocess", "collate")]
        read = self.of("producer/read_seconds")
        if any(name in self.figures for name in made):
            prepared = sum(map(self.of, made)) / max(1, self.whole("num_workers", 0))
        else:  # tf.data does it, and does not tell: what reading does not account for
            prepared = max(0.0, self.of("stage/input_wait_seconds") - read)
        return {"source": read, "preprocess": prepared, "transfer": self.of("producer/transfer_seconds")}

    @property
    def slowest_input(self) -> Cause:
        """The part of the input that takes the longest."""
        seconds = self.input_seconds
        if seconds["transfer"] > max(seconds["source"], seconds["preprocess"]):
            return "transfer"
        return "source" if seconds["source"] >= seconds["preprocess"] else "preprocess"

    @property
    def blocked(self) -> float:
        """Seconds after warm-up for which the input was ahead: measured, or else what its own work leaves of the time."""
        share = self.figures.get(BLOCKED)
        if share is not None:
            return self.steady * max(0.0, share)
        side_by_side = max if self.whole("num_workers", 0) else sum
        return max(0.0, self.steady - side_by_side(self.input_seconds.values()))


def _factor(saved: float, wall: float) -> float:
    left = max(1 / MOST_GAIN, 1 - max(0.0, saved) / wall) if wall > 0 else 1.0
    return max(1.0, 1 / left)
