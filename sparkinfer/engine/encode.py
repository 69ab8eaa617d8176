"""From what a model gives back to the declared columns: rows are counted, outputs matched.

Runs on: worker.

Invariant: every column has its declared type and one row for each row that went in; no output is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from sparkinfer.engine.batch import Breach, Fault
from sparkinfer.engine.encode_column import encode_column, is_rows_of_dicts, leading_axis, rows_told, told, transposed
from sparkinfer.exceptions import OutputError, PredictError
from sparkinfer.schema import to_ddl

__all__ = ["OutputColumn", "check_rows", "encode_column", "encode_outputs"]


@dataclass(frozen=True)
class OutputColumn:
    """A column that the model's outputs become.

    Attributes:
        name: of the column.
        type: as it was declared.
    """

    name: str
    type: pa.DataType


def check_rows(result: Any, rows: int) -> None:
    """Refuse a result that has not one row for each row that the model was given.

    A tuple is several outputs, and so is a list of arrays; a mapping or a pandas DataFrame is several outputs by name. Any other
    list is one output, with an item a row: numbers, texts, lists, or dicts.

    Raises:
        Fault: a leading axis is not ``rows``, or there is none; it names the output.
    """
    outputs = _outputs(result)
    named = _named(outputs)
    if not named:
        raise Breach(PredictError, f"expected {rows} rows, found a {type(result).__name__} without outputs")
    for label, value in named:
        found = leading_axis(value)
        if found != rows:
            hint = (
                "a list of arrays is a list of outputs, so stack rows to one array" if isinstance(result, list) else "give one for each row"
            )
            raise Breach(PredictError, f"{label}expected {rows} rows, found {rows_told(value, found)}: {hint}")


def _named(outputs: Any) -> list[tuple[str, Any]]:
    """List single outputs, those of a mapping within a mapping (a struct within a struct) too, each with its label."""
    if isinstance(outputs, Mapping):
        return [(f"output {name!r}: ", value) for name, value in _flat(outputs, "")]
    if not isinstance(outputs, tuple):
        return [("", outputs)]
    named = []
    for position, value in enumerate(outputs):
        inner = _flat(value, f"{position}.") if isinstance(value, Mapping) and value else [(str(position), value)]
        named += [(f"output {label}: ", item) for label, item in inner]
    return named


def _flat(outputs: Mapping[Any, Any], prefix: str) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in outputs.items():
        flat += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else [(f"{prefix}{name}", value)]
    return flat


def encode_outputs(result: Any, columns: Sequence[OutputColumn], rows: int) -> list[pa.Array]:
    """Give the declared columns, filled from a model's outputs.

    Args:
        result: what ``check_rows`` let through. Several outputs go to several columns by name (a mapping, a list of dicts) or in
            order (a tuple); with one declared column of type struct they are its fields.
        columns: what was declared.
        rows: of each column.

    Raises:
        Fault: outputs and columns do not match, or a value does not fit; nothing is dropped without a word.
    """
    values = _by_name(_outputs(result), columns) if len(columns) > 1 else [_alone(_outputs(result), columns[0])]
    return [encode_column(value, column.type, column.name, rows) for value, column in zip(values, columns, strict=True)]


def _outputs(result: Any) -> Any:
    """Tell several outputs (a mapping, a tuple) from one (anything else)."""
    if isinstance(result, list) and result and all(len(getattr(item, "shape", ())) for item in result):
        return tuple(result)
    if hasattr(result, "iloc") and hasattr(result, "columns"):  # a pandas DataFrame
        return dict(result.items())
    return result


def _alone(outputs: Any, column: OutputColumn) -> Any:
    """Choose what fills the only declared column."""
    fields = _field_names(column.type)
    if is_rows_of_dicts(outputs) and not fields:
        outputs = transposed(outputs)
    if isinstance(outputs, Mapping):
        return _one_of(outputs, column, fields)
    if not isinstance(outputs, tuple) or (fields and len(outputs) == len(fields)):
        return outputs
    if len(outputs) == 1:
        return outputs[0]
    raise _unmatched(outputs, [column], "declare one column for each, a struct with as many fields, or choose one in postprocess")


def _one_of(outputs: Mapping[str, Any], column: OutputColumn, fields: Sequence[str]) -> Any:
    if list(outputs) == [column.name]:
        return outputs[column.name]
    if fields and all(field in outputs for field in fields):
        return outputs
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    if column.name in outputs:
        return outputs[column.name]
    raise _unmatched(outputs, [column], "declare one column for each, a struct with these fields, or choose one in postprocess")


def _by_name(outputs: Any, columns: Sequence[OutputColumn]) -> list[Any]:
    """Choose what fills each of several declared columns."""
    if is_rows_of_dicts(outputs):
        outputs = transposed(outputs)
    if isinstance(outputs, Mapping):
        if any(column.name not in outputs for column in columns):
            raise _unmatched(outputs, columns, "declare them by the names of the outputs, or rename these in postprocess")
        return [outputs[column.name] for column in columns]
    if isinstance(outputs, tuple) and len(outputs) == len(columns):
        return list(outputs)
    raise _unmatched(outputs, columns, "give a dict by their names or a tuple in their order, in postprocess")


def _unmatched(outputs: Any, columns: Sequence[OutputColumn], hint: str) -> Fault:
    declared = ", ".join(f"{column.name} {to_ddl(column.type)}" for column in columns)
    if isinstance(outputs, Mapping):
        came = f"{len(outputs)} outputs ({', '.join(map(str, outputs))})"
    elif isinstance(outputs, tuple):
        came = f"{len(outputs)} outputs ({', '.join(map(told, outputs))})"
    else:
        came = f"one output ({told(outputs)})"
    return Breach(OutputError, f"declared {len(columns)} output column(s) ({declared}), found {came}: {hint}")


def _field_names(data_type: pa.DataType) -> list[str]:
    return [data_type.field(i).name for i in range(data_type.num_fields)] if types.is_struct(data_type) else []
