"""What goes to MLflow is valid, finite, bounded, and says what was left out."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.metrics import Execution, PartitionMetrics, RunMetrics, Series
from sparkinfer.reporting.mlflow_entries import dataset_of, entries_of, partition_table, run_parameters, run_tags, summary_json, valid_name

BEGUN = 1_700_000_000.0


def record(partition: int = 0, **changed) -> PartitionMetrics:
    plain = PartitionMetrics(
        call="c", execution="0", partition=partition, task_attempt=partition, host="h", pid=1, started_unix=BEGUN, wall_seconds=2.0, rows=10
    )
    return replace(plain, **changed)


def execution(*records: PartitionMetrics, duplicates: int = 0) -> Execution:
    return Execution("c", "0", records, duplicates)


def run(*executions: Execution, **changed) -> RunMetrics:
    return RunMetrics(id="r", name="nightly", started_unix=BEGUN, ended_unix=BEGUN + 3, executions=executions, **changed)


@given(st.text())
def test_any_text_becomes_a_name_that_servers_take(text: str) -> None:
    """Letters, digits, ``_ - . /`` and space; no empty, ``.`` or ``..`` part; at most 250 characters; and it stays as it is the second time."""
    name = valid_name(text)
    assert 0 < len(name) <= 250
    assert all(letter.isascii() and (letter.isalnum() or letter in "_-. /") for letter in name)
    assert not {"", ".", ".."} & set(name.split("/"))
    assert valid_name(name) == name


def test_what_is_not_finite_is_left_out_and_counted() -> None:
    """NaN and infinities are gone from all three kinds, and a tag says how many there were."""
    series = (Series("cpu_utilization_percentage", None, (BEGUN, BEGUN + 1), (math.nan, 5.0)),)
    entries = entries_of(execution(record(cpu_seconds=math.inf, gauges={"gpu_0_energy_joules": math.nan}, series=series)))
    points = [*entries.summary, *entries.partitions, *entries.system]
    assert all(math.isfinite(point.value) for point in points)
    assert entries.tags == {"sparkinfer.values_left_out": "3 that are not finite"}  # the CPU seconds, the energy, one sample


def test_a_partition_without_time_has_no_rate() -> None:
    """An empty partition that took no time divides by nothing."""
    names = {point.name for point in entries_of(execution(record(wall_seconds=0.0, rows=0))).partitions}
    assert names == {"partition/rows", "partition/bad_rows", "partition/wall_seconds", "partition/cpu_seconds"}


def test_a_run_without_partitions_has_its_zeroes() -> None:
    """Nothing reported: rows and partitions are 0, and there is no series."""
    entries = entries_of(execution())
    assert {point.name: point.value for point in entries.summary} == {"inference/rows_total": 0, "inference/partitions_total": 0}
    assert entries.partitions == entries.system == []


@pytest.mark.parametrize(("partitions", "every"), [(2_000, 1), (2_001, 2), (5_000, 3)])
def test_many_partitions_are_thinned_and_it_is_said(partitions: int, every: int) -> None:
    """At most 2,000 partitions make a series, the table has all, and the summary is of all."""
    records = [record(i) for i in range(partitions)]
    entries = entries_of(execution(*records))
    steps = [point.step for point in entries.partitions if point.name == "partition/rows"]
    assert steps == list(range(0, partitions, every))
    assert ("sparkinfer.partition_series" in entries.tags) == (every > 1)
    assert next(point.value for point in entries.summary if point.name == "inference/rows_total") == partitions * 10
    assert partition_table(records)["partition"] == list(range(partitions))


def test_a_point_of_a_partition_is_at_its_end() -> None:
    """Step is the partition's id, time its end."""
    point = next(point for point in entries_of(execution(record(7))).partitions if point.name == "partition/rows_per_second")
    assert (point.step, point.unix, point.value) == (7, BEGUN + 2, 5.0)


def test_two_workers_on_one_card_count_once() -> None:
    """The same samples of the same card from two partitions are one series, in the order of time."""
    one = Series("gpu_0_utilization_percentage", "GPU-1", (BEGUN, BEGUN + 1), (10.0, 20.0))
    two = Series("gpu_0_utilization_percentage", "GPU-1", (BEGUN + 1, BEGUN + 2), (20.0, 30.0))
    points = entries_of(execution(record(0, series=(two,)), record(1, series=(one,)))).system
    assert [(point.name, point.value, point.step) for point in points] == [
        ("system/h/gpu_0_utilization_percentage", 10.0, 0),
        ("system/h/gpu_0_utilization_percentage", 20.0, 1),
        ("system/h/gpu_0_utilization_percentage", 30.0, 2),
    ]


