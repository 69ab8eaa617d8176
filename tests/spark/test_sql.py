"""``register``: a model by name in SQL, in both forms of a UDF."""

from __future__ import annotations

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.testing import EchoModel
from tests.spark.kit import FLAVORS, echo, jobs_started, model


@pytest.mark.parametrize("flavor", FLAVORS)
def test_sql_calls_the_model(spark, flavor) -> None:
    """With one and several columns, nulls by policy, a struct that is taken apart, and what register gave works on DataFrames."""
    si.register(spark, "twice", model(lambda x: x * 2), returns="bigint", flavor=flavor, on_null="null")
    tag = si.register(
        spark,
        "Tag_2",
        model(lambda a, b: {"sum": a + b, "text": a.astype(str)}),
        inputs=["a", "b"],
        returns="struct<sum:bigint,text:string>",
    )
    got = spark.sql("SELECT twice(nullif(id, 1)) AS y, tag_2(id, 10).sum AS s FROM range(0, 3, 1, 1)").collect()
    assert [tuple(row) for row in got] == [(0, 10), (None, 11), (4, 12)]
    scored = spark.range(0, 2, 1, 1).select(tag("id", "id").alias("p")).select("p.*").collect()
    assert [tuple(row) for row in scored] == [(0, "0"), (2, "1")]


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize(
    ("inputs", "call", "said"),
    [
        ("x", "id, id", r"tag\(\) was called with 2 columns, expected 1: x"),
        pytest.param(
            "x",
            "",
            r"tag\(\) was called with 0 columns, expected 1: x",
            marks=pytest.mark.spark(since=(4, 0), why="the worker of pyspark 3.5 itself fails on a pandas UDF without columns"),
        ),
        (["a", "b"], "id", r"tag\(\) was called with 1 column, expected 2: a, b"),
        (["a", "b"], "id, id, id", r"tag\(\) was called with 3 columns, expected 2: a, b"),
    ],
)
def test_another_number_of_columns_is_told(spark, flavor, inputs, call, said) -> None:
    """Spark hands over whatever is written in SQL; the worker counts, and says which columns were expected."""
    si.register(spark, "tag", model(echo), inputs=inputs, returns="bigint", flavor=flavor)
    with pytest.raises(Exception, match=rf"SchemaError: {said}"):
        spark.range(0, 3, 1, 1).selectExpr(f"tag({call})").collect()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "expected a name for SQL"),
        ("2nd", "begins with no digit"),
        ("my tag", "letters, digits and _"),
        ("main.tag", "no catalog or schema"),
        (3, "name is 3, expected a name for SQL"),
        ("All", "'All', a word of SQL itself"),
        ("distinct", "'distinct', a word of SQL itself"),
        ("ABS", "'ABS', which is one of Spark's own functions"),
    ],
)
def test_a_wrong_name_is_refused(spark, name, said) -> None:
    """Before the model is read; a built-in function is never hidden."""
    before = jobs_started(spark)
    with pytest.raises(si.ConfigError, match=said):
        si.register(spark, name, si.TorchModel("there is no such file.pt2"), returns="bigint")
    assert jobs_started(spark) == before
    assert spark.sql("SELECT abs(-1)").collect()[0][0] == 1


def test_registering_again_replaces_the_model_and_runs_no_job(spark) -> None:
    """As with spark.udf.register: the newest model answers."""
    for factor in (2, 3):
        before = jobs_started(spark)
        si.register(spark, "times", si.PythonModel(lambda factor=factor: lambda x: x * factor), returns="bigint")
        assert jobs_started(spark) == before
        assert spark.sql("SELECT times(5)").collect()[0][0] == 5 * factor


def test_arguments_are_named_as_the_model_names_its_inputs(spark) -> None:
    """A module's parameters that must be there; a preprocess function before it takes one column; else one, called input."""
    torch = pytest.importorskip("torch")
    added = si.register(spark, "added", si.TorchModel(torch.nn.CosineSimilarity()), returns="float")
    assert repr(added) == "PredictColumn(TorchModel(CosineSimilarity), inputs=['x1', 'x2'], returns=float)"
    got = spark.sql("SELECT added(array(1f, 0f), array(2f, 0f))").collect()
    assert got[0][0] == pytest.approx(1.0)
    before_it = si.register(spark, "pair", si.TorchModel(torch.nn.CosineSimilarity()), returns="float", preprocess=lambda x: (x, x))
    assert "inputs=['input']" in repr(before_it)
    assert "inputs=['input']" in repr(si.register(spark, "echo", si.PythonModel(EchoModel()), returns="bigint"))


def test_wrong_keywords_are_refused_as_predict_udf_does(spark) -> None:
    """The nearest right one is told, and nothing is registered."""
    with pytest.raises(si.ConfigError, match="Did you mean 'batch_size'"):
        si.register(spark, "never", model(np.negative), returns="bigint", bath_size=3)
    assert spark.sql("SHOW USER FUNCTIONS LIKE 'never'").collect() == []
