"""From what the user says to one frozen ``PartitionPlan``, checked on the driver.

Runs on: driver.

Invariant: what can be known to be wrong before any job is refused here, in a sentence that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sparkinfer.arguments import InputsArgument, column_names, model_names, parse_inputs
from sparkinfer.artifacts import fingerprint_of
from sparkinfer.defaults import default_inputs, default_outputs
from sparkinfer.engine.contracts import ModelPlan, OnDevice
from sparkinfer.engine.partition import OnNull, PartitionPlan
from sparkinfer.engine.prepare import Binding, Prepare
from sparkinfer.engine.signature import check_inputs
from sparkinfer.exceptions import ConfigError, SchemaError
from sparkinfer.pickling import dumps

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.batch import Style
    from sparkinfer.engine.contracts import Describable
    from sparkinfer.engine.encode import OutputColumn

__all__ = ["Functions", "at_precision", "check_input_types", "describe", "plan_partition", "refuse_unsaid"]


@dataclass(frozen=True, kw_only=True)
class Functions:
    """The user's functions, as they were given."""

    preprocess: Callable[..., Any] | None = None
    preprocess_batch: Callable[..., Any] | None = None
    preprocess_on_device: Callable[..., Any] | None = None
    postprocess: Callable[..., Any] | None = None


def plan_partition(
    model: Describable,
    *,
    inputs: InputsArgument | None,
    outputs: tuple[OutputColumn, ...] | None,
    keep: Sequence[str],
    key: str | Sequence[str] | None,
    functions: Functions,
    on_null: str,
    on_error: str,
    error_column: str = "error",
    config: InferenceConfig,
    there: Sequence[str] | None = None,
) -> PartitionPlan:
    """Check and freeze everything but the data's own schema.

    Args:
        model: as the user gives it.
        inputs: as the user gives it; ``None`` leaves it to the model's own signature.
        outputs: what is declared, without the error column; ``None`` leaves it to the model's own signature.
        keep: the columns that come back.
        key: the columns whose values an error names.
        functions: the user's.
        on_null: what a null in an input column means.
        on_error: what becomes of a bad row.
        error_column: the name of the column for reasons; it counts only where ``on_error`` is ``"null"``.
        config: the settings.
        there: the data's columns, for inputs that are left to the model; ``None`` where they are not known.

    Raises:
        ConfigError: an argument or a function is wrong.
        SchemaError: the model's own inputs are not among the data's columns.
        ModelLoadError: the model cannot be read.
    """
    refuse_unsaid(inputs, outputs, functions)
    said = None if inputs is None else parse_inputs(inputs)
    _one_of("on_null", on_null, ("raise", "null", "pass"))
    _one_of("on_error", on_error, ("raise", "null"))
    _check_limits(on_error, config)
    tolerant = on_error == "null"
    given = None if said is None else _prepare(*said, functions, on_null, tolerant=tolerant)
    described = _after(functions.preprocess_on_device, at_precision(describe(model), config.precision))
    prepare = given or _prepare(*default_inputs(described, there), functions, on_null, tolerant=tolerant)
    _check_timeout(prepare, described, config)
    config = _with_batch_size(described, config)
    if not prepare.function:
        if not _may_be_struct(prepare):
            check_inputs(described, prepare.style, [name for binding in prepare.bindings for name in model_names(binding)])
        _check_specs(described, prepare.bindings)
    postprocess = _pickled("postprocess", functions.postprocess)
    columns = default_outputs(described) if outputs is None else outputs
    return PartitionPlan(
        model=described,
        prepare=replace(prepare, ragged=bool(described.options.get("ragged"))),
        postprocess=postprocess,
        outputs=columns,
        keep=tuple(keep),
        key=() if key is None else column_names(key, "key"),
        on_null=_null_policy(on_null),
        config=config,
        error_column=_error_column(error_column, columns) if tolerant else None,
    )


