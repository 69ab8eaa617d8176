"""Splits of files to chunks: the scan of the direct road.

Runs on: worker.

Invariant: the chunks hold the rows of the splits in their order, each column with exactly the type that the driver said; a file that is
not what the driver saw, or that cannot be read, is an error that names it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs, types

from sparkinfer.engine.places import locate_url
from sparkinfer.engine.retype import Unfit, find_all, retype
from sparkinfer.exceptions import ReadError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    from sparkinfer.engine.splits import SourceFile, Split

__all__ = ["FileFormat", "FileWork", "Origins", "Reading", "decoded_bytes", "file_columns", "leaves", "open_parquet", "shown"]

FileFormat = Literal["parquet", "binary", "text"]
_CHUNK_BYTES = 2 << 20  # decoded: what a core's own cache holds; 8 MB took a tenth more CPU, 64 MB twice
_FILES_BYTES = 8 << 20  # of whole files, one row each
_MEASURED_ROWS = 64
_NUMBER = "sparkinfer number of the file"
_MOST_ENCODED_ROWS = 1 << 16  # of texts that the file holds once for many rows: longer ones may follow the first ones
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_PLAINLY = {"PLAIN", "RLE", "BIT_PACKED"}  # the last two are of levels, not of texts
_MOST_BYTES = 64 << 20  # a chunk that is made larger to hold a whole batch
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_HADOOPS_OWN = (".lz4", ".snappy", ".deflate")  # blocks with lengths of its own between them
_PASSWORD = re.compile(r"(?<=://)[^/\s?#@]*:[^/\s?#]*@")  # the part before @ in abfss://container@account is no secret
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read.

    Attributes:
        format: what is in them.
        schema: the columns of the chunks, as Spark would send them.
        needed: those among them that come out; the others are there for the filter.
        condition: an Arrow expression over ``schema``; rows for which it is not true are left out.
        fold: names are compared without regard to upper and lower case.
        batch_size: a chunk holds whole batches of so many rows, where memory allows.
        most_rows: of a chunk.
        old_calendar: what no Spark wrote has dates in the calendar that Spark 2 wrote: so the session has it.
        file_system: where the files' urls are paths in it.
    """

    format: FileFormat
    schema: pa.Schema
    needed: tuple[str, ...]
    condition: Any = None
    fold: bool = True
    batch_size: int = 1
    most_rows: int | None = None
    old_calendar: bool = False
    file_system: Any = field(default=None, repr=False)

    def chunks(self, splits: Sequence[Split], origins: Origins) -> Iterator[pa.RecordBatch]:
        """Read splits one after the other.

        Args:
            splits: of one partition.
            origins: is told where the rows of each begin.

        Raises:
            ReadError: a file is gone, has changed, cannot be read, or has a column of a type that Spark would not read as this one.
        """
        for chunk in self._parquet(splits, origins) if self.format == "parquet" else self._whole(splits, origins):
            kept = chunk if self.condition is None else self._filtered(chunk)
            origins.rows += kept.num_rows
            yield kept

    def _filtered(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        kept = pa.Table.from_batches([chunk]).filter(self.condition).select(list(self.needed)).combine_chunks()
        return pa.RecordBatch.from_arrays(
            [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in kept.columns], schema=kept.schema
        )

    def matching(self, files: Sequence[SourceFile], names: Sequence[str]) -> list[SourceFile]:
        """Leave out files whose rows the condition rules out without their content.

        Args:
            files: one row each.
            names: the columns of the condition.
        """
        told = [_told(file) for file in files]
        columns: list[Any] = [pa.array([row[name.lower()] for row in told], self.schema.field(name).type) for name in names]
        numbered = pa.Table.from_arrays([*columns, pa.array(range(len(files)))], names=[*names, _NUMBER])
        return [files[at] for at in numbered.filter(self.condition).column(_NUMBER).to_pylist()]

    def _opened(self, file: SourceFile) -> tuple[fs.FileSystem, str]:
        system, path = locate_url(file.url, self.file_system)
        info = system.get_file_info(path)
        if info.type is fs.FileType.NotFound:
            msg = "is not there any more, or not on this worker: it was when predict was called"
            raise Unfit(msg)
        if info.size != file.size or (file.modified_ns is not None and info.mtime_ns != file.modified_ns):
            msg = f"changed after predict was called ({file.size} bytes then, {info.size} now): call it again, so that its new rows are taken as a whole"
            raise Unfit(msg)
        return system, path

    def _rows_at_once(self, split: Split, measured: int) -> int:
        """Choose a chunk's rows: some megabytes, whole batches.

        Args:
            split: whose weight tells the bytes of a row, where values are not encoded.
            measured: bytes of a row's encoded values; 0: there are none.
        """
        width = max(1, split.weight // max(1, split.rows)) + measured
        rows = max(1, min(_CHUNK_BYTES // width, _MOST_ENCODED_ROWS if measured else _CHUNK_BYTES))
        if rows >= self.batch_size:
            rows -= rows % self.batch_size
        elif self.batch_size * width <= _MOST_BYTES:
            rows = self.batch_size
        return rows if self.most_rows is None else min(rows, self.most_rows)

    # --- Parquet ---

    def _parquet(self, splits: Sequence[Split], origins: Origins) -> Iterator[pa.RecordBatch]:
        for split in splits:
            origins.opened(split.file)
            with _naming(split.file):
                yield from self._groups(split)

    def _groups(self, split: Split) -> Iterator[pa.RecordBatch]:
        system, path = self._opened(split.file)
        with open_parquet(system, path) as file:
            constants = dict(split.file.constants)
            names = file.schema_arrow.names
            found = find_all(names, (one.name for one in self.schema if one.name not in constants), fold=self.fold)
            at = sorted({position for position in found.values() if position is not None})
            numbers = {position: number for number, position in enumerate(at)}
            order = {name: None if position is None else numbers[position] for name, position in found.items()}
            _check_calendar(file, at, old=self.old_calendar)
            indices = file_columns(file.schema_arrow, at)
            most = self._rows_at_once(split, 0 if not indices else _measured(file, (split.groups or (0,))[0], indices))
            if not indices:
                sizes = [file.metadata.row_group(group).num_rows for group in split.groups or ()]
                yield from (self._chunk(None, rows, order, constants) for rows in _cut(sum(sizes), most))
                return
            batches = file.reader.iter_batches(most, row_groups=list(split.groups or ()), column_indices=indices, use_threads=False)
            for batch in batches:
                yield self._chunk(batch, batch.num_rows, order, constants)
            self._opened(split.file)  # was it changed while it was read?

    def _chunk(self, batch: pa.RecordBatch | None, rows: int, order: dict[str, int | None], constants: dict[str, Any]) -> pa.RecordBatch:
        columns = []
        for one in self.schema:
            position = order.get(one.name)
            if one.name in constants:
                columns.append(pa.repeat(pa.scalar(constants[one.name], one.type), rows))
            elif batch is None or position is None:
                columns.append(pa.nulls(rows, one.type))  # Spark, too, fills what a file does not have
            else:
                columns.append(_retyped(batch.column(position), one, fold=self.fold))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    # --- whole files ---

    def _whole(self, splits: Sequence[Split], origins: Origins) -> Iterator[pa.RecordBatch]:
        """Read files one row each; some files make a chunk, since each chunk costs a message to Spark."""
        rows: list[dict[str, Any]] = []
        held = 0
        for split in splits:
            if self.condition is None:  # else it is not known yet which of them stay
                origins.opened(split.file, len(rows))
            with _naming(split.file):
                rows.append(self._row(split.file))
            held += split.weight
            if len(rows) >= (self.most_rows or self.batch_size) or held >= _FILES_BYTES:
                yield self._rows(rows)
                rows, held = [], 0
        if rows:
            yield self._rows(rows)

    def _row(self, file: SourceFile) -> dict[str, Any]:
        system, path = self._opened(file)
        told = _told(file)
        wanted = {one.name.lower() for one in self.schema}
        if wanted & {"content", "value"}:
            compression = _compression(path) if "value" in wanted else None
            with system.open_input_stream(path, compression=compression) as stream:
                told["content"] = stream.read()
            self._opened(file)  # was it changed while it was read?
            if "value" in wanted:
                told["value"] = str(told["content"], "utf-8")
        return told

    def _rows(self, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        columns = [pa.array([row[one.name.lower()] for row in rows], one.type) for one in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _told(file: SourceFile) -> dict[str, Any]:
    """Tell what is known of a file without its content, by names in lower case."""
    told: dict[str, Any] = {"path": shown(file.url), "length": file.size, "modificationtime": _modified(file)}
    return told | {name.lower(): value for name, value in file.constants}


def _compression(path: str) -> str | None:
    """Tell how a text file is compressed: by its suffix, as Spark's reader of text does; its reader of binary files takes the bytes as they are."""
    suffix = path[path.rfind(".") :].lower()
    if suffix in _HADOOPS_OWN:
        msg = f"is compressed in a way of Hadoop's own ({suffix}): read it with spark.read.text(path, wholetext=True)"
        raise Unfit(msg)
    return _COMPRESSIONS.get(suffix)


@contextmanager
def _naming(file: SourceFile) -> Iterator[None]:
    """Name the file in what goes wrong with it."""
    try:
        yield
    except (OSError, UnicodeDecodeError, pa.ArrowException, Unfit) as error:
        why = str(error) if isinstance(error, Unfit) else f"cannot be read ({type(error).__name__}: {error})"
        msg = f"the file {shown(file.url)} {why}"
        raise ReadError(msg) from error


@dataclass(frozen=True, kw_only=True)
class FileWork:
    """All that is to be read, for every partition.

    Attributes:
        reading: how.
        shares: what, pickled one by one: a worker opens the one that is its partition's.
    """

    reading: Reading
    shares: tuple[bytes, ...] = field(repr=False)

    def read_arrow(self, tickets: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as a ``mapInArrow`` function over ``spark.range``: each number is a share.

        The number, and not the task's partition id: under ``coalesce`` one task runs several partitions, and has one id.
        """
        return self.read(tickets, Origins())

    def read(self, tickets: Iterator[pa.RecordBatch], origins: Origins) -> Iterator[pa.RecordBatch]:
        """Read the shares whose numbers come, and tell where each file's rows begin."""
        for ticket in tickets:
            for number in ticket.column(0).to_pylist():
                if number < len(self.shares):
                    yield from self.reading.chunks(loads(self.shares[number], "a share of the files"), origins)


class Origins:
    """Which file a partition's row is from; the thread that reads adds, and the one that predicts asks."""

    def __init__(self) -> None:
        """Begin with no row."""
        self.rows = 0
        self._begins: list[int] = []
        self._files: list[SourceFile] = []

    def opened(self, file: SourceFile, after: int = 0) -> None:
        """Say that the rows from here on, or so many rows after it, are of this file."""
        self._files.append(file)
        self._begins.append(self.rows + after)

    def file_of(self, row: int) -> str | None:
        """Name the file of a row."""
        at = bisect_right(self._begins, row)
        return shown(self._files[at - 1].url) if at else None


def shown(url: str) -> str:
    """Spell a file as Spark's ``path`` column does, ``file:/folder/a b.png``, but without a password that it may hold."""
    url = _PASSWORD.sub("", url)
    return f"file:{unquote(url[7:])}" if url.startswith("file:///") else unquote(url) if "://" in url else url


def _modified(file: SourceFile) -> datetime | None:
    if file.modified_ns is None:
        return None
    seconds, rest = divmod(file.modified_ns // 1_000_000, 1000)  # Hadoop's resolution
    return datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=1000 * rest)


def open_parquet(system: fs.FileSystem, path: str) -> pq.ParquetFile:
    """Open a Parquet file; INT96 in microseconds, since nanoseconds end in 2262."""
    local = isinstance(system, fs.LocalFileSystem)
    return pq.ParquetFile(path, filesystem=system, memory_map=local, pre_buffer=not local, coerce_int96_timestamp_unit="us")


def decoded_bytes(metadata: pq.FileMetaData, group: int, leaf: int) -> int:
    """Tell how many bytes a leaf column's values take in memory: of numbers exactly, of texts at least what they take in the file."""
    chunk = metadata.row_group(group).column(leaf)
    width = _WIDTHS.get(chunk.physical_type) or max(1, metadata.schema.column(leaf).length)
    return int(chunk.total_uncompressed_size if chunk.physical_type == "BYTE_ARRAY" else chunk.num_values * width)


def _measured(file: pq.ParquetFile, group: int, leaves: Sequence[int]) -> int:
    """Decode the first rows of texts that the file holds encoded, each once for many rows: how many bytes does a row take?"""
    found = file.metadata.row_group(group)
    texts = [leaf for leaf in leaves if found.column(leaf).physical_type == "BYTE_ARRAY"]
    encoded = [leaf for leaf in texts if set(found.column(leaf).encodings) - _PLAINLY]
    if not encoded:
        return 0
    batches = file.reader.iter_batches(_MEASURED_ROWS, row_groups=[group], column_indices=encoded, use_threads=False)
    first = next(iter(batches), None)
    return 1 if first is None or not first.num_rows else 1 + first.nbytes // first.num_rows


def file_columns(schema: pa.Schema, positions: Sequence[int]) -> list[int]:
    """Give the leaf columns of a Parquet file that make up top-level columns."""
    ends = [0, *accumulate(leaves(one.type) for one in schema)]
    return [leaf for at in positions for leaf in range(ends[at], ends[at + 1])]


def leaves(data_type: Any) -> int:
    """Count the leaf columns that a type takes in Parquet."""
    if isinstance(data_type, pa.BaseExtensionType):
        return leaves(data_type.storage_type)
    if types.is_dictionary(data_type):
        return 1
    return sum(leaves(data_type.field(i).type) for i in range(data_type.num_fields)) or 1


def _retyped(column: pa.Array, wanted: pa.Field, *, fold: bool) -> pa.Array:
    try:
        return retype(column, wanted.type, fold=fold)
    except Unfit as why:
        msg = f"does not fit: the column {wanted.name!r} {why}. Write it anew with one type, or read it with scan='spark'"
        raise Unfit(msg) from why


def _cut(rows: int, most: int) -> Iterator[int]:
    while rows > 0:
        yield min(rows, most)
        rows -= most


def _check_calendar(file: pq.ParquetFile, positions: Sequence[int], *, old: bool) -> None:
    """Refuse dates in the calendar of Spark 2: those before 1582 would move by days."""
    written = file.metadata.metadata or {}
    version = written.get(b"org.apache.spark.version")
    if version is not None:
        old = version.startswith((b"1.", b"2."))
    if not old and not any(key in written for key in _LEGACY):
        return
    for at in positions:
        one = file.schema_arrow.field(at)
        if _has_times(one.type):
            msg = (
                f"was written by Spark in the calendar that was in use before Spark 3, or the session takes it for such a file "
                f"(spark.sql.parquet.datetimeRebaseModeInRead), and its column {one.name!r} holds dates or times: read it with scan='spark', which "
                "moves them, or write it anew"
            )
            raise Unfit(msg)


def _has_times(data_type: Any) -> bool:
    if types.is_date(data_type) or types.is_timestamp(data_type):
        return True
    return any(_has_times(data_type.field(i).type) for i in range(getattr(data_type, "num_fields", 0)))
