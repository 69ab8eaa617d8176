"""Spark's transport settings: what is in force is said, what was changed is put back, and ``batch_size`` holds whatever Spark does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.spark import session as session_module
from sparkinfer.spark.arms import SparkArms
from sparkinfer.testing import EchoModel
from tests.spark.kit import FLAVORS, ROADS, model, ours

MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
COLUMNAR = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _as_before(spark, monkeypatch) -> Iterator[None]:
    """Every test may be told everything, and leaves the session's value as it was."""
    monkeypatch.setattr(session_module, "_remarked", set())
    before = spark.conf.get(MAX_RECORDS)
    yield
    assert spark.conf.get(MAX_RECORDS) == before


def narrow(spark: Any, rows: int = 100) -> Any:
    """Make one partition of numbers, on a row plan."""
    return spark.range(0, rows, 1, 1).selectExpr("id", "cast(id as double) as x")


def chunk_sizes(df: Any) -> list[int]:
    """Tell the sizes of the chunks that Spark sends, as mapInArrow sees them."""
    import pyarrow as pa

    def sizes(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})

    return [row.n for row in df.mapInArrow(sizes, "n long").collect()]


@pytest.mark.parametrize("road", ROADS)
def test_a_value_that_is_not_in_force_is_told_once_and_the_session_stays_as_it_is(spark, road) -> None:
    """C51: the remark has the value asked for, the one in force, and what to do; a second call says nothing."""
    df = narrow(spark)
    spark.conf.set(COLUMNAR, "false")
    try:
        with pytest.warns(  # noqa: PT031 - three calls, one remark
            si.SparkInferWarning, match=r"max_records_per_batch=20000 was asked for, but .*maxRecordsPerBatch is 10000.*inference_run"
        ) as told:
            for _ in range(3):
                scored = si.predict(df, model(lambda x: x), inputs="x", outputs="y double", road=road, max_records_per_batch=20_000)
        assert len(ours(told)) == 1
        assert spark.conf.get(MAX_RECORDS) == "10000"
        assert len(scored.collect()) == 100
        assert spark.conf.get(MAX_RECORDS) == "10000"
    finally:
        spark.conf.unset(COLUMNAR)


def test_the_remark_points_at_the_users_line(spark) -> None:
    """A warning that names a file of the library helps nobody."""
    with pytest.warns(si.SparkInferWarning) as told:
        si.predict(narrow(spark), model(lambda x: x), inputs="x", outputs="y double", road="map", max_records_per_batch=7)
    assert ours(told)[0].filename == __file__
    session_module._remarked.clear()
    with pytest.warns(si.SparkInferWarning) as told:
        si.predict_udf(model(lambda x: x), inputs="x", returns="double", max_records_per_batch=7)
    assert {warning.filename for warning in ours(told)} == {__file__}


def test_nothing_is_said_when_the_value_asked_for_is_in_force(spark) -> None:
    """Warnings are errors in this suite: none comes."""
    si.predict(narrow(spark), model(lambda x: x), inputs="x", outputs="y double", road="map", max_records_per_batch=10_000)
    with si.inference_run(max_records_per_batch=7):
        si.predict(narrow(spark), model(lambda x: x), inputs="x", outputs="y double", road="map", max_records_per_batch=7)


@pytest.mark.parametrize("value", [0, -1])
def test_no_limit_is_refused(spark, value) -> None:
    """C51: 0 and -1 mean no limit to Spark: a whole partition in one chunk; refused."""
    with pytest.raises(si.ConfigError, match=f"max_records_per_batch is {value}, expected at least 1"):
        si.predict(narrow(spark), model(lambda x: x), inputs="x", outputs="y double", max_records_per_batch=value)
    with pytest.raises(si.ConfigError, match=f"max_records_per_batch is {value}"), si.inference_run(max_records_per_batch=value):
        pass


