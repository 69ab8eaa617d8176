"""The column road: the engine as an iterator UDF.

Runs on: driver.

Invariant: what comes back has exactly the type ``returns``; by default Spark runs the model once for a row, whatever is written
above the column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

from sparkinfer.arguments import InputsArgument, parse_returns
from sparkinfer.config import InferenceConfig
from sparkinfer.errors import ConfigError
from sparkinfer.planning import Functions, plan_partition
from sparkinfer.spark.arrival import travelling
from sparkinfer.spark.calls import register_call
from sparkinfer.spark.channels import open_channel
from sparkinfer.spark.pandas_form import flags
from sparkinfer.spark.session import SPARK_VERSION, active_or_local_session
from sparkinfer.spark.settings import check_max_records
from sparkinfer.spark.ship import ship
from sparkinfer.spark.types import to_spark
from sparkinfer.spark.worker import PartitionTask

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from sparkinfer.engine.contracts import Describable


__all__ = ["Flavor", "PredictColumn", "predict_udf"]

Flavor = Literal["auto", "arrow", "pandas"]
ARROW_UDF_SINCE = (4, 1)


def predict_udf(
    model: Describable,
    *,
    inputs: InputsArgument,
    returns: Any,
    preprocess: Callable[..., Any] | None = None,
    preprocess_batch: Callable[..., Any] | None = None,
    postprocess: Callable[..., Any] | None = None,
    on_null: str = "raise",
    on_error: str = "raise",
    error_column: str = "error",
    flavor: Flavor = "auto",
    deterministic: bool = False,
    config: InferenceConfig | None = None,
    **overrides: Any,
) -> PredictColumn:
    """Wrap a model as a column function.

    Args:
        model: ``TorchModel``, ``TensorFlowModel`` or ``PythonModel``.
        inputs: a column, a list of columns, or ``{model input: column}``; a column may be ``(column, TensorSpec)``. The call takes as many
            columns as are named here, in this order; the names are those of messages, and what a call without arguments takes.
        returns: the type of the column, such as ``"array<float>"`` or ``"struct<label:string,score:float>"``.
        preprocess: takes one row's values, gives the model's input(s) for it.
        preprocess_batch: takes the columns of a batch, each ``(rows, *shape)``, gives the model's inputs.
        postprocess: takes what the model gave, as arrays ``(rows, *shape)``, gives the column, or a struct's fields.
        on_null: ``"raise"``, ``"null"`` (a null prediction) or ``"pass"`` (the model gets the null).
        on_error: ``"raise"``.
        error_column: named here as in ``predict``; unused while ``on_error`` is ``"raise"``.
        flavor: ``"arrow"`` (Spark 4.1 on), ``"pandas"`` (every version), or ``"auto"``: Arrow where it is there.
        deterministic: ``False`` marks the UDF nondeterministic: Spark then runs the model once under a filter or a join on the
            prediction, and pushes no filter below it. ``True`` lets it copy the call, and allows ``sum(tag(x))`` in one expression.
        config: settings; ``overrides`` are single settings by name and beat it.
        **overrides: fields of ``InferenceConfig``.

    Returns:
        A function of columns (names or ``Column``) that gives a ``Column``.

    Raises:
        ConfigError, SchemaError, ModelLoadError: an argument or the model is wrong; no job was started.
    """
    del error_column
    settings = InferenceConfig.build(config, overrides)
    plan = plan_partition(
        model,
        inputs=inputs,
        outputs=(parse_returns(returns),),
        keep=(),
        key=None,
        functions=Functions(preprocess=preprocess, preprocess_batch=preprocess_batch, postprocess=postprocess),
        on_null=on_null,
        on_error=on_error,
        config=settings,
    )
    session = active_or_local_session()
    check_max_records(session, settings.max_records_per_batch, column_road=True)
    call = register_call(plan, "udf", open_channel(session, wanted=settings.metrics), session)
    task = PartitionTask(plan=plan, files=ship(plan.model, session), call=call.id, channel=call.channel)
    return PredictColumn(task, flavor=flavor, deterministic=deterministic)


_ASKED_BY_REGISTER = ("asNondeterministic", "deterministic", "evalType", "func", "returnType")


class PredictColumn:
    """A model as a function of columns; made by ``predict_udf``. ``spark.udf.register(name, column)`` gives it to SQL.

    Attributes:
        udf: Spark's own UDF.
    """

    def __init__(self, task: PartitionTask, *, flavor: Flavor, deterministic: bool) -> None:
        """Make the UDF in the form that this Spark runs best."""
        arrow = _wants_arrow(flavor)
        self._task = task
        self._columns = task.plan.columns
        self._flagged = not arrow
        self.udf = _make(task, arrow=arrow, deterministic=deterministic)
        # the plain form above can be registered for SQL; the flagged one below is what tells nulls from NaN through pandas
        self._called = self.udf if arrow else _make(replace(task, flagged=True), arrow=False, deterministic=deterministic)

    def __getattr__(self, name: str) -> Any:
        """Answer as Spark's own UDF to what ``spark.udf.register`` asks it, so that the model itself can be registered."""
        if name in _ASKED_BY_REGISTER:
            return getattr(self.udf, name)
        msg = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(msg)

    def __call__(self, *columns: Column | str) -> Column:
        """Apply the model.

        Args:
            *columns: as many as ``inputs`` has columns, in its order; none takes the columns that ``inputs`` names.

        Raises:
            ConfigError: another number of columns.
        """
        return self.over(columns)

    def over(self, columns: Sequence[Column | str], types: Sequence[DataType | None] = ()) -> Column:
        """Apply the model to columns whose types may be known, which spares the pandas form a search for nulls."""
        given: Sequence[Column | str] = columns or [quoted(name) for name in self._columns]
        if len(given) != len(self._columns):
            msg = f"{len(given)} column{' was' if len(given) == 1 else 's were'} given, expected {len(self._columns)}: {', '.join(self._columns)}"
            raise ConfigError(msg)
        taken = [F.col(column) if isinstance(column, str) else column for column in given]
        if self._flagged:
            known = types or [None] * len(taken)
            taken = [part for column, data_type in zip(taken, known, strict=True) for part in (column, *flags(column, data_type))]
        applied: Column = self._called(*taken)
        return applied

    def __repr__(self) -> str:
        """Show what it takes and gives."""
        return f"PredictColumn({self._task.plan.model.label}, inputs={list(self._columns)}, returns={self._task.plan.outputs[0].type})"


