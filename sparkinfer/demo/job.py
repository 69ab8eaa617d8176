"""One of the demo's jobs: what ``predict`` and ``diagnose`` take.

Runs on: driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sparkinfer as si

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DemoJob"]


class DemoJob(NamedTuple):
    """Data, model, and ``predict``'s keywords."""

    data: DataFrame
    model: Any
    arguments: dict[str, Any]

    def predict(self) -> DataFrame:
        """Score the data, when it is asked for."""
        return si.predict(self.data, self.model, **self.arguments)

    def diagnose(self, seconds: float) -> si.Diagnosis:
        """Say what holds the job back."""
        return si.diagnose(self.data, self.model, seconds=seconds, **self.arguments)
