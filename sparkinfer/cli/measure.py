"""``sparkinfer diagnose`` and ``sparkinfer tune``: a job's source, model and settings, measured on a sample.

Runs on: driver.

Invariant: the job's sink is never touched; the file that is tuned stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import sparkinfer
from sparkinfer.cli.run import OpenedJob, opened_job, told
from sparkinfer.exceptions import ConfigError

if TYPE_CHECKING:
    from sparkinfer.analysis.diagnosis import Diagnosis
    from sparkinfer.analysis.tuning import Tuning

__all__ = ["diagnose_job", "tune_job"]


def diagnose_job(
    path: Path, *, changes: tuple[str, ...], rows: int, seconds: float, report: Path | None = None, say: Callable[[str], None] = print
) -> Diagnosis:
    """Diagnose the job of a file.

    Raises:
        ConfigError, SchemaError: the file, or what it names, is wrong.
        JobFailedError: the sample could not be read or scored.
    """
    with opened_job(path, changes, trace=False, say=say) as opened, opened.rows() as data:
        with told("predict", opened.document):
            found = sparkinfer.diagnose(data, opened.model, rows=rows, seconds=seconds, **_arguments(opened))
        opened.say(str(found))
        if report is not None:
            opened.say(f"report -> {found.save(report)}")
        return found


def tune_job(
    path: Path,
    *,
    changes: tuple[str, ...],
    rows: int,
    seconds: float,
    allow: tuple[str, ...] = (),
    write: Path | None = None,
    say: Callable[[str], None] = print,
) -> Tuning:
    """Tune the job of a file.

    Args:
        path: the job file.
        changes: ``key.path=value`` texts, laid over it.
        rows: of the sample, at most.
        seconds: to spend.
        allow: as in ``tune``.
        write: where the job goes with the settings that were found; its comments are not kept.
        say: takes each line for people.

    Raises:
        ConfigError, SchemaError: the file, or what it names, is wrong; or ``write`` is the file itself.
        JobFailedError: the sample could not be read or scored.
    """
    if write is not None and write.absolute() == path.absolute():
        msg = f"--write is {write}, the job file itself: give another path, so that the file and its comments stay"
        raise ConfigError(msg)
    with opened_job(path, changes, trace=False, say=say) as opened, opened.rows() as data:
        with told("predict", opened.document):
            found = sparkinfer.tune(data, opened.model, rows=rows, seconds=seconds, allow=allow, **_arguments(opened))
        opened.say(str(found))
        if write is not None:
            job = yaml.safe_load(path.read_text(encoding="utf-8"))  # as it is: what the environment holds stays a mark
            job["config"] = {**(job.get("config") or {}), **found.overrides}
            if found.partitions is not None:
                job["source"]["repartition"] = found.partitions
            if found.optimize is not None:
                next(iter(job["model"].values()))["optimize"] = found.optimize
            write.write_text(yaml.safe_dump(job, sort_keys=False, allow_unicode=True), encoding="utf-8")
            opened.say(f"job -> {write}")
        return found


def _arguments(opened: OpenedJob) -> dict[str, Any]:
    return {**opened.keywords, "config": opened.config}
