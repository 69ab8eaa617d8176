"""Every type that goes in reaches the model as it should, and every type that comes out is exactly the declared one."""

from __future__ import annotations

import math
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from pyspark.ml.linalg import Matrices, MatrixUDT, Vectors, VectorUDT
from pyspark.mllib.linalg import Vectors as OldVectors
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DoubleType, LongType, StructField, StructType, UserDefinedType

import sparkinfer as si
from tests.spark.kit import FLAVORS, PANDAS_WAYS, ROADS, WAYS, echo, frame, jobs_started, model, score, told

NOON = datetime(2024, 2, 29, 12, 0, 1, 250_000, tzinfo=timezone.utc)

SCALARS = [
    ("tinyint", -128, "int8"),
    ("smallint", 32_767, "int16"),
    ("int", 2**31 - 1, "int32"),
    ("bigint", 2**63 - 1, "int64"),
    ("float", 1.5, "float32"),
    ("double", 0.1, "float64"),
    ("boolean", True, "bool"),
    ("string", "żółw", "str"),
    ("binary", b"\x00\xff\x00", "bytes"),
    ("date", date(2024, 2, 29), "datetime64[D]"),
    ("timestamp_ntz", datetime(1969, 12, 31, 23, 59, 59, 999_999), "datetime64[us]"),  # noqa: DTZ001 - it has no zone
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("ddl", "value", "seen"), SCALARS, ids=[case[0] for case in SCALARS])
def test_a_scalar_column_reaches_the_model_in_its_own_dtype_and_comes_back_equal(spark, way, ddl, value, seen) -> None:
    """A model that gives back what it gets returns the column, and saw the NumPy dtype of the column's type."""
    df = frame(spark, [value] * 3, ddl)

    def both(x: np.ndarray) -> dict[str, Any]:
        return {"value": x, "seen": told(x)}

    got = score(df, model(both), way, inputs="x", returns=f"struct<value:{ddl},seen:string>", batch_size=2)
    assert [row.value for row in got] == [value] * 3
    assert {row.seen for row in got} == {seen}


@pytest.mark.parametrize("way", WAYS)
def test_a_timestamp_reaches_the_model_in_utc_whatever_the_sessions_zone(spark, way) -> None:
    """An instant is an instant: the session's time zone moves nothing."""
    df = spark.sql("select 0L as id, timestamp'2024-02-29 12:00:01.25 UTC' as x").coalesce(1)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        got = score(df, model(lambda x: x.astype("datetime64[us]").astype(np.int64)), way, inputs="x", returns="bigint")
        back = score(df, model(echo), way, inputs="x", returns="timestamp")
        same = df.collect()[0].x
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert got == [int(NOON.timestamp() * 1_000_000)]
    assert back == [same]


@pytest.mark.parametrize("way", WAYS)
def test_a_decimal_reaches_the_model_as_float64(spark, way) -> None:
    """No framework has decimals: the model gets the nearest double."""
    df = frame(spark, [Decimal("1.25"), Decimal("-0.50")], "decimal(10,2)")
    assert score(df, model(lambda x: [f"{x.dtype} {value}" for value in x]), way, inputs="x", returns="string") == [
        "float64 1.25",
        "float64 -0.5",
    ]


@pytest.mark.parametrize("way", WAYS)
def test_integers_beyond_two_to_the_53rd_stay_exact(spark, way) -> None:
    """An id is no float: 2**53 + 1 is not 2**53."""
    values = [2**53 + 1, 2**63 - 1, -(2**63)]
    assert score(frame(spark, values, "bigint"), model(echo), way, inputs="x", returns="bigint") == values


@pytest.mark.parametrize("way", ROADS if "arrow" in FLAVORS else ["map"])  # through pandas it is an error: see below
def test_integers_beyond_two_to_the_53rd_stay_exact_beside_nulls(spark, way) -> None:
    """A null makes its neighbours no floats."""
    values = [2**53 + 1, None, -(2**53) - 1]
    assert score(frame(spark, values, "bigint"), model(echo), way, inputs="x", returns="bigint", on_null="null") == values


