"""The calls of ``predict`` and ``predict_udf`` whose partitions may still report.

Runs on: driver.

Invariant: a call is known by its id alone; the newest ones are kept, so that a long session does not grow.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sparkinfer.spark.session import is_connect

if TYPE_CHECKING:
    from sparkinfer.engine.partition import PartitionPlan
    from sparkinfer.spark.channels import MetricsChannel

__all__ = ["Call", "known_calls", "register_call"]

_KEPT = 200

_lock = Lock()
_calls: OrderedDict[str, Call] = OrderedDict()


@dataclass(frozen=True)
class Call:
    """One ``predict`` or ``predict_udf``.

    Attributes:
        id: unique.
        plan: what it does.
        road: ``map``, ``column`` or ``udf``.
        channel: where its records come.
        session: whose it is.
        data: what is scored; ``None`` for a UDF, which is told of no DataFrame.
    """

    id: str
    plan: PartitionPlan
    road: str
    channel: MetricsChannel
    session: Any
    data: Any = field(default=None, repr=False)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Give what the call was asked to do, for people and sinks; looked up once, and no job is run for it."""
        model = self.plan.model
        return {
            "model": model.label,
            "model_fingerprint": model.fingerprint[:16],
            "backend": model.backend,
            "road": self.road,
            "on_null": self.plan.on_null,
            **_slots(self.session),
            **_source_of(self.data),
            **asdict(self.plan.config),
        }


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
        folder = str(files[0]).rpartition("/")[0]
    except Exception:  # noqa: BLE001 - no DataFrame, a stream, a session that hides its JVM
        return {}
    while "=" in folder.rpartition("/")[2]:
        folder = folder.rpartition("/")[0]
    return {"data_name": folder.rpartition("/")[2], "data_source": folder}


def register_call(plan: PartitionPlan, road: str, channel: MetricsChannel, session: Any, data: Any = None) -> Call:
    """Remember a call, and let the oldest go where there are too many."""
    call = Call(uuid4().hex[:12], plan, road, channel, session, data)
    with _lock:
        _calls[call.id] = call
        while len(_calls) > _KEPT:
            _calls.popitem(last=False)[1].channel.forget()
    return call


def known_calls() -> list[Call]:
    """Give the calls, the oldest first."""
    with _lock:
        return list(_calls.values())