def test_a_run_sets_the_value_for_the_actions_inside_and_puts_it_back(spark) -> None:
    """C51: what the function sees is what was asked for, also for a frame built before; after the run the user's own is back."""
    df = narrow(spark, 25_000)
    assert chunk_sizes(df) == [10_000, 10_000, 5_000]
    spark.conf.set(MAX_RECORDS, "5000")
    try:
        with si.inference_run("wide", max_records_per_batch=20_000) as run:
            assert (run.name, run.max_records_per_batch) == ("wide", 20_000)
            assert chunk_sizes(df) == [20_000, 5_000]
        assert spark.conf.get(MAX_RECORDS) == "5000"
        assert chunk_sizes(df) == [5_000] * 5
    finally:
        spark.conf.unset(MAX_RECORDS)


def test_a_run_puts_the_value_back_when_the_block_raises(spark) -> None:
    """Whatever ended it."""
    with pytest.raises(ZeroDivisionError), si.inference_run(max_records_per_batch=7):  # noqa: PT012 - the value is seen inside
        assert spark.conf.get(MAX_RECORDS) == "7"
        _ = 1 / 0
    assert spark.conf.get(MAX_RECORDS) == "10000"


def test_runs_that_overlap_agree_or_are_refused(spark) -> None:
    """The same value may be held twice, in any order of ending; another one is a ConfigError that names both."""
    first, second = si.inference_run(max_records_per_batch=7), si.inference_run(max_records_per_batch=7)
    first.__enter__()
    second.__enter__()
    with (
        pytest.raises(si.ConfigError, match="max_records_per_batch=9 was asked for while another inference_run holds 7"),
        si.inference_run(max_records_per_batch=9),
    ):
        pass
    with si.inference_run("asks for nothing"):
        assert spark.conf.get(MAX_RECORDS) == "7"
    first.__exit__(None, None, None)
    assert spark.conf.get(MAX_RECORDS) == "7"
    second.__exit__(None, None, None)
    assert spark.conf.get(MAX_RECORDS) == "10000"
    with si.inference_run(max_records_per_batch=9):
        assert spark.conf.get(MAX_RECORDS) == "9"


def test_runs_of_two_threads_that_differ_are_refused(spark) -> None:
    """The setting is the session's, so a thread's run counts for the other."""
    said: list[BaseException] = []

    def other() -> None:
        try:
            with si.inference_run(max_records_per_batch=9):
                pass
        except si.ConfigError as error:
            said.append(error)

    with si.inference_run(max_records_per_batch=7):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(said) == 1
    assert "holds 7" in str(said[0])


@pytest.mark.parametrize("road", ROADS)
def test_two_models_of_different_batch_sizes_in_one_query_do_not_disturb_each_other(spark, road, tmp_path) -> None:
    """C51: each model sees its own batch size, whatever the chunks are."""
    from sparkinfer.testing import Ledger

    small, large = Ledger(str(tmp_path / "small")), Ledger(str(tmp_path / "large"))
    with si.inference_run(max_records_per_batch=7):
        once = si.predict(narrow(spark), si.PythonModel(EchoModel(small)), inputs="x", outputs="a double", road=road, batch_size=3)
        twice = si.predict(once, si.PythonModel(EchoModel(large)), inputs="x", outputs="b double", road=road, batch_size=50)
        rows = twice.collect()
    assert [(row.a, row.b) for row in rows] == [(float(i), float(i)) for i in range(100)]
    assert small.rows("predict") == [3] * 33 + [1]
    assert large.rows("predict") == [50, 50]


def refuse_settings(patched: pytest.MonkeyPatch, spark: Any, *verbs: str) -> None:
    """Make the real session refuse, as shared and serverless clusters do; pyspark's own look at its debug switch goes on."""
    kind = type(spark.conf)
    for verb in verbs:
        real = getattr(kind, verb)

        def refusing(conf: Any, key: str, *rest: Any, real: Any = real) -> Any:
            if key == "spark.sql.stackTracesInDataFrameContext":
                return real(conf, key, *rest)
            raise PermissionError(f"{key} is not allowed here")

        patched.setattr(kind, verb, refusing)


@pytest.mark.parametrize("road", ROADS)
def test_a_session_that_lets_no_setting_be_read_or_set_still_scores(spark, monkeypatch, road) -> None:
    """C49 and C51: no crash, one remark, whole results."""
    df = narrow(spark)
    with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        refuse_settings(patched, spark, "get", "set")
        for _ in range(2):
            scored = si.predict(df, model(lambda x: x), inputs="x", outputs="y double", road=road, max_records_per_batch=7)
    assert sum("does not let its settings be read" in str(warning.message) for warning in told) == 1
    assert [row.y for row in scored.select("y").collect()] == [float(i) for i in range(100)]


