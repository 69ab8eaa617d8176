"""The direct road: the workers read the files, and what comes out is what Spark's own reader would have given."""

from __future__ import annotations

import gzip
import os
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import sparkinfer as si
from sparkinfer.pickling import loads
from sparkinfer.spark.sources import open_source
from tests.spark.kit import model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROWS = 1000


def double(x: np.ndarray) -> np.ndarray:
    return x * 2


@pytest.fixture(autouse=True)
def _todays_calendar(spark: SparkSession) -> Iterator[None]:
    """Before Spark 4 old dates are refused unless the session says that they are in today's calendar."""
    keys = [f"spark.sql.parquet.{kind}RebaseModeIn{way}" for kind in ("datetime", "int96") for way in ("Read", "Write")]
    for key in keys:
        spark.conf.set(key, "CORRECTED")
    yield
    for key in keys:
        spark.conf.unset(key)


def rows(frame: DataFrame) -> list[Any]:
    """The rows, in an order of their own."""
    return sorted(frame.collect(), key=repr)


def same_as_spark(spark: SparkSession, path: Any, **arguments: Any) -> None:
    """Read directly, and by Spark: the same schema, the same rows."""
    ours = si.read_files(path, **arguments).to_dataframe(spark)
    theirs = spark.read.parquet(str(path))
    assert ours.schema == theirs.schema
    assert rows(ours) == rows(theirs)


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """Two files of five row groups each."""
    folder = tmp_path / "vectors.parquet"
    folder.mkdir()
    for number in range(2):
        ids = np.arange(number * 500, (number + 1) * 500)
        x = pa.array([[float(one), 1.0, one % 7] for one in ids], pa.list_(pa.float32()))
        pq.write_table(pa.table({"id": ids, "x": x, "name": [f"n{one}" for one in ids]}), folder / f"p{number}.parquet", row_group_size=100)
    return folder


def predict(data: Any, **arguments: Any) -> DataFrame:
    told = {"inputs": "x", "outputs": "y array<float>", "keep": ["id"], "batch_size": 64, **arguments}
    return si.predict(data, model(double), **told)


def test_a_path_is_scored_as_spark_would_read_it(spark: SparkSession, vectors: Path) -> None:
    """A folder, a glob, a list of files: each row once, with its own prediction."""
    expected = rows(predict(spark.read.parquet(str(vectors))))
    assert len(expected) == ROWS
    for path in (str(vectors), vectors, f"{vectors}/p*.parquet", si.read_files(sorted(vectors.glob("*.parquet")))):
        assert rows(predict(path)) == expected


def test_all_columns_are_kept_and_none_is_read_that_is_not_needed(spark: SparkSession, vectors: Path) -> None:
    """``keep=None`` gives the names of the files' columns in their order; the row says how many bytes were read."""
    assert predict(vectors, keep=None).columns == ["id", "x", "name", "y"]
    with si.inference_run(progress=False) as run:
        rows(predict(vectors, keep=[]))
    only_x = 4 * 3 * ROWS
    assert only_x <= run.summary["inference/bytes_in_total"] < only_x + 8 * ROWS


def test_the_run_says_which_road_it_was(spark: SparkSession, vectors: Path) -> None:
    """The figures of every partition come back, and the call's settings say ``direct``."""
    with si.inference_run(progress=False) as run:
        rows(predict(vectors))
    assert run.metrics.settings["road"] == "direct"
    assert run.metrics.settings["data_name"] == "vectors.parquet"
    assert run.summary["inference/rows_total"] == ROWS
    assert run.summary["inference/partitions_total"] == 2


def test_one_task_may_run_several_shares(spark: SparkSession, vectors: Path) -> None:
    """Under ``coalesce(1)`` all shares run in the one task, whose partition id is that of none of them."""
    assert rows(predict(vectors).coalesce(1)) == rows(predict(vectors))


def test_a_filter_is_exact_and_spares_row_groups(spark: SparkSession, vectors: Path) -> None:
    """It need not name a column that is kept; what cannot hold such rows is not read."""
    source = si.read_files(vectors, filter=(pc.field("id") >= 450) & (pc.field("name") != "n501"))
    with si.inference_run(progress=False) as run:
        found = rows(predict(source, keep=["name"]))
    assert sorted(row.name for row in found) == sorted(f"n{one}" for one in range(450, ROWS) if one != 501)
    every = rows(si.read_files(vectors).to_dataframe(spark).where("id >= 450 and name <> 'n501'").select("name"))
    assert [row.name for row in found] == [row.name for row in every]
    assert run.summary["inference/rows_total"] == 549


