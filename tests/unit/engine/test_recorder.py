"""What a partition measures of itself: planted waits are found in their stages, and nothing is where nothing was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.arguments import parse_outputs
from sparkinfer.config import InferenceConfig
from sparkinfer.engine import prepare, recorder
from sparkinfer.engine.partition import PartitionPlan, run_partition
from sparkinfer.engine.recorder import NO_RECORDER, NoRecorder, Recorder
from sparkinfer.engine.stopwatch import Stopwatch
from sparkinfer.exceptions import PredictError
from sparkinfer.metrics import CONSUMER_STAGES, PartitionMetrics, summarise
from sparkinfer.planning import Functions, plan_partition


class FakeClock:
    """Stands still until it is told to go on."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


CLOCK = FakeClock()  # the user's functions are pickled by reference to this module, and so find the same clock


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock starts anew, and the step that prepares a batch goes by it too."""
    CLOCK.now = 0.0
    monkeypatch.setattr(prepare, "Stopwatch", lambda: Stopwatch(CLOCK))


def load_slow_model() -> Callable[[np.ndarray], np.ndarray]:
    CLOCK.pass_by(100)

    def predict(x: np.ndarray) -> np.ndarray:
        CLOCK.pass_by(8)
        return x

    return predict


def slow_preprocess(x: np.ndarray) -> np.ndarray:
    CLOCK.pass_by(2)
    return x


def slow_postprocess(x: np.ndarray) -> np.ndarray:
    CLOCK.pass_by(3)
    return x


def slow_source(*sizes: int, last: float = 0.0) -> Iterator[pa.RecordBatch]:
    for size in sizes:
        CLOCK.pass_by(5)
        yield pa.RecordBatch.from_pydict({"x": np.arange(size, dtype=np.float64)})
    CLOCK.pass_by(last)


def plan(load: Callable[[], Any] = load_slow_model, *, slow: bool = True, **said: Any) -> PartitionPlan:
    functions = Functions(preprocess_batch=slow_preprocess, postprocess=slow_postprocess) if slow else Functions()
    return plan_partition(
        si.PythonModel(load),
        inputs="x",
        outputs=parse_outputs("y double"),
        keep=(),
        key=None,
        functions=functions,
        on_null="raise",
        on_error="raise",
        config=InferenceConfig(**{"batch_size": 10, "prefetch_batches": 0, "models_per_worker": 0, **said}),
    )


def run(made: PartitionPlan, source: Iterator[pa.RecordBatch], to: NoRecorder, downstream: float = 0.0) -> int:
    rows = 0
    for chunk in run_partition(made, source, files=dict, recorder=to):
        rows += chunk.num_rows
        CLOCK.pass_by(downstream)
    return rows


def measured(made: Recorder) -> PartitionMetrics:
    return PartitionMetrics(call="c", execution=None, partition=0, task_attempt=0, host="h", pid=1, **made.figures())


def new_recorder() -> Recorder:
    return Recorder(clock=CLOCK, cpu_clock=CLOCK)


# --- through the loop --------------------------------------------------------------------------------------------------


def test_planted_waits_are_found_in_their_stages() -> None:
    """Three batches in turn: 5 s a chunk, 2 s preprocess, 100 s load, 8 s model, 3 s postprocess, 4 s downstream, to the second."""
    told = new_recorder()
    assert run(plan(), slow_source(10, 10, 10), told, downstream=4) == 30
    record = measured(told)
    assert record.stages == {
        "model_load": 100,
        "input_wait": 3 * (5 + 2),
        "compute": 3 * 8,
        "postprocess": 3 * 3,
        "encode": 0,
        "output_wait": 3 * 4,
        "other": 0,
    }
    assert record.producer == {"read": 15, "decode": 0, "preprocess": 6, "collate": 0}
    assert record.wall_seconds == CLOCK.now == sum(record.stages.values())


def test_warm_up_is_kept_apart() -> None:
    """The first batch is in no latency; what was waited for it is told beside it: one chunk and one preprocess."""
    told = new_recorder()
    run(plan(), slow_source(10, 10, 10), told)
    record = measured(told)
    assert (record.warmup_seconds, record.warmup_wait_seconds, record.model_loads) == (8, 7, 1)
    assert record.latency.total == 2
    assert record.latency.quantile(0.5) == pytest.approx(8, rel=0.05)


def test_rows_batches_chunks_and_bytes_are_counted() -> None:
    """Chunks as they came, batches as the model saw them."""
    told = new_recorder()
    run(plan(), slow_source(25, 0, 4), told)
    record = measured(told)
    assert (record.rows, record.scored_rows, record.batches) == (29, 29, 3)
    assert (record.chunks, record.chunk_rows_max, record.bytes_in, record.bytes_out) == (3, 25, 29 * 8, 29 * 8)
    assert record.device == "cpu"


def test_a_partition_without_rows_has_finite_figures() -> None:
    """C02: no model, no batch, no latency, no warm-up; and the summary divides by nothing."""
    told = new_recorder()
    run(plan(), iter(()), told)
    record = measured(told)
    assert (record.rows, record.batches, record.chunks, record.model_loads, record.device) == (0, 0, 0, 0, None)
    assert (record.warmup_seconds, record.warmup_wait_seconds, record.producer_blocked_seconds) == (None, None, None)
    figures = summarise([record])
    assert figures["inference/rows_total"] == 0
    assert all(np.isfinite(value) for value in figures.values())
    assert "inference/rows_per_second" not in figures


def test_the_queue_is_measured_after_warm_up() -> None:
    """Before the first batch is through it is empty for want of a model, and then full for want of a warm one."""
    told = new_recorder()
    begun = told.queue.putting()
    CLOCK.pass_by(50)
    told.queue.put(begun)
    told.lap("compute")
    begun = told.queue.putting()
    CLOCK.pass_by(3)
    told.queue.put(begun)
    CLOCK.pass_by(1)
    told.queue.got()
    record = measured(told)
    assert (record.producer_blocked_seconds, record.queue_depth_mean, record.queue_empty_fraction) == (3, (1 * 3 + 2 * 1) / 4, 0)


@pytest.mark.parametrize("prefetch_batches", [0, 1, 3])
def test_the_queue_is_measured_where_there_is_one(prefetch_batches: int) -> None:
    """Without reading ahead there is no queue, and no figure of it."""
    told = Recorder()
    run(plan(slow=False, prefetch_batches=prefetch_batches), slow_source(*[10] * 8), told)
    record = measured(told)
    figures = (record.producer_blocked_seconds, record.queue_depth_mean, record.queue_empty_fraction)
    assert [figure is not None for figure in figures] == [prefetch_batches > 0] * 3
    if record.queue_depth_mean is not None and record.queue_empty_fraction is not None:
        assert 0 <= record.queue_depth_mean <= prefetch_batches + 1
        assert 0 <= record.queue_empty_fraction <= 1


def test_the_stages_add_up_beside_a_real_thread() -> None:
    """With the real clock and reading ahead, every moment is in one stage and each one is there."""
    told = Recorder()
    run(plan(prefetch_batches=2), slow_source(*[10] * 5), told)
    record = measured(told)
    assert set(record.stages) == set(CONSUMER_STAGES)
    assert min(record.stages.values()) >= 0
    assert sum(record.stages.values()) == pytest.approx(record.wall_seconds)


def test_a_partition_that_fails_or_is_left_can_still_be_told() -> None:
    """What was measured up to a failing batch, or up to where Spark closed the generator at a limit."""

    def load() -> Callable[[np.ndarray], np.ndarray]:
        def predict(x: np.ndarray) -> np.ndarray:
            if len(x) < 10:
                raise ArithmeticError
            return x

        return predict

    told = new_recorder()
    with pytest.raises(PredictError):
        run(plan(load, slow=False), slow_source(10, 5), told)
    assert (measured(told).rows, measured(told).batches) == (10, 2)
    told = new_recorder()
    scored = run_partition(plan(slow=False), slow_source(10, 10), files=dict, recorder=told)
    next(scored)
    scored.close()
    assert measured(told).rows == 10


def test_no_recorder_measures_nothing() -> None:
    """It hands the source on as it is, has no queue to tell, and the loop gives the same rows."""
    source = slow_source(10, 10)
    assert NO_RECORDER.chunks(source) is source
    assert NO_RECORDER.queue is None
    assert run(plan(), source, NO_RECORDER) == 20
    assert vars(NO_RECORDER) == {}


def test_figures_make_a_record_that_travels() -> None:
    """What the worker writes is what the driver reads."""
    told = new_recorder()
    run(plan(), slow_source(10, 10), told)
    record = measured(told)
    assert PartitionMetrics.from_json(record.to_json()) == record


# --- memory ------------------------------------------------------------------------------------------------------------


def look_at(sizes: list[int | None], monkeypatch: pytest.MonkeyPatch, *, apart: float = 1.0) -> dict[str, Any]:
    """Tell a recorder of one batch for each of these resident sizes but the last, which is the size at the end."""
    left = iter(sizes)
    monkeypatch.setattr(recorder, "_resident_bytes", lambda: next(left))
    told = new_recorder()
    for _ in sizes[:-1]:
        told.batch(1, {})
        CLOCK.pass_by(apart)
    return told.figures()


def test_growth_is_told_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 bytes a batch after a first quarter that allocates what it likes."""
    sizes: list[int | None] = [10**9 - number for number in range(5)] + [5 * 10**6 + 3000 * number for number in range(15)]
    figures = look_at([*sizes, 0], monkeypatch)
    assert figures["rss_slope_bytes_per_batch"] == pytest.approx(3000)
    assert figures["rss_peak_bytes"] == 10**9


