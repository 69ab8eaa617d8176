"""The command line.

Runs on: driver.
"""

from __future__ import annotations

import sys

__all__ = ["command", "main"]

_PACKAGES = ("typer", "rich", "yaml", "pydantic")


def command() -> None:
    """Run the command of the process's arguments, and end with its exit code: what the package's entry point names.

    A wheel task on Databricks calls that function too, and takes no notice of what it gives back.

    Raises:
        SystemExit: the code is not 0.
    """
    code = main()
    if code:
        raise SystemExit(code)


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: without the program's name; those of the process by default.

    Returns:
        0 when it did what it says; 1 when it failed; 2 when the command or the job file is wrong.
    """
    try:
        from sparkinfer.cli.app import run_command  # noqa: PLC0415 - what it needs comes with an extra

        return run_command(arguments)  # a command brings more of it
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        sys.stderr.write(
            f"sparkinfer: the command line needs the package {error.name!r}, which is not installed here: pip install 'sparkinfer[cli]'\n"
        )
        return 1
