"""What the model is to get (``TensorSpec``), and the declared output types: Spark's DDL to Arrow and back.

Runs on: both (NumPy and pyarrow only).

Invariant: ``parse_type(to_ddl(t)) == t`` for every type that can be declared, and a ``TensorSpec`` that exists is consistent.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import pyarrow as pa

from sparkinfer.exceptions import ConfigError, SchemaError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NUMERIC", "Field", "TensorSpec", "list_of", "pad_fits", "parse_ddl", "parse_type", "to_ddl"]

NUMERIC = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
_DTYPES = (*NUMERIC, "string", "bytes")


@dataclass(frozen=True)
class TensorSpec:
    """What reaches the model for one input.

    Attributes:
        dtype: a NumPy dtype by name (``"float32"``, ``"int64"``, ``"float16"``, ``"bool"``), ``"string"`` or ``"bytes"``; ``None``
            as the column gives it. Casts are exact, but for floats, which are rounded to the narrower type.
        shape: without the batch axis; ``None`` entries are free axes. A flat array of the right size is reshaped to it, row-major.
        pad: fills rows of unequal length up to the longest row of the batch on every free axis, up to ``shape`` on a fixed one.
        pad_side: where the fill goes.
        max_length: rows are cut to it on their first axis; their start is kept.
        mask: the name of a further model input, ``(rows, length)`` int64: 1 for what was in the row, 0 for the fill.
        lengths: the name of a further model input, ``(rows,)`` int64: each row's length after the cut.

    Raises:
        ConfigError: a value is out of its range, or two do not go together.

    Example:
        An image that comes as a flat array, and token ids of unequal length with their mask:

        >>> TensorSpec("float32", (3, 224, 224)).shape
        (3, 224, 224)
        >>> TensorSpec("int64", pad=0, max_length=512, mask="attention_mask").mask
        'attention_mask'
    """

    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    _: KW_ONLY
    pad: float | str | bytes | None = None
    pad_side: Literal["left", "right"] = "right"
    max_length: int | None = None
    mask: str | None = None
    lengths: str | None = None

    def __post_init__(self) -> None:
        """Check every value once; ``np.float32`` and a list for the shape are taken too."""
        object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        object.__setattr__(self, "shape", _shape(self.shape))
        if self.pad_side not in ("left", "right"):
            msg = f"pad_side is {self.pad_side!r}, expected 'left' or 'right'"
            raise ConfigError(msg)
        if self.max_length is not None and not _whole(self.max_length, 1):
            msg = f"max_length is {self.max_length!r}, expected a whole number of at least 1"
            raise ConfigError(msg)
        if self.pad is None:
            self._refuse_without_pad()
        elif self.dtype is not None and not pad_fits(self.pad, self.dtype):
            msg = f"pad is {self.pad!r}, which is no {self.dtype}: give a fill value of the input's own type"
            raise ConfigError(msg)
        if self.pad is not None and self.shape == ():
            msg = "shape is (), one value a row, and pad is given: only arrays are padded"
            raise ConfigError(msg)
        if self.mask is not None and self.mask == self.lengths:
            msg = f"mask and lengths are both {self.mask!r}: they are two model inputs and need two names"
            raise ConfigError(msg)

    def _refuse_without_pad(self) -> None:
        for name in ("max_length", "mask", "lengths"):
            value = getattr(self, name)
            if value is not None:
                msg = f"{name} is {value!r}, but pad is not given: it says what rows are filled with, such as pad=0"
                raise ConfigError(msg)


def pad_fits(pad: float | str | bytes, dtype: str) -> bool:
    """Say whether ``pad`` can stand in an array of ``dtype`` (a NumPy dtype's name, ``"string"`` or ``"bytes"``) unchanged."""
    if isinstance(pad, (str, bytes)) or dtype in ("string", "bytes", "object"):
        return {"string": isinstance(pad, str), "bytes": isinstance(pad, bytes), "object": isinstance(pad, (str, bytes))}.get(dtype, False)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return pad in (0, 1)
    if kind in "iu":
        limits = np.iinfo(dtype)
        return float(pad).is_integer() and bool(limits.min <= pad <= limits.max)
    return kind == "f"


def _dtype_name(dtype: object) -> str | None:
    if dtype is None or dtype in _DTYPES:
        return dtype if dtype is None else str(dtype)
    name = repr(dtype)
    if isinstance(dtype, (type, np.dtype)):
        name = np.dtype(dtype).name
        if name in NUMERIC:
            return name
    msg = f"dtype is {dtype!r}, expected a NumPy dtype's name, 'string' or 'bytes'. {nearest(name.strip(chr(39)), _DTYPES)}"
    raise ConfigError(msg)


def _shape(shape: Any) -> tuple[int | None, ...] | None:
    if shape is None:
        return None
    if not isinstance(shape, (tuple, list)) or not all(axis is None or _whole(axis, 0) for axis in shape):
        msg = f"shape is {shape!r}, expected whole numbers, and None for free axes, without the batch axis, such as (3, 224, 224)"
        raise ConfigError(msg)
    return tuple(shape)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


# --- Spark's DDL -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """One column of a DDL text.

    Attributes:
        name: without quotes.
        type: as Spark sends and expects it in Arrow.
        nullable: ``False`` for ``NOT NULL``.
    """

    name: str
    type: pa.DataType
    nullable: bool = True


_SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES = {data_type: name for name, data_type in _SIMPLE.items()}
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "varchar": "string",
    "char": "string",
    "character": "string",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_REFUSED = {
    "map": "declare array<struct<key: K, value: V>>",
    "interval": "declare a bigint of microseconds",
    "variant": "declare a string of JSON",
    "void": "declare the type that the values have",
}
_MAX_PRECISION = 38
_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<word>\w+)|(?P<mark>\S))")


def parse_ddl(text: str) -> tuple[Field, ...]:
    """Read columns as Spark's DDL writes them.

    Args:
        text: ``"label string, score float"``; ``name: type``, backticks, ``NOT NULL`` and ``COMMENT '...'`` are understood.

    Raises:
        SchemaError: the text is no DDL, or a type cannot be an output; it has the position and the nearest type.

    Example:
        >>> [(field.name, str(field.type)) for field in parse_ddl("label string, score float")]
        [('label', 'string'), ('score', 'float')]
    """
    reader = _Reader(text)
    fields = reader.fields()
    reader.end()
    return fields


def parse_type(text: str) -> pa.DataType:
    """Read one type as Spark's DDL writes it.

    Raises:
        SchemaError: as for ``parse_ddl``.

    Example:
        >>> to_ddl(parse_type("array<double>"))
        'array<double>'
    """
    reader = _Reader(text)
    data_type = reader.type()
    reader.end()
    return data_type


def to_ddl(data_type: pa.DataType) -> str:
    """Write an Arrow type as Spark's DDL.

    Raises:
        SchemaError: Spark has no such type, or it cannot be an output.
    """
    if data_type in _NAMES:
        return _NAMES[data_type]
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return "timestamp"
    if pa.types.is_decimal128(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_list(data_type):
        return f"array<{to_ddl(data_type.value_type)}>"
    if pa.types.is_struct(data_type):
        return f"struct<{', '.join(_field_ddl(data_type.field(i)) for i in range(data_type.num_fields))}>"
    msg = f"the Arrow type {data_type} has no DDL that an output can be declared with"
    raise SchemaError(msg)


def list_of(item: pa.DataType) -> pa.DataType:
    """Give the list type of ``item``, its field named as Spark names it."""
    return pa.list_(pa.field("element", item))


def _field_ddl(field: pa.Field) -> str:
    plain = re.fullmatch(r"\w+", field.name)
    name = field.name if plain else "`" + field.name.replace("`", "``") + "`"
    return f"{name}: {to_ddl(field.type)}" + ("" if field.nullable else " NOT NULL")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


class _Reader:
    """Reads a DDL text from left to right; each method takes what it is named for, or raises."""

    def __init__(self, ddl: object) -> None:
        if not isinstance(ddl, str):
            msg = f"the DDL is {ddl!r} ({type(ddl).__name__}), expected a text such as 'label string, score float'"
            raise SchemaError(msg)
        self._ddl = ddl
        self._tokens = [
            _Token(str(match.lastgroup), match[str(match.lastgroup)], match.start(str(match.lastgroup))) for match in _TOKEN.finditer(ddl)
        ]
        self._tokens.append(_Token("end", "the end", len(ddl)))

    def fields(self) -> tuple[Field, ...]:
        """Take ``name [:] type [NOT NULL] [COMMENT '...'], ...``."""
        fields: list[Field] = []
        while True:
            position = self._tokens[0].position
            field = self._field()
            if any(field.name == other.name for other in fields):
                self._fail(f"the name {field.name!r} is given twice", position)
            fields.append(field)
            if not self._skip(","):
                return tuple(fields)

    def type(self) -> pa.DataType:
        """Take a type, nested or not."""
        token = self._take("a type", "word")
        word = token.text.lower()
        word = _ALIASES.get(word, word)
        if word in _REFUSED:
            self._fail(f"{token.text!r} is not supported as an output: {_REFUSED[word]}", token.position)
        if word == "array":
            return self._bracketed(lambda: list_of(self.type()))
        if word == "struct":
            return self._bracketed(lambda: pa.struct([pa.field(f.name, f.type, f.nullable) for f in self.fields()]))
        if word == "decimal":
            return self._decimal(token)
        if word not in _SIMPLE:
            known = [*_SIMPLE, *_ALIASES, "decimal", "array", "struct"]
            self._fail(f"there is no type {token.text!r}. {nearest(token.text.lower(), known)}", token.position)
        if word == "string":
            self._numbers()  # varchar(n) and char(n): Arrow has no length
        return _SIMPLE[word]

    def end(self) -> None:
        """Take nothing more."""
        self._take("',' or the end", "end")

    def _field(self) -> Field:
        token = self._take("a column name, then its type, as in 'score float'", "word", "quoted")
        name = token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text
        self._skip(":")
        data_type = self.type()
        nullable = not self._skip("not")
        if not nullable and not self._skip("null"):
            self._expected("NULL after NOT")
        if self._skip("comment"):
            self._take("the comment in quotes", "text")
        return Field(name, data_type, nullable)

    def _decimal(self, token: _Token) -> pa.DataType:
        numbers = self._numbers() or [10]
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if len(numbers) > 2 or not 1 <= precision <= _MAX_PRECISION or scale > precision:
            self._fail(f"a decimal takes a precision of 1 to {_MAX_PRECISION} and a scale up to it, found {numbers}", token.position)
        return pa.decimal128(precision, scale)

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if self._skip("("):
            while not numbers or self._skip(","):
                token = self._take("a whole number", "word")
                if not re.fullmatch("[0-9]+", token.text):
                    self._fail(f"expected a whole number, found {token.text!r}", token.position)
                numbers.append(int(token.text))
            if not self._skip(")"):
                self._expected("')'")
        return numbers

    def _bracketed(self, inside: Callable[[], pa.DataType]) -> pa.DataType:
        if not self._skip("<"):
            self._expected("'<'")
        data_type = inside()
        if not self._skip(">"):
            self._expected("'>'")
        return data_type

    def _skip(self, text: str) -> bool:
        token = self._tokens[0]
        found = token.kind in ("word", "mark") and token.text.lower() == text
        if found:
            del self._tokens[0]
        return found

    def _take(self, expected: str, *kinds: str) -> _Token:
        if self._tokens[0].kind not in kinds:
            self._expected(expected)
        return self._tokens.pop(0)

    def _expected(self, what: str) -> NoReturn:
        token = self._tokens[0]
        self._fail(f"expected {what}, found {token.text if token.kind == 'end' else repr(token.text)}", token.position)

    def _fail(self, what: str, position: int) -> NoReturn:
        msg = f"cannot read the DDL {self._ddl!r} at position {position}: {what}"
        raise SchemaError(msg)
