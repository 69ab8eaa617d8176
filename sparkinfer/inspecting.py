"""``si.inspect_model`` and ``si.compare_precision``: a bounded look at a model, in the workers or in this process.

Runs on: driver.

Invariant: no more rows are read than are said, nothing is written but the page to an open MLflow run, and the model runs in the loop that scores everything.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from sparkinfer.analysis.inspection import ModelInspection, read_baseline
from sparkinfer.analysis.precision import PrecisionComparison, compared
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.comparing import CompareWork
from sparkinfer.engine.inside import InspectWork
from sparkinfer.exceptions import ConfigError
from sparkinfer.insides import Insides, merge_insides
from sparkinfer.planning import at_precision
from sparkinfer.profiles import ProfilePlan

if TYPE_CHECKING:
    from pathlib import Path

    from sparkinfer.engine.contracts import Describable

__all__ = ["compare_precision", "inspect_model"]


def inspect_model(
    data: Any,
    model: Describable,
    *,
    partitions: int | tuple[int, ...] = 2,
    batches: int = 8,
    graph: bool = True,
    baseline: str | Path | None = None,
    config: InferenceConfig | None = None,
    **arguments: Any,
) -> ModelInspection:
    """Look at each layer of a model on a few batches: mean, spread, zeros, NaN, infinite values, dead units, histograms, times.

    PyTorch modules and exported programs, and Keras models, are looked at layer by layer; of a SavedModel, TorchScript or a Python model the inputs and
    outputs alone. ``optimize=`` is left out. The rows go through the loop as in ``predict``, with the user's own functions; nothing is written.

    Args:
        data: what ``predict`` takes, in whose workers the look is taken; or what ``predict_local`` takes, and it is taken in this process. A list of
            tables is taken for partitions.
        model: as in ``predict``.
        partitions: a number takes the partitions 0, 1, ... below it; a tuple names them. The others read nothing.
        batches: to look at in each of them: the first ones, without Spark slices that are spread over a table.
        graph: draw the model, too: in one partition, by ``torch.export`` where it is a PyTorch module.
        baseline: a file that ``save_baseline`` wrote: what is distributed otherwise now is drift.
        config: settings; single ones by name beat it.
        **arguments: ``predict``'s keywords.

    Returns:
        A ``ModelInspection``: print it, end a notebook's cell with it, ``save_report`` it; ``layers``, ``outputs``, ``findings``, ``drift``. In
        an open MLflow run its page is among the artifacts.

    Raises:
        ConfigError: a value is out of its range, the baseline cannot be read, or no partition had rows; and what ``predict`` raises.

    Example:
        >>> import pandas as pd, sparkinfer as si
        >>> log = si.PythonModel(lambda: lambda x: x * 0 + 1)
        >>> seen = si.inspect_model(pd.DataFrame({"x": [0.5] * 8}), log, inputs="x", outputs="y double", batch_size=4)
        >>> seen.findings
        ("the output 'y' is 1 in all 8 values that were sampled",)
    """
    watched = ProfilePlan(partitions=partitions, bounded=batches)
    then, fingerprint = (None, "") if baseline is None else read_baseline(baseline)
    settings, rest = _settings(config, arguments)
    looked_at, remarks = _with_layers(model)
    sample = _sample(data, looked_at, rest, settings)
    drawn_in = None if not graph else watched.partitions[0] if isinstance(watched.partitions, tuple) else 0
    told = sample.run(InspectWork(plan=sample.plan, batches=batches, drawn_in=drawn_in), watched, batches * settings.batch_rows)
    seen = merge_insides(map(Insides.read, told))
    if not seen.rows:
        msg = "the partitions that were looked at have no rows: name others with partitions=(...)"
        raise ConfigError(msg)
    described = sample.plan.model
    found = ModelInspection(replace(seen, remarks=(*remarks, *seen.remarks)), described.label, described.fingerprint, then, fingerprint)
    import_module("sparkinfer.reporting.mlflow_findings").log_page("inspection", found)
    return found


def compare_precision(
    data: Any,
    model: Describable,
    precision: str,
    *,
    rows: int = 2000,
    seconds: float = 30.0,
    partitions: int | tuple[int, ...] = 2,
    config: InferenceConfig | None = None,
    **arguments: Any,
) -> PrecisionComparison:
    """Score the same rows in float32 and in another precision, in turn: how much faster it is, and how far the answers are apart.

    Args:
        data: as in ``inspect_model``.
        model: as in ``predict``; a PyTorch model.
        precision: ``"bf16"``, ``"fp16"`` or ``"tf32"``, as ``predict`` takes it.
        rows: of each partition, kept in memory.
        seconds: to spend in each partition, in about; there are three rounds at least.
        partitions: as in ``inspect_model``.
        config: settings; single ones by name beat it.
        **arguments: ``predict``'s keywords.

    Returns:
        A ``PrecisionComparison``: print it, or end a notebook's cell with it; ``gain``, ``outputs``. In an open MLflow run its page is among the artifacts.

    Raises:
        ConfigError: a value is out of its range, the model or the device does not compute in that precision, or no partition had rows; and what
            ``predict`` raises.

    Example:
        ::

            found = si.compare_precision(photos, model, "bf16", inputs="content", outputs="scores array<float>")
            print(found)
    """
    if rows < 1 or seconds <= 0:
        msg = f"rows is {rows} and seconds is {seconds}, expected at least 1 row and more than 0 s"
        raise ConfigError(msg)
    if precision == "fp32":
        msg = "precision is 'fp32', which is what it would be compared with: say 'bf16', 'fp16' or 'tf32'"
        raise ConfigError(msg)
    watched = ProfilePlan(partitions=partitions)
    settings, rest = _settings(config, arguments)
    other = InferenceConfig.build(settings, {"precision": precision})
    sample = _sample(data, model, rest, replace(settings, precision="fp32"))
    second = replace(sample.plan, model=at_precision(sample.plan.model, precision), config=other)
    told = sample.run(CompareWork(first=sample.plan, second=second, rows=rows, seconds=seconds), watched, max(1, rows // 8))
    found = compared([one for one in told if one], precision, sample.plan.model.label)
    import_module("sparkinfer.reporting.mlflow_findings").log_page("precision", found)
    return found


def _settings(config: InferenceConfig | None, arguments: dict[str, Any]) -> tuple[InferenceConfig, dict[str, Any]]:
    """Tell settings from ``predict``'s other keywords."""
    names = InferenceConfig.__dataclass_fields__
    overrides = {name: value for name, value in arguments.items() if name in names}
    return InferenceConfig.build(config, overrides), {name: value for name, value in arguments.items() if name not in names}


def _sample(data: Any, model: Describable, arguments: dict[str, Any], settings: InferenceConfig) -> Any:
    spark = hasattr(data, "mapInArrow") or isinstance(data, (str, PathLike)) or type(data).__module__ == "sparkinfer.spark.files"
    if spark:
        return import_module("sparkinfer.spark.sampled").SparkSample(data, model, arguments, settings)
    return import_module("sparkinfer.local_sample").LocalSample(data, model, arguments, settings)


def _with_layers(model: Any) -> tuple[Any, tuple[str, ...]]:
    """Leave an engine or a compiler out, which makes one piece of the layers; tell of it."""
    engine = getattr(model, "optimize", None)
    if engine is None or isinstance(model, type) or not is_dataclass(model):
        return model, ()
    itself: Any = model
    return replace(itself, optimize=None, example_inputs=None), (f"optimize={engine!r} is left out here: the model itself is looked at",)
