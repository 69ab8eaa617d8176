"""The same loop in this process, without Spark: for tests, debuggers and one slow partition.

Runs on: driver, or any Python process.

Invariant: the loop is the very one that the workers run.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pandas as pd
import pyarrow as pa

from sparkinfer.arguments import InputsArgument, check_columns, check_output_names, column_names, parse_outputs
from sparkinfer.artifacts import local_files
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.partition import PartitionPlan, run_partition
from sparkinfer.engine.profiling import Profiling, first_rows_of
from sparkinfer.engine.recorder import TracedRecorder
from sparkinfer.engine.stepping import STAGES, Stepping, Stopping
from sparkinfer.exceptions import ConfigError, SchemaError, remark
from sparkinfer.metrics import PartitionMetrics
from sparkinfer.optimizing import optimised
from sparkinfer.planning import Functions, check_input_types, plan_partition
from sparkinfer.sample_inputs import SAMPLE_ROWS

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import Describable
    from sparkinfer.profiles import ProfilePlan

__all__ = ["measure_local", "open_local", "planned", "predict_local"]

_CHUNK_ROWS = 10_000  # what Spark's own default sends


def predict_local(
    data: pd.DataFrame | pa.Table | Iterable[pa.RecordBatch],
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
    stop_at: str | tuple[str, int] | None = None,
    config: InferenceConfig | None = None,
    **overrides: Any,
) -> Any:
    """Score rows in this process, by the loop that Spark's workers run.

    Args:
        data: a pandas DataFrame, an Arrow table, or record batches of one schema.
        model: ``TorchModel``, ``TensorFlowModel``, ``MlflowModel`` or ``PythonModel``.
        inputs: a column, a list of columns, or ``{model input: column}``; a column may be ``(column, TensorSpec)``. ``None`` takes the
            columns that have the names of the model's own inputs, where it has a signature.
        outputs: DDL of the columns that are added, such as ``"label string, score float"``. ``None`` takes what the model's signature
            declares.
        keep: the columns that come back beside them; ``None`` keeps all.
        preprocess: takes one row's values, gives the model's input(s) for it.
        preprocess_batch: takes the columns of a batch, each ``(rows, *shape)``, gives the model's inputs.
        preprocess_on_device: takes the inputs once they are on the model's device, as tensors ``(rows, *shape)`` of PyTorch or TensorFlow, gives the
            model's inputs: what makes data larger, such as ``x.float() / 255``, belongs there, behind the copy.
        postprocess: takes what the model gave, as arrays ``(rows, *shape)``, gives the output columns.
        on_null: ``"raise"``, ``"null"`` (a null prediction) or ``"pass"`` (the model gets the null).
        on_error: ``"raise"``: the first bad row is an error that names its place; ``"null"``: its outputs are null, and ``error_column``
            says why.
        error_column: the name of that column, ``struct<stage, type, message>``, null where the row is good.
        key: columns whose values an error names beside the row.
        stop_at: ``"preprocess"``, ``"predict"`` or ``"postprocess"``: stop in the debugger (``breakpoint()``) before that step of the first batch;
            ``("predict", 1234)``: of the batch that holds this row, counted from 0, and a ``preprocess`` of single rows before this very row. A
            step into what is called there leads to your function. Nothing then runs ahead, and nothing beside. ``si.partition_of`` fetches a
            partition of a DataFrame.
        config: settings; ``overrides`` are single settings by name and beat it.
        **overrides: fields of ``InferenceConfig``.

    Returns:
        A pandas DataFrame, an Arrow table, or an iterator of record batches: what ``data`` is. pandas shows a null in a float column as
        NaN; integers, booleans and text beside a null stay what they are, in an object column.

    Raises:
        ConfigError, SchemaError, ModelLoadError: before any row is read.
        PreprocessError, PredictError, OutputError: at the first bad row or batch, with its place.

    Warns:
        SparkInferWarning: ``stop_at`` was never reached.

    Example:
        >>> import pandas as pd, sparkinfer as si
        >>> double = si.PythonModel(lambda: lambda x: 2 * x)
        >>> si.predict_local(pd.DataFrame({"x": [1.0, 2.0]}), double, inputs="x", outputs="y double")["y"].tolist()
        [2.0, 4.0]
    """
    schema, batches = open_local(data)
    seen: list[pa.RecordBatch] = []
    settings = InferenceConfig.build(config, overrides)
    stepping = None
    if stop_at is not None:
        stepping = _stepping(stop_at, {"preprocess": preprocess or preprocess_batch, "postprocess": postprocess})
        settings = replace(settings, num_workers=0, prefetch_batches=0)
        preprocess = preprocess and Stopping(preprocess, "preprocess", one_row=True)
        preprocess_batch = preprocess_batch and Stopping(preprocess_batch, "preprocess")
        postprocess = postprocess and Stopping(postprocess, "postprocess")
    plan = planned(
        model,
        schema,
        lambda plan: _first_rows(plan, schema, batches, seen),
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
        config=settings,
    )
    run = partial(run_partition, plan, chain(seen, batches), files=lambda: local_files(plan.model), cpus=os.cpu_count() or 1)
    return _close(data, schema, plan, run() if stepping is None else _stepped(run, stepping))


def _stepping(stop_at: Any, functions: Mapping[str, Any]) -> Stepping:
    """Check where to stop.

    Raises:
        ConfigError: there is no such stage, or it has no function to stop before.
    """
    stage, row = (stop_at, 0) if isinstance(stop_at, str) else stop_at
    if stage not in STAGES or not isinstance(row, int) or row < 0:
        msg = f"stop_at is {stop_at!r}, expected one of {', '.join(STAGES)}, or a pair of it and a row's number from 0, as in ('predict', 1234)"
        raise ConfigError(msg)
    if functions.get(stage, stage) is None:
        msg = f"stop_at is {stop_at!r}, but no {stage} is given: stop at 'predict', or give the function"
        raise ConfigError(msg)
    if hasattr(functions.get(stage), "get_concrete_function"):
        msg = f"stop_at is {stop_at!r}, but that {stage} is a tf.function, which runs as a graph: give the Python function that it was made of"
        raise ConfigError(msg)
    return Stepping(stage, row)


def _stepped(run: Callable[..., Iterator[pa.RecordBatch]], stepping: Stepping) -> Iterator[pa.RecordBatch]:
    with stepping.followed():
        yield from run(recorder=stepping, profiling=stepping)
    if not stepping.stopped:
        remark(f"stop_at=({stepping.stage!r}, {stepping.row}) was not reached: the model saw no row of that number, counted from 0")


def measure_local(
    data: Any, model: Describable, watched: ProfilePlan, *, config: InferenceConfig | None = None, **arguments: Any
) -> PartitionMetrics:
    """Score rows in this process for the figures alone, as one partition that is watched.

    Args:
        data: as in ``predict_local``.
        model: as in ``predict_local``.
        watched: which batches.
        config: as in ``predict_local``.
        **arguments: ``predict_local``'s keywords.
    """
    names = InferenceConfig.__dataclass_fields__
    overrides = {name: arguments.pop(name) for name in list(arguments) if name in names}
    schema, batches = open_local(data)
    seen: list[pa.RecordBatch] = []
    settings = InferenceConfig.build(config, overrides)
    plan = planned(model, schema, lambda plan: _first_rows(plan, schema, batches, seen), config=settings, **arguments)
    chunks: Iterator[pa.RecordBatch] = chain(seen, batches)
    if watched.bounded is not None:
        chunks = first_rows_of(chunks, watched.bounded * plan.config.batch_rows)
    recorder = TracedRecorder()
    profiling = Profiling(watched, plan.model.backend, plan.model.label, f"{uuid4().hex[:12]}/p0-t0")
    cpus = os.cpu_count() or 1
    for _ in run_partition(
        plan, chunks, files=lambda: local_files(plan.model), partition=0, cpus=cpus, recorder=recorder, profiling=profiling
    ):
        pass
    return PartitionMetrics(
        call="predict_local",
        execution=None,
        partition=0,
        task_attempt=0,
        host=socket.gethostname(),
        pid=os.getpid(),
        **recorder.figures(),
    )


def planned(
    model: Describable,
    schema: pa.Schema,
    first_rows: Callable[[PartitionPlan], pa.RecordBatch],
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
    config: InferenceConfig,
) -> PartitionPlan:
    """Check ``predict_local``'s arguments against the data's columns, and freeze them; the arguments and the errors are its own.

    ``first_rows`` gives the plan's columns of the data's first rows, and is called only where ``optimize=`` needs them.
    """
    declared = None if outputs is None else parse_outputs(outputs)
    kept = schema.names if keep is None else column_names(keep, "keep")
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
        there=schema.names,
    )
    check_columns(plan.inputs, schema.names, "inputs")
    check_columns(kept, schema.names, "keep")
    check_columns(plan.key, schema.names, "key")
    check_output_names(plan.outputs, plan.error_column, kept)
    check_input_types(plan, {name: schema.field(name).type for name in plan.inputs})
    return optimised(plan, model, lambda: first_rows(plan))


def _first_rows(plan: PartitionPlan, schema: pa.Schema, batches: Iterator[pa.RecordBatch], seen: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Take batches up to the first with rows, which is kept in ``seen`` with those before."""
    for batch in batches:
        seen.append(batch)
        if batch.num_rows:
            return batch.select(list(plan.columns)).slice(0, SAMPLE_ROWS)
    return pa.RecordBatch.from_pylist([], schema=schema).select(list(plan.columns))


