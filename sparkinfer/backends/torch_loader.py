"""A ``DataLoader`` whose "indices" are the rows themselves, in this process or with processes that live on.

Runs on: worker, and its loader processes.

Invariant: order is the source's, and no batch is lost to an error behind it; a process's death is told as such, and in nobody
else's name.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import chain
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from sparkinfer.backends.torch_values import to_tensor
from sparkinfer.engine.batch import BadRow, Batch, Failure, Fault, Fed, Inputs
from sparkinfer.engine.cell import Death, from_bytes, to_bytes
from sparkinfer.engine.contain import Lost
from sparkinfer.engine.lifeline import Lifeline, loader_context
from sparkinfer.engine.room import Room
from sparkinfer.engine.watch import Slots, at_batch, how_it_ended, serials, watching
from sparkinfer.pickling import dumps, loads

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkinfer.engine.contracts import PrepareStep

__all__ = ["PRELOAD", "Key", "Loader", "finished", "prepare_here"]

PRELOAD = ("torch", __name__)

Key = tuple[str, int, int, bool, float | None]  # step, processes, batches ahead of each, pinned, what one call may take


def prepare_here(source: Iterator[Batch], prepare: PrepareStep, *, pin: bool) -> Iterator[Fed]:
    """Prepare batches in the thread that pulls this iterator; a ``DataLoader`` only where it pins: it costs a tenth of a millisecond a batch."""
    if not pin:
        step = _Prepare(prepare)
        for batch in source:
            yield Fed(batch, _to_inputs(step.__getitems__(batch.data)))
        return
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

    def __getitems__(self, rows: pa.RecordBatch | tuple[int, bytes] | None) -> _Made | Failure | tuple[()]:
        """Make one model call's inputs; as a tuple, in which torch finds the tensors that it is to pin."""
        if rows is None:  # nothing, for once
            return ()
        if isinstance(rows, tuple):
            serial, sent = rows
            with at_batch(serial):
                return _as_tuple(finished(self._prepare(from_bytes(sent))))
        return _as_tuple(finished(self._prepare(rows)))


_Made = tuple[str, Mapping[str, Any], Mapping[str, float], "tuple[BadRow, ...]"]


def finished(inputs: Inputs | Failure) -> Inputs | Failure:
    """Make tensors of a batch's inputs."""
    if isinstance(inputs, Failure):
        return inputs
    begun = time.perf_counter()
    try:
        arrays = {name: array if _is_text(array) else to_tensor(array) for name, array in inputs.arrays.items()}
    except Fault as fault:
        return Failure.of(fault)
    return replace(inputs, arrays=arrays, seconds={**inputs.seconds, "transfer": time.perf_counter() - begun})


def _as_tuple(made: Inputs | Failure) -> _Made | Failure:
    return made if isinstance(made, Failure) else (made.style, made.arrays, made.seconds, made.bad)


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

    def __init__(self, untold: Callable[[], AbstractContextManager[None]]) -> None:
        self.untold = untold
        self.source: Iterator[Batch] = iter(())
        self.waiting: deque[tuple[int, Batch]] = deque()
        self.room = Room(None, sys.maxsize)
        self.error: BaseException | None = None
        self._held: list[Batch] = []  # one that was pulled and is not out yet

    def begin(self, source: Iterator[Batch], room: Room) -> None:
        """Take the source of the next epoch."""
        self.source, self.room, self.error, self._held = source, room, None, []
        self.waiting.clear()
        room.clear()

    def __iter__(self) -> Iterator[tuple[int, bytes] | tuple[()] | None]:
        """Send a slice as Arrow bytes: pickle would send the whole chunk that it is a view of.

        The DataLoader asks for as many slices as it has given back, and cannot be told to wait: where bytes are short it gets nothings. It asks
        when the first that is out has come back.
        """
        while True:
            # a death that is told in here would seem the source's error, or lose the batch that is on its way out of it
            with self.untold():
                made = self._next()
            if made == ():
                return
            yield made

    def _next(self) -> tuple[int, bytes] | tuple[()] | None:
        """Take the next slice; a nothing where bytes are short, an empty tuple at the end."""
        try:
            self._held = self._held or [next(self.source)]
            batch = self._held[0]
            if not self.room.fits(batch, first_leaves=True):
                return None
            serial = next(serials)
            self.waiting.append((serial, batch))
            self.room.enter(batch)
            self._held = []
            return serial, to_bytes(batch.data)
        except StopIteration:
            return ()
        except Exception as error:  # noqa: BLE001 - raised by the epoch, after the batches that came before it
            self.error = error
            return ()

    def rest(self) -> Iterator[Batch]:
        """Give what is left of the source; its error, where that was met already."""
        return chain(self._held, _or_error(self.source, self.error))


