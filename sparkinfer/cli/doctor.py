"""``sparkinfer doctor``: what is there, what is missing, what is wrong, and how to mend it.

Runs on: driver; it asks the workers of a session for their own facts.

Invariant: it looks at everything that it can reach, whatever else is missing, and changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from sparkinfer import __version__
from sparkinfer.cli.facts import facts
from sparkinfer.cli.versions import OURS, SUPPORTED, Supported, at_least, lacks, needed, numbers
from sparkinfer.exceptions import SparkInferError

__all__ = ["Check", "examine", "examine_driver", "examine_settings", "examine_workers", "show"]

State = Literal["ok", "missing", "wrong", "not needed"]
_MOST_TASKS = 64
_MARKS = {"ok": "green", "missing": "red", "wrong": "red", "not needed": "dim"}
_EXTRAS = {
    "torch": ("PyTorch models", "torch"),
    "safetensors": ("safetensors weights", "torch"),
    "tensorflow": ("TensorFlow and Keras models", "tensorflow"),
    "onnxruntime": ("optimize='onnxruntime'", "onnx"),
    "openvino": ("optimize='openvino'", "openvino"),
    "mlflow": ("runs in MLflow", "mlflow"),
    "matplotlib": ("the report", "report"),
    "psutil": ("figures of the hosts", "host"),
    "pynvml": ("figures of NVIDIA cards", "gpu"),
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        where: ``driver``, ``session`` or ``workers``.
        what: its name.
        state: ``ok``, ``missing``, ``wrong`` or ``not needed``.
        found: what is there.
        mend: what to do; empty where there is nothing to do.
    """

    where: str
    what: str
    state: State
    found: str
    mend: str = ""


def examine(master: str | None) -> list[Check]:
    """Look at the driver, then start a session (``master``'s, or a small local one) and look at its settings and workers."""
    spark = _spark_version()
    here = facts()
    checks = list(examine_driver(here, spark, _java_version()))
    if any(check.what in ("Spark", "Java") and check.state == "missing" for check in checks):
        return [*checks, Check("session", "a session", "missing", "not started", "mend Java and Spark first")]
    from sparkinfer.spark.job_session import job_session  # noqa: PLC0415 - pyspark may be missing

    if master is None and "SPARK_REMOTE" not in os.environ:  # a session of Spark Connect takes no master
        master = "local[2]"
    try:
        with job_session(master, "sparkinfer doctor", {}) as session:
            checks += _examine_session(session, here)
    except SparkInferError as error:
        checks.append(Check("session", "a session", "wrong", str(error), "mend what is told above; is the master's address right?"))
    return checks


def _examine_session(session: Any, here: Mapping[str, Any]) -> Iterator[Check]:
    from sparkinfer.spark.probe import ask_workers  # noqa: PLC0415 - pyspark may be missing
    from sparkinfer.spark.session import SPARK_VERSION, is_connect, is_local, setting  # noqa: PLC0415

    yield Check("session", "a session", "ok", f"{setting(session, 'spark.master') or 'remote'}, Spark {session.version}")
    yield from examine_settings(lambda key: setting(session, key), SPARK_VERSION)
    try:
        tasks = 2 if is_connect(session) else min(_MOST_TASKS, session.sparkContext.defaultParallelism)
        answers = ask_workers(session, facts, tasks)
    except Exception as error:  # noqa: BLE001 - whatever Spark raises is what there is to tell
        yield _no_answer(str(error), here)
        return
    gpus = setting(session, "spark.executor.resource.gpu.amount")
    yield from examine_workers(answers, here, asks_for_cards=gpus not in (None, "0"), local=is_local(session))


def _no_answer(text: str, here: Mapping[str, Any]) -> Check:
    if (other := re.search(r"\[PYTHON_VERSION_MISMATCH\][^\n]*", text)) is not None:
        mend = f"give the workers Python {'.'.join(here['python'].split('.')[:2])} by spark.pyspark.python or PYSPARK_PYTHON"
        return Check("workers", "Python", "wrong", other.group()[:200], mend)
    causes = [line.strip() for line in text.splitlines() if re.search(r"(Error|Exception|Cannot run program)", line)]
    found = (causes or text.splitlines() or ["no answer"])[-1 if causes else 0][:200]
    return Check(
        "workers", "Python", "wrong", found, "the workers' own logs say more; spark.pyspark.python or PYSPARK_PYTHON names their Python"
    )


# --- the driver ----------------------------------------------------------------------------------------------------------


