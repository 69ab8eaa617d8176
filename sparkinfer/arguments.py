"""The arguments that name columns and types, read: ``inputs=``, ``outputs=``, ``returns=``, ``keep=``, ``key=``.

Runs on: driver.

Invariant: what cannot be read is refused in a sentence that shows what came and what would be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkinfer.engine.encode import OutputColumn
from sparkinfer.engine.prepare import Binding
from sparkinfer.exceptions import ConfigError, SchemaError, nearest
from sparkinfer.schema import TensorSpec, parse_ddl, parse_type, to_ddl

if TYPE_CHECKING:
    from sparkinfer.engine.batch import Style

__all__ = [
    "InputColumn",
    "InputsArgument",
    "check_columns",
    "check_output_names",
    "column_names",
    "model_names",
    "parse_inputs",
    "parse_outputs",
    "parse_returns",
]

InputColumn = "str | tuple[str, TensorSpec]"
InputsArgument = Any  # InputColumn | Sequence[InputColumn] | Mapping[str, InputColumn]


def parse_inputs(inputs: InputsArgument) -> tuple[Style, tuple[Binding, ...]]:
    """Read ``inputs=``: a column, a list of columns, or ``{model input: column}``; each may come with a ``TensorSpec``.

    Raises:
        ConfigError: it is none of these, or it is empty.

    Example:
        >>> parse_inputs(["a", "b"])[0]
        'positional'
    """
    if isinstance(inputs, Mapping):
        pairs = [(str(name), *_column(column)) for name, column in inputs.items()]
        style: Style = "named"
    elif isinstance(inputs, str) or (isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], TensorSpec)):
        column, spec = _column(inputs)
        pairs = [(column, column, spec)]
        style = "single"
    elif isinstance(inputs, (list, tuple)):
        columns = [_column(column) for column in inputs]
        pairs = [(column, column, spec) for column, spec in columns]
        style = "positional"
    else:
        msg = f"inputs is {inputs!r}, expected a column name, a list of them, or a dict of model input: column name"
        raise ConfigError(msg)
    if not pairs:
        msg = "inputs is empty: name at least one column that the model gets"
        raise ConfigError(msg)
    bindings = tuple(Binding(name, column, spec) for name, column, spec in pairs)
    names = [name for name, _, _ in pairs]
    if len(set(names)) != len(names):
        msg = f"inputs names {names}: a column that is handed over twice needs a dict of model input: column"
        raise ConfigError(msg)
    fed = [name for binding in bindings for name in model_names(binding)]
    if len(set(fed)) != len(fed):
        msg = f"the model would get {fed}: a mask= or lengths= of a TensorSpec has the name of another input, rename it"
        raise ConfigError(msg)
    return style, bindings


def _column(given: object) -> tuple[str, TensorSpec | None]:
    if isinstance(given, str):
        return given, None
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], TensorSpec):
        return given[0], given[1]
    msg = f"inputs holds {given!r}, expected a column name or a pair of a column name and a TensorSpec"
    raise ConfigError(msg)


def parse_outputs(outputs: object) -> tuple[OutputColumn, ...]:
    """Read ``outputs=``: DDL such as ``"label string, score float"``, an Arrow schema, or a pyspark ``StructType``.

    Raises:
        SchemaError: the DDL is wrong (the message shows where), or a type cannot be an output.
        ConfigError: it is none of these, has no column, or a name comes twice.
    """
    if hasattr(outputs, "jsonValue") and hasattr(outputs, "fields"):  # a pyspark StructType
        columns = tuple(OutputColumn(field.name, parse_type(_spark_ddl(field.dataType))) for field in outputs.fields)
    elif isinstance(outputs, str):
        columns = tuple(OutputColumn(field.name, field.type) for field in parse_ddl(outputs))
    else:
        import pyarrow as pa  # noqa: PLC0415 - only a caller that has a schema has pyarrow at hand anyway

        if not isinstance(outputs, pa.Schema):
            msg = f"outputs is {outputs!r}, expected DDL such as 'label string, score float'"
            raise ConfigError(msg)
        columns = tuple(OutputColumn(field.name, parse_type(to_ddl(field.type))) for field in outputs)  # as Spark spells it
    if not columns:
        msg = "outputs declares no column, expected at least one, such as 'score float'"
        raise ConfigError(msg)
    names = [column.name for column in columns]
    if len(set(map(str.lower, names))) != len(names):
        msg = f"outputs declares {names}: every name once (Spark does not tell upper from lower case)"
        raise ConfigError(msg)
    return columns


def parse_returns(returns: object, name: str = "prediction") -> OutputColumn:
    """Read ``returns=``: the type of the one column that a UDF gives."""
    if hasattr(returns, "jsonValue"):
        returns = _spark_ddl(returns)
    if not isinstance(returns, str):
        msg = f"returns is {returns!r}, expected a type such as 'array<float>' or 'struct<label:string,score:float>'"
        raise ConfigError(msg)
    try:
        return OutputColumn(name, parse_type(returns))
    except SchemaError:
        if not _reads(parse_ddl, returns):
            raise
        msg = f"returns is {returns!r}, which names columns, but a UDF gives one: say returns='struct<{returns}>'"
        raise ConfigError(msg) from None


def _spark_ddl(data_type: Any) -> str:
    """Spell a pyspark type as DDL; pyspark quotes no names itself."""
    fields = getattr(data_type, "fields", None)
    if fields is None:
        element = getattr(data_type, "elementType", None)
        return f"array<{_spark_ddl(element)}>" if element is not None else str(data_type.simpleString())
    inner = ",".join(f"`{field.name.replace('`', '``')}`:{_spark_ddl(field.dataType)}" for field in fields)
    return f"struct<{inner}>"


def column_names(given: object, argument: str) -> tuple[str, ...]:
    """Read an argument that names columns: one name, or several.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(given, str):
        return (given,)
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, Mapping) else None
    if names is None or not all(isinstance(name, str) for name in names):
        msg = f"{argument} is {given!r}, expected a column name or a list of them"
        raise ConfigError(msg)
    return names


