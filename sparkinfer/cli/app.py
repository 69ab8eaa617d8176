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
    diagnose: Annotated[
        float, typer.Option(help="Then say what holds each job back, within so many seconds each.", metavar="SECONDS")
    ] = 0.0,
) -> None:
    """Do three real jobs on real models and files: photographs, source files, faces."""
    from sparkinfer.demo.main import run_demo  # noqa: PLC0415 - `sparkinfer --help` needs none of it

    with _exit_1_when_refused():
        run_demo(output.expanduser(), photos and photos.expanduser(), diagnose)  # make passes ~ on as it is


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
    from sparkinfer.cli.opened import JobFailedError  # noqa: PLC0415 - pydantic and the library's core
    from sparkinfer.cli.run import run_job  # noqa: PLC0415

    try:
        run_job(job.expanduser(), changes=tuple(changes or ()), check=check, trace=trace)
    except JobFailedError:
        if trace:
            raise SystemExit(_traced()) from None
        raise


_Job = Annotated[Path, typer.Argument(help="The job file: docs/jobs.md tells its keys.", metavar="JOB.yaml", show_default=False)]
_Changes = Annotated[
    Optional[list[str]],
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a key of the job file, such as config.batch_size=32."),
]

_Partitions = Annotated[int, typer.Option(help="Partitions to look at, the first ones.", min=1)]


@_app.command()
def diagnose(
    job: _Job,
    changes: _Changes = None,
    rows: Annotated[int, typer.Option(help="Rows of the sample, at most.", min=1)] = 20_000,
    seconds: Annotated[float, typer.Option(help="Seconds to spend, in about.", min=0.1)] = 60.0,
    report: Annotated[Optional[Path], typer.Option(help="Write the page with the chart here.", show_default=False)] = None,
) -> None:
    """Say which part of a job holds it back, and what each change would give; nothing is written to its sink."""
    from sparkinfer.cli.measure import diagnose_job  # noqa: PLC0415 - pydantic and the library's core

    diagnose_job(job.expanduser(), changes=tuple(changes or ()), rows=rows, seconds=seconds, report=report and report.expanduser())


@_app.command()
def tune(
    job: _Job,
    changes: _Changes = None,
    rows: Annotated[int, typer.Option(help="Rows of the sample, at most.", min=1)] = 20_000,
    seconds: Annotated[float, typer.Option(help="Seconds to spend, in about.", min=0.1)] = 180.0,
    allow: Annotated[
        Optional[list[str]],
        typer.Option(help="What may change the answers a little, or the engine: precision, optimize.", show_default=False),
    ] = None,
    write: Annotated[Optional[Path], typer.Option(help="Write the job with the settings that were found here.", show_default=False)] = None,
) -> None:
    """Find a job's fastest settings by measuring a few; nothing is written to its sink."""
    from sparkinfer.cli.measure import tune_job  # noqa: PLC0415 - pydantic and the library's core

    tune_job(
        job.expanduser(),
        changes=tuple(changes or ()),
        rows=rows,
        seconds=seconds,
        allow=tuple(allow or ()),
        write=write and write.expanduser(),
    )


@_app.command()
def profile(
    job: _Job,
    changes: _Changes = None,
    partitions: _Partitions = 2,
    take: Annotated[int, typer.Option(help="Model calls to watch in each, after one that warms up.", min=1)] = 3,
    report: Annotated[Optional[Path], typer.Option(help="Write the page here.", show_default=False)] = None,
    trace: Annotated[Optional[Path], typer.Option(help="Write one trace of the run here; Perfetto opens it.", show_default=False)] = None,
    tensorboard: Annotated[
        Optional[Path], typer.Option(help="Lay the profiler's own traces out for TensorBoard in this folder.", show_default=False)
    ] = None,
) -> None:
    """Say which operators of a job's model take the time, by its framework's own profiler; nothing is written to its sink."""
    from sparkinfer.cli.measure import profile_job  # noqa: PLC0415 - pydantic and the library's core

    profile_job(
        job.expanduser(),
        changes=tuple(changes or ()),
        partitions=partitions,
        take=take,
        report=report and report.expanduser(),
        trace=trace and trace.expanduser(),
        tensorboard=tensorboard and tensorboard.expanduser(),
    )


@_app.command()
def inspect(
    job: _Job,
    changes: _Changes = None,
    partitions: _Partitions = 2,
    batches: Annotated[int, typer.Option(help="Batches of each of them.", min=1)] = 8,
    report: Annotated[Optional[Path], typer.Option(help="Write the page here.", show_default=False)] = None,
    baseline: Annotated[
        Optional[Path], typer.Option(help="An earlier look: what is distributed otherwise now is drift.", show_default=False)
    ] = None,
    save_baseline: Annotated[Optional[Path], typer.Option(help="Keep this look as a baseline here.", show_default=False)] = None,
) -> None:
    """Look at each layer of a job's model: values, zeros, NaN, dead units, drift; nothing is written to its sink."""
    from sparkinfer.cli.measure import inspect_job  # noqa: PLC0415 - pydantic and the library's core

    inspect_job(
        job.expanduser(),
        changes=tuple(changes or ()),
        partitions=partitions,
        batches=batches,
        report=report and report.expanduser(),
        baseline=baseline and baseline.expanduser(),
        save_baseline=save_baseline and save_baseline.expanduser(),
    )


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
