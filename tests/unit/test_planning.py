"""What the user says becomes one frozen plan, and what can be known to be wrong is refused here with the way out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.arguments import check_columns, check_output_names, column_names, parse_inputs, parse_outputs, parse_returns
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.batch import Inputs
from sparkinfer.engine.contracts import ModelPlan, TensorInfo
from sparkinfer.exceptions import ConfigError, ModelLoadError, SchemaError
from sparkinfer.planning import Functions, check_input_types, plan_partition
from sparkinfer.testing import EchoModel

SPEC = si.TensorSpec("float32", (2, 2))


class Known:
    """A model that says of itself what it takes."""

    def __init__(self, *inputs: TensorInfo, backend: str = "numpy", kind: str = "fake", **options: Any) -> None:
        self._plan = ModelPlan(backend=backend, kind=kind, fingerprint="f", label="Known(m)", inputs=inputs or None, options=options)

    def describe(self) -> ModelPlan:
        return self._plan


def plan(model: Any = None, **changes: Any) -> Any:
    """The plan of an echo model over the column x, but for what a test changes."""
    said: dict[str, Any] = {
        "inputs": "x",
        "outputs": parse_outputs("y double"),
        "keep": (),
        "key": None,
        "functions": Functions(),
        "on_null": "raise",
        "on_error": "raise",
        "config": InferenceConfig(),
    }
    return plan_partition(si.PythonModel(EchoModel()) if model is None else model, **{**said, **changes})


# --- inputs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "style", "bindings"),
    [
        ("x", "single", [("x", "x", None)]),
        (("x", SPEC), "single", [("x", "x", SPEC)]),
        (["x"], "positional", [("x", "x", None)]),
        (["a", ("b", SPEC)], "positional", [("a", "a", None), ("b", "b", SPEC)]),
        (("a", "b"), "positional", [("a", "a", None), ("b", "b", None)]),
        ({"ids": "tokens", "mask": ("m", SPEC)}, "named", [("ids", "tokens", None), ("mask", "m", SPEC)]),
        ({"a": "x", "b": "x"}, "named", [("a", "x", None), ("b", "x", None)]),
    ],
)
def test_inputs_are_read_as_the_readme_says(inputs: Any, style: str, bindings: list[tuple[str, str, Any]]) -> None:
    """A name, a list and a dict each have their style; a TensorSpec may stand beside any column."""
    found, made = parse_inputs(inputs)
    assert found == style
    assert [(binding.name, binding.column, binding.spec) for binding in made] == bindings


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (5, "inputs is 5, expected a column name, a list of them, or a dict"),
        (None, "inputs is None, expected a column name"),
        ([], "inputs is empty: name at least one column"),
        ({}, "inputs is empty: name at least one column"),
        (["a", 3], "inputs holds 3, expected a column name or a pair of a column name and a TensorSpec"),
        ([("a", "float32")], r"inputs holds \('a', 'float32'\), expected a column name or a pair"),
        ({"x": ["a", "b"]}, r"inputs holds \['a', 'b'\], expected a column name"),
        (["a", "a"], r"inputs names \['a', 'a'\]: a column that is handed over twice needs a dict"),
        (
            {"ids": ("t", si.TensorSpec(pad=0, mask="m")), "m": "m"},
            r"the model would get \['ids', 'm', 'm'\]: a mask= or lengths= of a TensorSpec has the name of another input",
        ),
        (
            [("a", si.TensorSpec(pad=0, lengths="n")), ("b", si.TensorSpec(pad=0, lengths="n"))],
            r"the model would get \['a', 'n', 'b', 'n'\]",
        ),
    ],
)
def test_inputs_that_are_none_are_refused(inputs: Any, told: str) -> None:
    """The message shows what came and what would be right."""
    with pytest.raises(ConfigError, match=told):
        parse_inputs(inputs)


# --- outputs -----------------------------------------------------------------------------------------------------------


def test_outputs_are_ddl_or_an_arrow_schema_and_mean_the_same() -> None:
    """Arrow's own spelling of a list becomes Spark's."""
    by_ddl = parse_outputs("label string, scores array<float>")
    assert [(column.name, column.type) for column in by_ddl] == [
        ("label", pa.string()),
        ("scores", pa.list_(pa.field("element", pa.float32()))),
    ]
    assert parse_outputs(pa.schema([("label", pa.string()), ("scores", pa.list_(pa.float32()))])) == by_ddl


def test_pyspark_types_are_taken_as_outputs_and_returns() -> None:
    """A StructType, with a name that needs quotes and a nested one, gives the columns that its DDL would give."""
    types = pytest.importorskip("pyspark.sql.types")
    inner = types.StructType([types.StructField("a b", types.LongType()), types.StructField("c", types.ArrayType(types.FloatType()))])
    outputs = types.StructType([types.StructField("tick`s", types.DoubleType()), types.StructField("inner", inner)])
    made = parse_outputs(outputs)
    assert made == parse_outputs("`tick``s` double, inner struct<`a b`: bigint, c: array<float>>")
    with pytest.raises(ConfigError, match=r"outputs is FloatType\(\), expected DDL"):
        parse_outputs(types.FloatType())
    assert parse_returns(inner, "p") == parse_outputs("p struct<`a b`: bigint, c: array<float>>")[0]


@pytest.mark.parametrize(
    ("outputs", "error", "told"),
    [
        (None, ConfigError, "outputs is None, expected DDL such as 'label string, score float'"),
        (["y double"], ConfigError, r"outputs is \['y double'\], expected DDL"),
        (pa.schema([]), ConfigError, "outputs declares no column, expected at least one, such as 'score float'"),
        ("", SchemaError, "at position 0: expected a column name"),
        ("y flaot", SchemaError, "there is no type 'flaot'. Did you mean 'float'?"),
        ("y map<string,int>", SchemaError, "'map' is not supported as an output"),
        ("y int, Y int", ConfigError, r"outputs declares \['y', 'Y'\]: every name once"),
        (pa.schema([("y", pa.large_string())]), SchemaError, "the Arrow type large_string has no DDL"),
    ],
)
def test_outputs_that_are_none_are_refused(outputs: Any, error: type[Exception], told: str) -> None:
    """On the driver, with what came."""
    with pytest.raises(error, match=told):
        parse_outputs(outputs)


def test_returns_takes_a_type_and_nothing_else() -> None:
    """A type by its DDL; a list is no type, and a slip finds the right one."""
    assert parse_returns("array<float>").type == parse_outputs("p array<float>")[0].type
    with pytest.raises(ConfigError, match=r"returns is \['float'\], expected a type such as 'array<float>'"):
        parse_returns(["float"])
    with pytest.raises(SchemaError, match=r"there is no type 'stirng'. Did you mean 'string'?"):
        parse_returns("stirng")


# --- columns -----------------------------------------------------------------------------------------------------------


def test_columns_are_named_by_one_name_or_several() -> None:
    """One name is one column, and not its letters."""
    assert column_names("id", "keep") == ("id",)
    assert column_names(["id", "x"], "keep") == ("id", "x")
    assert column_names([], "keep") == ()


@pytest.mark.parametrize("given", [5, [5], {"id": 1}, [None]])
def test_what_names_no_column_is_refused(given: Any) -> None:
    """The message names the argument."""
    with pytest.raises(ConfigError, match=r"keep is .*, expected a column name or a list of them"):
        column_names(given, "keep")


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (["pixel", "id"], "inputs= names the column 'pixels', which is not there. Did you mean 'pixel'?"),
        (["a", "b"], "inputs= names the column 'pixels', which is not there. There is: 'a', 'b'."),
        ([], "which is not there. There is none."),
        (["pixels", "pixels"], "inputs= names the column 'pixels', which is there 2 times: rename or drop all but one"),
    ],
)
def test_a_column_that_is_not_there_once_is_refused(there: list[str], told: str) -> None:
    """With the nearest right name."""
    with pytest.raises(SchemaError, match=told):
        check_columns(["pixels"], there, "inputs")


def test_an_output_may_not_have_a_kept_columns_name() -> None:
    """Upper and lower case are the same to Spark; a column that is not kept is no hindrance."""
    check_output_names(parse_outputs("y double"), "error", ["x"])
    with pytest.raises(SchemaError, match="outputs declares 'y', but 'Y' is a kept column: rename the output, or leave the column out"):
        check_output_names(parse_outputs("y double"), None, ["x", "Y"])
    with pytest.raises(
        SchemaError, match=r"the error column 'error' has the name of the kept column 'Error': say error_column='\.\.\.' with"
    ):
        check_output_names(parse_outputs("y double"), "error", ["x", "Error"])


# --- the plan ----------------------------------------------------------------------------------------------------------


def test_a_plan_knows_each_column_once() -> None:
    """An input that comes twice and a key that is an input are read once."""
    made = plan(inputs={"a": "x", "b": "x", "c": "z"}, key=["id", "x"], keep=("id",))
    assert made.inputs == ("x", "z")
    assert made.columns == ("x", "z", "id")
    assert (made.key, made.keep) == (("id", "x"), ("id",))
    assert plan(key="id").key == ("id",)
    assert made.output_schema == pa.schema([("y", pa.float64())])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"on_null": "drop"}, "on_null is 'drop', expected one of 'raise', 'null', 'pass'"),
        ({"on_error": "skip"}, "on_error is 'skip', expected one of 'raise', 'null'"),
        ({"config": InferenceConfig(max_errors=3)}, "max_errors=3 counts bad rows, but on_error='raise' ends the job at the first"),
        ({"config": InferenceConfig(preprocess_timeout_seconds=3)}, "preprocess_timeout_seconds=3 .*, but there is no preprocess"),
        (
            {"config": InferenceConfig(preprocess_timeout_seconds=0.5), "functions": Functions(preprocess=abs)},
            "preprocess_timeout_seconds=0.5 limits preprocess in loader processes, but num_workers=0 .* say num_workers=1 or more",
        ),
        ({"on_error": "null", "error_column": "Y"}, "the error column 'Y' has the name of an output: say error_column="),
        ({"on_error": "null", "error_column": ""}, "error_column is '', expected a column name"),
        ({"key": 5}, "key is 5, expected a column name or a list of them"),
        ({"functions": Functions(preprocess=abs, preprocess_batch=abs)}, r"preprocess \(one row\) and preprocess_batch .* are both given"),
        ({"functions": Functions(preprocess=3)}, "preprocess is int, expected a function"),
        ({"functions": Functions(preprocess_batch="f")}, "preprocess_batch is str, expected a function"),
        ({"functions": Functions(postprocess=[])}, "postprocess is list, expected a function"),
        (
            {"functions": Functions(preprocess_on_device=abs)},
            r"preprocess_on_device takes tensors of PyTorch or TensorFlow, and PythonModel\(.*\) runs in the backend 'numpy': do it in",
        ),
        ({"functions": Functions(preprocess_on_device=abs), "inputs": None}, "cannot tell which columns preprocess_on_device takes"),
    ],
)
def test_a_wrong_argument_is_refused(changes: dict[str, Any], told: str) -> None:
    """The message has the argument, what came and what would be right."""
    with pytest.raises(ConfigError, match=told):
        plan(**changes)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (np.abs, "model is ufunc, expected TorchModel, TensorFlowModel, MlflowModel or PythonModel: wrap it, such as si.TorchModel"),
        ("model.pt", "model is str, expected TorchModel"),
        (si.TorchModel, "model is the class TorchModel, expected TorchModel"),
        (SimpleNamespace(describe=dict), "model is SimpleNamespace, expected TorchModel"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, told: str) -> None:
    """A function, a path, a class of ours, and another library's object with a ``describe`` (as a DataFrame has)."""
    with pytest.raises(ConfigError, match=told):
        plan(model)


