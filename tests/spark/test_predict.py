"""A DataFrame in, a DataFrame out: kept columns, names, the choice of a road, and what is refused before a job starts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it
from pyspark.sql.types import LongType, StringType, StructField, StructType

import sparkinfer as si
from sparkinfer.testing import EchoModel
from tests.spark.kit import ROADS, echo, frame, jobs_started, model

DOUBLE = model(lambda x: x * 2)


def road_of(scored: Any) -> str:
    """Read the plan: which road was taken."""
    plan = scored._jdf.queryExecution().analyzed().toString()
    assert ("MapInArrow" in plan) != any(name in plan for name in ("arrow_one", "arrow_many", "pandas_one", "pandas_many")), plan
    return "map" if "MapInArrow" in plan else "column"


@pytest.fixture
def no_job(spark) -> Iterator[None]:
    """Hold the block to starting no Spark job."""
    before = jobs_started(spark)
    yield
    assert jobs_started(spark) == before


def test_a_job_is_counted(spark) -> None:
    """The count that the tests below rely on goes up by an action."""
    before = jobs_started(spark)
    spark.range(1).collect()
    assert jobs_started(spark) > before


@pytest.mark.parametrize("road", ROADS)
def test_kept_columns_come_back_with_type_nullability_and_metadata(spark, road) -> None:
    """The schema is the input's own fields, then the outputs, nullable; the values are the input's."""
    row = (
        1,
        "a",
        b"\x00",
        Decimal("1.20"),
        date(2024, 2, 29),
        datetime(2024, 1, 1, 12, tzinfo=timezone.utc),
        {"k": [1, None]},
        ("s", [1.5, None]),
        2.5,
        None,
    )
    ddl = (
        "id long not null, name string, raw binary, money decimal(10,2), day date, at timestamp, map map<string,array<int>>, "
        "struct struct<a:string,b:array<double>>, x double, empty int"
    )
    df = spark.createDataFrame([row, row], ddl).withMetadata("name", {"comment": "who", "ml": {"k": 1}})
    scored = si.predict(df, DOUBLE, inputs="x", outputs="y double, z double", postprocess=lambda y: (y, y + 1), road=road)
    assert scored.schema.fields[:-2] == df.schema.fields
    assert scored.schema["name"].metadata == {"comment": "who", "ml": {"k": 1}}
    assert not scored.schema["id"].nullable
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in scored.schema.fields[-2:]] == [
        ("y", "double", True),
        ("z", "double", True),
    ]
    assert [tuple(r) for r in scored.collect()] == [(*tuple(r), 5.0, 6.0) for r in df.collect()]


@pytest.mark.parametrize("road", ROADS)
def test_keep_chooses_the_columns_and_their_order(spark, road) -> None:
    """keep=[...] gives those and no other; keep=[] the outputs alone; keep=None all."""
    df = spark.range(3).coalesce(1).selectExpr("id", "cast(id as double) as x", "'t' as t")
    assert si.predict(df, DOUBLE, inputs="x", outputs="y double", keep=["t", "id"], road=road).columns == ["t", "id", "y"]
    assert si.predict(df, DOUBLE, inputs="x", outputs="y double", keep="id", road=road).columns == ["id", "y"]
    alone = si.predict(df, DOUBLE, inputs="x", outputs="y double", keep=[], road=road)
    assert alone.columns == ["y"]
    assert [row.y for row in alone.collect()] == [0.0, 2.0, 4.0]
    assert si.predict(df, DOUBLE, inputs="x", outputs="y double", road=road).columns == ["id", "x", "t", "y"]


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", ["a.b", "a b", "a`b", "żółw", "x'\"\\", "select", "_sparkinfer_prediction", "prediction", "1st"])
def test_odd_column_names_are_only_names(spark, road, name) -> None:
    """Dots, blanks, quotes, letters of any script and the library's own names work as input, as kept column and as output."""
    df = frame(spark, [1.0, 2.0], "double").withColumnsRenamed({"x": name, "id": f"{name}.id"})
    quoted = name.replace("`", "``")
    scored = si.predict(df, DOUBLE, inputs=name, outputs=f"`out.{quoted}` double", road=road)
    assert scored.columns == [f"{name}.id", name, f"out.{name}"]
    assert [tuple(row) for row in scored.collect()] == [(0, 1.0, 2.0), (1, 2.0, 4.0)]
    two = si.predict(
        df, model(lambda **x: (x[name], x[name])), inputs={name: name}, outputs=f"`{quoted}` double, `b.c` double", keep=[], road=road
    )
    assert two.columns == [name, "b.c"]
    assert [tuple(row) for row in two.collect()] == [(1.0, 1.0), (2.0, 2.0)]