def test_the_pandas_flavor_keeps_integers_beside_nulls_or_says_that_it_cannot(spark) -> None:
    """pandas rounds integers beside nulls: within 2**53 they come back as integers, beyond it is an error and no wrong answer."""
    small = frame(spark, [2**53 - 1, None, 7], "bigint")
    got = score(small, model(lambda x: [f"{x.dtype} {value}" for value in x]), "udf-pandas", inputs="x", returns="string", on_null="null")
    assert got == [f"int64 {2**53 - 1}", None, "int64 7"]
    with pytest.raises(Exception, match=r"beyond 2\*\*53 beside nulls"):
        score(frame(spark, [2**53 + 1, None], "bigint"), model(echo), "udf-pandas", inputs="x", returns="bigint", on_null="null")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("ddl", "shape", "wrap"),
    [
        ("array<double>", None, lambda i: [i, i + 1, i + 2, i + 3]),
        ("array<double>", (2, 2), lambda i: [i, i + 1, i + 2, i + 3]),
        ("array<array<double>>", None, lambda i: [[i, i + 1], [i + 2, i + 3]]),
        ("array<array<array<double>>>", None, lambda i: [[[i, i + 1], [i + 2, i + 3]]]),
    ],
    ids=["flat", "reshaped", "2 levels", "3 levels"],
)
def test_arrays_reach_the_model_as_one_contiguous_tensor_in_row_major_order(spark, way, ddl, shape, wrap) -> None:
    """C08: nested to any depth or flat and declared, the model gets (rows, ...) and not a series of small arrays."""
    df = frame(spark, [wrap(float(i)) for i in range(5)], ddl)
    depth = 1 if shape is None and ddl == "array<double>" else 2 if "array<array<array" not in ddl else 3

    def total(x: np.ndarray) -> dict[str, np.ndarray]:
        assert x.dtype == np.float64, x.dtype
        assert x.flags.c_contiguous
        assert x.ndim == depth + 1, x.shape
        return {"total": x.reshape(len(x), -1).sum(axis=1), "second": x.reshape(len(x), -1)[:, 1]}

    inputs = "x" if shape is None else ("x", si.TensorSpec(None, shape))
    got = score(df, model(total), way, inputs=inputs, returns="struct<total:double,second:double>", batch_size=3)
    assert [(row.total, row.second) for row in got] == [(4.0 * i + 6, i + 1.0) for i in range(5)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("ddl", "value", "seen"),
    [
        ("array<int>", [1, 2], "int32[2]"),
        ("array<boolean>", [True, False], "bool[2]"),
        ("array<bigint>", [2**53 + 1, 2], "int64[2]"),
        ("array<tinyint>", [1], "int8[1]"),
        ("array<float>", [0.5], "float32[1]"),
    ],
)
def test_the_items_of_an_array_keep_their_dtype(spark, way, ddl, value, seen) -> None:
    """Integers in arrays are integers for the model, exact ones."""

    def both(x: np.ndarray) -> dict[str, Any]:
        return {"value": x, "seen": told(x)}

    got = score(frame(spark, [value, value], ddl), model(both), way, inputs="x", returns=f"struct<value:{ddl},seen:string>")
    assert [row.value for row in got] == [value, value]
    assert {row.seen for row in got} == {seen}


@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_text_reach_the_model_as_text(spark, way) -> None:
    """Text in arrays stays text."""
    df = frame(spark, [["a", "b"], ["c", "None"]], "array<string>")
    assert score(df, model(lambda x: ["-".join(row) for row in x.tolist()]), way, inputs="x", returns="string") == ["a-b", "c-None"]


@pytest.mark.parametrize("way", WAYS)
def test_a_declared_dtype_is_what_the_model_gets(spark, way) -> None:
    """C11: floats are cast to the declared float type, and integers to a wider one."""
    df = frame(spark, [[0.1, 0.2]], "array<double>")
    assert score(df, model(told), way, inputs=("x", si.TensorSpec("float32")), returns="string") == ["float32[2]"]
    assert score(df, model(told), way, inputs=("x", si.TensorSpec("float16")), returns="string") == ["float16[2]"]
    ints = frame(spark, [3], "int")
    assert score(ints, model(told), way, inputs=("x", si.TensorSpec("int64")), returns="string") == ["int64"]