def test_few_samples_tell_no_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven after the first quarter are too few; the peak is told, also where it came at the very end."""
    figures = look_at([*range(1, 10), 99], monkeypatch)
    assert "rss_slope_bytes_per_batch" not in figures
    assert figures["rss_peak_bytes"] == 99


def test_the_size_is_read_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand batches in a second cost four looks, and one at the end."""
    looks: list[int] = []
    monkeypatch.setattr(recorder, "_resident_bytes", lambda: looks.append(1) or 1)
    told = new_recorder()
    for _ in range(1024):
        told.batch(1, {})
        CLOCK.pass_by(1 / 1024)
    told.figures()
    assert len(looks) == 5


def test_a_partition_of_hours_keeps_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples thin out, and the slope stays right."""
    monkeypatch.setattr(recorder, "_resident_bytes", lambda: 1000 * round(CLOCK.now))
    told = new_recorder()
    for _ in range(20_000):
        told.batch(1, {})
        CLOCK.pass_by(1)
    assert len(told._memory._samples) < 512
    figures = told.figures()
    assert figures["rss_slope_bytes_per_batch"] == pytest.approx(1000)
    assert figures["rss_peak_bytes"] == 1000 * 20_000


def test_where_the_size_cannot_be_read_there_is_no_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own peak is told, where it has one, and else nothing: never 0."""
    monkeypatch.setattr(recorder, "_peak_bytes", lambda: 77)
    assert look_at([None] * 20, monkeypatch)["rss_peak_bytes"] == 77
    monkeypatch.setattr(recorder, "_peak_bytes", lambda: None)
    figures = look_at([None] * 20, monkeypatch)
    assert "rss_peak_bytes" not in figures
    assert "rss_slope_bytes_per_batch" not in figures