def refuse_unsaid(inputs: object, outputs: object, functions: Functions) -> None:
    """Refuse to leave to a signature what stands before and after the model.

    Raises:
        ConfigError: inputs or outputs is ``None``, and a function stands on that side.
    """
    before = [name for name in ("preprocess", "preprocess_batch", "preprocess_on_device") if getattr(functions, name) is not None]
    if inputs is None and before:
        msg = f"inputs is not given, and the model's signature cannot tell which columns {before[0]} takes: name them, as in inputs='x'"
        raise ConfigError(msg)
    if outputs is None and functions.postprocess is not None:
        msg = (
            "outputs is not given, and the model's signature cannot tell what postprocess gives: declare it, as in outputs='label string, "
            "score float' (in predict_udf, returns='string')"
        )
        raise ConfigError(msg)


def describe(model: object) -> ModelPlan:
    """Have a model read and checked.

    Raises:
        ConfigError: it is none.
        ModelLoadError: it cannot be read.
    """
    described = model.describe() if not isinstance(model, type) and hasattr(model, "describe") else None
    if isinstance(described, ModelPlan):
        return described
    came = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
    msg = (
        f"model is {came}, expected TorchModel, TensorFlowModel, MlflowModel or PythonModel: wrap it, "
        "such as si.TorchModel(model), or give a loading function to si.PythonModel"
    )
    raise ConfigError(msg)


def _check_limits(on_error: str, config: InferenceConfig) -> None:
    """Refuse limits that would limit nothing."""
    for name in ("max_errors", "max_error_fraction"):
        if on_error == "raise" and getattr(config, name) is not None:
            msg = f"{name}={getattr(config, name)} counts bad rows, but on_error='raise' ends the job at the first: say on_error='null'"
            raise ConfigError(msg)


def _check_timeout(prepare: Prepare, model: ModelPlan, config: InferenceConfig) -> None:
    """Refuse a time limit that nothing would hold."""
    if config.preprocess_timeout_seconds is None:
        return
    if not prepare.function:
        why = "there is no preprocess: leave it out"
    elif prepare.traceable and model.backend == "tensorflow":
        why = "preprocess is a tf.function, which runs inside tf.data, where nothing can end it: give a plain function, or leave the limit out"
    elif not config.num_workers:
        why = "num_workers=0 runs preprocess in Spark's Python worker itself, where nothing can end it: say num_workers=1 or more"
    else:
        return
    msg = f"preprocess_timeout_seconds={config.preprocess_timeout_seconds:g} limits preprocess in loader processes, but {why}"
    raise ConfigError(msg)


def _error_column(name: object, outputs: Sequence[OutputColumn]) -> str:
    if not isinstance(name, str) or not name:
        msg = f"error_column is {name!r}, expected a column name"
        raise ConfigError(msg)
    if name.lower() in (column.name.lower() for column in outputs):
        msg = f"the error column {name!r} has the name of an output: say error_column='...' with another one"
        raise ConfigError(msg)
    return name


def _prepare(style: Style, bindings: tuple[Binding, ...], functions: Functions, on_null: str, *, tolerant: bool) -> Prepare:
    if functions.preprocess is not None and functions.preprocess_batch is not None:
        msg = "preprocess (one row) and preprocess_batch (a batch) are both given: give one of them"
        raise ConfigError(msg)
    per_row = functions.preprocess is not None
    function = functions.preprocess if per_row else functions.preprocess_batch
    specified = [binding.column for binding in bindings if binding.spec is not None]
    if specified and _is_traceable(function):
        msg = (
            f"the column {specified[0]!r} has a TensorSpec, and preprocess is a tf.function, whose tensors go to the model as they are: cast and "
            "reshape in the function (tf.cast, tf.ensure_shape), and leave the TensorSpec out"
        )
        raise ConfigError(msg)
    return Prepare(
        style=style,
        bindings=bindings,
        function=_pickled("preprocess" if per_row else "preprocess_batch", function),
        per_row=per_row,
        traceable=_is_traceable(function),
        nulls="pass" if on_null == "pass" else "refuse",
        tolerant=tolerant,
    )


