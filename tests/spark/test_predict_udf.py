"""A model as a column: both flavors, any number of columns, SQL, and how often Spark may run it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

import sparkinfer as si
from sparkinfer.testing import EchoModel
from tests.spark.kit import FLAVORS, echo, frame, jobs_started, model, told

pytestmark = pytest.mark.parametrize("flavor", FLAVORS)


def test_one_column(spark, flavor) -> None:
    """withColumn, by name and by Column."""
    double = si.predict_udf(model(lambda x: x * 2), inputs="x", returns="double", flavor=flavor, batch_size=2)
    df = frame(spark, [1.0, 2.0, 3.0], "double")
    assert [row.y for row in df.withColumn("y", double("x")).collect()] == [2.0, 4.0, 6.0]
    assert [row.y for row in df.withColumn("y", double(F.col("x") + 1)).collect()] == [4.0, 6.0, 8.0]


def test_a_call_without_arguments_takes_the_named_columns(spark, flavor) -> None:
    """inputs= names them, with any letters."""
    df = frame(spark, [1.0, 2.0], "double", column="a.b c")
    double = si.predict_udf(model(lambda x: x * 2), inputs="a.b c", returns="double", flavor=flavor)
    assert [row[0] for row in df.select(double()).collect()] == [2.0, 4.0]


def test_several_columns_positional_and_named(spark, flavor) -> None:
    """As many columns as inputs names, in its order; each with its own dtype."""
    df = spark.createDataFrame([(1, "a", 0.5, [1.0, 2.0])] * 3, "i int, s string, f float, v array<double>").coalesce(1)
    positional = si.predict_udf(model(told), inputs=["i", "s", "f", "v"], returns="string", flavor=flavor, batch_size=2)
    assert {row[0] for row in df.select(positional("i", "s", "f", "v")).collect()} == {"0:int32 1:str 2:float32 3:float64[2]"}
    named = si.predict_udf(model(told), inputs={"ids": "i", "text": "s"}, returns="string", flavor=flavor)
    assert {row[0] for row in df.select(named()).collect()} == {"ids:int32 text:str"}


@pytest.mark.parametrize("given", [(), ("i",), ("i", "f", "s")])
def test_a_wrong_number_of_columns_is_refused_at_the_call(spark, flavor, given) -> None:
    """The message names the columns that are expected; a call without any takes them."""
    double = si.predict_udf(model(lambda a, b: a + b), inputs=["a", "b"], returns="double", flavor=flavor)
    if not given:
        assert double() is not None
        return
    with pytest.raises(si.ConfigError, match=rf"{len(given)} columns? w(as|ere) given, expected 2: a, b"):
        double(*given)


def test_structs_come_back_by_field_name(spark, flavor) -> None:
    """Several heads are one struct; its fields can be selected."""

    def heads(x: np.ndarray) -> Any:
        return {"scores": np.stack([x, -x], axis=1), "label": [f"n{value:.0f}" for value in x]}

    tag = si.predict_udf(model(heads), inputs="x", returns="struct<label:string,scores:array<float>>", flavor=flavor)
    scored = frame(spark, [1.0, 2.0], "double").withColumn("p", tag("x"))
    assert [tuple(row) for row in scored.select("p.*").collect()] == [("n1", [1.0, -1.0]), ("n2", [2.0, -2.0])]
    assert scored.schema["p"].dataType.simpleString() == "struct<label:string,scores:array<float>>"


def test_a_tuple_fills_a_struct_in_order(spark, flavor) -> None:
    """Heads without names go to the fields in order."""
    tag = si.predict_udf(model(lambda x: (x, x * 2)), inputs="x", returns="struct<a:double,b:double>", flavor=flavor)
    assert frame(spark, [1.0], "double").select(tag("x").alias("p")).select("p.*").collect()[0][:] == (1.0, 2.0)


def test_several_models_in_one_query(spark, flavor) -> None:
    """Each column has its own model, batch size and nulls, also one over the other."""
    double = si.predict_udf(model(lambda x: x * 2), inputs="x", returns="double", flavor=flavor, batch_size=1)
    negate = si.predict_udf(model(lambda x: -x), inputs="x", returns="double", flavor=flavor, batch_size=3, on_null="null")
    df = frame(spark, [1.0, 2.0, 3.0, 4.0], "double")
    got = df.select(double("x"), negate("x"), double(negate("x")), negate(F.when(F.col("id") > 1, F.col("x")))).collect()
    assert [tuple(row) for row in got] == [(2.0 * i, -1.0 * i, -2.0 * i, -1.0 * i if i > 2 else None) for i in (1, 2, 3, 4)]


def test_registered_for_sql(spark, flavor) -> None:
    """spark.udf.register takes the ``udf`` attribute; SQL calls it by name, with one and several columns."""
    double = si.predict_udf(model(lambda x: x * 2), inputs="x", returns="double", flavor=flavor)
    total = si.predict_udf(model(lambda a, b: a + b), inputs=["a", "b"], returns="bigint", flavor=flavor)
    spark.udf.register("double_it", double.udf)
    spark.udf.register("total_of", total.udf)
    got = spark.sql("select id, double_it(cast(id as double)) as y, total_of(id, id * 10) as t from range(0, 5, 1, 1)").collect()
    assert [tuple(row) for row in got] == [(i, 2.0 * i, 11 * i) for i in range(5)]


def test_a_struct_registered_for_sql(spark, flavor) -> None:
    """A struct column goes in, a struct comes out, in SQL."""
    swap = si.predict_udf(model(lambda a, b: {"a": b, "b": a}), inputs="s", returns="struct<a:int,b:int>", flavor=flavor)
    spark.udf.register("swap", swap.udf)
    assert spark.sql("select s.* from (select swap(named_struct('a', 1, 'b', 2)) as s)").collect()[0][:] == (2, 1)


def test_the_model_runs_once_under_a_filter_and_as_spark_likes_when_deterministic(spark, flavor, ledger) -> None:
    """Nondeterministic by default; deterministic=True lets Spark copy the call and push a filter below it."""
    df = spark.range(0, 40, 1, 2).selectExpr("id", "cast(id as double) as x")

    def seen(*, deterministic: bool, condition: str) -> int:
        before = sum(ledger.rows("predict"))
        tag = si.predict_udf(si.PythonModel(EchoModel(ledger)), inputs="x", returns="double", flavor=flavor, deterministic=deterministic)
        df.withColumn("y", tag("x")).filter(condition).write.format("noop").mode("overwrite").save()
        return sum(ledger.rows("predict")) - before

    assert seen(deterministic=False, condition="y > 10") == 40
    assert seen(deterministic=False, condition="id < 10") == 40
    assert seen(deterministic=True, condition="id < 10") == 10
    assert seen(deterministic=True, condition="y > 10") > 40


def test_a_deterministic_column_can_be_aggregated_at_once(spark, flavor) -> None:
    """deterministic=True allows sum(tag(x)); by default it takes a withColumn before."""
    df = frame(spark, [1.0, 2.0, 3.0], "double")
    sure = si.predict_udf(model(lambda x: x * 2), inputs="x", returns="double", flavor=flavor, deterministic=True)
    assert df.agg(F.sum(sure("x"))).collect()[0][0] == 12.0
    by_default = si.predict_udf(model(lambda x: x * 2), inputs="x", returns="double", flavor=flavor)
    assert df.withColumn("y", by_default("x")).agg(F.sum("y")).collect()[0][0] == 12.0
    with pytest.raises(Exception, match=r"(?i)non-?deterministic"):
        df.agg(F.sum(by_default("x"))).collect()


def test_nan_and_null_stay_apart_in_the_input(spark, flavor) -> None:
    """A NaN is handed on; a null follows on_null."""
    df = frame(spark, [1.0, math.nan, None], "double")
    nan = si.predict_udf(model(np.isnan), inputs="x", returns="boolean", flavor=flavor, on_null="null")
    assert [row[0] for row in df.select(nan("x")).collect()] == [False, True, None]


def test_an_error_names_column_partition_and_row(spark, flavor) -> None:
    """As on the other road."""
    df = frame(spark, ["1", "x2"], "string")
    number = si.predict_udf(model(echo), inputs="x", returns="int", flavor=flavor, preprocess=int)
    with pytest.raises(Exception, match=r"preprocess raised ValueError: invalid literal.*column 'x', partition 0, .*row 1"):
        df.select(number()).collect()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"returns": "dooble"}, si.SchemaError, "Did you mean 'double'"),
        ({"returns": 3}, si.ConfigError, "returns is 3, expected a type"),
        ({"flavor": "spicy"}, si.ConfigError, "flavor is 'spicy', expected 'auto', 'arrow' or 'pandas'"),
        ({"on_null": "skip"}, si.ConfigError, "on_null is 'skip'"),
        ({"inputs": []}, si.ConfigError, "inputs is empty"),
        ({"bath_size": 3}, si.ConfigError, "Did you mean 'batch_size'"),
        ({"keep": ["id"]}, si.ConfigError, "'keep' is neither an argument nor a setting"),
    ],
)
def test_wrong_arguments_are_refused_before_any_job(spark, flavor, change, error, said) -> None:
    """The message has what came and what was expected."""
    before = jobs_started(spark)
    with pytest.raises(error, match=said):
        si.predict_udf(model(echo), **{"inputs": "x", "returns": "double", "flavor": flavor, **change})
    assert jobs_started(spark) == before


def test_a_type_that_no_model_takes_is_told_by_name(spark, flavor) -> None:
    """predict_udf knows no types before it runs: the worker's message names the column and what to do."""
    tag = si.predict_udf(model(echo), inputs="m", returns="double", flavor=flavor)
    with pytest.raises(Exception, match=r"the column.* map<.*, which no model takes"):
        spark.sql("select map('a', 1) as m").select(tag()).collect()