def test_the_real_size_is_that_of_a_process() -> None:
    """More than a bare interpreter's 5 MB, and the present size is not above the peak."""
    resident, peak = recorder._resident_bytes(), recorder._peak_bytes()
    assert resident is None or resident > 5e6
    assert peak is None or peak > 5e6
    assert resident is None or peak is None or resident <= peak * 1.05


# --- what must not cost a row ------------------------------------------------------------------------------------------


def test_a_chunk_whose_size_cannot_be_told_goes_through() -> None:
    """Measuring raises nothing into the loop."""

    class Odd:
        num_rows = 3

        @property
        def nbytes(self) -> int:
            raise pa.ArrowNotImplementedError

    told = new_recorder()
    odd: Any = Odd()
    assert list(told.chunks(iter([odd]))) == [odd]
    told.put_out(odd)
    figures = told.figures()
    assert (figures["chunks"], figures["rows"], figures["bytes_in"], figures["bytes_out"]) == (1, 3, 0, 0)


def test_an_error_of_the_source_is_the_users() -> None:
    """It comes through as it was raised, and the chunks before it are counted."""

    def source() -> Iterator[pa.RecordBatch]:
        yield from slow_source(10)
        msg = "disk gone"
        raise OSError(msg)

    told = new_recorder()
    with pytest.raises(OSError, match="disk gone"):
        list(told.chunks(source()))
    assert told.figures()["chunks"] == 1


@pytest.mark.parametrize(("answer", "kept"), [(12_000_000, 12_000_000), (None, None)])
def test_the_devices_peak_is_what_the_framework_tells(answer: int | None, kept: int | None) -> None:
    """A figure is kept, none stays none, and a framework that fails to tell costs nothing."""
    told = new_recorder()
    told.device_peak(lambda: answer)
    assert measured(told).device_peak_bytes == kept
    broken = new_recorder()
    broken.device_peak(lambda: 1 // 0)
    assert measured(broken).device_peak_bytes is None