def test_a_function_that_cannot_travel_is_refused_by_name() -> None:
    """The first that holds a lock, with the argument's name."""
    import threading

    lock = threading.Lock()
    for name in ("preprocess", "preprocess_batch", "postprocess"):
        with pytest.raises(ConfigError, match=rf"variable 'lock' \w+ {name}, a lock, cannot travel"):
            plan(functions=Functions(**{name: lambda x: (lock, x)}))


def test_a_model_file_that_is_missing_fails_here() -> None:
    """Before any data is looked at."""
    with pytest.raises(ModelLoadError, match=r"nowhere\.pt2"):
        plan(si.TorchModel("/nowhere.pt2"))


# --- against the model and the columns' types --------------------------------------------------------------------------


def test_a_declared_shape_must_fit_the_models_own() -> None:
    """Both shapes are told; a free axis on either side fits anything, and one input needs no name."""
    model = Known(TensorInfo("images", "float32", (3, None, 8)))
    plan(model, inputs=("x", si.TensorSpec("float32", (3, 5, 8))))
    plan(model, inputs=("x", si.TensorSpec("float32", (None, None, None))))
    for shape in [(3, 5, 9), (3, 8)]:
        with pytest.raises(SchemaError, match=r"the input 'x' is declared with shape \(3, .*\), but Known\(m\) takes \(3, None, 8\)"):
            plan(model, inputs=("x", si.TensorSpec("float32", shape)))


