"""The metric table holds every name that there is, and the documentation shows the table."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkinfer.metrics import (
    CONSUMER_STAGES,
    DEVICE_STAGES,
    PRODUCER_STAGES,
    Execution,
    Histogram,
    PartitionMetrics,
    Series,
    found_before,
    summarise,
)
from sparkinfer.quality import Quality
from sparkinfer.reporting.keys import GROUPS, STAGES, describe_metrics, find_metric
from sparkinfer.reporting.mlflow_entries import entries_of, valid_name

DOCS = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def full_record(partition: int = 0, quality: Quality | None = None) -> PartitionMetrics:
    """A record in which everything was measured."""
    latency = Histogram()
    for seconds in (0.01, 0.02, 0.5):
        latency.add(seconds)
    return PartitionMetrics(
        call="c",
        run="r",
        execution="0",
        partition=partition,
        task_attempt=partition,
        host="worker-1",
        pid=1,
        started_unix=1_700_000_000.0 + partition,
        wall_seconds=len(CONSUMER_STAGES) * 1.0,
        rows=250,
        scored_rows=240,
        bad_rows={"preprocess ValueError": 2},
        batches=4,
        batch_rows_fit=32,
        batch_rows_settled=512,
        chunks=2,
        chunk_rows_max=125,
        bytes_in=1000,
        bytes_out=500,
        stages=dict.fromkeys(CONSUMER_STAGES, 1.0),
        producer=dict.fromkeys(PRODUCER_STAGES, 0.5),
        producer_blocked_seconds=0.25,
        queue_depth_mean=1.5,
        queue_empty_fraction=0.1,
        queue_full_fraction=0.2,
        warmup_wait_seconds=0.2,
        warmup_seconds=0.7,
        latency=latency,
        model_loads=1,
        cpu_seconds=3.0,
        rss_peak_bytes=200_000_000,
        rss_slope_bytes_per_batch=10.0,
        device="cuda:0",
        device_wait_seconds=1.0,
        device_peak_bytes=1_000_000,
        device_seconds=dict.fromkeys(DEVICE_STAGES, 0.5),
        series=(
            Series("gpu_0_energy_counter_joules", "GPU-1", (0.0, 1.0), (5.0, 105.0)),
            Series("cpu_utilization_percentage", None, (1_700_000_000.0,), (50.0,)),
            Series("gpu_0_utilization_percentage", "GPU-1", (1_700_000_000.0,), (80.0,)),
        ),
        gauges={"gpu_0_energy_joules": 100.0},
        remarks=("no GPM",),
        quality=quality or Quality.of_classes("truth", "y", {("cat", "cat"): 3, ("cat", "dog"): 1}),
    )


def test_every_figure_of_a_full_run_is_in_the_table() -> None:
    """Whatever ``summarise`` can give has an entry."""
    assert [name for name in summarise([full_record(0), full_record(1)]) if find_metric(name) is None] == []
    assert [name for name in summarise([]) if find_metric(name) is None] == []


def test_the_table_of_the_run_tells_no_figure_that_there_is_not() -> None:
    """Every entry of ``run.summary`` is given where everything was measured."""
    numbers = full_record(quality=Quality(label="truth", output="y", compared=2, absolute_error=1.0))
    before = found_before({"optimize_max_abs_difference": 1e-6})
    given = {find_metric(name) for name in [*summarise([full_record()]), *summarise([numbers]), *before]}
    told = {metric for group in GROUPS for metric in group.metrics if not metric.name.startswith(("partition/", "system/"))}
    assert {metric.name for metric in told - given} == set()


def test_every_point_that_goes_to_mlflow_is_in_the_table() -> None:
    """The series of partitions, hosts and cards have entries too, and every partition entry is one that is sent."""
    entries = entries_of(Execution("c", "0", (full_record(0), full_record(1)), 0))
    names = {point.name for point in [*entries.summary, *entries.partitions, *entries.system]}
    assert sorted(name for name in names if find_metric(name) is None) == []
    sent = {find_metric(name) for name in names}
    assert {
        metric.name for group in GROUPS for metric in group.metrics if metric.name.startswith("partition/") and metric not in sent
    } == set()


def sampled() -> set[str]:
    """The names that the samplers give: psutil's own on this host, and a card that tells everything."""
    pytest.importorskip("psutil", reason="the host extra is not installed")
    pytest.importorskip("pynvml", reason="the gpu extra is not installed")
    from sparkinfer.engine.cards import Card
    from sparkinfer.engine.gpu import GpuSampler
    from sparkinfer.engine.host import HostSampler
    from sparkinfer.engine.nvml import _GPM_METRICS

    now = [1_700_000_000.0]
    card = SimpleNamespace(
        cards=lambda: [Card("gpu_0", "GPU-1"), Card("gpu_1_mig_3_1", "MIG-1")],
        utilization_samples=lambda card, after: [(after + 1, 50.0)],
        memory=lambda card: (1e9, 2e9),
        power=lambda card: 100.0,
        power_limit=lambda card: 200.0,
        energy=lambda card: now[0],
        sm_clock=lambda card: 1000.0,
        temperature=lambda card: 50.0,
        throttling=lambda card: ("power",),
        activity=lambda card: dict.fromkeys(_GPM_METRICS.values(), 1.0),
        close=lambda: None,
    )
    samplers = [GpuSampler(card, clock=lambda: now[0]), HostSampler(clock=lambda: now[0])]
    names: set[str] = set()
    for sampler in samplers:
        for _ in range(3):
            now[0] += 10.0
            sampler.sample()
        seen = sampler.finish()
        assert seen.remarks == ()
        names |= {series.name for series in seen.series} | set(seen.gauges)
    return names


