"""A table's folder, as the driver sees it: Hadoop's file systems where there is a JVM, pyarrow's where there is none.

Runs on: driver.

Invariant: paths are relative to the folder, with slashes; a text that is written is there as a whole or not at all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast
from uuid import uuid4

from sparkinfer.spark.session import hides_context, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArrowFolder", "Entry", "Folder", "HadoopFolder", "create_whole", "folder_of"]


@dataclass(frozen=True)
class Entry:
    """A file or folder in a folder.

    Attributes:
        name: its last part.
        is_folder: which of the two it is.
        changed_seconds: when it was last written, by the file system's own clock.
    """

    name: str
    is_folder: bool
    changed_seconds: float


class Folder(Protocol):
    """What the journal, the lease and the manifest need of a file system.

    Attributes:
        url: the folder, as Spark takes it.
    """

    url: str

    def entries(self, path: str = "") -> list[Entry]:
        """List what is in a folder; nothing where there is none."""
        ...

    def read(self, path: str) -> str | None:
        """Give a file's text; ``None`` where there is none."""
        ...

    def create(self, path: str, text: str) -> bool:
        """Write a file that must not be there yet; says whether it was written."""
        ...

    def move(self, source: str, target: str) -> None:
        """Rename a file; its new folder is made."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it; nothing where there is none."""
        ...


def create_whole(folder: Folder, path: str, text: str) -> None:
    """Write a file under another name first, so that a reader sees all of it or nothing, whenever the writer ends."""
    fresh = f"{path}.{uuid4().hex}.tmp"
    folder.create(fresh, text)
    folder.move(fresh, path)


def folder_of(session: SparkSession, path: str | os.PathLike[str]) -> Folder:
    """Open the folder of a table.

    Args:
        session: whose file systems are asked, where it lets its JVM be seen; over Connect the client's own are.
        path: as Spark takes it.

    Raises:
        ConfigError, MissingDependencyError: no file system is known for the path.
    """
    text = os.fspath(path)
    if is_connect(session) or hides_context(session):
        return ArrowFolder(text)
    return HadoopFolder(session, text)


class HadoopFolder:
    """A folder in a file system of the session's own, with its settings and credentials; answers ``Folder``."""

    def __init__(self, session: SparkSession, path: str) -> None:
        """Resolve the path as Spark's writers do."""
        self._jvm = cast("Any", session._jvm)  # noqa: SLF001 - the only way to Hadoop's file systems
        configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - the same
        given: Any = self._jvm.org.apache.hadoop.fs.Path(path)
        self._system = given.getFileSystem(configuration)
        self.url = str(self._system.makeQualified(given).toString())

    def entries(self, path: str = "") -> list[Entry]:
        """List what is in a folder; nothing where there is none."""
        place = self._place(path)
        if not self._system.exists(place):
            return []
        found = self._system.listStatus(place)
        return [Entry(str(one.getPath().getName()), bool(one.isDirectory()), one.getModificationTime() / 1000) for one in found]

    def read(self, path: str) -> str | None:
        """Give a file's text; ``None`` where there is none."""
        place = self._place(path)
        if not self._system.exists(place):
            return None
        stream = self._system.open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create(self, path: str, text: str) -> bool:
        """Write a file that must not be there yet; says whether it was written."""
        place = self._place(path)
        if self._system.exists(place):
            return False
        try:
            stream = self._system.create(place, False)  # noqa: FBT003 - Java has no keywords
        except Exception as error:
            if "FileAlreadyExists" in str(error):
                return False
            raise
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        return True

    def move(self, source: str, target: str) -> None:
        """Rename a file; its new folder is made."""
        place = self._place(target)
        self._system.mkdirs(place.getParent())
        if not self._system.rename(self._place(source), place):
            msg = f"{source} in {self.url} cannot be renamed to {target}"
            raise OSError(msg)

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it; nothing where there is none."""
        self._system.delete(self._place(path), True)  # noqa: FBT003 - Java has no keywords

    def _place(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{path}" if path else self.url)


class ArrowFolder:
    """A folder in a file system that pyarrow or fsspec knows; answers ``Folder``."""

    def __init__(self, path: str) -> None:
        """Open the file system."""
        from sparkinfer.engine.places import absolute, locate_url  # noqa: PLC0415 - brings pyarrow

        self.url = absolute(path).rstrip("/")
        self._system, root = locate_url(self.url)
        self._root = root.rstrip("/")

    def entries(self, path: str = "") -> list[Entry]:
        """List what is in a folder; nothing where there is none."""
        from pyarrow import fs  # noqa: PLC0415

        found = self._system.get_file_info(fs.FileSelector(self._place(path), allow_not_found=True))
        return [Entry(one.base_name, one.type is fs.FileType.Directory, (one.mtime_ns or 0) / 1e9) for one in found]

    def read(self, path: str) -> str | None:
        """Give a file's text; ``None`` where there is none."""
        if not self._there(path):
            return None
        with self._system.open_input_stream(self._place(path)) as stream:
            return str(stream.read().decode())

    def create(self, path: str, text: str) -> bool:
        """Write a file that must not be there yet; says whether it was written."""
        if self._there(path):
            return False
        place = self._place(path)
        self._system.create_dir(place.rpartition("/")[0], recursive=True)
        with self._system.open_output_stream(place) as stream:
            stream.write(text.encode())
        return True

    def move(self, source: str, target: str) -> None:
        """Rename a file; its new folder is made."""
        place = self._place(target)
        self._system.create_dir(place.rpartition("/")[0], recursive=True)
        self._system.move(self._place(source), place)

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it; nothing where there is none."""
        from pyarrow import fs  # noqa: PLC0415

        place = self._place(path)
        kind = self._system.get_file_info(place).type
        if kind is fs.FileType.Directory:
            self._system.delete_dir(place)
        elif kind is not fs.FileType.NotFound:
            self._system.delete_file(place)

    def _there(self, path: str) -> bool:
        from pyarrow import fs  # noqa: PLC0415

        return self._system.get_file_info(self._place(path)).type is not fs.FileType.NotFound

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root