def test_the_number_and_names_of_inputs_are_checked() -> None:
    """Of a model that says what it takes; a mask counts; a preprocess may make anything."""
    model = Known(TensorInfo("ids", "int64", (None,)), TensorInfo("mask", "int64", (None,)))
    plan(model, inputs={"ids": ("x", si.TensorSpec(pad=0, mask="mask"))})
    plan(model, inputs="x", functions=Functions(preprocess=abs))
    with pytest.raises(ConfigError, match=r"Known\(m\) has no input 'musk'. Did you mean 'mask'?"):
        plan(model, inputs={"ids": "x", "musk": "m"})
    with pytest.raises(ConfigError, match=r"takes 2 inputs \('ids', 'mask'\), but 3 came"):
        plan(model, inputs=["a", "b", "c"])


def test_a_struct_is_its_fields() -> None:
    """The fields' names are checked against the model's inputs, those of a nested struct as ``a.b``; another lone column is one input."""
    model = Known(TensorInfo("a", "float32", ()), TensorInfo("in.b", "float32", ()))
    made = plan(model, inputs="x")
    check_input_types(made, {"x": pa.struct([("a", pa.float32()), ("in", pa.struct([("b", pa.float32())]))])})
    with pytest.raises(ConfigError, match="has no input 'b'"):
        check_input_types(made, {"x": pa.struct([("a", pa.float32()), ("b", pa.float32())])})
    with pytest.raises(ConfigError, match=r"takes 2 inputs \('a', 'in.b'\), but 1 came"):
        check_input_types(made, {"x": pa.float32()})


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (["x", "z"], "the column 'x' is a struct, whose fields are the model's named inputs: give it alone, as inputs='x'"),
        ({"a": "x"}, "the column 'x' is a struct, whose fields are the model's named inputs: give it alone"),
        (("x", si.TensorSpec("float32")), "is a struct, .* and one TensorSpec cannot say what each is to be"),
    ],
)
def test_a_struct_stands_alone(inputs: Any, told: str) -> None:
    """Nothing that was said of it is ignored; a function of one row may get it beside others."""
    types = {"x": pa.struct([("a", pa.float32())]), "z": pa.float64()}
    with pytest.raises(SchemaError, match=told):
        check_input_types(plan(inputs=inputs), types)
    check_input_types(plan(inputs=inputs, functions=Functions(preprocess=lambda *row: row)), types)


