"""A DataFrame in, a DataFrame with predictions out: the choice of a road, and the driver's checks.

Runs on: driver.

Invariant: row for row, each prediction beside its own row; kept columns come back with their type, nullability and metadata; what
is wrong with columns, types, functions or the model is an error here, before a job starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it
from pyspark.sql.types import StructField, StructType

from sparkinfer.arguments import InputsArgument, check_columns, check_output_names, column_names, parse_outputs
from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError, SchemaError
from sparkinfer.optimizing import optimised
from sparkinfer.planning import Functions, check_input_types, plan_partition
from sparkinfer.sample_inputs import SAMPLE_ROWS
from sparkinfer.spark.arrival import travelling
from sparkinfer.spark.calls import register_call
from sparkinfer.spark.channels import open_channel
from sparkinfer.spark.files import is_source, source_of
from sparkinfer.spark.first_rows import first_rows
from sparkinfer.spark.plain_scan import files_of
from sparkinfer.spark.repeats import RepeatWatch
from sparkinfer.spark.scan import FileTable, check_carried
from sparkinfer.spark.session import SPARK_VERSION, has_cards, setting_is_on
from sparkinfer.spark.settings import check_max_records
from sparkinfer.spark.sharing import check_sharing
from sparkinfer.spark.ship import ship
from sparkinfer.spark.sources import open_source
from sparkinfer.spark.types import carried_by_arrow, is_vector, to_arrow, to_spark, width
from sparkinfer.spark.udf import PredictColumn, quoted
from sparkinfer.spark.worker import PartitionTask

if TYPE_CHECKING:
    from os import PathLike

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from sparkinfer.engine.contracts import Describable
    from sparkinfer.engine.partition import PartitionPlan
    from sparkinfer.spark.files import FileSource

__all__ = ["Planned", "Road", "by_map", "planned", "predict", "preview", "sent"]

Road = Literal["auto", "map", "column"]
_PROFILE_SINCE = (4, 0)


def predict(
    data: DataFrame | FileSource | str | PathLike[str],
    model: Describable,
    *,
    inputs: InputsArgument | None = None,
    outputs: Any = None,
    keep: Sequence[str] | None = None,
    preprocess: Callable[..., Any] | None = None,
    preprocess_batch: Callable[..., Any] | None = None,
    preprocess_on_device: Callable[..., Any] | None = None,
    postprocess: Callable[..., Any] | None = None,
    on_null: str = "raise",
    on_error: str = "raise",
    error_column: str = "error",
    key: str | Sequence[str] | None = None,
    road: Road = "auto",
    scan: str = "spark",
    resource_profile: Any = None,
    config: InferenceConfig | None = None,
    **overrides: Any,
) -> DataFrame:
    """Score a DataFrame; lazy, as every transformation.

    Args:
        data: a DataFrame, batch or streaming, classic or Connect; or files: a path, a glob, a folder, a URL, or what ``read_files`` gives. Files
            are read by the workers themselves, in the active session, or in a local one that is started.
        model: ``TorchModel``, ``TensorFlowModel``, ``MlflowModel`` or ``PythonModel``.
        inputs: a column (the model and ``preprocess`` get one array, one value), a list of columns (positional), or
            ``{model input: column}`` (by name); a column may be ``(column, TensorSpec)``. ``None`` takes the columns that have the names
            of the model's own inputs, where it has a signature (MLflow's, or that of a SavedModel, a Keras model or a .pt2 archive).
        outputs: DDL of the columns that are added, such as ``"label string, score float"``. ``None`` takes the names and types that the
            model's signature declares; an output without a name becomes ``prediction``.
        keep: the columns that come back beside them, with type, nullability and metadata; ``None`` keeps all.
        preprocess: takes one row's values, gives the model's input(s) for it; runs in the loader workers.
        preprocess_batch: takes the columns of a batch, each ``(rows, *shape)``, gives the model's inputs.
        preprocess_on_device: takes the inputs once they are on the model's device, as tensors ``(rows, *shape)`` of PyTorch or TensorFlow, gives the
            model's inputs: what makes data larger, such as ``x.float() / 255``, belongs there, behind the copy.
        postprocess: takes what the model gave, as arrays ``(rows, *shape)``, gives the output columns: an array, a tuple in order, or a
            dict by name.
        on_null: ``"raise"``: a null in an input column is an error that names the place; ``"null"``: that row's predictions are null;
            ``"pass"``: the model gets it (``None`` in text, NaN in floats).
        on_error: ``"raise"``: the job fails with column, partition, row and first cause. ``"null"``: a bad row's outputs are null and
            ``error_column`` says why; its neighbours keep their answers. ``max_errors`` and ``max_error_fraction`` end a job that goes wrong.
        error_column: the name of that column, ``struct<stage string, type string, message string>``, null where the row is good; it comes
            after the outputs, only with ``on_error="null"``.
        key: columns whose values an error names beside the row.
        road: ``"map"``: ``mapInArrow``, every kept column travels to Python and back; ``"column"``: a UDF, kept columns stay in the JVM and
            Spark prunes what nobody selects; ``"auto"``: the map road when what is kept is little beside the inputs.
        scan: ``"spark"``: Spark's own scan brings a DataFrame's rows; ``"direct"``: the workers read the files of a DataFrame that is nothing
            but Parquet or binary files, and the JVM carries no input. Files that are given as such are always read so.
        resource_profile: a ``pyspark.resource.ResourceProfile`` for the stage (Spark 4.0 on, map road).
        config: settings; ``overrides`` are single settings by name and beat it.
        **overrides: fields of ``InferenceConfig``.

    Returns:
        ``data``'s kept columns, then the outputs (nullable), then the error column, if there is one.

    Raises:
        ConfigError, SchemaError, ModelLoadError: an argument, a column or the model is wrong; no job was started. What goes wrong in
            a row fails the job, with column, partition and row in the text.
    """
    settings = InferenceConfig.build(config, overrides)
    made = planned(
        data,
        model,
        inputs=inputs,
        outputs=outputs,
        keep=keep,
        preprocess=preprocess,
        preprocess_batch=preprocess_batch,
        preprocess_on_device=preprocess_on_device,
        postprocess=postprocess,
        on_null=on_null,
        on_error=on_error,
        error_column=error_column,
        key=key,
        road=road,
        scan=scan,
        resource_profile=resource_profile,
        config=settings,
    )
    session = made.source.sparkSession
    if made.road != "direct":
        check_max_records(session, settings.max_records_per_batch, column_road=made.road == "column")
    heard = RepeatWatch(session)
    call = register_call(made.plan, made.road, open_channel(session, wanted=settings.metrics, heard=heard), session, made.source)
    task = PartitionTask(
        plan=made.plan, files=ship(made.plan.model, session), call=call.id, channel=call.channel, slots=check_sharing(session, settings)
    )
    if isinstance(made.source, FileTable):
        return _by_files(made.source, task, resource_profile)
    return by_map(made.source, task, resource_profile) if made.road == "map" else _by_column(made.source, task)


@dataclass(frozen=True)
class Planned:
    """What ``predict`` would do.

    Attributes:
        source: what is scored.
        plan: the partitions' plan.
        road: ``map``, ``column`` or ``direct``.
    """

    source: DataFrame | FileTable
    plan: PartitionPlan
    road: str


def planned(
    data: DataFrame | FileSource | str | PathLike[str],
    model: Describable,
    *,
    inputs: InputsArgument | None = None,
    outputs: Any = None,
    keep: Sequence[str] | None = None,
    preprocess: Callable[..., Any] | None = None,
    preprocess_batch: Callable[..., Any] | None = None,
    preprocess_on_device: Callable[..., Any] | None = None,
    postprocess: Callable[..., Any] | None = None,
    on_null: str = "raise",
    on_error: str = "raise",
    error_column: str = "error",
    key: str | Sequence[str] | None = None,
    road: str = "auto",
    scan: str = "spark",
    resource_profile: Any = None,
    config: InferenceConfig,
) -> Planned:
    """Check ``predict``'s arguments, and freeze them; the arguments and the errors are its own."""
    source = _source(data, scan)
    _check_schema(source)
    declared = None if outputs is None else parse_outputs(outputs)
    kept = source.columns if keep is None else column_names(keep, "keep")
    plan = plan_partition(
        model,
        inputs=inputs,
        outputs=declared,
        keep=kept,
        key=key,
        functions=Functions(
            preprocess=preprocess,
            preprocess_batch=preprocess_batch,
            preprocess_on_device=preprocess_on_device,
            postprocess=postprocess,
        ),
        on_null=on_null,
        on_error=on_error,
        error_column=error_column,
        config=config,
        there=source.columns,
    )
    _check_data(source, plan)
    taken = _choose_road(road, source, plan, resource_profile)
    session = source.sparkSession
    plan = optimised(plan, model, lambda: _first_rows(source, plan), cards=lambda: resource_profile is not None or has_cards(session))
    return Planned(source, plan, taken)


