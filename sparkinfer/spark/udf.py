"""The column road: the engine as an iterator UDF.

Runs on: driver.

Invariant: what comes back has exactly the type ``returns``; by default Spark runs the model once for a row, whatever is written
above the column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

from sparkinfer.arguments import InputsArgument, parse_returns
from sparkinfer.config import InferenceConfig
from sparkinfer.defaults import one_column
from sparkinfer.engine.encode import OutputColumn
from sparkinfer.engine.isolate import ERROR_TYPE
from sparkinfer.exceptions import ConfigError
from sparkinfer.optimizing import optimised
from sparkinfer.planning import Functions, plan_partition
from sparkinfer.schema import to_ddl
from sparkinfer.spark.arrival import travelling
from sparkinfer.spark.calls import register_call
from sparkinfer.spark.channels import open_channel
from sparkinfer.spark.pandas_form import flags
from sparkinfer.spark.session import SPARK_VERSION, active_or_local_session, has_cards
from sparkinfer.spark.settings import check_max_records
from sparkinfer.spark.sharing import check_sharing
from sparkinfer.spark.ship import ship
from sparkinfer.spark.types import to_spark
from sparkinfer.spark.worker import PartitionTask

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from sparkinfer.engine.contracts import Describable
    from sparkinfer.engine.partition import PartitionPlan

__all__ = ["Flavor", "PredictColumn", "predict_udf"]

Flavor = Literal["auto", "arrow", "pandas"]
ARROW_UDF_SINCE = (4, 1)


def predict_udf(
    model: Describable,
    *,
    inputs: InputsArgument | None = None,
    returns: Any = None,
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
    """Wrap a model as a column function.

    Args:
        model: ``TorchModel``, ``TensorFlowModel``, ``MlflowModel`` or ``PythonModel``.
        inputs: a column, a list of columns, or ``{model input: column}``; a column may be ``(column, TensorSpec)``. The call takes as many
            columns as are named here, in this order; the names are those of messages, and what a call without arguments takes. ``None``
            takes the names and the order of the model's own inputs, where it has a signature.
        returns: the type of the column, such as ``"array<float>"`` or ``"struct<label:string,score:float>"``. ``None`` takes what the
            model's signature declares; several outputs become a struct.
        preprocess: takes one row's values, gives the model's input(s) for it.
        preprocess_batch: takes the columns of a batch, each ``(rows, *shape)``, gives the model's inputs.
        preprocess_on_device: takes the inputs once they are on the model's device, as tensors ``(rows, *shape)`` of PyTorch or TensorFlow, gives the
            model's inputs: what makes data larger, such as ``x.float() / 255``, belongs there, behind the copy.
        postprocess: takes what the model gave, as arrays ``(rows, *shape)``, gives the column, or a struct's fields.
        on_null: ``"raise"``, ``"null"`` (a null prediction) or ``"pass"`` (the model gets the null).
        on_error: ``"raise"``: the job fails with column, partition, row and first cause. ``"null"``: a bad row's prediction is null; needs a
            ``returns`` whose last field is the error column, such as ``"struct<label:string,error:struct<stage:string,type:string,
            message:string>>"``.
        error_column: the name of that field.
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
    plan = plan_partition(
        model,
        inputs=inputs,
        outputs=declared_outputs(returns, on_error, error_column),
        keep=(),
        key=None,
        functions=Functions(
            preprocess=preprocess,
            preprocess_batch=preprocess_batch,
            preprocess_on_device=preprocess_on_device,
            postprocess=postprocess,
        ),
        on_null=on_null,
        on_error=on_error,
        error_column=error_column,
        config=InferenceConfig.build(config, overrides),
    )
    if returns is None:
        plan = replace(plan, outputs=(one_column(plan.outputs),))
    session = active_or_local_session()
    return column_for(session, optimised(plan, model, None, cards=lambda: has_cards(session)), flavor=flavor, deterministic=deterministic)


def column_for(session: Any, plan: PartitionPlan, *, flavor: Flavor, deterministic: bool, called: str = "") -> PredictColumn:
    """Bring the model to the session's workers, and make the column; ``called`` is its name in SQL."""
    check_max_records(session, plan.config.max_records_per_batch, column_road=True)
    call = register_call(plan, "udf", open_channel(session, wanted=plan.config.metrics), session)
    task = PartitionTask(
        plan=plan,
        files=ship(plan.model, session),
        call=call.id,
        channel=call.channel,
        called=called,
        slots=check_sharing(session, plan.config),
    )
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
        self._returns = _returned(task.plan)
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
        return f"PredictColumn({self._task.plan.model.label}, inputs={list(self._columns)}, returns={to_ddl(self._returns)})"

    def _repr_html_(self) -> str:
        """Show it at the end of a notebook's cell."""
        plan = self._task.plan
        told = {
            "model": plan.model.label,
            "columns": ", ".join(self._columns),
            "returns": to_ddl(self._returns),
            "batch size": plan.config.batch_size,
            "nulls": plan.on_null,
            "in SQL": self._task.called or None,
        }
        rows = (
            f"<tr><th style='text-align: left'>{name}</th><td>{escape(str(value))}</td></tr>"
            for name, value in told.items()
            if value is not None
        )
        return f"<table>{''.join(rows)}</table>"


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


def _returned(plan: PartitionPlan) -> pa.DataType:
    """Give the column's type: the one output's, or a struct of several."""
    schema = plan.output_schema
    return schema.field(0).type if len(schema) == 1 else pa.struct(list(schema))


def _make(task: PartitionTask, *, arrow: bool, deterministic: bool) -> Any:
    plan = task.plan
    result = to_spark(_returned(plan))
    several = len(plan.columns) > 1 or task.flagged
    if arrow:
        made = F.arrow_udf(travelling(task.arrow_many if several else task.arrow_one), result)  # type: ignore[call-overload]
    else:
        made = F.pandas_udf(travelling(task.pandas_many if several else task.pandas_one), result)  # type: ignore[call-overload]
    return made if deterministic else made.asNondeterministic()


def declared_outputs(returns: Any, on_error: str, error_column: str) -> tuple[OutputColumn, ...] | None:
    """Read what ``returns`` says of the model's outputs; ``None`` leaves it to the model's own signature.

    With ``on_error="null"`` they are the fields of the struct but for the last, which says why a row has none.

    Raises:
        ConfigError: there is no place for the reasons.
        SchemaError: the type is wrong.
    """
    if on_error != "null":
        return None if returns is None else (parse_returns(returns),)
    returned = parse_returns("string" if returns is None else returns)
    fields = [returned.type.field(i) for i in range(returned.type.num_fields)] if pa.types.is_struct(returned.type) else []
    if len(fields) < 2 or fields[-1].name != error_column or fields[-1].type != ERROR_TYPE:
        told = "not given" if returns is None else repr(to_ddl(returned.type))
        inner = (
            to_ddl(returned.type)[len("struct<") : -1] if fields else f"prediction:{'...' if returns is None else to_ddl(returned.type)}"
        )
        msg = (
            f"on_error='null' needs a place for the reasons, but returns is {told}: make its last field the error column, "
            f"returns='struct<{inner},{error_column}:{to_ddl(ERROR_TYPE)}>', or use predict, which adds a column for them"
        )
        raise ConfigError(msg)
    return tuple(OutputColumn(field.name, field.type) for field in fields[:-1])