def check_output_names(outputs: Sequence[OutputColumn], error_column: str | None, kept: Sequence[str]) -> None:
    """Refuse an output, or an error column, that has the name of a kept column, as Spark compares names.

    Raises:
        SchemaError: names both.
    """
    spelt = {name.lower(): name for name in kept}
    for column in outputs:
        if column.name.lower() in spelt:
            same = spelt[column.name.lower()]
            msg = f"outputs declares {column.name!r}, but {same!r} is a kept column: rename the output, or leave the column out with keep="
            raise SchemaError(msg)
    if error_column is not None and error_column.lower() in spelt:
        msg = (
            f"the error column {error_column!r} has the name of the kept column {spelt[error_column.lower()]!r}: say error_column='...' with "
            "another name, or leave the column out with keep="
        )
        raise SchemaError(msg)


def check_columns(names: Sequence[str], there: Sequence[str], argument: str) -> None:
    """Refuse a column that is not there, or there twice.

    Raises:
        SchemaError: names the argument, the column, and the nearest right one.
    """
    for name in names:
        found = there.count(name) if isinstance(there, list) else list(there).count(name)
        if found == 0:
            msg = f"{argument}= names the column {name!r}, which is not there. {nearest(name, there)}"
            raise SchemaError(msg)
        if found > 1:
            msg = f"{argument}= names the column {name!r}, which is there {found} times: rename or drop all but one"
            raise SchemaError(msg)


def model_names(binding: Binding) -> list[str]:
    """Name the inputs that the model gets of one binding: itself, its mask, its lengths."""
    spec = binding.spec
    extra = [name for name in (spec.mask, spec.lengths) if name] if spec is not None else []
    return [binding.name, *extra]


def _reads(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except SchemaError:
        return False
    return True
