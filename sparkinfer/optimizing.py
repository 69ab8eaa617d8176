"""``optimize=``: another engine runs the model, exported and compiled once on the driver, and compared with the model itself there.

Runs on: driver.

Invariant: no plan leaves here whose answers were not compared with the model's own on sample rows; an engine that was named runs the
model, or is an error; with ``"auto"`` the model that no engine takes runs as it is, and the plan says why.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkinfer.artifacts import fingerprint_of, local_files
from sparkinfer.backends.exported import flat, structure_of
from sparkinfer.engine.contracts import Optimized
from sparkinfer.engine.partition import backend_named
from sparkinfer.exceptions import ConfigError, MissingDependencyError, ModelLoadError, SparkInferError, remark
from sparkinfer.sample_inputs import Sample, sample_of, with_free_axes

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.contracts import LoadedModel, ModelPlan
    from sparkinfer.engine.partition import PartitionPlan

__all__ = ["optimised"]

_RELATIVE, _ABSOLUTE = (
    1e-3,
    1e-4,
)  # other engines add the same float32 numbers in another order; the second of the output's largest value, or of 1
_KEPT = 20  # of what was made; the files lie in the driver's folder
_PACKAGES = ("torch", "tensorflow-cpu", "tensorflow", "onnx", "onnxscript", "onnxruntime", "openvino")


@dataclass(frozen=True)
class _Compared:
    """What changes in the model's plan, and the largest difference of the answers."""

    changes: dict[str, Any]
    largest: float


_lock = Lock()
_exports: OrderedDict[str, dict[str, Any]] = OrderedDict()  # what changes in the model's plan; by model, engine, types and shapes
_found: OrderedDict[str, _Compared | str] = (
    OrderedDict()
)  # or why not (the error itself would keep the model alive); by the sample's values too


def optimised(
    plan: PartitionPlan, model: object, rows: Callable[[], pa.RecordBatch] | None, *, cards: Callable[[], bool] = lambda: False
) -> PartitionPlan:
    """Carry out a model's ``optimize=``.

    Args:
        plan: of the model as it is.
        model: as the user gave it.
        rows: gives the first few rows of the data, with ``plan.columns``; ``None`` where there is no data yet. Called only where nothing
            else tells what the model gets.
        cards: tells whether the workers are known to have CUDA cards; called only where it matters.

    Returns:
        The same plan where ``optimize`` is not given.

    Raises:
        ConfigError: there are no sample inputs, or the engine and the device do not go together.
        ModelLoadError: the engine cannot take the model, or its answers are others; names the cause, or the figures.
        MissingDependencyError: the engine is not installed.
    """
    asked = getattr(model, "optimize", None)
    if asked is None:
        return plan
    engines = import_module(f"sparkinfer.backends.{plan.model.backend}_optimize")
    if asked != "auto":
        _check_device(plan, asked, in_place=asked in engines.IN_PLACE)
        if why := _stays(plan, asked, engines):
            msg = f"{plan.model.label}: optimize={asked!r} does not go with preprocess_on_device: {why}"
            raise ConfigError(msg)
        found = _with(plan.model, asked, _Attempt(plan, engines, sample_of(plan, model, rows)))
        return replace(plan, model=replace(found, optimized=replace(_optimized(found), asked=asked)))
    found = _first_that_fits(plan, model, rows, engines, cards=cards)
    if _optimized(found).engine is None:
        remark(f"{plan.model.label}: optimize='auto' runs the model as it is: {_optimized(found).why}")
    return replace(plan, model=found)


def _optimized(plan: ModelPlan) -> Optimized:
    return plan.optimized or Optimized("", None)


def _first_that_fits(
    plan: PartitionPlan, model: object, rows: Callable[[], pa.RecordBatch] | None, engines: Any, *, cards: Callable[[], bool]
) -> ModelPlan:
    if why := _on_card(plan, cards=cards):
        return replace(plan.model, optimized=Optimized("auto", None, why=why))
    try:
        attempt = _Attempt(plan, engines, sample_of(plan, model, rows))
    except Exception as error:
        if getattr(model, "example_inputs", None) is not None:  # the user's own slip, and no engine's
            raise
        return replace(plan.model, optimized=Optimized("auto", None, why=_told(error)))
    try:
        with engines.undisturbed():
            attempt.sample = with_free_axes(attempt.sample, attempt.takes)
    except Exception as error:  # noqa: BLE001 - the workers will tell, if it is the model
        return replace(plan.model, optimized=Optimized("auto", None, why=_told(error)))
    reasons = []
    for engine in engines.AUTO:
        if why := _stays(plan, engine, engines) or engines.unsuited(engine, attempt.sample.traced, attempt.sample.free):
            reasons.append(f"{engine}: {why}")
            continue
        try:
            found = _with(plan.model, engine, attempt)
        except Exception as error:  # noqa: BLE001 - whatever an engine raises, the model itself runs
            reasons.append(f"{engine}: {_told(error)}")
        else:
            return replace(found, optimized=replace(_optimized(found), asked="auto", why="; ".join(reasons)))
    return replace(plan.model, optimized=Optimized("auto", None, why="; ".join(reasons)))


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, SparkInferError) else f"{type(error).__name__}: {error}"


