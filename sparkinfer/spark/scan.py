"""The direct road's driver side: what is in the files of a source, and who reads what.

Runs on: driver.

Invariant: footers are read here and nothing else; what a partition gets is fixed here, with each file's size and time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import types as spark

from sparkinfer.arguments import check_columns
from sparkinfer.engine.places import locate_url
from sparkinfer.engine.reading import FileFormat, FileWork, Reading, decoded_bytes, file_columns, open_parquet, shown
from sparkinfer.engine.retype import Unfit, find_all
from sparkinfer.engine.splits import Piece, SourceFile, share_out
from sparkinfer.exceptions import ConfigError, ReadError, SchemaError
from sparkinfer.pickling import dumps
from sparkinfer.spark.arrival import travelling
from sparkinfer.spark.session import is_connect, setting, setting_is_on
from sparkinfer.spark.types import carried_by_arrow, sent_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from sparkinfer.spark.files import FileSource

__all__ = ["FileTable", "check_carried"]

_UNKNOWN_PARALLELISM = 16  # Connect does not tell how many tasks run at once
# Decoded bytes, of which a worker holds a chunk at a time. A task costs Spark a fixed time, also one that does nothing: 4 GB of vectors took
# 14.5 s CPU in tasks of 128 MB, and 12.7 s in tasks of 512 MB. Pictures keep a model busy for longer.
_PARTITION_BYTES: dict[FileFormat, int] = {"parquet": 512 << 20, "binary": 128 << 20, "text": 128 << 20}
_FOOTERS_AT_ONCE = 16
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
