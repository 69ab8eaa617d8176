"""What a torch.export archive (.pt2) would run while it is read, found without reading it in.

Runs on: driver, worker.

Invariant: an archive that passes holds no pickle that torch would run, no compiled code, no expression beyond arithmetic, and
no operator beyond torch's operators and arithmetic. (torch 2.13 ``torch/export/pt2_archive/_package.py`` calls ``torch.load``
with ``weights_only=False`` for entries marked ``use_pickle`` and ``pickle.loads`` for opaque constants; ``torch/_export/serde``
gives expressions to ``sympy.sympify``, which evaluates them as Python, and follows an operator's dotted name through torch.)
"""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Iterator
from typing import IO, Any

import torch

__all__ = ["hidden_code"]

_OPERATOR = re.compile(
    r"torch\.ops\.[a-zA-Z]\w*\.(?:__i?(?:and|or|xor|lshift|rshift)__|_?[a-zA-Z]\w*)(?:\.[a-zA-Z]\w*)?"
    r"|_operator\.(?:getitem|i?(?:add|sub|mul|truediv|floordiv|mod|pow|lshift|rshift|and_|or_|xor)|matmul|neg|pos|abs|inv|invert|not_|eq|ne|lt|le|gt|ge|index)"
    r"|math\.[a-z]\w*"
    r"|torch\.(?:_sym_\w+|sym_\w+)"
)
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.keyword, ast.Name, ast.Constant, ast.Tuple),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context),
)
_WORD = re.compile(r"[A-Za-z]\w*")  # a string inside an expression: a name, which means nothing when sympy evaluates it
_GUARD_ATTRIBUTES = ("size", "stride", "shape", "storage_offset", "dim", "ndim", "item", "dtype")
_GUARD_FUNCTIONS = ("abs", "bool", "float", "int", "max", "min")
_TREE_IMPORTS = ("default_factory_module", "__enum__")  # torch/utils/_pytree.py imports what these name


def hidden_code(source: str | IO[bytes]) -> list[str]:
    """Name the entries of an archive that could run code when it is read; none if it is harmless.

    Read with torch's own zip reader, so that what is checked is what torch will read.
    """
    reader = torch._C.PyTorchFileReader(source)  # noqa: SLF001 - torch.export.pt2_archive.PT2ArchiveReader is the same, from torch 2.8 on
    return list(dict.fromkeys(found for name in reader.get_all_records() for found in _in_entry(name, reader)))


def _in_entry(name: str, reader: Any) -> Iterator[str]:
    if name.startswith(("data/aotinductor/", "data/executorch/")) or name.endswith((".so", ".dll", ".dylib", ".pyd")):
        yield f"{name} (compiled code)"
    elif re.fullmatch(r"data/(weights|constants)/.*_config\.json", name):
        for entry, meta in json.loads(reader.get_record(name)).get("config", {}).items():
            if meta.get("use_pickle") is not False or not str(meta.get("path_name")).startswith(("weight_", "tensor_")):
                yield f"{entry} in {name} (pickled as {meta.get('path_name')})"
    elif name.endswith(".pt"):
        content = reader.get_record(name)
        if content and not _is_plain(content):
            yield f"{name} (a pickle of more than tensors)"
    elif name.startswith("models/") or name == "serialized_exported_program.json":
        yield from (f"{found} in {name}" for found in _in_program(json.loads(reader.get_record(name))))
    elif name.startswith("data/constants/") and not name.rpartition("/")[2].startswith("tensor_"):
        yield f"{name} (an object)"


def _is_plain(content: bytes) -> bool:
    """Whether torch's first, safe attempt at this entry succeeds: if it does not, torch makes an unsafe one."""
    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception:  # noqa: BLE001 - torch catches as widely before it falls back
        return False
    return True


def _in_program(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _in_program(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "expr_str" and not _is_arithmetic(value):
                yield f"the expression {str(value)[:80]!r}"
            elif key == "guards_code":
                yield from (f"the guard {str(guard)[:80]!r}" for guard in value if not _is_guard(guard))
            elif key == "target" and "inputs" in node and not (isinstance(value, str) and _OPERATOR.fullmatch(value)):
                yield f"the operator {str(value)[:80]!r}"
            else:
                yield from _in_program(value)
    elif isinstance(node, str) and any(word in node for word in _TREE_IMPORTS):
        yield f"the input structure {node[:80]!r}"


def _is_arithmetic(text: Any) -> bool:
    """Whether a symbolic size holds only numbers, names, and calls of sympy's classes: ``FloorDiv(Symbol('s7', integer=True), 2)``."""
    return _holds_only(text, _ARITHMETIC) and all(
        isinstance(node.func, ast.Name) and node.func.id[:1].isupper() for node in _nodes(text) if isinstance(node, ast.Call)
    )


def _is_guard(text: Any) -> bool:
    """Whether a guard only compares sizes: ``L['x'].size()[0] % 2 == 0``."""
    return _holds_only(text, (*_ARITHMETIC, ast.Subscript, ast.Attribute)) and all(
        (not isinstance(node, ast.Attribute) or node.attr in _GUARD_ATTRIBUTES)
        and (not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)) or node.func.id in _GUARD_FUNCTIONS)
        for node in _nodes(text)
    )


def _holds_only(text: Any, kinds: tuple[type[ast.AST], ...]) -> bool:
    if not isinstance(text, str) or "__" in text:
        return False
    try:
        nodes = _nodes(text)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return all(
        isinstance(node, kinds) and not (isinstance(node, ast.Constant) and isinstance(node.value, str) and not _WORD.fullmatch(node.value))
        for node in nodes
    )


def _nodes(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text, mode="eval")))
