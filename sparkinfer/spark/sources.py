"""Which files a source has, and of which types their columns are: Spark's word where it can read the place, else pyarrow's.

Runs on: driver.

Invariant: no job is run for it but Spark's own listing of very many folders; the folder of a table format is refused, since its own list says which files count.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import types as spark

from sparkinfer.artifacts import without_userinfo
from sparkinfer.engine.places import absolute, infos, locate_url
from sparkinfer.engine.reading import FileFormat, open_parquet, shown
from sparkinfer.engine.splits import SourceFile
from sparkinfer.exceptions import ConfigError, MissingDependencyError, ReadError
from sparkinfer.spark.listing import Listed, list_files
from sparkinfer.spark.partition_folders import below_host, constants_of, folders_below, infer_types, named_folders, unbraced
from sparkinfer.spark.scan import FileTable
from sparkinfer.spark.session import active_or_local_session, setting
from sparkinfer.spark.types import from_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkinfer.spark.files import FileSource

__all__ = ["open_source", "table_of"]

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
_TABLES = {"_delta_log": "Delta", ".hoodie": "Hudi"}  # the folders by which they are known


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
