"""Exporting a PyTorch model for another engine, once, on the driver.

Runs on: driver.

Invariant: what is exported is the loaded model itself, in evaluation mode, with a free batch axis; the user's model is not changed.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from sparkinfer.artifacts import memory_file
from sparkinfer.backends.exported import Exported, ExportedInput, feed_name, flat, structure_of
from sparkinfer.backends.torch_values import plain_dtype, plain_structure
from sparkinfer.exceptions import MissingDependencyError, ModelLoadError

if TYPE_CHECKING:
    from sparkinfer.backends.torch_model import TorchLoaded
    from sparkinfer.engine.batch import Inputs
    from sparkinfer.engine.contracts import ModelFile

__all__ = ["AUTO", "IN_PLACE", "export", "undisturbed", "unsuited"]

AUTO = ("onnxruntime", "openvino", "channels_last")
"""What ``optimize="auto"`` tries, in this order."""

IN_PLACE = ("compile", "channels_last")
"""What needs no file: it happens where the model is loaded."""

_MOST_BYTES = 2**31 - 2**20  # a protocol buffer, which an ONNX model is, can hold no more
_EXPORT_SINCE = (2, 6)  # torch.export.Dim.DYNAMIC


def unsuited(engine: str, inputs: Inputs, free: Mapping[str, frozenset[int]]) -> str:
    """Say why ``"auto"`` does not even try an engine; nothing if it does."""
    del free
    if engine == "openvino" and any(np.asarray(array).dtype.kind in "iu" for array in inputs.arrays.values()):
        return "OpenVINO computes int64 as int32, and gives zeros for ids that an embedding does not have"
    if engine == "channels_last" and not any(np.ndim(array) == 4 for array in inputs.arrays.values()):
        return "no input has channels"
    return ""


def export(
    loaded: TorchLoaded, engine: str, inputs: Inputs, free: Mapping[str, frozenset[int]], answer: Any
) -> tuple[str, tuple[ModelFile, ...], Exported]:
    """Export a model.

    Args:
        loaded: the model, on the CPU.
        engine: ``"onnxruntime"`` or ``"openvino"``.
        inputs: sample rows, at least 2.
        free: axes of the inputs that are free besides the batch's.
        answer: what the model answered to ``inputs``.

    Returns:
        The backend that runs it, its files, and what they do not say of themselves.

    Raises:
        ModelLoadError: the model cannot be exported; names the first cause.
        MissingDependencyError: a package that writes the export is not installed.
    """
    import_module(f"sparkinfer.backends.{_BACKENDS[engine]}")  # tells that its package is missing before the long work
    structure, names = structure_of(answer)
    tensors = loaded.arguments(inputs)
    texts = [name for name, value in tensors.items() if not isinstance(value, torch.Tensor)]
    if texts:
        msg = f"the input {texts[0]!r} is text or bytes, and an exported model takes numbers only"
        raise ModelLoadError(msg)
    made = _Flat(loaded.module, list(tensors) if inputs.style == "named" else None)
    with _quiet():
        program = _program(made, tensors, free)
        _check_guards(program, made, tensors, free)
        if engine == "openvino":
            _refuse_wide(program, dict(zip(names, flat(answer), strict=True)))
        files = _WRITERS[engine](program, len(tensors), len(names))
    exported = Exported(
        style=inputs.style,
        inputs=tuple(
            ExportedInput(
                name,
                str(tensor.dtype).removeprefix("torch."),
                _shape(tensor, free.get(name, frozenset())),
                casts_floats=loaded.float_dtype is not None,
            )
            for name, tensor in tensors.items()
        ),
        structure=structure,
        names=names,
    )
    return _BACKENDS[engine], files, exported


_BACKENDS = {"onnxruntime": "onnx_runtime", "openvino": "openvino_runtime"}


class _Flat(nn.Module):
    """The model as a function of tensors in order that gives tensors in order."""

    def __init__(self, module: Any, names: list[str] | None) -> None:
        super().__init__()
        self.module = module
        self.names = names
        self.training = False  # eval() would ask the module too, and an exported program's refuses

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call it as the library does."""
        answer = self.module(*tensors) if self.names is None else self.module(**dict(zip(self.names, tensors, strict=True)))
        found = plain_structure(answer)
        parts = found.values() if isinstance(found, dict) else found if isinstance(found, list) else [found]
        return tuple(plain_dtype(part) for part in parts)


def _program(made: nn.Module, tensors: Mapping[str, torch.Tensor], free: Mapping[str, frozenset[int]]) -> Any:
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _EXPORT_SINCE:
        msg = f"exporting needs torch {'.'.join(map(str, _EXPORT_SINCE))} or newer, and this is {torch.__version__}"
        raise ModelLoadError(msg)
    rows = torch.export.Dim("rows")
    axes = tuple({0: rows, **dict.fromkeys(sorted(free.get(name, ())), torch.export.Dim.DYNAMIC)} for name in tensors)
    try:
        with torch.no_grad():  # under inference_mode no graph can be made
            given = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors.values())
            return torch.export.export(made, given, dynamic_shapes=(axes,), strict=False)
    except Exception as error:
        msg = f"torch.export cannot export the model ({_told(error)})"
        raise ModelLoadError(msg) from error


