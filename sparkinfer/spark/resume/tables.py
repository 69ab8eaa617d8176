"""Where scored rows are kept: one Protocol, and plain Parquet's answer to it.

Runs on: driver.

Invariant: a reader of the path sees rows that were scored, each key once, but for the moment in which files are exchanged; nothing but Parquet lies
there beside the folder ``_sparkinfer``, which Parquet readers pass over, as they do Hadoop's ``_temporary``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

from sparkinfer.exceptions import ConfigError
from sparkinfer.spark.resume import journal
from sparkinfer.spark.resume.census import keys_of, matching
from sparkinfer.spark.resume.folders import HadoopFolder, create_whole
from sparkinfer.spark.resume.lease import LEASE, Lease, leased
from sparkinfer.spark.resume.manifest import Manifest, refuse_mixture
from sparkinfer.spark.udf import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from sparkinfer.spark.resume.folders import Folder

__all__ = ["ParquetTable", "ResumableTable"]

MANIFEST = "_sparkinfer/manifest.json"
_FILE = "_sparkinfer_file"
_EACH_TASK = ("mapreduce.fileoutputcommitter.algorithm.version", "2")


class ResumableTable(Protocol):
    """What ``score_to`` needs of a table; a format with transactions answers each verb by one of its own (append, delete, a table's properties)."""

    def opened(self, asked: Manifest) -> AbstractContextManager[None]:
        """Hold the table against other runs, bring what a killed one left to its end, and refuse another manifest than its own."""
        ...

    def rows(self) -> DataFrame:
        """Give the rows that are committed."""
        ...

    def append(self, rows: DataFrame) -> None:
        """Add rows, in parts that stay when the driver dies."""
        ...

    def remove(self, keys: DataFrame, key: Sequence[str]) -> None:
        """Take out the rows of some keys, all or none."""
        ...

    def keep_one(self, key: Sequence[str]) -> None:
        """Take out all but one of the rows that have the same key."""
        ...

    def settle(self) -> None:
        """Leave a table that can be read, also where there was no row to write."""
        ...


class ParquetTable:
    """A folder of plain Parquet; answers ``ResumableTable``."""

    def __init__(self, session: SparkSession, folder: Folder, schema: StructType) -> None:
        """Take the folder as it is.

        Args:
            session: that reads and writes.
            folder: the table's, as the driver sees it.
            schema: of the rows.
        """
        self._session = session
        self._folder = folder
        self._schema = schema
        self._lease: Lease | None = None

    @contextmanager
    def opened(self, asked: Manifest) -> Iterator[None]:
        """Hold the table against other runs, bring what a killed one left to its end, and refuse another manifest than its own.

        Raises:
            ConfigError: another run is at work; the path is something else, or was scored otherwise.
        """
        self._refuse_strangers(asked)
        with leased(self._folder) as self._lease:
            self._refuse_strangers(asked)  # another run may have begun the table in between
            self._check_same_place()
            if self._folder.read(MANIFEST) is None:
                create_whole(self._folder, MANIFEST, asked.text())
            self._folder.delete("_temporary")  # of tasks whose driver is dead; they can no longer commit
            journal.finish(self._folder)
            yield

    def rows(self) -> DataFrame:
        """Give the rows that are committed."""
        return self._session.read.schema(self._schema).parquet(self._folder.url)

    def append(self, rows: DataFrame) -> None:
        """Add rows, in parts that stay when the driver dies: each task's file is moved in when the task is done.

        Hadoop's committer does so in its second algorithm, which is asked for in this write alone; its first one (Spark's default) moves all
        files at the end of the job.
        """
        self._check()
        rows.write.mode("append").option(*_EACH_TASK).parquet(self._folder.url)

    def remove(self, keys: DataFrame, key: Sequence[str]) -> None:
        """Take out the rows of some keys, all or none.

        Args:
            keys: what ``keys_of`` gives.
            key: the key columns of the table.
        """
        held = self._keys_and_files(key)
        touched = matching(held, keys, held.columns[:-1], how="left_semi")
        self._rewrite(touched, lambda rows: matching(rows, keys, key, how="left_anti"))

    def keep_one(self, key: Sequence[str]) -> None:
        """Take out all but one of the rows that have the same key."""
        held = self._keys_and_files(key)
        names = held.columns[:-1]
        doubled = held.groupBy(*names).count().where("count > 1").select(*names)
        touched = matching(held, doubled, names, how="left_semi")
        self._rewrite(touched, lambda rows: rows.dropDuplicates(list(key)))

    def settle(self) -> None:
        """Write a file without rows, where there is no file at all: a reader of the path finds its columns."""
        if not any(entry.name.endswith(".parquet") for entry in self._folder.entries()):
            self.append(self._session.createDataFrame([], self._schema))

    def _keys_and_files(self, key: Sequence[str]) -> DataFrame:
        """Give each row's key and, as the last column, its file."""
        aliases = keys_of(self.rows(), key).columns
        keys = (F.col(quoted(name)).alias(alias) for name, alias in zip(key, aliases, strict=True))
        return self.rows().select(*keys, F.input_file_name().alias(_FILE))

    def _rewrite(self, touched: DataFrame, change: Callable[[DataFrame], DataFrame]) -> None:
        """Exchange the files of some rows for what a change leaves of them."""
        urls = [str(row[0]) for row in touched.select(_FILE).distinct().collect()]
        if not urls:
            return
        old = [url.rpartition("/")[2] for url in urls]
        stage = journal.new_stage()
        rows = self._session.read.schema(self._schema).parquet(*(f"{self._folder.url}/{name}" for name in old))
        change(rows).write.parquet(f"{self._folder.url}/{stage}")
        self._check()
        journal.commit(self._folder, stage, old)
        journal.finish(self._folder)

    def _refuse_strangers(self, asked: Manifest) -> None:
        url = self._folder.url
        text = self._folder.read(MANIFEST)
        if text is not None:
            refuse_mixture(Manifest.read(text, f"{url}/{MANIFEST}"), asked, url)
            return
        names = sorted(entry.name for entry in self._folder.entries() if entry.name != "_sparkinfer")
        if names:
            msg = (
                f"{url} holds {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}, and no {MANIFEST} that says what it was scored with: give a "
                "path of its own, where nothing is yet"
            )
            raise ConfigError(msg)

    def _check_same_place(self) -> None:
        """Without the session's JVM the driver sees the folder by itself: does Spark see the same one?"""
        if isinstance(self._folder, HadoopFolder):
            return
        here = self._folder.read(LEASE)
        try:
            there = "\n".join(row[0] for row in self._session.read.text(f"{self._folder.url}/{LEASE}").collect())
        except Exception as error:  # noqa: BLE001 - whichever it is, Spark does not see the file
            there = f"{type(error).__name__}: {error}".splitlines()[0]
        if there != here:
            msg = (
                f"{self._folder.url} is not the same folder for this process and for Spark, which found {there!r} where {LEASE} was just written: over "
                "Connect give a path or URL that both see"
            )
            raise ConfigError(msg)

    def _check(self) -> None:
        if self._lease is not None:
            self._lease.check()