def quoted(name: str) -> str:
    """Quote a column name, so that dots and spaces in it are its own."""
    return f"`{name.replace('`', '``')}`"


def _wants_arrow(flavor: Flavor) -> bool:
    if flavor not in ("auto", "arrow", "pandas"):
        msg = f"flavor is {flavor!r}, expected 'auto', 'arrow' or 'pandas'"
        raise ConfigError(msg)
    there = SPARK_VERSION >= ARROW_UDF_SINCE
    if flavor == "arrow" and not there:
        msg = f"flavor='arrow' needs Spark 4.1 or newer, and this is {'.'.join(map(str, SPARK_VERSION))}: use flavor='pandas'"
        raise ConfigError(msg)
    return flavor != "pandas" and there


def _make(task: PartitionTask, *, arrow: bool, deterministic: bool) -> Any:
    plan = task.plan
    returned = plan.outputs[0].type if len(plan.outputs) == 1 else None
    result = to_spark(returned) if returned is not None else to_spark_struct(plan.output_schema)
    several = len(plan.columns) > 1 or task.flagged
    if arrow:
        made = F.arrow_udf(travelling(task.arrow_many if several else task.arrow_one), result)  # type: ignore[call-overload]
    else:
        made = F.pandas_udf(travelling(task.pandas_many if several else task.pandas_one), result)  # type: ignore[call-overload]
    return made if deterministic else made.asNondeterministic()


def to_spark_struct(schema: Any) -> Any:
    """Give the Spark struct of several outputs."""
    import pyarrow as pa  # noqa: PLC0415

    return to_spark(pa.struct(list(schema)))
