"""A run's profile: one trace that viewers can read, tables that add up, a page that a person can read."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tarfile
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sparkinfer.exceptions import ConfigError
from sparkinfer.metrics import Execution, PartitionMetrics, RunMetrics, Series
from sparkinfer.profiles import OTHERS, Operator, PartitionProfile
from sparkinfer.reporting.flame import flame_graph
from sparkinfer.reporting.profile import Profile
from sparkinfer.reporting.run_trace import run_trace

# the trace-event format, as far as complete events, counters and names go: each phase with the fields that it must have
_PLACE = {"pid": {"type": "integer"}, "tid": {"type": "integer"}, "ts": {"type": "number", "minimum": 0}, "name": {"type": "string"}}
_KINDS = {
    "X": {"dur": {"type": "number", "minimum": 0}, "cat": {"type": "string"}, "args": {"type": "object"}},
    "C": {"args": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}}},
    "M": {
        "name": {"enum": ["process_name", "thread_name"]},
        "args": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    },
}
TRACE_EVENTS = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "properties": {**_PLACE, "ph": {"const": phase}, **fields},
                        "required": ["ph", *_PLACE, *(name for name in fields if name not in _PLACE)],
                    }
                    for phase, fields in _KINDS.items()
                ]
            },
        },
    },
}


def operator(name: str, us: float) -> Operator:
    return Operator(name=name, calls=2, self_cpu_us=us, total_cpu_us=us)


def torch_trace() -> str:
    events = [
        {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 7, "tid": 8, "ts": 5e9, "dur": 300.0, "args": {}},
        {"ph": "X", "name": "aten::add", "cat": "cpu_op", "pid": 7, "tid": 8, "ts": 5e9 + 400, "dur": 100.0, "args": {}},
        {"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "x"}},
    ]
    return base64.b64encode(gzip.compress(json.dumps({"traceEvents": events}).encode())).decode()


def xplane() -> str:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        info = tarfile.TarInfo("../../plugins/profile/2026/host.xplane.pb")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"plane"))
    return base64.b64encode(gzip.compress(made.getvalue())).decode()


def seen(**said: Any) -> PartitionProfile:
    told: dict[str, Any] = {
        "profiler": "torch",
        "batches": 3,
        "seconds": 0.3,
        "started_unix": 1001.5,
        "operators": (operator("aten::mm", 60.0), operator(OTHERS, 5.0)),
        "stacks": {"forward;aten::mm": 60.0},
        **said,
    }
    return PartitionProfile(**told)


def partition(number: int, **said: Any) -> PartitionMetrics:
    told: dict[str, Any] = {
        "call": "c",
        "execution": "1",
        "partition": number,
        "task_attempt": 10 + number,
        "host": "host-a",
        "pid": 99,
        "started_unix": 1001.0,
        "wall_seconds": 2.0,
        "stages": {"model_load": 0.5, "compute": 1.25, "other": 0.25},
        **said,
    }
    return PartitionMetrics(**told)


def run(*partitions: PartitionMetrics) -> RunMetrics:
    return RunMetrics(id="r", name="nightly", started_unix=1000.0, ended_unix=1005.0, executions=(Execution("c", "1", partitions, 0),))


FULL = run(
    partition(0, profile=seen(trace=torch_trace(), laps=(("compute", 0.5, 0.25),), depths=((0.75, 2),))),
    partition(
        1, host="host-b", series=(Series("gpu_0_utilization_percentage", "GPU-1", (1001.0, 1002.0), (50.0, 75.0)),), queue_depth_mean=1.5
    ),
    partition(2, host="host-b", series=(Series("gpu_0_utilization_percentage", "GPU-1", (1001.0, 1002.0), (50.0, 75.0)),)),
)


def slices(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == kind]


def test_the_trace_has_the_trace_event_formats_shape() -> None:
    """Every event is a complete one, a counter or a name with all its fields; a broken one is found by the same schema."""
    validator = Draft202012Validator(TRACE_EVENTS)
    trace = run_trace(FULL)
    assert [error.message for error in validator.iter_errors(trace)] == []
    assert [error.message for error in validator.iter_errors(run_trace(run()))] == []
    broken = {"traceEvents": [{**trace["traceEvents"][-1], "ts": "soon"}]}
    assert not validator.is_valid(broken)


def test_hosts_are_processes_and_tasks_are_tracks() -> None:
    """Two hosts, three tasks, each track named once; no two tasks share one."""
    named = [event for event in run_trace(FULL)["traceEvents"] if event["ph"] == "M"]
    assert [event["args"]["name"] for event in named if event["name"] == "process_name"] == ["host-a", "host-b"]
    tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in named if event["name"] == "thread_name"}
    assert sorted(name for name in tracks.values() if "task" in name) == [f"partition {n}, task {10 + n}, worker 99" for n in range(3)]


def test_stages_lie_within_their_partition() -> None:
    """End to end where only their sums are known, and said to be so; where they were, with a watched partition."""
    trace = run_trace(FULL)
    watched, summed = ([one for one in slices(trace, "stage") if one["args"]["summed"] is told] for told in (False, True))
    assert [(one["name"], one["ts"], one["dur"]) for one in watched] == [("compute", 1.5e6, 0.25e6)]
    assert [(one["name"], one["ts"], one["dur"]) for one in summed[:3]] == [
        ("model_load", 1e6, 0.5e6),
        ("compute", 1.5e6, 1.25e6),
        ("other", 2.75e6, 0.25e6),
    ]


def test_the_profilers_slices_start_when_it_did() -> None:
    """Their own clock counts from elsewhere: the first begins where the profiler began, 1.5 s into the run, the distances stay."""
    shown = slices(run_trace(FULL), "cpu_op")
    assert [(one["name"], one["ts"], one["dur"]) for one in shown] == [("aten::mm", 1.5e6, 300.0), ("aten::add", 1.5e6 + 400, 100.0)]


def test_two_workers_of_a_card_count_once() -> None:
    """The samples of one card at one moment are one point; queue depths are each partition's own."""
    counters = [event for event in run_trace(FULL)["traceEvents"] if event["ph"] == "C"]
    assert [event["args"]["value"] for event in counters if event["name"].startswith("gpu_0")] == [50.0, 75.0]
    assert [event["args"]["value"] for event in counters if "partition 0" in event["name"]] == [2, 0]
    assert [event["args"]["value"] for event in counters if "partition 1" in event["name"]] == [1.5, 0]


