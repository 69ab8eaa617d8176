"""A model's own signature stands in for inputs and outputs that the user leaves out, and nothing is guessed."""

from __future__ import annotations

import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.defaults import default_inputs, default_outputs, one_column
from sparkinfer.engine.contracts import ModelPlan, TensorInfo
from sparkinfer.exceptions import ConfigError, SchemaError
from sparkinfer.schema import to_ddl


def model(*inputs: TensorInfo, outputs: tuple[TensorInfo, ...] | None = None, backend: str = "torch") -> ModelPlan:
    """A described model that says this of itself."""
    return ModelPlan(backend=backend, kind="k", fingerprint="f", label="Model('m')", inputs=inputs or None, outputs=outputs)


PIXELS = TensorInfo("pixels", "float32", (3, 8, 8))
WORDS = TensorInfo("words", "string", ())
MAYBE = TensorInfo("maybe", "int64", (), optional=True)


def test_one_input_is_the_column_of_its_name_cast_and_shaped() -> None:
    """Handed over alone, as the model declares it."""
    style, (binding,) = default_inputs(model(PIXELS), ["id", "pixels"])
    assert (style, binding.name, binding.column) == ("single", "pixels", "pixels")
    assert binding.spec == si.TensorSpec("float32", (3, 8, 8))


def test_several_inputs_go_by_name_and_text_as_it_is() -> None:
    """No dtype is asked of text, which a column may hold as strings or bytes."""
    style, bindings = default_inputs(model(PIXELS, WORDS), ["words", "pixels"])
    assert style == "named"
    assert [(binding.column, binding.spec is None) for binding in bindings] == [("pixels", False), ("words", True)]


def test_a_pyfuncs_columns_are_left_to_its_own_frame() -> None:
    """It is made by the same signature on the worker, where rows may be of unequal length."""
    _, bindings = default_inputs(model(PIXELS, WORDS, backend="pyfunc"), None)
    assert [binding.spec for binding in bindings] == [None, None]


@pytest.mark.parametrize(("there", "taken"), [(["words", "maybe"], ["words", "maybe"]), (["words"], ["words"]), (None, ["words"])])
def test_an_optional_input_is_taken_where_its_column_is_known_to_be_there(there: list[str] | None, taken: list[str]) -> None:
    """And left out elsewhere, in a UDF too."""
    assert [binding.column for binding in default_inputs(model(WORDS, MAYBE), there)[1]] == taken


def test_the_signatures_own_word_for_a_column_counts() -> None:
    """Where it is another than the argument of the function that is called."""
    _, (binding,) = default_inputs(model(TensorInfo("x", "float32", (3,), column="image")), ["image"])
    assert (binding.name, binding.column) == ("x", "image")


def test_a_missing_column_is_named_with_the_input_and_the_way_out() -> None:
    """For one input and for several."""
    with pytest.raises(
        SchemaError, match=r"no column 'pixels' \(there are \['x'\]\). Name the column of each model input: inputs='column'"
    ):
        default_inputs(model(PIXELS), ["x"])
    with pytest.raises(SchemaError, match=r"no column 'words'.*inputs={'pixels': column, 'words': column}"):
        default_inputs(model(PIXELS, WORDS), ["pixels"])


@pytest.mark.parametrize(
    ("dtype", "shape", "ddl"),
    [
        ("bool", (), "boolean"),
        ("int8", (), "tinyint"),
        ("uint8", (), "smallint"),
        ("uint16", (), "int"),
        ("uint32", (), "bigint"),
        ("int64", (), "bigint"),
        ("float16", (4,), "array<float>"),
        ("bfloat16", (), "float"),
        ("float64", (None, 2), "array<array<double>>"),
        ("string", (None,), "array<string>"),
        ("bytes", (), "binary"),
        ("datetime", (), "timestamp"),
    ],
)
def test_an_output_becomes_the_next_spark_type_that_holds_it(dtype: str, shape: tuple[int | None, ...], ddl: str) -> None:
    """Each axis is an array, free or not."""
    (column,) = default_outputs(model(outputs=(TensorInfo("y", dtype, shape),)))
    assert (column.name, to_ddl(column.type)) == ("y", ddl)


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (None, "Model.'m'. does not say what it gives: declare it, as in outputs='label string, score float'"),
        ((TensorInfo("y", "uint64", ()),), "'y' is uint64: declare it, as in outputs='y array<float>'"),
        ((TensorInfo("y", "float32", None),), "'y' has a type or a shape that it does not tell"),
    ],
)
def test_an_output_that_is_not_told_or_has_no_type_is_asked_for(outputs: tuple[TensorInfo, ...] | None, told: str) -> None:
    """With what to write."""
    with pytest.raises(ConfigError, match=told):
        default_outputs(model(outputs=outputs))


def test_a_model_that_says_nothing_asks_for_its_inputs() -> None:
    """In each of the three ways in which they can be given."""
    with pytest.raises(
        ConfigError, match=r"does not say what it takes: name its columns, as in inputs='x', inputs=\['a', 'b'\] or inputs={"
    ):
        default_inputs(model(), ["x"])


def test_a_udf_gives_one_column() -> None:
    """The only output as it is; several as a struct's fields."""
    one, two = TensorInfo("a", "float32", ()), TensorInfo("b", "string", ())
    assert one_column(default_outputs(model(outputs=(one,)))).type == pa.float32()
    assert to_ddl(one_column(default_outputs(model(outputs=(one, two)))).type) == "struct<a: float, b: string>"


def test_predict_local_takes_what_a_signature_says() -> None:
    """From end to end, with a model whose description says it all."""

    class Doubling:
        def describe(self) -> ModelPlan:
            plan = si.PythonModel(lambda: lambda x: 2 * x).describe()
            info = TensorInfo("x", "float64", ())
            return ModelPlan(**{**vars(plan), "inputs": (info,), "outputs": (TensorInfo("y", "float64", ()),)})

    scored = si.predict_local(pa.table({"x": [1, 2]}), Doubling())
    assert scored.to_pydict() == {"x": [1, 2], "y": [2.0, 4.0]}
