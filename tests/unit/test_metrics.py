"""Values that merge: nothing is counted twice, averaged, or made up."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.metrics import (
    CONSUMER_STAGES,
    DEVICE_STAGES,
    PRODUCER_STAGES,
    Histogram,
    PartitionMetrics,
    Quality,
    RunMetrics,
    Series,
    group_executions,
    summarise,
)
from sparkinfer.profiles import PartitionProfile
from sparkinfer.run import inference_run

durations = st.floats(1e-9, 1e6)


def record(partition: int = 0, task_attempt: int = 0, **said: Any) -> PartitionMetrics:
    """A record of a tenth of a second."""
    return PartitionMetrics(
        **{
            "call": "c",
            "execution": "1",
            "partition": partition,
            "task_attempt": task_attempt,
            "host": "h",
            "pid": 1,
            "started_unix": 1000.0,
            "wall_seconds": 0.1,
            **said,
        }
    )


def histogram(*seconds: float) -> Histogram:
    made = Histogram()
    for one in seconds:
        made.add(one)
    return made


# --- histogram ---------------------------------------------------------------------------------------------------------


@given(st.lists(durations), st.lists(durations))
def test_histograms_merge_to_that_of_the_union(ours: list[float], theirs: list[float]) -> None:
    """Whatever partition a duration was measured in; and neither part is changed."""
    left, right = histogram(*ours), histogram(*theirs)
    assert left + right == histogram(*ours, *theirs)
    assert (left, right) == (histogram(*ours), histogram(*theirs))
    assert (left + right).total == len(ours) + len(theirs)


@given(st.lists(durations, min_size=1), st.integers(0, 100))
def test_a_quantile_is_right_to_its_bucket(seconds: list[float], percent: int) -> None:
    """Within 4.5 % of the sorted durations' own quantile by rank."""
    exact = sorted(seconds)[max(0, math.ceil(percent * len(seconds) / 100) - 1)]
    assert histogram(*seconds).quantile(percent / 100) == pytest.approx(exact, rel=0.0451)


def test_a_quantile_of_merged_parts_is_no_average() -> None:
    """One slow partition of 10 batches beside 990 fast ones: the median stays fast, the 99.5th percentile is the slow one's."""
    merged = histogram(*[0.001] * 990) + histogram(*[1.0] * 10)
    assert merged.quantile(0.5) == pytest.approx(0.001, rel=0.05)
    assert merged.quantile(0.995) == pytest.approx(1.0, rel=0.05)


def test_an_empty_histogram_has_no_quantiles() -> None:
    """It says so, and gives no 0."""
    with pytest.raises(ValueError, match="the histogram is empty"):
        Histogram().quantile(0.5)


@pytest.mark.parametrize(("share", "expected"), [(-1, 0.01), (0, 0.01), (1, 1.0), (2, 1.0)])
def test_a_share_beyond_the_ends_is_the_end(share: float, expected: float) -> None:
    """The least and the largest that were counted."""
    assert histogram(0.01, 1.0).quantile(share) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, -math.inf, 5e-324, math.inf, 1e300])
def test_a_duration_that_is_none_is_still_counted(seconds: float) -> None:
    """A clock that stood still or went mad must not cost the partition its figures."""
    counted = histogram(seconds)
    assert counted.total == 1
    assert counted.quantile(0.5) == pytest.approx(1e9 if seconds > 1 else 1e-9, rel=0.05)


# --- records as text ---------------------------------------------------------------------------------------------------