@pytest.mark.parametrize("way", WAYS)
def test_an_integer_that_does_not_fit_the_declared_dtype_is_an_error_with_its_row(spark, way) -> None:
    """A cast never changes an integer."""
    with pytest.raises(Exception, match=r"asked for as int8, but 300 is none.*row 1"):
        score(frame(spark, [1, 300], "int"), model(echo), way, inputs=("x", si.TensorSpec("int8")), returns="int")


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_unequal_length_are_an_error_with_column_row_and_both_lengths(spark, way) -> None:
    """C09: without padding asked for, ragged rows are refused with their place."""
    df = frame(spark, [[1, 1], [2], [3, 3, 3]], "array<int>", column="ids")
    with pytest.raises(Exception, match=r"expected 2, found 1.*column 'ids', partition 0, .*row 1"):
        score(df, model(echo), way, inputs="ids", returns="array<int>")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_padding_hands_the_mask_and_the_lengths_to_the_model(spark, way, batch_size) -> None:
    """C09: padded to the batch's longest, the masked sum is the same for every batch size."""
    df = frame(spark, [[1, 1], [2], [3, 3, 3]], "array<int>", column="ids")

    def masked(ids: np.ndarray, mask: np.ndarray, size: np.ndarray) -> dict[str, np.ndarray]:
        return {"total": (ids * mask).sum(axis=1), "held": mask.sum(axis=1), "size": size}

    spec = si.TensorSpec("int64", pad=0, mask="mask", lengths="size")
    got = score(
        df, model(masked), way, inputs={"ids": ("ids", spec)}, returns="struct<total:bigint,held:bigint,size:bigint>", batch_size=batch_size
    )
    assert [(row.total, row.held, row.size) for row in got] == [(2, 2, 2), (2, 1, 1), (9, 3, 3)]


@pytest.mark.parametrize("way", WAYS)
def test_padding_cuts_to_the_maximum_length_and_fills_on_the_side_asked_for(spark, way) -> None:
    """C09: max_length keeps a row's start, pad_side='left' moves its items to the right."""
    df = frame(spark, [[1, 1], [2], [3, 4, 5]], "array<int>", column="ids")
    spec = si.TensorSpec("int64", (3,), pad=-1, max_length=2, pad_side="left")
    assert score(df, model(echo), way, inputs=("ids", spec), returns="array<bigint>") == [[-1, 1, 1], [-1, -1, 2], [-1, 3, 4]]


@pytest.mark.parametrize("way", WAYS)
def test_a_shape_that_a_row_does_not_fit_is_an_error_with_both_shapes(spark, way) -> None:
    """A flat array of the wrong size is no image."""
    with pytest.raises(Exception, match=r"expected \(rows, 2, 2\), found \(rows, 3\)"):
        score(
            frame(spark, [[1.0, 2.0, 3.0]], "array<float>"),
            model(echo),
            way,
            inputs=("x", si.TensorSpec("float32", (2, 2))),
            returns="float",
        )


@pytest.mark.parametrize("way", WAYS)
def test_a_structs_fields_are_named_inputs(spark, way) -> None:
    """A struct column hands its fields to the model by name, each with its own dtype."""
    df = frame(spark, [(1, 0.5, "a", [1.0, 2.0])] * 2, "struct<i:int,f:float,s:string,v:array<double>>")
    assert set(score(df, model(told), way, inputs="x", returns="string")) == {"i:int32 f:float32 s:str v:float64[2]"}


@pytest.mark.parametrize("way", WAYS)
def test_a_struct_within_a_struct_is_named_with_a_dot(spark, way) -> None:
    """Nested fields arrive as ``outer.inner``."""
    df = frame(spark, [((1, 2.0), 3)], "struct<a:struct<b:int,c:double>,d:bigint>")
    assert score(df, model(told), way, inputs="x", returns="string") == ["a.b:int32 a.c:float64 d:int64"]