def _check_guards(program: Any, made: nn.Module, tensors: Mapping[str, torch.Tensor], free: Mapping[str, frozenset[int]]) -> None:
    """Refuse a graph that holds for some sizes of the free axes only, where the model itself takes others: a file of it has no such guards.

    Raises:
        ModelLoadError: names the size.
    """
    if not any(free.values()):
        return
    sizes: list[Callable[[int], int]] = [lambda _: 2, lambda size: size + 1, lambda size: 2 * size + 3]
    for bounds in program.range_constraints.values():
        low, high = (_finite(bound) for bound in (bounds.lower, bounds.upper))
        sizes += [lambda _, size=size: size for size in ((low or 0) - 1, (high or 0) + 1) if 1 < size < _LARGEST_PROBED]  # type: ignore[misc]
    graph = program.module()
    for size in sizes:
        given = [_resized(tensor, free.get(name, frozenset()), size) for name, tensor in tensors.items()]
        with torch.no_grad():
            if not _answers(made, given) or _answers(graph, given):
                continue
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
        msg = f"the model does something else at other lengths of its inputs, which an exported graph cannot follow (seen with shapes {shapes})"
        raise ModelLoadError(msg)


_LARGEST_PROBED = 2**16  # of a free axis's sizes: bounds beyond are the exporter's own


def _finite(bound: Any) -> int | None:
    try:
        return int(bound)
    except (OverflowError, TypeError, ValueError, AttributeError):  # infinity, of sympy's or torch's kinds
        return None


def _resized(tensor: torch.Tensor, free: frozenset[int], size: Callable[[int], int]) -> torch.Tensor:
    made = tensor
    for axis in sorted(free):
        if made.shape[axis]:
            made = made.index_select(axis, torch.arange(size(made.shape[axis])) % made.shape[axis])
    return made


def _answers(module: Any, given: Sequence[torch.Tensor]) -> bool:
    try:
        module(*(tensor.clone() for tensor in given))
    except Exception:  # noqa: BLE001 - whatever it is, it is no answer
        return False
    return True


def _refuse_wide(program: Any, answer: Mapping[str, np.ndarray]) -> None:
    from sparkinfer.backends.openvino_runtime import refuse_wide  # noqa: PLC0415 - only for this engine

    values = [node.meta.get("val") for node in program.graph.nodes]
    doubles = any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in values)
    refuse_wide(doubles, [(name, array.dtype.name) for name, array in answer.items()])


def _check_writer() -> None:
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            msg = f"the package {package!r}, by which torch exports a model as ONNX, is not installed here: pip install 'sparkinfer[onnx]'"
            raise MissingDependencyError(msg)


def _onnx(program: Any, inputs: int, outputs: int) -> bytes:
    _check_writer()
    taken, given = [feed_name(i) for i in range(inputs)], [f"out{i}" for i in range(outputs)]
    try:
        made: Any = torch.onnx.export(program, (), dynamo=True, external_data=False, verbose=False, input_names=taken, output_names=given)
        model = made.model_proto
        size = int(model.ByteSize())
        content = b"" if size > _MOST_BYTES else bytes(model.SerializeToString())
    except Exception as error:
        msg = f"torch cannot write the model as ONNX ({_told(error)})"
        raise ModelLoadError(msg) from error
    if not content:
        msg = f"as ONNX the model takes {size / 2**30:.1f} GiB, and an ONNX model in one file can hold 2: leave optimize out"
        raise ModelLoadError(msg)
    return content


def _onnx_file(program: Any, inputs: int, outputs: int) -> tuple[ModelFile, ...]:
    return (memory_file("model", _onnx(program, inputs, outputs), ".onnx"),)


def _openvino_files(program: Any, inputs: int, outputs: int) -> tuple[ModelFile, ...]:
    from sparkinfer.backends.openvino_runtime import convert  # noqa: PLC0415 - only for this engine

    names = [[feed_name(i) for i in range(inputs)], [f"out{i}" for i in range(outputs)]]
    graph, weights = convert(_onnx(program, inputs, outputs), *names)
    return memory_file("graph", graph, ".xml"), memory_file("weights", weights, ".bin")


_WRITERS = {"onnxruntime": _onnx_file, "openvino": _openvino_files}


def _shape(tensor: torch.Tensor, free: frozenset[int]) -> tuple[int | None, ...]:
    return tuple(None if axis in free else size for axis, size in enumerate(tensor.shape) if axis)


def _told(error: BaseException) -> str:
    """Give the first cause in a line: torch's exporter wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no reason given'}"


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put the process's threads back, which a model that is called takes for its own: the user's driver may train."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch's exporters say of themselves to themselves: pages of advice, warnings of one part of them about another."""
    logger = logging.getLogger("torch")
    before = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