def open_local(data: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Give the schema and the record batches of what ``predict_local`` takes.

    Raises:
        ConfigError, SchemaError: it takes no such thing.
    """
    if isinstance(data, pd.DataFrame):
        names = [str(name) for name in data.columns]
        data = pa.Table.from_arrays([_arrow(data.iloc[:, position], name) for position, name in enumerate(names)], names=names)
    if isinstance(data, pa.Table):
        return data.schema, iter(data.to_batches(max_chunksize=_CHUNK_ROWS))
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, iter(data)
    if hasattr(data, "mapInArrow"):
        msg = "data is a Spark DataFrame: predict_local runs without Spark; use predict, or hand over df.toPandas()"
        raise ConfigError(msg)
    given = [data] if isinstance(data, pa.RecordBatch) else data
    batches = iter(given) if isinstance(given, Iterable) else iter(())
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        came = "nothing" if first is None else type(first).__name__
        msg = f"data is {type(data).__name__} and gives {came}, expected a pandas DataFrame, an Arrow table, or at least one record batch"
        raise SchemaError(msg)
    return first.schema, _again(first, batches)


def _again(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _arrow(series: pd.Series[Any], name: str) -> pa.Array:
    """Keep NaN apart from null: in a NumPy float column pandas means NaN, and so it does inside arrays; elsewhere a missing value is a null."""
    try:
        if not isinstance(series.dtype, np.dtype):
            made = pa.array(series, from_pandas=True)
        elif series.dtype.kind == "O":
            made = pa.array(series.where(series.notna(), None).to_numpy(), from_pandas=False)
        else:
            made = pa.array(series.to_numpy(), from_pandas=series.dtype.kind in "mM")
    except (pa.ArrowException, TypeError, ValueError) as error:
        msg = f"the column {name!r} cannot be turned into Arrow ({error}): give all its values one type"
        raise SchemaError(msg) from error
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def _close(data: Any, schema: pa.Schema, plan: PartitionPlan, scored: Iterator[pa.RecordBatch]) -> Any:
    if not isinstance(data, (pd.DataFrame, pa.Table)):
        return scored
    out = pa.schema([*(schema.field(name) for name in plan.keep), *plan.output_schema])
    table = pa.Table.from_batches(list(scored), schema=out)
    if isinstance(data, pa.Table):
        return table
    position = {str(name): number for number, name in enumerate(data.columns)}
    kept = data.iloc[:, [position[name] for name in plan.keep]]  # a kept column comes back as it was, dtype and all
    added = table.select(plan.output_schema.names).to_pandas(integer_object_nulls=True)  # no integer becomes a float
    added.index = data.index
    return pd.concat([kept, added], axis=1)
