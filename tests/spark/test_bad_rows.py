"""``on_error="null"`` on real Spark: on every road a bad row costs itself alone, is listed, and is counted."""

from __future__ import annotations

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.exceptions import ConfigError, SchemaError
from tests.spark.kit import FLAVORS, ROADS, frame, model

ERROR = "struct<stage:string,type:string,message:string>"
WORDS = ["1", "two", "3", None, "13", "6", "seven"]


def number(word: str) -> np.ndarray:
    return np.float32(word)


def unlucky(x: np.ndarray) -> np.ndarray:
    if (x == 13).any():
        raise ValueError("thirteen")
    return 2 * x


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("road", ROADS)
def test_a_bad_row_costs_itself_alone(spark, road, num_workers) -> None:
    """Predictions and reasons stand on their own rows, kept columns stay, and the run counts the bad rows by stage and type."""
    scored = si.predict(
        frame(spark, WORDS, "string", "w"),
        model(unlucky),
        inputs="w",
        outputs="y float, z float",
        preprocess=number,
        postprocess=lambda y: {"y": y, "z": -y},
        on_error="null",
        batch_size=3,
        num_workers=num_workers,
        road=road,
    )
    assert scored.columns == ["id", "w", "y", "z", "error"]
    assert scored.schema["error"].dataType.simpleString() == ERROR
    with si.inference_run() as run:
        rows = sorted(scored.collect())
    assert [row.y for row in rows] == [2, None, 6, None, None, 12, None]
    assert [row.z for row in rows] == [-2, None, -6, None, None, -12, None]
    assert [row.w for row in rows] == WORDS
    assert [row.error and (row.error.stage, row.error.type) for row in rows] == [
        None,
        ("preprocess", "ValueError"),
        None,
        ("decode", "SchemaError"),
        ("predict", "ValueError"),
        None,
        ("preprocess", "ValueError"),
    ]
    assert "could not convert string to float: 'two'" in rows[1].error.message
    assert rows[4].error.message.startswith("the model raised ValueError: thirteen")
    assert run.bad_rows == {"preprocess ValueError": 2, "decode SchemaError": 1, "predict ValueError": 1}
    assert run.summary["inference/bad_rows_total"] == 4
    assert run.summary["inference/rows_total"] == 7


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_udf_has_its_reasons_in_the_field_that_returns_declares(spark, flavor) -> None:
    """The struct is exactly what returns says; without a place for the reasons, the driver says how to make one."""
    df = frame(spark, ["1", "two"], "string", "w")
    returns = f"struct<y:float,error:{ERROR}>"
    tag = si.predict_udf(model(unlucky), inputs="w", returns=returns, preprocess=number, on_error="null", flavor=flavor)
    scored = df.select("id", tag("w").alias("p"))
    assert scored.schema["p"].dataType.simpleString() == returns
    good, bad = [row.p for row in sorted(scored.collect())]
    assert (good.y, good.error) == (2, None)
    assert (bad.y, bad.error.stage, bad.error.type) == (None, "preprocess", "ValueError")
    with pytest.raises(
        ConfigError, match=r"returns is 'float': make its last field the error column, returns='struct<prediction:float,error:struct<"
    ):
        si.predict_udf(model(unlucky), inputs="w", returns="float", on_error="null")


def test_the_bad_rows_are_listed(spark, tmp_path) -> None:
    """errors() gives them with all their columns, also of a table that was written; a table without reasons is refused."""
    df = frame(spark, WORDS, "string", "w")
    scored = si.predict(
        df, model(unlucky), inputs="w", outputs="y float", preprocess=number, on_error="null", error_column="why", on_null="null"
    )
    scored.write.parquet(str(tmp_path / "scored"))
    written = spark.read.parquet(str(tmp_path / "scored"))
    found = sorted(si.errors(written, "why").select("w", "why.stage").collect())
    assert [tuple(row) for row in found] == [("13", "predict"), ("seven", "preprocess"), ("two", "preprocess")]
    with pytest.raises(SchemaError, match=r"the error column 'error' is nothing, expected struct<.*on_error='null'"):
        si.errors(written)
    with pytest.raises(SchemaError, match=r"the error column 'w' is string, expected struct<"):
        si.errors(written, "w")


def test_too_many_bad_rows_end_the_job(spark) -> None:
    """The job fails, and says how many, in which partition, and which the last was."""
    scored = si.predict(
        frame(spark, WORDS, "string", "w"),
        model(unlucky),
        inputs="w",
        outputs="y float",
        preprocess=number,
        on_error="null",
        max_errors=2,
        batch_size=2,
        key="w",
    )
    with pytest.raises(
        Exception, match=r"BadRowsError: 3 of the first 6 rows of partition 0 are bad, more than max_errors=2 allows.*w='13'"
    ):
        scored.collect()