def preview(data: DataFrame | FileSource | str | PathLike[str], model: Describable, n: int = 10, **arguments: Any) -> pd.DataFrame:
    """Score the first few rows, exactly ``n`` of them, in the workers, without scoring the table.

    ``predict(...).limit(n)`` would score whole chunks, and cost the Python worker with its loaded model; here the limit stands before the
    model.

    Args:
        data: as in ``predict``.
        model: as in ``predict``.
        n: rows, at least 1.
        **arguments: ``predict``'s keywords.

    Returns:
        A pandas DataFrame of at most ``n`` rows: the kept columns, then the outputs.

    Raises:
        ConfigError: ``n`` is below 1; and what ``predict`` raises.
    """
    if n < 1:
        msg = f"n is {n}, expected at least 1 row"
        raise ConfigError(msg)
    source: Any = _source(data, arguments.pop("scan", "spark"))
    if isinstance(source, FileTable):
        source = _only_named(source, arguments).to_dataframe()
    return predict(source.limit(n), model, **arguments).toPandas()


def _only_named(table: FileTable, arguments: dict[str, Any]) -> FileTable:
    """Leave out the columns of files that a call does not name, where it names them all."""
    inputs, keep, key = arguments.get("inputs"), arguments.get("keep"), arguments.get("key", ())
    if inputs is None or keep is None:
        return table
    one = isinstance(inputs, (str, tuple))
    columns = [inputs] if one else list(inputs.values() if isinstance(inputs, dict) else inputs)
    names = [column[0] if isinstance(column, tuple) else column for column in columns]
    named = {*names, *column_names(keep, "keep"), *column_names(key, "key")}
    check_columns(sorted(named), table.columns, "inputs, keep or key")
    return replace(table, source=replace(table.source, columns=tuple(name for name in table.columns if name in named)))