def _is_traceable(function: object) -> bool:
    """Tell a ``tf.function`` without importing TensorFlow."""
    return hasattr(function, "get_concrete_function")


def _pickled(name: str, function: object) -> bytes:
    if function is None:
        return b""
    if not callable(function):
        msg = f"{name} is {type(function).__name__}, expected a function"
        raise ConfigError(msg)
    return dumps(function, name)


def at_precision(model: ModelPlan, precision: str) -> ModelPlan:
    """Have a model computed in other numbers; another fingerprint, since the answers are others.

    Raises:
        ConfigError: the backend has no such choice.
    """
    if precision == "fp32":
        return model
    why = _why_not_at(model, precision)
    if why:
        msg = f"precision is {precision!r}, and {why}"
        raise ConfigError(msg)
    return replace(model, fingerprint=f"{model.fingerprint}-{precision}", options={**model.options, "precision": precision})


def _why_not_at(model: ModelPlan, precision: str) -> str:
    """Say why a model cannot be computed at a precision on any device, and what to do; nothing where it may be."""
    if model.backend == "torch":
        return ""
    if model.backend != "tensorflow":
        return (
            f"the backend {model.backend!r} of {model.label} computes in the numbers that the model was saved with: leave precision out, and save the "
            "model in the numbers that it is to compute in (ONNX, MLflow: before it is logged)"
        )
    if precision == "tf32":
        return "TensorFlow computes in TF32 by itself, on cards that have it: leave precision out"
    if model.kind == "saved_model":
        return (
            f"{model.label} is a SavedModel, whose graph has its numbers written into it: leave precision out, or give the Keras model (.keras), or "
            f"export it again under keras.config.set_dtype_policy({'mixed_bfloat16' if precision == 'bf16' else 'mixed_float16'!r})"
        )
    computes = model.options.get("computes", ("float32",))
    if "float32" not in computes:
        return f"{model.label} computes in {' and '.join(computes) or 'no numbers'}, expected float32: leave precision out"
    return ""


def _after(function: Callable[..., Any] | None, model: ModelPlan) -> ModelPlan:
    """Put ``preprocess_on_device`` before a model: what both together take, nobody tells."""
    if function is None:
        return model
    if model.backend not in ("torch", "tensorflow"):
        msg = (
            f"preprocess_on_device takes tensors of PyTorch or TensorFlow, and {model.label} runs in the backend {model.backend!r}: do it in the model's own "
            "function, or in preprocess_batch"
        )
        raise ConfigError(msg)
    pickled = _pickled("preprocess_on_device", function)
    options = {**model.options, "on_device": OnDevice(pickled, model.inputs)}
    return replace(model, fingerprint=fingerprint_of(model.fingerprint, "on device", pickled), inputs=None, options=options)


def _with_batch_size(model: ModelPlan, config: InferenceConfig) -> InferenceConfig:
    """Refuse a model that was exported for one batch size where batches of another would come; ``"auto"`` has no choice there."""
    rows = model.options.get("rows")
    if rows is not None and config.batch_size == "auto":
        config = replace(config, batch_size=rows)
    batch_size = config.batch_size
    if rows is None or (batch_size == rows and (rows == 1 or config.pad_tail is not False)):
        return config
    found = f"batch_size is {batch_size}" if batch_size != rows else "pad_tail=False leaves a partition's last batch short"
    way_out = f"say batch_size={rows}" if batch_size != rows else "leave pad_tail out"
    free = "" if model.backend != "torch" else ", torch.export.export(..., dynamic_shapes=({0: torch.export.Dim('batch')},))"
    msg = f"{model.label} was exported for batches of exactly {rows}, and {found}: {way_out}, or export it with a free batch axis{free}"
    raise ConfigError(msg)


