"""A look into a PyTorch model: hooks around its modules, or its graph node by node where it has no modules.

Runs on: worker.

Invariant: the model computes what it computes without hooks; none is left on it.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from sparkinfer.backends.torch_graph import computes, graph_of, node_name
from sparkinfer.backends.torch_values import to_plain
from sparkinfer.engine.inside import Look

if TYPE_CHECKING:
    import numpy as np

    from sparkinfer.backends.torch_model import TorchLoaded
    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.inside import Layers
    from sparkinfer.insides import ModelGraph

__all__ = ["TorchProbe", "open_probe"]

_WHOLE = "(model)"
_DEEPEST = 3  # containers within containers, in which tensors are looked for
_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)  # noqa: SLF001 - their common base has no public name


class TorchProbe:
    """Answers ``inside.Probe``."""

    def __init__(self, loaded: TorchLoaded) -> None:
        """Take the loaded model; nothing is hooked yet."""
        self._loaded = loaded
        self._module = loaded.module
        self._on_card = loaded.device_bytes() is not None
        self._axes: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}  # of the tensors of this call: where their channels are

    def unreachable(self) -> str:
        """Say why no layer can be reached; nothing where they can."""
        if isinstance(self._module, torch.jit.ScriptModule):
            return "TorchScript runs its layers where no hook is asked: the model's inputs and outputs alone are looked at"
        if not isinstance(self._module, nn.Module):
            return f"the model is a {type(self._module).__name__} without layers: its inputs and outputs alone are looked at"
        return ""

    @contextmanager
    def watching(self, layers: Layers) -> Iterator[None]:
        """Have ``layers`` told of each module that is called while the block runs, or of each node of an exported program."""
        self._axes.clear()
        if isinstance(self._module, fx.GraphModule):
            with self._stepping(layers):
                yield
            return
        handles: list[Any] = []
        try:
            for name, module in self._module.named_modules():
                if not isinstance(module, torch.jit.ScriptModule):
                    handles += self._hook(layers, name or _WHOLE, module)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def weights(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Give each module's own parameters."""
        named = {name or _WHOLE: list(module.named_parameters(recurse=False)) for name, module in self._module.named_modules()}
        return {name: {parameter: _array(tensor) for parameter, tensor in own} for name, own in named.items() if own}

    def graph(self, inputs: Inputs) -> ModelGraph:
        """Give the model's picture."""
        arguments = self._loaded.arguments(inputs)
        named = inputs.style == "named"
        return graph_of(self._module, () if named else tuple(arguments.values()), arguments if named else {})

    def _hook(self, layers: Layers, name: str, module: nn.Module) -> list[Any]:
        kind = type(module).__name__
        leaf = next(module.children(), None) is None

        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._wait(layers)
            layers.enter(name, kind, leaf=leaf, came=lambda: _bad((args, kwargs)))

        def after(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self._wait(layers)
            layers.leave(output, lambda: self._look(module, (args, kwargs), output))

        return [module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after, with_kwargs=True)]

    @contextmanager
    def _stepping(self, layers: Layers) -> Iterator[None]:
        """Have an exported program, which calls no modules, interpreted node by node."""
        graph_module = self._module
        stepper = _Stepper(graph_module, layers, self)
        graph_module.forward = stepper.forward  # an attribute of this one object, before its class's
        try:
            yield
        finally:
            del graph_module.forward

    def _wait(self, layers: Layers) -> None:
        """Let the card come to where the host is: else a layer's time would be that of its launch."""
        if layers.timing and self._on_card:
            torch.cuda.synchronize()

    def _look(self, module: nn.Module | None, came: Any, output: Any) -> Look | None:
        tensor = next((one for one in _tensors(output) if one.numel()), None)
        if tensor is None:
            return None
        axis = self._unit_axis(module, came, tensor)
        if axis is not None:
            self._axes[id(tensor)] = weakref.ref(tensor), axis
        return Look(_array(tensor), axis)

    def _unit_axis(self, module: nn.Module | None, came: Any, tensor: torch.Tensor) -> int | None:
        """Tell where the channels are: an activation has them where the layer before it has."""
        if tensor.ndim < 2:
            return None
        if tensor.ndim == 2 or isinstance(module, _CHANNELS_FIRST):
            return 1
        for one in _tensors(came):
            known = self._axes.get(id(one))
            if known is not None and known[0]() is one and one.ndim == tensor.ndim and one.shape[known[1]] == tensor.shape[known[1]]:
                return known[1]
        return 1 if tensor.ndim > 3 else tensor.ndim - 1


class _Stepper(fx.Interpreter):
    """Runs an exported program node by node."""

    def __init__(self, module: fx.GraphModule, layers: Layers, probe: TorchProbe) -> None:
        super().__init__(module)
        self._layers = layers
        self._probe = probe
        self._parameters = _parameters(type(module).forward)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Take the program's place."""
        named = dict(zip(self._parameters, args, strict=False)) | kwargs
        self._layers.enter(_WHOLE, "ExportedProgram", leaf=False, came=lambda: _bad((args, kwargs)))
        output = self.run(*(named[name] for name in self._parameters if name in named))
        self._layers.leave(output, lambda: self._probe._look(None, (args, kwargs), output))  # noqa: SLF001 - one module's own
        return output

    def run_node(self, n: fx.Node) -> Any:
        """Run one, and tell of it where it computes a tensor."""
        if not computes(n):
            return super().run_node(n)
        name, kind = node_name(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        self._probe._wait(self._layers)  # noqa: SLF001 - as above
        self._layers.enter(name, kind, leaf=True, came=lambda: _bad((args, kwargs)))
        output = super().run_node(n)
        self._probe._wait(self._layers)  # noqa: SLF001
        self._layers.leave(output, lambda: self._probe._look(None, (args, kwargs), output))  # noqa: SLF001
        return output


def _parameters(method: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(method).parameters)[1:]


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one, depth + 1)
    elif depth < _DEEPEST and isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one, depth + 1)


def _bad(came: Any) -> tuple[bool, bool]:
    """Tell whether a NaN, and whether an infinite value, is in any of the tensors."""
    floats = [to_plain(one) for one in _tensors(came) if one.is_floating_point()]
    return any(bool(one.isnan().any()) for one in floats), any(bool(one.isinf().any()) for one in floats)


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = to_plain(tensor).cpu().numpy()
    return array


def open_probe(loaded: TorchLoaded) -> TorchProbe:
    """Reach into a loaded model."""
    return TorchProbe(loaded)
