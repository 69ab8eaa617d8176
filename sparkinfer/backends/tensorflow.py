"""The TensorFlow backend: SavedModels by a signature, Keras models in inference mode.

Runs on: worker; ``describe`` on the driver.

Invariant: a model is called with ``training=False``, with tensors of the dtype and shape that it says of itself.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# TensorFlow's C++ side writes pages about CPU features at import; a value that the user set is kept
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from sparkinfer.backends.tensorflow_arrays import from_tensors, to_tensor
from sparkinfer.backends.tensorflow_describe import describe
from sparkinfer.backends.tensorflow_feed import feed
from sparkinfer.backends.tensorflow_keras import struct_names
from sparkinfer.backends.tensorflow_precision import checked_precision, compute_in, widened
from sparkinfer.backends.tensorflow_setup import let_cards_grow, place_of, set_threads, tell_full_cards
from sparkinfer.engine.batch import Fault, Inputs, Style
from sparkinfer.engine.lifeline import mark_framework_used
from sparkinfer.engine.on_device import call_on_device
from sparkinfer.engine.signature import check_inputs
from sparkinfer.exceptions import ConfigError, ModelLoadError, SchemaError
from sparkinfer.pickling import loads

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Batch, Fed
    from sparkinfer.engine.contracts import Backend, LoadedModel, ModelPlan, PrepareStep
    from sparkinfer.engine.stopwatch import QueueMeter

__all__ = ["BACKEND", "describe"]

Runner = Callable[[Style, Mapping[str, tf.Tensor]], Any]

let_cards_grow()  # here, since a feed's tensors or the user's first operation would come before a model is loaded


class TensorFlowBackend:
    """One framework; answers ``contracts.Backend``."""

    name = "tensorflow"

    def resolve_device(self, device: str) -> str:
        """Give ``cpu`` or ``cuda:<number>``.

        Raises:
            ConfigError: TensorFlow sees no such device.
        """
        cards = len(tf.config.list_physical_devices("GPU"))
        if device == "auto":
            return "cuda:0" if cards else "cpu"
        if device == "cpu":
            return device
        number = re.fullmatch(r"cuda(?::(\d+))?", device)
        if number is None:
            msg = f"device is {device!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:<number>'"
            raise ConfigError(msg)
        index = int(number[1] or 0)
        if index >= cards:
            there = f"{cards} CUDA card{'' if cards == 1 else 's'}" if cards else "no CUDA card"
            msg = f"device is {device!r}, but TensorFlow {tf.__version__} sees {there} here: take 'auto' or 'cpu', or install tensorflow[and-cuda]"
            raise ConfigError(msg)
        return f"cuda:{index}"

    def card_count(self) -> int:
        """Count the cards that TensorFlow sees."""
        return len(tf.config.list_physical_devices("GPU"))

    def card_memory_bytes(self, device: str) -> int | None:
        """Give ``None``: TensorFlow tells what it took of a card, and not what there is (2.21)."""
        del device
        return None

    def feed(
        self, source: Iterator[Batch], prepare: PrepareStep, config: InferenceConfig, device: str, meter: QueueMeter | None = None
    ) -> AbstractContextManager[Iterator[Fed]]:
        """Prepare batches ahead of the model by tf.data."""
        return feed(source, prepare, config, device, meter)

    def load(self, plan: ModelPlan, files: Mapping[str, str | bytes], device: str, threads: int) -> LoadedModel:
        """Load the model.

        Raises:
            ConfigError: the device does not compute at the precision that was asked for.
            ModelLoadError: it cannot be loaded here, though the driver could read it.
        """
        mark_framework_used()
        set_threads(threads)
        tell_full_cards()
        checked_precision(_precision(plan), device)
        place = place_of(device)
        make = _run_saved_model if plan.kind == "saved_model" else _run_keras
        with _on_disk(files["model"], plan.kind) as path, tf.device(place):
            return TensorFlowLoaded(make(path, plan), plan, place)


class TensorFlowLoaded:
    """A model in memory; answers ``contracts.LoadedModel``."""

    def __init__(self, run: Runner, plan: ModelPlan, place: str) -> None:
        """Keep ``run``, which keeps the model alive."""
        self._run: Runner | None = run
        self._plan = plan
        self._place = place
        self.retraces = _wants_xla(plan)
        self._on_device: Callable[..., Any] | None = None
        if (before := plan.options.get("on_device")) is not None:
            options = {name: value for name, value in plan.options.items() if name != "on_device"}
            self._plan = replace(plan, inputs=before.inputs, options=options)  # the model's own
            self._on_device = loads(before.function, "preprocess_on_device")

    def predict(self, inputs: Inputs) -> Any:
        """Run the model once; gives NumPy arrays: one, a tuple, or a dict.

        Raises:
            Fault: the inputs are not what the model takes, or it gave no dense tensors.
        """
        with tf.device(self._place):
            inputs = self._ready(inputs)
            return from_tensors(self.runner(inputs.style, self.tensors(inputs)))

    def _ready(self, inputs: Inputs) -> Inputs:
        """Do what the user has done on the device; a plain function runs there operation by operation, a ``tf.function`` as its graph."""
        if self._on_device is None:
            return inputs
        came = {name: tf.identity(to_tensor(name, array, None, self._plan.float_dtype)) for name, array in inputs.arrays.items()}
        style, made = call_on_device(self._on_device, inputs.style, came, tf.Tensor)
        return Inputs(style, made)

    @property
    def runner(self) -> Runner:
        """The function that calls the model: what an engine exports."""
        if self._run is None:
            msg = f"{self._plan.label} was released, and cannot predict any more"
            raise AssertionError(msg)
        return self._run

    def casts_floats(self, name: str) -> bool:
        """Tell whether floating values of an input are cast to a type of the model's own."""
        return self._plan.float_dtype is not None or any(info.name == name for info in self._plan.inputs or ())

    def tensors(self, inputs: Inputs) -> dict[str, tf.Tensor]:
        """Give what the model is called with, by the names of its inputs.

        Raises:
            Fault: the inputs are not what the model takes.
        """
        plan = self._plan
        try:
            check_inputs(plan, inputs.style, list(inputs.arrays))
        except ConfigError as error:  # names that preprocess gave: the driver could not know them
            raise Fault(SchemaError, str(error)) from error
        infos = {info.name: info for info in plan.inputs or ()}
        arrays = dict(zip(infos, inputs.arrays.values(), strict=True)) if infos and inputs.style != "named" else inputs.arrays
        return {name: to_tensor(name, array, infos.get(name), plan.float_dtype) for name, array in arrays.items()}

    def device_peak_bytes(self) -> int | None:
        """Give the most that TensorFlow's allocator held on the card since this was last asked; ``None`` on a CPU."""
        if "GPU" not in self._place:
            return None
        card = self._place.lstrip("/")
        peak = int(tf.config.experimental.get_memory_info(card)["peak"])
        tf.config.experimental.reset_memory_stats(card)
        return peak

    def device_bytes(self) -> int | None:
        """Give what TensorFlow's allocator holds on the card; ``None`` on a CPU."""
        return int(tf.config.experimental.get_memory_info(self._place.lstrip("/"))["current"]) if "GPU" in self._place else None

    def release(self) -> None:
        """Let go of the model; TensorFlow keeps the memory of a card for its next model."""
        self._run = None
        gc.collect()  # traced functions and their graphs refer to each other


