"""The doctor compares facts with the table of versions, and says how to mend what does not fit."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkinfer.cli import doctor, main
from sparkinfer.cli.doctor import Check, _check_path, examine_driver, examine_settings, examine_workers, show
from sparkinfer.cli.facts import PACKAGES, facts
from sparkinfer.cli.versions import FEATURES, OURS, SUPPORTED, describe_versions, needed, numbers

ROOT = Path(__file__).resolve().parents[3]


def machine(**changes: Any) -> dict[str, Any]:
    """The facts of a machine that has everything."""
    packages: dict[str, Any] = dict.fromkeys(PACKAGES, "99.0")
    packages |= changes.pop("packages", {})
    found = {"host": "h1", "python": "3.12.1", "executable": "/python", "sparkinfer": "0.1.0", "packages": packages, "cards": []}
    return {**found, **changes}


def by_name(checks: Any) -> dict[str, Check]:
    """The checks by what they are of."""
    return {check.what: check for check in checks}


def test_the_documentation_shows_the_table() -> None:
    """docs/versions.md is made of the module."""
    assert (ROOT / "docs" / "versions.md").read_text(encoding="utf-8") == describe_versions()


def test_our_own_versions_are_those_of_the_package() -> None:
    """pyproject.toml asks pip for the same."""
    asked = dict(re.findall(r'^    "(\w+)>=([\d.]+)",$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert asked == OURS


def test_what_spark_lacks_is_what_the_library_works_round() -> None:
    """The versions that are told are those that the code compares with."""
    from sparkinfer.spark import channels, predict, udf

    since = {feature.what.split(",")[0].split(" (")[0]: feature.since for feature in FEATURES}
    assert since["UDF columns by Arrow"] == udf.ARROW_UDF_SINCE
    assert since["figures over Spark Connect"] == channels.WORKER_LOGS_SINCE
    assert since["`predict(resource_profile=)`"] == predict._PROFILE_SINCE


def test_the_table_is_that_of_the_installed_spark() -> None:
    """The package's own metadata, where it has this version's line."""
    from importlib.metadata import metadata

    told = metadata("pyspark")
    (row,) = [one for one in SUPPORTED if one.spark == numbers(told["Version"])[:2]]
    wanted = "\n".join(told.get_all("Requires-Dist"))
    asked = dict(re.findall(r"""(pandas|pyarrow)\s*\(?>=([\d.]+)\)?\s*;\s*extra == ['"]sql['"]""", wanted))
    assert asked == {"pandas": row.pandas, "pyarrow": row.pyarrow}
    oldest = numbers(str(told["Requires-Python"]).removeprefix(">="))
    assert row.python == max(oldest, (3, 10))


@pytest.mark.parametrize(
    ("spark", "java", "changes", "what", "state", "told"),
    [
        ("4.3.0", "17.0.15", {}, "Java", "ok", "17.0.15"),
        ("3.5.8", "1.8.0_412", {}, "Java", "ok", "1.8.0_412"),
        ("4.3.0", "11.0.2", {}, "Java", "wrong", "runs on Java 17 or 21"),
        ("4.3.0", None, {}, "Java", "missing", "install Java 17"),
        (None, "17", {}, "Spark", "missing", r"pip install 'sparkinfer\[spark\]'"),
        ("3.3.1", "17", {}, "Spark", "wrong", "tried with 3.5, 4.0"),
        ("3.5.8", "17", {}, "Spark", "ok", "no UDF columns by Arrow"),
        ("4.3.0", "17", {}, "Spark", "ok", r"^4\.3\.0 $"),
        ("4.3.0", "17", {"python": "3.10.2"}, "Python", "wrong", "install Python 3.11"),
        ("4.3.0", "17", {"packages": {"pyarrow": "17.0.0"}}, "pyarrow", "wrong", "older than 18.0.0 pip install 'pyarrow>=18.0.0'"),
        ("4.0.1", "17", {"packages": {"pyarrow": "14.0.1"}}, "pyarrow", "ok", "14.0.1"),
        ("4.3.0", "17", {"packages": {"numpy": None}}, "numpy", "missing", "pip install 'numpy>=1.23'"),
        (
            "4.3.0",
            "17",
            {"packages": {"torch": None}},
            "torch",
            "not needed",
            r"without it no PyTorch models pip install 'sparkinfer\[torch\]'",
        ),
    ],
)
def test_the_driver_is_compared(spark: str | None, java: str | None, changes: dict[str, Any], what: str, state: str, told: str) -> None:
    """Each with what is there and what to do."""
    check = by_name(examine_driver(machine(**changes), spark, java))[what]
    assert check.state == state
    assert re.search(told, f"{check.found} {check.mend}"), check


