"""Functions beside a job file are found, travel by value, and are forgotten afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from sparkinfer.cli.functions import functions_beside
from sparkinfer.exceptions import ConfigError
from sparkinfer.pickling import dumps

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file with modules beside it, run from another folder that has one too."""
    (tmp_path / "jobs" / "inner").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for path, text in {
        "jobs/beside.py": "from inner.more import FACTOR\nimport inner.more as more\n\nclass Net:\n    @staticmethod\n    def make():\n        return 1\n\n"
        "def load():\n    return lambda x: x * FACTOR * more.FACTOR\n",
        "jobs/inner/__init__.py": "",
        "jobs/inner/more.py": "FACTOR = 3\n",
        "jobs/broken.py": "1 / 0\n",
        "jobs/needy.py": "import there_is_no_such_package\n",
        "elsewhere/in_cwd.py": "def f():\n    return 'cwd'\n",
        "elsewhere/beside.py": "",
    }.items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "jobs" / "job.yaml"


def test_what_is_found_is_forgotten_afterwards(job: Path) -> None:
    """The job's folder comes before the working directory; import path and modules are as before."""
    before = list(sys.path)
    with functions_beside(job) as functions:
        assert functions.find("beside:load", "k")()(2) == 18
        assert functions.find("beside:Net.make", "k")() == 1
        assert functions.find("in_cwd:f", "k")() == "cwd"
        assert functions.find("math:sqrt", "k")(4) == 2
    assert sys.path == before
    assert not {"beside", "in_cwd", "inner", "inner.more"} & set(sys.modules)
    assert "math" in sys.modules


def test_what_lies_beside_travels_by_value(job: Path, tmp_path: Path) -> None:
    """A process that has none of the modules can call the function, and also what it takes from a module that it imported."""
    with functions_beside(job) as functions:
        (tmp_path / "load.pickle").write_bytes(dumps(functions.find("beside:load", "k"), "load"))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))()(2))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "load.pickle")], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "18\n", done.stderr


def test_what_is_installed_travels_by_its_name(job: Path) -> None:
    """Only modules beside the job file are registered, and the library itself never, also in a checkout."""
    with functions_beside(ROOT / "job.yaml") as functions:
        functions.find("json:dumps", "k")
        registered = cloudpickle.list_registry_pickle_by_value()
        assert "json" not in registered
        assert not any(name.partition(".")[0] == "sparkinfer" for name in registered)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "besid:load",
            r"model\.python\.load: 'besid:load': there is no module 'besid', neither in .*jobs and .*elsewhere nor .*Did you mean 'beside'\?",
        ),
        ("beside:lod", r"the module 'beside' has no 'lod'\. Did you mean 'load'\?"),
        ("beside:Net.mak", r"'Net' has no 'mak'\. Did you mean 'make'\?"),
        ("beside:FACTOR", r"is of the type int, expected a function or a class"),
        ("broken:f", r"the module 'broken' cannot be imported \(ZeroDivisionError: division by zero\)"),
        ("needy:f", r"the module 'needy' imports 'there_is_no_such_package', which is not installed here"),
    ],
)
def test_what_is_not_found_is_told_with_the_nearest(job: Path, name: str, told: str) -> None:
    """By the key, the module and the nearest name."""
    with functions_beside(job) as functions, pytest.raises(ConfigError, match=told):
        functions.find(name, "model.python.load")


def test_all_that_are_not_found_are_told_at_once(job: Path) -> None:
    """One line each, by its key; one alone is told as it is, and what is right is not mentioned."""
    with functions_beside(job) as functions:
        assert functions.find_all({"a": "beside:load", "b": "math:sqrt"})["b"](4) == 2
        with pytest.raises(
            ConfigError, match=r"^2 functions of the job file cannot be found:\nb: 'besid:load': .*\nc: 'math:sqr': .*'sqrt'\?$"
        ):
            functions.find_all({"a": "beside:load", "b": "besid:load", "c": "math:sqr"})
        with pytest.raises(ConfigError, match=r"^c: 'math:sqr'"):
            functions.find_all({"a": "beside:load", "c": "math:sqr"})


def test_a_module_under_two_names_is_registered_once(job: Path) -> None:
    """An old name that a function file keeps alive: everything ends as it was."""
    (job.parent / "renamed.py").write_text(
        "import sys\nsys.modules['old_name'] = sys.modules[__name__]\ndef f():\n    return 5\n", encoding="utf-8"
    )
    before = list(sys.path)
    with functions_beside(job) as functions:
        assert functions.find("renamed:f", "k")() == 5
        assert "renamed" in cloudpickle.list_registry_pickle_by_value()
    assert sys.path == before
    assert not {"renamed", "old_name"} & set(sys.modules)
    assert "renamed" not in cloudpickle.list_registry_pickle_by_value()