@pytest.mark.parametrize(
    ("data_type", "spec", "told"),
    [
        (pa.map_(pa.string(), pa.int32()), None, "'x' .*map"),
        (pa.string(), si.TensorSpec("float32"), "'x' is string, and its TensorSpec asks for float32"),
        (pa.float32(), si.TensorSpec("float32", (3,)), r"'x' is float, .* asks for the shape \(3,\)"),
        (pa.list_(pa.float32()), si.TensorSpec("float32", ()), r"asks for the shape \(\)"),
    ],
)
def test_a_column_type_that_no_worker_could_decode_is_refused(data_type: pa.DataType, spec: si.TensorSpec | None, told: str) -> None:
    """With the column, its type and what to do."""
    made = plan(inputs="x" if spec is None else ("x", spec))
    with pytest.raises(SchemaError, match=told):
        check_input_types(made, {"x": data_type})


def test_a_plan_is_a_value_that_travels() -> None:
    """Pickled and back it is equal, and its step does the same."""
    import pickle

    made = plan(inputs=["a", "b"], functions=Functions(preprocess_batch=lambda a, b: a + b))
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    batch = pa.RecordBatch.from_pydict({"a": [1.0], "b": [2.0]})
    result = again.prepare(batch)
    assert isinstance(result, Inputs)
    assert [array.tolist() for array in result.arrays.values()] == [[3.0]]


