"""The profiler around some model calls of a partition.

Runs on: worker.

Invariant: a partition that is not watched runs the very objects that it would run without this module; a profiler that fails costs a remark
and no prediction; one session at a time is open in a process, and none is left open, whichever way the partition ends.
"""

from __future__ import annotations

import base64
import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, cast

from sparkinfer.engine.places import locate_url
from sparkinfer.engine.recorder import private_bytes
from sparkinfer.profiles import Operator, PartitionProfile, ProfilePlan, top_operators, top_stacks

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.contracts import LoadedModel
    from sparkinfer.engine.recorder import NoRecorder

__all__ = ["NO_PROFILING", "Found", "NoProfiling", "Profiling", "Session", "first_rows_of"]

_MOST_STACKS = 400
_PROBES = 24
_PROBE_SECONDS = 5.0
_one_session = Lock()  # torch loses the outer session's trace without a word, TensorFlow raises


@dataclass(frozen=True)
class Found:
    """What a session saw.

    Attributes:
        operators: all of them.
        stacks: self microseconds by stack.
        trace: compressed.
        trace_kind: ``chrome`` or ``xplane``.
        remarks: what could not be had.
    """

    operators: list[Operator]
    stacks: dict[str, float]
    trace: bytes = b""
    trace_kind: str = "chrome"
    remarks: tuple[str, ...] = ()


class Session(Protocol):
    """A profiler that runs; made by a profiler's ``start``."""

    def step(self, number: int) -> AbstractContextManager[Any]:
        """Surround one model call."""
        ...

    def finish(self) -> Found:
        """Stop, and give what was seen; called once."""
        ...

    def abandon(self) -> None:
        """Stop, whatever state it is in; what was seen is let go. Called instead of ``finish``, or after it failed."""
        ...


_PROFILERS = {"torch": "sparkinfer.backends.torch_profile", "tensorflow": "sparkinfer.backends.tensorflow_profile"}


def _start(backend: str, device: str) -> tuple[str, Session]:
    """Start the framework's own profiler, or Python's where the backend has none."""
    name = backend if backend in _PROFILERS else "python"
    made = import_module(_PROFILERS.get(backend, "sparkinfer.engine.python_profile"))
    return name, cast("Session", made.start(device))


class NoProfiling:
    """Watches nothing: the null object of ``Profiling``."""

    @contextmanager
    def watching(
        self,
        model: LoadedModel,
        device: str,  # noqa: ARG002 - the shape of the other
        recorder: NoRecorder,  # noqa: ARG002
        prepare: Callable[[], Any],  # noqa: ARG002
    ) -> Iterator[LoadedModel]:
        """Give the model itself."""
        yield model


NO_PROFILING = NoProfiling()


@dataclass(frozen=True)
class Profiling(NoProfiling):
    """Watches one partition.

    Attributes:
        plan: what is asked.
        backend: the model's.
        model: how people call it.
        name: what a trace that is written is called, without folder and ending; unique to the task attempt.
    """

    plan: ProfilePlan
    backend: str
    model: str
    name: str

    @contextmanager
    def watching(self, model: LoadedModel, device: str, recorder: NoRecorder, prepare: Callable[[], Any]) -> Iterator[LoadedModel]:
        """Give the model, some of whose calls are watched; what was found goes to the recorder.

        Args:
            model: loaded.
            device: where it runs.
            recorder: is told.
            prepare: prepares the first batch once more.
        """
        watched = _Watched(model, self, device, recorder)
        try:
            yield watched
            watched.finish()
            if self.plan.bounded is not None:
                recorder.probed(watched.probe(prepare))
                recorder.lap("other")
        finally:
            watched.close()


