"""The machine and the versions that figures were taken on."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

__all__ = ["describe_machine"]

_PACKAGES = (
    "pyspark",
    "torch",
    "tensorflow-cpu",
    "tensorflow",
    "pyarrow",
    "numpy",
    "pandas",
    "mlflow",
    "ray",
    "daft",
    "onnxruntime",
    "openvino",
)


def describe_machine() -> dict[str, Any]:
    """Give what a reader needs to judge the figures by."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