def test_a_program_exported_for_one_batch_size_is_refused_for_another(tmp_path: Path) -> None:
    """The last batch of a partition would not fit, so the driver refuses it and says how to export; single rows always fit."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "fixed.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(3, 1).eval(), (torch.zeros(1, 3),)), path)
    table = pa.table({"x": pa.array([[1.0, 2.0, 3.0]] * 3, pa.list_(pa.float32()))})
    with pytest.raises(ConfigError, match=r"exported for batches of exactly 1, and batch_size is 64: say batch_size=1, or export it"):
        si.predict_local(table, si.TorchModel(str(path)), inputs="x", outputs="y float")
    for size in (1, "auto"):
        assert si.predict_local(table, si.TorchModel(str(path)), inputs="x", outputs="y float", batch_size=size).num_rows == 3


def test_a_spec_beside_a_traced_function_is_refused() -> None:
    """What a tf.function makes goes to the model as it is, so a TensorSpec there would be a promise that nobody keeps."""

    class Traced:
        """Looks as a tf.function does."""

        def __call__(self, x: Any) -> Any:
            return x

        def get_concrete_function(self) -> None:
            """What tells a tf.function."""

    table = pa.table({"x": [1.0]})
    with pytest.raises(ConfigError, match=r"'x' has a TensorSpec, and preprocess is a tf.function.*tf.ensure_shape"):
        si.predict_local(table, EchoModel(), inputs=("x", si.TensorSpec("float32")), outputs="y float", preprocess=Traced())


def test_columns_given_where_one_type_belongs_are_told_as_such() -> None:
    """What is right for outputs= is nearly right for returns=: the message spells the struct."""
    with pytest.raises(ConfigError, match=r"names columns, but a UDF gives one: say returns='struct<label long, score float>'"):
        parse_returns("label long, score float")


# --- numbers, sizes, and what stands before a model ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "precision", "told"),
    [
        (Known(), "bf16", "the backend 'numpy' of Known\\(m\\) computes in the numbers that the model was saved with: leave precision out"),
        (
            Known(backend="tensorflow", kind="saved_model"),
            "bf16",
            r"Known\(m\) is a SavedModel, whose graph .*set_dtype_policy\('mixed_bfloat16'\)",
        ),
        (
            Known(backend="tensorflow", kind="keras"),
            "tf32",
            "TensorFlow computes in TF32 by itself, on cards that have it: leave precision out",
        ),
        (
            Known(backend="tensorflow", kind="keras", computes=("float64",)),
            "fp16",
            "Known\\(m\\) computes in float64, expected float32: leave",
        ),
    ],
)
def test_a_precision_that_a_model_cannot_have_is_refused_here(model: Known, precision: Any, told: str) -> None:
    """At the call, before any job, with what to do instead."""
    with pytest.raises(ConfigError, match=f"precision is '{precision}', and {told}"):
        plan(model, config=InferenceConfig(precision=precision))


def test_a_keras_model_at_another_precision_is_another_model() -> None:
    """Neither gets the other's answers from the workers' caches."""
    model = Known(backend="tensorflow", kind="keras", computes=("float32",))
    half = plan(model, config=InferenceConfig(precision="bf16")).model
    assert (half.fingerprint, half.options["precision"]) == ("f-bf16", "bf16")


def test_what_stands_before_a_model_changes_what_it_takes() -> None:
    """The model's own inputs say nothing of what the function gets, and are kept for what it gives; another function is another model."""
    info = TensorInfo("image", "float32", (3, 8, 8))
    model = Known(info, backend="torch", forward=(1, 1, ["image"]))
    spec = ("x", si.TensorSpec("uint8", (8, 8, 3)))
    with pytest.raises(SchemaError, match="is declared with shape"):
        plan(model, inputs=spec)
    made = plan(model, inputs=spec, functions=Functions(preprocess_on_device=abs)).model
    assert (made.inputs, made.options["on_device"].inputs) == (None, (info,))
    assert made.fingerprint != plan(model, inputs=spec, functions=Functions(preprocess_on_device=len)).model.fingerprint
    plan(model, inputs=["a", "b"], functions=Functions(preprocess_on_device=max))  # two columns may become one input


@pytest.mark.parametrize(
    ("rows", "config", "told"),
    [
        (
            8,
            InferenceConfig(batch_size=64),
            "exactly 8, and batch_size is 64: say batch_size=8, or export it with a free batch axis, torch.export",
        ),
        (8, InferenceConfig(batch_size=8, pad_tail=False), "exactly 8, and pad_tail=False leaves .* short: leave pad_tail out, or"),
        (8, InferenceConfig(batch_size=8), None),
        (1, InferenceConfig(batch_size=1, pad_tail=False), None),
    ],
)
def test_a_model_for_one_batch_size_needs_that_size(rows: int, config: InferenceConfig, told: str | None) -> None:
    """Short batches are filled up, unless that is switched off."""
    model = Known(backend="torch", rows=rows)
    if told is None:
        plan(model, config=config)
        return
    with pytest.raises(ConfigError, match=told):
        plan(model, config=config)