def _on_card(plan: PartitionPlan, *, cards: Callable[[], bool]) -> str:
    """Say why ``"auto"`` leaves a model alone that may run on a card; nothing where it runs on a CPU."""
    device = plan.config.device
    if device not in ("auto", "cpu"):
        return f"device is {device!r}, and the engines run on the CPU"
    if device == "auto" and (cards() or backend_named(plan.model.backend).resolve_device("auto") != "cpu"):
        return "device is 'auto', there are CUDA cards, and the engines run on the CPU: say device='cpu' to have the CPU's engines"
    return ""


def _stays(plan: PartitionPlan, engine: str, engines: Any) -> str:
    """Say why an engine that takes the model away from its framework cannot have this one; nothing where it can."""
    if "on_device" not in plan.model.options or engine in engines.IN_PLACE:
        return ""
    return f"that function runs in {plan.model.backend}, and the engine would run the model without it"


def _check_device(plan: PartitionPlan, engine: str, *, in_place: bool) -> None:
    if not in_place and plan.config.device not in ("auto", "cpu"):
        msg = f"{plan.model.label}: optimize={engine!r} runs on the CPU, but device is {plan.config.device!r}: leave out one of the two"
        raise ConfigError(msg)


@dataclass
class _Attempt:
    """What all engines that are tried for one model share: the model itself, loaded once, and its answers."""

    plan: PartitionPlan
    engines: Any
    sample: Sample
    _loaded: LoadedModel | None = None
    _answers: list[Any] | None = None

    @property
    def threads(self) -> int:
        return self.plan.config.threads or os.cpu_count() or 1

    @property
    def loaded(self) -> LoadedModel:
        """The model as it is, on the driver's CPU."""
        if self._loaded is None:
            self._loaded = load_here(self.plan.model, self.threads)
        return self._loaded

    @property
    def answers(self) -> list[Any]:
        """The model's own answers: to the rows that are exported with, then to each batch that is compared.

        Raises:
            ModelLoadError: it raised.
        """
        if self._answers is None:
            try:
                self._answers = [self.loaded.predict(inputs) for inputs in (self.sample.traced, *self.sample.batches)]
            except Exception as error:
                msg = (
                    f"{self.plan.model.label}: the model itself raised on the sample inputs ({self.sample.origin}): {type(error).__name__}: {error}. "
                    "Give example_inputs= that it can be called with"
                )
                raise ModelLoadError(msg) from error
        return self._answers

    def takes(self, inputs: Inputs) -> bool:
        """Tell whether the model itself answers."""
        return self.answer(inputs) is not None

    def answer(self, inputs: Inputs) -> Any:
        """Give the model's own answer; ``None`` where it raises."""
        try:
            return self.loaded.predict(inputs)
        except ModelLoadError:  # it cannot even be loaded
            raise
        except Exception:  # noqa: BLE001 - the sizes were made up, and a model may refuse them
            return None


def load_here(plan: ModelPlan, threads: int) -> LoadedModel:
    """Load a model in this process, on the CPU."""
    return backend_named(plan.backend).load(plan, local_files(plan), "cpu", threads)


def _with(plan: ModelPlan, engine: str, attempt: _Attempt) -> ModelPlan:
    """Give the plan of the model in an engine: exported once a process, and compared once for each sample's values."""
    sample = attempt.sample
    key = fingerprint_of(plan.fingerprint, engine, repr(sample.signature), *_versions())
    values = fingerprint_of(key, sample.fingerprint)
    with _lock:
        if values not in _found:
            with attempt.engines.undisturbed():
                attempt.answers  # noqa: B018 - what the model itself raises says nothing of the engine, and is not kept
                try:
                    changes = _changes(plan, engine, key, attempt)
                    found: _Compared | str = _Compared(changes, _compare(replace(plan, **changes), engine, attempt))
                except ModelLoadError as error:
                    found = str(error)
            _keep(_found, values, found)
        found = _found[values]
        _found.move_to_end(values)
    if isinstance(found, str):
        raise ModelLoadError(found)
    # the files of a model that is changed in place are this plan's own: one content may lie in two places
    changes = _in_place(plan, engine) if engine in attempt.engines.IN_PLACE else found.changes
    ship = "auto" if "files" in changes and plan.ship == "path" else plan.ship  # an export lies in no place that every worker sees
    return replace(plan, **changes, ship=ship, optimized=Optimized(engine, engine, found.largest))


