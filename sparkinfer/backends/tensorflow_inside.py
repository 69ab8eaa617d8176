"""A look into a Keras model: each layer's ``call`` is told of while the model runs eagerly.

Runs on: worker.

Invariant: the layers are as they were when the block is left, and so is TensorFlow's choice between graphs and eager calls. A SavedModel is a graph of
operations without layers, and cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from sparkinfer.backends.tensorflow import TensorFlowLoaded, model_of
from sparkinfer.engine.inside import Look
from sparkinfer.insides import GraphNode, ModelGraph

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.inside import Layers

__all__ = ["KerasProbe", "open_probe"]

_WHOLE = "(model)"


class KerasProbe:
    """Answers ``inside.Probe``."""

    def __init__(self, loaded: TensorFlowLoaded) -> None:
        """Take the loaded model; no layer is changed yet."""
        self._model = model_of(loaded.runner)
        self._layers: dict[str, Any] = {} if self._model is None else _named(self._model)

    def unreachable(self) -> str:
        """Say why no layer can be reached; nothing where they can."""
        if self._model is None:
            return (
                "a SavedModel is a graph of operations without layers, so they cannot be reached: the model's inputs and outputs alone are looked at. "
                "Give the Keras model (.keras) to see its layers"
            )
        return ""

    @contextmanager
    def watching(self, layers: Layers) -> Iterator[None]:
        """Have ``layers`` told of each layer that is called while the block runs."""
        eagerly = tf.config.functions_run_eagerly()
        own = {name: vars(layer)["call"] for name, layer in self._layers.items() if "call" in vars(layer)}
        tf.config.run_functions_eagerly(run_eagerly=True)
        try:
            for name, layer in self._layers.items():
                object.__setattr__(layer, "call", _telling(layers, name, layer, layer.call))  # past Keras's own bookkeeping of attributes
            yield
        finally:
            for name, layer in self._layers.items():
                object.__delattr__(layer, "call")
                if name in own:
                    object.__setattr__(layer, "call", own[name])
            tf.config.run_functions_eagerly(eagerly)

    def weights(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Give each layer's own weights, of those that hold no other layers."""
        leaves = {name: layer for name, layer in self._layers.items() if _is_leaf(layer)}
        return {name: {weight.name: _array(weight.value) for weight in layer.weights} for name, layer in leaves.items() if layer.weights}

    def graph(self, inputs: Inputs) -> ModelGraph:
        """Give the model's picture: of a functional model what takes what from which, else which layer holds which."""
        del inputs
        functional = getattr(self._model, "_functional", None) or self._model  # what a Sequential keeps
        return _functional(functional) if hasattr(functional, "operations") else _tree(self._layers)


def _named(model: Any) -> dict[str, Any]:
    """Name the layers at any depth; one that holds others before them."""
    found: dict[str, Any] = {_WHOLE: model}
    for layer in model._flatten_layers(include_self=False):  # noqa: SLF001 - no public way sees the layers of a subclassed model at any depth
        name = layer.name
        number = 2
        while name in found:  # in models within models names may come twice
            name, number = f"{layer.name} [{number}]", number + 1
        found[name] = layer
    return found


def _is_leaf(layer: Any) -> bool:
    return not list(layer._flatten_layers(include_self=False))  # noqa: SLF001 - as above


def _telling(layers: Layers, name: str, layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    leaf = _is_leaf(layer)

    def told(*args: Any, **kwargs: Any) -> Any:
        layers.enter(name, type(layer).__name__, leaf=leaf, came=lambda: _bad((args, kwargs)))
        output = call(*args, **kwargs)
        layers.leave(output, partial(_look, layer, output))
        return output

    return told


def _look(layer: Any, output: Any) -> Look | None:
    tensor = next((one for one in _tensors(output) if tf.size(one)), None)
    if tensor is None:
        return None
    array = _array(tensor)
    first = getattr(layer, "data_format", None) == "channels_first"
    return Look(array, None if array.ndim < 2 else 1 if first else array.ndim - 1)


def _tensors(value: Any) -> list[Any]:
    return [one for one in tf.nest.flatten(value) if isinstance(one, tf.Tensor) and (one.dtype.is_floating or one.dtype.is_integer)]


def _bad(came: Any) -> tuple[bool, bool]:
    """Tell whether a NaN, and whether an infinite value, is in any of the tensors."""
    arrays = [_array(one) for one in _tensors(came) if one.dtype.is_floating]
    return any(bool(np.isnan(one).any()) for one in arrays), any(bool(np.isinf(one).any()) for one in arrays)


def _array(tensor: Any) -> np.ndarray:
    wide = tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor  # NumPy has none
    array: np.ndarray = wide.numpy()
    return array


def _functional(model: Any) -> ModelGraph:
    """Follow the layers' own notes of what they were called on."""
    made: list[GraphNode] = []
    places: dict[str, int] = {}
    for operation in model.operations:
        takes = [
            places[tensor._keras_history.operation.name]  # noqa: SLF001 - Keras names the maker nowhere else
            for node in operation._inbound_nodes  # noqa: SLF001
            for tensor in node.input_tensors
            if tensor._keras_history.operation.name in places  # noqa: SLF001
        ]
        places[operation.name] = len(made)
        kind = "input" if isinstance(operation, keras.layers.InputLayer) else type(operation).__name__
        made.append(GraphNode(name=operation.name, kind=kind, after=tuple(dict.fromkeys(takes))))
    return ModelGraph(how="Keras", nodes=tuple(made))


def _tree(layers: Mapping[str, Any]) -> ModelGraph:
    places = {id(layer): place for place, layer in enumerate(layers.values())}
    holders: dict[int, int] = {}
    for place, layer in enumerate(layers.values()):
        for part in layer._flatten_layers(include_self=False, recursive=False):  # noqa: SLF001 - see _named
            holders.setdefault(places.get(id(part), -1), place)
    nodes = tuple(
        GraphNode(name=name, kind=type(layer).__name__, after=(holders[place],) if place in holders else ())
        for place, (name, layer) in enumerate(layers.items())
    )
    return ModelGraph(how="tree", nodes=nodes, why="a subclassed Keras model keeps no notes of what its layers are called on")


def open_probe(loaded: TensorFlowLoaded) -> KerasProbe:
    """Reach into a loaded model."""
    return KerasProbe(loaded)
