"""A model by name in SQL.

Runs on: driver.

Invariant: a name that SQL could not call, or that would hide one of Spark's own functions, is refused before anything is registered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError
from sparkinfer.optimizing import optimised
from sparkinfer.planning import Functions, describe, plan_partition
from sparkinfer.spark.session import has_cards
from sparkinfer.spark.udf import Flavor, PredictColumn, column_for, declared_outputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkinfer.arguments import InputsArgument
    from sparkinfer.engine.contracts import Describable, ModelPlan

__all__ = ["register"]

_UNNAMED = "input"
_WORDS = ("all", "distinct")  # SQL reads them before an argument, as in count(DISTINCT x), and calls nothing


def register(
    spark: SparkSession,
    name: str,
    model: Describable,
    *,
    returns: Any,
    inputs: InputsArgument | None = None,
    preprocess: Callable[..., Any] | None = None,
    preprocess_batch: Callable[..., Any] | None = None,
    preprocess_on_device: Callable[..., Any] | None = None,
    postprocess: Callable[..., Any] | None = None,
    on_null: str = "raise",
    on_error: str = "raise",
    error_column: str = "error",
    flavor: Flavor = "auto",
    deterministic: bool = False,
    config: InferenceConfig | None = None,
    **overrides: Any,
) -> PredictColumn:
    """Register a model as a function for SQL, for the length of the session.

    Args:
        spark: whose ``spark.sql`` is to know it; classic or Connect.
        name: letters, digits and ``_``, and none of Spark's own functions. Registering a name again replaces the model.
        model: ``TorchModel``, ``TensorFlowModel``, ``MlflowModel`` or ``PythonModel``.
        returns: the type of the column, such as ``"array<float>"`` or ``"struct<label:string,score:float>"``.
        inputs: what the arguments are, in order: a name, a list of names, or ``{model input: name}``; each may come with a
            ``TensorSpec``. SQL decides which columns it gets, so that the names are those of messages. ``None`` takes the inputs that
            the model itself names; one, where it names none or a preprocess function stands before it.
        preprocess: as in ``predict_udf``, like all that follow.
        preprocess_batch: takes the columns of a batch.
        preprocess_on_device: takes the inputs as tensors on the model's device.
        postprocess: takes what the model gave.
        on_null: ``"raise"``, ``"null"`` or ``"pass"``.
        on_error: ``"raise"`` or ``"null"``.
        error_column: the last field of ``returns`` where ``on_error`` is ``"null"``.
        flavor: ``"arrow"``, ``"pandas"`` or ``"auto"``.
        deterministic: ``True`` lets Spark copy and move the call.
        config: settings; ``overrides`` are single settings by name and beat it.
        **overrides: fields of ``InferenceConfig``.

    Returns:
        The same function for DataFrames.

    Raises:
        ConfigError, SchemaError, ModelLoadError: the name, an argument or the model is wrong; no job was started. A call in SQL with
            another number of columns fails when it runs, and says how many were expected.

    Example:
        ::

            si.register(spark, "tag", si.TorchModel("tagger.pt2"), returns="struct<label:string,score:float>", postprocess=top1)
            spark.sql("SELECT id, tag(pixels).label FROM photos")
    """
    _check_name(spark, name)
    plan = describe(model)
    functions = Functions(
        preprocess=preprocess, preprocess_batch=preprocess_batch, preprocess_on_device=preprocess_on_device, postprocess=postprocess
    )
    made = plan_partition(
        _Described(plan),
        inputs=_named_by(plan, functions) if inputs is None else inputs,
        outputs=declared_outputs(returns, on_error, error_column),
        keep=(),
        key=None,
        functions=functions,
        on_null=on_null,
        on_error=on_error,
        error_column=error_column,
        config=InferenceConfig.build(config, overrides),
    )
    made = optimised(made, model, None, cards=lambda: has_cards(spark))
    column = column_for(spark, made, flavor=flavor, deterministic=deterministic, called=f"{name}()")
    spark.udf.register(name, column.udf)
    return column


@dataclass(frozen=True)
class _Described:
    """A model that was described already: an in-memory one is not pickled again."""

    plan: ModelPlan

    def describe(self) -> ModelPlan:
        return self.plan


def _check_name(spark: SparkSession, name: object) -> None:
    if not isinstance(name, str) or re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) is None:
        hint = ". A function of a session has no catalog or schema" if isinstance(name, str) and "." in name else ""
        msg = f"name is {name!r}, expected a name for SQL, of letters, digits and _, that begins with no digit, such as 'tag'{hint}"
        raise ConfigError(msg)
    if name.lower() in _WORDS:
        msg = f"name is {name!r}, a word of SQL itself, which would never call the model: take another name"
        raise ConfigError(msg)
    if name.lower() in _own_functions(spark, name):
        msg = f"name is {name!r}, which is one of Spark's own functions, and every query that calls it would call the model: take another name"
        raise ConfigError(msg)


def _own_functions(spark: SparkSession, name: str) -> set[str]:
    """Look a name up among Spark's own functions; a command, for which no job is run."""
    try:
        return {row[0].lower() for row in spark.sql(f"SHOW SYSTEM FUNCTIONS LIKE '{name.lower()}'").collect()}
    except Exception:  # noqa: BLE001 - a platform whose catalog does not tell: then the name cannot be checked
        return set()


def _named_by(plan: ModelPlan, functions: Functions) -> InputsArgument:
    """Name the arguments as the model names its inputs, where it does and gets them as they are."""
    if any(one is not None for one in (functions.preprocess, functions.preprocess_batch, functions.preprocess_on_device)):
        return _UNNAMED
    if plan.inputs is not None:
        names = [info.name for info in plan.inputs]
        return names[0] if len(names) == 1 else {name: name for name in names}
    least, _, known = plan.options.get("forward") or (1, 1, (_UNNAMED,))
    names = list(known)[: max(least, 1)] or [_UNNAMED]
    return names[0] if len(names) == 1 else names
