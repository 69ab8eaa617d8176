"""The direct road's driver side: which files there are, what is in them, and who reads what.

Runs on: driver.

Invariant: names and types are Spark's own wherever Spark can read the place; no job is run for it but Spark's own listing of very many
folders; what a partition gets is fixed here, with each file's size and time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import types as spark

from sparkinfer.arguments import check_columns
from sparkinfer.artifacts import without_userinfo
from sparkinfer.engine.places import absolute, infos, locate_url
from sparkinfer.engine.reading import FileFormat, FileWork, Reading, decoded_bytes, file_columns, open_parquet, shown
from sparkinfer.engine.retype import Unfit, find_all
from sparkinfer.engine.splits import Piece, SourceFile, share_out
from sparkinfer.exceptions import ConfigError, MissingDependencyError, ReadError, SchemaError
from sparkinfer.pickling import dumps
from sparkinfer.spark.arrival import travelling
from sparkinfer.spark.listing import Listed, list_files
from sparkinfer.spark.partition_folders import below_host, constants_of, folders_below, infer_types, named_folders, unbraced
from sparkinfer.spark.session import active_or_local_session, is_connect, setting, setting_is_on
from sparkinfer.spark.types import carried_by_arrow, from_file, sent_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from sparkinfer.spark.files import FileSource

__all__ = ["FileTable", "open_source"]

_SUFFIXES: dict[str, FileFormat] = {
    **dict.fromkeys((".parquet", ".parq", ".pq"), "parquet"),
    **dict.fromkeys((".txt", ".text", ".md", ".html", ".htm"), "text"),
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"), "binary"),
    **dict.fromkeys((".wav", ".mp3", ".flac", ".ogg", ".m4a", ".mp4", ".pdf"), "binary"),
}
_BINARY = spark.StructType(
    [
        spark.StructField("path", spark.StringType()),
        spark.StructField("modificationTime", spark.TimestampType()),
        spark.StructField("length", spark.LongType()),
        spark.StructField("content", spark.BinaryType()),
    ]
)
_TEXT = spark.StructType([spark.StructField("path", spark.StringType()), spark.StructField("value", spark.StringType())])
_NO_SUCH_SYSTEM = ("No FileSystem for scheme", "ClassNotFoundException")
_UNKNOWN_PARALLELISM = 16  # Connect does not tell how many tasks run at once
# Decoded bytes, of which a worker holds a chunk at a time. A task costs Spark a fixed time, also one that does nothing: 4 GB of vectors took
# 14.5 s CPU in tasks of 128 MB, and 12.7 s in tasks of 512 MB. Pictures keep a model busy for longer.
_PARTITION_BYTES: dict[FileFormat, int] = {"parquet": 512 << 20, "binary": 128 << 20, "text": 128 << 20}
_FOOTERS_AT_ONCE = 16
_TABLES = {"_delta_log": "Delta", ".hoodie": "Hudi"}  # the folders by which they are known
_CALENDARS = ("datetime", "int96")


@dataclass(frozen=True, kw_only=True)
class FileTable:
    """Files, listed and typed: what ``predict`` takes in a DataFrame's place.

    Attributes:
        source: what was asked for.
        session: whose workers read.
        format: what is in the files.
        whole: all columns that the files have, Spark's types.
        files: the files, as they are now.
    """

    source: FileSource
    session: Any
    format: FileFormat
    whole: spark.StructType
    files: tuple[SourceFile, ...]

    @property
    def sparkSession(self) -> Any:  # noqa: N802 - a DataFrame's own name for it
        """The session."""
        return self.session

    @cached_property
    def schema(self) -> spark.StructType:
        """The columns that are there."""
        if self.source.columns is None:
            return self.whole
        check_columns(self.source.columns, self.whole.names, "columns")
        return spark.StructType([self.whole[name] for name in self.source.columns])

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def inputFiles(self) -> list[str]:  # noqa: N802 - a DataFrame's own name for it
        """Name the files."""
        return [file.url for file in self.files]

    def work(self, needed: Sequence[str], *, batch_size: int = 1, most_rows: int | None = None) -> FileWork:
        """Share the reading out among partitions.

        Args:
            needed: the columns that are read.
            batch_size: of the model.
            most_rows: of a chunk.

        Raises:
            ConfigError: the filter does not go with the columns.
            ReadError: a file's footer cannot be read.
        """
        of_filter = self._of_filter()
        names = tuple(dict.fromkeys((*needed, *of_filter)))
        reading = Reading(
            format=self.format,
            schema=self._arrow(names),
            needed=tuple(needed),
            condition=self.source.filter,
            fold=not setting_is_on(self.session, "spark.sql.caseSensitive"),
            batch_size=batch_size,
            most_rows=most_rows,
            old_calendar=any(
                (setting(self.session, f"spark.sql.parquet.{kind}RebaseModeInRead") or "").upper() == "LEGACY" for kind in _CALENDARS
            ),
            file_system=self.source.filesystem,
        )
        self._check_times(reading)
        pieces = list(self._pieces(reading, of_filter))
        shares = share_out(pieces, self._partitions(sum(piece.weight for piece in pieces)))
        return FileWork(reading=reading, shares=tuple(dumps(share, "a share of the files") for share in shares))

    def frame(self, function: Callable[..., Any], work: FileWork, schema: spark.StructType, resource_profile: Any = None) -> DataFrame:
        """Make the DataFrame of which each partition reads its share."""
        partitions = max(1, len(work.shares))
        tickets = self.session.range(0, partitions, 1, partitions)
        extra = {} if resource_profile is None else {"profile": resource_profile}
        made: DataFrame = tickets.mapInArrow(travelling(function), schema, **extra)
        return made

    def to_dataframe(self) -> DataFrame:
        """Make a DataFrame of all columns."""
        for one in self.schema.fields:
            check_carried(one)
        work = self.work(self.columns)
        return self.frame(work.read_arrow, work, self.schema)

    def _arrow(self, names: Sequence[str]) -> pa.Schema:
        zone = setting(self.session, "spark.sql.session.timeZone") or "UTC"
        return pa.schema([pa.field(name, sent_as(self.whole[name].dataType, zone)) for name in names])

    def _of_filter(self) -> list[str]:
        """Find the columns of the filter: an expression of pyarrow does not tell them."""
        condition = self.source.filter
        if condition is None:
            return []
        carried = [one.name for one in self.whole.fields if carried_by_arrow(one.dataType)]
        empty = self._arrow(carried).empty_table()
        try:
            empty.filter(condition)
        except (pa.ArrowException, TypeError) as error:
            msg = f"filter is {condition}, which does not go with the columns of the files: {error}"
            raise ConfigError(msg) from error
        return [name for name in carried if not _holds_without(empty, condition, name)]

    def _check_times(self, reading: Reading) -> None:
        if self.format == "parquet" and setting_is_on(self.session, "spark.sql.parquet.int96TimestampConversion"):
            for one in reading.schema:
                if "timestamp" in str(one.type):
                    msg = (
                        f"the session moves times that others than Spark wrote (spark.sql.parquet.int96TimestampConversion), and the column {one.name!r} "
                        "holds times: read it with spark.read, or leave the column out"
                    )
                    raise ConfigError(msg)

    def _partitions(self, weight: int) -> int:
        most = self.source.max_partition_bytes or _PARTITION_BYTES[self.format]
        slots = _parallelism(self.session)
        waves = max(1, -(-weight // (most * slots)))
        return waves * slots  # whole waves: tasks of one size end together, and no slot waits for a last one

    def _pieces(self, reading: Reading, of_filter: Sequence[str]) -> Iterator[Piece]:
        there = [file for file in self.files if file.size]  # Spark, too, passes over empty files, of whatever format
        if self.format != "parquet":
            if reading.condition is not None and not {name.lower() for name in of_filter} & {"content", "value"}:
                there = reading.matching(there, of_filter)
            weighs = bool({name.lower() for name in reading.schema.names} & {"content", "value"})
            yield from (Piece(file, None, 1, file.size if weighs else 0) for file in there)
            return
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE, "sparkinfer-footers") as threads:
            for pieces in threads.map(lambda file: _row_groups(file, reading, of_filter), there):
                yield from pieces


def _row_groups(file: SourceFile, reading: Reading, of_filter: Sequence[str]) -> list[Piece]:
    """Read a file's footer: its row groups that may hold rows for the filter."""
    try:
        system, path = locate_url(file.url, reading.file_system)
        with open_parquet(system, path) as opened:
            metadata, schema = opened.metadata, opened.schema_arrow
        constants = dict(file.constants)
        found = find_all(schema.names, (name for name in reading.schema.names if name not in constants), fold=reading.fold)
    except (OSError, pa.ArrowException, Unfit) as error:
        msg = f"the file {shown(file.url)} cannot be read as Parquet ({error}): it must be readable here, on the driver, and on the workers"
        raise ReadError(msg) from error
    leaves = file_columns(schema, sorted({at for at in found.values() if at is not None}))
    pieces = []
    for number in _matching(file, metadata, schema, reading, of_filter):
        group = metadata.row_group(number)
        weight = sum(decoded_bytes(metadata, number, leaf) for leaf in leaves)
        if group.num_rows:
            pieces.append(Piece(file, (number,), group.num_rows, weight))
    return pieces


