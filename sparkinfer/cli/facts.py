"""What one machine's Python has: asked of the driver, and of every worker.

Runs on: both (standard library only; it goes to the workers by value, since they may lack this library).

Invariant: nothing is imported but this library, which is cheap; nothing raises.
"""

from __future__ import annotations

import platform
import shutil
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

__all__ = ["PACKAGES", "facts"]

PACKAGES = {  # what is imported: the distributions that bring it
    "numpy": ("numpy",),
    "pandas": ("pandas",),
    "pyarrow": ("pyarrow",),
    "cloudpickle": ("cloudpickle",),
    "torch": ("torch",),
    "safetensors": ("safetensors",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "matplotlib": ("matplotlib",),
    "psutil": ("psutil",),
    "pynvml": ("nvidia-ml-py",),
}


def facts() -> dict[str, Any]:
    """Give the host, the Python, the packages' versions and the NVIDIA cards that are there."""
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "sparkinfer": _our_version(),
        "packages": {name: _version(name, homes) for name, homes in PACKAGES.items()},
        "cards": _cards(),
    }


def _our_version() -> str | None:
    try:
        import sparkinfer  # noqa: PLC0415 - a worker may not have it
    except ImportError:
        return None
    return sparkinfer.__version__


def _version(name: str, homes: tuple[str, ...]) -> str | None:
    for home in homes:
        try:
            return version(home)
        except PackageNotFoundError:
            continue
    try:
        return "unknown version" if find_spec(name) is not None else None
    except (ImportError, ValueError):
        return None


def _cards() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        told = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False)  # noqa: S603 - the driver's own tool
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.partition(" (UUID")[0] for line in told.stdout.splitlines() if line.startswith("GPU ")]