def test_two_cards_under_one_name_stay_apart() -> None:
    """Where each worker calls its card number 0, the cards' own ids keep them apart."""
    series = [Series("gpu_0_power_usage_watts", uuid, (BEGUN,), (watts,)) for uuid, watts in (("GPU-1", 1.0), ("GPU-2", 2.0))]
    points = entries_of(execution(record(0, series=series[:1]), record(1, series=series[1:]))).system
    assert {point.name: point.value for point in points} == {
        "system/h/gpu_0_power_usage_watts/GPU-1": 1.0,
        "system/h/gpu_0_power_usage_watts/GPU-2": 2.0,
    }


def test_long_series_are_thinned_evenly() -> None:
    """1,200 samples of a host become 400: every third, and a tag says so."""
    series = Series("cpu_utilization_percentage", None, tuple(BEGUN + i for i in range(1200)), tuple(map(float, range(1200))))
    entries = entries_of(execution(record(series=(series,))))
    assert [point.value for point in entries.system] == list(map(float, range(0, 1200, 3)))
    assert "500" in entries.tags["sparkinfer.system_series"]


def test_many_hosts_share_the_room() -> None:
    """Whatever the number of hosts, some 50,000 points go out at most."""
    series = tuple(Series(f"s{i}", None, tuple(BEGUN + j for j in range(64)), (1.0,) * 64) for i in range(10))
    entries = entries_of(execution(*(record(i, host=f"h{i}", series=series) for i in range(200))))
    assert 10_000 < len(entries.system) <= 50_000


def test_duplicates_are_told() -> None:
    """Records dropped for a later attempt are in a tag."""
    assert entries_of(execution(record(), duplicates=3)).tags["sparkinfer.duplicates_dropped"] == "3"


def test_parameters_are_settings_and_environment() -> None:
    """Settings and versions have names of their own, long values are cut, what is not set and what names the data is not there."""
    settings = {"batch_size": 64, "threads": None, "model": "x" * 2_000, "data_source": "/data"}
    assert run_parameters(run(settings=settings, environment={"pyspark": "4.3.0"})) == {
        "inference/batch_size": "64",
        "inference/model": "x" * 1_000,
        "environment/pyspark": "4.3.0",
    }


@dataclass(frozen=True)
class AVerdict:
    kind: str = "input-bound"
    gain: tuple[float, float] = (1.2, math.inf)


def test_tags_tell_what_is_known() -> None:
    """Version and run always, verdict, completeness and remarks where there are any."""
    assert run_tags(run(), "1.0", None, complete=None) == {"sparkinfer.version": "1.0", "sparkinfer.run_id": "r"}
    told = run_tags(run(remarks=("a", "b")), "1.0", AVerdict(), complete=False)
    assert told["sparkinfer.verdict"] == "input-bound"
    assert told["sparkinfer.complete"] == "false"
    assert told["sparkinfer.remarks"] == "a\nb"


def test_the_summary_file_is_json_whatever_is_in_it() -> None:
    """Infinities become null, values that JSON has not become text."""
    told = json.loads(summary_json(run(execution(record()), settings={"model": object, "quantile": math.nan}), AVerdict()))
    assert told["summary"]["inference/rows_total"] == 10
    assert told["verdict"] == {"kind": "input-bound", "gain": [1.2, None]}
    assert told["settings"] == {"model": "<class 'object'>", "quantile": None}


@pytest.mark.parametrize(
    ("source", "told"), [("s3://bucket/photos", {"path": "s3://bucket/photos"}), ("main.photos", {"table_name": "main.photos"})]
)
def test_a_dataset_is_told_by_name_and_source(source: str, told: dict[str, str]) -> None:
    """A path or a table, with the rows that were scored, and a digest that is short enough."""
    dataset = dataset_of(run(execution(record()), settings={"data_name": "photos", "data_source": source}))
    assert dataset is not None
    assert (dataset.name, json.loads(dataset.source), json.loads(dataset.profile)) == ("photos", told, {"num_rows": 10})
    assert 0 < len(dataset.digest) <= 36


def test_no_dataset_is_made_up() -> None:
    """Without a name and a source there is none."""
    assert dataset_of(run(execution(record()))) is None