def _source(data: Any, scan: str) -> DataFrame | FileTable:
    """Tell a DataFrame from files, and open the files."""
    if scan not in ("spark", "direct"):
        msg = f"scan is {scan!r}, expected 'spark' or 'direct'"
        raise ConfigError(msg)
    if is_source(data):
        return open_source(source_of(data))
    if not hasattr(data, "mapInArrow"):
        msg = (
            f"data is {_shown(data)}, expected a Spark DataFrame, a path, or what si.read_files gives: score a pandas DataFrame or an Arrow table with "
            "predict_local"
        )
        raise ConfigError(msg)
    frame: DataFrame = data
    return frame if scan == "spark" else files_of(frame)


def _check_schema(data: DataFrame | FileTable) -> None:
    """Refuse what Python cannot name: before Spark 4 a frame with a calendar interval raised for ``columns`` (seen in 3.5)."""
    try:
        data.schema  # noqa: B018 - it is fetched here, and kept by the frame
    except ValueError as error:
        msg = (
            f"pyspark {'.'.join(map(str, SPARK_VERSION))} cannot tell the columns of this DataFrame, since one has a type that Python does not know "
            f"({error}): drop or cast that column before"
        )
        raise SchemaError(msg) from error


def _shown(data: Any) -> str:
    return repr(data) if isinstance(data, str) else f"a {type(data).__module__.partition('.')[0]} {type(data).__name__}"


def _check_data(data: DataFrame | FileTable, plan: PartitionPlan) -> None:
    check_columns(plan.inputs, data.columns, "inputs")
    check_columns(plan.keep, data.columns, "keep")
    check_columns(plan.key, data.columns, "key")
    _check_ambiguous(data, plan)
    for name in plan.key:
        kind = data.schema[name].dataType
        if not carried_by_arrow(kind):
            msg = f"key= names the column {name!r}, whose type {kind.simpleString()} cannot travel to the workers: name another, or cast it"
            raise SchemaError(msg)
    check_output_names(plan.outputs, plan.error_column, plan.keep)
    check_input_types(plan, {name: to_arrow(data.schema[name].dataType, name) for name in plan.inputs})


def _check_ambiguous(data: DataFrame | FileTable, plan: PartitionPlan) -> None:
    """Refuse names that Spark cannot tell apart; by default it does not tell upper from lower case."""
    if setting_is_on(data.sparkSession, "spark.sql.caseSensitive"):
        return
    spelt: dict[str, list[str]] = {}
    for name in data.columns:
        spelt.setdefault(name.lower(), []).append(name)
    for name in (*plan.keep, *plan.columns):
        same = spelt[name.lower()]
        if len(same) > 1:
            msg = f"the column {name!r} is there {len(same)} times ({', '.join(same)}: Spark does not tell upper from lower case): rename or drop one"
            raise SchemaError(msg)