@pytest.mark.parametrize("way", WAYS)
def test_three_hundred_feature_columns_arrive_by_a_struct(spark, way) -> None:
    """Over 255 columns, the most that a UDF takes as arguments, go in one struct."""
    fields = ", ".join(f"'f{number}', cast(id + {number} as double)" for number in range(300))
    df = spark.range(4).coalesce(1).selectExpr("id", f"named_struct({fields}) as x")

    def total(**features: np.ndarray) -> np.ndarray:
        assert list(features) == [f"f{number}" for number in range(300)]
        return sum(features.values())

    assert score(df, model(total), way, inputs="x", returns="double") == [300.0 * i + 299 * 150 for i in range(4)]


@pytest.mark.parametrize("road", ROADS)
def test_three_hundred_columns_arrive_as_a_list_too(spark, road) -> None:
    """Both roads take more columns than SQL functions of old did."""
    columns = [f"f{number}" for number in range(300)]
    df = spark.range(3).coalesce(1).selectExpr("id", *(f"cast(id + {number} as double) as f{number}" for number in range(300)))
    assert score(df, model(lambda *features: sum(features)), road, inputs=columns, returns="double") == [
        300.0 * i + 299 * 150 for i in range(3)
    ]


def vectors(spark: Any, *values: Any) -> Any:
    """Make a column of ML vectors."""
    schema = StructType([StructField("id", LongType()), StructField("x", VectorUDT())])
    return spark.createDataFrame(list(enumerate(values)), schema).coalesce(1)


def row_sum(x: np.ndarray) -> np.ndarray:
    """Add up each row."""
    assert x.dtype == np.float64
    return x.sum(axis=1)


@pytest.mark.parametrize("way", WAYS)
def test_ml_vectors_arrive_as_arrays_sparse_ones_made_dense(spark, way) -> None:
    """C12: a vector column gives the answers of the array column."""
    df = vectors(spark, Vectors.dense(1, 2, 3), Vectors.sparse(3, {0: 2.0}))
    assert score(df, model(row_sum), way, inputs="x", returns="double") == [6.0, 2.0]
    assert score(df, model(echo), way, inputs="x", returns="array<double>") == [[1.0, 2.0, 3.0], [2.0, 0.0, 0.0]]


@pytest.mark.parametrize("way", WAYS)
def test_vectors_of_the_older_mllib_arrive_too(spark, way) -> None:
    """C12: tables written long ago hold pyspark.mllib's vectors, which lie in Arrow as pyspark.ml's do."""
    schema = StructType([StructField("id", LongType()), StructField("x", OldVectorUDT())])
    df = spark.createDataFrame([(0, OldVectors.dense(1, 2, 3)), (1, None), (2, OldVectors.sparse(3, {0: 2.0}))], schema).coalesce(1)
    assert score(df, model(row_sum), way, inputs="x", returns="double", on_null="null") == [6.0, None, 2.0]


@pytest.mark.parametrize("way", WAYS)
def test_vectors_inside_structs_and_arrays_arrive_too(spark, way) -> None:
    """C12: at any depth, sparse ones made dense."""
    inner = StructType([StructField("v", VectorUDT()), StructField("d", DoubleType())])
    schema = StructType([StructField("id", LongType()), StructField("s", inner), StructField("a", ArrayType(VectorUDT()))])
    sparse = Vectors.sparse(2, {1: 3.0})
    df = spark.createDataFrame([(0, (Vectors.dense(1, 2), 1.0), [sparse]), (1, (sparse, 2.0), [Vectors.dense(4, 5)])], schema).coalesce(1)
    assert score(df, model(lambda v, d: v.sum(axis=1) * d), way, inputs="s", returns="double") == [3.0, 6.0]
    assert score(df, model(echo), way, inputs="a", returns="array<array<double>>") == [[[0.0, 3.0]], [[4.0, 5.0]]]


class Point:
    """A user's own class, in a column."""

    def __init__(self, x: float) -> None:
        self.x = x