@pytest.mark.parametrize("road", ROADS)
def test_a_column_may_be_several_inputs_and_a_key(spark, road) -> None:
    """One column under two input names, and as key, travels once and arrives twice."""
    df = frame(spark, [1.0, 2.0], "double")
    scored = si.predict(df, model(lambda a, b: a + b), inputs={"a": "x", "b": "x"}, outputs="y double", key="x", keep=["x"], road=road)
    assert [tuple(row) for row in scored.collect()] == [(1.0, 2.0), (2.0, 4.0)]


@pytest.mark.parametrize("road", ROADS)
def test_an_output_may_take_the_name_of_a_column_that_is_left_out(spark, road) -> None:
    """With keep= the input's name is free for the output."""
    scored = si.predict(frame(spark, [1.0], "double"), DOUBLE, inputs="x", outputs="x double", keep=["id"], road=road)
    assert [tuple(row) for row in scored.collect()] == [(0, 2.0)]


@pytest.mark.parametrize("road", ["auto", *ROADS])
@pytest.mark.parametrize("name", ["x", "ID"])
def test_an_output_that_is_named_as_a_kept_column_is_refused(spark, road, name, no_job) -> None:
    """Spark does not tell upper from lower case, so neither does the check."""
    with pytest.raises(si.SchemaError, match=rf"outputs declares '{name}', but '{name.lower()}' is a kept column: rename the output"):
        si.predict(spark.range(1).selectExpr("id", "1D as x"), DOUBLE, inputs="x", outputs=f"{name} double", road=road)


@pytest.mark.parametrize("road", ["auto", *ROADS])
def test_duplicate_column_names_are_refused_only_where_they_are_named(spark, road) -> None:
    """A name that is there twice cannot be kept or be an input; beside what is named, it does no harm."""
    before = jobs_started(spark)
    df = spark.range(2).selectExpr("id", "1D as x", "1 as t", "2 as t")
    with pytest.raises(si.SchemaError, match=r"keep= names the column 't', which is there 2 times"):
        si.predict(df, DOUBLE, inputs="x", outputs="y double", road=road)
    with pytest.raises(si.SchemaError, match=r"inputs= names the column 't', which is there 2 times"):
        si.predict(df, DOUBLE, inputs="t", outputs="y double", keep=[], road=road)
    assert jobs_started(spark) == before
    scored = si.predict(df, DOUBLE, inputs="x", outputs="y double", keep=["id"], road=road)
    assert [tuple(row) for row in scored.orderBy("id").collect()] == [(0, 2.0), (1, 2.0)]