def test_it_shows_what_it_is(spark, flavor) -> None:
    """repr has the model, the inputs and the type."""
    tag = si.predict_udf(si.PythonModel(EchoModel()), inputs="x", returns="double", flavor=flavor)
    assert repr(tag) == "PredictColumn(PythonModel(EchoModel), inputs=['x'], returns=double)"


def test_the_model_itself_can_be_registered_for_sql(spark, flavor):
    """spark.udf.register(name, tag) takes what predict_udf gave, and SQL gets the declared type."""
    tag = si.predict_udf(si.PythonModel(lambda: lambda x: x * 2), inputs="x", returns="bigint", flavor=flavor)
    spark.udf.register("doubled_by_a_model", tag)
    spark.range(3).withColumnRenamed("id", "x").createOrReplaceTempView("three_rows")
    answered = spark.sql("SELECT x, doubled_by_a_model(x) AS y FROM three_rows ORDER BY x")
    assert answered.schema["y"].dataType.simpleString() == "bigint"
    assert [row.y for row in answered.collect()] == [0, 2, 4]


def test_the_message_says_where_in_the_users_code_it_was_raised(spark, flavor):
    """Spark shows the driver no chained cause, so the message itself names the user's function, file and line."""

    def helper(value: int) -> int:
        return {}["missing"] + value

    def preprocess(value: int) -> int:
        return helper(value)

    tag = si.predict_udf(si.PythonModel(lambda: lambda x: x), inputs="id", returns="bigint", preprocess=preprocess, flavor=flavor)
    with pytest.raises(Exception, match=r"KeyError: 'missing'.*Raised in helper \(.*\d+\), called from preprocess \(.*\d+\)"):
        spark.range(3).select(tag("id")).collect()