class PointUDT(UserDefinedType):
    """How Spark keeps it."""

    @classmethod
    def sqlType(cls) -> StructType:  # noqa: N802 - Spark's own name
        return StructType([StructField("x", DoubleType())])

    @classmethod
    def module(cls) -> str:
        return __name__

    def serialize(self, obj: Point) -> tuple[float]:
        return (obj.x,)


Point.__UDT__ = PointUDT()  # by which Spark knows what a Point is


@pytest.mark.parametrize(
    ("data_type", "value", "told_type"),
    [(MatrixUDT(), Matrices.dense(1, 2, [1.0, 2.0]), r"matrix \(MatrixUDT\)"), (PointUDT(), Point(1.0), r"udt \(PointUDT\)")],
    ids=["matrix", "a user's own"],
)
def test_another_user_defined_type_is_refused_on_the_driver(spark, data_type, value, told_type) -> None:
    """C12: the message has the column and the type's own name; no job starts."""
    df = spark.createDataFrame([(0, value)], StructType([StructField("id", LongType()), StructField("odd", data_type)]))
    before = jobs_started(spark)
    with pytest.raises(si.SchemaError, match=rf"the column 'odd' has the type {told_type}, which no model input can be made of"):
        si.predict(df, model(echo), inputs="odd", outputs="pred double", keep=["id"])
    assert jobs_started(spark) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_null_vector_follows_the_null_policy(spark, way) -> None:
    """C12: null policy 'null' gives a null prediction for that row only, the default an error with the row."""
    df = vectors(spark, Vectors.dense(1, 2, 3), None, Vectors.sparse(3, {0: 2.0}))
    assert score(df, model(row_sum), way, inputs="x", returns="double", on_null="null") == [6.0, None, 2.0]
    with pytest.raises(Exception, match=r"the value is null, at column 'x', partition 0, row 1"):
        score(df, model(row_sum), way, inputs="x", returns="double")


@pytest.mark.parametrize("way", WAYS)
def test_a_vector_beside_a_plain_column(spark, way) -> None:
    """C12: both arrive."""
    df = vectors(spark, Vectors.dense(1, 2), Vectors.sparse(2, {1: 5.0})).selectExpr("id", "x", "cast(id as double) as y")
    assert score(df, model(lambda x, y: row_sum(x) + y), way, inputs=["x", "y"], returns="double") == [3.0, 6.0]


@pytest.mark.parametrize("way", WAYS)
def test_vectors_of_unequal_size_are_an_error_with_both_sizes(spark, way) -> None:
    """C12 and C09: as for arrays."""
    df = vectors(spark, Vectors.dense(1, 2, 3), Vectors.dense(1, 2))
    with pytest.raises(Exception, match=r"expected 3, found 2.*row 1"):
        score(df, model(row_sum), way, inputs="x", returns="double")


@pytest.mark.parametrize(
    ("expression", "told_type"),
    [
        pytest.param(
            "make_interval(0, 1)", "interval", marks=pytest.mark.spark(since=(4, 0), why="Python knows no calendar interval before")
        ),
        ("map('a', 1)", "map<string,int>"),
        ("interval '1' day", "interval day"),
        ("array(named_struct('a', 1))", "struct<a"),
        ("null", "void"),
        pytest.param("parse_json('1')", "variant", marks=pytest.mark.spark(since=(4, 0), why="there is no variant before")),
    ],
)
def test_a_type_that_no_model_takes_is_refused_on_the_driver(spark, expression, told_type) -> None:
    """The message has the column and its type; no job starts."""
    df = spark.range(2).selectExpr("id", f"{expression} as odd")
    with pytest.raises(si.SchemaError, match=rf"'odd'.*{told_type}"):
        si.predict(df, model(echo), inputs="odd", outputs="pred double", keep=["id"])