@pytest.mark.parametrize("road", ["auto", *ROADS])
def test_names_that_differ_only_in_case_are_refused(spark, road, no_job) -> None:
    """For Spark ``x`` and ``X`` are one ambiguous name: said by the library, before Spark's own error."""
    df = spark.range(2).selectExpr("id", "1D as x", "2D as X")
    with pytest.raises(si.SchemaError, match=r"'x' is there 2 times \(x, X: Spark does not tell upper from lower case\)"):
        si.predict(df, DOUBLE, inputs="x", outputs="y double", keep=["id"], road=road)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"inputs": "z"}, si.SchemaError, "inputs= names the column 'z', which is not there"),
        ({"inputs": "xx"}, si.SchemaError, "Did you mean 'x'"),
        ({"inputs": []}, si.ConfigError, "inputs is empty"),
        ({"inputs": 3}, si.ConfigError, "inputs is 3, expected a column name"),
        ({"inputs": ["x", "x"]}, si.ConfigError, "a column that is handed over twice needs a dict"),
        ({"keep": ["nope"]}, si.SchemaError, "keep= names the column 'nope', which is not there"),
        ({"keep": 3}, si.ConfigError, "keep is 3, expected a column name or a list of them"),
        ({"key": "nope"}, si.SchemaError, "key= names the column 'nope'"),
        ({"outputs": "y dooble"}, si.SchemaError, "'dooble'. Did you mean 'double'"),
        ({"outputs": "y"}, si.SchemaError, "cannot read the DDL"),
        ({"outputs": "y double, Y int"}, si.ConfigError, "every name once"),
        ({"outputs": 3}, si.ConfigError, "outputs is 3"),
        ({"road": "air"}, si.ConfigError, "road is 'air', expected 'auto', 'map' or 'column'"),
        ({"scan": "fast"}, si.ConfigError, "scan is 'fast', expected 'spark' or 'direct'"),
        ({"on_null": "skip"}, si.ConfigError, "on_null is 'skip', expected one of 'raise', 'null', 'pass'"),
        ({"on_error": "skip"}, si.ConfigError, "on_error is 'skip', expected one of 'raise', 'null'"),
        ({"batch_size": 0}, si.ConfigError, "batch_size is 0, expected at least 1"),
        ({"bath_size": 3}, si.ConfigError, "Did you mean 'batch_size'"),
        ({"preprocess": 3}, si.ConfigError, "preprocess is int, expected a function"),
        ({"preprocess": echo, "preprocess_batch": echo}, si.ConfigError, "give one of them"),
        ({"resource_profile": object(), "road": "column"}, si.ConfigError, "resource_profile needs road='map'"),
        ({"inputs": ("x", si.TensorSpec("string"))}, si.SchemaError, "'x' is double, and its TensorSpec asks for string"),
        ({"inputs": ("x", si.TensorSpec("float32", (3, 4)))}, si.SchemaError, r"'x' is double, one value a row"),
        ({"inputs": ["x", "s"]}, si.SchemaError, "'s' is a struct.*give it alone"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_an_error_before_any_job(spark, change, error, said, no_job) -> None:
    """The message has what came, what was expected, and what to do; no job was started."""
    df = spark.range(2).selectExpr("id", "1D as x", "named_struct('a', 1) as s")
    arguments: dict[str, Any] = {"inputs": "x", "outputs": "y double", **change}
    with pytest.raises(error, match=said):
        si.predict(df, DOUBLE, **arguments)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("photos/*.png", r"Spark cannot read photos/\*.png"),
        (["a.png"], "a path, or what si.read_files gives"),
        (None, "expected a Spark DataFrame"),
    ],
)
def test_data_that_is_no_dataframe_is_refused(spark, data, said, no_job) -> None:
    """A path, or nothing: the message says what to do."""
    with pytest.raises(si.ConfigError, match=said):
        si.predict(data, DOUBLE, inputs="x", outputs="y double")


def test_a_bare_function_is_no_model(spark, no_job) -> None:
    """The message names the wrappers."""
    with pytest.raises(si.ConfigError, match=r"expected TorchModel, TensorFlowModel, MlflowModel or PythonModel"):
        si.predict(spark.range(1).selectExpr("1D as x"), echo, inputs="x", outputs="y double")


def test_nothing_is_run_before_the_action(spark, ledger, no_job) -> None:
    """predict is lazy: no job, no load."""
    si.predict(spark.range(2).selectExpr("1D as x"), si.PythonModel(EchoModel(ledger)), inputs="x", outputs="y double")
    assert ledger.events() == []


def test_auto_takes_the_map_road_when_what_is_kept_is_little_beside_the_inputs(spark) -> None:
    """A path beside a picture goes by mapInArrow; the picture itself, kept, stays in the JVM."""
    df = spark.range(1).selectExpr("cast(id as string) as path", "cast('p' as binary) as content", "id")
    size = model(lambda x: [len(value) for value in x])

    def taken(**arguments: Any) -> str:
        return road_of(si.predict(df, size, inputs="content", outputs="n int", **arguments))

    assert taken(keep=["path"]) == "map"
    assert taken(keep=[]) == "map"
    assert taken() == "column"
    assert taken(road="map") == "map"
    assert taken(keep=["path"], road="column") == "column"


