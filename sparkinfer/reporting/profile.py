"""What the profilers of a run saw: tables, stacks, traces, a page.

Runs on: driver.

Invariant: sums over partitions are of those partitions that were watched, and their number is told beside them.
"""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from sparkinfer.engine.places import locate_url
from sparkinfer.exceptions import ConfigError
from sparkinfer.profiles import Operator, PartitionProfile, merge_operators, merge_stacks
from sparkinfer.reporting.words import plain

if TYPE_CHECKING:
    import pandas as pd

    from sparkinfer.metrics import PartitionMetrics, RunMetrics

__all__ = ["CallProfile", "Profile"]

_PRINTED = 12  # operators of a model, in a terminal


@dataclass(frozen=True)
class CallProfile:
    """What was seen of one model, in one action.

    Attributes:
        call: which ``predict`` or ``predict_udf``.
        records: of the partitions that were watched.
    """

    call: str
    records: tuple[PartitionMetrics, ...]

    @property
    def profiles(self) -> tuple[PartitionProfile, ...]:
        """What was seen in each of them."""
        return tuple(record.profile for record in self.records if record.profile is not None)

    @property
    def profiler(self) -> str:
        """Which profiler it was."""
        return next((profile.profiler for profile in self.profiles if profile.batches), self.profiles[0].profiler)

    @property
    def model(self) -> str:
        """How people call the model; the call's id where nothing was watched."""
        return next((profile.model for profile in self.profiles if profile.model), self.call)

    @property
    def batches(self) -> int:
        """Model calls that were watched."""
        return sum(profile.batches for profile in self.profiles)

    @property
    def seconds(self) -> float:
        """Their wall time, under the profiler."""
        return sum(profile.seconds for profile in self.profiles)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of all watched partitions, the slowest first."""
        return merge_operators(profile.operators for profile in self.profiles)

    @cached_property
    def stacks(self) -> dict[str, float]:
        """Self microseconds by stack."""
        return merge_stacks(profile.stacks for profile in self.profiles)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What could not be had, each once."""
        return tuple(dict.fromkeys(remark for profile in self.profiles for remark in profile.remarks))


