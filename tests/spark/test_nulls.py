"""What a null in an input column means, on every road."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.testing import EchoModel
from tests.spark.kit import FLAVORS, ROADS, WAYS, frame, model, score


def row_sum(x: np.ndarray) -> np.ndarray:
    """Add up each row; refuses what C04 forbids: an object array, and a quiet NaN."""
    assert x.dtype == np.float32, x.dtype
    assert not np.isnan(x).any(), "a NaN reached the model"
    return x.sum(axis=1)


PLACES = [
    ([None, [1.0, 2.0], [3.0, 4.0]], [None, 3.0, 7.0], 0, "the value is null"),
    ([[1.0, 2.0], None, [3.0, 4.0]], [3.0, None, 7.0], 1, "the value is null"),
    ([[3.0, 4.0], [1.0, None]], [7.0, None], 1, "there is a null inside the array"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("values", "expected", "row", "said"), PLACES, ids=["first", "middle", "inside"])
def test_a_null_array_is_an_error_with_its_place_or_a_null_prediction(spark, way, values, expected, row, said) -> None:
    """C04: the default names column, partition and row before the model is called; 'null' spares the model that row."""
    df = frame(spark, values, "array<float>")
    with pytest.raises(Exception, match=rf"{said}, at column 'x', partition 0, row {row}\b.*on_null='null'"):
        score(df, model(row_sum), way, inputs="x", returns="double")
    assert score(df, model(row_sum), way, inputs="x", returns="double", on_null="null") == expected


@pytest.mark.parametrize("way", WAYS)
def test_the_model_is_not_called_before_a_null_is_refused(spark, way, ledger) -> None:
    """C04: the error comes before the model sees a row of that batch."""
    with pytest.raises(Exception, match="the value is null"):
        score(frame(spark, [1.0, None], "double"), si.PythonModel(EchoModel(ledger)), way, inputs="x", returns="double")
    assert ledger.count("predict") == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("ddl", "returns"),
    [
        ("double", "double"),
        ("bigint", "bigint"),
        ("string", "string"),
        ("array<float>", "array<float>"),
        ("struct<a:int>", "int"),
        ("boolean", "boolean"),
    ],
)
def test_a_partition_of_nulls_calls_no_model(spark, way, ddl, returns, ledger) -> None:
    """C04: all null gives all null; nothing is loaded."""
    df = frame(spark, [None, None, None], ddl)
    got = score(df, si.PythonModel(EchoModel(ledger)), way, inputs="x", returns=returns, on_null="null", batch_size=2)
    assert got == [None, None, None]
    assert ledger.events() == []


def text_type(texts: np.ndarray) -> list[str]:
    """Say what each text is."""
    return ["NULL" if text is None else f"{type(text).__name__}:{text}" for text in texts]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("values", "passed"), [(["a", "b", None], ["str:a", "str:b", "NULL"]), ([None, None], ["NULL", "NULL"])], ids=["some", "all"]
)
def test_a_null_text_is_none_for_the_model_or_follows_the_policy(spark, way, values, passed) -> None:
    """C06: never the words None or nan, never a float: None with 'pass', an error with its place, or a null prediction."""
    df = frame(spark, values, "string")
    assert score(df, model(text_type), way, inputs="x", returns="string", on_null="pass") == passed
    assert score(df, model(text_type), way, inputs="x", returns="string", on_null="null") == [
        None if value is None else f"str:{value}" for value in values
    ]
    with pytest.raises(Exception, match=rf"the value is null, at column 'x', partition 0, row {values.index(None)}"):
        score(df, model(text_type), way, inputs="x", returns="string")


@pytest.mark.parametrize("way", WAYS)
def test_passed_nulls_are_nan_in_floats_and_refused_in_integers(spark, way) -> None:
    """on_null='pass' hands on NaN where the dtype has one; an integer has none, and that is said."""
    got = score(
        frame(spark, [1.5, None], "float"),
        model(lambda x: [f"{x.dtype} {v}" for v in x]),
        way,
        inputs="x",
        returns="string",
        on_null="pass",
    )
    assert got == ["float32 1.5", "float32 nan"]
    inner = score(
        frame(spark, [[1.0, None]], "array<double>"),
        model(np.isnan),
        way,
        inputs="x",
        returns="array<boolean>",
        on_null="pass",
    )
    assert inner == [[False, True]]
    with pytest.raises(Exception, match=r"a null cannot be handed to a model as int32: say on_null='null'.*row 1"):
        score(frame(spark, [1, None], "int"), model(lambda x: x), way, inputs="x", returns="int", on_null="pass")


@pytest.mark.parametrize("way", WAYS)
def test_a_nan_is_a_value_under_every_policy(spark, way) -> None:
    """NaN is no null, at the top and inside an array."""
    for policy in ("raise", "null", "pass"):
        flat = score(frame(spark, [1.0, math.nan], "double"), model(np.isnan), way, inputs="x", returns="boolean", on_null=policy)
        assert flat == [False, True], policy
        inner = score(
            frame(spark, [[1.0, math.nan]], "array<double>"), model(np.isnan), way, inputs="x", returns="array<boolean>", on_null=policy
        )
        assert inner == [[False, True]], policy


@pytest.mark.parametrize("way", WAYS)
def test_a_null_in_any_of_several_columns_counts(spark, way) -> None:
    """The row is spared if one input is null, and the error names that one; other columns' nulls do not matter."""
    df = spark.createDataFrame(
        [(0, 1.0, 1, None), (1, None, 2, "t"), (2, 3.0, None, None)], "id long, a double, b int, note string"
    ).coalesce(1)
    both = model(lambda a, b: a + b)
    assert score(df, both, way, inputs=["a", "b"], returns="double", on_null="null") == [2.0, None, None]
    with pytest.raises(Exception, match=r"at column 'a', partition 0, row 1\b"):
        score(df, both, way, inputs=["a", "b"], returns="double")


