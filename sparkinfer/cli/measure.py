"""``sparkinfer diagnose``, ``tune``, ``profile`` and ``inspect``: a job's source, model and settings, measured on a sample.

Runs on: driver.

Invariant: the job's sink is never touched; the file that is tuned stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import sparkinfer
from sparkinfer.cli.opened import OpenedJob, opened_job, told
from sparkinfer.exceptions import ConfigError

if TYPE_CHECKING:
    from sparkinfer.analysis.diagnosis import Diagnosis
    from sparkinfer.analysis.inspection import ModelInspection
    from sparkinfer.analysis.tuning import Tuning
    from sparkinfer.reporting.profile import Profile

__all__ = ["diagnose_job", "inspect_job", "profile_job", "tune_job"]


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
        write: where the job goes with the changes and the settings that were found; its comments are not kept.
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
            job = deepcopy(dict(opened.document.marked))  # what the environment holds stays a mark
            job["config"] = {**(job.get("config") or {}), **found.overrides}
            if found.partitions is not None:
                job["source"]["repartition"] = found.partitions
            if found.optimize is not None:
                next(iter(job["model"].values()))["optimize"] = found.optimize
            write.write_text(yaml.safe_dump(job, sort_keys=False, allow_unicode=True), encoding="utf-8")
            opened.say(f"job -> {write}")
        return found


def profile_job(
    path: Path,
    *,
    changes: tuple[str, ...],
    partitions: int,
    take: int,
    report: Path | None = None,
    trace: Path | None = None,
    tensorboard: Path | None = None,
    say: Callable[[str], None] = print,
) -> Profile:
    """Profile the model of a file's job.

    Args:
        path: the job file.
        changes: ``key.path=value`` texts, laid over it.
        partitions: that are watched, the first ones.
        take: model calls that are watched in each, after one that warms up.
        report: where the page goes.
        trace: where the run's trace goes, with the operators.
        tensorboard: a folder for the profilers' own traces.
        say: takes each line for people.

    Raises:
        ConfigError, SchemaError: the file, or what it names, is wrong; or a folder for TensorBoard was asked for and no trace came back.
        JobFailedError: the rows could not be read or scored.
    """
    with opened_job(path, changes, trace=False, say=say) as opened, opened.rows() as data:
        with told("predict", opened.document):
            found = sparkinfer.profile(data, opened.model, partitions=partitions, take=take, batches=take + 2, **_arguments(opened))
        opened.say(str(found))
        for told_as, target, save in (
            ("report", report, found.save_report),
            ("trace", trace, found.save_trace),
            ("TensorBoard", tensorboard, found.save_tensorboard),
        ):
            if target is not None:
                opened.say(f"{told_as} -> {save(target)}")
        return found


def inspect_job(
    path: Path,
    *,
    changes: tuple[str, ...],
    partitions: int,
    batches: int,
    report: Path | None = None,
    baseline: Path | None = None,
    save_baseline: Path | None = None,
    say: Callable[[str], None] = print,
) -> ModelInspection:
    """Look inside the model of a file's job.

    Args:
        path: the job file.
        changes: ``key.path=value`` texts, laid over it.
        partitions: that are looked at, the first ones.
        batches: of each of them.
        report: where the page goes.
        baseline: what ``save_baseline`` wrote of an earlier look, for drift.
        save_baseline: where this look is kept as such.
        say: takes each line for people.

    Raises:
        ConfigError, SchemaError: the file, or what it names, is wrong, or the baseline cannot be read.
        JobFailedError: the rows could not be read or scored.
    """
    with opened_job(path, changes, trace=False, say=say) as opened, opened.rows() as data:
        with told("predict", opened.document):
            found = sparkinfer.inspect_model(
                data, opened.model, partitions=partitions, batches=batches, baseline=baseline, **_arguments(opened)
            )
        opened.say(str(found))
        for told_as, target, save in (("report", report, found.save_report), ("baseline", save_baseline, found.save_baseline)):
            if target is not None:
                opened.say(f"{told_as} -> {save(target)}")
        return found


def _arguments(opened: OpenedJob) -> dict[str, Any]:
    return {**opened.keywords, "config": opened.config}