@pytest.fixture
def odd(spark) -> Any:
    """Kept columns that Arrow cannot carry, beside a wide input."""
    schema = StructType([StructField("id", LongType()), StructField("vector", VectorUDT()), StructField("content", StringType())])
    df = spark.createDataFrame([(0, Vectors.dense(1, 2), "abc")], schema).coalesce(1)
    return df.select("id", "vector", F.expr("make_interval(0, 1, 0, 2)").alias("wait"), F.col("content").cast("binary").alias("content"))


@pytest.mark.spark(since=(4, 0), why="Python knows no calendar interval before")
@pytest.mark.parametrize(("name", "kind"), [("wait", "interval"), ("vector", "vector")])
def test_a_kept_column_that_arrow_cannot_carry_is_refused_on_the_map_road(spark, odd, name, kind, no_job) -> None:
    """The driver's error names the column, its type, keep= and the other road."""
    with pytest.raises(si.SchemaError, match=rf"the kept column '{name}' has the type {kind}.*keep=\[\.\.\.\].*road='column'"):
        si.predict(odd, model(echo), inputs="content", outputs="y binary", keep=["id", name], road="map")


@pytest.mark.spark(since=(4, 0), why="Python knows no calendar interval before")
def test_auto_takes_the_column_road_for_what_arrow_cannot_carry(spark, odd) -> None:
    """Kept columns stay in the JVM there, whatever they are."""
    scored = si.predict(odd, model(echo), inputs="content", outputs="y binary", keep=["vector", "wait"])
    assert road_of(scored) == "column"
    assert [f.dataType for f in scored.schema.fields[:2]] == [odd.schema["vector"].dataType, odd.schema["wait"].dataType]
    row = scored.select("vector", scored["wait"].cast("string").alias("wait"), "y").collect()[0]
    assert (row.vector, row.wait, bytes(row.y)) == (Vectors.dense(1, 2), "1 months 2 days", b"abc")


@pytest.mark.spark(since=(4, 0), why="Python knows no calendar interval before")
def test_a_null_and_a_nested_interval_are_found_too(spark, no_job) -> None:
    """What Arrow cannot carry is found at any depth."""
    df = spark.range(1).selectExpr("id", "1D as x", "array(named_struct('a', make_interval(1))) as deep")
    with pytest.raises(si.SchemaError, match=r"kept column 'deep'"):
        si.predict(df, DOUBLE, inputs="x", outputs="y double", road="map")


@pytest.mark.parametrize(
    "expression",
    [
        "interval '1' day",
        "interval '1' month",
        "map('a', 1)",
        "null",
        pytest.param("parse_json('1')", marks=pytest.mark.spark(since=(4, 0), why="there is no variant before")),
        "cast('a' as char(3))",
    ],
)
def test_any_kept_column_comes_back_or_is_refused_on_the_driver(spark, expression) -> None:
    """With road='auto' every kept column comes back as it was, whatever its type."""
    df = spark.range(2).coalesce(1).selectExpr("id", "1D as x", f"{expression} as odd")
    scored = si.predict(df, DOUBLE, inputs="x", outputs="y double")
    assert scored.schema["odd"] == df.schema["odd"]
    assert scored.selectExpr("cast(odd as string)").collect() == df.selectExpr("cast(odd as string)").collect()
    try:
        by_map = si.predict(df, DOUBLE, inputs="x", outputs="y double", road="map")
    except si.SchemaError as error:
        assert "keep=[...]" in str(error)  # noqa: PT017 - either this or the same rows
    else:
        assert by_map.selectExpr("cast(odd as string)").collect() == df.selectExpr("cast(odd as string)").collect()