def examine_driver(here: Mapping[str, Any], spark: str | None, java: str | None) -> Iterator[Check]:
    """Compare the driver with the table of versions.

    Args:
        here: what ``facts`` gave.
        spark: pyspark's version, if it is installed.
        java: Java's version as it tells it, such as ``17.0.15`` or ``1.8.0_412``, if it is installed.
    """
    known = _known(spark)
    yield _check_spark(spark, known)
    yield _check_java(java, known)
    least = known.python if known is not None else (3, 10)
    fits = numbers(here["python"]) >= least
    mend = "" if fits else f"install Python {_dotted(least)} or newer for this Spark"
    yield Check("driver", "Python", "ok" if fits else "wrong", f"{here['python']} ({here['executable']})", mend)
    yield from _check_path(here["executable"])
    yield Check("driver", "sparkinfer", "ok", __version__)
    yield from _check_packages("driver", here["packages"], known)
    for name, (purpose, extra) in _EXTRAS.items():
        there = here["packages"][name]
        if there is None:
            yield Check("driver", name, "not needed", f"not installed: without it no {purpose}", f"pip install 'sparkinfer[{extra}]'")
        else:
            yield Check("driver", name, "ok", there)


def _check_path(executable: str) -> Iterator[Check]:
    """Tell where a session that says nothing would give its workers another Python than this one."""
    told = next((name for name in ("PYSPARK_PYTHON", "SPARK_REMOTE") if os.environ.get(name)), None)
    found = shutil.which("python3")
    if (
        told is None and found is not None and not Path(found).parent.samefile(Path(executable).parent)
    ):  # a link in .venv/bin is not followed
        mend = f"activate the environment, or set PYSPARK_PYTHON={executable}"
        yield Check("driver", "python3", "not needed", f"the PATH's is {found}, which the workers of a session that says nothing run", mend)


def _check_spark(spark: str | None, known: Supported | None) -> Check:
    versions = ", ".join(_dotted(one.spark) for one in SUPPORTED)
    if spark is None:
        return Check("driver", "Spark", "missing", "pyspark is not installed", "pip install 'sparkinfer[spark]'")
    if known is None:
        return Check("driver", "Spark", "wrong", spark, f"tried with {versions}: install one of these")
    missed = "; ".join(f"no {feature.what}" for feature in lacks(known.spark))
    return Check("driver", "Spark", "ok", spark + (f" ({missed})" if missed else ""))


def _check_java(java: str | None, known: Supported | None) -> Check:
    wanted = known.java if known is not None else SUPPORTED[-1].java
    told = " or ".join(map(str, wanted))
    if java is None:
        return Check(
            "driver",
            "Java",
            "missing",
            "neither JAVA_HOME nor PATH has one",
            f"install Java {told}, such as the package default-jre-headless",
        )
    if _java_major(java) not in wanted:
        return Check("driver", "Java", "wrong", java, f"this Spark runs on Java {told}: install one, and set JAVA_HOME to it")
    return Check("driver", "Java", "ok", java)


def _check_packages(where: str, packages: Mapping[str, str | None], known: Supported | None) -> Iterator[Check]:
    for name in OURS:
        least, there = needed(name, known), packages[name]
        mend = f"pip install '{name}>={least}'"
        if there is None:
            yield Check(where, name, "missing", "not installed", mend)
        elif numbers(there) and not at_least(there, str(least)):
            yield Check(where, name, "wrong", f"{there}, which is older than {least}", mend)
        else:
            yield Check(where, name, "ok", there)


def _known(spark: str | None) -> Supported | None:
    return next((one for one in SUPPORTED if spark is not None and one.spark == numbers(spark)[:2]), None)


def _spark_version() -> str | None:
    try:
        return str(import_module("pyspark").__version__)  # one of SPARK_HOME has no metadata
    except ImportError:
        return None


def _java_version() -> str | None:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        return None
    try:
        told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - Spark starts the same
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "([^"]+)"', told.stderr + told.stdout)
    return found[1] if found else None


def _java_major(java: str) -> int:
    found = numbers(java)
    return found[1] if found[:1] == (1,) and len(found) > 1 else found[0] if found else 0  # 1.8.0 is Java 8


# --- the session and its workers -----------------------------------------------------------------------------------------


