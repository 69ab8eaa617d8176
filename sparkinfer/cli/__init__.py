"""The command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sparkinfer.errors import SparkInferError

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 when it did what it says, 1 when the library refused, with one sentence why."""
    parser = argparse.ArgumentParser(prog="sparkinfer", description="Score Spark DataFrames with PyTorch and TensorFlow models.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="three real jobs on real models and files: photographs, source files, faces")
    demo.add_argument("--output", type=Path, default=Path("demo-output"), help="the folder to write to (default: demo-output)")
    demo.add_argument("--photos", type=Path, default=None, help="label the PNG and JPEG pictures of this folder instead")
    given = parser.parse_args(arguments)
    try:
        from sparkinfer.demo.main import run_demo  # noqa: PLC0415 - `sparkinfer --help` needs none of it

        run_demo(given.output.expanduser(), given.photos and given.photos.expanduser())  # make passes ~ on as it is
    except SparkInferError as error:
        sys.stderr.write(f"sparkinfer: {error}\n")
        return 1
    return 0