@pytest.mark.parametrize(
    ("workers", "what", "state", "told"),
    [
        ([machine()], "Python", "ok", "3.12.1"),
        ([machine(python="3.11.9")], "Python", "wrong", "3.11.9, and 3.12.1 on the driver.*spark.pyspark.python"),
        ([machine(), machine(host="h2", sparkinfer=None)], "sparkinfer", "missing", "not on h2.*--py-files"),
        ([machine(packages={"torch": "98.1"})], "torch", "wrong", "98.1, and 99.0 on the driver.*torch==99.0"),
        ([machine()], "NVIDIA cards", "not needed", "on the CPU"),
        ([machine(cards=["GPU 0: A"])], "NVIDIA cards", "wrong", "asks for none.*spark.executor.resource.gpu.amount"),
        ([machine(cards=["GPU 0: A"], packages={"torch": "99.0+cpu"})], "NVIDIA cards", "wrong", "a build for the CPU"),
    ],
)
def test_the_workers_are_compared_with_the_driver(workers: list[dict[str, Any]], what: str, state: str, told: str) -> None:
    """The same Python and the same packages, on every host; cards that Spark does not give out are told."""
    check = by_name(examine_workers(workers, machine(), asks_for_cards=False, local=False))[what]
    assert check.state == state
    assert re.search(told, f"{check.found} {check.mend}"), check


def test_the_settings_that_matter_are_told() -> None:
    """Without reuse of workers each task loads its model; the columnar switch is Spark 4.2's."""
    told = {"spark.python.worker.reuse": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "7"}
    checks = by_name(examine_settings(told.get, (4, 2)))
    assert checks["spark.python.worker.reuse"].state == "wrong"
    assert checks["Arrow: maxRecordsPerBatch"].found == "7"
    assert checks["Arrow: pythonUDF.columnarInput"].found == "true"
    assert "Arrow: pythonUDF.columnarInput" not in by_name(examine_settings(told.get, (4, 1)))


def test_without_java_no_session_is_tried(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The rest is looked at all the same, and the exit code says that something is to mend."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "missing" in shown
    assert "2 to mend" in shown


def test_the_facts_are_of_this_python() -> None:
    """What is installed has its version; what is not is absent."""
    found = facts()
    assert found["executable"] == sys.executable
    assert found["packages"]["numpy"]
    assert set(found["packages"]) == set(PACKAGES)


def test_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """The table's own marks for styles do not swallow the name of an extra."""
    show([Check("driver", "x", "ok", "[a]", "sparkinfer[b]")], as_json=False)
    assert re.search(r"\[a\].*sparkinfer\[b\]", re.sub(r"\s+|│", "", capsys.readouterr().out))


def test_the_newer_bound_counts() -> None:
    """Of Spark's and ours; of a Spark that is not known, ours."""
    assert needed("pandas", SUPPORTED[0]) == "1.5"
    assert needed("pandas", SUPPORTED[-1]) == "2.2.0"
    assert needed("numpy", None) == "1.23"
    assert doctor._java_major("17.0.1") == 17


def test_another_python_on_the_path_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers of a session that says nothing run it; where PYSPARK_PYTHON says which, nobody asks the PATH."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    (told,) = _check_path(sys.executable)
    assert str(other) in told.found
    assert f"PYSPARK_PYTHON={sys.executable}" in told.mend
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert list(_check_path(sys.executable)) == []