@pytest.mark.parametrize("refused", [["set"], ["get"], ["get", "set"]], ids="+".join)
def test_a_run_in_a_session_that_lets_nothing_be_changed_warns_and_goes_on(spark, monkeypatch, refused) -> None:
    """C51: a warning only, at the user's line; what cannot be read is not changed, since it could not be put back."""
    said = "max_records_per_batch=7 was asked for, but"
    with monkeypatch.context() as patched, pytest.warns(si.SparkInferWarning, match=said) as told:  # noqa: PT031 - a whole run
        refuse_settings(patched, spark, *refused)
        with si.inference_run(max_records_per_batch=7):
            scored = narrow(spark, 3)
    assert [warning.filename for warning in ours(told)] == [__file__]
    assert scored.count() == 3
    assert spark.conf.get(MAX_RECORDS) == "10000"
    with si.inference_run(max_records_per_batch=9):  # nothing is held by the run before
        assert spark.conf.get(MAX_RECORDS) == "9"


@pytest.fixture(scope="module")
def parquet(spark, tmp_path_factory) -> str:
    """A file whose scan is columnar."""
    path = str(tmp_path_factory.mktemp("scan") / "rows")
    spark.range(0, 6_000, 1, 1).selectExpr("id", "cast(id as double) as x").write.parquet(path)
    return path


@pytest.mark.spark(since=(4, 2), why="a UDF right on a columnar scan gets the scan's batches from then on")
@pytest.mark.parametrize("flavor", ["road", *FLAVORS])
def test_on_a_columnar_scan_the_batch_size_holds_and_the_setting_that_helps_is_told_once(spark, parquet, flavor, ledger) -> None:
    """Trap A (Spark 4.2 on): the scan's own batches come whatever was asked for; the model sees batch_size, and a remark says so."""
    df = spark.read.parquet(parquet)
    echo = si.PythonModel(EchoModel(ledger))
    said = r"columnarInput\.enabled=false"
    with si.inference_run(max_records_per_batch=1000), pytest.warns(si.SparkInferWarning, match=said) as told:  # noqa: PT031 - two calls
        for _ in range(2):
            if flavor == "road":
                scored = si.predict(df, echo, inputs="x", outputs="y double", road="column", batch_size=300, max_records_per_batch=1000)
            else:
                tag = si.predict_udf(echo, inputs="x", returns="double", flavor=flavor, batch_size=300, max_records_per_batch=1000)
                scored = df.withColumn("y", tag("x"))
        assert len(ours(told)) == 1
        assert scored.filter("y = id").count() == 6_000
    assert ledger.rows("predict") == [300] * 20


def test_nothing_is_said_of_columnar_scans_where_it_does_not_apply(spark, parquet) -> None:
    """Not on the map road, not when the setting that helps is on: warnings are errors in this suite."""
    df = spark.read.parquet(parquet)
    with si.inference_run(max_records_per_batch=1000):
        si.predict(df, model(lambda x: x), inputs="x", outputs="y double", road="map", max_records_per_batch=1000)
        spark.conf.set(COLUMNAR, "false")
        try:
            si.predict(df, model(lambda x: x), inputs="x", outputs="y double", road="column", max_records_per_batch=1000)
        finally:
            spark.conf.unset(COLUMNAR)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("batch_size", [100, 333, 7_000])
def test_a_default_cache_and_a_scan_give_whole_answers(spark, parquet, road, batch_size) -> None:
    """Columnar sources of every kind: rows whole, in place, whatever the batch size."""
    cached = spark.read.parquet(parquet).cache()
    try:
        for df in (cached, spark.read.parquet(parquet)):
            scored = si.predict(df, model(lambda x: x * 2), inputs="x", outputs="y double", road=road, batch_size=batch_size)
            assert scored.filter("y = 2 * id").count() == 6_000
    finally:
        cached.unpersist()


