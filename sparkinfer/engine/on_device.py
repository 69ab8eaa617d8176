"""The user's ``preprocess_on_device``: what stands between a batch's arrival on the device and the model.

Runs on: worker.

Invariant: what it gives has one row for each row that it got, as tensors of the backend's own; what it raises is told as its own, and memory
that ran out as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sparkinfer.engine.batch import Breach, Fault
from sparkinfer.engine.fitting import is_device_lost, is_out_of_memory
from sparkinfer.exceptions import PreprocessError

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Style

__all__ = ["call_on_device"]

_NAME = "preprocess_on_device"


def call_on_device(function: Callable[..., Any], style: Style, tensors: Mapping[str, Any], kind: type[Any]) -> tuple[Style, dict[str, Any]]:
    """Call the function as the model would be called, and give what the model is to be called with.

    Args:
        function: the user's.
        style: how the inputs were named.
        tensors: by name, in order, each ``(rows, *shape)``, on the device.
        kind: the backend's tensor class.

    Returns:
        One tensor makes ``single``, a tuple or list ``positional``, a dict ``named`` inputs.

    Raises:
        Fault: the function raised; a ``Breach`` where it gave another number of rows, or no tensors.
    """
    rows = len(next(iter(tensors.values())))
    try:
        made = function(**tensors) if style == "named" else function(*tensors.values())
    except Exception as error:
        if is_out_of_memory(error) or is_device_lost(error):
            raise
        raise Fault(PreprocessError, f"{_NAME} raised {type(error).__name__}: {error}", stage=_NAME) from error
    ready = _named(made, list(tensors))
    for name, tensor in ready[1].items():
        _check(name, tensor, rows, kind)
    return ready


def _named(made: Any, names: list[str]) -> tuple[Style, dict[str, Any]]:
    if isinstance(made, Mapping):
        return "named", {str(name): tensor for name, tensor in made.items()}
    if isinstance(made, (tuple, list)):
        names = names if len(names) == len(made) else [f"input_{position}" for position in range(len(made))]
        return "positional", dict(zip(names, made, strict=True))
    return "single", {names[0] if len(names) == 1 else "input": made}


def _check(name: str, tensor: Any, rows: int, kind: type[Any]) -> None:
    if not isinstance(tensor, kind):
        text = f"{_NAME} gave a {type(tensor).__name__} for input {name!r}, expected a tensor: return a tensor, a tuple or a dict of them"
        raise Breach(PreprocessError, text, stage=_NAME)
    shape = tuple(tensor.shape)
    if not shape or shape[0] != rows:
        found = f"{shape[0]} rows" if shape else "a scalar"
        raise Breach(PreprocessError, f"{_NAME} was given {rows} rows and gave back {found} for input {name!r}", stage=_NAME)
