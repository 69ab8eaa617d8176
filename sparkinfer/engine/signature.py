"""Do the inputs that were asked for fit what the model says of itself?

Runs on: both (standard library only).

Invariant: what is not known of a model is never a reason to refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkinfer.exceptions import ConfigError, nearest

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Style
    from sparkinfer.engine.contracts import ModelPlan

__all__ = ["check_inputs"]


def check_inputs(plan: ModelPlan, style: Style, names: Sequence[str]) -> None:
    """Refuse inputs that the model cannot be called with.

    A model known by its function's parameters (``plan.options["forward"]``: the least number of arguments, the most or ``None``,
    their names) takes as many as that. Another one with named inputs (``plan.inputs``) takes each of them once, optional ones at
    most once; in order only if ``plan.options["ordered"]`` does not deny that they have one.

    Args:
        plan: the model.
        style: how the model is called.
        names: the inputs' names, in order; for a style other than ``named`` only their number counts.

    Raises:
        ConfigError: too few or too many inputs, an unknown name, or an order that the model does not have.
    """
    if "on_device" in plan.options:  # what that function takes is its own matter
        return
    if (forward := plan.options.get("forward")) is not None:
        least, most, known = forward
        _check(plan, style, names, list(known), list(known[:least]), most=most)
    elif plan.inputs is not None:
        known = [info.name for info in plan.inputs]
        _check(plan, style, names, known, [info.name for info in plan.inputs if not info.optional], most=len(known))
    elif plan.options.get("one_input") and style == "positional" and len(names) > 1:
        msg = (
            f"{plan.label} takes one input, but {len(names)} came: give one array column, or stack them with preprocess_batch=lambda *columns: "
            "np.stack(columns, 1)"
        )
        raise ConfigError(msg)


def _check(plan: ModelPlan, style: Style, names: Sequence[str], known: list[str], needed: list[str], *, most: int | None) -> None:
    least = len(needed)
    if style == "named":
        _check_names(plan, names, known, needed, open_ended=most is None)
    elif len(names) < least or (most is not None and len(names) > most):
        msg = f"{plan.label} takes {_count(least, most)}{_listed(known)}, but {len(names)} came. {_by_name(needed)}"
        raise ConfigError(msg)
    elif len(names) > 1 and not plan.options.get("ordered", True):
        msg = f"{plan.label} takes its inputs by name, they have no order{_listed(known)}. {_by_name(known)}"
        raise ConfigError(msg)


def _check_names(plan: ModelPlan, names: Sequence[str], known: list[str], needed: list[str], *, open_ended: bool) -> None:
    unknown = [] if open_ended else [name for name in names if name not in known]
    if unknown:
        msg = f"{plan.label} has no input {unknown[0]!r}. {nearest(unknown[0], known)} {_by_name(needed)}"
        raise ConfigError(msg)
    missing = [name for name in needed if name not in names]
    if missing:
        msg = f"{plan.label} needs {', '.join(map(repr, missing))} as well, but only {list(names)} came. {_by_name(needed)}"
        raise ConfigError(msg)


def _count(least: int, most: int | None) -> str:
    if least == most:
        return f"{least} input{'' if least == 1 else 's'}"
    return f"{least} to {most} inputs" if most is not None else f"at least {least} inputs"


def _listed(known: list[str]) -> str:
    return f" ({', '.join(map(repr, known))})" if known else ""


def _by_name(known: list[str]) -> str:
    asked = ", ".join(f"{name!r}: column" for name in known)
    return f"Give inputs={{{asked}}}." if known else "Give another number of inputs."