@pytest.mark.spark(before=(4, 0), why="Python knows calendar intervals from then on")
@pytest.mark.parametrize("inputs", ["id", "odd"])
def test_a_frame_whose_columns_python_cannot_name_is_refused_on_the_driver(spark, inputs) -> None:
    """pyspark itself raises for df.columns then: the message says which type it is, and what to do."""
    df = spark.range(2).selectExpr("id", "make_interval(0, 1) as odd")
    with pytest.raises(
        si.SchemaError, match=r"pyspark 3\.\d cannot tell the columns of this DataFrame.*interval.*drop or cast that column"
    ):
        si.predict(df, model(echo), inputs=inputs, outputs="pred double", keep=[])


# --- outputs -------------------------------------------------------------------------------------------------------------


OUTPUTS = [
    ("boolean", np.array([True, False])),
    ("tinyint", np.array([1, -128], dtype=np.int64)),
    ("smallint", np.array([1, -2], dtype=np.int32)),
    ("int", np.array([1, 2**31 - 1], dtype=np.int64)),
    ("bigint", np.array([2**53 + 1, -1], dtype=np.int64)),
    ("float", np.array([0.5, math.inf], dtype=np.float64)),
    ("double", np.array([0.5, 0.25], dtype=np.float32)),
    ("string", ["a", "żółw"]),
    ("binary", [b"\x00", b""]),
    ("date", np.array(["2024-02-29", "1969-12-31"], dtype="datetime64[D]")),
    ("timestamp_ntz", np.array(["2024-02-29T12:00:00.5", "1969-12-31T23:59:59"], dtype="datetime64[us]")),
    ("decimal(5,2)", [Decimal("1.25"), Decimal("-3.00")]),
    ("array<int>", np.array([[1, 2], [3, 4]])),
    ("array<int>", [[1], [2, 3]]),
    ("array<string>", [["a"], []]),
    ("array<array<double>>", np.arange(8.0).reshape(2, 2, 2)),
    ("array<array<array<float>>>", np.arange(4.0).reshape(2, 1, 2, 1)),
    ("array<array<bigint>>", [[[1], [2, 3]], []]),
]


def plain(value: Any) -> Any:
    """Give Python's own values for NumPy's."""
    if isinstance(value, np.datetime64):
        return value.astype(object)
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("ddl", "made"), OUTPUTS, ids=[f"{ddl}-{number}" for number, (ddl, _) in enumerate(OUTPUTS)])
def test_an_output_comes_back_equal_in_the_declared_type(spark, way, ddl, made) -> None:
    """What the model gives is what Spark holds, in every type that can be declared."""
    df = frame(spark, [0, 1], "int")

    def give(x: np.ndarray) -> Any:
        return made

    assert score(df, model(give), way, inputs="x", returns=ddl) == [plain(value) for value in made]


@pytest.mark.parametrize("way", WAYS)
def test_an_aware_timestamp_comes_back_as_the_same_instant(spark, way) -> None:
    """A declared timestamp takes UTC values."""
    df = frame(spark, [0], "int")
    moment = np.datetime64(NOON.replace(tzinfo=None), "us")
    made = score(df, model(lambda x: np.array([moment])), way, inputs="x", returns="timestamp")
    assert made == [spark.sql("select timestamp'2024-02-29 12:00:01.25 UTC' as x").collect()[0].x]


@pytest.mark.parametrize("way", WAYS)
def test_nan_and_null_stay_apart_in_outputs(spark, way) -> None:
    """NaN is a value, None is none: at the top, within arrays and within structs."""
    df = frame(spark, [0, 1, 2], "int")
    top = score(df, model(lambda x: [math.nan, None, 1.0]), way, inputs="x", returns="double")
    assert math.isnan(top[0])
    assert top[1:] == [None, 1.0]
    inner = score(df, model(lambda x: [[math.nan, None], None, []]), way, inputs="x", returns="array<double>")
    assert math.isnan(inner[0][0])
    assert [inner[0][1], *inner[1:]] == [None, None, []]
    fields = score(
        df, model(lambda x: {"a": [math.nan, None, 1.0], "b": [None, "s", "t"]}), way, inputs="x", returns="struct<a:float,b:string>"
    )
    assert math.isnan(fields[0].a)
    assert [fields[0].b, *map(tuple, fields[1:])] == [None, (None, "s"), (1.0, "t")]


