"""Files as what is scored: the workers read them, and Spark only says who reads what.

Runs on: driver.

Invariant: a ``FileSource`` is a value, and making one reads nothing; what it is made into has the rows, names and types of Spark's own
reader.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sparkinfer.arguments import column_names
from sparkinfer.engine.places import as_file_system
from sparkinfer.exceptions import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FileSource", "Format", "is_source", "read_files", "source_of"]

Format = Literal["auto", "parquet", "binary", "text"]
_FORMATS = ("auto", "parquet", "binary", "text")


@dataclass(frozen=True, eq=False)
class FileSource:
    """Files that the workers read themselves; made by ``read_files``.

    Attributes:
        paths: paths, globs, folders or URLs.
        format: ``"parquet"``, ``"binary"``, ``"text"``, or ``"auto"``.
        columns: those that are there; ``None``: all.
        filter: a ``pyarrow.compute.Expression`` over the columns; rows for which it is not true are left out.
        filesystem: in which ``paths`` are; ``None``: the paths say it.
        max_partition_bytes: of the columns that are read, decoded, before a further partition is made.
    """

    paths: tuple[str, ...]
    format: Format = "auto"
    columns: tuple[str, ...] | None = None
    filter: Any = None
    filesystem: Any = field(default=None, repr=False)
    max_partition_bytes: int | None = None

    def to_dataframe(self, session: SparkSession | None = None) -> DataFrame:
        """Make a DataFrame whose rows the workers read.

        Args:
            session: ``None``: the active one, or a local one that is started.

        Raises:
            ConfigError, ReadError, SchemaError: what ``predict`` raises for these files.
        """
        from sparkinfer.spark.sources import open_source  # noqa: PLC0415 - it takes this class

        return open_source(self, session).to_dataframe()


def read_files(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: Format = "auto",  # noqa: A002 - Spark's own word for it
    columns: Iterable[str] | None = None,
    filter: Any = None,  # noqa: A002 - pyarrow's own word for it
    filesystem: Any = None,
    max_partition_bytes: int | None = None,
) -> FileSource:
    """Name files that the workers are to read themselves, for ``predict``; lazy.

    Spark gives each task its part of the files, and the worker reads it with pyarrow: no byte of the input goes through the JVM. Rows, names and types
    are those of Spark's own reader, partition folders (``day=2026-01-01/``) among them.

    Args:
        path: a file, a folder (read with the folders below it), a glob, or a list of them; local, or a URL that pyarrow or fsspec knows. A file that
            several of them lead to is read once.
        format: ``"parquet"``; ``"binary"``: pictures, audio: a row a file, ``path string, modificationTime timestamp, length bigint,
            content binary``; ``"text"``: a row a file, ``path string, value string``; ``"auto"``: by the files' suffixes.
        columns: those that are there; ``None``: all.
        filter: a ``pyarrow.compute`` expression such as ``pc.field("day") > 3``; row groups that cannot hold such rows are not read.
        filesystem: a file system of pyarrow or fsspec in which ``path`` is; it travels to the workers, with its credentials.
        max_partition_bytes: of the columns that are read, decoded, before a further partition is made; ``None``: 512 MB of Parquet, 128 MB
            of whole files.

    Raises:
        ConfigError: an argument is of the wrong kind.

    Example:
        >>> read_files("vectors.parquet", columns=["id", "x"]).columns
        ('id', 'x')
    """
    if format not in _FORMATS:
        msg = f"format is {format!r}, expected one of {', '.join(map(repr, _FORMATS))}"
        raise ConfigError(msg)
    if filter is not None and not (type(filter).__module__ == "pyarrow._compute" and type(filter).__name__ == "Expression"):
        msg = f"filter is {type(filter).__name__}, expected an expression of pyarrow.compute, such as pc.field('day') > 3"
        raise ConfigError(msg)
    if "FieldPath(" in str(filter):
        msg = f"filter is {filter}, which names a column by its position: name the columns, as in pc.field('day') > 3"
        raise ConfigError(msg)
    if filesystem is not None:
        as_file_system(filesystem)
    most: Any = max_partition_bytes
    if most is not None and (not isinstance(most, int) or most < 1):
        msg = f"max_partition_bytes is {max_partition_bytes!r}, expected a whole number of bytes, at least 1"
        raise ConfigError(msg)
    named = None if columns is None else column_names(columns, "columns")
    if named == ():
        msg = "columns is empty, expected the name of one column or more: leave it out for all columns"
        raise ConfigError(msg)
    return FileSource(
        paths=_paths(path),
        format=format,
        columns=named,
        filter=filter,
        filesystem=filesystem,
        max_partition_bytes=max_partition_bytes,
    )


def _paths(given: Any) -> tuple[str, ...]:
    found: list[Any] = [given] if isinstance(given, (str, os.PathLike)) else list(given) if isinstance(given, Iterable) else []
    if not found or not all(isinstance(one, (str, os.PathLike)) for one in found):
        msg = f"path is {given!r}, expected a path, a glob, a URL, or a list of them"
        raise ConfigError(msg)
    return tuple(os.fspath(one) for one in found)


def is_source(data: Any) -> bool:
    """Tell whether what is to be scored is files."""
    return isinstance(data, (str, os.PathLike, FileSource))


def source_of(data: Any) -> FileSource:
    """Take a path as a source of its own."""
    return data if isinstance(data, FileSource) else read_files(data)
