"""The language of source files, told by guesslang's TensorFlow SavedModel.

Runs on: driver (``source_files_job``), worker (the rest).
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import sparkinfer as si
from sparkinfer.demo.job import DemoJob
from sparkinfer.demo.packages import folder_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SUFFIXES", "guesslang_model", "likeliest_language", "read_source", "source_files", "source_files_job", "tell_languages"]

SUFFIXES = {
    ".py": "Python",
    ".cpp": "C++",
    ".css": "CSS",
    ".csv": "CSV",
    ".f90": "Fortran",
    ".js": "JavaScript",
    ".json": "JSON",
    ".md": "Markdown",
    ".sh": "Shell",
    ".yaml": "YAML",
}
_EACH = 40  # files of each suffix beside pyspark's own Python
_SKIP_ABOVE = 200_000  # bytes


def source_files() -> list[str]:
    """Choose the files: every ``.py`` of pyspark, and up to 40 of each other suffix in the packages installed beside it."""
    pyspark = folder_of("pyspark")
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(pyspark.parent.rglob("*")):
        suffix = path.suffix
        if (
            suffix in SUFFIXES
            and suffix != ".py"
            and len(found[suffix]) < _EACH
            and path.is_file()
            and 200 <= path.stat().st_size <= _SKIP_ABOVE
        ):
            found[suffix].append(str(path))
    found[".py"] = [str(path) for path in sorted(pyspark.rglob("*.py"))]
    return [path for suffix in SUFFIXES for path in found[suffix]]


def guesslang_model() -> si.TensorFlowModel:
    """Describe the model: a SavedModel folder in place, and its signature."""
    return si.TensorFlowModel(str(folder_of("guesslang") / "data" / "model"), signature="predict")


def read_source(path: str) -> str:
    """Read one file as the model wants it."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


def likeliest_language(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Turn the signature's outputs into the likeliest language's name and its probability.

    Args:
        outputs: among others ``classes`` bytes (rows, 1), such as ``b"py"``, and ``probabilities`` float32 (rows, 54).
    """
    names = _language_names()
    return {
        "language": np.array([names[label.decode()] for label in outputs["classes"][:, 0]], dtype=object),
        "probability": outputs["probabilities"].max(axis=1),
    }


@lru_cache(maxsize=1)
def _language_names() -> dict[str, str]:
    suffixes = json.loads((folder_of("guesslang") / "data" / "languages.json").read_text(encoding="utf-8"))
    return {str(suffix): str(name) for name, suffix in suffixes.items()}


def tell_languages(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Tell each file's language: columns ``path``, ``language``, ``probability``."""
    return source_files_job(spark, paths).predict()


def source_files_job(spark: SparkSession, paths: list[str]) -> DemoJob:
    """Give the job of ``tell_languages``."""
    files = spark.createDataFrame([(path,) for path in paths], "path string").repartition(spark.sparkContext.defaultParallelism)
    return DemoJob(
        files,
        guesslang_model(),
        {
            "inputs": "path",
            "outputs": "language string, probability float",
            "preprocess": read_source,
            "postprocess": likeliest_language,
            "batch_size": 64,
            "key": "path",
        },
    )
