"""Chunks have a bounded size, and a file that changes under the reader is found out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from sparkinfer.engine.places import locate_url, url_of
from sparkinfer.engine.reading import Origins, Reading, decoded_bytes, shown
from sparkinfer.engine.retype import Unfit, find_all
from sparkinfer.engine.splits import SourceFile, Split
from sparkinfer.exceptions import ReadError

MB = 1 << 20


def split_of(path: Path) -> Split:
    """All of a file."""
    info = fs.LocalFileSystem().get_file_info(str(path))
    found = pq.ParquetFile(path).metadata
    weight = sum(decoded_bytes(found, group, leaf) for group in range(found.num_row_groups) for leaf in range(found.num_columns))
    return Split(SourceFile(f"file://{path}", info.size, info.mtime_ns), tuple(range(found.num_row_groups)), found.num_rows, weight)


def reading_of(kind: Any, **more: Any) -> Reading:
    return Reading(format="parquet", schema=pa.schema([("x", kind)]), needed=("x",), **more)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["y" * 2000 + str(number) for number in range(8)]).take(pa.array(np.arange(40_000) % 8)),
        pa.ListArray.from_arrays(np.arange(20_001, dtype=np.int32) * 784, pa.array((np.arange(20_000 * 784) % 5 == 0).astype(np.float32))),
        pa.array([None] * 40_000 + ["y"], pa.string()),
    ],
    ids=["texts of a dictionary", "zeros and ones", "nulls"],
)
def test_a_chunk_is_some_megabytes_however_small_the_file(tmp_path: Path, column: Any) -> None:
    """What the file holds once for many rows takes its place in memory in each."""
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet", row_group_size=40_000)
    chunks = list(reading_of(column.type, batch_size=64).chunks([split_of(tmp_path / "a.parquet")], Origins()))
    assert max(chunk.nbytes for chunk in chunks) <= 9 * MB
    assert pa.Table.from_batches(chunks).column("x").combine_chunks().equals(pa.chunked_array([column]).combine_chunks())


def test_numbers_weigh_what_they_take_in_memory(tmp_path: Path) -> None:
    """Not what their codes take in the file."""
    pq.write_table(pa.table({"x": pa.array([1.0] * 10_000, pa.float32())}), tmp_path / "a.parquet")
    assert split_of(tmp_path / "a.parquet").weight == 4 * 10_000


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """Also one whose size stays."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(1000)}), path)
    chunks = reading_of(pa.int64(), most_rows=100).chunks([split_of(path)], Origins())
    next(chunks)
    os.utime(path, ns=(0, 1))
    with pytest.raises(ReadError, match=r"a\.parquet changed after predict was called"):
        list(chunks)


def test_many_names_are_found_as_one_is() -> None:
    """With and without regard to case; two that are the same are refused where one of them is wanted."""
    assert find_all(["a", "B"], ["b", "A", "c"], fold=True) == {"b": 1, "A": 0, "c": None}
    assert find_all(["a", "B"], ["b", "a"], fold=False) == {"b": None, "a": 0}
    assert find_all(["a", "b", "B"], ["a"], fold=True) == {"a": 0}
    with pytest.raises(Unfit, match=r"has the column 'b' 2 times \('b', 'B'\)"):
        find_all(["a", "b", "B"], ["b"], fold=True)


def test_a_password_is_not_shown() -> None:
    """And what is none is."""
    assert shown("s3://AKIA:SEC@bucket/a%20b") == "s3://bucket/a b"
    assert shown("abfss://box@account.dfs.core.windows.net/a") == "abfss://box@account.dfs.core.windows.net/a"
    assert shown("file:///a@b:c") == "file:/a@b:c"


def test_a_path_and_its_url() -> None:
    """Each leads to the other."""
    url = "file:///a/b%25c"
    assert url_of(locate_url(url)[1], url) == url


@pytest.mark.skipif(not hasattr(fs, "AzureFileSystem"), reason="this pyarrow has no file system of Azure")
def test_a_path_in_azure_and_its_url() -> None:
    """The account is of the file system, the container of the path."""
    url = "abfs://box@account.dfs.core.windows.net/d/x%20y"
    assert url_of(locate_url(url)[1], url) == url
    assert locate_url("abfs://box@account.dfs.core.windows.net/d/x")[1] == "box/d/x"