def test_the_table_and_the_samplers_tell_the_same_names() -> None:
    """Every series and gauge of the host and of a card, and of a MIG slice, has an entry; no entry is of what nobody samples."""
    found = {name: find_metric(f"system/worker-1/{name}") for name in sampled()}
    assert sorted(name for name, metric in found.items() if metric is None) == []
    told = {metric for group in GROUPS for metric in group.metrics if metric.name.startswith("system/")}
    # a busy machine may give no CPU time between two looks
    assert {metric.name for metric in told - set(found.values())} <= {"system/<host>/cpu_utilization_percentage"}


def test_a_figure_that_can_be_missing_says_when() -> None:
    """What ``summarise`` gives for no partitions is always there; everything else of the run tells when it is not."""
    always = {find_metric(name) for name in summarise([])}
    for group in GROUPS:
        for metric in group.metrics:
            if not metric.name.startswith("partition/"):
                assert bool(metric.absent) == (metric not in always), metric


def test_a_name_is_in_the_table_once_and_valid() -> None:
    """No name has two entries, and every one is a name that MLflow takes."""
    names = [metric.name for group in GROUPS for metric in group.metrics]
    assert len(names) == len(set(names))
    for name in names:
        bare = re.sub(r"<(\w+)>", r"\1", name)
        assert valid_name(bare) == bare


@pytest.mark.parametrize(
    "name",
    [
        "stage/read_seconds",
        "producer/compute_seconds",
        "system/gpu_0_energy_joules",
        "system/h/gpu_x_energy_joules",
        "inference/rows_total2",
    ],
)
def test_a_wrong_name_is_not_found(name: str) -> None:
    """A producer's stage is no consumer's, a host is one part of the name, and a card has a number."""
    assert find_metric(name) is None


def test_every_stage_is_told() -> None:
    """The stages' table has the stages of the metrics, in their order."""
    assert tuple(STAGES) == CONSUMER_STAGES + PRODUCER_STAGES


def test_units_end_the_names() -> None:
    """A duration ends in seconds, a share in fraction: the unit that the table tells is the one in the name."""
    endings = {"seconds": "_seconds", "megabytes": "_megabytes", "percent": "_percentage", "watts": "_watts", "joules": "_joules"}
    for group in GROUPS:
        for metric in group.metrics:
            if metric.unit in endings:
                assert endings[metric.unit] in metric.name, metric
            if metric.name.endswith("_fraction"):
                assert metric.unit == "1", metric


def test_the_documentation_is_up_to_date() -> None:
    """docs/metrics.md is what the code says; if not: python -m sparkinfer.reporting.keys > docs/metrics.md."""
    assert DOCS.read_text(encoding="utf-8") == describe_metrics()
