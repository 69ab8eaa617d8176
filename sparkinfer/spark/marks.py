"""How an action's tasks know the run that surrounds it, and its label column: by local properties, over Spark Connect by tags.

Runs on: driver (``marked``, ``cancel_marked``, ``tag_of``), worker (``read_marks``).

Invariant: when the block is left, the thread's local properties and the session's tags are as they were; a session that takes neither
runs its actions unmarked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkinfer.profiles import ProfilePlan
from sparkinfer.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark import TaskContext

__all__ = ["Marks", "cancel_marked", "marked", "read_marks", "tag_of"]

_RUN_PROPERTY = "sparkinfer.run"
_LABEL_PROPERTY = "sparkinfer.label"
_PROFILE_PROPERTY = "sparkinfer.profile"
_TAGS_PROPERTY = "spark.job.tags"  # where the server puts a session's tags, each behind words of its own (seen in 4.3)
_TAG = re.compile(r"sparkinfer-(run|label|profile)-((?:[0-9a-f]{2})+)")  # in hexadecimal, since a comma ends a tag


@dataclass(frozen=True)
class Marks:
    """What a task knows of the run that surrounds its action; ``None`` where there is none.

    Attributes:
        run: the run's id.
        label: the run's label column.
        profile: what is to be profiled.
    """

    run: str | None
    label: str | None
    profile: ProfilePlan | None = None


def marked(session: Any, run: str, label: str | None, profile: ProfilePlan | None = None) -> AbstractContextManager[None]:
    """Mark the actions that this thread starts in the block; a thread started inside must be an ``InheritableThread`` to have the marks."""
    plan = profile.to_text() if profile is not None else None
    return _tagged(session, run, label, plan) if is_connect(session) else _with_properties(session, run, label, plan)


def cancel_marked(session: Any, run: str) -> None:
    """Cancel the run's jobs that still run; without a word where the session does not let that be done."""
    with suppress(Exception):
        if is_connect(session):
            session.interruptTag(tag_of(run))
        else:
            session.sparkContext.cancelJobsWithTag(tag_of(run))


def tag_of(run: str) -> str:
    """Give the tag of a run's jobs: of the innermost run that surrounds them."""
    return _tag("run", run)


def read_marks(context: TaskContext) -> Marks:
    """Read the marks of the action that this task belongs to."""
    tags = {
        kind: bytes.fromhex(value).decode(errors="replace") for kind, value in _TAG.findall(context.getLocalProperty(_TAGS_PROPERTY) or "")
    }
    profile = context.getLocalProperty(_PROFILE_PROPERTY) or tags.get("profile")
    return Marks(
        run=context.getLocalProperty(_RUN_PROPERTY) or tags.get("run"),
        label=context.getLocalProperty(_LABEL_PROPERTY) or tags.get("label"),
        profile=ProfilePlan.from_text(profile) if profile else None,
    )


@contextmanager
def _with_properties(session: Any, run: str, label: str | None, profile: str | None) -> Iterator[None]:
    try:
        context = session.sparkContext
        before = {name: context.getLocalProperty(name) for name in (_RUN_PROPERTY, _LABEL_PROPERTY, _PROFILE_PROPERTY)}
        around = {tag for tag in context.getJobTags() if _TAG.fullmatch(tag)}  # a run around this one
    except Exception:  # noqa: BLE001 - a session that hides its context
        yield
        return
    try:
        with suppress(Exception):
            context.setLocalProperty(_RUN_PROPERTY, run)
            context.setLocalProperty(_LABEL_PROPERTY, label)  # none inside a run without one, whatever surrounds that
            context.setLocalProperty(_PROFILE_PROPERTY, profile)
            for tag in around:
                context.removeJobTag(tag)
            context.addJobTag(tag_of(run))  # to cancel by, and to know the run's actions by
        yield
    finally:
        with suppress(Exception):  # the session may have been stopped inside
            for name, value in before.items():
                context.setLocalProperty(name, value)
            context.removeJobTag(tag_of(run))
            for tag in around:
                context.addJobTag(tag)


@contextmanager
def _tagged(session: Any, run: str, label: str | None, profile: str | None) -> Iterator[None]:
    said = {"run": run, "label": label, "profile": profile}
    wanted = {_tag(kind, value) for kind, value in said.items() if value is not None}
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
