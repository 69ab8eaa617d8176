"""A run as a notebook shows it at the end of a cell: its figures in a few lines, and where to see more.

Runs on: driver (standard library only).

Invariant: a few kilobytes whatever the run was, without a script, in the notebook's own colours; all that came from data is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkinfer.reporting.markup import Html, tag
from sparkinfer.reporting.words import plain, readable

if TYPE_CHECKING:
    from sparkinfer.metrics import RunMetrics

__all__ = ["cell"]

_FIGURES = {
    "inference/rows_total": "rows",
    "inference/rows_per_second": "rows/s",
    "inference/elapsed_seconds": "elapsed",
    "inference/partitions_total": "partitions",
    "inference/batches_total": "batches",
    "inference/batch_latency_seconds_p50": "latency, median",
    "inference/batch_latency_seconds_p95": "latency, 95 %",
    "inference/model_loads_total": "model loads",
    "quality/accuracy": "accuracy",
    "quality/mean_absolute_error": "mean absolute error",
}
_LISTED = 5  # remarks


def cell(run: RunMetrics, verdict: str, *, ended: bool, actions: int, mlflow_run_id: str | None) -> str:
    """Write it.

    Args:
        run: what was measured.
        verdict: in a sentence or two.
        ended: else the figures are of the partitions that have ended so far.
        actions: how many there were; the figures are of one.
        mlflow_run_id: where the figures were logged, if they were.
    """
    state = [] if ended else ["still open"]
    if actions > 1:
        state.append(f"the figures are of one of {actions:,} actions")
    heading = tag("div", tag("b", plain(run.name or "inference run", 80)), f": {', '.join(state)}" if state else None)
    return tag(
        "div",
        heading,
        _table(run) if run.partitions else tag("div", "no partition has reported"),
        tag("div", plain(verdict, 400)) if run.partitions else None,
        _list(run.remarks),
        _more(mlflow_run_id),
        style="max-width: 60em",
    )


def _table(run: RunMetrics) -> Html:
    told = {words: readable(name, run.summary[name]) for name, words in _FIGURES.items() if name in run.summary}
    heads = (tag("th", words, style="text-align: right") for words in told)
    values = (tag("td", value, style="text-align: right") for value in told.values())
    return tag("table", tag("tr", *heads), tag("tr", *values))


def _list(remarks: Sequence[str]) -> Html | None:
    if not remarks:
        return None
    more = [f"and {len(remarks) - _LISTED} more in run.remarks"] if len(remarks) > _LISTED else []
    return tag("ul", *(tag("li", plain(remark, 400)) for remark in [*remarks[:_LISTED], *more]), style="margin: 0.3em 0")


def _more(mlflow_run_id: str | None) -> Html:
    where = f"; in MLflow it is run {plain(mlflow_run_id, 40)}" if mlflow_run_id else ""
    return tag(
        "small", "Figures: ", tag("code", "run.figures()"), ", one page with all: ", tag("code", 'run.save_report("report.html")'), where
    )