def _matching(file: SourceFile, metadata: pq.FileMetaData, schema: pa.Schema, reading: Reading, of_filter: Sequence[str]) -> Sequence[int]:
    """Leave out row groups whose statistics say that the filter is true for no row; where they cannot say it, all are read.

    Those of floats cannot: they pass over NaN, for which a negated comparison is true.
    """
    every = range(metadata.num_row_groups)
    constants = dict(file.constants)
    if reading.condition is None:
        return every
    asked = pa.schema([reading.schema.field(name) for name in of_filter])
    for one in asked:
        if one.name not in constants:
            found = schema.field(one.name).type if schema.names.count(one.name) == 1 else None
            if found != one.type or _has_floats(found):
                return every
    system, path = locate_url(file.url, reading.file_system)
    known = None
    for name in of_filter:
        if name in constants:
            scalar = pa.scalar(constants[name], asked.field(name).type)
            one = ds.field(name) == scalar if constants[name] is not None else ds.field(name).is_null()
            known = one if known is None else known & one
    try:
        fragment = ds.ParquetFileFormat().make_fragment(path, filesystem=system, partition_expression=known)
        return [group.id for group in fragment.subset(reading.condition, schema=asked).row_groups]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return every


def _has_floats(found: Any) -> bool:
    return bool(pa.types.is_floating(found)) or any(_has_floats(found.field(i).type) for i in range(found.num_fields))


