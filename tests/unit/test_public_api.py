"""The public names and their signatures are written down: a change of them is seen in review, and is never an accident.

After a change that is meant: ``python -m tests.unit.test_public_api > tests/public_api.txt``, from the repository's root.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import sparkinfer

SNAPSHOT = Path(__file__).parents[1] / "public_api.txt"
MODULES = ["sparkinfer", "sparkinfer.ml", "sparkinfer.testing"]
# what a user holds or calls though it lies deeper
BESIDE = ["sparkinfer.run.InferenceRun", "sparkinfer.spark.session.active_or_local_session", "sparkinfer.spark.udf.PredictColumn"]


def surface() -> list[str]:
    """Give one line for each public name, and one for each public member of a class."""
    names = [f"{module}.{name}" for module in MODULES for name in import_module(module).__all__]
    return [line for name in [*names, *BESIDE] for line in told(name)]


def told(path: str) -> Iterator[str]:
    """Tell a function by its signature; a class by its bases, its arguments and its public members."""
    module, name = path.rsplit(".", 1)
    value = getattr(import_module(module), name)
    if not isinstance(value, type):
        yield f"{path}{inspect.signature(value)}"
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    yield f"class {path}({bases})"
    if issubclass(value, BaseException):
        return
    yield f"{path}.__init__{inspect.signature(value)}"
    for member in sorted(vars(value)):
        if member == "__call__" or not member.startswith("_"):
            yield from told_member(f"{path}.{member}", inspect.getattr_static(value, member))


def told_member(path: str, member: Any) -> Iterator[str]:
    """Tell a method by its signature, a property by its type; a field's default stands in the class's arguments."""
    if isinstance(member, (classmethod, staticmethod)):
        yield f"{path}{inspect.signature(member.__func__)}"
    elif isinstance(member, property):
        yield f"{path}: {inspect.signature(member.fget).return_annotation}" if member.fget else path
    elif inspect.isfunction(member):
        yield f"{path}{inspect.signature(member)}"


def test_the_public_surface_is_what_is_written_down() -> None:
    """A name that is gone, a new argument, another default: each is a line of difference."""
    written = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    found = surface()
    differences = [f"- {line}" for line in written if line not in found] + [f"+ {line}" for line in found if line not in written]
    assert differences == [], "\n".join(["the public surface has changed; see this module's first lines", *differences])
    assert found == written


def test_every_public_name_is_there_and_documented() -> None:
    """Each has a docstring, and dir() shows it."""
    for module in MODULES:
        for name in import_module(module).__all__:
            assert inspect.getdoc(getattr(import_module(module), name)), name
    assert set(sparkinfer.__all__) <= set(dir(sparkinfer))
    assert "__version__" in dir(sparkinfer)


def test_names_for_type_checkers_are_those_that_are_fetched() -> None:
    """The imports under TYPE_CHECKING, ``__all__`` and what ``__getattr__`` gives are one list."""
    tree = ast.parse(Path(sparkinfer.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(homes) == sorted(sparkinfer.__all__)
    for name, home in homes.items():
        assert getattr(sparkinfer, name) is getattr(import_module(str(home)), name), name


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    """As of any module: hasattr and getattr with a default work."""
    assert not hasattr(sparkinfer, "predcit")
    with pytest.raises(AttributeError, match="module 'sparkinfer' has no attribute 'predcit'"):
        _ = sparkinfer.predcit


if __name__ == "__main__":
    sys.stdout.write("\n".join(surface()) + "\n")