figures = st.floats(-1e9, 1e9).map(lambda value: round(value, 6))
counts = st.integers(0, 2**53)
names = st.text(max_size=20)
series = st.lists(st.tuples(figures, figures), max_size=5).flatmap(
    lambda samples: st.builds(
        Series,
        name=names,
        device=st.none() | names,
        times_unix=st.just(tuple(time for time, _ in samples)),
        values=st.just(tuple(value for _, value in samples)),
    )
)
qualities = st.builds(
    Quality,
    label=names,
    output=names,
    compared=counts,
    left_out=counts,
    right=st.none() | counts,
    pairs=st.none() | st.one_of(st.dictionaries(st.tuples(one, one), counts, max_size=5) for one in (names, st.booleans(), st.integers())),
    absolute_error=st.none() | figures,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = dict(  # noqa: C408 - reads as the call that it becomes
    call=names,
    run=st.none() | names,
    execution=st.none() | names,
    partition=counts,
    task_attempt=counts,
    host=names,
    pid=counts,
    started_unix=figures,
    wall_seconds=figures,
    rows=counts,
    scored_rows=counts,
    bad_rows=st.dictionaries(names, counts),
    batches=counts,
    batch_rows_fit=st.none() | counts,
    batch_rows_settled=st.none() | counts,
    chunks=counts,
    chunk_rows_max=counts,
    bytes_in=counts,
    bytes_out=counts,
    stages=st.dictionaries(st.sampled_from(CONSUMER_STAGES), figures),
    producer=st.dictionaries(st.sampled_from(PRODUCER_STAGES), figures),
    producer_blocked_seconds=st.none() | figures,
    queue_depth_mean=st.none() | figures,
    queue_empty_fraction=st.none() | figures,
    queue_full_fraction=st.none() | figures,
    warmup_seconds=st.none() | figures,
    warmup_wait_seconds=st.none() | figures,
    latency=st.lists(durations).map(lambda seconds: histogram(*seconds)),
    model_loads=counts,
    cpu_seconds=figures,
    rss_peak_bytes=st.none() | counts,
    rss_slope_bytes_per_batch=st.none() | figures,
    device=st.none() | names,
    device_wait_seconds=st.none() | figures,
    device_peak_bytes=st.none() | counts,
    device_end_bytes=st.none() | counts,
    device_seconds=st.dictionaries(st.sampled_from(DEVICE_STAGES), figures),
    rss_end_bytes=st.none() | counts,
    memory=st.lists(st.tuples(counts, counts), max_size=3).map(tuple),
    memory_left_bytes=st.none() | counts,
    series=st.lists(series, max_size=3).map(tuple),
    gauges=st.dictionaries(names, figures),
    remarks=st.lists(names).map(tuple),
    quality=st.none() | qualities,
    micro_batch=st.none() | names,
    profile=st.none()
    | st.builds(
        PartitionProfile, profiler=names, batches=counts, seconds=figures, trace=st.none() | names, stacks=st.dictionaries(names, figures)
    ),
)
records = st.builds(PartitionMetrics, **FIELDS)


@given(records)
def test_a_record_comes_back_from_its_text(made: PartitionMetrics) -> None:
    """Every field, to the microsecond; text is plain ASCII, which every channel carries."""
    text = made.to_json()
    assert PartitionMetrics.from_json(text) == made
    assert text.isascii()


def test_every_field_is_tried_by_the_round_trip() -> None:
    """A new field must join the property above."""
    assert {known.name for known in fields(PartitionMetrics)} == set(FIELDS)


@given(records, st.dictionaries(st.text(min_size=1).map("new_".__add__), st.none() | st.integers() | st.lists(names)))
def test_a_newer_workers_fields_are_left_out(made: PartitionMetrics, news: dict[str, Any]) -> None:
    """What this version does not know does not stop it from reading the rest, inside a series too."""
    told = json.loads(made.to_json())
    told["series"] = [{**one, **news} for one in told["series"]]
    assert PartitionMetrics.from_json(json.dumps({**told, **news})) == made


def test_what_was_not_measured_is_not_in_the_text() -> None:
    """No null and no 0 stands for it."""
    told = json.loads(record(execution=None).to_json())
    assert not {"execution", "rss_peak_bytes", "device", "producer_blocked_seconds", "queue_depth_mean", "warmup_seconds"} & set(told)
    assert None not in told.values()


def test_counters_of_other_libraries_are_numbers_too() -> None:
    """NumPy's scalars, and mappings that are no dict: a sampler's habits must not cost the record."""
    made = record(
        rss_peak_bytes=np.int64(5),
        stages=MappingProxyType({"compute": np.float32(0.5)}),
        gauges=MappingProxyType({"gpu_0_energy_joules": np.float32(2.5)}),
    )
    read = PartitionMetrics.from_json(made.to_json())
    assert (read.rss_peak_bytes, read.stages, read.gauges) == (5, {"compute": 0.5}, {"gpu_0_energy_joules": 2.5})


def test_a_full_record_is_small() -> None:
    """Host and card sampled 64 times each in five quantities, a thousand latencies: far below what an accumulator minds."""
    times = tuple(1.7e9 + number for number in range(64))
    made = record(
        latency=histogram(*[0.01 * 1.001**number for number in range(1000)]),
        stages=dict.fromkeys(CONSUMER_STAGES, 1 / 3),
        series=tuple(Series(f"gpu_0_quantity_{number}_percentage", "GPU-1", times, tuple(map(float, range(64)))) for number in range(5)),
    )
    assert len(replace(made, series=()).to_json()) < 1000
    assert len(made.to_json()) < 10_000


# --- which records count -----------------------------------------------------------------------------------------------


def test_only_a_partitions_last_attempt_counts() -> None:
    """A retry or a recomputed stage has a larger task attempt id, whatever order the records come in."""
    first, second, other = record(0, 1, rows=10), record(0, 9, rows=10), record(1, 2, rows=5)
    for given_order in ([first, second, other], [second, other, first]):
        (execution,) = group_executions(given_order)
        assert execution.partitions == (second, other)
        assert execution.duplicates == 1


def test_a_task_that_ran_the_loop_several_times_keeps_all() -> None:
    """Under coalesce the records of one task share partition and attempt, and each has rows of its own; a dropped attempt's go together."""
    earlier = [record(0, 3, rows=rows) for rows in (10, 20)]
    last = [record(0, 4, rows=rows) for rows in (10, 20, 30)]
    (execution,) = group_executions([*last, *earlier])
    assert [one.rows for one in execution.partitions] == [10, 20, 30]
    assert execution.duplicates == 2
    figures = summarise(execution.partitions)
    assert figures["inference/rows_total"] == 60
    assert figures["inference/partitions_total"] == 1


def test_calls_and_executions_are_apart() -> None:
    """The same partition in another action, or of another model in the same action, is no duplicate."""
    apart = [record(), record(execution="2", task_attempt=7), record(call="d"), record(execution=None, task_attempt=8)]
    grouped = group_executions(apart)
    assert {(one.call, one.execution) for one in grouped} == {("c", "1"), ("c", "2"), ("d", "1"), ("c", None)}
    assert [one.duplicates for one in grouped] == [0] * 4


def test_executions_stand_in_the_order_in_which_they_began() -> None:
    """By time and not by name; a retry late in the first does not put it behind the second."""
    first, retried = record(execution="10", started_unix=1.0), record(execution="10", task_attempt=9, started_unix=8.0)
    second = record(execution="9", task_attempt=5, started_unix=5.0)
    assert [one.execution for one in group_executions([retried, second, first])] == ["10", "9"]


@given(
    st.lists(
        st.builds(
            record,
            st.integers(0, 3),
            st.integers(0, 3),
            call=st.sampled_from("cd"),
            execution=st.sampled_from([None, "1"]),
            rows=st.integers(0, 9),
        )
    )
)
def test_no_record_is_lost_or_counted_twice(given_records: list[PartitionMetrics]) -> None:
    """Every record is kept or dropped; of each partition one attempt is left, its largest."""
    grouped = group_executions(given_records)
    assert sum(len(one.partitions) + one.duplicates for one in grouped) == len(given_records)
    assert len({(one.call, one.execution) for one in grouped}) == len(grouped)
    for one in grouped:
        for partition in {kept.partition for kept in one.partitions}:
            attempts = {kept.task_attempt for kept in one.partitions if kept.partition == partition}
            largest = max(
                given.task_attempt
                for given in given_records
                if (given.call, given.execution, given.partition) == (one.call, one.execution, partition)
            )
            assert attempts == {largest}


# --- summary -----------------------------------------------------------------------------------------------------------


def test_rows_a_second_are_of_the_elapsed_time() -> None:
    """Two partitions side by side and one after them: 600 rows in 3 s, though the partitions took 5 s together."""
    figures = summarise(
        [record(n, rows=200, started_unix=started, wall_seconds=wall) for n, (started, wall) in enumerate([(0, 2), (0, 2), (2, 1)])]
    )
    assert figures["inference/elapsed_seconds"] == 3
    assert figures["inference/partition_seconds_total"] == 5
    assert figures["inference/rows_per_second"] == 200


def test_percentiles_come_from_merged_histograms() -> None:
    """A partition with one slow batch and one with 99 fast ones: the median is not halfway."""
    figures = summarise([record(0, latency=histogram(1.0)), record(1, latency=histogram(*[0.01] * 99))])
    assert figures["inference/batch_latency_seconds_p50"] == pytest.approx(0.01, rel=0.05)
    assert figures["inference/batch_latency_seconds_p99"] == pytest.approx(0.01, rel=0.05)


def test_stages_are_shares_of_the_time_of_those_that_measured_them() -> None:
    """A record without a stage neither adds to it nor thins it out."""
    figures = summarise([record(0, wall_seconds=4.0, stages={"compute": 3.0}, producer={"read": 1.0}), record(1, wall_seconds=6.0)])
    assert figures["stage/compute_seconds"] == 3
    assert figures["stage/compute_fraction"] == 0.75
    assert figures["producer/read_seconds"] == 1
    assert "stage/encode_seconds" not in figures


def test_waiting_is_a_share_of_the_time_in_which_it_was_measured() -> None:
    """One partition's feed tells and waited for half its time; the other's does not tell."""
    figures = summarise([record(0, wall_seconds=4.0, producer_blocked_seconds=2.0), record(1, wall_seconds=6.0)])
    assert figures["bottleneck/producer_blocked_fraction"] == 0.5


def test_what_was_not_measured_has_no_figure() -> None:
    """Neither 0 nor anything else."""
    assert set(summarise([record(rows=5)])) == {
        "inference/rows_total",
        "inference/scored_rows_total",
        "inference/bad_rows_total",
        "inference/batches_total",
        "inference/partitions_total",
        "inference/bytes_in_total",
        "inference/bytes_out_total",
        "inference/model_loads_total",
        "inference/elapsed_seconds",
        "inference/partition_seconds_total",
        "inference/cpu_seconds_total",
        "inference/rows_per_second",
        "arrow/chunk_rows_max",
    }


def classes(pairs: dict[Any, int], left_out: int = 0) -> Quality:
    return Quality.of_classes("truth", "y", pairs, left_out)


@given(st.lists(st.dictionaries(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), st.integers(1, 9)), min_size=1))
def test_accuracy_is_of_all_rows_and_no_average(parts: list[dict[tuple[str, str], int]]) -> None:
    """Pairs of partitions add up, and the share is that of the rows together."""
    figures = summarise([record(number, quality=classes(pairs, left_out=2)) for number, pairs in enumerate(parts)])
    rows = [pair for pairs in parts for pair, count in pairs.items() for _ in range(count)]
    assert figures["quality/compared_rows_total"] == len(rows)
    assert figures["quality/left_out_rows_total"] == 2 * len(parts)
    assert figures.get("quality/accuracy") == (sum(true == said for true, said in rows) / len(rows) if rows else None)


