"""A ``DataLoader`` whose "indices" are the rows themselves, in this process or with processes that live on.

Runs on: worker, and its loader processes.

Invariant: order is the source's, and no batch is lost to an error behind it; a process's death is told as such, and in nobody
else's name.
"""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader

from sparkinfer.backends.torch_values import to_tensor
from sparkinfer.engine.batch import BadRow, Batch, Failure, Fault, Fed, Inputs
from sparkinfer.engine.lifeline import Lifeline, loader_context
from sparkinfer.exceptions import LoaderProcessError
from sparkinfer.pickling import dumps, loads

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import PrepareStep

__all__ = ["Key", "Loader", "prepare_here"]

Key = tuple[str, int, int, bool]  # step, processes, batches ahead of each, pinned


def prepare_here(source: Iterator[Batch], prepare: PrepareStep, *, pin: bool) -> Iterator[Fed]:
    """Prepare batches in the thread that pulls this iterator."""
    waiting: deque[Batch] = deque()

    def slices() -> Iterator[pa.RecordBatch]:
        for batch in source:
            waiting.append(batch)
            yield batch.data

    for made in _data_loader(_Prepare(prepare), slices(), pin_memory=pin):
        yield Fed(waiting.popleft(), _to_inputs(made))


class _Prepare:
    """The dataset: its "indices" are the rows themselves."""

    def __init__(self, prepare: PrepareStep) -> None:
        self._prepare = prepare

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel by cloudpickle, for the user's functions that plain pickle refuses (to a fork server's children)."""
        return _revive, (dumps(self._prepare, "preprocess"),)

    def __len__(self) -> int:
        """Not known."""
        raise TypeError

    def __getitems__(self, rows: pa.RecordBatch | bytes) -> tuple[str, dict[str, Any], dict[str, float], tuple[BadRow, ...]] | Failure:
        """Make one model call's inputs; as a tuple, in which torch finds the tensors that it is to pin."""
        if isinstance(rows, bytes):
            with pa.ipc.open_stream(pa.py_buffer(rows)) as reader:
                rows = reader.read_next_batch()
        inputs = self._prepare(rows)
        if isinstance(inputs, Failure):
            return inputs
        begun = time.perf_counter()
        try:
            arrays = {name: array if _is_text(array) else to_tensor(array) for name, array in inputs.arrays.items()}
        except Fault as fault:
            return Failure.of(fault)
        return inputs.style, arrays, {**inputs.seconds, "transfer": time.perf_counter() - begun}, inputs.bad


def _revive(pickled: bytes) -> _Prepare:
    return _Prepare(loads(pickled, "preprocess"))


def _is_text(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "O"


def _as_it_is(made: Any) -> Any:
    return made


def _to_inputs(made: Any) -> Inputs | Failure:
    return made if isinstance(made, Failure) else Inputs(*made)


def _data_loader(dataset: _Prepare, slices: Any, **settings: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset,  # type: ignore[arg-type]  # a map-style dataset by its methods
        batch_sampler=slices,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # of its own: the seed that an epoch draws must not move the user's random state
        **settings,
    )


class _Slices:
    """The batch sampler: in each epoch, the Arrow bytes of the source's batches."""

    def __init__(self) -> None:
        self.source: Iterator[Batch] = iter(())
        self.waiting: deque[Batch] = deque()
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Send a slice as Arrow bytes: pickle would send the whole chunk that it is a view of."""
        try:
            for batch in self.source:
                self.waiting.append(batch)
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.data.schema) as writer:
                    writer.write_batch(batch.data)
                yield sink.getvalue().to_pybytes()
        except Exception as error:  # noqa: BLE001 - raised by the epoch, after the batches that came before it
            self.error = error


class Loader:
    """A ``DataLoader`` with living processes, lent to one partition at a time."""

    def __init__(self, key: Key, prepare: PrepareStep) -> None:
        """Start the processes, in this thread."""
        self.key = key
        self.clean = True  # no batch is on its way
        self._slices = _Slices()
        _, num_workers, prefetch_factor, pin = key
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # more processes than CPUs: they may wait for disks
            self._loader = _data_loader(
                _Prepare(prepare),
                self._slices,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                persistent_workers=True,
                pin_memory=pin,
                worker_init_fn=Lifeline(),
                multiprocessing_context=loader_context("torch", __name__),
            )
            for _ in self._loader:  # an epoch of nothing: it starts the processes and pulls no batch
                pass
        iterator: Any = self._loader._iterator  # noqa: SLF001 - it holds the processes, for all epochs
        self._processes: list[BaseProcess] = iterator._workers  # noqa: SLF001
        _forget_pids(iterator)
        iterator._worker_pids_set = False  # noqa: SLF001
        self._iterator = iterator

    def alive(self) -> bool:
        """Whether every process is there."""
        return all(process.is_alive() for process in self._processes)

    def epoch(self, source: Iterator[Batch]) -> Iterator[Fed]:
        """Prepare one partition.

        Raises:
            LoaderProcessError: a process died.
        """
        slices = self._slices
        slices.source, slices.error = source, None
        slices.waiting.clear()
        self.clean = False
        try:
            with self._death_is_told():
                made_ahead = iter(self._loader)
            while True:
                with self._death_is_told():
                    made = next(made_ahead, None)
                if made is None:
                    break
                yield Fed(slices.waiting.popleft(), _to_inputs(made))
        except Exception as error:
            if (dead := self._first_dead()) is None:
                raise
            raise LoaderProcessError(_obituary(dead)) from error
        self.clean = True
        if slices.error is not None:
            raise slices.error

    def close(self) -> None:
        """End the processes, whatever they are at."""
        self._slices.source = iter(())
        self._loader._iterator = None  # noqa: SLF001
        for process in self._processes:
            process.kill()  # torch alone would wait for what they are at, 5 s for each
        for process in self._processes:
            process.join()
        # A process may have been killed while it held the shared event's lock: setting that one would wait for ever.
        self._iterator._workers_done_event = threading.Event()  # noqa: SLF001
        self._iterator._shutdown_workers()  # noqa: SLF001

    @contextmanager
    def _death_is_told(self) -> Iterator[None]:
        """Have torch's SIGCHLD handler raise when a process dies, while this thread waits for one and at no other time.

        It raises in the main thread, whatever that is doing: the model's error it would seem. Without it (pyspark takes the signal
        back for each task) torch looks every 5 s.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        torch._C._set_worker_pids(id(self), tuple(child.pid or 0 for child in self._processes))  # noqa: SLF001
        try:
            yield
        finally:
            _forget_pids(self)

    def _first_dead(self) -> BaseProcess | None:
        for process in self._processes:
            process.join(0.1)  # a connection breaks a moment before its process has ended
        return next((process for process in self._processes if process.exitcode is not None), None)


def _forget_pids(holder: object) -> None:
    torch._C._remove_worker_pids(id(holder))  # noqa: SLF001 - what torch.utils.data itself calls


def _obituary(process: BaseProcess) -> str:
    code = process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name} (signal {-code})" if code < 0 else f"ended with exit code {code}"
    hint = {-9: "often: out of memory", -7: "its shared memory is full"}.get(
        code, "preprocess, or a library that it calls, ended its process"
    )
    return (
        f"a loader process (pid {process.pid}) {how} while it was preparing batches ({hint}). Run with num_workers=0 to see it in the "
        "worker itself, or with fewer loader processes or a smaller batch_size"
    )