def _keep(kept: OrderedDict[str, Any], key: str, value: object) -> None:
    kept[key] = value
    while len(kept) > _KEPT:
        kept.popitem(last=False)


def _versions() -> list[str]:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found


def _in_place(plan: ModelPlan, engine: str) -> dict[str, Any]:
    return {"fingerprint": fingerprint_of(plan.fingerprint, engine), "options": {**plan.options, "optimize": engine}}


def _changes(plan: ModelPlan, engine: str, key: str, attempt: _Attempt) -> dict[str, Any]:
    """Say what is other in the engine's plan than in the model's own."""
    if engine in attempt.engines.IN_PLACE:
        return _in_place(plan, engine)
    if key in _exports:
        _exports.move_to_end(key)
        return _exports[key]
    sample = attempt.sample
    answer = attempt.answers[0]
    try:
        backend, files, exported = attempt.engines.export(attempt.loaded, engine, sample.traced, sample.free, answer)
    except ModelLoadError as error:
        msg = f"{plan.label}: optimize={engine!r} cannot take the model: {error}"
        raise ModelLoadError(msg) from error
    changes = {
        "backend": backend,
        "kind": engine,
        "fingerprint": fingerprint_of(key, *(file.sha256 for file in files)),
        "payload": b"",
        "files": files,
        "options": {"exported": replace(exported, style=None) if sample.own_names else exported},
    }
    _keep(_exports, key, changes)
    return changes


def _compare(made: ModelPlan, engine: str, attempt: _Attempt) -> float:
    """Compare the engine's answers with the model's own; gives the largest difference.

    Raises:
        ModelLoadError: the engine raised, or its answers are others.
        MissingDependencyError: the engine is not installed.
    """
    label = attempt.plan.model.label
    pairs = list(zip(attempt.sample.batches, attempt.answers[1:], strict=True))
    pairs += [(inputs, own) for inputs in attempt.sample.others if (own := attempt.answer(inputs)) is not None]
    try:
        loaded = load_here(made, attempt.threads)
        found = [loaded.predict(inputs) for inputs, _ in pairs]
        loaded.release()
    except MissingDependencyError:
        raise
    except Exception as error:
        msg = f"{label}: optimize={engine!r} took the model, but raised on the sample inputs ({type(error).__name__}: {error})"
        raise ModelLoadError(msg) from error
    largest = 0.0
    scales = _scales([own for _, own in pairs])
    for (inputs, own), others in zip(pairs, found, strict=True):
        rows = len(next(iter(inputs.arrays.values())))
        if structure_of(own) != structure_of(others):
            msg = f"{label}: optimize={engine!r} answers with {structure_of(others)[1]}, and the model itself with {structure_of(own)[1]}"
            raise ModelLoadError(msg)
        for name, left, right in zip(structure_of(own)[1], flat(own), flat(others), strict=True):
            what = f"{label}: with optimize={engine!r} output {name!r}"
            largest = max(largest, _difference(what, rows, left, right, _ABSOLUTE * min(1.0, scales.get(name, 1.0))))
    return largest


def _scales(answers: list[Any]) -> dict[str, float]:
    """Give each floating output's largest value: probabilities of a thousand classes are all small."""
    found: dict[str, float] = {}
    for answer in answers:
        for name, array in zip(structure_of(answer)[1], flat(answer), strict=True):
            if array.dtype.kind == "f":
                values = np.abs(array[np.isfinite(array)].astype(np.float64))
                found[name] = max(found.get(name, 0.0), float(values.max(initial=0.0)))
    return found


def _difference(what: str, rows: int, own: np.ndarray, other: np.ndarray, absolute: float) -> float:
    """Give the largest absolute difference.

    Raises:
        ModelLoadError: it is larger than the arithmetic of another engine explains.
    """
    if own.shape != other.shape or own.dtype != other.dtype:
        msg = f"{what} is {other.dtype} {other.shape} for {rows} rows, and the model itself gives {own.dtype} {own.shape}"
        raise ModelLoadError(msg)
    floats = own.dtype.kind == "f"
    largest = 0.0
    if own.dtype.kind in "biuf":
        left, right = own.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinity from infinity
            largest = float(np.nanmax(np.abs(left - right), initial=0.0))
    # integers are compared as they are: as floats, large ones that differ would be equal
    wrong = not np.allclose(right, left, _RELATIVE, absolute, equal_nan=True) if floats else bool((own != other).any())
    if wrong:
        allowed = f"{absolute:.3g} + {_RELATIVE:g} of the value" if floats else "none, since it is no float"
        msg = (
            f"{what} differs from the model's own by up to {largest:.3g} in a batch of {rows} rows (allowed: {allowed}). It was not used: leave "
            "optimize out, or try another engine"
        )
        raise ModelLoadError(msg)
    return largest
