"""What cannot travel to a worker is named, with the way to it; what is missing on the worker is named too."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sparkinfer.exceptions import ConfigError, ModelLoadError
from sparkinfer.models import PythonModel
from sparkinfer.pickling import dumps, loads


class Locked:
    """A model that holds a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self) -> Callable[..., Any]:
        return abs


class SparkSession:
    """Stands where pyspark's does: the real one is met in tests/spark."""

    __module__ = "pyspark.sql.session"

    def __reduce__(self) -> Any:
        raise RuntimeError("no")


def closing_over(value: object) -> Callable[[], object]:
    return lambda: value


@pytest.mark.parametrize(
    ("load", "way"),
    [
        (Locked(), "attribute 'lock' of Locked"),
        (closing_over(Locked()), "attribute 'lock' of Locked in variable 'value'"),
        (closing_over({"deep": [Locked()]}), "attribute 'lock' of Locked in item 0 in item 'deep' in variable 'value'"),
        (closing_over(closing_over(Locked())), "attribute 'lock' of Locked in variable 'value' in variable 'value'"),
        (functools.partial(print, Locked()), "attribute 'lock' of Locked in argument 0"),
        (functools.partial(list), None),
        (Locked().__call__, "attribute 'lock' of Locked in the object"),
    ],
)
def test_a_loader_that_cannot_travel_is_refused_with_the_culprit(load: Any, way: str | None) -> None:
    """C28: the attribute or variable, its type, and the ways out; nothing about a loader that can travel."""
    if way is None:
        PythonModel(load).describe()
        return
    with pytest.raises(ConfigError, match="loader") as caught:
        PythonModel(load).describe()
    assert way in str(caught.value)
    assert "a lock, cannot travel" in str(caught.value)
    assert "or a path" in str(caught.value)


def test_a_session_is_told_as_one() -> None:
    """A loader that closes over the session is told that workers have none, not about some lock deep inside it."""
    with pytest.raises(ConfigError, match=r"variable 'value' in .*the session cannot be used on workers"):
        PythonModel(closing_over([SparkSession()])).describe()


def test_a_missing_module_is_named() -> None:
    """The worker's error says what to install or ship."""
    pickled = b"cno_such_package\nmodel\n."
    with pytest.raises(ModelLoadError, match=r"the loader needs the module 'no_such_package'.*addArtifacts"):
        loads(pickled, "the loader")


def test_another_version_is_suspected_when_a_name_is_missing() -> None:
    """A module without the name that the driver's had is no bare AttributeError."""
    with pytest.raises(ModelLoadError, match="same versions"):
        loads(b"cjson\nno_such_name\n.", "the loader")


def test_parts_can_go_elsewhere() -> None:
    """What ``persistent_id`` answers for is fetched by ``persistent_load``, and is the same object."""
    lock = threading.Lock()
    pickled = dumps([lock, lock], "a list", persistent_id=lambda obj: "the lock" if obj is lock else None)
    assert loads(pickled, "a list", persistent_load=lambda pid: lock if pid == "the lock" else None) == [lock, lock]
    with pytest.raises(ModelLoadError, match="no place to come from"):
        loads(pickled, "a list")


def test_an_unchanged_loader_has_one_fingerprint_and_a_changed_one_another(tmp_path: Any) -> None:
    """C34: the closure, the files and the version count."""
    file = tmp_path / "table.txt"
    file.write_text("1")
    load = closing_over(1)
    first = PythonModel(load, files=[file]).describe()
    assert PythonModel(load, files=[file]).describe() == first
    assert pickle.loads(pickle.dumps(first)) == first
    others = [PythonModel(closing_over(2), files=[file]), PythonModel(load), PythonModel(load, files=[file], version=2)]
    file.write_text("22")
    others.append(PythonModel(load, files=file))
    assert len({first.fingerprint, *(model.describe().fingerprint for model in others)}) == 5


@pytest.mark.parametrize("load", [3, lambda x: x, None])
def test_a_loader_must_be_callable_without_arguments(load: Any) -> None:
    """The model itself in the loader's place is refused when it is written down."""
    with pytest.raises(ConfigError, match=r"loading function \(loader\)"):
        PythonModel(load)
