"""``profile``: a bounded run for the profilers' sake.

Runs on: driver.

Invariant: a profile reads no more batches than it says, and writes nothing; of MLflow it knows a run that is open, whose artifact its page becomes.
"""

from __future__ import annotations

import time
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sparkinfer.analysis.leaks import judge_memory
from sparkinfer.exceptions import ConfigError, remark
from sparkinfer.metrics import Execution, RunMetrics
from sparkinfer.profiles import ProfilePlan
from sparkinfer.reporting.profile import Profile
from sparkinfer.run import environment_of, inference_run

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import Describable

__all__ = ["profile"]


def profile(
    data: Any,
    model: Describable,
    *,
    partitions: int | tuple[int, ...] = 2,
    batches: int = 8,
    skip: int = 1,
    take: int = 3,
    path: str | None = None,
    **arguments: Any,
) -> Profile:
    """Look into a model with its framework's own profiler, on a few batches of a few partitions.

    Args:
        data: what ``predict`` takes, in whose workers the profile is made; or what ``predict_local`` takes, and it is made in this process.
        model: ``TorchModel``, ``TensorFlowModel``, ``MlflowModel`` or ``PythonModel``.
        partitions: a number takes the partitions 0, 1, ... below it; a tuple names them. The others read nothing.
        batches: that a watched partition reads at most.
        skip: model calls before the profiler starts: the first one warms up.
        take: model calls that it watches.
        path: a folder or URL that all workers can write, for traces of more than 200 kB.
        **arguments: ``predict``'s keywords, those for the outputs among them.

    Returns:
        The profile: ``operators``, ``stacks``, ``memory``, ``save_report``, ``save_trace``, ``save_tensorboard``. In an open MLflow run its page is among
        the artifacts.

    Raises:
        ConfigError: a value is out of its range, or ``batches`` leaves nothing to watch; and what ``predict`` raises.

    Example:
        >>> import pandas as pd, sparkinfer as si
        >>> double = si.PythonModel(lambda: lambda x: 2 * x)
        >>> seen = si.profile(pd.DataFrame({"x": [1.0] * 8}), double, inputs="x", outputs="y double", batch_size=2)
        >>> seen.calls[0].batches
        3
    """
    plan = ProfilePlan(partitions=partitions, skip=skip, take=take, path=path, bounded=batches)
    if batches <= skip:
        msg = f"batches is {batches} and skip is {skip}: nothing is left to watch; read more batches or skip fewer"
        raise ConfigError(msg)
    metrics = _in_workers(data, model, plan, arguments) if _is_for_spark(data) else _here(data, model, plan, arguments)
    seen = Profile(metrics, judge_memory(metrics.partitions))
    if not any(call.batches for call in seen.calls):
        remark(f"the profile is empty: {'; '.join(seen.remarks) or 'no watched partition had rows; name others with partitions=(...)'}")
    import_module("sparkinfer.reporting.mlflow_findings").log_page("profile", seen)
    return seen


def _is_for_spark(data: Any) -> bool:
    return hasattr(data, "mapInArrow") or isinstance(data, (str, PathLike)) or type(data).__module__ == "sparkinfer.spark.files"


def _in_workers(data: Any, model: Describable, plan: ProfilePlan, arguments: dict[str, Any]) -> RunMetrics:
    spark = import_module("sparkinfer.spark.predict")
    scored = spark.predict(data, model, **{**arguments, "keep": [], "road": "map"})  # the column road would owe Spark a row for every row
    with inference_run("profile", progress=False, mlflow=False, profile=plan) as run:
        import_module("sparkinfer.spark.chosen").run_in(scored, plan.numbers)
    return run.metrics


def _here(data: Any, model: Describable, plan: ProfilePlan, arguments: dict[str, Any]) -> RunMetrics:
    begun = time.time()
    record = import_module("sparkinfer.local").measure_local(data, model, plan, **arguments)
    return RunMetrics(
        id=uuid4().hex[:12],
        name="profile",
        started_unix=begun,
        ended_unix=time.time(),
        executions=(Execution(record.call, None, (record,), 0),),
        environment=environment_of(None),
    )
