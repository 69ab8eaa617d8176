"""A Python for Spark's workers that has all that the tests' own has, but not this library."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path


def bare_python(folder: Path, *extra: Path) -> Path:
    """Make a virtual environment whose packages are links to this one's, all but sparkinfer and the traces of its installation.

    Args:
        folder: where to; must not be there.
        *extra: folders from which it imports beside them.

    Returns:
        Its interpreter. Run it in a folder and with a PYTHONPATH from which the library cannot be imported either.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    places = {"base": str(folder), "platbase": str(folder)}
    target = Path(sysconfig.get_path("purelib", vars=places))
    for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for package in Path(source).iterdir():
            if "sparkinfer" not in package.name.lower():
                (target / package.name).symlink_to(package)
    (target / "extra.pth").write_text("".join(f"{path}\n" for path in extra), encoding="utf-8")
    return folder / "bin" / "python"


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the environment without a PYTHONPATH, which the workers would inherit."""
    return {name: value for name, value in environment.items() if name != "PYTHONPATH"}
