"""A PyTorch model's picture: which layer takes what from which, by ``torch.export``; else which layer holds which.

Runs on: worker.

Invariant: the boxes carry the names under which ``torch_inside`` tells of the layers; what cannot be exported is drawn as a tree, and the reason is told.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from sparkinfer.insides import GraphNode, ModelGraph

__all__ = ["computes", "graph_of", "node_name"]

_MOST_PARAMETERS = 500_000_000  # of a model that is exported only to be drawn


def graph_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ModelGraph:
    """Draw a module as it runs on these arguments."""
    if isinstance(module, fx.GraphModule):  # an exported program already; it calls no modules, and each node is told of by itself
        return ModelGraph(how="torch.export", nodes=_nodes(module.graph, {}, None))
    try:
        program = _exported(module, args, dict(kwargs))
        nodes = _nodes(program.graph, dict(module.named_modules()), set(program.graph_signature.user_inputs))
    except Exception as error:  # noqa: BLE001 - the exporter raises errors of many kinds
        lines = str(error).strip().splitlines()
        return _tree(module, f"torch.export cannot follow it ({type(error).__name__}: {lines[0][:200] if lines else 'no reason given'})")
    return ModelGraph(how="torch.export", nodes=nodes)


def _exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    size = sum(one.numel() for one in module.parameters())
    if size > _MOST_PARAMETERS:
        msg = f"it has {size:,} parameters, and drawing it so would take their memory again"
        raise MemoryError(msg)
    plain_args, plain_kwargs = _copied(args), _copied(kwargs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(module, plain_args, plain_kwargs, strict=False)


def _copied(values: Any) -> Any:
    """Give tensors that were not made in inference mode, which the exporter refuses."""
    if isinstance(values, dict):
        return {name: one.clone() if isinstance(one, torch.Tensor) else one for name, one in values.items()}
    return tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in values)


def _nodes(graph: fx.Graph, modules: Mapping[str, nn.Module], own_inputs: set[Any] | None) -> tuple[GraphNode, ...]:
    """Make one box of each layer that holds no others, and one of each operation between them; parameters, which are placeholders too, have none."""
    made: list[GraphNode] = []
    places: dict[str, int] = {}
    box_of: dict[fx.Node, tuple[int, ...]] = {}
    for node in graph.nodes:
        before = tuple(dict.fromkeys(place for one in node.all_input_nodes for place in box_of.get(one, ())))
        if node.op == "placeholder":
            if own_inputs is None or node.name in own_inputs:
                box_of[node] = (len(made),)
                made.append(GraphNode(name=node.name, kind="input"))
            continue
        if not computes(node):
            box_of[node] = before  # sizes, items of tuples, checks: the way through them is drawn
            continue
        name, kind = _told(node, modules)
        if name not in places:
            places[name] = len(made)
            made.append(GraphNode(name=name, kind=kind, after=before))
        else:
            place = places[name]
            more = tuple(one for one in before if one < place and one not in made[place].after)  # later ones would be a loop
            made[place] = GraphNode(name=name, kind=kind, after=(*made[place].after, *more))
        box_of[node] = (places[name],)
    return tuple(made)


def computes(node: fx.Node) -> bool:
    """Tell what makes tensors from sizes, items of tuples and checks."""
    value = node.meta.get("val")
    many = isinstance(value, (tuple, list)) and any(isinstance(one, torch.Tensor) for one in value)
    return node.op == "call_function" and (isinstance(value, torch.Tensor) or many) and getattr(node.target, "__name__", "") != "getitem"


def node_name(node: fx.Node) -> tuple[str, str]:
    """Give the path of the module that a node was exported from with the node's own name, and the operation."""
    path, _ = _path_of(node)
    operation = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
    return (f"{path}.{node.name}" if path else node.name), operation


def _told(node: fx.Node, modules: Mapping[str, nn.Module]) -> tuple[str, str]:
    """Name the layer that a node belongs to; or, where that holds others, the operation itself."""
    path, use = _path_of(node)
    module = modules.get(path)
    if path and module is not None and next(module.children(), None) is None:
        return (path if use == 1 else f"{path} ({use})"), type(module).__name__
    return node_name(node)


def _path_of(node: fx.Node) -> tuple[str, int]:
    """Give the innermost module's path, and which of its uses this is (torch writes ``relu@1`` into the key for the second)."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return "", 1
    key, (path, _) = list(stack.items())[-1]
    use = str(key).rpartition("@")[2]
    name = str(path).partition("@")[0].removeprefix("L['self']").lstrip(".")
    return name, int(use) + 1 if "@" in str(key) and use.isdigit() else 1


def _tree(module: nn.Module, why: str) -> ModelGraph:
    places: dict[str, int] = {}
    made: list[GraphNode] = []
    for name, part in module.named_modules():
        holder = name.rpartition(".")[0]
        places[name] = len(made)
        made.append(
            GraphNode(name=name or "(model)", kind=type(part).__name__, after=(places[holder],) if name and holder in places else ())
        )
    return ModelGraph(how="tree", nodes=tuple(made), why=why)
