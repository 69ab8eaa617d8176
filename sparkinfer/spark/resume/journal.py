"""Files of a table exchanged for others, so that being killed in between changes nothing of the end.

Runs on: driver.

Invariant: before the journal is written the table is as it was; from then on only the new state can come of it, and ``finish`` brings it about,
however often it is called and wherever the last call ended.

::

    stage       Spark writes the new files to _sparkinfer/staged/<id>/
    commit      _sparkinfer/journal.json names what comes and what goes       <- from here on there is no way back
    finish      1 move the new files in   2 delete the old ones   3 delete the journal, then what was staged
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from sparkinfer.exceptions import ConfigError
from sparkinfer.spark.resume.folders import create_whole

if TYPE_CHECKING:
    from sparkinfer.spark.resume.folders import Folder

__all__ = ["JOURNAL", "STAGED", "commit", "finish", "new_stage"]

JOURNAL = "_sparkinfer/journal.json"
STAGED = "_sparkinfer/staged"


def new_stage() -> str:
    """Name a folder for new files, relative to the table's."""
    return f"{STAGED}/{uuid4().hex}"


def commit(folder: Folder, stage: str, old: Sequence[str]) -> None:
    """Decide that the files that are staged take the place of old ones.

    Args:
        folder: the table's.
        stage: where Spark wrote them.
        old: names of files of the table.
    """
    new = [entry.name for entry in folder.entries(stage) if not entry.is_folder and not entry.name.startswith(("_", "."))]
    create_whole(folder, JOURNAL, json.dumps({"stage": stage, "new": new, "old": list(old)}))


def finish(folder: Folder) -> bool:
    """Carry out what was decided, if anything was, and clear away what was staged.

    Returns:
        Whether there was a journal.

    Raises:
        ConfigError: the journal cannot be read.
    """
    text = folder.read(JOURNAL)
    if text is not None:
        stage, new, old = _read(text, f"{folder.url}/{JOURNAL}")
        waiting = {entry.name for entry in folder.entries(stage)}
        for name in new:
            if name in waiting:  # else an earlier call moved it
                folder.move(f"{stage}/{name}", name)
        for name in old:
            folder.delete(name)
            folder.delete(f".{name}.crc")  # Hadoop's checksum beside a local file
        folder.delete(JOURNAL)
    folder.delete(STAGED)
    return text is not None


def _read(text: str, where: str) -> tuple[str, list[str], list[str]]:
    try:
        told = json.loads(text)
        return str(told["stage"]), list(told["new"]), list(told["old"])
    except (ValueError, TypeError, KeyError) as error:
        msg = f"{where} is no journal of sparkinfer's ({type(error).__name__}: {error}): was it changed by hand? Put it back, or score to another path"
        raise ConfigError(msg) from error
