"""Files of a path, folder or glob, listed by pyarrow where Spark has no such file system.

Runs on: driver.

Invariant: what Spark would pass over is passed over (names that begin with ``_`` or ``.``); a file is there once,
and the order is that of the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from sparkinfer.artifacts import without_userinfo
from sparkinfer.engine.places import locate_url, url_of
from sparkinfer.exceptions import ConfigError
from sparkinfer.spark.partition_folders import folders_below, part_matches, unbraced

__all__ = ["Listed", "list_files"]

_SIGNS = "*?[\\"


@dataclass(frozen=True)
class Listed:
    """A file and the partition folders above it.

    Attributes:
        url: the file.
        folders: names and values, outermost first.
        info: size and time, where the listing told them.
    """

    url: str
    folders: list[tuple[str, str]]
    info: fs.FileInfo | None = None


def list_files(paths: Sequence[str], file_system: Any) -> list[Listed]:
    """List files.

    Args:
        paths: files, folders, globs; URLs where ``file_system`` is ``None``.
        file_system: in which they are.

    Raises:
        ConfigError: a path leads to no file.
    """
    found = {one.url: one for path in reversed(paths) for one in _list(path, file_system)}
    return [found[url] for url in sorted(found)]


def _list(pattern: str, file_system: Any) -> list[Listed]:
    literal = pattern if file_system is not None else pattern.replace("%", "%25")  # as Hadoop takes what is given: no sign is encoded in it
    system, path = locate_url(literal, file_system)
    patterns = unbraced(path)
    found = {one.path: one for each in patterns for one in _found(system, each) if not _hidden(one.path, each)}
    if not found:
        msg = f"there is no file at {without_userinfo(pattern)}: give a file, a folder or a glob that leads to some"
        raise ConfigError(msg)
    return [
        Listed(one if file_system is not None else url_of(one, pattern), folders_below(one, patterns) or [], found[one])
        for one in sorted(found)
    ]


def _found(system: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    if not any(sign in path for sign in _SIGNS):
        info = system.get_file_info(path)
        if info.type is fs.FileType.File:
            return [info]
        return _below(system, path)
    parts = path.split("/")
    fixed = next(at for at, part in enumerate(parts) if any(sign in part for sign in _SIGNS))
    wanted = parts[fixed:]
    return [one for one in _below(system, "/".join(parts[:fixed])) if _matches(one.path.split("/")[fixed:], wanted)]


def _matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Tell whether a path is what the glob names, or lies in a folder that it names."""
    return len(parts) >= len(wanted) and all(part_matches(part, one) for part, one in zip(parts, wanted, strict=False))


def _below(system: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
    return [info for info in system.get_file_info(selector) if info.type is fs.FileType.File]


def _hidden(path: str, given: str) -> bool:
    parts = [part for part in path.split("/") if part][len([part for part in given.split("/") if part]) - 1 :]
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)
