"""The DDL that Spark writes is read exactly, and a TensorSpec that contradicts itself is never made."""

from __future__ import annotations

import doctest

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparkinfer.schema
from sparkinfer.exceptions import ConfigError, SchemaError
from sparkinfer.schema import Field, TensorSpec, list_of, pad_fits, parse_ddl, parse_type, to_ddl

FLAT = st.sampled_from(
    [
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.timestamp("us"),
    ]
)
DECIMALS = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))
NAMES = st.text(min_size=1, max_size=8)


def structs(types):
    """Give struct types of any fields."""
    fields = st.lists(st.tuples(NAMES, types, st.booleans()), min_size=1, max_size=3, unique_by=lambda field: field[0])
    return fields.map(lambda parts: pa.struct([pa.field(*part) for part in parts]))


TYPES = st.recursive(FLAT | DECIMALS, lambda types: types.map(list_of) | structs(types), max_leaves=6)


def test_the_examples_in_the_docstrings_hold() -> None:
    """Every docstring example of the module gives what it says."""
    assert doctest.testmod(sparkinfer.schema).failed == 0


@given(data_type=TYPES)
def test_a_type_survives_its_own_ddl(data_type) -> None:
    """Whatever the type, reading what was written gives the same type, names and NOT NULL included."""
    assert parse_type(to_ddl(data_type)).equals(data_type, check_metadata=True)


@given(name=NAMES, data_type=TYPES)
def test_any_column_name_can_be_quoted(name, data_type) -> None:
    """Backticks carry every name, also one with backticks in it."""
    quoted = "`" + name.replace("`", "``") + "`"
    assert parse_ddl(f"{quoted} {to_ddl(data_type)}") == (Field(name, data_type),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BYTE", pa.int8()),
        ("short", pa.int16()),
        ("Integer", pa.int32()),
        ("long", pa.int64()),
        ("real", pa.float32()),
        ("varchar(20)", pa.string()),
        ("char(3)", pa.string()),
        ("decimal", pa.decimal128(10, 0)),
        ("numeric(5)", pa.decimal128(5, 0)),
        ("timestamp_ltz", pa.timestamp("us", "UTC")),
        ("array<array<float>>", pa.list_(pa.list_(pa.float32()))),
        ("struct<a: int, b string NOT NULL COMMENT 'it''s'>", None),
        ("struct<a: int, b string NOT NULL COMMENT 'so, so'>", pa.struct([("a", pa.int32()), pa.field("b", pa.string(), nullable=False)])),
    ],
)
def test_spark_s_spellings(text, expected) -> None:
    """Aliases, lengths and upper case mean what they mean in Spark."""
    if expected is None:
        with pytest.raises(SchemaError, match="expected '>'"):
            parse_type(text)
    else:
        assert parse_type(text) == expected


def test_columns_with_and_without_colons() -> None:
    """Both of Spark's forms, NOT NULL and COMMENT."""
    fields = parse_ddl("label string, score: float NOT NULL COMMENT 'of 1', `a b` array<int>")
    assert fields == (Field("label", pa.string()), Field("score", pa.float32(), nullable=False), Field("a b", list_of(pa.int32())))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("label strng", "at position 6: there is no type 'strng'. Did you mean 'string'?"),
        ("label", "expected a type, found the end"),
        ("", "expected a column name, then its type"),
        ("a int,", "at position 6: expected a column name"),
        ("a int b", "at position 6: expected ',' or the end, found 'b'"),
        ("a array<int", "expected '>', found the end"),
        ("a int not", "expected NULL after NOT"),
        ("a int, a float", "at position 7: the name 'a' is given twice"),
        ("a map<string,int>", "'map' is not supported as an output"),
        ("a interval", "'interval' is not supported"),
        ("a variant", "'variant' is not supported"),
        ("a decimal(39,2)", "a precision of 1 to 38"),
        ("a decimal(5,6)", "found [5, 6]"),
        ("a varchar(x)", "expected a whole number, found 'x'"),
    ],
)
def test_a_wrong_ddl_is_told_with_its_position(text, said) -> None:
    """The message has the text, the place, and what would have been right."""
    with pytest.raises(SchemaError) as caught:
        parse_ddl(text)
    assert said in str(caught.value)
    assert repr(text) in str(caught.value)


def test_a_ddl_that_is_no_text() -> None:
    """A list of names, an easy slip, is refused by its type."""
    with pytest.raises(SchemaError, match="expected a text such as"):
        parse_ddl(["label string"])


def test_arrow_types_without_ddl() -> None:
    """What Spark cannot declare is refused by name."""
    with pytest.raises(SchemaError, match="uint8 has no DDL"):
        to_ddl(pa.uint8())


def test_a_spec_takes_numpy_s_own_spellings() -> None:
    """A NumPy type and a list mean the same as their plain forms, and specs stay hashable."""
    assert TensorSpec(np.float32, [3, None]) == TensorSpec("float32", (3, None))
    assert hash(TensorSpec(np.dtype("int64"), [2])) == hash(TensorSpec("int64", (2,)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dtype": "flaot32"}, "Did you mean 'float32'?"),
        ({"dtype": "float"}, "dtype is 'float'"),
        ({"dtype": np.datetime64}, "expected a NumPy dtype's name"),
        ({"shape": (3, -1)}, r"shape is (3, -1)"),
        ({"shape": 3}, "shape is 3"),
        ({"shape": (True,)}, "shape is (True,)"),
        ({"pad": 0, "pad_side": "middle"}, "pad_side is 'middle', expected 'left' or 'right'"),
        ({"pad": 0, "max_length": 0}, "max_length is 0"),
        ({"max_length": 5}, "max_length is 5, but pad is not given"),
        ({"mask": "m"}, "mask is 'm', but pad is not given"),
        ({"lengths": "n"}, "lengths is 'n', but pad is not given"),
        ({"pad": 0, "mask": "m", "lengths": "m"}, "need two names"),
        ({"dtype": "int64", "pad": 0.5}, "pad is 0.5, which is no int64"),
        ({"dtype": "uint8", "pad": -1}, "pad is -1, which is no uint8"),
        ({"dtype": "string", "pad": 0}, "pad is 0, which is no string"),
        ({"pad": 0, "shape": ()}, "only arrays are padded"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(arguments, said) -> None:
    """The message has the value and what would be right."""
    with pytest.raises(ConfigError) as caught:
        TensorSpec(**arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("pad", "dtype", "fits"),
    [
        (0, "float32", True),
        (float("nan"), "float32", True),
        (float("nan"), "int64", False),
        (0.0, "int64", True),
        (255, "uint8", True),
        (256, "uint8", False),
        (1, "bool", True),
        (2, "bool", False),
        ("", "string", True),
        ("", "float32", False),
        (b"", "bytes", True),
        (b"", "string", False),
        ("[PAD]", "object", True),
        (0, "object", False),
    ],
)
def test_what_a_fill_value_fits_into(pad, dtype, fits) -> None:
    """A fill value must stand in the array unchanged."""
    assert pad_fits(pad, dtype) is fits
