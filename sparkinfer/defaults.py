"""What a model's own signature gives where the user names no inputs or no outputs.

Runs on: driver.

Invariant: nothing is guessed: an input is a column of the same name, an output a column of the type that the model declares, and what the
model does not say is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkinfer.engine.encode import OutputColumn
from sparkinfer.engine.prepare import Binding
from sparkinfer.exceptions import ConfigError, SchemaError
from sparkinfer.schema import NUMERIC, TensorSpec, list_of, parse_type

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Style
    from sparkinfer.engine.contracts import ModelPlan, TensorInfo

__all__ = ["default_inputs", "default_outputs", "one_column"]

_DDL = {  # Spark has no unsigned types and no half precision: the next that holds every value
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "float16": "float",
    "bfloat16": "float",
    "float32": "float",
    "float64": "double",
    "string": "string",
    "bytes": "binary",
    "datetime": "timestamp",
}


def default_inputs(model: ModelPlan, there: Sequence[str] | None) -> tuple[Style, tuple[Binding, ...]]:
    """Take the columns that have the names of the model's inputs, cast and shaped as the model declares them.

    Args:
        model: described.
        there: the data's columns; ``None`` where they are not known yet (a UDF). Optional inputs are taken if their column is there.

    Raises:
        ConfigError: the model does not say what it takes.
        SchemaError: a column is missing; names it, and the model's input.
    """
    if not model.inputs:
        msg = (
            f"inputs is not given, and {model.label} does not say what it takes: name its columns, as in inputs='x', inputs=['a', 'b'] or "
            "inputs={'model input': 'column'}"
        )
        raise ConfigError(msg)
    taken = {
        info.name: info.column or info.name for info in model.inputs if not info.optional or (there is not None and info.name in there)
    }
    missing = [column for column in taken.values() if there is not None and column not in there]
    if missing:
        way_out = "inputs='column'" if len(model.inputs) == 1 else f"inputs={{{', '.join(f'{name!r}: column' for name in taken)}}}"
        msg = (
            f"inputs is not given, so {model.label} gets the columns {list(taken.values())} that its signature names, but there is no column "
            f"{missing[0]!r} (there are {list(there or ())}). Name the column of each model input: {way_out}"
        )
        raise SchemaError(msg)
    style: Style = "single" if len(model.inputs) == 1 else "named"
    return style, tuple(Binding(info.name, taken[info.name], _spec(model, info)) for info in model.inputs if info.name in taken)


def _spec(model: ModelPlan, info: TensorInfo) -> TensorSpec | None:
    if model.backend == "pyfunc" or info.dtype not in NUMERIC:  # a pyfunc's frame is made by the same signature on the worker
        return None
    return TensorSpec(info.dtype, info.shape)


def default_outputs(model: ModelPlan) -> tuple[OutputColumn, ...]:
    """Declare the columns that the model says it gives.

    Raises:
        ConfigError: it does not say, or not of which type.
    """
    if not model.outputs:
        msg = f"outputs is not given, and {model.label} does not say what it gives: declare it, as in outputs='label string, score float'"
        raise ConfigError(msg)
    return tuple(OutputColumn(info.name, _arrow_type(model, info)) for info in model.outputs)


def _arrow_type(model: ModelPlan, info: TensorInfo) -> pa.DataType:
    if info.shape is None or info.dtype not in _DDL:
        known = f"is {info.dtype}" if info.shape is not None else "has a type or a shape that it does not tell"
        msg = f"outputs is not given, and of what {model.label} gives, {info.name!r} {known}: declare it, as in outputs='{info.name} array<float>'"
        raise ConfigError(msg)
    data_type = parse_type(_DDL[info.dtype])
    for _ in info.shape:
        data_type = list_of(data_type)
    return data_type


def one_column(outputs: Sequence[OutputColumn]) -> OutputColumn:
    """Put outputs into the one column of a UDF: itself, or a struct of several."""
    if len(outputs) == 1:
        return OutputColumn("prediction", outputs[0].type)
    return OutputColumn("prediction", pa.struct([pa.field(column.name, column.type) for column in outputs]))
