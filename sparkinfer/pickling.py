"""User code as bytes: pickled on the driver, revived on the workers, with errors that name what cannot travel.

Runs on: both.

Invariant: a failure to pickle names the part that failed, not only the whole.
"""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from sparkinfer.exceptions import ConfigError, ModelLoadError

__all__ = ["dumps", "loads"]

_SESSION_TYPES = ("SparkSession", "SparkContext", "DataFrame", "RDD", "Broadcast", "SparkConf", "JavaObject", "JavaGateway")
_DEEPEST = 8  # attributes of attributes that are looked through for a culprit
_MOST_TRIES = 300


def dumps(obj: object, what: str, persistent_id: Callable[[object], object] | None = None) -> bytes:
    """Pickle by value what no worker can import, and by reference what it can.

    Args:
        obj: a function, a class, or any object.
        what: how messages call it, such as ``"the loader of PythonModel(load)"``.
        persistent_id: as in ``pickle.Pickler``: what it answers for goes elsewhere.

    Raises:
        ConfigError: it cannot be pickled; names the attribute, variable or item that is to blame.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, persistent_id).dump(obj)
    except Exception as error:
        raise ConfigError(_refusal(obj, what, persistent_id, error)) from error
    return buffer.getvalue()


def loads(data: bytes, what: str, persistent_load: Callable[[Any], object] | None = None) -> Any:
    """Revive what ``dumps`` made.

    Raises:
        ModelLoadError: a module is missing here, or is another version; says how to bring it.
    """
    try:
        return _Unpickler(io.BytesIO(data), persistent_load).load()
    except ModuleNotFoundError as error:
        msg = (
            f"{what} needs the module {error.name!r}, which is not importable here: install it on the workers, or ship it with "
            "spark-submit --py-files, spark.addArtifacts(..., pyfile=True) or sc.addPyFile(...)"
        )
        raise ModelLoadError(msg) from error
    except Exception as error:
        msg = (
            f"{what} cannot be revived here ({type(error).__name__}: {error}): are the same versions of Python and of its packages installed "
            "here as on the driver?"
        )
        raise ModelLoadError(msg) from error


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, buffer: io.BytesIO, persistent_id: Callable[[object], object] | None) -> None:
        super().__init__(buffer)
        self._elsewhere = persistent_id

    def persistent_id(self, obj: object) -> object:
        return None if self._elsewhere is None else self._elsewhere(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, persistent_load: Callable[[Any], object] | None) -> None:
        super().__init__(buffer)
        self._elsewhere = persistent_load

    def persistent_load(self, pid: Any) -> object:
        if self._elsewhere is None:
            msg = f"persistent id {pid!r} has no place to come from"
            raise pickle.UnpicklingError(msg)
        return self._elsewhere(pid)


def _refusal(obj: object, what: str, persistent_id: Callable[[object], object] | None, error: Exception) -> str:
    search = _Search(persistent_id, error)
    way, culprit = search.deepest(obj)
    kind = type(culprit).__name__
    where = f"{way} in {what}, a {kind}," if way else f"{what}, a {kind},"
    if _of_the_session(culprit):
        return f"{where} cannot travel: the session cannot be used on workers. Use plain values instead, or give a loading function (loader) or a path"
    why = str(search.error).splitlines()[0] if str(search.error) else "no reason given"
    return f"{where} cannot travel to the workers ({type(search.error).__name__}: {why}). Give a loading function (loader) that makes it there, or a path"


def _of_the_session(obj: object) -> bool:
    return type(obj).__name__ in _SESSION_TYPES and type(obj).__module__.startswith(("pyspark.", "py4j."))


class _Search:
    """Looks for the deepest part that cannot be pickled, within a bounded number of tries."""

    def __init__(self, persistent_id: Callable[[object], object] | None, error: Exception) -> None:
        self.error = error  # the last one, which is the culprit's own
        self._persistent_id = persistent_id
        self._tries = 0
        self._seen: set[int] = set()

    def deepest(self, obj: object) -> tuple[str, object]:
        """Give the way to the culprit, in words, and the culprit; no words if it is ``obj`` itself."""
        way: list[str] = []
        culprit = obj
        while len(way) < _DEEPEST and not _of_the_session(culprit):
            part = next((p for p in _parts(culprit) if self._fails(p[1])), None)
            if part is None:
                break
            way.insert(0, part[0])
            culprit = part[1]
        return " in ".join(way), culprit

    def _fails(self, obj: object) -> bool:
        if self._tries >= _MOST_TRIES or id(obj) in self._seen:
            return False
        self._tries += 1
        self._seen.add(id(obj))
        try:
            _Pickler(io.BytesIO(), self._persistent_id).dump(obj)
        except Exception as error:  # noqa: BLE001 - whatever it raises, it cannot be pickled
            self.error = error
            return True
        return False


def _parts(obj: object) -> Iterator[tuple[str, object]]:
    if isinstance(obj, types.MethodType):
        yield "the object", obj.__self__
        yield "the function", obj.__func__
    elif isinstance(obj, types.FunctionType):
        yield from _parts_of_function(obj)
    elif isinstance(obj, functools.partial):
        yield "the function", obj.func
        yield from ((f"argument {i}", value) for i, value in enumerate(obj.args))
        yield from ((f"argument {name!r}", value) for name, value in obj.keywords.items())
    elif isinstance(obj, dict):
        yield from ((f"item {str(key)!r}", value) for key, value in list(obj.items()))
    elif isinstance(obj, (list, tuple, set, frozenset)):
        yield from ((f"item {i}", value) for i, value in enumerate(obj))
    elif isinstance(obj, types.CellType):
        yield "the value", obj.cell_contents
    elif isinstance(obj, type):
        yield from ((f"attribute {name!r}", value) for name, value in vars(obj).items() if not name.startswith("__") or name == "__init__")
    else:
        state = {**getattr(obj, "__dict__", {}), **{n: getattr(obj, n) for n in _slots(type(obj)) if hasattr(obj, n)}}
        yield from ((f"attribute {name!r} of {type(obj).__name__}", value) for name, value in state.items())
        yield f"the class {type(obj).__name__}", type(obj)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"variable {name!r}", cell.cell_contents
        except ValueError:  # an empty cell: the name is not bound yet
            continue
    for name in dict.fromkeys(_names(code)):
        if name in function.__globals__:
            yield f"global {name!r}", function.__globals__[name]
    yield from ((f"default {i}", value) for i, value in enumerate(function.__defaults__ or ()))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # a lambda or a function inside
            yield from _names(constant)


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
