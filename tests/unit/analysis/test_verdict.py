"""The verdict: the right word for what held a run back, resting on figures, with one setting to change."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.analysis.evidence import evidence_of
from sparkinfer.analysis.verdict import Verdict, judge
from sparkinfer.metrics import (
    CONSUMER_STAGES,
    PRODUCER_STAGES,
    Histogram,
    PartitionMetrics,
    RunMetrics,
    Series,
    group_executions,
    summarise,
)

SETTING = re.compile(
    r"num_workers=|prefetch_batches=|batch_size=|max_records_per_batch=|threads=|precision=|optimize=|pin_memory=|road=|models_per_worker|"
    r"repartition\b|TensorSpec\(|spark\.python\.worker\.reuse=|\bkeep\b|\bpostprocess\b"
)


def record(
    partition: int = 0,
    *,
    batches: int = 100,
    rows_per_batch: int = 64,
    blocked: float | None = 0.0,
    producer: Mapping[str, float] | None = None,
    call: float = 0.05,
    started: float = 0.0,
    **said: Any,
) -> PartitionMetrics:
    """A partition whose stages have these seconds, named in ``said`` beside fields of the record; each call takes ``call``."""
    stages = {stage: said.pop(stage, 0.0) for stage in CONSUMER_STAGES}
    latency = Histogram()
    for _ in range(batches - 1):
        latency.add(call)
    return PartitionMetrics(
        **{
            "call": "c",
            "execution": "1",
            "partition": partition,
            "task_attempt": partition,
            "host": "h",
            "pid": 1,
            "started_unix": started,
            "wall_seconds": sum(stages.values()),
            "rows": batches * rows_per_batch,
            "scored_rows": batches * rows_per_batch,
            "batches": batches,
            "chunks": 4,
            "chunk_rows_max": 10_000,
            "stages": stages,
            "producer": producer or {},
            "producer_blocked_seconds": blocked,
            "latency": latency,
            **said,
        }
    )


SERIAL = {"prefetch_batches": 0, "num_workers": 0}
CARD = (Series("gpu_0_utilization_percentage", "GPU-1", (0.0, 1.0), (20.0, 30.0)),)

CASES = {
    "reading is what the model waits for": (
        [record(input_wait=6.0, compute=4.0, producer={"read": 8.0, "decode": 0.5})],
        {},
        ("input-bound", "source", "repartition(2)"),
    ),
    "chunks smaller than a batch": (
        [record(input_wait=6.0, compute=4.0, producer={"read": 8.0}, chunk_rows_max=32)],
        {"max_records_per_batch": 32, "batch_size": 256},
        ("input-bound", "source", "max_records_per_batch=1024"),
    ),
    "small chunks, though larger ones were asked for": (
        [record(input_wait=6.0, compute=4.0, producer={"read": 8.0}, chunk_rows_max=100)],
        {"max_records_per_batch": 32, "batch_size": 256},
        ("input-bound", "source", "repartition(2)"),
    ),
    "columns that are only carried back": (
        [record(input_wait=6.0, compute=4.0, producer={"read": 8.0}, bytes_in=1000, bytes_out=900)],
        {"road": "map"},
        ("input-bound", "source", 'road="column"'),
    ),
    "a slow preprocess": (
        [record(input_wait=6.0, compute=4.0, producer={"read": 1.0, "decode": 0.5, "preprocess": 7.0, "collate": 0.5})],
        {"num_workers": 0},
        ("input-bound", "preprocess", "num_workers=2"),
    ),
    "too few loader processes": (
        [record(input_wait=6.0, compute=4.0, blocked=None, producer={"read": 1.0, "preprocess": 20.0})],
        {"num_workers": 2},
        ("input-bound", "preprocess", "num_workers=5"),
    ),
    "a preprocess that computes": (
        [record(input_wait=9.0, compute=1.0, cpu_seconds=9.5, producer={"read": 0.1, "preprocess": 9.0})],
        {"num_workers": 0},
        ("input-bound", "preprocess", "num_workers=4"),
    ),
    "a preprocess that waits for a disk": (
        [record(input_wait=9.0, compute=1.0, cpu_seconds=1.5, producer={"read": 0.1, "preprocess": 9.0})],
        {"num_workers": 0},
        ("input-bound", "preprocess", "num_workers=9"),
    ),
    "rows that come late, all in one chunk": (
        [record(n, input_wait=10.0, warmup_wait_seconds=9.9, compute=0.2, producer={"read": 9.8}, chunks=1) for n in range(2)],
        {},
        ("input-bound", "source", "repartition"),
    ),
    "rows that come late, behind a model that is loaded meanwhile": (
        [
            record(n, input_wait=10.0, warmup_wait_seconds=9.9, model_load=2.5, model_loads=1, pid=n, compute=0.2, producer={"read": 9.8})
            for n in range(2)
        ],
        {},
        ("input-bound", "source", "repartition"),
    ),
    "a preprocess inside tf.data, which tells nothing": (
        [record(input_wait=6.0, compute=4.0, producer={"read": 0.5})],
        {},
        ("input-bound", "preprocess", "num_workers=2"),
    ),
    "moderately input-bound": (
        [record(input_wait=1.0, compute=9.0, producer={"read": 9.5})],
        {},
        ("input-bound", "source", "repartition(2)"),
    ),
    "copies to a card from pageable memory": (
        [record(input_wait=5.0, compute=5.0, producer={"read": 1.0, "transfer": 8.0}, device="cuda:0")],
        {"pin_memory": False},
        ("transfer-bound", "transfer", "pin_memory=True"),
    ),
    "copies to a card that are pinned already": (
        [record(input_wait=5.0, compute=5.0, producer={"read": 1.0, "transfer": 8.0}, device="cuda:0")],
        {"pin_memory": "auto"},
        ("transfer-bound", "transfer", 'TensorSpec("uint8"'),
    ),
    "answers that are larger than the model is slow": (
        [record(compute=2.0, encode=3.0, output_wait=5.0, blocked=7.0)],
        {},
        ("transfer-bound", "transfer", "keep"),
    ),
    "a slow model": ([record(compute=9.8, input_wait=0.2, blocked=6.0)], {"batch_size": 64}, ("compute-bound", "model", "batch_size=128")),
    "a model that is a little slower than its input": (
        [record(compute=9.8, input_wait=0.2, blocked=1.0)],
        {},
        ("compute-bound", "model", "batch_size=128"),
    ),
    "a slow model behind loader processes, whose queue is not measured": (
        [record(compute=9.8, input_wait=0.2, blocked=None, producer={"read": 1.0, "preprocess": 6.0})],
        {"num_workers": 2},
        ("compute-bound", "model", "batch_size="),
    ),
    "a slow postprocess": ([record(compute=2.0, postprocess=8.0, blocked=8.0)], {}, ("compute-bound", "postprocess", "postprocess")),
    "calls of a millisecond": (
        [record(compute=10.0, blocked=6.0, call=0.001)],
        {"batch_size": 16},
        ("compute-bound", "batch size", "batch_size=64"),
    ),
    "calls of a millisecond, in batches that settled": (
        [record(compute=10.0, blocked=6.0, call=0.001, batch_rows_settled=32)],
        {"batch_size": "auto"},
        ("compute-bound", "batch size", "batch_size=128"),
    ),
    "a card that idles while the model runs": (
        [record(compute=10.0, blocked=6.0, device="cuda:0", series=CARD)],
        {},
        ("compute-bound", "batch size", "batch_size=256"),
    ),
    "threads that find no work": (
        [record(compute=10.0, blocked=6.0, cpu_seconds=14.0, device="cpu")],
        {"threads": 8},
        ("compute-bound", "threads", "threads=2"),
    ),
    "balanced": ([record(compute=9.6, input_wait=0.4, blocked=0.4)], {}, ("balanced", None, "")),
    "balanced behind loader processes": (
        [record(compute=9.8, input_wait=0.2, blocked=None, producer={"read": 1.0, "preprocess": 19.4})],
        {"num_workers": 2},
        ("balanced", None, ""),
    ),
    "nothing is read ahead": (
        [record(input_wait=4.0, compute=6.0, blocked=None, producer={"read": 3.5, "decode": 0.5})],
        SERIAL,
        ("serial", "source", "prefetch_batches=2"),
    ),
    "nothing is read ahead, and tf.data's generator rests while the model runs": (
        [record(input_wait=4.0, compute=6.0, blocked=6.0, producer={"read": 0.5, "preprocess": 3.5})],
        SERIAL,
        ("serial", "preprocess", "prefetch_batches=2"),
    ),
    "nothing is read ahead, and there is next to nothing to read": (
        [record(input_wait=0.1, compute=9.9, blocked=None, producer={"read": 0.1})],
        SERIAL,
        ("compute-bound", "model", "batch_size=128"),
    ),
    "nothing is read ahead of next to no model": (
        [record(input_wait=9.9, compute=0.1, blocked=None, producer={"read": 9.8})],
        SERIAL,
        ("input-bound", "source", "repartition(2)"),
    ),
    "both sides wait in turn": (
        [record(input_wait=2.0, compute=8.0, blocked=3.0, producer={"read": 2.0, "preprocess": 4.0})],
        {"prefetch_batches": 4},
        ("bursty", "preprocess", "prefetch_batches=8"),
    ),
    "both sides wait, the input's wait hardly worth a word": (
        [record(input_wait=6.0, compute=4.0, blocked=0.6, producer={"read": 8.0})],
        {},
        ("input-bound", "source", "repartition(2)"),
    ),
    "one partition waits for input, another for the model": (
        [
            record(0, input_wait=3.0, compute=7.0, blocked=0.0, producer={"read": 9.0}),
            record(1, input_wait=0.0, compute=10.0, blocked=5.0),
        ],
        {},
        ("compute-bound", "model", "batch_size="),
    ),
    "every worker loads once": (
        [record(n, model_load=5.0, compute=5.0, blocked=4.0, model_loads=1, pid=n) for n in range(2)],
        {},
        ("start-up-bound", "model", "models_per_worker"),
    ),
    "a model that is loaded again and again": (
        [record(n, model_load=5.0, compute=5.0, model_loads=1) for n in range(4)],
        {"models_per_worker": 0},
        ("start-up-bound", "model", "models_per_worker=1"),
    ),
    "workers that are not reused": (
        [record(n, model_load=5.0, compute=5.0, model_loads=1, pid=n, started=n * 10.0) for n in range(4)],
        {},
        ("start-up-bound", "model", "spark.python.worker.reuse=true"),
    ),
    "loaders that start for every small partition": (
        [record(n, model_load=1.5, compute=1.0, batches=5, started=n * 2.5) for n in range(8)],
        {"num_workers": 2},
        ("start-up-bound", "preprocess", "repartition(1)"),
    ),
    "a first batch that is compiled": (
        [record(compute=20.0, warmup_seconds=15.0, blocked=0.1)],
        {},
        ("start-up-bound", "model", "models_per_worker"),
    ),
    "one partition with most of the rows": (
        [record(n, compute=60.0 if n == 3 else 10.0, batches=600 if n == 3 else 100) for n in range(4)],
        {},
        ("skewed", "source", "repartition(12)"),
    ),
    "one partition with dearer rows": (
        [record(n, compute=60.0 if n == 3 else 10.0) for n in range(4)],
        {},
        ("skewed", "model", "repartition(12)"),
    ),
    "a last wave of one": (
        [record(n, compute=20.0, started=0.0 if n < 4 else 20.0) for n in range(5)],
        {},
        ("skewed", "few partitions", "repartition(12)"),
    ),
    "one partition for eight slots": ([record(compute=20.0, blocked=0.2)], {"slots": 8}, ("skewed", "few partitions", "repartition(24)")),
    "a second of work": ([record(compute=0.8)], {}, ("inconclusive", None, "Score about 8,000 rows")),
    "five batches": ([record(compute=8.0, batches=5)], {}, ("inconclusive", None, "Score about 710 rows")),
    "nothing at all": ([], {}, ("inconclusive", None, "No partition reported: run an action")),
    "empty partitions": ([record(n, batches=0, input_wait=2.0) for n in range(3)], {}, ("inconclusive", None, "Score more rows")),
}


@pytest.mark.parametrize(("partitions", "settings", "expected"), CASES.values(), ids=CASES)
def test_each_trouble_gets_its_name_and_its_setting(
    partitions: list[PartitionMetrics], settings: dict[str, Any], expected: tuple[str, str | None, str]
) -> None:
    """The table of facts: kind, cause, and the setting with its value."""
    found = judge(partitions, settings)
    kind, cause, advice = expected
    assert (found.kind, found.cause) == (kind, cause)
    assert advice in found.advice


@pytest.mark.parametrize(("partitions", "settings", "expected"), CASES.values(), ids=CASES)
def test_a_verdict_shows_its_figures_and_gives_one_sentence(
    partitions: list[PartitionMetrics], settings: dict[str, Any], expected: Any
) -> None:
    """Evidence is measured figures under their names; advice is a sentence with a setting, but where nothing is to be set."""
    found = judge(partitions, settings)
    figures = evidence_of(partitions)
    assert {name: figures[name] for name in found.evidence} == found.evidence
    assert found.evidence
    assert found.advice.endswith(".")
    assert ". " not in found.advice
    assert bool(SETTING.search(found.advice)) == (found.kind not in ("balanced", "inconclusive"))


# --- the gain ----------------------------------------------------------------------------------------------------------


def test_overlap_gains_what_the_shorter_side_takes() -> None:
    """4 s of input and 6 s of model in turn are 6 s beside each other; reading alone is sure to overlap."""
    found = judge([record(input_wait=4.0, compute=6.0, blocked=None, producer={"read": 2.0, "preprocess": 2.0})], SERIAL)
    assert found.gain == pytest.approx((10 / 8, 10 / 6))


def test_mending_the_preprocess_leaves_what_reading_takes() -> None:
    """8 s of reading beside 4 s of model: of 6 s waited 4 s stay, whatever becomes of the preprocess."""
    found = judge([record(input_wait=6.0, compute=4.0, producer={"read": 8.0, "preprocess": 8.5})])
    assert found.cause == "preprocess"
    assert found.gain == pytest.approx((10 / 9, 10 / 8))


def test_a_faster_model_gains_up_to_its_inputs_pace() -> None:
    """The input was ahead for 3 of 10 s: with half the model's time gone it would still be waited for then."""
    assert judge([record(compute=10.0, blocked=3.0)]).gain == pytest.approx((1.0, 10 / 7))