@contextmanager
def _on_disk(model: str | bytes, kind: str) -> Iterator[Path]:
    """Give a path, with the ending by which Keras tells its formats apart."""
    if isinstance(model, str):
        yield Path(model)
        return
    with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
        path = Path(folder) / ("model.h5" if kind == "hdf5" else "model.keras")
        path.write_bytes(model)
        yield path


def _run_saved_model(path: Path, plan: ModelPlan) -> Runner:
    if plan.options["tf_keras"]:
        _import_tf_keras(plan)
    try:
        loaded = tf.saved_model.load(str(path), tags=list(plan.options["tags"]))
        signature = loaded.signatures[plan.options["signature"]]
    except Exception as error:
        raise _cannot_load(plan, path, error) from error

    call = tf.function(lambda **tensors: signature(**tensors), jit_compile=True) if _wants_xla(plan) else signature  # noqa: PLW0108 - a signature, a function of its own, cannot be compiled

    def run(style: Style, tensors: Mapping[str, tf.Tensor], keep: Any = loaded) -> Any:  # noqa: ARG001 - the signature holds no variables
        return call(**tensors)

    return run


def _wants_xla(plan: ModelPlan) -> bool:
    return plan.options.get("optimize") == "xla"


def _precision(plan: ModelPlan) -> str:
    return str(plan.options.get("precision", "fp32"))


