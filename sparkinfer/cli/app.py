"""The commands and their options.

Runs on: driver.

Invariant: every way to end has its exit code: 0 done, 1 failed, 2 the command or the job file is wrong.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Optional  # typer 0.9 reads no "X | None"

import typer

from sparkinfer.exceptions import ConfigError, SchemaError, SparkInferError, SparkInferWarning

__all__ = ["run_command"]

_app = typer.Typer(
    help="Score Spark DataFrames with PyTorch, TensorFlow and Python models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run_command(arguments: list[str] | None) -> int:
    """Run a command, and give its exit code."""
    try:
        with _plain_warnings():
            _app(args=arguments, prog_name="sparkinfer")
    except SystemExit as ended:  # how typer tells the exit code, also after --help
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except (ConfigError, SchemaError) as error:
        sys.stderr.write(f"sparkinfer: {error}\n")
        return 2
    except SparkInferError as error:
        sys.stderr.write(f"sparkinfer: {error}\n")
        return 1
    return 0


@_app.command()
def demo(
    output: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("demo-output"),
    photos: Annotated[Optional[Path], typer.Option(help="Label the PNG and JPEG pictures of this folder instead.")] = None,
) -> None:
    """Do three real jobs on real models and files: photographs, source files, faces."""
    from sparkinfer.demo.main import run_demo  # noqa: PLC0415 - `sparkinfer --help` needs none of it

    with _exit_1_when_refused():
        run_demo(output.expanduser(), photos and photos.expanduser())  # make passes ~ on as it is


@_app.command()
def run(
    job: Annotated[Path, typer.Argument(help="The job file: docs/jobs.md tells its keys.", metavar="JOB.yaml", show_default=False)],
    changes: Annotated[
        Optional[list[str]],
        typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a key of the job file, such as config.batch_size=32."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the file, its functions, the model and the columns, and score nothing.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show the whole trace of a failed job, which may hold values of the job file.")
    ] = False,
) -> None:
    """Run the job of a file: read rows, score them, write them."""
    from sparkinfer.cli.run import JobFailedError, run_job  # noqa: PLC0415 - pydantic and the library's core

    try:
        run_job(job.expanduser(), changes=tuple(changes or ()), check=check, trace=trace)
    except JobFailedError:
        if trace:
            raise SystemExit(_traced()) from None
        raise


@_app.command()
def doctor(
    master: Annotated[
        Optional[str], typer.Option(help="Ask the workers of this Spark master; local ones by default.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is there, what is missing and how to mend it: Java, Spark, Python, packages, cards, settings."""
    from sparkinfer.cli.doctor import examine, show  # noqa: PLC0415 - `sparkinfer --help` needs none of it

    checks = examine(master)
    show(checks, as_json=as_json)
    if any(check.state in ("missing", "wrong") for check in checks):
        raise typer.Exit(1)


@contextmanager
def _exit_1_when_refused() -> Iterator[None]:
    """The demo has no job file: whatever it refuses is a failure."""
    try:
        yield
    except SparkInferError as error:
        sys.stderr.write(f"sparkinfer: {error}\n")
        raise typer.Exit(1) from error


def _traced() -> int:
    sys.excepthook(*sys.exc_info())  # the one that is being handled
    return 1


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show the library's remarks as sentences, without the line of its own code that they come from."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, SparkInferWarning):
            sys.stderr.write(f"sparkinfer: {message}\n")
        else:
            before(message, category, *place, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before