@pytest.mark.spark(since=(4, 0), why="Python knows no calendar interval before")
@pytest.mark.parametrize("road", ROADS)
def test_a_key_that_cannot_travel_is_refused_on_the_driver(spark, road, no_job) -> None:
    """A key is sent to the worker for messages, so it must be of a type that can be."""
    df = spark.range(1).selectExpr("id", "1D as x", "make_interval(1) as wait")
    with pytest.raises(si.SchemaError, match=r"key.*'wait'.*interval"):
        si.predict(df, DOUBLE, inputs="x", outputs="y double", key="wait", keep=["id"], road=road)


@pytest.mark.spark(since=(4, 0), why="mapInArrow takes no profile before")
@pytest.mark.parametrize("road", ["auto", "map"])
def test_a_resource_profile_takes_the_map_road(spark, road) -> None:
    """A stage of its own needs mapInArrow; Spark itself refuses a local session's when the job runs (``test_cluster.py`` has a cluster's)."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(1)).build
    df = spark.range(2).coalesce(1).selectExpr("id", "cast(id as double) as x")
    scored = si.predict(df, DOUBLE, inputs="x", outputs="y double", resource_profile=profile, road=road)
    assert road_of(scored) == "map"
    with pytest.raises(Exception, match="TaskResourceProfiles are only supported for Standalone, Yarn and Kubernetes"):
        scored.collect()


@pytest.mark.parametrize("road", ROADS)
def test_predictions_chain(spark, road) -> None:
    """A scored frame is a frame: it can be scored again, with the first prediction as input."""
    df = frame(spark, [1.0, 2.0, 3.0], "double")
    once = si.predict(df, DOUBLE, inputs="x", outputs="y double", road=road, batch_size=2)
    twice = si.predict(once, DOUBLE, inputs="y", outputs="z double", road=road, batch_size=1)
    assert [tuple(row)[1:] for row in twice.collect()] == [(1.0, 2.0, 4.0), (2.0, 4.0, 8.0), (3.0, 6.0, 12.0)]


@pytest.mark.parametrize("road", ROADS)
def test_functions_run_around_the_model(spark, road) -> None:
    """preprocess works on a row, preprocess_batch on a batch, postprocess on what the model gave."""
    df = frame(spark, ["a", "bbb"], "string")
    by_row = si.predict(df, DOUBLE, inputs="x", outputs="n int", preprocess=len, postprocess=lambda y: y + 1, road=road)
    assert [row.n for row in by_row.collect()] == [3, 7]

    def lengths(texts: Any) -> list[int]:
        return [len(text) for text in texts]

    by_batch = si.predict(df, DOUBLE, inputs="x", outputs="n int", preprocess_batch=lengths, road=road)
    assert [row.n for row in by_batch.collect()] == [2, 6]


@pytest.mark.parametrize("road", ROADS)
def test_an_error_in_a_function_names_the_row_its_key_and_the_first_cause(spark, road) -> None:
    """Column, partition, row, key and the cause's type and text."""
    df = frame(spark, ["1", "x2", "3"], "string")
    scored = si.predict(df, model(echo), inputs="x", outputs="n int", preprocess=int, key="id", keep=["id"], road=road)
    with pytest.raises(Exception, match=r"(?s)preprocess raised ValueError: invalid literal.*column 'x', partition 0, .*row 1 \(id=1\)"):
        scored.collect()


@pytest.mark.parametrize("road", ROADS)
def test_temp_views_unions_joins_and_caches_see_the_same_rows(spark, road) -> None:
    """A scored frame can be used as any other."""
    df = spark.range(20).repartition(3).selectExpr("id", "cast(id as double) as x")
    scored = si.predict(df, DOUBLE, inputs="x", outputs="y double", keep=["id"], road=road, batch_size=3)
    scored.createOrReplaceTempView(f"scored_{road}")
    assert spark.table(f"scored_{road}").filter("y = 2 * id").agg(F.count("*"), F.sum("y")).collect()[0][:] == (20, 380.0)
    assert scored.union(scored).groupBy("id").count().filter("count = 2").count() == 20
    assert scored.join(df, "id").filter("y = 2 * x").count() == 20
    cached = scored.cache()
    try:
        assert sorted(row.y for row in cached.collect()) == [2.0 * i for i in range(20)]
    finally:
        cached.unpersist()