@pytest.mark.parametrize("way", WAYS)
def test_nulls_in_outputs_make_no_floats_of_integers(spark, way) -> None:
    """Integers, booleans and dates beside nulls come back exact, within arrays and structs too."""
    df = frame(spark, [0, 1], "int")
    assert score(df, model(lambda x: [2**53 + 1, None]), way, inputs="x", returns="bigint") == [2**53 + 1, None]
    assert score(df, model(lambda x: [None, True]), way, inputs="x", returns="boolean") == [None, True]
    assert score(df, model(lambda x: [None, date(2024, 2, 29)]), way, inputs="x", returns="date") == [None, date(2024, 2, 29)]
    assert score(df, model(lambda x: [[2**53 + 1, None], None]), way, inputs="x", returns="array<bigint>") == [[2**53 + 1, None], None]
    got = score(
        df,
        model(lambda x: {"a": [None, 2**53 + 1], "b": [[None, 2**53 + 1], None]}),
        way,
        inputs="x",
        returns="struct<a:bigint,b:array<bigint>>",
    )
    assert list(map(tuple, got)) == [(None, [None, 2**53 + 1]), (2**53 + 1, None)]


@pytest.mark.parametrize("way", WAYS)
def test_every_output_null_is_a_column_of_nulls(spark, way) -> None:
    """A batch without any value has a type all the same."""
    df = frame(spark, [0, 1], "int")
    for ddl in ("int", "string", "array<float>", "double"):
        assert score(df, model(lambda x: [None, None]), way, inputs="x", returns=ddl) == [None, None], ddl


@pytest.mark.parametrize("way", WAYS)
def test_a_struct_that_is_null_comes_back_null_or_full_of_nulls(spark, way) -> None:
    """A pandas UDF gives structs as a DataFrame, which knows no null rows; on every other way a null struct is null."""
    got = score(frame(spark, [0, 1], "int"), model(lambda x: [None, {"a": 1}]), way, inputs="x", returns="struct<a:int>")
    assert got == [Row(a=None) if way in PANDAS_WAYS else None, Row(a=1)]


@pytest.mark.parametrize("way", WAYS)
def test_structs_are_filled_by_field_name_whatever_the_models_order(spark, way) -> None:
    """C20: names decide, from a dict and from a list of dicts; a tuple fills in order."""
    df = frame(spark, [0, 1], "int")
    ddl = "struct<label:int,scores:array<float>>"
    expected = [Row(label=0, scores=[0.5, 0.5]), Row(label=1, scores=[1.5, 1.5])]

    def by_name(x: np.ndarray) -> Any:
        return {"scores": np.stack([x + 0.5] * 2, axis=1), "label": x}

    def in_rows(x: np.ndarray) -> Any:
        return [{"scores": [value + 0.5] * 2, "label": value} for value in x.tolist()]

    def in_order(x: np.ndarray) -> Any:
        return x, np.stack([x + 0.5] * 2, axis=1)

    for give in (by_name, in_rows, in_order):
        assert score(df, model(give), way, inputs="x", returns=ddl) == expected, give.__name__


@pytest.mark.parametrize("way", WAYS)
def test_structs_and_arrays_nest_in_outputs(spark, way) -> None:
    """A detection model gives arrays of structs that hold arrays, and structs within structs."""
    df = frame(spark, [0, 1], "int")
    boxes = [[{"label": "cat", "box": [1.0, 2.0]}, {"label": "dog", "box": [3.0, 4.0]}], []]
    got = score(df, model(lambda x: boxes), way, inputs="x", returns="array<struct<label:string,box:array<double>>>")
    assert [[row.asDict() for row in rows] for rows in got] == boxes
    nested = score(df, model(lambda x: {"a": {"b": x, "c": x * 2}, "d": x}), way, inputs="x", returns="struct<a:struct<b:int,c:int>,d:int>")
    assert [row.asDict(recursive=True) for row in nested] == [{"a": {"b": i, "c": 2 * i}, "d": i} for i in (0, 1)]


