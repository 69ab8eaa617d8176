"""A remark where the predictions of one ``predict`` are scored a second time.

Runs on: driver, on the thread on which Spark hands over what accumulators got.

Invariant: it is said once a call, and only if an action that ran to its end and another one scored the same rows; nothing is ever raised, and no
job is run.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from sparkinfer.exceptions import CallSite
from sparkinfer.metrics import scored_again
from sparkinfer.spark.executions import look_up

__all__ = ["RepeatWatch"]

_REMEMBERED = 20  # actions of one call; older ones cannot be found again


class RepeatWatch:
    """Listens to the records of one call; made where the user's line can be seen."""

    def __init__(self, session: Any) -> None:
        """Take the session, and the user's line: by the second action nobody of ours is called in the user's own thread."""
        self._session = session
        self._site = CallSite.here()
        self._rows: OrderedDict[str, dict[int, int]] = OrderedDict()  # by action: rows by partition
        self._micro_batch: str | None = None
        self._done = False

    def __call__(self, texts: Iterable[str]) -> None:
        """Take records as they come, each as JSON."""
        with suppress(Exception):  # a filter that makes errors of warnings, a session that ends: no reason to fail the user's job
            for text in texts:
                if not self._done:
                    self._take(json.loads(text))

    def _take(self, record: dict[str, Any]) -> None:
        action = record.get("execution")
        if action is None:  # an RDD's action: no two of them can be told apart
            return
        if record.get("micro_batch") != self._micro_batch:  # other rows of the same stream
            self._micro_batch = record.get("micro_batch")
            self._rows.clear()
        rows = self._rows.setdefault(action, {})
        rows[record["partition"]] = rows.get(record["partition"], 0) + record["rows"]
        while len(self._rows) > _REMEMBERED:
            self._rows.popitem(last=False)
        earlier = next((one for one in self._rows if one != action and scored_again(self._rows[one], rows)), None)
        if earlier is not None and self._in_full(earlier, ended=True) and self._in_full(action, ended=False):
            self._done = True
            self._rows.clear()
            self._site.remark(
                f"the predictions made here were scored a second time ({sum(rows.values()):,} rows): cache() or write them once, and read that"
            )

    def _in_full(self, action: str, *, ended: bool) -> bool:
        """Tell whether an action scores everything, as Spark's plan tells: one that a limit stops, or that failed, is taken out of account."""
        found = look_up(self._session, action)
        if found is None:
            return False
        told, has_ended = found
        if told.limited or told.error:
            self._rows.pop(action, None)
            return False
        return has_ended or not ended
