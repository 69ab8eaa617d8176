"""Every error is one of ours and of Python's own kind, and a place tells only what is known."""

from __future__ import annotations

import pickle

import pytest

from sparkinfer import exceptions
from sparkinfer.exceptions import Place, SparkInferError, SparkInferWarning, nearest

KINDS = {
    "BadRowsError": RuntimeError,
    "ConfigError": ValueError,
    "LoaderProcessError": RuntimeError,
    "MissingDependencyError": ImportError,
    "ModelLoadError": RuntimeError,
    "OutputError": ValueError,
    "PredictError": RuntimeError,
    "PreprocessError": RuntimeError,
    "ReadError": OSError,
    "SchemaError": ValueError,
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_an_error_is_one_of_ours_and_of_pythons_kind(name: str, kind: type[Exception]) -> None:
    """Either can be caught, and it survives the way from a worker to the driver."""
    error = getattr(exceptions, name)("no such file")
    assert isinstance(error, SparkInferError)
    assert isinstance(error, kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == "no such file"


def test_the_tree_has_no_other_error() -> None:
    """What is raised on purpose is listed above, and exported; a remark is a warning and no error."""
    found = {name for name, value in vars(exceptions).items() if isinstance(value, type) and issubclass(value, SparkInferError)}
    assert found == {*KINDS, "SparkInferError"}
    assert found <= set(exceptions.__all__)
    assert issubclass(SparkInferWarning, UserWarning)
    assert not issubclass(SparkInferWarning, SparkInferError)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (Place(), ""),
        (Place(column="x", partition=0, row=0), "column 'x', partition 0, row 0"),
        (Place(partition=3, batch=1), "partition 3, batch 1"),
        (Place("x", 1, 2, 3, "path='a.png', n=4"), "column 'x', partition 1, batch 2, row 3 (path='a.png', n=4)"),
        (Place(key="id=7"), " (id=7)"),
    ],
)
def test_a_place_tells_what_is_known(place: Place, told: str) -> None:
    """Zero is a number and is told; None is not."""
    assert str(place) == told


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("bath_size", ["batch_size", "device"], "Did you mean 'batch_size'?"),
        ("zzz", ["a", "b"], "There is: 'a', 'b'."),
        ("x", [], "There is none."),
        ("lable", iter(["label"]), "Did you mean 'label'?"),
    ],
)
def test_a_wrong_name_finds_the_nearest_right_one(word: str, known: list[str], hint: str) -> None:
    """Or all of them, where none is near."""
    assert nearest(word, known) == hint
