"""Profiles as values: sums stay right whatever is merged and cut, and what was not measured stays absent."""

from __future__ import annotations

import base64
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.exceptions import ConfigError
from sparkinfer.metrics import PartitionMetrics
from sparkinfer.profiles import OTHERS, Operator, PartitionProfile, ProfilePlan, merge_operators, merge_stacks, top_operators, top_stacks

ROWS = st.lists(
    st.builds(
        Operator,
        name=st.sampled_from("abcdef"),
        shapes=st.sampled_from(["", "2x3"]),
        calls=st.integers(1, 9),
        self_cpu_us=st.integers(0, 100).map(float),
        total_cpu_us=st.integers(0, 100).map(float),
    ),
    max_size=12,
)


def totals(rows):
    return sum(row.calls for row in rows), sum(row.self_cpu_us for row in rows), sum(row.total_cpu_us for row in rows)


@given(one=ROWS, other=ROWS, most=st.integers(1, 4))
def test_no_time_is_lost_in_merging_and_cutting(one, other, most):
    """Calls and times of two partitions' tables are those of the merged one, however short it is cut, and no row is twice there."""
    cut = [top_operators(rows, most) for rows in (one, other)]
    merged = merge_operators(cut)
    assert totals(merged) == totals([*one, *other])
    assert all(len(rows) <= most + 1 for rows in cut)
    assert len({(row.name, row.shapes) for row in merged}) == len(merged)
    assert [row.name for row in merged].count(OTHERS) <= 1


def test_what_one_partition_did_not_measure_is_the_others():
    """A partition on a CPU has no device time; added to one that has, it takes nothing away, and two without have none."""
    host = Operator(name="mm", calls=1, self_cpu_us=5.0, total_cpu_us=5.0)
    card = Operator(name="mm", calls=1, self_cpu_us=1.0, total_cpu_us=1.0, self_device_us=7.0, total_device_us=7.0)
    assert (host + card).self_device_us == 7.0
    assert (host + host).self_device_us is None
    assert merge_operators([[host], [card]])[0].self_us == 13.0


def test_stacks_keep_their_sum():
    """What is cut goes to one stack of the others."""
    cut = top_stacks(merge_stacks([{"a;b": 5.0, "a": 2.0}, {"a;b": 1.0, "c": 0.5}]), 1)
    assert cut == {"a;b": 6.0, OTHERS: 2.5}


def test_a_profile_survives_the_journey():
    """A partition's record is JSON; what comes out is what went in, and a record without a profile has none."""
    seen = PartitionProfile(
        profiler="torch",
        model="TorchModel(Net)",
        batches=2,
        seconds=0.5,
        started_unix=1.5,
        operators=(Operator(name="aten::mm", shapes="2x3 3x4", calls=3, self_cpu_us=4.0, total_cpu_us=5.0, self_cpu_bytes=-8.0),),
        stacks={"a;b": 1.0},
        laps=(("compute", 0.0, 0.25),),
        depths=((0.25, 2),),
        trace=base64.b64encode(gzip.compress(b"{}")).decode(),
        trace_bytes=22,
        remarks=("said",),
    )
    record = PartitionMetrics(
        call="c", execution="1", partition=0, task_attempt=3, host="h", pid=1, started_unix=0.0, wall_seconds=1.0, profile=seen
    )
    assert PartitionMetrics.from_json(record.to_json()) == record
    assert "profile" not in json.loads(PartitionMetrics(**{**vars(record), "profile": None}).to_json())


def test_a_line_of_a_log_holds_the_slowest_operators():
    """Neither trace nor stacks go along, and a remark says so."""
    rows = tuple(Operator(name=f"op{number}", calls=1, self_cpu_us=float(number), total_cpu_us=1.0) for number in range(30))
    short = PartitionProfile(profiler="torch", operators=rows, stacks={"a": 1.0}, trace="x").shortened(3)
    assert [row.name for row in short.operators] == ["op29", "op28", "op27", OTHERS]
    assert (short.trace, short.stacks) == (None, {})
    assert "slowest operators only" in short.remarks[-1]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"partitions": 0}, "partitions is 0"),
        ({"partitions": ()}, r"partitions is \(\)"),
        ({"partitions": (1, -2)}, r"partitions is \(1, -2\)"),
        ({"take": 0}, "take is 0, expected a whole number of at least 1"),
        ({"skip": -1}, "skip is -1"),
        ({"path": ""}, "path is ''"),
        ({"bounded": 0}, "bounded is 0"),
    ],
)
def test_a_plan_that_exists_is_valid(said, told):
    """The message has the value and the range."""
    with pytest.raises(ConfigError, match=told):
        ProfilePlan(**said)


def test_a_plan_names_partitions_or_counts_them():
    """Both travel as text."""
    named = ProfilePlan.from_text(ProfilePlan(partitions=(4, 7), path="s3://b/c").to_text())
    assert (named.watches(4), named.watches(0), named.path) == (True, False, "s3://b/c")
