"""How an action's tasks know the run that surrounds it, and its label column: by local properties, over Spark Connect by tags.

Runs on: driver (``marked``), worker (``read_marks``).

Invariant: when the block is left, the thread's local properties and the session's tags are as they were; a session that takes neither
runs its actions unmarked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkinfer.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark import TaskContext

__all__ = ["Marks", "marked", "read_marks"]

_RUN_PROPERTY = "sparkinfer.run"
_LABEL_PROPERTY = "sparkinfer.label"
_TAGS_PROPERTY = "spark.job.tags"  # where the server puts a session's tags, each behind words of its own (seen in 4.3)
_TAG = re.compile(r"sparkinfer-(run|label)-((?:[0-9a-f]{2})+)")  # in hexadecimal, since a comma ends a tag


@dataclass(frozen=True)
class Marks:
    """What a task knows of the run that surrounds its action; ``None`` where there is none.

    Attributes:
        run: the run's id.
        label: the run's label column.
    """

    run: str | None
    label: str | None


def marked(session: Any, run: str, label: str | None) -> AbstractContextManager[None]:
    """Mark the actions that this thread starts in the block; a thread started inside must be an ``InheritableThread`` to have the marks."""
    return _tagged(session, run, label) if is_connect(session) else _with_properties(session, run, label)


def read_marks(context: TaskContext) -> Marks:
    """Read the marks of the action that this task belongs to."""
    tags = {
        kind: bytes.fromhex(value).decode(errors="replace") for kind, value in _TAG.findall(context.getLocalProperty(_TAGS_PROPERTY) or "")
    }
    return Marks(
        run=context.getLocalProperty(_RUN_PROPERTY) or tags.get("run"), label=context.getLocalProperty(_LABEL_PROPERTY) or tags.get("label")
    )


@contextmanager
def _with_properties(session: Any, run: str, label: str | None) -> Iterator[None]:
    try:
        context = session.sparkContext
        before = {name: context.getLocalProperty(name) for name in (_RUN_PROPERTY, _LABEL_PROPERTY)}
    except Exception:  # noqa: BLE001 - a session that hides its context
        yield
        return
    try:
        with suppress(Exception):
            context.setLocalProperty(_RUN_PROPERTY, run)
            context.setLocalProperty(_LABEL_PROPERTY, label)  # none inside a run without one, whatever surrounds that
        yield
    finally:
        with suppress(Exception):  # the session may have been stopped inside
            for name, value in before.items():
                context.setLocalProperty(name, value)


@contextmanager
def _tagged(session: Any, run: str, label: str | None) -> Iterator[None]:
    wanted = {_tag("run", run)} | ({_tag("label", label)} if label is not None else set())
    try:
        before = {tag for tag in session.getTags() if _TAG.fullmatch(tag)}  # a run around this one
    except Exception:  # noqa: BLE001 - a client or a server that knows no tags
        yield
        return
    try:
        with suppress(Exception):
            _change_tags(session, before, wanted)
        yield
    finally:
        with suppress(Exception):  # the session may have been stopped inside
            _change_tags(session, wanted, before)


def _tag(kind: str, value: str) -> str:
    return f"sparkinfer-{kind}-{value.encode().hex()}"


def _change_tags(session: Any, off: set[str], on: set[str]) -> None:
    for tag in off:
        session.removeTag(tag)
    for tag in on:
        session.addTag(tag)
