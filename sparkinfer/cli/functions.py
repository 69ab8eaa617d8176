"""The functions that a job file names, found and made fit to travel.

Runs on: driver.

Invariant: while the block is open, what lies beside the job file or in the working directory can be imported, and everything that was imported from there
goes to the workers by value; afterwards the import path and the loaded modules are as they were.

By value, and not by ``addPyFile``: a worker that lives on keeps the module that it imported first, so that a function that was edited between two jobs of
one session would run in its old form, and Spark 4.3 refuses the same file name with other bytes.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle

from sparkinfer.exceptions import ConfigError, nearest

__all__ = ["Functions", "functions_beside"]


class Functions:
    """Finds functions by ``module:function``; made by ``functions_beside``."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        """Take the folders whose modules travel by value."""
        self._folders = folders
        self._registered: dict[str, types.ModuleType] = {}
        self._loaded_before = frozenset(sys.modules)

    def find(self, name: str, key: str) -> Callable[..., Any]:
        """Import a function.

        Args:
            name: ``module:function``; a function may be ``Class.method``.
            key: the job file's key, for messages.

        Raises:
            ConfigError: the module is not there or cannot be imported, or has no such function.
        """
        module_name, _, attribute = name.partition(":")
        found: Any = self._module(module_name, name, key)
        for part in attribute.split("."):
            if not hasattr(found, part):
                known = [one for one in vars(found) if not one.startswith("_")]
                msg = f"{key}: {name!r}: {_where(found)} has no {part!r}. {nearest(part, known)}"
                raise ConfigError(msg)
            found = getattr(found, part)
        if not callable(found):
            msg = f"{key}: {name!r} is of the type {type(found).__name__}, expected a function or a class"
            raise ConfigError(msg)
        function: Callable[..., Any] = found
        return function

    def find_all(self, names: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
        """Import several, named by their keys.

        Raises:
            ConfigError: tells each of those that are wrong.
        """
        found, wrong = {}, []
        for key, name in names.items():
            try:
                found[key] = self.find(name, key)
            except ConfigError as error:
                wrong.append(error)
        if len(wrong) == 1:
            raise wrong[0]
        if wrong:
            msg = f"{len(wrong)} functions of the job file cannot be found:\n" + "\n".join(map(str, wrong))
            raise ConfigError(msg)
        return found

    def _module(self, module_name: str, name: str, key: str) -> types.ModuleType:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
                msg = f"{key}: {name!r}: the module {module_name!r} imports {error.name!r}, which is not installed here"
                raise ConfigError(msg) from error
            beside = sorted({path.stem for folder in self._folders for path in folder.glob("*.py")})
            looked = " and ".join(map(str, self._folders))
            msg = f"{key}: {name!r}: there is no module {module_name!r}, neither in {looked} nor among the installed packages. {nearest(module_name, beside)}"
            raise ConfigError(msg) from error
        except Exception as error:
            msg = f"{key}: {name!r}: the module {module_name!r} cannot be imported ({type(error).__name__}: {error})"
            raise ConfigError(msg) from error
        self._have_travel()
        return module

    def _have_travel(self) -> None:
        """Register every module that came out of the folders, also those that the named ones imported."""
        for name, module in list(sys.modules.items()):
            if name in self._registered or name == "__main__" or not self._is_local(name):
                continue
            if getattr(module, "__name__", None) == name:  # a module under a second name is registered by its own
                cloudpickle.register_pickle_by_value(module)
            self._registered[name] = module

    def _is_local(self, name: str) -> bool:
        """Tell whether the top-level package lies right in one of the folders; a .venv further below does not count."""
        package = name.partition(".")[0]
        if package == "sparkinfer":  # a checkout in the working directory: the workers have the library itself
            return False
        top = sys.modules.get(package)
        origin = getattr(top, "__file__", None)
        places = [origin] if origin else list(getattr(top, "__path__", []))  # a folder without __init__.py has no file
        for place in map(Path, places):
            home = place.parent.parent if origin and place.name == "__init__.py" else place.parent
            if home in self._folders:
                return True
        return False

    def close(self) -> None:
        """Forget the modules, so that the next job may bring others of the same names."""
        for name, module in self._registered.items():
            if getattr(module, "__name__", None) == name:
                cloudpickle.unregister_pickle_by_value(module)
            if name not in self._loaded_before:
                sys.modules.pop(name, None)


@contextmanager
def functions_beside(job: Path) -> Iterator[Functions]:
    """Put the job file's own folder, then the working directory, at the head of the import path."""
    folders = tuple(dict.fromkeys((job.resolve().parent, Path.cwd().resolve())))
    before = list(sys.path)
    sys.path[:0] = [str(folder) for folder in folders]
    importlib.invalidate_caches()
    functions = Functions(folders)
    try:
        try:
            yield functions
        finally:
            functions.close()
    finally:
        sys.path[:] = before


def _where(owner: Any) -> str:
    return f"the module {owner.__name__!r}" if isinstance(owner, types.ModuleType) else f"{getattr(owner, '__qualname__', owner)!r}"
