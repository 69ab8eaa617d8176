"""The profiler around some model calls: planted work is found, the others' figures stay clean, and nothing is left open."""

from __future__ import annotations

import base64
import gzip
import json
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sparkinfer as si
from sparkinfer.engine import profiling
from sparkinfer.engine.chrome_trace import Slice, folded, operators_of, slices_of, with_self_times
from sparkinfer.engine.profiling import Found
from sparkinfer.local import measure_local
from sparkinfer.profiles import Operator, PartitionProfile, ProfilePlan


def slow_step(x: np.ndarray) -> np.ndarray:
    for _ in range(100_000):
        pass
    return x * 2


def load_slow_model() -> Any:
    return lambda x: slow_step(x)  # noqa: PLW0108 - two frames to be told apart


def load_failing_model() -> Any:
    def predict(x: np.ndarray) -> np.ndarray:
        if x[0] >= 6:
            msg = "planted"
            raise ValueError(msg)
        return x

    return predict


def rows(number: int) -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(float(number))})


def measured(number: int, plan: ProfilePlan, load: Any = load_slow_model, **said: Any) -> Any:
    return measure_local(rows(number), si.PythonModel(load), plan, inputs="x", outputs="y double", batch_size=2, **said)


class Scripted:
    """A profiler that writes down what it is asked."""

    def __init__(self, said: list[str], trace: bytes = b"trace") -> None:
        self.said = said
        self.trace = trace

    def step(self, number: int) -> Any:
        self.said.append(f"step {number}")
        return nullcontext()

    def finish(self) -> Found:
        self.said.append("finish")
        return Found([Operator(name="op", calls=1, self_cpu_us=1.0, total_cpu_us=1.0)], {"op": 1.0}, self.trace)

    def abandon(self) -> None:
        self.said.append("abandon")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(profiling, "_start", lambda backend, device: ("scripted", Scripted(said)))
    return said


def test_the_function_that_takes_the_time_is_named():
    """Of 10 calls 1 is skipped and 3 are watched; the slow function has nearly all of the time, under the model that called it."""
    profile = measured(20, ProfilePlan(take=3)).profile
    assert profile.batches == 3
    slowest = profile.operators[0]
    assert slowest.name.startswith("slow_step (")
    assert slowest.calls == 3
    assert slowest.self_cpu_us > 0.8 * sum(row.self_cpu_us for row in profile.operators)
    stack = max(profile.stacks, key=profile.stacks.get)
    assert "<lambda>" in stack.split(";")[-2]
    assert stack.split(";")[-1].startswith("slow_step")


def test_watched_calls_are_in_no_latency():
    """10 calls: the first is the warm-up, 3 are watched, 6 are latencies; rows and batches count all."""
    record = measured(20, ProfilePlan(skip=1, take=3))
    assert (record.batches, record.rows, record.latency.total) == (10, 20, 6)
    assert sum(record.stages.values()) == pytest.approx(record.wall_seconds)


def test_a_run_without_a_profile_measures_all_calls():
    """The same 10 calls, the watched partitions being others: 9 latencies and no profile."""
    record = measured(20, ProfilePlan(skip=50))
    assert record.latency.total == 9
    assert record.profile.operators == ()
    assert "ended after 10 model calls" in record.profile.remarks[0]


def test_a_short_partition_gives_what_there_was(scripted):
    """Three calls where five were wanted: what was seen is taken at the end, and the session is closed once."""
    record = measured(6, ProfilePlan(skip=1, take=5))
    assert scripted == ["step 0", "step 1", "finish"]
    assert record.profile.batches == 2


def test_a_failing_model_leaves_no_session_open(scripted):
    """The error is the user's, the session is abandoned, and the next partition of the process can be watched."""
    with pytest.raises(si.PredictError, match="planted"):
        measured(20, ProfilePlan(skip=1, take=9), load_failing_model)
    assert scripted[-1] == "abandon"
    assert measured(20, ProfilePlan()).profile.batches == 3


def test_a_second_profile_in_the_process_says_so(scripted):
    """Frameworks lose traces without a word where two sessions meet; here the second is not begun."""
    with profiling._one_session:
        record = measured(20, ProfilePlan())
    assert (scripted, record.rows) == ([], 20)
    assert "another profile runs" in record.profile.remarks[0]