def test_a_larger_batch_gains_three_calls_in_four_at_best() -> None:
    """The input was ahead for 6 of 10 s, and it is not known what of a call is the call itself."""
    assert judge([record(compute=10.0, blocked=6.0, call=0.001)]).gain == pytest.approx((1.0, 10 / 5.5))


def test_equal_partitions_gain_what_the_longest_was_waited_for() -> None:
    """Four slots for 60 s did 90 s of work: 22.5 s would do."""
    found = judge([record(n, compute=60.0 if n == 3 else 10.0) for n in range(4)])
    assert found.gain is not None
    assert found.gain[1] == pytest.approx(240 / 90)


def test_start_up_is_measured_against_all_the_time() -> None:
    """5 of 10 s were load: without it twice the rows/s, with half of it a third more."""
    assert judge([record(model_load=5.0, compute=5.0, model_loads=1)]).gain == pytest.approx((10 / 7.5, 2.0))


def test_of_two_troubles_the_one_with_more_to_gain_is_told() -> None:
    """A quarter of the time is load, but the input is waited for during two thirds of the rest."""
    partition = record(model_load=2.5, input_wait=5.0, compute=2.5, model_loads=1, producer={"read": 7.0})
    assert judge([partition]).kind == "input-bound"
    assert judge([replace(partition, stages={**partition.stages, "input_wait": 1.0, "compute": 6.5})]).kind == "start-up-bound"


