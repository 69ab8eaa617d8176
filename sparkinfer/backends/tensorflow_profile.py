"""TensorFlow's profiler around some model calls.

Runs on: worker.

Invariant: one session at a time (its caller sees to it); what is sent is the profiler's own folder, laid out as TensorBoard's profile plugin
(xprof) opens it.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from sparkinfer.engine.chrome_trace import Slice, folded, operators_of, within
from sparkinfer.engine.profiling import Found

__all__ = ["TensorFlowSession", "start"]

_PS_IN_US = 1e6
_STEP = "infer"
_OPERATOR = re.compile(r"(?P<name>[\w./-]+):(?P<type>[A-Za-z_]\w*)")


class TensorFlowSession:
    """Answers ``profiling.Session``."""

    def __init__(self) -> None:
        """Start, into a folder of its own."""
        self._folder = tempfile.TemporaryDirectory(prefix="sparkinfer-", ignore_cleanup_errors=True)
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0, device_tracer_level=1)
        try:
            tf.profiler.experimental.start(self._folder.name, options=options)
        except BaseException:
            self._folder.cleanup()
            raise

    def step(self, number: int) -> AbstractContextManager[Any]:
        """Mark one model call as a step: the plugin's overview counts by them."""
        marked: AbstractContextManager[Any] = tf.profiler.experimental.Trace(_STEP, step_num=number, _r=1)
        return marked

    def finish(self) -> Found:
        """Stop; read the planes."""
        try:
            tf.profiler.experimental.stop()
            root = Path(self._folder.name)
            seen = [one for path in sorted(root.rglob("*.xplane.pb")) for one in _slices(path)]
            operators = [one.slice for one in seen if one.operator]
            calls = [one.slice for one in seen if one.slice.name == _STEP]
            pools = [one.slice for one in seen if one.pool]
            said = () if operators else ("TensorFlow's profiler saw no operator",)
            return Found(
                operators_of(operators), folded([*within((one.slice for one in seen), calls), *pools]), _tarred(root), "xplane", said
            )
        finally:
            self._folder.cleanup()

    def abandon(self) -> None:
        """Stop."""
        try:
            tf.profiler.experimental.stop(save=False)
        finally:
            self._folder.cleanup()


def start(device: str) -> TensorFlowSession:  # noqa: ARG001 - TensorFlow watches every device that it has
    """Start the profiler."""
    return TensorFlowSession()


class _Seen(NamedTuple):
    """A slice, what it is, and whether its thread is one of those that compute."""

    slice: Slice
    operator: bool
    pool: bool


def _slices(path: Path) -> Iterator[_Seen]:
    """Read the events of hosts and devices. The feed's own threads (tf.data's) are left out: they run ahead of the model, and not for it."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # noqa: PLC0415 - the wheel's own; nothing else needs it

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    for plane in space.planes:
        device = plane.name.startswith("/device:")
        if not device and not plane.name.startswith("/host:CPU"):
            continue
        for line in plane.lines:
            if line.name.startswith(("tf_data", "XLA Modules", "Steps")):
                continue
            begun = line.timestamp_ns / 1e3
            for event in line.events:
                told = plane.event_metadata[event.metadata_id]
                operator = device or bool(_OPERATOR.fullmatch(told.name))
                name = _spelt(told.name) if operator else told.name
                at, took = begun + event.offset_ps / _PS_IN_US, event.duration_ps / _PS_IN_US
                yield _Seen(Slice((plane.name, line.id), name, at, took, device), operator, line.name.startswith("tf_Compute"))


def _spelt(name: str) -> str:
    """Turn ``the operator's name:its type`` round."""
    found = _OPERATOR.fullmatch(name)
    return f"{found['type']} ({found['name']})" if found else name


def _tarred(root: Path) -> bytes:
    """Pack the folder; the same content gives the same bytes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for path in sorted(one for one in root.rglob("*") if one.is_file() and one.suffix == ".pb"):
            info = tarfile.TarInfo(str(path.relative_to(root)))
            info.size = path.stat().st_size
            archive.addfile(info, io.BytesIO(path.read_bytes()))
    return gzip.compress(made.getvalue(), mtime=0)