def test_a_profiler_that_breaks_costs_no_row(monkeypatch):
    """Neither at its start nor at its end."""

    def broken(backend, device):
        msg = "no CUPTI"
        raise RuntimeError(msg)

    monkeypatch.setattr(profiling, "_start", broken)
    record = measured(20, ProfilePlan())
    assert record.rows == 20
    assert record.profile.remarks == ("not profiled: the profiler did not start: RuntimeError: no CUPTI",)
    breaking = Scripted([])
    monkeypatch.setattr(breaking, "finish", lambda: broken(None, None))
    monkeypatch.setattr(profiling, "_start", lambda backend, device: ("scripted", breaking))
    record = measured(20, ProfilePlan())
    assert record.rows == 20
    assert "could not be read: RuntimeError: no CUPTI" in record.profile.remarks[0]
    assert breaking.said[-1] == "abandon"
    assert profiling._one_session.acquire(blocking=False)
    profiling._one_session.release()


def test_a_small_trace_comes_along_and_a_large_one_is_written(scripted, tmp_path):
    """By the limit in bytes; without a place it is gone, and a remark says what would help."""
    assert base64.b64decode(measured(20, ProfilePlan(trace_bytes=5)).profile.trace) == b"trace"
    written = measured(20, ProfilePlan(trace_bytes=4, path=str(tmp_path / "traces"))).profile
    assert written.trace is None
    assert written.trace_path.startswith(str(tmp_path / "traces"))
    assert Path(written.trace_path).read_bytes() == b"trace"
    gone = measured(20, ProfilePlan(trace_bytes=4)).profile
    assert (gone.trace, gone.trace_path) == (None, None)
    assert "give path=" in gone.remarks[-1]


def test_a_place_that_cannot_be_written_costs_the_trace_alone(scripted, tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "taken").write_text("")
    record = measured(20, ProfilePlan(trace_bytes=4, path=str(tmp_path / "taken")))
    assert record.rows == 20
    assert "could not be written" in record.profile.remarks[-1]


def test_a_bounded_profile_reads_no_more():
    """4 batches of 2 rows, of 20."""
    assert measured(20, ProfilePlan(bounded=4)).rows == 8


def test_self_times_add_up_to_the_busy_time():
    """Slices within slices, one that outlives its caller by rounding, two tracks: the sum is that of the outermost ones."""
    slices = [
        Slice(0, "a", 0.0, 10.0),
        Slice(0, "b", 1.0, 4.0),
        Slice(0, "c", 2.0, 1.0),
        Slice(0, "d", 8.0, 2.5),
        Slice(1, "a", 3.0, 5.0),
    ]
    assert sum(us for _, _, us in with_self_times(slices)) == pytest.approx(15.0)
    assert folded(slices) == {"a": 9.0, "a;b": 3.0, "a;b;c": 1.0, "a;d": 2.0}
    by_name = {row.name: row for row in operators_of(slices)}
    assert (by_name["a"].calls, by_name["a"].self_cpu_us, by_name["a"].total_cpu_us) == (2, 9.0, 15.0)


def test_recursion_counts_once_in_the_total():
    """A function inside itself: 10 microseconds in all, and not 14."""
    row = operators_of([Slice(0, "f", 0.0, 10.0), Slice(0, "f", 2.0, 4.0)])[0]
    assert (row.calls, row.total_cpu_us, row.self_cpu_us) == (2, 10.0, 10.0)


def test_events_of_a_trace_become_slices():
    """Complete events only; kernels are the device's."""
    events = [
        {"ph": "X", "name": "mm", "cat": "cpu_op", "pid": 1, "tid": 2, "ts": 5, "dur": 3},
        {"ph": "X", "name": "gemm", "cat": "kernel", "pid": 0, "tid": 7, "ts": 6, "dur": 9},
        {"ph": "i", "name": "mark", "ts": 1},
    ]
    assert [(one.name, one.us, one.device) for one in slices_of(events)] == [("mm", 3.0, False), ("gemm", 9.0, True)]


def test_the_loops_steps_are_kept_in_order():
    """Of a watched partition: each begins where one before ended or later, and none is longer than the partition."""
    record = measured(20, ProfilePlan())
    laps = record.profile.laps
    assert {stage for stage, _, _ in laps} >= {"compute", "input_wait"}
    assert all(later[1] >= earlier[1] for earlier, later in pairwise(laps))
    assert laps[-1][1] + laps[-1][2] <= record.wall_seconds + 1e-6
    assert all(depth >= 0 for _, depth in record.profile.depths)


def test_the_trace_in_a_record_is_read_back():
    """What travels as text is the profiler's own file."""
    trace = {"traceEvents": [{"ph": "X", "name": "mm", "cat": "cpu_op", "pid": 1, "tid": 2, "ts": 5, "dur": 3}]}
    packed = gzip.compress(json.dumps(trace).encode())
    seen = PartitionProfile.read(PartitionProfile(profiler="torch", trace=base64.b64encode(packed).decode()).told())
    assert json.loads(gzip.decompress(base64.b64decode(seen.trace))) == trace