def _or_error(source: Iterator[Batch], error: BaseException | None) -> Iterator[Batch]:
    if error is not None:
        raise error
    yield from source


class Loader:
    """A ``DataLoader`` with living processes, lent to one partition at a time."""

    def __init__(self, key: Key, prepare: PrepareStep) -> None:
        """Start the processes, in this thread."""
        self.key = key
        self.clean = True  # no batch is on its way
        self._told = False  # the handler knows of the processes
        self._slices = _Slices(self._death_is_untold)
        _, num_workers, prefetch_factor, pin, timeout_seconds = key
        context = loader_context(*PRELOAD)
        self.slots = Slots(context, num_workers, timeout_seconds)
        self._only_column = prepare.only_column
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # more processes than CPUs: they may wait for disks
            self._loader = _data_loader(
                _Prepare(prepare),
                self._slices,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                persistent_workers=True,
                pin_memory=pin,
                worker_init_fn=_Begin(Lifeline(), self.slots),
                multiprocessing_context=context,
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

    def epoch(self, source: Iterator[Batch], room: Room) -> Iterator[Fed]:
        """Prepare one partition, or what is left of it.

        Raises:
            Lost: a process died; this loader is of no more use.
        """
        slices = self._slices
        slices.begin(source, room)
        self.clean = False
        try:
            with watching(self.slots):
                with self._death_is_told():
                    made_ahead = iter(self._loader)
                while True:
                    with self._death_is_told():
                        made = next(made_ahead, None)
                    if made is None:
                        break
                    if made == ():
                        continue
                    _, batch = slices.waiting[0]
                    inputs = _to_inputs(made)
                    room.leave(batch, inputs)
                    slices.waiting.popleft()
                    yield Fed(batch, inputs)
        except Exception as error:
            if not (dead := self._dead()):
                raise
            raise self._lost(dead) from error
        self.clean = True
        if slices.error is not None:
            raise slices.error

    def _lost(self, dead: Sequence[BaseProcess]) -> Lost:
        deaths = {
            slot.serial: Death.of(slot, self.slots, process.exitcode, self._only_column)
            for process in dead
            if (slot := self.slots.of(process.pid)) is not None
        }
        waiting = [(batch, deaths.get(serial)) for serial, batch in self._slices.waiting]
        return Lost(f"a loader process (pid {dead[0].pid}) {how_it_ended(dead[0].exitcode)}", waiting, self._slices.rest())

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
        self._told = True
        try:
            yield
        finally:
            self._told = False
            _forget_pids(self)

    @contextmanager
    def _death_is_untold(self) -> Iterator[None]:
        """Have the handler raise nothing for a while, within ``_death_is_told``; a death in that time is told at its end."""
        if threading.current_thread() is not threading.main_thread() or not self._told:
            yield
            return
        _forget_pids(self)
        try:
            yield
        finally:
            torch._C._set_worker_pids(id(self), tuple(child.pid or 0 for child in self._processes))  # noqa: SLF001
        if not self.alive():
            msg = "a loader process died while the source was read"
            raise RuntimeError(msg)

    def _dead(self) -> list[BaseProcess]:
        for process in self._processes:
            process.join(0.1)  # a connection breaks a moment before its process has ended
        return [process for process in self._processes if process.exitcode is not None]


def _forget_pids(holder: object) -> None:
    torch._C._remove_worker_pids(id(holder))  # noqa: SLF001 - what torch.utils.data itself calls


class _Begin:
    """What a loader process does first."""

    def __init__(self, lifeline: Lifeline, slots: Slots) -> None:
        self._lifeline = lifeline
        self._slots = slots

    def __call__(self, worker_id: int) -> None:
        self._lifeline(worker_id)
        self._slots.sit()