@pytest.mark.parametrize("way", WAYS)
def test_a_null_in_a_field_of_a_struct_is_named(spark, way) -> None:
    """The message has the field; 'null' spares that row, and integers beside it stay integers."""
    by_pandas = way == "udf-pandas" or (way == "column" and FLAVORS == ("pandas",))
    large = 2**53 - 1 if by_pandas else 2**53 + 1  # pandas cannot hold more beside a null: that is an error, as for columns
    df = frame(spark, [(large, "a"), (2, None), None], "struct<n:bigint,t:string>")
    seen = model(lambda n, t: [f"{n.dtype} {v}" for v in n])
    assert score(df, seen, way, inputs="x", returns="string", on_null="null") == [f"int64 {large}", None, None]
    with pytest.raises(Exception, match=r"field 't' is null, at column 'x', partition 0, row 1\b"):
        score(df, seen, way, inputs="x", returns="string")


@pytest.mark.parametrize("way", WAYS)
def test_a_null_integer_field_of_a_struct(spark, way) -> None:
    """An integer field stays an integer beside its nulls."""
    df = frame(spark, [(7,), (None,)], "struct<n:int>")
    assert score(df, model(lambda n: [f"{n.dtype} {v}" for v in n]), way, inputs="x", returns="string", on_null="null") == ["int32 7", None]


@pytest.mark.parametrize("way", WAYS)
def test_integers_with_a_null_inside_the_array(spark, way) -> None:
    """The other rows' arrays stay integers."""
    df = frame(spark, [[1, 2], [3, None]], "array<int>")
    assert score(df, model(lambda x: [f"{x.dtype} {v.sum()}" for v in x]), way, inputs="x", returns="string", on_null="null") == [
        "int32 3",
        None,
    ]


def png(shade: int) -> bytes:
    """Make a 2x2 grey PNG."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (2, 2), shade).save(file, "PNG")
    return file.getvalue()


def pixels(content: bytes) -> np.ndarray:
    """Decode a picture."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(content)), dtype=np.float32)


@pytest.mark.parametrize("way", WAYS)
def test_a_null_image_is_a_null_prediction(spark, way) -> None:
    """C15: only that row's, and preprocess never sees it."""
    pytest.importorskip("PIL")
    df = frame(spark, [png(10), None, png(30)], "binary", column="img")
    mean = model(lambda x: x.mean(axis=(1, 2)))
    assert score(df, mean, way, inputs="img", returns="double", preprocess=pixels, on_null="null") == [10.0, None, 30.0]


@pytest.mark.parametrize("road", ROADS)
def test_a_null_image_is_an_error_with_the_path_when_told_the_key(spark, road) -> None:
    """C15: column, row, and the value of the key column, whether it is kept or not."""
    pytest.importorskip("PIL")
    rows = [(f"{name}.png", content) for name, content in (("a", png(10)), ("b", None), ("c", png(30)))]
    df = spark.createDataFrame(rows, "path string, img binary").coalesce(1)
    for keep in (["path"], []):
        scored = si.predict(
            df, model(lambda x: x.mean(axis=(1, 2))), inputs="img", outputs="m double", preprocess=pixels, key="path", keep=keep, road=road
        )
        with pytest.raises(Exception, match=r"at column 'img', partition 0, row 1 \(path='b\.png'\)"):
            scored.collect()


@pytest.mark.parametrize("road", ROADS)
def test_several_keys_and_null_keys(spark, road) -> None:
    """Keys may be several, and null themselves."""
    df = spark.createDataFrame([(1, None, "a", None)], "id long, x double, k string, m int").coalesce(1)
    scored = si.predict(df, model(lambda x: x), inputs="x", outputs="y double", key=["k", "m"], keep=["id"], road=road)
    with pytest.raises(Exception, match=r"row 0 \(k='a', m=None\)"):
        scored.collect()


@pytest.mark.parametrize("way", WAYS)
def test_nulls_in_the_kept_columns_are_none_of_the_models_business(spark, way) -> None:
    """Only input columns count."""
    df = spark.createDataFrame([(0, 1.0, None), (1, 2.0, None)], "id long, x double, note string").coalesce(1)
    assert score(df, model(lambda x: x), way, inputs="x", returns="double") == [1.0, 2.0]


@pytest.mark.parametrize("way", WAYS)
def test_nulls_everywhere_over_batches_and_chunks(spark, way) -> None:
    """Every third row is null, batches cross chunk borders: each prediction is on its own row."""
    df = spark.range(0, 100, 1, 3).selectExpr("id", "case when id % 3 = 0 then null else id end as x")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    try:
        got: list[Any] = score(df, model(lambda x: x * 2), way, inputs="x", returns="bigint", on_null="null", batch_size=4)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert got == [None if i % 3 == 0 else 2 * i for i in range(100)]