def test_too_many_pairs_leave_the_totals() -> None:
    """2,500 distinct pairs are kept, one more is not, and the accuracy stays right; a text is no class."""
    full = classes({(number, number): 1 for number in range(2500)})
    more = full + classes({(9999, 1): 1})
    assert full.pairs is not None
    assert more.pairs is None
    assert (more.compared, more.right) == (2501, 2500)
    assert (more + full).right == 5000
    assert classes({("x" * 101, "y"): 1}).pairs is None


def test_errors_add_up_to_their_mean() -> None:
    """3 rows off by 1 in all and 1 row off by 5: the mean is of the rows; a partition that compared nothing does not thin it out."""
    parts = [Quality(label="t", output="y", compared=rows, absolute_error=off) for rows, off in ((3, 1.0), (1, 5.0))]
    figures = summarise([record(0, quality=parts[0]), record(1), record(2, quality=parts[1])])
    assert figures["quality/mean_absolute_error"] == 1.5
    assert "quality/accuracy" not in figures


def test_memory_is_the_largest_of_the_workers() -> None:
    """Workers of one host are different processes: peaks are not added. A megabyte is a million bytes."""
    assert (
        summarise([record(0, rss_peak_bytes=3_000_000), record(1), record(2, rss_peak_bytes=5_000_000)])["memory/rss_peak_megabytes"] == 5
    )