def _holds_without(empty: pa.Table, condition: Any, name: str) -> bool:
    try:
        empty.drop_columns([name]).filter(condition)
    except pa.ArrowException:
        return False
    return True


def check_carried(column: spark.StructField) -> None:
    """Refuse a column that no worker can hand to Spark.

    Raises:
        SchemaError: names it and its type.
    """
    if not carried_by_arrow(column.dataType):
        msg = (
            f"the column {column.name!r} has the type {column.dataType.simpleString()}, which cannot travel from the workers to Spark by Arrow: leave "
            "it out, or let Spark read the files"
        )
        raise SchemaError(msg)


def _parallelism(session: Any) -> int:
    """Tell how many tasks can run at once; over Connect only settings tell, asked with a default, since the server logs a key that it lacks."""
    try:
        if not is_connect(session):
            return int(session.sparkContext.defaultParallelism)
        told = str(_UNKNOWN_PARALLELISM)
        for key in ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism"):
            told = session.conf.get(key, told)
        return int(told)
    except Exception:  # noqa: BLE001 - a session that hides its context, or its settings
        return _UNKNOWN_PARALLELISM


# --- what there is -----------------------------------------------------------------------------------------------------


def open_source(source: FileSource, session: SparkSession | None = None) -> FileTable:
    """List the files of a source and find the types of their columns.

    Raises:
        ConfigError: nothing is there, or the format cannot be told.
        SchemaError: a column has a type that Spark does not have.
    """
    session = session or active_or_local_session()
    if source.format == "auto":
        _check_no_table(source)
    listed = None if source.filesystem is not None else _by_spark(source, session)
    return listed or _by_pyarrow(source, session)


