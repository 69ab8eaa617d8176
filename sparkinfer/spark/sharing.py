"""How many Python workers share a card, worked out from Spark's settings before anything runs.

Runs on: driver.

Invariant: a number that the settings do not decide is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkinfer.spark.session import remark_once, setting

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig

__all__ = ["check_sharing", "crowding", "slots_of", "workers_per_gpu"]

_KEYS = (
    "spark.executor.cores",
    "spark.task.cpus",
    "spark.executor.resource.gpu.amount",
    "spark.task.resource.gpu.amount",
)


def workers_per_gpu(settings: Mapping[str, str]) -> int:
    """Give the most Python workers that Spark lets run on one card at a time, each with a model of its own.

    Spark fills a card with tasks before it begins the next one, so this is what the task's share of a card allows, but no more than an
    executor's cores have tasks.

    Args:
        settings: Spark's, by name; those that are not there have Spark's defaults.

    Returns:
        0 where Spark is not told of cards.

    Example:
        >>> gpu = {"spark.executor.cores": "16", "spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "0.0625"}
        >>> workers_per_gpu(gpu)
        16
        >>> workers_per_gpu({**gpu, "spark.task.resource.gpu.amount": "1"}), workers_per_gpu({"spark.executor.cores": "16"})
        (1, 0)
    """
    cards = _number(settings, "spark.executor.resource.gpu.amount", 0.0)
    share = _number(settings, "spark.task.resource.gpu.amount", 0.0)
    if not cards or not share:
        return 0
    by_share = int(1 / share + 1e-9) if share < 1 else 1
    slots = slots_of(settings)
    return by_share if slots is None else max(1, min(by_share, slots))


def slots_of(settings: Mapping[str, str], master: str | None = None) -> int | None:
    """Give the tasks that an executor's cores run at a time; ``None`` where the settings do not tell its cores.

    Example:
        >>> slots_of({"spark.executor.cores": "16", "spark.task.cpus": "4"}), slots_of({}, "local[2]"), slots_of({})
        (4, 2, None)
    """
    local = re.match(r"local\[(\d+)", master or "")
    cores = float(local[1]) if local else _number(settings, "spark.executor.cores", 0.0)
    return max(1, int(cores / (_number(settings, "spark.task.cpus", 1.0) or 1.0))) if cores else None


def check_sharing(session: Any, config: InferenceConfig) -> int | None:
    """Warn once where Spark lets more workers on a card than ``tasks_per_gpu``; give an executor's task slots, where they are known."""
    settings = {key: value for key in _KEYS if (value := setting(session, key)) is not None}
    told = crowding(settings, config)
    if told is not None:
        remark_once(session, told)
    return slots_of(settings, setting(session, "spark.master"))


def crowding(settings: Mapping[str, str], config: InferenceConfig) -> str | None:
    """Say what to change where Spark lets more workers on a card than ``tasks_per_gpu``."""
    workers, most = workers_per_gpu(settings), config.tasks_per_gpu
    if not isinstance(most, int) or workers <= most:
        return None
    return (
        f"Spark's settings let {workers} Python workers on a card, and tasks_per_gpu={most}: {workers - most} of them wait with their cores "
        f"idle, and models are loaded in turn. Set spark.task.resource.gpu.amount={1 / most:.4g}"
    )


def _number(settings: Mapping[str, str], key: str, default: float) -> float:
    try:
        return float(settings.get(key) or default)
    except ValueError:  # Spark itself refuses it when it starts
        return default