def _import_tf_keras(plan: ModelPlan) -> None:
    try:
        import_module("tf_keras")
    except ImportError as error:
        msg = f"{plan.label} holds an optimizer of Keras 2 and needs tf_keras, which cannot be imported here ({error}): install it on the workers"
        raise ModelLoadError(msg) from error


def _run_keras(path: Path, plan: ModelPlan) -> Runner:
    custom = loads(plan.payload, f"the classes of {plan.label}") if plan.payload else None
    try:
        model = keras.models.load_model(path, compile=False, safe_mode=not plan.options["trusted"], custom_objects=custom)
    except Exception as error:
        raise _cannot_load(plan, path, error) from error
    compute_in(model, _precision(plan))
    return keras_runner(model, xla=_wants_xla(plan), widen=_precision(plan) != "fp32")


def _cannot_load(plan: ModelPlan, path: Path, error: Exception) -> ModelLoadError:
    told = str(error).partition("\n")[0]
    return ModelLoadError(
        f"{plan.label} cannot be loaded here from {str(path)!r} ({type(error).__name__}: {told}). It could be read on the driver: "
        f"compare the versions of TensorFlow ({tf.__version__} here) and Keras ({keras.__version__}), and whether the file is whole"
    )


def keras_runner(model: Callable[..., Any], *, xla: bool = False, widen: bool = False) -> Runner:
    """Give the function that calls a Keras model in inference mode, as it takes its inputs.

    A functional model gets the structure that it was made of. A subclassed one gets its ``call``'s own arguments, or else all
    inputs as one list or dict; a single input goes in as it is, whatever it is called, unless the model was built on a dict.
    """

    @tf.function(reduce_retracing=True, jit_compile=xla or None)  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def call(*args: Any, **kwargs: Any) -> Any:
        result = model(*args, training=False, **kwargs)
        return widened(result) if widen else result

    struct = getattr(model, "input", None)
    return partial(_call_subclassed, call, model) if struct is None else partial(_call_functional, call, struct)


def model_of(runner: Runner) -> Any:
    """Give the Keras model that a runner calls; ``None`` for a SavedModel's signature."""
    call = runner.args[0] if isinstance(runner, partial) else None
    return None if call is None else inspect.getclosurevars(call.python_function).nonlocals.get("model")


def _call_functional(call: Callable[..., Any], struct: Any, style: Style, tensors: Mapping[str, tf.Tensor]) -> Any:  # noqa: ARG001 - Runner
    if isinstance(struct, dict):
        return call(dict(tensors))
    ordered = [tensors[name] for name in struct_names(struct)]
    return call(ordered if isinstance(struct, (list, tuple)) else ordered[0])


def _call_subclassed(call: Callable[..., Any], model: Callable[..., Any], style: Style, tensors: Mapping[str, tf.Tensor]) -> Any:
    parameters = _parameters(model)
    values = list(tensors.values())
    if style == "named" and set(tensors) <= set(parameters):
        return call(**tensors)
    if style == "named" and (len(values) > 1 or _built_on_dict(model)):
        return call(dict(tensors))
    return call(*values) if len(values) <= max(1, len(parameters)) else call(values)


def _built_on_dict(model: Callable[..., Any]) -> bool:
    config = model.get_build_config() if isinstance(model, keras.Model) else None
    return isinstance((config or {}).get("input_shape"), dict)


def _parameters(model: Callable[..., Any]) -> list[str]:
    function = getattr(model, "call", model)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds]
    return [name for name in found if name not in ("training", "mask")]


BACKEND: Backend = TensorFlowBackend()