def _check_no_table(source: FileSource) -> None:
    """Refuse the folder of a table format: its own list, and not the folder, says which files count."""
    for path in source.paths:
        try:
            system, root = locate_url(path if source.filesystem is not None else absolute(path), source.filesystem)
            signs = system.get_file_info([f"{root.rstrip('/')}/{name}" for name in (*_TABLES, "metadata")])
            inside = system.get_file_info(fs.FileSelector(signs[-1].path)) if signs[-1].type is fs.FileType.Directory else []
        except (OSError, pa.ArrowException, ConfigError, MissingDependencyError):
            continue  # a glob, or a file system that only Spark has: who lists the files says what is wrong
        kinds = [kind for kind, sign in zip(_TABLES.values(), signs, strict=False) if sign.type is fs.FileType.Directory]
        if any(one.path.endswith(".metadata.json") for one in inside):
            kinds.append("Iceberg")
        if kinds:
            msg = (
                f"{shown(path)} is a table of {kinds[0]}, whose own list says which of its files count: read it with Spark's reader of {kinds[0]}, or say "
                "format='parquet' for all files that lie there, deleted rows among them"
            )
            raise ConfigError(msg)


def _by_spark(source: FileSource, session: Any) -> FileTable | None:
    """Have Spark list and type the files; ``None`` where it has no such file system."""
    paths = [absolute(path) for path in source.paths]
    paths = [f"file://{path}" if path.startswith("/") else path for path in paths]
    kind = _told_by_suffix(source.paths) if source.format == "auto" else source.format
    try:
        if kind is None:
            kind = _one_format(_read(session, "binaryFile", paths).inputFiles(), source)
        frame = _read(session, "parquet" if kind == "parquet" else "binaryFile", paths)
        schema, urls = frame.schema, list(frame.inputFiles())
    except Exception as error:
        text = str(error)
        if any(told in text for told in _NO_SUCH_SYSTEM):
            return None
        if isinstance(error, ConfigError):
            raise
        msg = f"Spark cannot read {', '.join(source.paths)}: {_told_by_java(error)}"
        raise ConfigError(without_userinfo(msg)) from None  # the cause would tell a password that an address holds
    return table_of(source, session, kind, schema, urls, paths)


def _told_by_java(error: Exception) -> str:
    """Give the first line of what was thrown; Py4J's own words for it are "An error occurred while calling o583.load."."""
    thrown = getattr(error, "java_exception", None)
    return next(iter(str(error if thrown is None else thrown.toString()).splitlines()), type(error).__name__)


def _read(session: Any, kind: str, paths: Sequence[str]) -> DataFrame:
    made: DataFrame = session.read.format(kind).load(list(paths))
    return made


def table_of(
    source: FileSource,
    session: Any,
    kind: FileFormat,
    schema: spark.StructType,
    urls: Sequence[str],
    roots: Sequence[str],
    partitions: Collection[str] = (),
) -> FileTable:
    """Make a table of files that Spark listed and typed.

    Args:
        source: what was asked for.
        session: whose workers read.
        kind: what is in the files.
        schema: Spark's, partition columns among it.
        urls: the files.
        roots: below which folders are partitions.
        partitions: the columns that Spark is known to take from the names of folders.

    Raises:
        ConfigError: a file has no value for a column that others find in the names of their folders.
    """
    if kind == "text":
        schema = spark.StructType([*_TEXT.fields, *schema.fields[len(_BINARY.fields) :]])
    if kind != "parquet":
        partitions = [one.name for one in schema.fields if one.name not in (*_BINARY.names, *_TEXT.names)]
    given = [below_host(root) for root in roots]
    patterns = [pattern for root in given if root.startswith("/") for pattern in unbraced(root)]
    names = {one.name.lower() for one in schema.fields}
    listed = []
    for url in sorted(set(urls)):
        path = unquote(below_host(url))
        folders = folders_below(path, patterns) if given else []
        if folders is None:
            _check_no_partitions(url, named_folders(path.split("/")[:-1]), names, roots)
        listed.append(Listed(url, folders or []))
    return FileTable(source=source, session=session, format=kind, whole=schema, files=_files(listed, schema, session, None, partitions))


def _check_no_partitions(url: str, folders: Sequence[tuple[str, str]], names: Collection[str], roots: Sequence[str]) -> None:
    """Refuse a file below none of the paths, with folders that may be columns: nobody says from where on they are."""
    found = [name for name, _ in folders if name.lower() in names]
    if found:
        msg = (
            f"the file {shown(url)} lies below none of the paths ({', '.join(map(shown, roots))}) as they are spelt, so that it is not known whether its "
            f"folder {found[0]}= is the column {found[0]!r}: give absolute paths without links"
        )
        raise ConfigError(msg)