def _check_specs(model: ModelPlan, bindings: tuple[Binding, ...]) -> None:
    """Compare each declared ``TensorSpec`` with what the model says of that input."""
    known = {info.name: info for info in model.inputs or ()}
    if len(known) == 1 and len(bindings) == 1:
        known = {bindings[0].name: next(iter(known.values()))}
    for binding in bindings:
        info, spec = known.get(binding.name), binding.spec
        if info is None or spec is None or info.shape is None or spec.shape is None:
            continue
        fits = len(info.shape) == len(spec.shape) and all(
            want is None or have is None or want == have for want, have in zip(info.shape, spec.shape, strict=True)
        )
        if not fits:
            msg = (
                f"the input {binding.name!r} is declared with shape {spec.shape}, but {model.label} takes {info.shape} "
                "(both without the batch axis): change the TensorSpec or preprocess the column"
            )
            raise SchemaError(msg)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        msg = f"{name} is {value!r}, expected one of {', '.join(map(repr, allowed))}"
        raise ConfigError(msg)


def _null_policy(value: str) -> OnNull:
    policies: dict[str, Literal["raise", "null", "pass"]] = {"raise": "raise", "null": "null", "pass": "pass"}
    return policies[value]


def check_input_types(plan: PartitionPlan, types: Mapping[str, pa.DataType]) -> None:
    """Refuse on the driver the column types that no worker could decode, and specs that can never fit.

    Args:
        plan: names the columns.
        types: the Arrow type of each input column, as Spark will send it.

    Raises:
        SchemaError: names the column, its type, and what to do.
    """
    from sparkinfer.engine.column_types import check_type  # noqa: PLC0415 - brings pyarrow

    prepare = plan.prepare
    function: Literal["row", "batch"] | None = None if not prepare.function else "row" if prepare.per_row else "batch"
    for binding in prepare.bindings:
        check_type(types[binding.column], binding.column, binding.spec, function=function)
    structs = [binding for binding in prepare.bindings if _is_struct(types[binding.column])]
    if structs and function != "row":
        _check_struct(prepare, structs[0])
    if not prepare.function and _may_be_struct(prepare):
        column = prepare.bindings[0].column
        if structs:
            check_inputs(plan.model, "named", _field_names(types[column]))
        else:
            check_inputs(plan.model, prepare.style, [column])


def _may_be_struct(prepare: Prepare) -> bool:
    """Say whether the only input may turn out as several named ones, once its column's type is known."""
    return prepare.style != "named" and len(prepare.bindings) == 1 and prepare.bindings[0].spec is None


def _check_struct(prepare: Prepare, binding: Binding) -> None:
    if len(prepare.bindings) > 1 or prepare.style == "named":
        msg = (
            f"the column {binding.column!r} is a struct, whose fields are the model's named inputs: give it alone, as "
            f"inputs={binding.column!r}, or select its fields as columns first"
        )
        raise SchemaError(msg)
    if binding.spec is not None and not prepare.function:
        msg = (
            f"the column {binding.column!r} is a struct, whose fields are the model's named inputs, and one TensorSpec cannot say what "
            "each is to be: select its fields as columns, and give each its own"
        )
        raise SchemaError(msg)


def _field_names(data_type: pa.DataType) -> list[str]:
    """Name a struct's fields as the model gets them, those of nested structs as ``a.b``."""
    names: list[str] = []
    for i in range(data_type.num_fields):
        field = data_type.field(i)
        names += [f"{field.name}.{inner}" for inner in _field_names(field.type)] if _is_struct(field.type) else [field.name]
    return names


def _is_struct(data_type: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415

    from sparkinfer.engine.columns import is_ml_vector  # noqa: PLC0415

    return bool(types.is_struct(data_type)) and not is_ml_vector(data_type)