@pytest.mark.parametrize("way", WAYS)
def test_one_declared_column_and_several_heads_is_an_error_that_lists_them(spark, way) -> None:
    """C20: nothing is dropped without a word."""
    with pytest.raises(Exception, match=r"found 2 outputs \(label, scores\)"):
        score(frame(spark, [0], "int"), model(lambda x: {"label": x, "scores": x}), way, inputs="x", returns="int")


@pytest.mark.parametrize("way", ["column"])  # a failing job is slow, and encoding is the same on every way
@pytest.mark.parametrize(
    ("ddl", "made", "said"),
    [
        ("int", np.array([0.0, 0.5]), r"0.5 \(float64\), which it cannot hold"),
        ("int", np.array([0, 2**31]), r"2147483648 \(int64\), which it cannot hold"),
        ("tinyint", np.array([0, 128]), r"128 \(int64\), which it cannot hold"),
        ("int", np.array([0, math.nan]), r"nan \(float64\), which it cannot hold"),
        ("float", np.array([0, 2**24 + 1]), r"16777217 \(int64\), which it cannot hold"),
        ("double", np.array([0, 2**53 + 1]), "which it cannot hold"),
        ("boolean", np.array([0, 1]), "int64"),
        ("string", np.array([0, 1]), "int 0: convert it in postprocess|int64"),
        ("double", ["a", "b"], "convert it in postprocess"),
        ("decimal(3,2)", [Decimal("1.00"), Decimal("1.005")], "does not fit"),
        ("date", np.array(["2024-02-29T01", "2024-02-29T00"], dtype="datetime64[h]"), "finer than D"),
        ("array<int>", np.array([0, 1]), "scalars of int64"),
        ("double", np.zeros((2, 3)), r"arrays of shape \(3,\)"),
        ("binary", ["a", "b"], "str 'a'"),
        ("array<int>", [[1], [0.5]], r"0.5 \(float64\)"),
    ],
)
def test_a_lossy_or_wrong_cast_is_an_error_with_the_declared_type(spark, way, ddl, made, said) -> None:
    """A cast that would change a value never happens; the message has the column, what was declared, and what came."""
    name = "pred" if way in ROADS else "prediction"
    with pytest.raises(Exception, match=rf"output column '{name}' is declared .*({said})"):
        score(frame(spark, [0, 1], "int"), model(lambda x: made), way, inputs="x", returns=ddl)


@pytest.mark.parametrize("road", ROADS)
def test_several_heads_become_several_columns_in_order_or_by_name(spark, road) -> None:
    """A tuple fills the columns in order, a dict by name, and each has exactly its declared type."""
    df = frame(spark, [1, 2], "int")
    outputs = "label int, scores array<float>, name string, more struct<a:bigint>"

    def in_order(x: np.ndarray) -> Any:
        return x, np.ones((len(x), 2)) * x[:, None], [f"n{value}" for value in x], {"a": x}

    def by_name(x: np.ndarray) -> Any:
        label, scores, name, more = in_order(x)
        return {"more": more, "name": name, "scores": scores, "label": label}

    for give in (in_order, by_name):
        scored = si.predict(df, model(give), inputs="x", outputs=outputs, keep=["id"], road=road)
        assert [tuple(row) for row in scored.orderBy("id").collect()] == [(i - 1, i, [i, i], f"n{i}", Row(a=i)) for i in (1, 2)]
        assert scored.drop("id").schema.simpleString() == "struct<label:int,scores:array<float>,name:string,more:struct<a:bigint>>"


@pytest.mark.parametrize("flavor", FLAVORS)
def test_what_spark_holds_has_exactly_the_declared_type(spark, flavor) -> None:
    """The column's type is ``returns``, and a JVM expression over it works on the right values."""
    df = frame(spark, [1, 2], "int")
    tag = si.predict_udf(model(lambda x: x.astype(np.int64)), inputs="x", returns="smallint", flavor=flavor)
    scored = df.select(tag("x").alias("p"))
    assert scored.dtypes == [("p", "smallint")]
    assert sorted(row[0] for row in scored.selectExpr("p * 2S").collect()) == [2, 4]