def _check_complete(files: Sequence[SourceFile], partitions: Collection[str]) -> None:
    """See that all files have a value for each partition column: none is filled with nulls."""
    wanted = {*partitions, *(name for file in files for name, _ in file.constants)}
    for file in files:
        missing = sorted(wanted - {name for name, _ in file.constants})
        if missing:
            msg = (
                f"the file {shown(file.url)} has no folder {missing[0]}=, from which the column {missing[0]!r} would have its value, as other files do: "
                "give a path below which all files are in such folders"
            )
            raise ConfigError(msg)


def _by_pyarrow(source: FileSource, session: Any) -> FileTable:
    listed = list_files(source.paths, source.filesystem)
    kind = _one_format([one.url for one in listed], source) if source.format == "auto" else source.format
    whole = _TEXT if kind == "text" else _BINARY
    data = _schema_in(listed[0].url, source.filesystem) if kind == "parquet" else whole
    folders = infer_types([one.folders for one in listed])
    names = {one.name.lower() for one in folders}
    schema = spark.StructType([*(one for one in data.fields if one.name.lower() not in names), *folders])
    return FileTable(source=source, session=session, format=kind, whole=schema, files=_files(listed, schema, session, source.filesystem))


def _schema_in(url: str, file_system: Any) -> spark.StructType:
    """Type a Parquet file's columns: as the Spark that wrote it said, or from pyarrow's types."""
    try:
        with open_parquet(*locate_url(url, file_system)) as file:
            schema, written = file.schema_arrow, (file.metadata.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")
    except (OSError, pa.ArrowException) as error:
        msg = f"the file {shown(url)} cannot be read as Parquet: {error}"
        raise ReadError(msg) from error
    if written is not None:
        told: spark.StructType = _nullable(spark.StructType.fromJson(json.loads(written)))
        return told
    return spark.StructType([spark.StructField(one.name, from_file(one.type, one.name)) for one in schema])


def _nullable(data_type: Any) -> Any:
    """Allow nulls everywhere, as Spark does for what it reads: one file's word on its nulls does not bind the next file."""
    if isinstance(data_type, spark.StructType):
        return spark.StructType([spark.StructField(one.name, _nullable(one.dataType), metadata=one.metadata) for one in data_type.fields])
    if isinstance(data_type, spark.ArrayType):
        return spark.ArrayType(_nullable(data_type.elementType))
    if isinstance(data_type, spark.MapType):
        return spark.MapType(_nullable(data_type.keyType), _nullable(data_type.valueType))
    return data_type


def _files(
    listed: Sequence[Listed], schema: spark.StructType, session: Any, file_system: Any, partitions: Collection[str] = ()
) -> tuple[SourceFile, ...]:
    zone = setting(session, "spark.sql.session.timeZone") or "UTC"
    files = []
    for one, info in zip(listed, _infos(listed, file_system), strict=True):
        if info.type is not fs.FileType.File:
            msg = (
                f"Spark sees the file {shown(one.url)}, and this process does not: with the direct road the driver reads the files' footers, so it must "
                "see them as the workers do. Read it with spark.read"
            )
            raise ReadError(msg)
        files.append(SourceFile(one.url, info.size, info.mtime_ns, constants_of(one.folders, schema, zone, shown(one.url))))
    _check_complete(files, partitions)
    return tuple(files)


def _infos(listed: Sequence[Listed], file_system: Any) -> list[fs.FileInfo]:
    known = [one.info for one in listed if one.info is not None]
    return known if len(known) == len(listed) else infos([one.url for one in listed], file_system)


def _told_by_suffix(paths: Sequence[str]) -> FileFormat | None:
    kinds = {_SUFFIXES.get(PurePosixPath(path).suffix.lower()) for path in paths}
    return kinds.pop() if len(kinds) == 1 else None


def _one_format(urls: Sequence[str], source: FileSource) -> FileFormat:
    """Tell the format by the files' suffixes."""
    suffixes = {PurePosixPath(url).suffix.lower() for url in urls}
    kinds = {_SUFFIXES.get(suffix) for suffix in suffixes}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        there = ", ".join(sorted(suffix or "none" for suffix in suffixes)) or "no file"
        msg = (
            f"the format of {', '.join(map(shown, source.paths))} cannot be told by the files' suffixes ({there}): say it, as in si.read_files(path, "
            "format='parquet'), 'binary' or 'text'"
        )
        raise ConfigError(msg)
    return kind
