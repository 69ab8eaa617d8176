"""A partition's first batches, with a look at each layer of the model, at what goes in and at what comes out.

Runs on: worker (or in any process).

Invariant: the rows go through the loop as ever, with the user's own functions; the model is called twice for each batch that is looked at, once for the
times and once for the figures, so that looking is in no time; a layer that cannot be looked at costs a remark.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from sparkinfer.engine.output_figures import output_figures
from sparkinfer.engine.partition import run_partition
from sparkinfer.engine.profiling import NoProfiling, first_rows_of
from sparkinfer.insides import Insides, LayerSeen, ModelGraph, Values, packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.contracts import LoadedModel
    from sparkinfer.engine.partition import Files, PartitionPlan
    from sparkinfer.engine.recorder import NoRecorder

__all__ = ["InspectWork", "Layers", "Look", "Probe"]

_PROBES = {"torch": "sparkinfer.backends.torch_inside", "tensorflow": "sparkinfer.backends.tensorflow_inside"}
_MOST_VALUES = 2**20  # of a layer and call, that mean, spread and buckets are taken of
_MOST_UNITS = 2**16
_USES = 8  # of a layer in a call that are told apart


class Probe(Protocol):
    """Reaches into a loaded model; made by a backend's ``open_probe``."""

    def unreachable(self) -> str:
        """Say why no layer can be reached; nothing where they can."""
        ...

    def watching(self, layers: Layers) -> AbstractContextManager[None]:
        """Have ``layers`` told of each layer that is entered and left while the block runs."""
        ...

    def weights(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Give each layer's own parameters, by the layer's name and theirs."""
        ...

    def graph(self, inputs: Inputs) -> ModelGraph:
        """Give the model's picture; ``inputs`` is what it was called with."""
        ...


@dataclass(frozen=True)
class Look:
    """What a layer gave.

    Attributes:
        array: ``(rows, ...)``.
        unit_axis: of the channels or features; ``None`` where they are not told apart.
    """

    array: np.ndarray
    unit_axis: int | None


@dataclass
class _Frame:
    """A layer that was entered and not left yet."""

    key: str
    entered: float
    begun: float = 0.0  # after all that was done on entering
    inner: float = 0.0  # seconds in the layers inside it, with the looks at them
    last: object = None  # what the last of those gave
    came: tuple[bool, bool] = (False, False)  # NaN, infinite
    explained: tuple[bool, bool] = (False, False)  # a layer inside it is to blame


class Layers:
    """Is told of each layer that is entered and left, in calls for the times and calls for the figures."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin with nothing seen."""
        self._clock = clock
        self._seen: dict[str, LayerSeen] = {}
        self._stack: list[_Frame] = []
        self._uses: Counter[str] = Counter()
        self._rows = 0
        self.timing = False
        self.remarks: dict[str, None] = {}

    @contextmanager
    def call(self, rows: int, *, timed: bool) -> Iterator[None]:
        """Surround a call of the model."""
        self._stack, self._uses = [], Counter()  # of a call that failed, layers are left over
        self._rows, self.timing = rows, timed
        yield

    def enter(self, name: str, kind: str, *, leaf: bool, came: Callable[[], tuple[bool, bool]]) -> None:
        """Note that a layer begins.

        Args:
            name: its path.
            kind: its class.
            leaf: it holds no other layers.
            came: tells whether a NaN, and whether an infinite value, is in what it gets.
        """
        entered = self._clock()
        self._uses[name] += 1
        use = min(self._uses[name], _USES)
        key = name if use == 1 else f"{name} ({use})"
        if key not in self._seen:
            number = 1 + max((layer.number for layer in self._seen.values()), default=0) if leaf else 0
            self._seen[key] = LayerSeen(name=key, kind=kind, number=number)
        frame = _Frame(key, entered)
        if not self.timing:
            frame.came = self._told(key, came) or (True, True)  # of what cannot be read, nobody is accused
        self._stack.append(frame)
        frame.begun = self._clock()

    def leave(self, given: object, look: Callable[[], Look | None]) -> None:
        """Note that the layer that began last has ended.

        Args:
            given: what it gave: where it is the very thing that its last part gave, it is not looked at again.
            look: gives it as an array.
        """
        ended = self._clock()
        frame = self._stack.pop()
        parent = self._stack[-1] if self._stack else None
        explained = frame.explained
        if self.timing:
            layer = self._seen[frame.key]
            took = max(0.0, ended - frame.begun - frame.inner)
            self._seen[frame.key] = replace(layer, timed=layer.timed + 1, seconds=layer.seconds + took)
        elif given is None or given is not frame.last:
            seen = self._told(frame.key, look)
            if seen is not None:
                explained = self._count(frame, seen)
        if parent is not None:
            parent.last = given
            parent.explained = (parent.explained[0] or explained[0], parent.explained[1] or explained[1])
            parent.inner += self._clock() - frame.entered

    def found(self, weights: Mapping[str, Mapping[str, np.ndarray]]) -> tuple[LayerSeen, ...]:
        """Give what was seen; with the weights, those of layers that were never called as well."""
        seen = dict(self._seen)
        for name, arrays in weights.items():
            counted = {parameter: Values.of(array, most=_MOST_VALUES) for parameter, array in arrays.items()}
            seen[name] = replace(seen.get(name) or LayerSeen(name=name), weights=counted)
        return tuple(seen.values())

    def _told(self, key: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - whatever a strange tensor raises, the rows are scored
            self.remarks[f"the layer {key!r} could not be looked at: {type(error).__name__}: {error}"] = None
            return None

    def _count(self, frame: _Frame, seen: Look) -> tuple[bool, bool]:
        """Count what a layer gave, and tell whether it, or one inside it, is to blame for a NaN or an infinite value."""
        array = seen.array
        values = Values.of(array, most=_MOST_VALUES)
        nan, infinite = values.nans > 0, values.infinities > 0
        own = nan and not frame.came[0], infinite and not any(frame.came)
        units = array.shape[seen.unit_axis] if seen.unit_axis is not None and array.ndim > 1 else None
        told_apart = units is not None and units <= _MOST_UNITS
        layer = self._seen[frame.key]
        now = replace(
            layer,
            number=0,
            shape="x".join(map(str, array.shape[1:])),
            calls=1,
            rows=self._rows,
            values=values,
            nan_calls=int(nan),
            nan_arising=int(own[0] and not frame.explained[0]),
            infinite_arising=int(own[1] and not frame.explained[1]),
            units=units if told_apart else None,
            alive=_alive(array, cast("int", seen.unit_axis)) if told_apart else "",
            timed=0,
            seconds=0.0,
        )
        self._seen[frame.key] = layer + now if layer.calls else replace(now, number=layer.number, timed=layer.timed, seconds=layer.seconds)
        return frame.explained[0] or own[0], frame.explained[1] or own[1]


def _alive(array: np.ndarray, axis: int) -> str:
    """Tell the units that are something else than 0 in any row."""
    others = tuple(one for one in range(array.ndim) if one != axis % array.ndim)
    return packed(np.any(array != 0, axis=others))


@dataclass
class _Inspecting(NoProfiling):
    """Looks at a partition's model; a ``Profiling`` for the loop."""

    backend: str
    batches: int
    wants_graph: bool
    layers: Layers = field(default_factory=Layers)
    found: Insides = field(default_factory=Insides)

    @contextmanager
    def watching(self, model: LoadedModel, device: str, recorder: NoRecorder, prepare: Callable[[], Any]) -> Iterator[LoadedModel]:
        """Give the model, whose first calls are looked at."""
        del device, recorder, prepare
        home = _PROBES.get(self.backend)
        probe: Probe | None = None if home is None else import_module(home).open_probe(model)
        why = f"the layers of a model of the backend {self.backend!r} cannot be reached: its inputs and outputs alone are looked at"
        why = why if probe is None else probe.unreachable()
        watched = _Watched(model, self, None if why else probe)
        yield watched
        self.found = watched.finish((why,) if why else ())


class _Watched:
    """A loaded model whose first calls are looked at; answers ``LoadedModel``."""

    def __init__(self, model: LoadedModel, inspecting: _Inspecting, probe: Probe | None) -> None:
        self._model = model
        self._asked = inspecting
        self._probe = probe
        self._batches = 0
        self._rows = 0
        self._inputs: dict[str, Values] = {}
        self._last: Inputs | None = None

    def predict(self, inputs: Inputs) -> Any:
        """Run the model."""
        if self._batches >= self._asked.batches:
            return self._model.predict(inputs)
        rows = len(next(iter(inputs.arrays.values())))
        for name, array in inputs.arrays.items():
            values = _numbers(array)
            if values is not None:
                self._inputs[name] = self._inputs.get(name, Values()) + Values.of(values, most=_MOST_VALUES)
        self._batches, self._rows, self._last = self._batches + 1, self._rows + rows, inputs
        if self._probe is None:
            return self._model.predict(inputs)
        layers = self._asked.layers
        if self._batches == 1:
            self._model.predict(inputs)  # warms up, and is in no time
        with self._probe.watching(layers):
            with layers.call(rows, timed=True):
                self._model.predict(inputs)
            with layers.call(rows, timed=False):
                return self._model.predict(inputs)

    def device_peak_bytes(self) -> int | None:
        """Ask the model."""
        return self._model.device_peak_bytes()

    def device_bytes(self) -> int | None:
        """Ask the model."""
        return self._model.device_bytes()

    def release(self) -> None:
        """Do nothing: the cache lets the model itself go."""

    def finish(self, remarks: tuple[str, ...]) -> Insides:
        """Give what was seen."""
        layers: tuple[LayerSeen, ...] = ()
        graph = None
        if self._probe is not None and self._last is not None:
            layers = self._asked.layers.found(self._probe.weights())
            graph = self._probe.graph(self._last) if self._asked.wants_graph else None
        inputs, self._last = self._inputs, None
        told = (*remarks, *self._asked.layers.remarks)
        return Insides(layers=layers, inputs=inputs, rows=self._rows, batches=self._batches, partitions=1, graph=graph, remarks=told)


def _numbers(array: Any) -> np.ndarray | None:
    """Give an input as numbers; nothing where it is text, or in numbers that NumPy does not have."""
    try:
        values = np.asarray(array)
    except (TypeError, ValueError, RuntimeError):
        return None
    return values if values.dtype.kind in "fiubc" else None


@dataclass(frozen=True, kw_only=True)
class InspectWork:
    """What is done with a partition; picklable, to be called where the partition is.

    Attributes:
        plan: as in ``run_partition``.
        batches: to look at.
        drawn_in: the partition in which the model is drawn; ``None``: in none.
    """

    plan: PartitionPlan
    batches: int
    drawn_in: int | None = None

    def __call__(
        self,
        chunks: Iterator[pa.RecordBatch],
        *,
        files: Callable[[], Files],
        partition: int = 0,
        cpus: int = 1,
        addresses: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Score the first batches of a partition for the figures alone.

        Args:
            chunks: as in ``run_partition``; no more of them is pulled than the batches need.
            files: as in ``run_partition``.
            partition: likewise.
            cpus: likewise.
            addresses: likewise.

        Returns:
            What ``Insides.read`` reads; without partitions where there are no rows.

        Raises:
            SparkInferError: as ``run_partition`` does.
        """
        plan = self.plan
        inspecting = _Inspecting(plan.model.backend, self.batches, wants_graph=partition == self.drawn_in)
        outputs: dict[str, Any] = {}
        scored = run_partition(
            plan,
            first_rows_of(chunks, self.batches * plan.config.batch_rows),
            files=files,
            partition=partition,
            cpus=cpus,
            addresses=addresses,
            profiling=inspecting,
        )
        for chunk in scored:
            for name, seen in output_figures(chunk.select([column.name for column in plan.outputs])).items():
                outputs[name] = outputs[name] + seen if name in outputs else seen
        return replace(inspecting.found, outputs=outputs).told()