# --- warm-up, boundaries, sources --------------------------------------------------------------------------------------


def test_warm_up_is_no_waiting() -> None:
    """The wait before the first batch, and what the first batch takes, are not held against the input."""
    cold = record(input_wait=3.0, compute=7.0, warmup_wait_seconds=2.9, warmup_seconds=0.05, blocked=0.1)
    assert judge([cold]).kind == "balanced"
    assert judge([replace(cold, warmup_wait_seconds=None)]).kind == "input-bound"
    figures = evidence_of([record(model_load=5.0, input_wait=4.0, compute=7.0, warmup_wait_seconds=3.0, warmup_seconds=2.0)])
    assert figures["bottleneck/steady_seconds"] == 16 - 5 - 3 - 2
    assert figures["bottleneck/steady_input_wait_fraction"] == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("waited", "blocked", "kind"),
    [(0.49, 0.49, "balanced"), (0.51, 0.49, "input-bound"), (0.49, 0.51, "compute-bound"), (0.51, 0.51, "bursty")],
)
def test_five_percent_is_where_a_wait_begins_to_count(waited: float, blocked: float, kind: str) -> None:
    """Both thresholds, from both sides."""
    partition = record(input_wait=waited, compute=10 - waited, blocked=blocked, producer={"read": 9.0})
    assert judge([partition]).kind == kind


