"""Which versions go together: the supported table, and what each Spark version lacks.

Runs on: driver (standard library only).

Invariant: the documentation's table is made of this one: ``python -m sparkinfer.cli.versions > docs/versions.md``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

__all__ = ["FEATURES", "OURS", "SUPPORTED", "Feature", "Supported", "at_least", "describe_versions", "lacks", "needed", "numbers"]

Version = tuple[int, int]


@dataclass(frozen=True)
class Supported:
    """A Spark version, and the oldest versions of what it runs with.

    Attributes:
        spark: major and minor.
        python: the oldest; ours where that is newer.
        java: every major version that Spark's documentation names.
        pandas: the oldest that Spark takes.
        pyarrow: the same.
    """

    spark: Version
    python: Version
    java: tuple[int, ...]
    pandas: str
    pyarrow: str


SUPPORTED = (
    Supported((3, 5), (3, 10), (8, 11, 17), "1.0.5", "4.0.0"),
    Supported((4, 0), (3, 10), (17, 21), "2.0.0", "11.0.0"),
    Supported((4, 1), (3, 10), (17, 21), "2.2.0", "15.0.0"),
    Supported((4, 2), (3, 10), (17, 21, 25), "2.2.0", "18.0.0"),
    Supported((4, 3), (3, 11), (17, 21, 25), "2.2.0", "18.0.0"),
)

OURS = {"numpy": "1.23", "pandas": "1.5", "pyarrow": "14", "cloudpickle": "2.0"}
"""The oldest versions of what sparkinfer itself needs, as in pyproject.toml."""


@dataclass(frozen=True)
class Feature:
    """Something that this library takes from Spark where Spark has it.

    Attributes:
        since: Spark's version.
        what: for people.
        before: what happens with an older one.
    """

    since: Version
    what: str
    before: str


FEATURES = (
    Feature((4, 0), "ML vectors travel by Arrow", "they are sent as arrays of doubles"),
    Feature(
        (4, 0), "`predict(resource_profile=)`, which asks for cards for one stage", "an error; ask for cards for the whole application"
    ),
    Feature(
        (4, 1), "UDF columns by Arrow (`predict_udf(flavor='arrow')`, the column road)", "the pandas form, which copies once more each way"
    ),
    Feature(
        (4, 1),
        "figures over Spark Connect, in the workers' logs",
        "a run over Connect says `not measured`; classic sessions measure everywhere",
    ),
)


def needed(package: str, spark: Supported | None) -> str | None:
    """Give the oldest version of a package that both this library and that Spark take."""
    theirs = {"pandas": spark.pandas, "pyarrow": spark.pyarrow}.get(package) if spark is not None else None
    return max(filter(None, (OURS.get(package), theirs)), key=numbers, default=None)


def lacks(spark: Version) -> list[Feature]:
    """Name what a Spark version does not have yet."""
    return [feature for feature in FEATURES if spark < feature.since]


def numbers(version: str) -> tuple[int, ...]:
    """Read the leading numbers of a version.

    Example:
        >>> numbers("2.3.1+cpu")
        (2, 3, 1)
    """
    found: list[int] = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def at_least(version: str, least: str) -> bool:
    """Tell whether a version is no older than another."""
    return numbers(version) >= numbers(least)


def describe_versions() -> str:
    """Give the page of the documentation, in Markdown."""
    lines = [
        "# Versions",
        "",
        "<!-- Made by: python -m sparkinfer.cli.versions > docs/versions.md -->",
        "",
        "`sparkinfer doctor` compares what it finds with this table.",
        "",
        "| Spark | Python | Java | pandas | pyarrow |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in SUPPORTED:
        java = ", ".join(map(str, one.java))
        pandas, pyarrow = needed("pandas", one), needed("pyarrow", one)
        lines.append(f"| {_dotted(one.spark)} | {_dotted(one.python)} or newer | {java} | {pandas} or newer | {pyarrow} or newer |")
    rest = ", ".join(f"{name} {least}" for name, least in OURS.items() if name not in ("pandas", "pyarrow"))
    rest_text = (
        f"Besides: {rest} or newer. Each version is the newer one of what Spark asks for and what sparkinfer asks for; Spark's are those of its "
        "documentation and packages. Driver and workers run the same minor version of Python."
    )
    columnar = (
        "From Spark 4.2 on, a UDF that stands right on a columnar scan or cache gets the scan's own batches, whatever "
        "`spark.sql.execution.arrow.maxRecordsPerBatch` says; `spark.sql.execution.arrow.pythonUDF.columnarInput.enabled=false` switches that off. "
        "The model's `batch_size` holds with every version."
    )
    lines += [
        "",
        rest_text,
        "",
        "## What older Spark versions lack",
        "",
        "| Since Spark | What | With an older one |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {_dotted(feature.since)} | {feature.what} | {feature.before} |" for feature in FEATURES]
    lines += ["", columnar]
    return "\n".join(lines) + "\n"


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    sys.stdout.write(describe_versions())
