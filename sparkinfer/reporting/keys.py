"""The metric table: every name that a run's figures can have, its unit, what it means and when it is absent.

Runs on: driver (standard library only).

Invariant: the documentation's table is made of this one; a name that ``sparkinfer.metrics.summarise`` can give and that is not here, or
the other way round, fails a test.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sparkinfer.metrics import CONSUMER_STAGES, DEVICE_STAGES, PRODUCER_STAGES

__all__ = ["GROUPS", "STAGES", "Group", "Metric", "describe_metrics", "find_metric"]


@dataclass(frozen=True)
class Metric:
    """One entry of the table.

    Attributes:
        name: with ``<stage>``, ``<host>`` and ``<i>`` (a card's number) where a name is one of many.
        unit: in words; ``1`` is a plain number or a share.
        meaning: one sentence.
        absent: when there is none; empty if there always is. An absent figure is never given as 0.
    """

    name: str
    unit: str
    meaning: str
    absent: str = ""


@dataclass(frozen=True)
class Group:
    """Entries that are told together.

    Attributes:
        title: for people.
        about: what they have in common, and where they are found.
        metrics: in the order in which they are told.
    """

    title: str
    about: str
    metrics: tuple[Metric, ...]


STAGES = {
    "model_load": "reading and building the model, where this partition had to",
    "input_wait": "waiting for the next batch to be ready",
    "compute": "the model's call, with `preprocess_on_device` before it and the copy of its answers back to the host",
    "postprocess": "the user's `postprocess`",
    "encode": "making Arrow columns of the answers",
    "output_wait": "handing a chunk over to Spark, and waiting until it asks for the next",
    "other": "everything else; above 5 % a stage is missing",
    "read": "waiting for Spark's next chunk",
    "decode": "making arrays of Arrow columns",
    "preprocess": "the user's `preprocess` or `preprocess_batch`",
    "collate": "putting rows together to a batch",
    "transfer": "copying a batch to the device",
}
"""Every stage, the consumer's first, and what happens in it."""

_NOT_THE_FEED = "the feed of this backend does not measure it"
_NO_HOST = "psutil is not installed, or the counter cannot be read"
_NO_CARD = "the task has no NVIDIA card, nvidia-ml-py is not installed, or the card does not tell"
_NO_ACTIVITY = "as above, or the card is older than Hopper"

_NO_SERIES = "no model ran on a card, or NVML told nothing of it over time (Spark Connect: its logs carry no samples)"

_RUN = Group(
    "The run",
    "In `run.summary`, and in MLflow as plain metrics. They are of the run's first action; later actions have their own, in child runs.",
    (
        Metric("inference/rows_total", "rows", "Rows put out by the partitions that reported."),
        Metric(
            "inference/scored_rows_total",
            "rows",
            "Rows that the model saw; fewer where nulls or bad rows were left out.",
            "no partition reported",
        ),
        Metric(
            "inference/bad_rows_total",
            "rows",
            'Rows that have a reason in the error column and no prediction (`on_error="null"`); `run.bad_rows` has them by stage and type.',
            "no partition reported",
        ),
        Metric("inference/partitions_total", "partitions", "Partitions that reported, each once, whatever was retried."),
        Metric("inference/batches_total", "batches", "Model calls.", "no partition reported"),
        Metric(
            "inference/model_loads_total",
            "loads",
            "Times that a model was loaded and not found loaded; more than there are Python workers says that the cache does not hold.",
            "no partition reported",
        ),
        Metric("inference/bytes_in_total", "bytes", "Arrow bytes of the columns that came to Python.", "no partition reported"),
        Metric("inference/bytes_out_total", "bytes", "Arrow bytes of the columns that went back.", "no partition reported"),
        Metric(
            "inference/elapsed_seconds",
            "seconds",
            "From the first partition's begin to the last one's end, by the hosts' clocks.",
            "no partition reported",
        ),
        Metric(
            "inference/partition_seconds_total",
            "seconds",
            "All partitions' wall time together; above `elapsed_seconds` where several ran at once.",
            "no partition reported",
        ),
        Metric(
            "inference/cpu_seconds_total",
            "seconds",
            "CPU time of the Python workers, without their loader processes.",
            "no partition reported",
        ),
        Metric("inference/rows_per_second", "rows a second", "`rows_total` / `elapsed_seconds`.", "no time passed"),
        Metric(
            "inference/batch_latency_seconds_p50",
            "seconds",
            "Median time of a model call; warm-up apart, from merged histograms, right to 4.5 %.",
            "no partition had a second batch",
        ),
        Metric("inference/batch_latency_seconds_p90", "seconds", "90th percentile of the same.", "no partition had a second batch"),
        Metric("inference/batch_latency_seconds_p95", "seconds", "95th percentile of the same.", "no partition had a second batch"),
        Metric("inference/batch_latency_seconds_p99", "seconds", "99th percentile of the same.", "no partition had a second batch"),
        Metric(
            "inference/optimize_max_abs_difference",
            "1",
            "The largest absolute difference of the engine's answers from the model's own, on the driver's sample rows.",
            "`optimize` was not given, or the model ran as it is",
        ),
        Metric(
            "inference/device_wait_seconds",
            "seconds",
            "How long partitions waited for a place on a card, all together; a part of `stage/model_load_seconds`.",
            "no model ran on a card",
        ),
        Metric(
            "inference/gpu_seconds",
            "seconds",
            "Cards' time, from each one's first partition's begin to its last one's end.",
            _NO_SERIES,
        ),
        Metric("inference/rows_per_gpu_second", "rows a second", "Rows scored on cards / `gpu_seconds`.", _NO_SERIES),
        Metric(
            "inference/energy_joules",
            "joules",
            "The span of the cards' own energy counters, in which other programs' use counts, too.",
            f"{_NO_SERIES}; or a card has no counter",
        ),
        Metric(
            "inference/rows_per_joule", "rows a joule", "Rows scored on cards / `energy_joules`.", f"{_NO_SERIES}; or a card has no counter"
        ),
        Metric(
            "inference/gpu_idle_fraction",
            "1",
            "Share of all cards' samples with less than 10 % utilisation: paid for, and not used.",
            f"{_NO_SERIES}; or they are MIG slices",
        ),
        Metric(
            "arrow/chunk_rows_max",
            "rows",
            "Rows of the largest chunk that Spark really sent; compare it with `maxRecordsPerBatch`.",
            "no partition reported",
        ),
        Metric(
            "config/batch_size",
            "rows",
            'On how many rows `batch_size="auto"` settled in most partitions: Python workers settle each for themselves.',
            "`batch_size` is a number; or no worker had seen enough rows",
        ),
        Metric(
            "memory/batch_rows_fit",
            "rows",
            "Rows to which batches were cut, since more did not fit into memory: a `batch_size` to use.",
            "every batch fitted",
        ),
        Metric(
            "memory/rss_peak_megabytes",
            "megabytes",
            "The largest resident size of a Python worker that was seen; shared pages count.",
            "no partition had a batch",
        ),
    ),
)

_NO_LABEL = "the run has no `label=`, or it was not compared: a remark of the run says why"

_QUALITY = Group(
    "Against the label",
    "In `run.summary` of an `inference_run(label=...)`. Texts, booleans and integers are compared as classes, other numbers by their distance; "
    "`run.confusion` has the classes, unless there are more than 2,500 pairs of them.",
    (
        Metric("quality/compared_rows_total", "rows", "Rows whose prediction was compared with the label.", _NO_LABEL),
        Metric(
            "quality/left_out_rows_total",
            "rows",
            "Rows that were not compared: a null, or no finite number, on either side.",
            _NO_LABEL,
        ),
        Metric(
            "quality/accuracy", "1", "Share of the compared rows whose prediction is the label.", f"{_NO_LABEL}; or numbers were compared"
        ),
        Metric(
            "quality/mean_absolute_error",
            "the label's",
            "Mean distance between prediction and label, over the compared rows.",
            f"{_NO_LABEL}; or classes were compared",
        ),
    ),
)

_STAGES = Group(
    "Where the task's own thread is",
    f"In `run.summary`. `<stage>` is one of {', '.join(f'`{stage}`' for stage in CONSUMER_STAGES)}. They exclude each other and add up to "
    "`inference/partition_seconds_total`.",
    (
        Metric("stage/<stage>_seconds", "seconds", "The stage's seconds, all partitions together.", "no partition measured it"),
        Metric(
            "stage/<stage>_fraction",
            "1",
            "The stage's share of those partitions' wall time.",
            "no partition measured it, or no time passed",
        ),
    ),
)

_PRODUCER = Group(
    "What is done ahead of the model",
    f"In `run.summary`. `<stage>` is one of {', '.join(f'`{stage}`' for stage in PRODUCER_STAGES)}. They run beside the stages above, and beside "
    "each other in several loader processes: they do not add up to wall time.",
    (
        Metric("producer/<stage>_seconds", "seconds", "The stage's busy seconds, all partitions and processes together.", _NOT_THE_FEED),
        Metric(
            "bottleneck/producer_blocked_fraction",
            "1",
            "How long the producer waited for room in the queue, after warm-up, as a share of those partitions' wall time: high where the model is what is slow.",
            _NOT_THE_FEED,
        ),
    ),
)

_NO_EVENTS = "no PyTorch model ran on a card with calls under way (a module on several cards, a profiled partition)"

_ON_CARD = Group(
    "What the cards do",
    f"In `run.summary`, by the cards' own events. `<stage>` is one of {', '.join(f'`{stage}`' for stage in DEVICE_STAGES)}: the copy of a batch to the card, "
    "`preprocess_on_device`, the model, and the copy of its answers back. Copies run beside the computing of other batches. Batches that were scored in "
    "parts, for memory or for bad rows, are not in them.",
    (
        Metric("gpu/<stage>_seconds", "seconds", "The stage's seconds on the card, all partitions together.", _NO_EVENTS),
        Metric(
            "gpu/compute_fraction",
            "1",
            "`gpu/compute_seconds` as a share of those partitions' wall time.",
            _NO_EVENTS,
        ),
    ),
)

_PARTITION = Group(
    "Each partition",
    "In MLflow, as series: the step is the partition's id, the time is the partition's end. Above 2,000 partitions every k-th is there (the "
    "tag `sparkinfer.partition_series` tells); `sparkinfer/partitions.json` has them all, as `run.partitions` does.",
    (
        Metric("partition/rows", "rows", "Rows put out."),
        Metric("partition/bad_rows", "rows", "Rows that have a reason and no prediction."),
        Metric("partition/wall_seconds", "seconds", "From the first to the last step."),
        Metric("partition/rows_per_second", "rows a second", "Rows over wall time.", "no time passed"),
        Metric("partition/<stage>_fraction", "1", "A consumer stage's share of the partition's wall time.", "no time passed"),
        Metric("partition/cpu_seconds", "seconds", "CPU time of the Python worker meanwhile."),
        Metric(
            "partition/queue_depth_mean",
            "batches",
            "Batches that waited ready for the model after warm-up, weighted by time.",
            _NOT_THE_FEED,
        ),
        Metric("partition/queue_empty_fraction", "1", "Share of the same time in which none did.", _NOT_THE_FEED),
        Metric(
            "partition/queue_full_fraction", "1", "Share of the same time in which what feeds the queue waited for room.", _NOT_THE_FEED
        ),
        Metric("partition/rss_peak_megabytes", "megabytes", "The Python worker's largest resident size that was seen.", "no batch"),
        Metric("partition/device_peak_megabytes", "megabytes", "The device allocator's peak.", "no device, or the framework does not tell"),
    ),
)

_HOST = Group(
    "Each host",
    "In MLflow, as series over time beside MLflow's own system metrics, at most 500 points each. A figure that is one for a partition, and no "
    "series, has the partition's id as its step. They are the whole host's, other processes' too; the network is without loopback, which "
    "carries Spark's own traffic with Python.",
    (
        Metric("system/<host>/cpu_utilization_percentage", "percent", "CPU in use, of all cores.", _NO_HOST),
        Metric("system/<host>/system_memory_usage_megabytes", "megabytes", "Memory in use.", _NO_HOST),
        Metric("system/<host>/system_memory_usage_percentage", "percent", "Memory in use, of all.", _NO_HOST),
        Metric("system/<host>/disk_read_megabytes_per_second", "megabytes a second", "Read from all disks.", _NO_HOST),
        Metric("system/<host>/disk_write_megabytes_per_second", "megabytes a second", "Written to all disks.", _NO_HOST),
        Metric("system/<host>/network_receive_megabytes_per_second", "megabytes a second", "Received.", _NO_HOST),
        Metric("system/<host>/network_transmit_megabytes_per_second", "megabytes a second", "Sent.", _NO_HOST),
        Metric("system/<host>/disk_read_megabytes", "megabytes", "Read while the partition ran.", _NO_HOST),
        Metric("system/<host>/disk_write_megabytes", "megabytes", "Written while the partition ran.", _NO_HOST),
        Metric("system/<host>/network_receive_megabytes", "megabytes", "Received while the partition ran.", _NO_HOST),
        Metric("system/<host>/network_transmit_megabytes", "megabytes", "Sent while the partition ran.", _NO_HOST),
        Metric(
            "system/<host>/disk_usage_percentage", "percent", "Space in use on the root disk, of all, at the partition's end.", _NO_HOST
        ),
        Metric("system/<host>/disk_usage_megabytes", "megabytes", "The same as a size.", _NO_HOST),
        Metric("system/<host>/disk_available_megabytes", "megabytes", "Space that is left on it.", _NO_HOST),
    ),
)

_CARD = Group(
    "Each NVIDIA card",
    "The same, of the cards that the task owns. `<i>` is the number that nvidia-smi gives the card, with `_mig_<instance>` where it is a MIG "
    "slice. Two Python workers on one card see the same samples, which count once.",
    (
        Metric(
            "system/<host>/gpu_<i>_utilization_percentage",
            "percent",
            "Time with at least one kernel running; it does not tell how full the card was.",
            f"{_NO_CARD}, or it is a MIG slice",
        ),
        Metric("system/<host>/gpu_<i>_memory_usage_megabytes", "megabytes", "Memory in use, other processes' too.", _NO_CARD),
        Metric("system/<host>/gpu_<i>_memory_usage_percentage", "percent", "Memory in use, of all.", _NO_CARD),
        Metric("system/<host>/gpu_<i>_power_usage_watts", "watts", "Power drawn.", _NO_CARD),
        Metric("system/<host>/gpu_<i>_power_usage_percentage", "percent", "Power drawn, of the card's limit.", _NO_CARD),
        Metric("system/<host>/gpu_<i>_sm_clock_megahertz", "megahertz", "Clock of the multiprocessors.", _NO_CARD),
        Metric("system/<host>/gpu_<i>_temperature_celsius", "degrees Celsius", "Temperature.", _NO_CARD),
        Metric(
            "system/<host>/gpu_<i>_energy_counter_joules",
            "joules",
            "The card's energy counter at the begin and the end of each partition: the run's energy is its span, and no sum.",
            _NO_CARD,
        ),
        Metric(
            "system/<host>/gpu_<i>_sm_activity_percentage", "percent", "Multiprocessors with work, on the average of time.", _NO_ACTIVITY
        ),
        Metric("system/<host>/gpu_<i>_tensor_activity_percentage", "percent", "Time in which the tensor cores worked.", _NO_ACTIVITY),
        Metric(
            "system/<host>/gpu_<i>_dram_bandwidth_percentage", "percent", "Memory bandwidth in use, of what the card can do.", _NO_ACTIVITY
        ),
        Metric("system/<host>/gpu_<i>_pcie_tx_mebibytes_per_second", "mebibytes a second", "From the card over PCIe.", _NO_ACTIVITY),
        Metric("system/<host>/gpu_<i>_pcie_rx_mebibytes_per_second", "mebibytes a second", "To the card over PCIe.", _NO_ACTIVITY),
        Metric(
            "system/<host>/gpu_<i>_energy_joules",
            "joules",
            "Energy that the card used while the partition ran, for other tasks on it too.",
            f"{_NO_CARD}, or the partition was shorter than 5 s",
        ),
        Metric(
            "system/<host>/gpu_<i>_idle_fraction",
            "1",
            "Share of samples with less than 10 % utilisation: a card that is not continuously busy is starved.",
            f"{_NO_CARD}, or it is a MIG slice",
        ),
        Metric(
            "system/<host>/gpu_<i>_longest_idle_seconds",
            "seconds",
            "The longest stretch of such samples.",
            f"{_NO_CARD}, or it is a MIG slice",
        ),
        Metric("system/<host>/gpu_<i>_throttled_fraction", "1", "Share of samples in which anything held the clock down.", _NO_CARD),
        Metric("system/<host>/gpu_<i>_throttled_power_fraction", "1", "Share of samples in which the power limit did.", _NO_CARD),
        Metric("system/<host>/gpu_<i>_throttled_thermal_fraction", "1", "Share of samples in which heat did.", _NO_CARD),
    ),
)

GROUPS = (_RUN, _QUALITY, _STAGES, _PRODUCER, _ON_CARD, _PARTITION, _HOST, _CARD)
"""The table."""


def find_metric(name: str) -> Metric | None:
    """Find the entry of a name as it is reported.

    Example:
        >>> find_metric("stage/compute_seconds").name
        'stage/<stage>_seconds'
        >>> find_metric("stage/lunch_seconds") is None
        True
    """
    return next((metric for pattern, metric in _patterns() if pattern.fullmatch(name)), None)


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    return tuple((re.compile(_regex(metric.name)), metric) for group in GROUPS for metric in group.metrics)


def _regex(name: str) -> str:
    stages = {"producer/": PRODUCER_STAGES, "gpu/": DEVICE_STAGES}.get(name[: name.find("/") + 1], CONSUMER_STAGES)
    placeholders = {"<stage>": f"(?:{'|'.join(stages)})", "<host>": "[^/]+", "<i>": r"\d+(?:_mig_\d+(?:_\d+)?)?"}
    return "".join(placeholders.get(part, re.escape(part)) for part in re.split(r"(<\w+>)", name))


def describe_metrics() -> str:
    """Write the table as Markdown: what the documentation shows."""
    lines = [
        "# Metrics",
        "",
        "<!-- Made by: python -m sparkinfer.reporting.keys > docs/metrics.md -->",
        "",
        "What was not measured is absent, and never 0. A megabyte is 1,000,000 bytes, as in MLflow.",
        "",
        "## Stages",
        "",
        *_rows(("Stage", "Thread", "What happens"), [(f"`{stage}`", _thread(stage), about) for stage, about in STAGES.items()]),
    ]
    for group in GROUPS:
        lines += ["", f"## {group.title}", "", group.about, ""]
        rows = [(f"`{metric.name}`", metric.unit, metric.meaning, metric.absent or "never") for metric in group.metrics]
        lines += _rows(("Name", "Unit", "Meaning", "Absent when"), rows)
    return "\n".join(lines) + "\n"


def _thread(stage: str) -> str:
    return "the task's own" if stage in CONSUMER_STAGES else "ahead of the model"


def _rows(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows)]


if __name__ == "__main__":
    sys.stdout.write(describe_metrics())