def groups_read(spark: SparkSession, source: si.FileSource, *needed: str) -> list[Any]:
    """Which row groups are shared out, file by file; ``None`` for a file that is a row."""
    shares = open_source(source, spark).work(needed).shares
    return [split.groups for share in shares for split in loads(share, "a share")]


def test_row_groups_are_left_out_by_the_columns_of_the_filter(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever the types of the others; of floats none is, since their statistics pass over NaN."""
    values = {
        "id": pa.array(range(100)),
        "u": pa.array([1] * 100, pa.uint8()),
        "v": pa.array([[1.0, 2.0]] * 100, pa.list_(pa.float32(), 2)),
        "t": pa.array([0] * 100, pa.timestamp("us", "Asia/Tokyo")),
        "f": pa.array([float(one) for one in range(99)] + [float("nan")]),
    }
    pq.write_table(pa.table(values), tmp_path / "a.parquet", row_group_size=10)
    path = tmp_path / "a.parquet"
    assert groups_read(spark, si.read_files(path, filter=pc.field("id") >= 95), "id", "u", "v", "t") == [(9,)]
    source = si.read_files(path, filter=~(pc.field("f") < 200))
    assert sum(len(one) for one in groups_read(spark, source, "id")) == 10
    assert [row.id for row in source.to_dataframe(spark).collect()] == [99]


def test_files_are_left_out_by_what_is_known_without_their_content(spark: SparkSession, tmp_path: Path) -> None:
    """Their folder, their length, their name."""
    for number in range(4):
        (tmp_path / f"k={number}").mkdir()
        (tmp_path / f"k={number}" / "a.png").write_bytes(b"x" * (number + 1))
    for condition in (pc.field("k") >= 2, pc.field("length") > 2):
        source = si.read_files(tmp_path, filter=condition)
        assert sum(one is None for one in groups_read(spark, source, "content")) == 2
        assert sorted(len(row.content) for row in source.to_dataframe(spark).collect()) == [3, 4]
    source = si.read_files(tmp_path, filter=pc.field("content") == b"xx")
    assert [row.k for row in source.to_dataframe(spark).collect()] == [1]


def test_columns_that_are_named_are_those_that_are_there(spark: SparkSession, vectors: Path) -> None:
    """Others are refused by ``keep=``, with the names that are there."""
    source = si.read_files(vectors, columns=["x", "id"])
    assert source.to_dataframe().columns == ["x", "id"]
    assert predict(source, keep=None).columns == ["x", "id", "y"]
    with pytest.raises(si.SchemaError, match="keep= names the column 'name', which is not there"):
        predict(source, keep=["name"])


def test_a_preview_of_files(spark: SparkSession, vectors: Path) -> None:
    """Exactly so many rows."""
    frame = si.preview(vectors, model(double), n=3, inputs="x", outputs="y array<float>", keep=["id"])
    assert len(frame) == 3
    table = spark.read.parquet(str(vectors))
    frame = si.preview(table, model(double), n=3, inputs="x", outputs="y array<float>", keep=["id"], scan="direct")
    assert list(frame["id"]) == [0, 1, 2]


def test_a_preview_reads_the_columns_that_it_names(spark: SparkSession, tmp_path: Path) -> None:
    """So that one which cannot travel is no obstacle."""
    path = str(tmp_path / "months.parquet")
    spark.sql("select interval '3' month as m, 1 as x").write.parquet(path)
    frame = si.preview(path, model(double), inputs="x", outputs="y int", keep=["x"])
    assert frame.to_dict("list") == {"x": [1], "y": [2]}


def test_an_error_names_the_file(spark: SparkSession, vectors: Path) -> None:
    """The same machinery: place, file, first cause."""

    def refuse(x: np.ndarray) -> np.ndarray:
        if (x[:, 0] == 777).any():
            msg = "no 777 here"
            raise ValueError(msg)
        return x

    with pytest.raises(Exception, match="no 777 here") as caught:
        si.predict(str(vectors), model(refuse), inputs="x", outputs="y array<float>", batch_size=1, key="id").collect()
    assert "partition 1" in str(caught.value)
    assert "vectors.parquet/p1.parquet" in str(caught.value)


def test_a_password_in_an_address_is_not_told(spark: SparkSession) -> None:
    """Neither by us nor in Spark's own words, of which the first line is the Java exception's."""
    with pytest.raises(si.ConfigError, match="Spark cannot read ftp://127") as caught:
        predict("ftp://bob:s3cret@127.0.0.1:1/x.parquet")
    assert "s3cret" not in str(caught.value)
    assert "An error occurred while calling" not in str(caught.value)


@pytest.mark.parametrize("sign", ["_delta_log/", ".hoodie/", "metadata/v1.metadata.json"])
def test_the_folder_of_a_table_format_is_refused(spark: SparkSession, vectors: Path, sign: str) -> None:
    """Unless Parquet is asked for."""
    (vectors / sign).mkdir(parents=True)
    with pytest.raises(si.ConfigError, match=r"is a table of (Delta|Hudi|Iceberg), whose own list says"):
        predict(vectors)
    assert predict(si.read_files(vectors, format="parquet")).count() == ROWS


# --- one row a file -----------------------------------------------------------------------------------------------------


def same_files_as_spark(spark: SparkSession, path: str) -> None:
    """Read directly, and by Spark: the same schema, the same rows."""
    ours = si.read_files(path).to_dataframe(spark)
    theirs = spark.read.format("binaryFile").load(path)
    assert ours.schema == theirs.schema
    assert rows(ours) == rows(theirs)


def test_binary_files_are_rows_as_spark_has_them(spark: SparkSession, tmp_path: Path) -> None:
    """Path, time, length, content, and the partition folder; an empty file is passed over; the content is read only where it is needed."""
    for number in range(5):
        folder = tmp_path / f"kind={number % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"pic ture {number}%.png").write_bytes(b"x" * number)
        os.utime(folder / f"pic ture {number}%.png", ns=(0, 1_700_000_000_123_456_789))
    same_files_as_spark(spark, str(tmp_path))
    lengths = si.PythonModel(lambda: lambda content: np.array([len(one) for one in content]))
    scored = si.predict(str(tmp_path), lengths, inputs="content", outputs="n long", keep=["length", "kind"], batch_size=2)
    assert [tuple(row) for row in rows(scored)] == [(number, number % 2, number) for number in range(1, 5)]
    with si.inference_run(progress=False) as run:
        assert len(rows(si.predict(str(tmp_path), model(double), inputs="length", outputs="n long", keep=[]))) == 4
    assert run.summary["inference/bytes_in_total"] == 4 * 8


def test_text_files_are_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Path and text, empty files passed over; what is no UTF-8 is an error that names the file."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("wörd\n" * number, encoding="utf-8")
    found = rows(si.read_files(tmp_path).to_dataframe(spark))
    assert [tuple(row) for row in found] == [(f"file:{tmp_path}/{number}.txt", "wörd\n" * number) for number in range(1, 3)]
    assert [row.value for row in found] == sorted(row.value for row in spark.read.text(str(tmp_path), wholetext=True).collect())
    (tmp_path / "3.txt").write_bytes(b"\xff")
    with pytest.raises(Exception, match=r"the file file:/.*3\.txt cannot be read \(UnicodeDecodeError"):
        si.read_files(tmp_path).to_dataframe(spark).collect()


def test_compressed_files_are_what_they_are_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Of binary files the bytes as they lie there; of text what was compressed; what only Hadoop writes is refused."""
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"hello " * 100))
    path = str(tmp_path / "a.txt.gz")
    ours, theirs = si.read_files(path, format="binary").to_dataframe(spark), spark.read.format("binaryFile").load(path)
    assert rows(ours) == rows(theirs)
    text = si.read_files(path, format="text").to_dataframe(spark).first().value
    assert text == spark.read.text(path, wholetext=True).first().value == "hello " * 100
    (tmp_path / "a.txt.gz").rename(tmp_path / "a.lz4")
    with pytest.raises(Exception, match=r"a\.lz4 is compressed in a way of Hadoop's own"):
        si.read_files(tmp_path / "a.lz4", format="text").to_dataframe(spark).collect()


