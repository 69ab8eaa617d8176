"""Ask a session's workers something, also workers that lack this library.

Runs on: driver; what it asks runs on the workers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

__all__ = ["ask_workers"]


def ask_workers(session: Any, ask: Callable[[], dict[str, Any]], tasks: int) -> list[dict[str, Any]]:
    """Call a function without arguments in every one of some tasks.

    Args:
        session: whose workers are asked.
        ask: gives what JSON can hold; its module goes along by value.
        tasks: how many; Spark spreads them over the free slots.

    Returns:
        The different answers.
    """
    module = sys.modules[ask.__module__]
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # pyspark has a cloudpickle of its own
    try:
        asked = F.udf(_asked(ask), "string", useArrow=False)  # works where the workers have no pyarrow
        answers = session.range(0, tasks, 1, tasks).select(asked("id").alias("answer")).distinct().collect()
    finally:
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return [json.loads(row.answer) for row in sorted(answers, key=lambda row: row.answer)]


def _asked(ask: Callable[[], dict[str, Any]]) -> Callable[[int], str]:
    def answer(task: int) -> str:
        del task
        return json.dumps(ask(), sort_keys=True)

    return answer
