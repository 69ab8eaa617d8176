"""The calls of ``predict`` and ``predict_udf`` whose partitions may still report.

Runs on: driver.

Invariant: a call is known by its id alone; the newest ones are kept, and of those neither a model's nor a function's bytes, so that a long session
(``foreachBatch`` calls ``predict`` for months) does not grow.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sparkinfer.artifacts import without_userinfo
from sparkinfer.spark.session import is_connect

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import ModelPlan
    from sparkinfer.engine.partition import PartitionPlan
    from sparkinfer.spark.channels import MetricsChannel

__all__ = ["CALLS_KEPT", "Call", "calls_made", "known_calls", "register_call"]

CALLS_KEPT = 200
_DATA_KEPT = 20  # a DataFrame that is held keeps its shuffle files on the executors' disks

_lock = Lock()
_calls: OrderedDict[str, Call] = OrderedDict()
_data: OrderedDict[str, Any] = OrderedDict()  # by call: what is scored
_made = 0


@dataclass(frozen=True)
class Call:
    """One ``predict`` or ``predict_udf``.

    Attributes:
        id: unique.
        plan: what it does, without the bytes that do it.
        road: ``map``, ``column`` or ``udf``.
        channel: where its records come.
        session: whose it is.
    """

    id: str
    plan: PartitionPlan
    road: str
    channel: MetricsChannel
    session: Any

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Give what the call was asked to do, for people and sinks; looked up once, and no job is run for it."""
        model = self.plan.model
        with _lock:
            data = _data.pop(self.id, None)
        return {
            "model": model.label,
            "model_fingerprint": model.fingerprint[:16],
            "backend": model.backend,
            "road": self.road,
            "on_null": self.plan.on_null,
            **_slots(self.session),
            **_source_of(data),
            **({} if model.model_id is None else {"model_id": model.model_id}),
            **_engine_of(model),
            **asdict(self.plan.config),
        }


def _engine_of(model: ModelPlan) -> dict[str, Any]:
    """Give what runs the model, where ``optimize=`` was asked for, and how far its answers are from the model's own."""
    made = model.optimized
    if made is None:
        return {}
    apart = {} if made.max_abs_difference is None else {"optimize_max_abs_difference": made.max_abs_difference}
    return {"optimize": made.asked, "engine": made.engine or "the model as it is", **apart}


def _slots(session: Any) -> dict[str, int]:
    """Give how many tasks can run at once, where the session tells: the verdict on few partitions needs it."""
    if is_connect(session):
        return {}
    try:
        return {"slots": int(session.sparkContext.defaultParallelism)}
    except Exception:  # noqa: BLE001 - a session that hides its context
        return {}


def _source_of(data: Any) -> dict[str, str]:
    """Name the files that are scored by the folder of the first one, without its partition folders; nothing where there are none."""
    try:
        files = data._jdf.inputFiles() if hasattr(data, "_jdf") else data.inputFiles()  # noqa: SLF001 - a Java array: only its first is fetched
        folder = without_userinfo(str(files[0]).rpartition("/")[0])  # it goes to MLflow and into the summary
    except Exception:  # noqa: BLE001 - no DataFrame, a stream, a session that hides its JVM
        return {}
    while "=" in folder.rpartition("/")[2]:
        folder = folder.rpartition("/")[0]
    return {"data_name": folder.rpartition("/")[2], "data_source": folder}


def register_call(plan: PartitionPlan, road: str, channel: MetricsChannel, session: Any, data: Any = None) -> Call:
    """Remember a call, and let the oldest go where there are too many.

    Args:
        plan: what it does.
        road: ``map``, ``column`` or ``udf``.
        channel: where its records come.
        session: whose it is.
        data: what is scored; a UDF is told of no DataFrame.
    """
    global _made  # noqa: PLW0603 - counted for the process
    call = Call(uuid4().hex[:12], _light(plan), road, channel, session)
    with _lock:
        _made += 1
        _calls[call.id] = call
        while len(_calls) > CALLS_KEPT:
            _calls.popitem(last=False)[1].channel.forget()
        if data is not None:
            _data[call.id] = data
        while len(_data) > _DATA_KEPT:
            _data.popitem(last=False)
    return call


def _light(plan: PartitionPlan) -> PartitionPlan:
    options = {name: value for name, value in plan.model.options.items() if name != "on_device"}
    return replace(
        plan,
        model=replace(plan.model, payload=b"", files=(), options=options),
        prepare=replace(plan.prepare, function=b""),
        postprocess=b"",
    )


def calls_made() -> int:
    """Count the calls of this process, those that were let go among them."""
    return _made


def known_calls() -> list[Call]:
    """Give the calls, the oldest first."""
    with _lock:
        return list(_calls.values())
