"""What pydantic found wrong with a job file, in sentences: the key's path, what was expected, what came, the nearest right key.

Runs on: driver.

Invariant: no value that came out of the environment and no option's value is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkinfer.cli.read import at
from sparkinfer.exceptions import nearest

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from sparkinfer.cli.read import Document

__all__ = ["MisplacedError", "known_keys", "sentences"]

_EXPECTED = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping of keys",
    "none": "nothing",
}
_PRIVATE = ("options", "conf", "params")  # may hold passwords
_LONGEST = 60  # characters of a value that is shown


class MisplacedError(ValueError):
    """Something wrong below the value that a validator was given.

    Attributes:
        way: from that value to what is wrong.
    """

    def __init__(self, way: Sequence[str | int], message: str) -> None:
        """Take the way, and the sentence without it."""
        super().__init__(message)
        self.way = tuple(way)


def sentences(error: ValidationError, document: Document, known: Any) -> list[str]:
    """Tell each wrong key once, in the order of the file's sections.

    Args:
        error: pydantic's.
        document: what was validated; values are shown as they are written there.
        known: gives the known keys at a way, as ``known_keys`` does.
    """
    found: dict[tuple[str | int, ...], list[dict[str, Any]]] = {}
    for one in error.errors(include_url=False):
        way = _real(one, document.values)
        cause = one.get("ctx", {}).get("error")
        if isinstance(cause, MisplacedError):
            way = (*way, *cause.way)
        found.setdefault(way, []).append(dict(one))
    return [document.hide(f"{at(way) or 'the job'}: {_sentence(way, these, document, known)}") for way, these in found.items()]


def known_keys(model: type[BaseModel]) -> list[str]:
    """Name a section's keys as they are written in a file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _real(error: Mapping[str, Any], values: Any) -> tuple[str | int, ...]:
    """Cut pydantic's way to what is in the file: it adds the names of the types that a value was tried as."""
    way: list[str | int] = []
    for part in error["loc"]:
        in_mapping = isinstance(values, dict) and part in values
        if in_mapping or (isinstance(values, list) and isinstance(part, int) and part < len(values)):
            values = values[part]
        elif error["type"] == "missing" and isinstance(values, dict) and part == error["loc"][-1]:
            return (*way, part)
        else:
            break
        way.append(part)
    return tuple(way)


def _sentence(way: tuple[str | int, ...], errors: list[dict[str, Any]], document: Document, known: Any) -> str:
    kinds = {error["type"] for error in errors}
    if "missing" in kinds:
        return "is missing, and the job cannot do without it"
    if "extra_forbidden" in kinds:
        return f"there is no such key. {nearest(str(way[-1]), known(way[:-1]))}"
    told = [str(error["ctx"]["error"]) for error in errors if error["type"] == "value_error"]
    if told:
        return told[0]
    expected = " or ".join(dict.fromkeys(_expected(error) for error in errors))
    return f"expected {expected}, got {_shown(way, document)}{_hint(way, errors, document)}"


def _expected(error: Mapping[str, Any]) -> str:
    kind = str(error["type"])
    if kind == "literal_error":
        return f"{error['ctx']['expected']}"
    if kind == "greater_than_equal":
        return f"at least {error['ctx']['ge']}"
    return _EXPECTED.get(kind.partition("_")[0], str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, "))


def _hint(way: tuple[str | int, ...], errors: list[dict[str, Any]], document: Document) -> str:
    value = _value(way, document.marked)
    expected = " ".join(error["ctx"]["expected"] for error in errors if error["type"] == "literal_error")
    names = [name.strip("' ") for name in expected.replace(" or ", ",").split(",") if name]
    if not names or not isinstance(value, str):
        return ""
    hint = nearest(value, names)
    return f". {hint}" if hint.startswith("Did you mean") else ""


def _shown(way: tuple[str | int, ...], document: Document) -> str:
    value = _value(way, document.marked)
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if len(repr(value)) > _LONGEST else repr(value)
    if any(part in _PRIVATE for part in way):
        return "nothing" if value is None else f"a value of the type {type(value).__name__}"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _value(way: Sequence[str | int], values: Any) -> Any:
    for part in way:
        if isinstance(values, dict):
            values = values.get(part)
        elif isinstance(values, list) and isinstance(part, int):
            values = values[part]
        else:
            return values
    return values