def test_several_columns_of_a_columnar_scan_share_its_batches(spark, parquet) -> None:
    """Trap B's kin: two UDFs with different batch sizes beside passed-through columns."""
    df = spark.read.parquet(parquet)
    one = si.predict_udf(model(lambda x: x + 1), inputs="x", returns="double", batch_size=7)
    two = si.predict_udf(model(lambda x: np.stack([x, -x], axis=1)), inputs="x", returns="array<double>", batch_size=501)
    got = df.select("id", one("x").alias("a"), two("x").alias("b")).filter("a = id + 1 and b[0] = id and b[1] = -id")
    assert got.count() == 6_000


ARROW_CACHE = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf
import pyarrow as pa
import sparkinfer as si

spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.cache.serializer", "org.apache.spark.sql.execution.columnar.ArrowCachedBatchSerializer").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
df = spark.range(0, 5000, 1, 1).selectExpr("id", "cast(id as double) as x").cache()
assert df.count() == 5000

@arrow_udf("double")
def identity(x: pa.Array) -> pa.Array:
    return x

def outcome(scored):
    try:
        return "whole" if scored.filter("y = id").count() == 5000 else "wrong"
    except Exception as error:
        return "mismatch" if "Batch size mismatch" in str(error) else "IndexOutOfBounds" if "IndexOutOfBounds" in str(error) else str(error)

echo = si.PythonModel(lambda: lambda x: x)
print("map", outcome(si.predict(df, echo, inputs="x", outputs="y double", road="map", batch_size=100)))
print("spark", outcome(df.select("id", identity("x").alias("y"))))
print("column", outcome(si.predict(df, echo, inputs="x", outputs="y double", keep=["id"], road="column", batch_size=100)))
spark.stop()
"""


@pytest.mark.spark(since=(4, 3), why="there is no Arrow-backed cache before")
def test_an_arrow_backed_cache_meets_no_batch_that_is_cut_otherwise(tmp_path) -> None:
    """Traps B and C: on an Arrow-backed cache the map road is whole, and the column road does what Spark's own identity UDF does there."""
    script = tmp_path / "arrow_cache.py"  # the serializer is a static setting: it needs a session of its own
    script.write_text(ARROW_CACHE)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    outcomes = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("map ", "spark ", "column ")))
    assert outcomes.get("map") == "whole", done.stdout + done.stderr
    assert outcomes["column"] == outcomes["spark"]
    assert outcomes["column"] != "mismatch"


def test_an_automatic_batch_size_settles_in_the_workers_and_is_told(spark) -> None:
    """Every prediction is on its own row; the run says on how many rows most partitions settled."""
    df = spark.range(0, 240_000, 1, 2)
    with si.inference_run(progress=False) as run:
        scored = si.predict(df, model(lambda x: 3 * x), inputs="id", outputs="y long", batch_size="auto")
        assert scored.where("y != 3 * id or y is null").count() == 0
    assert run.summary["inference/rows_total"] == 240_000
    assert run.summary["config/batch_size"] in {64 * 2**times for times in range(7)}
    assert run.verdict is not None


def test_tuning_can_run_other_chunks_other_partitions_and_another_model(spark) -> None:
    """The arms of a tuning: chunks as asked for, the whole job by its own partitions or others, and the same rows for a model in other numbers."""
    torch = pytest.importorskip("torch")
    rows = narrow(spark, 300)
    arms = SparkArms(rows, si.TorchModel(torch.nn.ReLU()), {"inputs": "x", "outputs": "y double"}, si.InferenceConfig(), 2)
    assert arms.sample(300, 10**8, 30) == 300
    assert arms.chunk_rows == int(spark.conf.get(MAX_RECORDS))
    arm = arms.everything(si.InferenceConfig(max_records_per_batch=7))
    assert (arm.rows, arm.device) == (300, "cpu")
    assert arms.row_bytes == pytest.approx(8, abs=1)
    assert min(arms.whole(si.InferenceConfig(), partitions) for partitions in (None, 3)) > 0
    half = arms.alike(si.TorchModel(torch.nn.ReLU()), si.InferenceConfig(precision="bf16"))
    assert half.plan.model.options["precision"] == "bf16"
    assert half.everything(si.InferenceConfig(precision="bf16")).rows == 300
    arms.close()
