"""Pickled code, compared across processes: a digest that does not change when the program is started again.

Runs on: driver.

Invariant: nothing of the pickle is run or imported; what decides an answer (bytecode, constants, defaults, closures, globals, values) counts, and what
differs from one process to the next does not: the order of sets, ids of classes, file names and line numbers.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

__all__ = ["code_digest"]

_CODE_PLACES = {18: (10, 13, 14), 16: (10, 12, 13)}  # file name, first line, line table among CodeType's arguments: from 3.11 on, in 3.10
_PLACES_OF_MODULES = ("__file__", "__path__")  # of a function's module, which a notebook's restart changes
_PLACES_OF_CLASSES = ("__firstlineno__", "__static_attributes__")  # from Python 3.13 on; the second has the order of a set


def code_digest(pickled: bytes) -> str:
    """Hash what ``sparkinfer.pickling.dumps`` made, so that the same code has the same hash in another process.

    Python's minor version and cloudpickle's version count, since they decide how code is compiled and taken apart. A function that is pickled by
    reference counts by its name and, where its module is neither the standard library's nor installed, by that module's source file.

    Args:
        pickled: the bytes; empty where there is no function.

    Returns:
        Hex; ``""`` for no bytes.
    """
    if not pickled:
        return ""
    try:
        return _Digest().of(_Reader(io.BytesIO(pickled)).load())
    except Exception:  # noqa: BLE001 - a pickle that cannot be read so (too deep, of another kind): its bytes refuse too much, and never too little
        return _hash("bytes", pickled)


# --- reading a pickle without running it ---------------------------------------------------------------------------------


class _Name:
    """A class or function that a pickle names; calling it gives what the call would make, unmade."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __call__(self, *args: Any) -> Any:
        if self.name.endswith("setstate") and args and isinstance(args[0], _Made):  # cloudpickle's way to fill a function or a class
            args[0].__setstate__(args[1:])
            return args[0]
        return _Made(self, args)


class _Made:
    """An object that a pickle would make: by what, of what, and what was put into it afterwards."""

    def __init__(self, maker: Any, args: Any) -> None:
        self.maker = maker
        self.args = args
        self.added: list[Any] = []

    def __call__(self, *args: Any) -> _Made:
        return _Made(self, args)

    def __setstate__(self, state: Any) -> None:
        self.added.append(("state", state))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.added.append(("item", key, value))

    def append(self, value: Any) -> None:
        self.added.append(("append", value))

    def extend(self, values: Any) -> None:
        self.added.extend(("append", value) for value in values)

    def add(self, value: Any) -> None:
        self.added.append(("add", value))


class _Reader(pickle._Unpickler):  # noqa: SLF001 - the only reader whose steps can be replaced; the C one cannot
    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(pickle._Unpickler.dispatch)  # noqa: SLF001
    stack: list[Any]

    def find_class(self, module: str, name: str) -> _Name:
        return _Name(module, name)

    def persistent_load(self, pid: Any) -> _Made:
        return _Made("persistent", (pid,))

    def _new(self) -> None:
        args = self.stack.pop()
        self.stack.append(_Made(self.stack.pop(), args))

    def _new_with_keywords(self) -> None:
        keywords = self.stack.pop()
        args = self.stack.pop()
        self.stack.append(_Made(self.stack.pop(), (args, keywords)))

    dispatch[pickle.NEWOBJ[0]] = _new
    dispatch[pickle.NEWOBJ_EX[0]] = _new_with_keywords


# --- hashing what was read -----------------------------------------------------------------------------------------------


class _Digest:
    """Hashes a graph of values by their structure; one for each pickle."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, str]] = {}  # with the value, so that no other one gets its id
        self._open: dict[int, int] = {}  # on the way from the root: their depth, by which a cycle is told

    def of(self, value: Any) -> str:
        """Give the hash of a value."""
        if isinstance(value, (bytes, bytearray)):
            return _hash("bytes", bytes(value))
        if isinstance(value, (str, int, float, complex, bool, type(None))):
            return _hash(type(value).__name__, repr(value).encode())
        if isinstance(value, _Name):
            return _hash("name", f"{value.module}.{value.name} {_own_source(value.module)}".encode())
        key = id(value)
        if key in self._done:
            return self._done[key][1]
        if key in self._open:
            return _hash("cycle", str(self._open[key]).encode())
        self._open[key] = len(self._open)
        digest = _hash(type(value).__name__, *self._parts(value))
        del self._open[key]
        self._done[key] = (value, digest)
        return digest

    def _parts(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, (set, frozenset)):
            digests = sorted(self.of(one) for one in value)
        elif isinstance(value, dict):
            digests = [self.of(one) for pair in value.items() if pair[0] not in _PLACES_OF_CLASSES for one in pair]
        elif isinstance(value, (list, tuple)):
            digests = [self.of(one) for one in value]
        elif isinstance(value, _Made):
            digests = [self.of(value.maker), *(self.of(one) for one in _arguments(value)), *(self.of(one) for one in value.added)]
        else:
            digests = [repr(value)]
        return (digest.encode() for digest in digests)


def _arguments(made: _Made) -> list[Any]:
    """Give what an object is made of, without what belongs to the process that pickled it."""
    args = list(made.args) if isinstance(made.args, tuple) else [made.args]
    name = made.maker.name if isinstance(made.maker, _Name) else ""
    if isinstance(made.maker, _Made) and made.maker.args == ("CodeType",):
        skipped = _CODE_PLACES.get(len(args), ())
        return [one for place, one in enumerate(args) if place not in skipped]
    if name in ("_make_skeleton_class", "_make_skeleton_enum"):
        return [None if isinstance(one, str) and _is_hex_id(one) else one for one in args]  # cloudpickle's class_tracker_id
    if name == "_make_function":
        return [{key: item for key, item in one.items() if key not in _PLACES_OF_MODULES} if isinstance(one, dict) else one for one in args]
    return args


def _is_hex_id(text: str) -> bool:
    return len(text) == 32 and all(letter in "0123456789abcdef" for letter in text)


def _hash(kind: str, *parts: bytes) -> str:
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _own_source(module: str) -> str:
    """Hash the source file of a module of the user's own; nothing for the standard library and for what is installed."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or not file or not Path(file).is_file():
        return ""
    path = Path(file).resolve()
    installed = "site-packages" in path.parts or "dist-packages" in path.parts
    if installed or path.is_relative_to(Path(sysconfig.get_paths()["stdlib"]).resolve()):
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()