class _Watched:
    """A loaded model whose calls are counted; answers ``LoadedModel``."""

    def __init__(self, model: LoadedModel, profiling: Profiling, device: str, recorder: NoRecorder) -> None:
        self._model = model
        self._profiling = profiling
        self._device = device
        self._recorder = recorder
        self._calls = 0
        self._taken = 0
        self._seconds = 0.0
        self._started_unix = 0.0
        self._name = "python"
        self._session: Session | None = None
        self._over = False
        self._last: Inputs | None = None  # for the probe alone: where nothing is probed, no batch is held

    def predict(self, inputs: Inputs) -> Any:
        """Run the model once, watched where it is this call's turn."""
        self._calls += 1
        if self._profiling.plan.bounded is not None:
            self._last = inputs
        if self._over or self._calls <= self._profiling.plan.skip:
            return self._model.predict(inputs)
        if self._session is None and not self._open():
            return self._model.predict(inputs)
        return self._watch(inputs)

    def device_peak_bytes(self) -> int | None:
        """Ask the model."""
        return self._model.device_peak_bytes()

    def release(self) -> None:
        """Do nothing: the cache lets the model itself go."""

    def device_bytes(self) -> int | None:
        """Ask the model."""
        return self._model.device_bytes()

    def probe(self, prepare: Callable[[], Any]) -> dict[str, tuple[int, ...]]:
        """Repeat each half of the work with the same rows, and look how much memory is left taken."""
        inputs, self._last = self._last, None
        halves: dict[str, Callable[[], Any]] = {"preprocess": prepare}
        if inputs is not None:
            halves["model"] = partial(self._model.predict, inputs)
        return {name: sizes for name, half in halves.items() if (sizes := _repeated(half))}

    def finish(self) -> None:
        """Take what was seen, where the partition ended before its turn was over."""
        if self._session is not None:
            self._take()
        elif not self._over:
            said = f"nothing was profiled: the partition ended after {self._calls} model calls, and the first {self._profiling.plan.skip} are skipped"
            self._recorder.profiled(PartitionProfile(profiler=self._name, remarks=(said,)))

    def close(self) -> None:
        """Leave no session open."""
        if self._session is None:
            return
        session, self._session, self._over = self._session, None, True
        with suppress(Exception):
            session.abandon()
        _one_session.release()

    def _open(self) -> bool:
        if not _one_session.acquire(blocking=False):
            self._give_up("another profile runs in this process")
            return False
        try:
            self._name, self._session = _start(self._profiling.backend, self._device)
        except Exception as error:  # noqa: BLE001 - whatever a profiler raises, the rows are scored
            _one_session.release()
            self._give_up(f"the profiler did not start: {type(error).__name__}: {error}")
            return False
        self._started_unix = time.time()
        self._recorder.lap("other")
        return True

    def _watch(self, inputs: Inputs) -> Any:
        assert self._session is not None  # noqa: S101 - its one caller opened it
        self._recorder.not_measured()
        begun = time.perf_counter()
        with self._session.step(self._taken):
            result = self._model.predict(inputs)
        self._seconds += time.perf_counter() - begun
        self._taken += 1
        if self._taken >= self._profiling.plan.take:
            self._recorder.lap("compute")
            self._take()
            self._recorder.lap("other")
            self._recorder.not_measured()  # of the lap that the loop makes for this call, nothing is left
        return result

    def _take(self) -> None:
        session, self._over = self._session, True
        assert session is not None  # noqa: S101 - as above
        try:
            found = session.finish()
        except Exception as error:  # noqa: BLE001 - see above
            self.close()
            self._give_up(f"the profiler's figures could not be read: {type(error).__name__}: {error}")
            return
        self._session = None
        _one_session.release()
        plan = self._profiling.plan
        profile = PartitionProfile(
            profiler=self._name,
            model=self._profiling.model,
            batches=self._taken,
            seconds=self._seconds,
            started_unix=self._started_unix,
            operators=top_operators(found.operators, plan.operators),
            stacks=top_stacks(found.stacks, _MOST_STACKS),
            trace_kind=found.trace_kind,
            trace_bytes=len(found.trace),
            remarks=found.remarks,
        )
        self._recorder.profiled(_with_trace(profile, found.trace, plan, self._profiling.name))

    def _give_up(self, why: str) -> None:
        self._over = True
        self._recorder.profiled(PartitionProfile(profiler=self._name, remarks=(f"not profiled: {why}",)))


def _repeated(work: Callable[[], Any]) -> tuple[int, ...]:
    """Do something again and again, and give the process's own memory after each time."""
    sizes: list[int] = []
    ended = time.perf_counter() + _PROBE_SECONDS
    with suppress(Exception):  # what it raises was raised before, or is raised where it counts
        for _ in range(_PROBES):
            work()
            _hand_back()
            size = private_bytes()
            if size is None or time.perf_counter() > ended:
                break
            sizes.append(size)
    return tuple(sizes)


def _hand_back() -> None:
    """Free what is garbage and hand free memory back to the system, so that what is taken is what is held; glibc keeps megabytes else."""
    gc.collect(1)  # what a call has just left; the old generation takes long
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _with_trace(profile: PartitionProfile, trace: bytes, plan: ProfilePlan, name: str) -> PartitionProfile:
    """Send a small trace along, write a large one where the plan says, or say that it is gone."""
    if not trace:
        return profile
    if len(trace) <= plan.trace_bytes:
        return replace(profile, trace=base64.b64encode(trace).decode())
    if plan.path is None:
        said = f"a trace of {len(trace)} bytes was let go, since at most {plan.trace_bytes} come back with the figures: give path= a folder that all workers can write"
        return replace(profile, remarks=(*profile.remarks, said))
    ending = "trace.json.gz" if profile.trace_kind == "chrome" else "xplane.tar.gz"
    url = f"{plan.path.rstrip('/')}/{name}.{ending}"
    try:
        _write(url, trace)
    except Exception as error:  # noqa: BLE001 - a full disk costs the trace, and not the rows
        return replace(profile, remarks=(*profile.remarks, f"the trace could not be written to {url}: {type(error).__name__}: {error}"))
    return replace(profile, trace_path=url)


def _write(url: str, content: bytes) -> None:
    system, path = locate_url(url)
    folder = path.rpartition("/")[0]
    if folder:
        system.create_dir(folder, recursive=True)
    with system.open_output_stream(path, compression=None) as out:
        out.write(content)


def first_rows_of(chunks: Iterator[pa.RecordBatch], rows: int, then: Callable[[], None] = lambda: None) -> Iterator[pa.RecordBatch]:
    """Pass chunks through up to a number of rows, and pull no more."""
    left = rows
    for chunk in chunks:
        yield chunk.slice(0, left) if chunk.num_rows > left else chunk
        left -= chunk.num_rows
        if left <= 0:
            break
    then()