class Profile:
    """The profile of a run; made by ``profile`` and by ``inference_run(profile=...)``.

    Example:
        ::

            seen = si.profile(photos, model, inputs="content", outputs="label string")
            seen.operators.head()
            seen.save_report("profile.html")
            seen.save_trace("run.trace.json.gz")  # ui.perfetto.dev opens it
    """

    def __init__(self, metrics: RunMetrics, memory: Any = None) -> None:
        """Take what a run measured, and the verdict on its memory."""
        self.metrics = metrics
        self.memory = memory

    @cached_property
    def calls(self) -> tuple[CallProfile, ...]:
        """One for each model and action that had a watched partition, in order."""
        made = (
            CallProfile(execution.call, tuple(record for record in execution.partitions if record.profile is not None))
            for execution in self.metrics.executions
        )
        return tuple(call for call in made if call.records)

    @property
    def operators(self) -> pd.DataFrame:
        """One row an operator and its inputs' shapes, the slowest first; microseconds and bytes, added up over the watched partitions.

        ``share`` is of the self time of all of them. A column that no profiler measured is not there.
        """
        import pandas as pd  # noqa: PLC0415 - most profiles are read on their page

        rows = [
            {"call": call.call, "model": call.model, "profiler": call.profiler, **vars(row), "self_us": row.self_us}
            for call in self.calls
            for row in call.operators
        ]
        table = pd.DataFrame(rows).dropna(axis="columns", how="all")
        if len(table):
            table.insert(3, "share", table["self_us"] / (table["self_us"].sum() or 1.0))
        return table

    @property
    def stacks(self) -> dict[str, float]:
        """Self microseconds by stack of calls, spelt ``outer;inner``: what flame graphs are drawn of."""
        return merge_stacks(call.stacks for call in self.calls)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What could not be had, and why."""
        return tuple(dict.fromkeys(remark for call in self.calls for remark in call.remarks))

    @property
    def traces(self) -> dict[str, bytes]:
        """The profilers' own traces, compressed, by ``p<partition>-t<task attempt>``; those that were written elsewhere are read from there.

        Raises:
            OSError: one cannot be read from here.
        """
        found = {}
        for call in self.calls:
            for record in call.records:
                content = _content(record.profile)
                if content:
                    found[f"p{record.partition}-t{record.task_attempt}"] = content
        return found

    def save_trace(self, path: str | Path) -> Path:
        """Write one trace of the run, with the operators of the watched partitions; Perfetto and chrome://tracing open it.

        Returns:
            Where it is.
        """
        saved: Path = import_module("sparkinfer.reporting.run_trace").save_trace(self.metrics, path)
        return saved

    def save_tensorboard(self, folder: str | Path) -> Path:
        """Lay the traces out for TensorBoard: TensorFlow's for its profile plugin (xprof), one run a partition; torch's beside them.

        Returns:
            The folder, as ``tensorboard --logdir`` or ``xprof --logdir`` takes it.

        Raises:
            ConfigError: no trace came back; ``remarks`` say why.
        """
        target = Path(folder)
        kinds = {f"p{record.partition}-t{record.task_attempt}": record.profile for call in self.calls for record in call.records}
        traces = self.traces
        if not traces:
            why = "; ".join(self.remarks) or "no partition was watched"
            msg = f"there is no trace to lay out: {why}"
            raise ConfigError(msg)
        for name, content in traces.items():
            profile = kinds[name]
            if profile is not None and profile.trace_kind == "xplane":
                _unpack(content, target / "plugins" / "profile" / name)
            else:
                target.mkdir(parents=True, exist_ok=True)
                (target / f"{name}.pt.trace.json.gz").write_bytes(content)
        return target

    def save_report(self, path: str | Path) -> Path:
        """Write the profile as a page, one self-contained HTML file.

        Returns:
            Where it is.
        """
        target = Path(path)
        page: str = import_module("sparkinfer.reporting.profile_page").render(self)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
        return target

    def __repr__(self) -> str:
        """Say what was watched."""
        told = ", ".join(f"{call.profiler}: {call.batches} batches of {len(call.records)} partitions" for call in self.calls)
        return f"Profile({told or 'nothing was watched'})"

    def __str__(self) -> str:
        """Say what was watched, which operators took longest, and what there is to know of memory."""
        lines = [repr(self)]
        for call in self.calls:
            whole = sum(row.self_us for row in call.operators) or 1.0
            lines += [
                f"{row.self_us / whole:6.1%}  {row.self_us / 1000:10.1f} ms  {row.calls:8,} x  {plain(row.name, 80)} {plain(row.shapes, 60)}".rstrip()
                for row in call.operators[:_PRINTED]
            ]
        if self.memory is not None:
            lines.append(str(self.memory))
        return "\n".join([*lines, *self.remarks])

    def _repr_html_(self) -> str:
        """Show the slowest operators at the end of a notebook's cell."""
        shown: str = import_module("sparkinfer.reporting.profile_page").cell(self)
        return shown


def _content(profile: PartitionProfile | None) -> bytes:
    if profile is None:
        return b""
    if profile.trace is not None:
        return base64.b64decode(profile.trace)
    if profile.trace_path is None:
        return b""
    system, path = locate_url(profile.trace_path)
    with system.open_input_stream(path, compression=None) as source:
        return bytes(source.read())


def _unpack(content: bytes, folder: Path) -> None:
    """Write the planes of a tar; of their paths only the last part counts, so none leads out of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
        for member in archive.getmembers():
            source = archive.extractfile(member) if member.isfile() else None
            if source is not None:
                (folder / PurePosixPath(member.name).name).write_bytes(source.read())
