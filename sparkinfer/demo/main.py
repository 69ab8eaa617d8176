"""Run the three jobs, write their tables, and say what came out.

Runs on: driver.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparkinfer as si
from sparkinfer.demo.packages import literal_path, require
from sparkinfer.exceptions import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd

    from sparkinfer.demo.job import DemoJob

__all__ = ["run_demo"]

_SHOWN = 12  # rows of a printed table


def run_demo(output: Path, photos: Path | None, diagnose_seconds: float = 0.0, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run the demo.

    Args:
        output: the folder to write to; made if it is not there. What an earlier demo wrote in it is replaced.
        photos: a folder of pictures to label, recursively; ``None`` takes those that scikit-image and scikit-learn ship.
        diagnose_seconds: to spend on a diagnosis of each job, when all are done; 0 for none.
        say: takes each line for people.

    Returns:
        What ``summary.json`` holds.

    Raises:
        MissingDependencyError: packages are missing; the message has the commands that install them.
        ConfigError: ``photos`` is no folder.
    """
    require()
    if photos is not None and not photos.is_dir():
        msg = f"{photos} is not a folder: name a folder of PNG or JPEG pictures"
        raise ConfigError(msg)
    output.mkdir(parents=True, exist_ok=True)
    jobs: list[tuple[str, str, Callable[[Any], DemoJob], Callable[[pd.DataFrame], tuple[dict[str, Any], str]]]] = [
        ("photos", "photographs, EfficientNet-Lite0, PyTorch", lambda spark: _photos(spark, photos), _tell_photos),
        ("source_files", "source files, guesslang, TensorFlow", _source_files, _tell_source_files),
        ("faces", "faces, O-Net, PyTorch and TensorFlow", _faces, _tell_faces),
    ]
    summary: dict[str, Any] = {}
    opens = _keep_runs(output / "mlflow")
    with _session() as spark:
        with si.inference_run("sparkinfer demo", profile=True) as run:
            for name, title, job, tell in jobs:
                say(f"\n{title}")
                table = output / f"{name}.parquet"
                shutil.rmtree(table, ignore_errors=True)
                begun = time.perf_counter()
                job(spark).predict().write.parquet(str(table.absolute()))
                seconds = time.perf_counter() - begun
                rows = spark.read.parquet(literal_path(table)).toPandas()
                facts, text = tell(rows)
                summary[name] = {"rows": len(rows), "seconds_with_start_up": round(seconds, 2), "table": str(table), **facts}
                say(text)
                say(f"{len(rows)} rows in {seconds:.1f} s, start-up included -> {table}")
        for name, title, job, _ in jobs if diagnose_seconds else ():
            found = job(spark).diagnose(diagnose_seconds)
            say(f"\n{title}\n{found}")
            say(f"what holds it back -> {found.save(output / f'diagnosis-{name}.html')}")
    report = _report(run, output / "report.html")
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    say(f"\nsummary -> {output / 'summary.json'}")
    say(f"where the time went -> {report}" if report else "the report needs matplotlib: pip install 'sparkinfer[report]'")
    if report:
        say(f"inside the models -> {run.profile.save_report(output / 'profile.html')}")
    say(f"the runs in MLflow: {opens}" if opens else "the runs are not kept: pip install 'sparkinfer[mlflow]'")
    return summary


def _keep_runs(folder: Path) -> str | None:
    """Have MLflow keep the demo's runs beside its tables, if it is installed; gives the command that shows them."""
    from sparkinfer.reporting.mlflow import use_local_store  # noqa: PLC0415

    try:
        return use_local_store(folder, "sparkinfer demo")
    except MissingDependencyError:
        return None


def _report(run: si.InferenceRun, path: Path) -> Path | None:
    try:
        return run.save_report(path)
    except MissingDependencyError:
        return None


@contextmanager
def _session() -> Iterator[Any]:
    """Use the active session, or a local one that ends with the demo."""
    from sparkinfer.spark.session import active_or_local_session, active_session  # noqa: PLC0415 - after require(), which says how to install Spark

    ours = active_session() is None
    spark = active_or_local_session("sparkinfer demo")
    if ours:
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        if ours:
            spark.stop()


def _photos(spark: Any, folder: Path | None) -> DemoJob:
    from sparkinfer.demo.photos import photo_folders, photos_job  # noqa: PLC0415

    return photos_job(spark, [folder] if folder is not None else photo_folders())


def _source_files(spark: Any) -> DemoJob:
    from sparkinfer.demo.source_files import source_files, source_files_job  # noqa: PLC0415

    return source_files_job(spark, source_files())


def _faces(spark: Any) -> DemoJob:
    from sparkinfer.demo.faces import faces_job  # noqa: PLC0415

    return faces_job(spark)


def _tell_photos(rows: pd.DataFrame) -> tuple[dict[str, Any], str]:
    shown = rows.assign(path=[path.rsplit("/", 1)[-1] for path in rows["path"]]).sort_values("score", ascending=False)
    best = {
        path: {"label": label, "score": round(float(score), 4)}
        for path, label, score in zip(shown["path"], shown["label"], shown["score"], strict=True)
    }
    more = f"\n... and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return {"labels": best}, shown.head(_SHOWN).to_string(index=False, float_format="%.3f") + more


def _tell_source_files(rows: pd.DataFrame) -> tuple[dict[str, Any], str]:
    from sparkinfer.demo.source_files import SUFFIXES  # noqa: PLC0415

    rows = rows.assign(suffix=["." + path.rsplit(".", 1)[-1] for path in rows["path"]])
    rows["right"] = rows["language"] == rows["suffix"].map(SUFFIXES)
    by_suffix = rows.groupby("suffix").agg(files=("right", "size"), called_right=("right", "sum"))
    by_suffix["share"] = by_suffix["called_right"] / by_suffix["files"]
    facts = {
        "accuracy": round(float(rows["right"].mean()), 4),
        "by_suffix": by_suffix[["files", "called_right"]].to_dict("index"),
    }
    return facts, by_suffix.sort_values("share", ascending=False).reset_index().to_string(index=False, float_format="%.3f")


def _tell_faces(rows: pd.DataFrame) -> tuple[dict[str, Any], str]:
    is_face = rows["row"] < 100  # by the data's own order
    difference = float((rows["torch_probability"] - rows["tensorflow_probability"]).abs().max())
    facts: dict[str, Any] = {"largest_difference": difference}
    lines = []
    for framework in ("torch", "tensorflow"):
        called = rows[f"{framework}_probability"] > 0.5
        facts[framework] = {"faces_called_faces": int((called & is_face).sum()), "others_called_faces": int((called & ~is_face).sum())}
        lines.append(
            f"{framework:>10}: {facts[framework]['faces_called_faces']} of 100 faces, {facts[framework]['others_called_faces']} of 100 others are called faces"
        )
    lines.append(f"the two frameworks differ by at most {difference:.1e}")
    return facts, "\n".join(lines)
