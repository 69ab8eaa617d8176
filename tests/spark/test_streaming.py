"""Structured Streaming: as a DataFrame, as a column and in ``foreachBatch``; stopped, crashed and started again from the checkpoint."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkinfer as si
from sparkinfer.spark.calls import CALLS_KEPT, known_calls
from sparkinfer.testing import EchoModel, Ledger

WAYS = ("map", "column", "udf", "foreachBatch")


class Stream:
    """A folder of files that is scored file by file into another one."""

    def __init__(self, spark: Any, folder: Path, way: str, model: Any) -> None:
        self.spark, self.way, self.model = spark, way, model
        self.source, self.sink, self.checkpoint = (str(folder / name) for name in ("in", "out", "checkpoint"))
        Path(self.source).mkdir()
        self.files = 0

    def arrive(self, *ids: int) -> None:
        """Lay a file into the source; without ids, one without rows."""
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), f"{self.source}/{self.files:03}.parquet")
        self.files += 1

    def start(self, **trigger: Any) -> Any:
        """Score what has arrived, one micro-batch a file."""
        rows = self.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(self.source)
        if self.way == "foreachBatch":
            writer = rows.writeStream.foreachBatch(self._score_batch)
        else:
            writer = self._scored(rows).writeStream.format("parquet").option("path", self.sink)
        return writer.option("checkpointLocation", self.checkpoint).trigger(**(trigger or {"availableNow": True})).start()

    def _score_batch(self, batch: Any, number: int) -> None:
        self._scored(batch).write.mode("overwrite").parquet(
            f"{self.sink}/number={number}"
        )  # a micro-batch that comes again replaces itself

    def _scored(self, rows: Any) -> Any:
        if self.way == "udf":
            return rows.withColumn("y", si.predict_udf(self.model, inputs="id", returns="long")("id"))
        road = "column" if self.way == "column" else "map"
        return si.predict(rows, self.model, inputs="id", outputs="y long", road=road)

    def answers(self) -> list[tuple[int, int]]:
        return sorted((row.id, row.y) for row in self.spark.read.parquet(self.sink).collect())


def fragile(ledger: Ledger, trigger: int, healed: Path) -> si.PythonModel:
    """An echo that raises at one value until it is healed."""

    def load() -> Any:
        echo = EchoModel(ledger)()

        def predict(x: Any) -> Any:
            if trigger in x and not healed.exists():
                raise RuntimeError("not yet")
            return echo(x)

        return predict

    return si.PythonModel(load)


@pytest.mark.parametrize("way", WAYS)
def test_every_row_arrives_once_over_a_crash_and_a_restart(spark, ledger, tmp_path, way) -> None:
    """The third micro-batch fails and the query with it; from the checkpoint it goes on. The model is loaded once a worker, an empty file loads none."""
    stream = Stream(spark, tmp_path, way, fragile(ledger, 5, tmp_path / "healed"))
    stream.arrive()
    stream.start().awaitTermination()
    assert ledger.events() == []
    stream.arrive(0, 1, 2)
    stream.arrive(3, 4, 5)
    with pytest.raises(Exception, match=r"PredictError: .*RuntimeError: not yet"):
        stream.start().awaitTermination()
    assert [row for row, _ in stream.answers()] == [0, 1, 2]
    (tmp_path / "healed").touch()
    stream.arrive(6, 7)
    stream.start().awaitTermination()
    assert stream.answers() == [(row, row) for row in range(8)]
    assert ledger.count("load") == len(ledger.pids("load"))
    assert sum(ledger.rows("predict")) == 8  # the batch that failed scored nothing, and nothing was scored twice


def test_a_run_around_a_stream_counts_each_micro_batch_once(spark, tmp_path) -> None:
    """Each is an action of its own, which a remark says; the sum over the actions is the rows."""
    stream = Stream(spark, tmp_path, "map", si.PythonModel(EchoModel()))
    for start in (0, 3, 6):
        stream.arrive(start, start + 1, start + 2)
    with si.inference_run(progress=False) as run:
        stream.start().awaitTermination()
    assert [(action.rows, action.partitions, action.complete) for action in run.actions] == [(3, 1, True)] * 3
    assert run.summary["inference/rows_total"] == 3
    assert run.remarks == (
        "3 micro-batches of a stream reported, each an action of its own: the figures are of one, run.actions lists all",
    )


def test_a_run_that_ends_before_the_stream_says_so(spark, tmp_path) -> None:
    """What the stream scores afterwards is in no figure."""
    stream = Stream(spark, tmp_path, "foreachBatch", si.PythonModel(EchoModel()))
    stream.arrive(1, 2)
    with si.inference_run(progress=False) as run:
        query = stream.start(processingTime="1 second")
        query.processAllAvailable()
    try:
        assert run.summary["inference/rows_total"] == 2
        assert run.remarks == (
            "the stream still runs: what it scores from here on is in no figure. Wait for it inside, with awaitTermination()",
        )
    finally:
        query.stop()


def test_a_call_keeps_neither_its_data_nor_its_code(spark) -> None:
    """foreachBatch calls predict for months: some newest DataFrames are held, for the name of their source, and no bytes of a model."""
    data = spark.range(3)
    held = weakref.ref(data)
    payload = bytes(1_000_000)
    model = si.PythonModel(lambda: lambda x: x + len(payload))
    for _ in range(25):
        si.predict(data, model, inputs="id", outputs="y long", preprocess=lambda x: x)
        data = spark.range(3)
    gc.collect()
    assert held() is None
    newest = known_calls()[-1].plan
    assert len(known_calls()) <= CALLS_KEPT
    assert (newest.model.payload, newest.model.files, newest.prepare.function) == (b"", (), b"")


def test_a_run_with_more_calls_than_are_remembered_says_so(spark, monkeypatch) -> None:
    """Their figures were let go."""
    monkeypatch.setattr("sparkinfer.spark.calls.CALLS_KEPT", 2)
    with si.inference_run(progress=False) as run:
        for _ in range(3):
            si.predict(spark.range(3), si.PythonModel(EchoModel()), inputs="id", outputs="y long").collect()
    assert run.remarks == ("predict was called 3 times inside: the figures are of the newest 2 calls",)