def test_a_bad_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Also where its row is in the middle of a batch."""
    for number in range(4):
        (tmp_path / f"{number}.bin").write_bytes(b"bad" if number == 2 else b"good")

    def refuse(content: bytes) -> np.ndarray:
        if content == b"bad":
            msg = "cannot be decoded"
            raise ValueError(msg)
        return np.array([len(content)])

    source = si.read_files(tmp_path, format="binary")
    with pytest.raises(Exception, match=r"cannot be decoded.*file .*2\.bin"):
        si.predict(source, model(double), inputs="content", outputs="n array<long>", preprocess=refuse).collect()


def test_a_format_that_the_suffixes_do_not_tell_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """A mixture, or an unknown suffix."""
    (tmp_path / "a.png").touch()
    (tmp_path / "a.txt").touch()
    with pytest.raises(si.ConfigError, match=r"cannot be told by the files' suffixes \(\.png, \.txt\): say it"):
        si.read_files(tmp_path).to_dataframe(spark)


# --- the files of a DataFrame ------------------------------------------------------------------------------------------


def test_a_plain_scan_gives_up_its_files(spark: SparkSession, vectors: Path) -> None:
    """Of Parquet, with plain columns selected, under a name, from the catalog; of binary files."""
    expected = rows(predict(spark.read.parquet(str(vectors))))
    table = spark.read.parquet(str(vectors))
    table.createOrReplaceTempView("vectors_view")
    table.write.mode("overwrite").saveAsTable("vectors_table")
    plain = (
        table,
        table.select("x", "id"),
        table.alias("t").select("t.id", "t.x"),
        spark.table("vectors_view"),
        spark.table("vectors_table"),
    )
    for frame in plain:
        assert rows(predict(frame, scan="direct")) == expected
    assert predict(table.select("x", "id"), keep=None, scan="direct").columns == ["x", "id", "y"]
    told = {"inputs": "length", "outputs": "n long", "keep": ["path"]}
    files = spark.read.format("binaryFile").load(str(vectors))
    assert rows(si.predict(files, model(double), **told, scan="direct")) == rows(si.predict(files, model(double), **told))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda frame: frame.where("id > 3"), "its plan has a Filter above the files"),
        (lambda frame: frame.limit(3), "its plan has a GlobalLimit above the files"),
        (lambda frame: frame.distinct(), "its plan has a Deduplicate above the files"),
        (lambda frame: frame.union(frame), "its plan has a Union above the files"),
        (lambda frame: frame.selectExpr("id", "x as x"), "it computes or renames the column 'x'"),
        (lambda frame: frame.withColumn("more", frame.id + 1), "it computes or renames the column 'more'"),
        (lambda frame: frame.select("id", "x", "_metadata"), "its column '_metadata' is none of the files' own"),
        (lambda frame: frame.sparkSession.range(3).selectExpr("id", "array(1f) as x"), "it computes or renames|its rows come from a Range"),
        (lambda frame: frame.sparkSession.createDataFrame([(1, [1.0])], "id long, x array<float>"), "its rows come from a LogicalRDD"),
    ],
)
def test_more_than_a_scan_is_refused(spark: SparkSession, vectors: Path, change: Any, why: str) -> None:
    """With the reason, and what to do."""
    with pytest.raises(si.ConfigError, match=f"nothing but Parquet or binary files, but ({why}).*: leave scan out"):
        predict(change(spark.read.parquet(str(vectors))), scan="direct")


def test_other_formats_buckets_and_streams_are_refused(spark: SparkSession, vectors: Path, tmp_path: Path) -> None:
    """With the reason."""
    table = spark.read.parquet(str(vectors))
    table.write.orc(str(tmp_path / "orc"))
    table.write.mode("overwrite").bucketBy(2, "id").saveAsTable("vectors_in_buckets")
    stream = spark.readStream.schema(table.schema).parquet(str(vectors))
    for frame, why in (
        (spark.read.orc(str(tmp_path / "orc")), "its files are of the format OrcFileFormat"),
        (spark.table("vectors_in_buckets"), "its files are buckets"),
        (stream, "it is a stream"),
    ):
        with pytest.raises(si.ConfigError, match=f"but {why}"):
            predict(frame, scan="direct")


def test_options_that_may_change_rows_are_refused(spark: SparkSession, vectors: Path) -> None:
    """Those that do not are known by name."""
    assert predict(spark.read.option("mergeSchema", "true").parquet(str(vectors)), scan="direct").count() == ROWS
    for option, value in (("ignoreCorruptFiles", "true"), ("datetimeRebaseMode", "LEGACY"), ("anythingNew", "1")):
        with pytest.raises(si.ConfigError, match=f"it is read with the option '{option.lower()}', which may change its rows"):
            predict(spark.read.option(option, value).parquet(str(vectors)), scan="direct")


def test_a_path_given_twice_is_refused_where_spark_reads_it_twice(spark: SparkSession, vectors: Path) -> None:
    """``read_files`` takes a file once, however often it is named, in the order of the names."""
    for paths in ((vectors, vectors), (vectors, vectors / "p1.parquet")):
        frame = spark.read.parquet(*map(str, paths))
        assert frame.count() > ROWS
        with pytest.raises(si.ConfigError, match="twice, or one below another"):
            predict(frame, scan="direct")
        assert [row.id for row in predict(si.read_files([*reversed(paths)])).collect()] == list(range(ROWS))
    system = in_another_system(vectors)
    source = si.read_files(["p1.parquet", "*", "p1.parquet"], filesystem=system, format="parquet")
    assert [row.id for row in predict(source).collect()] == list(range(ROWS))


def test_columns_that_came_with_a_default_are_refused(spark: SparkSession) -> None:
    """The rows that were there have the value, and the files do not."""
    spark.sql("drop table if exists grown")
    spark.sql("create table grown (x int) using parquet")
    spark.sql("insert into grown values (1), (2)")
    spark.sql("alter table grown add column c int default 42")
    assert [row.c for row in spark.table("grown").collect()] == [42, 42]
    with pytest.raises(si.ConfigError, match="its column 'c' has the default 42 where the files lack it"):
        si.predict(spark.table("grown"), model(double), inputs="x", outputs="y int", scan="direct")


# --- what cannot be ----------------------------------------------------------------------------------------------------


def test_a_file_that_changed_is_an_error_that_names_it(spark: SparkSession, vectors: Path) -> None:
    """Its rows then would be none of those that the driver saw."""
    scored = predict(vectors)
    pq.write_table(pq.read_table(vectors / "p1.parquet").slice(0, 7), vectors / "p1.parquet")
    with pytest.raises(Exception, match=r"the file file:/.*p1\.parquet changed after predict was called"):
        scored.collect()


def test_a_file_that_is_gone_is_an_error_that_names_it(spark: SparkSession, vectors: Path) -> None:
    """And no partition without rows."""
    scored = predict(vectors)
    (vectors / "p0.parquet").unlink()
    with pytest.raises(Exception, match=r"the file file:/.*p0\.parquet is not there any more"):
        scored.collect()


@pytest.mark.parametrize(("most", "partitions"), [(None, 2), (12_500, 2), (7_000, 4), (4_000, 6), (1, 10)])
def test_partitions_come_in_whole_waves(spark: SparkSession, vectors: Path, most: int | None, partitions: int) -> None:
    """Two tasks at a time, or two, three times as many: no slot waits for a last one, until there are no more row groups (ten, of some 2,000 bytes)."""
    scored = predict(si.read_files(vectors, max_partition_bytes=most))
    assert scored.rdd.getNumPartitions() == partitions
    assert len(rows(scored)) == ROWS


def test_a_path_to_nothing_is_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """With Spark's own words."""
    with pytest.raises(si.ConfigError, match=r"Spark cannot read .*nowhere\.parquet: .*does not exist"):
        predict(tmp_path / "nowhere.parquet")