def _choose_road(road: str, data: DataFrame | FileTable, plan: PartitionPlan, resource_profile: Any) -> str:
    if road not in ("auto", "map", "column"):
        msg = f"road is {road!r}, expected 'auto', 'map' or 'column'"
        raise ConfigError(msg)
    if resource_profile is not None and (road == "column" or SPARK_VERSION < _PROFILE_SINCE):
        msg = "resource_profile needs road='map' and Spark 4.0 or newer: a UDF column runs in its query's own stage"
        raise ConfigError(msg)
    if isinstance(data, FileTable):
        if road == "column":
            msg = "road is 'column', but the workers read the files themselves, and there is no column in the JVM: leave road out, or use spark.read"
            raise ConfigError(msg)
        for name in plan.keep:
            check_carried(data.schema[name])
        return "direct"
    refused = [name for name in plan.keep if not carried_by_arrow(data.schema[name].dataType)]
    wants_map = road == "map" or resource_profile is not None
    if refused and wants_map:
        kind = data.schema[refused[0]].dataType.simpleString()
        msg = (
            f"the kept column {refused[0]!r} has the type {kind}, which cannot travel by Arrow: leave it out with keep=[...], or take "
            "road='column', where kept columns stay in the JVM"
        )
        raise SchemaError(msg)
    if wants_map or road == "column":
        return "map" if wants_map else "column"
    kept = sum(width(data.schema[name].dataType) for name in plan.keep)
    sent = sum(width(data.schema[name].dataType) for name in plan.inputs)
    return "map" if not refused and 4 * kept <= sent else "column"


def _by_files(table: FileTable, task: PartitionTask, resource_profile: Any) -> DataFrame:
    plan = task.plan
    needed = tuple(dict.fromkeys((*plan.keep, *plan.columns)))
    work = table.work(needed, batch_size=plan.config.batch_rows, most_rows=plan.config.max_records_per_batch)
    schema = _kept_and_added(table, plan)
    return table.frame(replace(task, work=work).direct_arrow, work, schema, resource_profile)


def _kept_and_added(data: DataFrame | FileTable, plan: PartitionPlan) -> StructType:
    kept = [data.schema[name] for name in plan.keep]
    return StructType([*kept, *(StructField(field.name, to_spark(field.type)) for field in plan.output_schema)])


def by_map(data: DataFrame, task: PartitionTask, resource_profile: Any) -> DataFrame:
    """Have a task done by ``mapInArrow``: what the plan needs goes to Python, kept columns and outputs come back."""
    plan = task.plan
    needed = tuple(dict.fromkeys((*plan.keep, *plan.columns)))
    source = sent(data, plan)
    schema = _kept_and_added(data, plan)
    extra = {} if resource_profile is None else {"profile": resource_profile}
    return source.mapInArrow(travelling(replace(task, names=needed).map_arrow), schema, **extra)


def sent(data: DataFrame, plan: PartitionPlan) -> DataFrame:
    """Give what goes to Python: the kept columns and those of a batch, each once, called ``c0``, ``c1``, ..."""
    needed = dict.fromkeys((*plan.keep, *plan.columns))
    columns = (F.col(quoted(name)) if name in plan.keep else _sent(data, name, plan) for name in needed)
    return data.select(*(column.alias(f"c{position}") for position, column in enumerate(columns)))


def _by_column(data: DataFrame, task: PartitionTask) -> DataFrame:
    plan = task.plan
    made = PredictColumn(replace(task, plan=replace(plan, keep=())), flavor="auto", deterministic=False)
    result = _free_name("prediction", data.columns)
    columns = [_sent(data, name, plan) for name in plan.columns]
    scored = data.withColumn(result, made.over(columns, [data.schema[name].dataType for name in plan.columns]))
    kept = [F.col(quoted(name)) for name in plan.keep]
    added = plan.output_schema.names
    if len(added) == 1:
        return scored.select(*kept, F.col(result).alias(added[0]))
    return scored.select(*kept, *(F.col(result).getField(name).alias(name) for name in added))


def _sent(data: DataFrame, name: str, plan: PartitionPlan) -> Column:
    """Give a column as it travels; before Spark 4 an ML vector goes as an array, since Arrow there knows no user-defined type."""
    column = F.col(quoted(name))
    if name in plan.inputs and is_vector(data.schema[name].dataType) and SPARK_VERSION < (4, 0):
        from pyspark.ml.functions import vector_to_array  # noqa: PLC0415 - needs a classic session's JVM when imported early

        return F.when(column.isNotNull(), vector_to_array(column))
    return column


def _first_rows(data: DataFrame | FileTable, plan: PartitionPlan) -> pa.RecordBatch:
    if isinstance(data, FileTable):
        data = replace(data, source=replace(data.source, columns=plan.columns)).to_dataframe()
    return first_rows(data, [_sent(data, name, plan) for name in plan.columns], plan.columns, SAMPLE_ROWS)


def _free_name(wanted: str, taken: Sequence[str]) -> str:
    name = f"_sparkinfer_{wanted}"
    while name in taken:
        name = f"{name}_"
    return name