def test_a_long_partition_that_nobody_waited_for_is_no_skew() -> None:
    """It ran beside nine tenths as much work on the other slot."""
    others = [record(n, compute=5.0, started=5.0 * n) for n in range(11)]
    assert judge([record(11, compute=60.0), *others]).kind != "skewed"


def test_the_parts_of_a_coalesced_partition_are_one() -> None:
    """Two partitions of 20 s, one in one piece and one in ten, are no skew and no idle slots."""
    pieces = [record(1, compute=2.0, started=2.0 * n) for n in range(10)]
    partitions = [record(0, compute=20.0), *pieces]
    assert judge(partitions).kind != "skewed"
    assert evidence_of(partitions)["skew/wall_max_over_p75"] == pytest.approx(1)


def test_a_run_is_judged_by_its_first_execution_and_its_own_settings() -> None:
    """Later executions are children; settings that are given beat the run's."""
    first = record(input_wait=4.0, compute=6.0, blocked=None, producer={"read": 3.5})
    later = replace(first, execution="2", started_unix=100.0, stages={"compute": 10.0}, producer_blocked_seconds=9.0)
    run = RunMetrics(
        id="r", name=None, started_unix=0.0, ended_unix=200.0, executions=tuple(group_executions([later, first])), settings=SERIAL
    )
    assert judge(run).kind == "serial"
    assert judge(run, {"prefetch_batches": 2}).kind == "input-bound"