def test_wrong_arguments_say_what_is_right(spark: SparkSession, vectors: Path) -> None:
    """Road, scan, format, filter, path."""
    with pytest.raises(si.ConfigError, match="road is 'column', but the workers read the files themselves"):
        predict(vectors, road="column")
    with pytest.raises(si.ConfigError, match="scan is 'fast', expected 'spark' or 'direct'"):
        predict(vectors, scan="fast")
    with pytest.raises(si.ConfigError, match="format is 'csv', expected one of 'auto', 'parquet', 'binary', 'text'"):
        si.read_files(vectors, format="csv")
    with pytest.raises(si.ConfigError, match="filter is str, expected an expression of pyarrow"):
        si.read_files(vectors, filter="id > 3")
    with pytest.raises(si.ConfigError, match=r"filter is \(ident > 3\), which does not go with the columns of the files"):
        predict(si.read_files(vectors, filter=pc.field("ident") > 3))
    with pytest.raises(si.ConfigError, match="names a column by its position: name the columns"):
        si.read_files(vectors, filter=pc.field(0) > 3)
    with pytest.raises(si.ConfigError, match="columns is empty, expected the name of one column or more"):
        si.read_files(vectors, columns=[])
    with pytest.raises(si.ConfigError, match=r"path is \[\], expected a path"):
        si.read_files([])
    with pytest.raises(si.ConfigError, match="max_partition_bytes is 0"):
        si.read_files(vectors, max_partition_bytes=0)
    with pytest.raises(si.ConfigError, match="filesystem is int"):
        si.read_files(vectors, filesystem=3)