def test_a_run_of_nothing_has_no_rows_and_no_rates() -> None:
    """Nothing is divided."""
    assert summarise([]) == {"inference/rows_total": 0, "inference/partitions_total": 0}


def test_empty_partitions_leave_every_figure_finite() -> None:
    """C02: three rows in eight partitions, and no rows in no time at all."""
    empty = record(wall_seconds=0.0, stages=dict.fromkeys(CONSUMER_STAGES, 0.0), producer={"read": 0.0})
    figures = summarise([replace(empty, partition=number) for number in range(8)])
    assert figures["inference/rows_total"] == 0
    assert all(map(math.isfinite, figures.values()))
    assert not [name for name in figures if name.endswith(("_fraction", "_per_second"))]
    figures = summarise([replace(empty, partition=number) for number in range(7)] + [record(7, rows=3)])
    assert (figures["inference/rows_total"], figures["inference/partitions_total"]) == (3, 8)
    assert all(map(math.isfinite, figures.values()))


wild = st.floats()


@given(
    st.lists(
        st.builds(
            record,
            st.integers(0, 3),
            started_unix=wild,
            wall_seconds=wild,
            rows=st.integers(0, 2**63),
            cpu_seconds=wild,
            stages=st.dictionaries(st.sampled_from(CONSUMER_STAGES), wild),
            producer=st.dictionaries(st.sampled_from(PRODUCER_STAGES), wild),
            producer_blocked_seconds=st.none() | wild,
        )
    )
)
def test_no_figure_is_ever_nan_or_infinite(partitions: list[PartitionMetrics]) -> None:
    """Whatever a clock did; the rows are right all the same."""
    figures = summarise(partitions)
    assert all(map(math.isfinite, figures.values()))
    assert figures["inference/rows_total"] == sum(one.rows for one in partitions)


def test_a_run_that_was_not_entered_says_so() -> None:
    """``run = inference_run()`` without ``with`` is told how it is meant, whatever is asked of it."""
    with pytest.raises(AttributeError, match=r"with si\.inference_run\(\.\.\.\) as run: \.\.\., and then run\.summary"):
        inference_run("forgotten").summary  # noqa: B018 - the asking is what is tested


def test_a_runs_figures_are_its_first_executions() -> None:
    """Later actions are children with figures of their own; a run without any has none."""
    executions = tuple(group_executions([record(rows=5), record(execution="2", rows=70, started_unix=2000.0)]))
    run = RunMetrics(id="r", name=None, started_unix=0.0, ended_unix=1.0, executions=executions)
    assert run.summary["inference/rows_total"] == 5
    assert run.partitions == executions[0].partitions
    assert replace(run, executions=()).partitions == ()
    assert replace(run, executions=()).summary["inference/partitions_total"] == 0