def test_half_width_is_advised_to_those_who_can_have_it() -> None:
    """A PyTorch model on a card that computes in full width; nobody else."""
    on_card, on_cpu = record(compute=10.0, blocked=6.0, device="cuda:0"), record(compute=10.0, blocked=6.0, device="cpu")
    assert 'precision="bf16"' in judge([on_card], {"backend": "torch", "precision": "fp32"}).advice
    assert "batch_size" in judge([on_card], {"backend": "torch", "precision": "bf16"}).advice
    assert "batch_size" in judge([on_card], {"backend": "tensorflow", "precision": "fp32"}).advice
    assert "batch_size" in judge([on_cpu], {"backend": "numpy"}).advice


def test_a_torch_model_that_a_cpu_runs_as_it_is_is_advised_an_engine() -> None:
    """What was optimized already, and what runs on a card, is not; the gain is what the input's own pace leaves of it."""
    on_cpu = record(compute=10.0, blocked=6.0, device="cpu")
    found = judge([on_cpu], {"backend": "torch"})
    assert (found.kind, found.cause) == ("compute-bound", "model")
    assert found.advice.startswith('Give the TorchModel optimize="auto": ')
    assert found.gain == pytest.approx((1.0, 10 / 4))
    for done in ("auto", "compile", "channels_last"):
        assert "optimize" not in judge([on_cpu], {"backend": "torch", "optimize": done}).advice
    assert "optimize" not in judge([replace(on_cpu, device="cuda:0")], {"backend": "torch"}).advice


# --- whatever was recorded ---------------------------------------------------------------------------------------------

amounts = st.one_of(st.just(0.0), st.floats(0, 1e5), st.floats())
counts = st.one_of(st.just(0), st.integers(0, 1000), st.integers(-(2**63), 2**63))


