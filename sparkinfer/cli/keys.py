"""What a job file's keys may hold, and sections whose keys are the fields of a dataclass.

Runs on: driver.

Invariant: a dataclass of the library is the one list of its keys; what a file does not set keeps the library's own default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

__all__ = ["Count", "Function", "Options", "Section", "Texts", "exactly_one", "keys_of"]

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


# --- values -------------------------------------------------------------------------------------------------------------


def _function(value: Any) -> str:
    if not isinstance(value, str) or not _FUNCTION.fullmatch(value):
        msg = f"expected a function as module:function, such as scoring:load, got {value!r}"
        raise ValueError(msg)
    return value


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        msg = f"expected a whole number, got {str(value).lower()}"
        raise ValueError(msg)  # noqa: TRY004 - pydantic takes a ValueError for its own
    return value


def _option(value: Any) -> str:
    """Write an option as Spark takes it: a text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    msg = f"expected a text, a number or true or false, got a value of the type {type(value).__name__}"
    raise ValueError(msg)


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Function = Annotated[str, BeforeValidator(_function)]
Whole = Annotated[int, BeforeValidator(_no_switch)]
Count = Annotated[int, BeforeValidator(_no_switch), Field(ge=1)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]  # one text, or a list of them
Options = dict[str, Annotated[str, BeforeValidator(_option)]]


class Section(BaseModel):
    """A mapping of known keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def given(self) -> dict[str, Any]:
        """Give what the file sets, by the Python names; what it does not set keeps the library's own default."""
        return {name: getattr(self, name) for name in self.model_fields_set}


# --- keys that are a dataclass's fields ---------------------------------------------------------------------------------


class _OneSource(Section):
    @model_validator(mode="after")
    def _one_source(self) -> _OneSource:
        exactly_one(self, ("source", "factory"))
        return self


def keys_of(kind: type, *, factory: bool = False, each: bool = False) -> type[Section]:
    """Make a section whose keys are a dataclass's fields: functions as ``module:function``, paths as texts.

    Args:
        kind: the dataclass.
        factory: its ``source`` is an object, a function or a path: here it is the key ``source``, a path, or the key ``factory``, a function.
        each: try every value in the dataclass by itself, so that one out of its range is told with its key's path.
    """
    hints = get_type_hints(kind)
    keys: dict[str, Any] = {}
    for field in fields(kind):
        hint = _plain(hints[field.name])
        if each:
            hint = Annotated[hint, AfterValidator(_tried(kind, field.name))]
        needed = field.default is field.default_factory  # both are MISSING
        keys[field.name] = (hint, ... if needed else None)
    if factory:
        keys |= {"source": (str | None, None), "factory": (Function | None, None)}
    made: type[Section] = create_model(kind.__name__, __base__=_OneSource if factory else Section, **keys)
    return made


def exactly_one(section: BaseModel, names: Sequence[str]) -> None:
    """Refuse a section that sets none of some keys, or several."""
    given = [name for name in names if getattr(section, name) is not None]
    if len(given) != 1:
        msg = f"expected exactly one of {', '.join(names)}, got {' and '.join(given) or 'none'}"
        raise ValueError(msg)


def _plain(hint: Any) -> Any:
    """Give the type that a job file has for an argument's type."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kept = tuple(_plain(one) for one in inside if get_origin(one) is not os.PathLike)
        return Union[kept]  # noqa: UP007 - made of a tuple
    if origin is Callable or hint is Callable:
        return Function
    if origin is Sequence:
        return Texts
    if hint is int:
        return Whole
    return dict[str, Any] if origin in (dict, Mapping) else hint


def _tried(kind: type, name: str) -> Callable[[Any], Any]:
    def tried(value: Any) -> Any:
        kind(**{name: value})
        return value

    return tried
