"""``si.diagnose`` and ``si.tune`` without Spark: the arms, the checks, the choice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.analysis.costs import Costs, Shape
from sparkinfer.analysis.tuning import candidates
from sparkinfer.diagnosing import _rows_of_an_arm
from sparkinfer.local_arms import LocalArms

if TYPE_CHECKING:
    from sparkinfer.analysis.rounds import Arm

TABLE = pa.table({"x": np.arange(4000.0)})
SERIAL = {"inputs": "x", "outputs": "y double", "prefetch_batches": 0}  # one thread, so that the time below is exact


pytestmark = pytest.mark.usefixtures("no_time_passes")


class Sleepy:
    """A function of a batch that sleeps; by reference, so that the clock above is its own."""

    def __init__(self, call: float, row: float) -> None:
        self.call, self.row = call, row

    def __call__(self, x: np.ndarray) -> np.ndarray:
        time.sleep(self.call + self.row * len(x))
        return x


def sleepy(call: float = 0.0, row: float = 0.0) -> si.PythonModel:
    return si.PythonModel(lambda: Sleepy(call, row))


def test_the_costs_are_those_of_the_steps() -> None:
    """Each step's seconds are found apart from the others', the call's apart from the rows'."""

    class Slow:
        def __iter__(self) -> Iterator[pa.RecordBatch]:
            for batch in TABLE.to_batches(max_chunksize=50):
                time.sleep(50 * 2e-3)
                yield batch

    found = si.diagnose(Slow(), sleepy(0.2, 4e-3), preprocess_batch=Sleepy(0.0, 1e-3), batch_size=50, seconds=60, **SERIAL)
    costs = found.costs
    assert (costs.source, costs.call, costs.row) == pytest.approx((2e-3, 0.2, 4e-3), rel=0.02)
    assert costs.preprocess == pytest.approx(1e-3, rel=0.05)
    assert 1 / found.rows_per_second.middle == pytest.approx(2e-3 + 1e-3 + 0.2 / 50 + 4e-3, rel=0.02)
    assert found.overlap_efficiency == pytest.approx(1.0, abs=0.02)
    assert (found.verdict.kind, found.verdict.cause) == ("serial", "source")


def test_a_diagnosis_keeps_to_its_time() -> None:
    """Of ten thousand slow rows as many are measured as there is time for, and at least a few batches."""
    found = si.diagnose(TABLE, sleepy(0.1), batch_size=10, seconds=30, **SERIAL)
    assert found.seconds < 45
    assert 100 <= found.rows < 4000
    assert found.rounds >= 3


def test_everything_but_the_model_keeps_postprocess_and_types() -> None:
    """The stand-in repeats the model's own answers, so that functions after it run as they do."""

    def last(answers: dict[str, np.ndarray]) -> list[str]:
        return [f"{value:.0f}" for value in answers["a"]]

    model = si.PythonModel(lambda: lambda x: {"a": x, "b": x})
    found = si.diagnose(TABLE, model, inputs="x", outputs="y string", postprocess=last, prefetch_batches=0, rows=200, seconds=0.02)
    assert found.costs.postprocess > 0


def test_what_can_be_read_only_once_is_refused() -> None:
    """A diagnosis reads again and again, and says what to give instead."""
    with pytest.raises(si.ConfigError, match="only once"):
        si.diagnose(iter(TABLE.to_batches()), sleepy(), inputs="x", outputs="y double")
    with pytest.raises(si.ConfigError, match="rows is 0"):
        si.diagnose(TABLE, sleepy(), rows=0, inputs="x", outputs="y double")
    with pytest.raises(si.ConfigError, match="Did you mean 'batch_size'"):
        si.diagnose(TABLE, sleepy(), bath_size=8, inputs="x", outputs="y double")


