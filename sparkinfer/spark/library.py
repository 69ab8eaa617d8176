"""This library as one zip, for workers that lack it, or have another version.

Runs on: driver.

Invariant: the zip's name says its version and its content: the same code gives the same name and the same bytes, another code another
name, and a session gets each name once.

``python -m sparkinfer.spark.library FOLDER`` writes it for ``spark-submit --py-files``, and prints where.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparkinfer
from sparkinfer.exceptions import ConfigError
from sparkinfer.spark.session import active_or_local_session
from sparkinfer.spark.ship import deliver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ShippedLibrary", "pack_library", "ship_library"]

_PACKAGE = "sparkinfer"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # a zip's calendar begins here; the files' own times would make other bytes of the same code


@dataclass(frozen=True)
class ShippedLibrary:
    """What ``ship_library`` did.

    Attributes:
        name: the zip's name on the workers: version and content.
        already_there: the session had it before, so nothing was sent.
    """

    name: str
    already_there: bool


def ship_library(spark: SparkSession | None = None) -> ShippedLibrary:
    """Send this library, as the driver has it, to the session's workers; once a session.

    It goes before what is installed there, so it also helps where the workers have another version; a worker that has imported that one
    keeps it, so call this before the session's first action. What the library itself needs is not sent: numpy, pandas, pyarrow,
    cloudpickle, and the model's framework must be installed on the workers.

    Args:
        spark: the session, classic or Connect; the active one if not given.

    Returns:
        The zip's name, and whether the session had it already.

    Raises:
        ConfigError: the session does not take Python files.

    Example:
        ::

            si.ship_library(spark)
            si.predict(photos, model, ...).write.parquet("scored/")
    """
    session = active_or_local_session() if spark is None else spark
    sources = tuple(_sources(files(_PACKAGE), _PACKAGE))
    name = _name(sources)
    try:
        sent = deliver(name, session, lambda staged: _write(sources, staged), pyfile=True)
    except Exception as error:
        msg = (
            f"this session does not take the library as a Python file ({type(error).__name__}: {error}): install "
            f"sparkinfer=={sparkinfer.__version__} on the workers instead"
        )
        raise ConfigError(msg) from error
    return ShippedLibrary(name, already_there=not sent)


def pack_library(folder: str | Path) -> Path:
    """Write the zip, for ``spark-submit --py-files`` or ``addPyFile``.

    Args:
        folder: where to; it is made if it is not there.

    Returns:
        The zip's path.
    """
    sources = tuple(_sources(files(_PACKAGE), _PACKAGE))
    target = Path(folder) / _name(sources)
    target.parent.mkdir(parents=True, exist_ok=True)
    _write(sources, str(target))
    return target


def _sources(folder: Any, inside: str) -> Iterator[tuple[str, bytes]]:
    """Give the package's files, by name: from a folder, or from the zip that the driver itself may run from."""
    for entry in sorted(folder.iterdir(), key=lambda entry: str(entry.name)):
        name = f"{inside}/{entry.name}"
        if not entry.is_dir():
            if not entry.name.endswith(".pyc"):
                yield name, entry.read_bytes()
        elif entry.name != "__pycache__":
            yield from _sources(entry, name)


def _name(sources: tuple[tuple[str, bytes], ...]) -> str:
    digest = hashlib.sha256()
    for name, content in sources:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return f"{_PACKAGE}-{sparkinfer.__version__}-{digest.hexdigest()[:16]}.zip"


def _write(sources: tuple[tuple[str, bytes], ...], target: str) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in sources:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m sparkinfer.spark.library FOLDER\n")
        raise SystemExit(2)
    sys.stdout.write(f"{pack_library(sys.argv[1])}\n")
