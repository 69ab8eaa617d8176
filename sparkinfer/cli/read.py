"""A job file as plain values: safe YAML, environment variables where they are marked, ``--set`` over it.

Runs on: driver.

Invariant: what comes out is made of mappings with text keys, lists, texts, numbers, booleans, null and dates, no larger than the file; a value that came
out of the environment is in no message, which shows its mark instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sparkinfer.exceptions import ConfigError

__all__ = ["Document", "at", "read_job"]

_MOST_BYTES = 1_000_000
_DEEPEST = 40
_MARK = re.compile(r"(?P<literal>\$)?\$\{(?P<inside>[^{}]*)\}")
_ENV = re.compile(r"env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEAST_HIDDEN = 3  # characters; shorter ones are no secrets, and hiding them would garble messages

Way = tuple[str | int, ...]  # the way to a value: keys and positions


@dataclass(frozen=True)
class Document:
    """A job file that was read.

    Attributes:
        path: where it is.
        values: what it says, marks filled in.
        marked: the same as it is written.
        hidden: what came out of the environment, each value with its mark.
    """

    path: Path
    values: Mapping[str, Any]
    marked: Mapping[str, Any]
    hidden: Mapping[str, str] = field(default_factory=dict, repr=False)

    def hide(self, text: str) -> str:
        """Put the mark in the place of every value that came out of the environment, also of its lines, and as ``repr`` writes it.

        Whole numbers stay: they are settings, and hiding them would garble the figures of a message.
        """
        marks = {form: mark for value, mark in self.hidden.items() for form in _forms(value)}
        if not marks:
            return text
        longest_first = "|".join(re.escape(form) for form in sorted(marks, key=len, reverse=True))
        return re.sub(longest_first, lambda found: marks[found[0]], text)


def read_job(path: Path, changes: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> Document:
    """Read a job file.

    Args:
        path: a YAML file of one document.
        changes: ``key.path=value`` texts, the value in YAML, laid over the file in their order. Below a mapping with free keys (``options``,
            ``conf``) the rest of the path is one key, dots and all.
        environment: the variables; the process's own by default.

    Raises:
        ConfigError: it cannot be read, is no plain YAML mapping, or marks a variable that is not set.
    """
    marked = _mapping(_parsed(_text(path), str(path)), str(path))
    for change in changes:
        marked = _changed(marked, change)
    variables = os.environ if environment is None else environment
    filler = _Filler(str(path), variables, path.absolute().parent)
    values = {key: filler.filled(value, (key,)) for key, value in marked.items()}
    return Document(path=path, values=values, marked=marked, hidden=filler.hidden)


def _forms(value: str) -> set[str]:
    """Give the ways in which a message may hold a value, or a part of it that is one line."""
    lines = {value, *(line.strip() for line in value.splitlines())}
    return {form for line in lines for form in (line, repr(line)[1:-1]) if len(form) >= _LEAST_HIDDEN and not form.isdecimal()}


def at(way: Sequence[str | int]) -> str:
    """Spell the way to a value.

    Example:
        >>> at(("predict", "keep", 0))
        'predict.keep[0]'
    """
    text = ""
    for part in way:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = f"the job file {path} cannot be read ({error.strerror or error}): give the path of a YAML file"
        raise ConfigError(msg) from error
    if len(data) > _MOST_BYTES:
        msg = f"the job file {path} has {len(data):,} bytes, expected at most {_MOST_BYTES:,}: is it a job file?"
        raise ConfigError(msg)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        msg = f"the job file {path} is no UTF-8 text (byte {error.start})"
        raise ConfigError(msg) from error


def _parsed(text: str, where: str) -> Any:
    """Make values of YAML, without what makes other objects of it, or more of them than are written."""
    try:
        _refuse_cleverness(text, where)
        loader = _Loader(text)
        loader.where = where
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        msg = f"{where} is no YAML that can be read: {_first_words(error)}"
        raise ConfigError(msg) from error
    except (ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        msg = f"{where} has a number or a date that there is not ({error}): put it in quotes if it is a text"
        raise ConfigError(msg) from error


def _refuse_cleverness(text: str, where: str) -> None:
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            msg = f"{where}, line {line}: anchors (&) and aliases (*) are not taken in a job file: write the value out"
            raise ConfigError(msg)
        if (tag := getattr(event, "tag", None)) is not None:
            msg = f"{where}, line {line}: the tag {tag!r} is not taken in a job file: it holds plain texts, numbers, lists and mappings"
            raise ConfigError(msg)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if depth > _DEEPEST:
            msg = f"{where}, line {line}: nested more than {_DEEPEST} levels deep"
            raise ConfigError(msg)
        if documents > 1:
            msg = f"{where}, line {line}: a second document begins ('---'), expected one job a file"
            raise ConfigError(msg)


class _Loader(yaml.SafeLoader):
    """Safe, and with each key once."""

    where = ""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - yaml's own signature
        seen: set[str] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                msg = f"{self.where}, line {line}: the key {key_node.value!r} reads as {key!r} in YAML, expected a text: put it in quotes"
                raise ConfigError(msg)
            if key in seen:
                msg = f"{self.where}, line {line}: the key {key!r} is there twice: keep one"
                raise ConfigError(msg)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _first_words(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{what} (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else what


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        msg = f"{where} holds {_kind(value)}, expected a mapping that begins with 'version: 1'"
        raise ConfigError(msg)
    return value


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing"}.get(type(value), f"{value!r}")


_FREE = {("spark", "conf"), ("source", "options"), ("sink", "options")}  # mappings whose keys are not ours, and may have dots


def _changed(marked: dict[str, Any], change: str) -> dict[str, Any]:
    way, found, text = change.partition("=")
    keys = way.strip().split(".")
    if not found or not all(keys):
        msg = f"--set {way.strip()!r}: expected key.path=value, such as --set config.batch_size=32"
        raise ConfigError(msg)
    if tuple(keys[:2]) in _FREE and len(keys) > 2:
        keys = [*keys[:2], ".".join(keys[2:])]
    return _laid(marked, keys, _parsed(text, f"--set {way}"), ())


def _laid(there: dict[str, Any], keys: list[str], value: Any, above: Way) -> dict[str, Any]:
    key, *rest = keys
    if not rest:
        return {**there, key: value}
    inner = there.get(key, {})
    if not isinstance(inner, dict):
        msg = f"--set {at((*above, *keys))}: {at((*above, key))} is {_kind(inner)}, which has no keys"
        raise ConfigError(msg)
    return {**there, key: _laid(inner, rest, value, (*above, key))}


class _Filler:
    """Fills marks in; remembers what came out of the environment."""

    def __init__(self, where: str, variables: Mapping[str, str], folder: Path) -> None:
        self._where = where
        self._variables = variables
        self._folder = folder
        self.hidden: dict[str, str] = {}

    def filled(self, value: Any, way: Way) -> Any:
        if isinstance(value, str):
            return self._text(value, way)
        if isinstance(value, list):
            return [self.filled(item, (*way, position)) for position, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: self.filled(item, (*way, key)) for key, item in value.items()}
        return value

    def _text(self, text: str, way: Way) -> str:
        return _MARK.sub(lambda match: self._one(match, way), text)

    def _one(self, match: re.Match[str], way: Way) -> str:
        inside, mark = match["inside"], "${" + match["inside"] + "}"
        if match["literal"]:
            return mark
        if inside == "job:folder":
            return str(self._folder)
        if (marked := _ENV.fullmatch(inside)) is not None:
            return self._variable(marked["name"], mark, way)
        if inside.startswith(("env:", "job:")) or _NAME.fullmatch(inside):  # anything else is Spark's, or nobody's
            name = inside if _NAME.fullmatch(inside) else "NAME"
            msg = (
                f"{self._where}: {at(way)}: {mark} is no mark that is known. An environment variable is written ${{env:{name}}}, the job file's own "
                f"folder ${{job:folder}}, and the text itself $${{{inside}}}"
            )
            raise ConfigError(msg)
        return mark

    def _variable(self, name: str, mark: str, way: Way) -> str:
        if name not in self._variables:
            msg = f"{self._where}: {at(way)}: the environment variable {name} is not set: export {name}=..., or write the value out"
            raise ConfigError(msg)
        value = self._variables[name]
        self.hidden[value] = mark
        return value