def test_tables_of_partitions_are_added_up() -> None:
    """Two watched partitions: calls and times are both's, the share is of all, the others stand last."""
    table = Profile(run(partition(0, profile=seen()), partition(1, profile=seen()), partition(2))).operators
    assert list(table["name"]) == ["aten::mm", OTHERS]
    assert list(table["calls"]) == [4, 4]
    assert list(table["self_us"]) == [120.0, 10.0]
    assert table["share"].sum() == pytest.approx(1.0)
    assert "self_device_us" not in table


def test_traces_are_laid_out_for_tensorboard(tmp_path) -> None:
    """TensorFlow's planes below plugins/profile, a run a partition, wherever the archive's paths point; torch's beside them."""
    made = Profile(
        run(
            partition(0, profile=seen(profiler="tensorflow", trace=xplane(), trace_kind="xplane")),
            partition(1, profile=seen(trace=torch_trace())),
        )
    ).save_tensorboard(tmp_path / "logs")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["logs/p1-t11.pt.trace.json.gz", "logs/plugins/profile/p0-t10/host.xplane.pb"]
    assert (made / "plugins/profile/p0-t10/host.xplane.pb").read_bytes() == b"plane"


def test_no_trace_says_why(tmp_path) -> None:
    """What the partition remarked is in the error."""
    with pytest.raises(ConfigError, match="no trace to lay out: let go"):
        Profile(run(partition(0, profile=seen(remarks=("let go",))))).save_tensorboard(tmp_path)


def test_the_page_names_the_slowest_operator_first() -> None:
    """Its share of all self time is the headline; markup in names stays text; nothing is fetched."""
    from sparkinfer.reporting.profile_page import render

    page = render(Profile(run(partition(0, profile=seen(operators=(operator("<b>mm", 60.0), operator("add", 20.0)))))))
    assert "&lt;b&gt;mm takes 75 % of the model&#x27;s own time" in page
    assert "<b>mm" not in page
    assert "Operators of c<" in page
    assert "Operators of TorchModel(&lt;i&gt;)<" in render(Profile(run(partition(0, profile=seen(model="TorchModel(<i>)")))))
    assert "3 model calls in 1 partition," in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_a_notebook_shows_the_table() -> None:
    """The slowest operators, and a sentence where there are none."""
    assert "aten::mm" in Profile(run(partition(0, profile=seen())))._repr_html_()
    assert "No partition was watched" in Profile(run(partition(0)))._repr_html_()


def test_frames_are_as_wide_as_their_time() -> None:
    """a has all of the thousand, b in it three quarters; a frame too thin to be seen is not drawn."""
    drawn = str(flame_graph({"a;b": 75.0, "a": 24.95, "a;c": 0.05}))
    widths = dict(re.findall(r"<title>(\w): .*?width=\"([\d.]+)\"", drawn))
    assert widths == {"a": "999.40", "b": "749.40"}
    assert flame_graph({}) is None