def examine_settings(read: Any, spark: tuple[int, int]) -> Iterator[Check]:
    """Look at the settings that matter to scoring; ``read`` gives a setting's value, or ``None``."""
    records = read("spark.sql.execution.arrow.maxRecordsPerBatch")
    yield Check(
        "session", "Arrow: maxRecordsPerBatch", "ok", records or "not told", "inference_run(max_records_per_batch=) sets it for a run"
    )
    if spark >= (4, 2):
        columnar = (read("spark.sql.execution.arrow.pythonUDF.columnarInput.enabled") or "true").lower()
        hint = "" if columnar == "false" else "set it to false where maxRecordsPerBatch is to hold right on a scan"
        yield Check("session", "Arrow: pythonUDF.columnarInput", "ok", columnar, hint)
    reuse = (read("spark.python.worker.reuse") or "true").lower()
    mend = "" if reuse == "true" else "set spark.python.worker.reuse=true: without it every task loads the model again"
    yield Check("session", "spark.python.worker.reuse", "ok" if reuse == "true" else "wrong", reuse, mend)


def examine_workers(answers: Iterable[Mapping[str, Any]], here: Mapping[str, Any], *, asks_for_cards: bool, local: bool) -> Iterator[Check]:
    """Compare the workers with the driver.

    Args:
        answers: what ``facts`` gave on the workers.
        here: what it gave on the driver.
        asks_for_cards: whether the session asks Spark for cards.
        local: whether the workers run on this very machine.
    """
    several = list(answers)
    yield from _same(
        "Python", "spark.pyspark.python or PYSPARK_PYTHON names the workers' Python", several, lambda one: one["python"], here, parts=2
    )
    mend = "install it there, or send it: spark-submit --py-files sparkinfer.zip (docs/jobs.md)"
    yield from _same("sparkinfer", mend, several, lambda one: one["sparkinfer"], here)
    for name in (*OURS, "torch", "tensorflow", "onnxruntime", "openvino"):
        optional = name not in OURS
        if optional and here["packages"][name] is None:
            continue
        mend = f"pip install '{name}=={(here['packages'][name] or '').partition('+')[0]}' there, or send an environment with --archives (docs/jobs.md)"
        yield from _same(name, mend, several, lambda one, name=name: one["packages"][name], here, parts=2)
    yield from _cards(several, asks_for_cards=asks_for_cards, local=local)


def _same(
    what: str, mend: str, several: list[Mapping[str, Any]], of: Any, here: Mapping[str, Any], parts: int | None = None
) -> Iterator[Check]:
    wanted = of(here)
    found = {one["host"]: of(one) for one in several}
    told = ", ".join(sorted({value or f"not on {host}" for host, value in found.items()}))
    if any(value is None for value in found.values()):
        yield Check("workers", what, "missing", told, mend)
    elif wanted is not None and any(numbers(value)[:parts] != numbers(wanted)[:parts] for value in found.values()):
        yield Check("workers", what, "wrong", f"{told}, and {wanted} on the driver", mend)
    else:
        yield Check("workers", what, "ok", told)


def _cards(several: list[Mapping[str, Any]], *, asks_for_cards: bool, local: bool) -> Iterator[Check]:
    cards = {one["host"]: one["cards"] for one in several if one["cards"]}
    if not cards:
        yield Check("workers", "NVIDIA cards", "not needed", "none: models run on the CPU")
        return
    told = "; ".join(f"{host}: {', '.join(names)}" for host, names in cards.items())
    if any("+cpu" in (one["packages"]["torch"] or "") for one in several if one["cards"]):
        yield Check("workers", "NVIDIA cards", "wrong", f"{told}; torch is a build for the CPU", "install torch with CUDA on the workers")
    elif not asks_for_cards and not local:
        yield Check(
            "workers",
            "NVIDIA cards",
            "wrong",
            f"{told}; the session asks for none",
            "set spark.executor.resource.gpu.amount (conf/many-gpus.conf)",
        )
    else:
        yield Check("workers", "NVIDIA cards", "ok", told)


# --- what is said --------------------------------------------------------------------------------------------------------


def show(checks: list[Check], *, as_json: bool) -> None:
    """Print the checks, as a table or as JSON."""
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
        return
    from rich.console import Console  # noqa: PLC0415 - JSON needs it not
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"sparkinfer {__version__}", title_justify="left")
    for heading in ("where", "what", "state", "found", "how to mend"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        table.add_row(check.where, check.what, f"[{_MARKS[check.state]}]{check.state}[/]", _plain(check.found), _plain(check.mend))
    Console().print(table)
    bad = [check for check in checks if check.state in ("missing", "wrong")]
    print(f"{len(bad)} to mend" if bad else "all is well")


def _plain(text: str) -> str:
    return text.replace("[", "\\[")  # rich takes brackets for styles


def _dotted(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))