# --- the same rows and types as Spark's own reader ---------------------------------------------------------------------

NOW = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=timezone.utc)


def test_every_type_comes_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    """Written by pyarrow, with nulls, dictionaries, large types, unsigned numbers, nested ones."""
    table = pa.table(
        {
            "i8": pa.array([1, None, -3], pa.int8()),
            "i16": pa.array([1, None, -3], pa.int16()),
            "i32": pa.array([1, None, -3], pa.int32()),
            "i64": pa.array([1, None, 1 << 60], pa.int64()),
            "u8": pa.array([1, None, 255], pa.uint8()),
            "u16": pa.array([1, None, 65535], pa.uint16()),
            "u32": pa.array([1, None, (1 << 32) - 1], pa.uint32()),
            "u64": pa.array([1, None, (1 << 64) - 1], pa.uint64()),
            "f32": pa.array([1.5, None, float("inf")], pa.float32()),
            "f64": pa.array([1.5, None, -0.0], pa.float64()),
            "dec": pa.array([Decimal("1.50"), None, Decimal("-99.99")], pa.decimal128(10, 2)),
            "dec38": pa.array([Decimal("1.5"), None, Decimal(10) ** 20], pa.decimal128(38, 1)),
            "yes": pa.array([True, None, False]),
            "text": pa.array(["a", None, "ünï"]),
            "large": pa.array(["a", None, ""], pa.large_string()),
            "dict": pa.array(["a", None, "a"]).dictionary_encode(),
            "bytes": pa.array([b"a", None, b"\x00\xff"]),
            "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "day": pa.array([date(2024, 2, 29), None, date(1970, 1, 1)]),
            "us": pa.array([NOW, None, NOW], pa.timestamp("us", "UTC")),
            "berlin": pa.array([NOW, None, NOW], pa.timestamp("us", "Europe/Berlin")),
            "ms": pa.array([NOW.replace(microsecond=0), None, NOW.replace(microsecond=0)], pa.timestamp("ms", "UTC")),
            "ntz": pa.array([NOW.replace(tzinfo=None), None, NOW.replace(tzinfo=None)], pa.timestamp("us")),
            "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
            "vector": pa.array([[1.0, 2.0], [-1.0, 0.5], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "lists": pa.array([[[1], []], None, [None]], pa.list_(pa.list_(pa.uint8()))),
            "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
            "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.uint16())),
            "of dicts": pa.array([["a"], None, ["b", None]], pa.list_(pa.string())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    same_as_spark(spark, tmp_path / "a.parquet")


def test_what_spark_wrote_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    """INT96 and microseconds, far years, intervals, columns that are called what they like."""
    path = str(tmp_path / "spark.parquet")
    written = spark.sql(
        "select timestamp'1600-01-01 00:00:00' as early, timestamp'2500-06-01 12:00:00.123456' as late, interval '3' day as span, "
        "timestamp_ntz'2020-01-01 00:00:00' as plain, named_struct('a.b', 1, 'c', array(1.5)) as `s.t`, 2 as `with space`, 3 as `ünï`, "
        "map('k', array(named_struct('v', 1))) as m, cast('x' as varchar(3)) as v, date'1500-01-01' as d"
    )
    for kind in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
        written.write.mode("overwrite").parquet(path)
        same_as_spark(spark, path)
    spark.conf.unset("spark.sql.parquet.outputTimestampType")


@pytest.mark.parametrize("zone", ["America/New_York", "+05:30"])
def test_timestamps_follow_the_sessions_time_zone(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    """Those in the files are instants; those in the names of folders are read in that zone."""
    folder = tmp_path / "times" / "at=2024-03-10 05:06:07"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"t": pa.array([NOW], pa.timestamp("us", "UTC"))}), folder / "a.parquet")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        same_as_spark(spark, tmp_path / "times", format="parquet")
        scored = si.predict(si.read_files(tmp_path / "times", format="parquet"), model(lambda t: t), inputs="t", outputs="y timestamp")
        assert [(row.t, row.t == row.y) for row in scored.collect()] == [(spark.read.parquet(str(tmp_path / "times")).first().t, True)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_partition_folders_become_columns(spark: SparkSession, tmp_path: Path) -> None:
    """With the types that Spark infers, nulls and escaped letters among them; a glob over them makes them none."""
    for number, (day, kind, value) in enumerate(
        [("2024-01-01", "a%3Ab", "1"), ("2024-01-02", "__HIVE_DEFAULT_PARTITION__", "2.5"), ("2024-01-02", "c d", "-3")]
    ):
        folder = tmp_path / f"day={day}" / f"kind={kind}" / f"n={number}" / f"value={value}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [number]}), folder / "part ü%.parquet")
    same_as_spark(spark, tmp_path, format="parquet")
    same_as_spark(spark, f"{tmp_path}/day=2024-01-01", format="parquet")
    same_as_spark(spark, f"{tmp_path}/{{day=2024-01-01,nothing}}/kin*", format="parquet")
    source = si.read_files(tmp_path, format="parquet", filter=pc.field("day") == date(2024, 1, 2))
    scored = si.predict(source, model(double), inputs="n", outputs="y long", keep=["kind", "x"])
    assert [tuple(row) for row in rows(scored)] == [("c d", 2, 4), (None, 1, 2)]


@pytest.mark.parametrize(
    "root", ["g/../g/b1", "g/[^z]*", "g/b[0-9]", "g//b?", "g/{b1,none}", "g/[!a]1", r"with \[a\]", "g/b1/day=3", "g/b1/*/*"]
)
def test_partition_columns_have_their_values_however_the_path_is_spelt(spark: SparkSession, tmp_path: Path, root: str) -> None:
    """Hadoop's globs, its escapes, ``..``: read by name, and by a DataFrame's own files."""
    for folder in ("g/b1/day=3", "g/zz/day=4", "with [a]/day=5"):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"x": [1.0]}), tmp_path / folder / "a.parquet")
    path = f"file://{tmp_path}/{root}"
    theirs = spark.read.parquet(path)
    ours = si.read_files(path, format="parquet").to_dataframe(spark)
    assert ours.schema == theirs.schema
    assert rows(ours) == rows(theirs)
    scored = si.predict(theirs, model(double), inputs="x", outputs="y double", scan="direct").drop("y")
    assert rows(scored) == rows(theirs)


def test_a_file_without_the_partition_folder_of_others_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It would have nulls where Spark leaves it out."""
    (tmp_path / "day=3").mkdir()
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "day=3" / "a.parquet")
    pq.write_table(pa.table({"x": [2.0]}), tmp_path / "b.parquet")
    for more in ({}, {"filesystem": in_another_system(tmp_path)}):
        with pytest.raises(si.ConfigError, match=r"b\.parquet has no folder day=, from which the column 'day'"):
            si.read_files("" if more else tmp_path, format="parquet", **more).to_dataframe(spark)


def test_files_may_differ_in_order_and_lack_columns(spark: SparkSession, tmp_path: Path) -> None:
    """The first file's schema holds, as Spark's default has it; names are the same whatever their case; empty files give no rows."""
    pq.write_table(pa.table({"A": [1], "b": ["x"], "s": [{"u": 1, "V": 2}]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"s": [{"v": 3, "u": 4}], "B": ["y"], "a": [2], "more": [1]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"b": ["z"]}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"A": [1], "b": ["x"]}).slice(0, 0), tmp_path / "d.parquet")
    with pq.ParquetWriter(tmp_path / "e.parquet", pa.schema([("A", pa.int64())])) as writer:
        writer.write_table(pa.table({"A": pa.array([], pa.int64())}))
        writer.write_table(pa.table({"A": [5]}))
    same_as_spark(spark, tmp_path, format="parquet")
    assert len(rows(si.read_files(tmp_path, format="parquet").to_dataframe())) == 4


def test_files_without_rows_give_none(spark: SparkSession, tmp_path: Path) -> None:
    """One partition that has nothing to do."""
    pq.write_table(pa.table({"id": pa.array([], pa.int64()), "x": pa.array([], pa.list_(pa.float32()))}), tmp_path / "a.parquet")
    assert predict(tmp_path / "a.parquet").collect() == []


def test_a_type_that_another_file_does_not_share_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The file and the column are named; wider numbers are no other type."""
    pq.write_table(pa.table({"x": pa.array([1], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([2], pa.int32())}), tmp_path / "b.parquet")
    source = si.read_files(tmp_path, format="parquet")
    assert rows(source.to_dataframe()) == rows(spark.range(1, 3).toDF("x"))
    pq.write_table(pa.table({"x": ["three"]}), tmp_path / "c.parquet")
    with pytest.raises(Exception, match=r"the file file:/.*c\.parquet does not fit: the column 'x' has the type string"):
        source.to_dataframe().collect()


def test_dates_in_the_calendar_of_spark_2_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """They would move by days; a file without dates is read."""
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    spark.sql("select date'1500-01-01' as d, 1 as x").write.parquet(str(tmp_path / "old.parquet"))
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED")
    source = si.read_files(tmp_path / "old.parquet")
    with pytest.raises(Exception, match=r"the file file:/.*parquet was written by Spark in the calendar .* its column 'd' holds dates"):
        source.to_dataframe(spark).collect()
    assert [row.y for row in si.predict(source, model(double), inputs="x", outputs="y int", keep=["x"]).collect()] == [2]


def test_settings_that_move_times_are_heeded(spark: SparkSession, tmp_path: Path) -> None:
    """Those that Spark would move are refused, and a file whose writer is known is read."""
    pq.write_table(pa.table({"d": [date(1500, 1, 1)], "t": [NOW], "x": [1]}), tmp_path / "a.parquet")
    source = si.read_files(tmp_path / "a.parquet", columns=["d", "x"])
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY")
    with pytest.raises(Exception, match=r"datetimeRebaseModeInRead\), and its column 'd' holds dates"):
        source.to_dataframe(spark).collect()
    spark.conf.set("spark.sql.parquet.int96TimestampConversion", "true")
    try:
        with pytest.raises(si.ConfigError, match=r"int96TimestampConversion\), and the column 't' holds times"):
            si.read_files(tmp_path / "a.parquet").to_dataframe(spark)
        assert si.read_files(tmp_path / "a.parquet", columns=["x"]).to_dataframe(spark).first().x == 1
    finally:
        spark.conf.unset("spark.sql.parquet.int96TimestampConversion")


def test_a_column_that_cannot_travel_is_refused_where_it_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """And passed over where it is not."""
    path = str(tmp_path / "months.parquet")
    spark.sql("select interval '3' month as m, 1 as x").write.parquet(path)
    with pytest.raises(si.SchemaError, match="the column 'm' has the type interval month, which cannot travel"):
        si.predict(path, model(double), inputs="x", outputs="y int")
    assert si.predict(path, model(double), inputs="x", outputs="y int", keep=["x"]).first().y == 2


# --- other file systems ------------------------------------------------------------------------------------------------


def in_another_system(folder: Path) -> Any:
    """A file system of which Spark knows nothing, whose root is a folder."""
    return pa.fs.SubTreeFileSystem(str(folder), pa.fs.LocalFileSystem())


def test_a_file_system_of_pyarrows(spark: SparkSession, tmp_path: Path) -> None:
    """Folders, globs, partition folders and hidden files as Spark has them; the types follow from the first file."""
    for number in range(3):
        folder = tmp_path / "data" / f"day=2024-01-0{number + 1}" / f"k={number}"
        folder.mkdir(parents=True)
        table = pa.table({"x": [number], "name": pa.array(["a"]).dictionary_encode(), "u": pa.array([7], pa.uint16())})
        pq.write_table(table, folder / "a.parquet")
        (folder / "_SUCCESS").touch()
        (folder / ".a.crc").touch()
    expected = spark.read.parquet(str(tmp_path / "data"))
    system = in_another_system(tmp_path)
    for path in ("data", "data/*/k=*/a.parquet", "da*"):
        ours = si.read_files(path, filesystem=system).to_dataframe(spark)
        assert rows(ours.select("x", "name", "u")) == rows(expected.select("x", "name", "u"))
    ours = si.read_files("data", filesystem=system, filter=pc.field("k") > 0).to_dataframe(spark)
    assert ours.schema == expected.schema
    assert rows(ours) == rows(expected.where("k > 0"))
    with pytest.raises(si.ConfigError, match="there is no file at nowhere"):
        si.read_files("nowhere", filesystem=system, format="parquet").to_dataframe(spark)


def test_names_with_signs_and_long_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """Where pyarrow lists: a percent sign is one, and whole numbers past 64 bits are decimals, as in Spark."""
    for number in (1, 10**20):
        (tmp_path / f"n={number}").mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"n={number}" / "a%20b c.parquet")
    expected = spark.read.parquet(str(tmp_path))
    for path, more in (
        ("", {"filesystem": in_another_system(tmp_path)}),
        (f"local://{tmp_path}", {}),
        (f"local://{tmp_path}/*/a%20b c.parquet", {}),
    ):
        ours = si.read_files(path, format="parquet", **more).to_dataframe(spark)
        if not path.endswith("parquet"):
            assert ours.schema == expected.schema
            assert rows(ours) == rows(expected)
        assert [row.x for row in ours.collect()] == [1, 1]


def test_one_files_word_on_its_nulls_does_not_bind_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """Where pyarrow tells the types, all columns may be null, as in Spark."""
    told = '{"type":"struct","fields":[{"name":"x","type":{"type":"array","elementType":"long","containsNull":false},"nullable":false,"metadata":{}}]}'
    first = pa.table({"x": [[1]]}).replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": told})
    pq.write_table(first, tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([None, [None]], pa.list_(pa.int64()))}), tmp_path / "b.parquet")
    ours = si.read_files("", format="parquet", filesystem=in_another_system(tmp_path)).to_dataframe(spark)
    assert ours.schema == spark.read.parquet(str(tmp_path)).schema
    assert rows(ours.where("x is null")) == [(None,)]


def test_a_url_that_only_fsspec_knows(spark: SparkSession, tmp_path: Path) -> None:
    """Where Spark has no such file system, fsspec's is taken on the driver and on the workers."""
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    scored = si.predict(f"local://{tmp_path}/*.parquet", model(double), inputs="x", outputs="y long")
    assert [tuple(row) for row in rows(scored)] == [(1, 2), (2, 4)]
    with pytest.raises(si.ConfigError, match="no file system is known for nonsense://"):
        si.predict("nonsense://a/b.parquet", model(double), inputs="x", outputs="y long")