@st.composite
def records(draw: st.DrawFn) -> PartitionMetrics:
    """Records as no recorder makes them: any figures, many absent."""
    latency = Histogram()
    for seconds in draw(st.lists(st.floats(), max_size=4)):
        latency.add(seconds)
    absent = st.none()
    return PartitionMetrics(
        call="c",
        execution=draw(st.sampled_from([None, "1"])),
        partition=draw(st.integers(0, 3)),
        task_attempt=draw(st.integers(0, 3)),
        host=draw(st.sampled_from(["a", "b"])),
        pid=draw(st.integers(0, 3)),
        started_unix=draw(amounts),
        wall_seconds=draw(amounts),
        rows=draw(counts),
        scored_rows=draw(counts),
        batches=draw(counts),
        chunks=draw(counts),
        chunk_rows_max=draw(counts),
        bytes_in=draw(counts),
        bytes_out=draw(counts),
        stages=draw(st.dictionaries(st.sampled_from([*CONSUMER_STAGES, "new"]), amounts)),
        producer=draw(st.dictionaries(st.sampled_from([*PRODUCER_STAGES, "new"]), amounts)),
        producer_blocked_seconds=draw(absent | amounts),
        warmup_seconds=draw(absent | amounts),
        warmup_wait_seconds=draw(absent | amounts),
        latency=latency,
        model_loads=draw(counts),
        cpu_seconds=draw(amounts),
        rss_peak_bytes=draw(absent | counts),
        device=draw(st.sampled_from([None, "cpu", "cuda:0"])),
        series=draw(st.sampled_from([(), CARD, (replace(CARD[0], values=(math.nan, math.inf)),)])),
    )


some_settings = st.dictionaries(
    st.sampled_from(
        [
            "batch_size",
            "num_workers",
            "prefetch_batches",
            "max_records_per_batch",
            "threads",
            "models_per_worker",
            "slots",
            "pin_memory",
            "road",
            "backend",
        ]
    ),
    st.one_of(st.none(), st.booleans(), st.integers(-1, 64), st.just(10**400), st.floats(), st.sampled_from(["auto", "map", "torch"])),
)


def check(found: Verdict) -> None:
    assert all(map(math.isfinite, found.evidence.values()))
    assert found.advice.endswith(".")
    if found.gain is None:
        assert found.kind == "inconclusive"
    else:
        low, high = found.gain
        assert 1 <= low <= high <= 100


@given(partitions=st.lists(records(), max_size=4), settings=some_settings)
def test_no_record_whatever_makes_it_raise(partitions: list[PartitionMetrics], settings: dict[str, Any]) -> None:
    """Zeros, negatives, NaN, infinities and absent figures give a verdict with finite figures and an ordered gain of at least 1."""
    check(judge(partitions, settings))


seconds = st.floats(0, 100)


@given(
    partitions=st.lists(
        st.builds(
            record,
            st.integers(0, 5),
            input_wait=seconds,
            compute=seconds,
            encode=seconds,
            model_load=seconds,
            blocked=st.none() | seconds,
            batches=st.integers(0, 200),
            started=seconds,
            producer=st.dictionaries(st.sampled_from(PRODUCER_STAGES), seconds),
        ),
        max_size=6,
    ),
    settings=some_settings,
)
def test_every_sane_record_gives_a_sane_verdict(partitions: list[PartitionMetrics], settings: dict[str, Any]) -> None:
    """The same of figures as they come: seldom inconclusive, so that every rule is tried."""
    check(judge(partitions, settings))


@given(
    shares=st.lists(st.tuples(st.floats(0, 0.049), st.floats(0, 0.049)), min_size=1, max_size=4),
    wall=st.floats(2, 9),
    settings=some_settings.filter(lambda settings: settings.get("prefetch_batches") != 0),
)
def test_a_balanced_run_is_never_called_bound(shares: list[tuple[float, float]], wall: float, settings: dict[str, Any]) -> None:
    """Where neither side waits for a twentieth of the time, whatever the settings say."""
    partitions = [
        record(number, input_wait=wait * wall, compute=(1 - wait) * wall, blocked=blocked * wall)
        for number, (wait, blocked) in enumerate(shares)
    ]
    found = judge(partitions, settings)
    assert found.kind == "balanced"
    assert found.gain is not None
    assert found.gain[1] < 1.06


def test_the_summarys_figures_keep_their_values() -> None:
    """Evidence adds to the summary, and changes nothing of it."""
    partitions = CASES["one partition with most of the rows"][0]
    assert summarise(partitions).items() <= evidence_of(partitions).items()


def test_a_verdict_reads_as_a_sentence() -> None:
    """Printed, it says what, why, what to do and what to expect."""
    told = Verdict("input-bound", "preprocess", {}, "Set num_workers to 2.", (1.25, 2.0))
    assert str(told) == "input-bound (preprocess). Set num_workers to 2. To expect: 1.2 to 2.0 times the rows/s."