def test_a_page_and_a_cell_show_the_parts(tmp_path: Path) -> None:
    """One file with the chart, and tables for a notebook, with what came from data escaped."""
    pytest.importorskip("matplotlib")
    found = si.diagnose(TABLE, sleepy(0.005), batch_size=32, seconds=1, **SERIAL)
    page = found.save(tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "everything but the model" in page
    assert "://" not in page.replace("http://www.w3.org", "")
    assert "<table>" in found._repr_html_()


def test_tuning_chooses_what_was_faster_beside_the_start(tmp_path: Path) -> None:
    """Larger batches for a model of slow calls; the section of a job file, the table and the text say so."""
    found = si.tune(TABLE, sleepy(0.02), batch_size=8, seconds=10, max_batch_size=64, **SERIAL)
    assert found.config.batch_size == 64
    assert found.gain.middle == pytest.approx(8, rel=0.3)
    assert found.tried[0].overrides == {}
    assert [one.ended for one in found.tried].count("chosen") == 1
    assert len(found.table) == len(found.tried)
    assert f"batch_size: {found.config.batch_size}" in found.save(tmp_path / "config.yaml").read_text(encoding="utf-8")


def test_candidates_differ_and_are_not_worse() -> None:
    """By the costs: preprocess ten times the model, so loader processes; few of each kind."""
    costs = Costs(source=1e-6, preprocess=1e-3, transfer=0.0, call=1e-5, row=1e-4)
    start = Shape(batch_size=32, num_workers=0, prefetch_batches=2)
    found = candidates(costs, start, [], most=5, most_workers=8, most_rows=512)
    assert found[0][0]["num_workers"] == 8
    assert any("num_workers" not in changed for changed, _ in found)
    assert len({tuple(sorted(changed.items())) for changed, _ in found}) == len(found) == 5
    assert all(gain > 0.95 for _, gain in found)


def test_tuning_says_what_memory_a_batch_takes() -> None:
    """A line through the sizes that were tried, and the largest batch by it where there is a limit."""
    found = si.tune(TABLE, sleepy(0.02), batch_size=8, seconds=10, max_batch_size=64, memory_bytes=2**40, **SERIAL)
    assert found.memory is not None
    assert {8, 64} <= set(found.memory.peaks)
    assert found.memory_limit == 2**40
    assert "memory of a task" in str(found)


def test_an_automatic_start_is_tuned_from_a_number() -> None:
    """From the rows that "auto" begins with."""
    found = si.tune(TABLE, sleepy(0.001, 1e-3), batch_size="auto", seconds=5, max_batch_size=128, **SERIAL)
    assert found.diagnosis.settings["batch_size"] == 64


def test_what_may_be_allowed_is_checked() -> None:
    """With the nearest right name; what a model does not have is left out without a word."""
    with pytest.raises(si.ConfigError, match=r"allow has 'precison', expected some of 'precision', 'optimize'. Did you mean 'precision'"):
        si.tune(TABLE, sleepy(), allow=["precison"], inputs="x", outputs="y double")
    found = si.tune(TABLE, sleepy(0.01), allow=["precision", "optimize"], batch_size=64, seconds=2, max_batch_size=64, **SERIAL)
    assert (found.optimize, found.partitions) == (None, None)


class OnSpark(LocalArms):
    """Arms that have what only Spark's have: chunks of 2 rows, whose own cost is 10 ms, and uneven partitions."""

    chunk_rows = 2
    row_bytes = 100.0

    def everything(self, config: si.InferenceConfig) -> Arm:
        """Let each chunk cost something."""
        arm = super().everything(config)
        rows = config.max_records_per_batch or 1000
        return replace(arm, seconds=arm.seconds + 0.01 * arm.rows / rows)

    def whole(self, config: si.InferenceConfig, partitions: int | None) -> float:
        """Let a shuffle help."""
        assert config.max_records_per_batch == 10_000
        return 2.0 if partitions is None else 1.0


class LateToStart(LocalArms):
    """Arms whose action takes 2 s beside the loop, as Spark's do where workers start."""

    asked = 0

    def limit(self, rows: int) -> None:
        """Keep what was asked for."""
        self.asked = rows
        super().limit(rows)

    def everything(self, config: si.InferenceConfig) -> Arm:
        """Start late."""
        time.sleep(2.0)
        return super().everything(config)


def test_what_an_action_takes_beside_the_loop_is_not_the_rows() -> None:
    """Rows of 1 ms whose action starts 2 s late: the loop gets an arm's time without those, and half of them at least."""
    config = si.InferenceConfig(batch_size=10, prefetch_batches=0)
    arms = LateToStart(TABLE, sleepy(0.0, 1e-3), {"inputs": "x", "outputs": "y double"}, config, None)
    assert arms.sample(4000, 10**8, 10.0) == 4000
    for left, loop in ((0.0, 1.0), (22.5 * 3.0 + 2.03, 1.0), (22.5 * 4.0 + 2.03, 2.0)):  # a round's arm has a part of 22.5 of what is left
        used, seconds = _rows_of_an_arm(arms, config, 4000, time.perf_counter() + left)
        assert used == arms.asked == pytest.approx(1000 * loop, rel=0.02)
        assert seconds == pytest.approx(loop, rel=0.02)
    arms.close()


def test_chunks_and_partitions_are_tried_where_they_can_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Chunks of 2 rows make way for Spark's default; the partitions are evened by the whole job; both come with what to do."""

    @contextmanager
    def opened(data: Any, model: Any, **_: Any) -> Iterator[tuple[LocalArms, si.InferenceConfig]]:
        config = si.InferenceConfig(batch_size=64, prefetch_batches=0)
        arms = OnSpark(data, model, {"inputs": "x", "outputs": "y double"}, config, 2)
        arms.job_rows = (3900, 100)
        yield arms, config

    monkeypatch.setattr("sparkinfer.tuning.opened", opened)
    found = si.tune(TABLE, sleepy(0.001, 1e-4), seconds=60, max_batch_size=64)
    assert found.overrides["max_records_per_batch"] == 10_000
    assert found.config.max_records_per_batch == 10_000
    assert found.partitions == 6
    assert found.chosen == {**found.overrides, "partitions": 6}
    assert found.tried[-1].overrides == {"partitions": 6}
    assert found.tried[0].overrides == {}
    assert "source:\n  repartition: 6" in found.save(tmp_path / "config.yaml").read_text(encoding="utf-8")
