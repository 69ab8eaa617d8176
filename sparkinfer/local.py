"""The same loop in this process, without Spark: for tests, debuggers and one slow partition.

Runs on: driver, or any Python process.

Invariant: the loop is the very one that the workers run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sparkinfer.arguments import InputsArgument, check_columns, check_output_names, column_names, parse_outputs
from sparkinfer.artifacts import local_files
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.partition import PartitionPlan, run_partition
from sparkinfer.exceptions import ConfigError, SchemaError
from sparkinfer.optimizing import optimised
from sparkinfer.planning import Functions, check_input_types, plan_partition
from sparkinfer.sample_inputs import SAMPLE_ROWS

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import Describable

__all__ = ["predict_local"]

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
    postprocess: Callable[..., Any] | None = None,
    on_null: str = "raise",
    on_error: str = "raise",
    error_column: str = "error",
    key: str | Sequence[str] | None = None,
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
        postprocess: takes what the model gave, as arrays ``(rows, *shape)``, gives the output columns.
        on_null: ``"raise"``, ``"null"`` (a null prediction) or ``"pass"`` (the model gets the null).
        on_error: ``"raise"``: the first bad row is an error that names its place; ``"null"``: its outputs are null, and ``error_column``
            says why.
        error_column: the name of that column, ``struct<stage, type, message>``, null where the row is good.
        key: columns whose values an error names beside the row.
        config: settings; ``overrides`` are single settings by name and beat it.
        **overrides: fields of ``InferenceConfig``.

    Returns:
        A pandas DataFrame, an Arrow table, or an iterator of record batches: what ``data`` is. pandas shows a null in a float column as
        NaN; integers, booleans and text beside a null stay what they are, in an object column.

    Raises:
        ConfigError, SchemaError, ModelLoadError: before any row is read.
        PreprocessError, PredictError, OutputError: at the first bad row or batch, with its place.

    Example:
        >>> import pandas as pd, sparkinfer as si
        >>> double = si.PythonModel(lambda: lambda x: 2 * x)
        >>> si.predict_local(pd.DataFrame({"x": [1.0, 2.0]}), double, inputs="x", outputs="y double")["y"].tolist()
        [2.0, 4.0]
    """
    settings = InferenceConfig.build(config, overrides)
    schema, batches = _open(data)
    declared = None if outputs is None else parse_outputs(outputs)
    kept = schema.names if keep is None else column_names(keep, "keep")
    plan = plan_partition(
        model,
        inputs=inputs,
        outputs=declared,
        keep=kept,
        key=key,
        functions=Functions(preprocess=preprocess, preprocess_batch=preprocess_batch, postprocess=postprocess),
        on_null=on_null,
        on_error=on_error,
        error_column=error_column,
        config=settings,
        there=schema.names,
    )
    check_columns(plan.inputs, schema.names, "inputs")
    check_columns(kept, schema.names, "keep")
    check_columns(plan.key, schema.names, "key")
    check_output_names(plan.outputs, plan.error_column, kept)
    check_input_types(plan, {name: schema.field(name).type for name in plan.inputs})
    seen: list[pa.RecordBatch] = []
    plan = optimised(plan, model, lambda: _first_rows(plan, schema, batches, seen))
    scored = run_partition(plan, chain(seen, batches), files=lambda: local_files(plan.model), cpus=os.cpu_count() or 1)
    return _close(data, schema, plan, scored)


def _first_rows(plan: PartitionPlan, schema: pa.Schema, batches: Iterator[pa.RecordBatch], seen: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Take batches up to the first with rows, which is kept in ``seen`` with those before."""
    for batch in batches:
        seen.append(batch)
        if batch.num_rows:
            return batch.select(list(plan.columns)).slice(0, SAMPLE_ROWS)
    return pa.RecordBatch.from_pylist([], schema=schema).select(list(plan.columns))


def _open(data: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
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
