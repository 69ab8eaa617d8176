"""What a run has to say beside its figures: what was not measured, what was done twice, and what would help.

Runs on: driver.

Invariant: one sentence for each thing; nothing is looked up that costs a job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from sparkinfer.metrics import merged_quality, scored_again

if TYPE_CHECKING:
    from sparkinfer.actions import Action
    from sparkinfer.metrics import Execution, PartitionMetrics

__all__ = ["Remarked", "large_chunks", "remarks_of"]

_LARGE_CHUNK_BYTES = 256 * 2**20
_GOOD_CHUNK_BYTES = 64 * 2**20  # Spark's own bound from 4.1 on, where chunks are not a columnar scan's


class Remarked(Protocol):
    """What is asked of a run."""

    session: Any
    measured: bool
    label: str | None
    calls_before: int
    inner: list[str]

    @property
    def over_connect(self) -> bool:
        """Whether the session talks to its server by Spark Connect."""
        ...


def remarks_of(run: Remarked, executions: list[Execution], actions: tuple[Action, ...]) -> tuple[str, ...]:
    """Give the run's remarks.

    Args:
        run: open or ended.
        executions: what came back; the run's own is the first.
        actions: all that it ran.
    """
    complete = {action.execution for action in actions if action.complete}
    forgotten = _of_forgotten(run)
    return (
        *forgotten,
        *_of_actions(actions, run.session, measured=run.measured, all_known=not forgotten),
        *_of_inner(run, executions),
        *_of_repeats([execution for execution in executions if execution.execution in complete]),
        *_of_streams(executions, run.session),
        *_of_memory(executions),
        *_of_chunks(executions),
        *_of_label(run, executions),
        *_of_optimize(executions),
    )


def _of_actions(actions: tuple[Action, ...], session: Any, *, measured: bool, all_known: bool) -> tuple[str, ...]:
    if not measured:
        return ("not measured: the run was opened with metrics=False",)
    remarks = []
    over_connect = session is not None and type(session).__module__.startswith("pyspark.sql.connect")
    if all_known and any(not action.complete and not action.error for action in actions):
        remarks.append(
            f"an action was cut short (limit, show, first and take stop their tasks early){' or failed' if over_connect else ''}: its figures are of "
            "the partitions that reported, if any"
        )
    failed = sum(action.failed_attempts or 0 for action in actions)
    if failed:
        seconds = sum(action.failed_seconds or 0 for action in actions)
        remarks.append(
            f"{failed} attempts at tasks failed{f' after {seconds:.1f} s in all' if seconds else ''}; what they had scored is in no figure, and "
            "was scored again where Spark tried again"
        )
    if any(action.error for action in actions):
        remarks.append("an action failed: its partitions that did not finish are not counted")
    if over_connect and not any(action.partitions for action in actions):
        remarks.append(
            "not measured: nothing came back. Over Spark Connect the figures come in the workers' logs, which Spark has from 4.1 on; an action that a "
            "limit stops early (show, first, take) leaves none"
        )
    if not actions and session is not None and import_module("sparkinfer.spark.session").hides_context(session):
        remarks.append("not measured: this session does not give its SparkContext, by whose accumulators the partitions' figures come back")
    return tuple(remarks)


def _of_inner(run: Remarked, executions: list[Execution]) -> tuple[str, ...]:
    """Say where the figures are of what ran inside another run inside this one."""
    if not run.inner or executions:
        return ()
    return (
        f"what ran inside the run {', '.join(map(repr, run.inner))}, which was opened inside this one, is in the figures of that one only",
    )


def _of_memory(executions: list[Execution]) -> tuple[str, ...]:
    """Say what batch size fits into memory, where batches had to be cut."""
    fit = [
        record.batch_rows_fit
        for record in (executions[0].partitions if executions else ())
        if record.batch_rows_fit is not None and record.batch_rows_fit < (record.batch_rows_settled or math.inf)
    ]
    return (f"the model ran out of memory, and its batches were cut to {min(fit)} rows: say batch_size={min(fit)}",) if fit else ()


def _of_chunks(executions: list[Execution]) -> tuple[str, ...]:
    """Say how many rows a chunk should have, where Spark sends chunks that cost much memory."""
    roads = {call.id: call.road for call in import_module("sparkinfer.spark.calls").known_calls()}
    if not executions or roads.get(executions[0].call) == "direct":  # those are cut by their bytes
        return ()
    told = large_chunks(executions[0].partitions)
    return () if told is None else (told,)


def large_chunks(partitions: Iterable[PartitionMetrics]) -> str | None:
    """Say what ``max_records_per_batch`` makes chunks of a good size, where Spark's are so large that they cost memory; ``None`` where they are not.

    A chunk is held as a whole by Spark and by the Python worker, whatever ``batch_size`` is; a row alone is no chunk that could be smaller.
    """
    came = [record for record in partitions if record.rows and record.chunk_rows_max > 1]
    if not came:
        return None
    size, rows, row_bytes = max((one.chunk_rows_max * one.bytes_in / one.rows, one.chunk_rows_max, one.bytes_in / one.rows) for one in came)
    if size <= _LARGE_CHUNK_BYTES:
        return None
    fit = max(1, int(_GOOD_CHUNK_BYTES // row_bytes))
    return (
        f"chunks of {rows:,} rows, about {size / 1e6:,.0f} MB each, came from Spark and are held as a whole, whatever batch_size is: say "
        f"inference_run(max_records_per_batch={fit}), or for a UDF right on a columnar scan lower spark.sql.parquet.columnarReaderBatchSize"
    )


def _of_forgotten(run: Remarked) -> tuple[str, ...]:
    """Say that figures were let go, where there were more calls than are remembered: ``foreachBatch`` makes one a micro-batch."""
    calls = import_module("sparkinfer.spark.calls")
    made = calls.calls_made() - run.calls_before
    if made <= calls.CALLS_KEPT or run.over_connect:  # there the workers' logs have all
        return ()
    return (f"predict was called {made:,} times inside: the figures are of the newest {calls.CALLS_KEPT} calls",)


def _of_repeats(complete: list[Execution]) -> tuple[str, ...]:
    """Say that the predictions of one ``predict`` were scored more than once; a UDF is called on many DataFrames."""
    roads = {call.id: call.road for call in import_module("sparkinfer.spark.calls").known_calls()}
    seen: dict[tuple[str, str | None], list[Mapping[int, int]]] = {}
    for execution in complete:
        rows = execution.rows_by_partition
        before = seen.setdefault((execution.call, execution.micro_batch), [])
        if roads.get(execution.call, "udf") != "udf" and any(scored_again(earlier, rows) for earlier in before):
            return (
                f"the same predictions were scored a second time ({sum(rows.values()):,} rows): cache() or write them once, and read that",
            )
        before.append(rows)
    return ()


def _of_streams(executions: list[Execution], session: Any) -> tuple[str, ...]:
    """Say what a run shows of a stream, whose micro-batches are actions each."""
    batches = {batch for execution in executions if (batch := execution.micro_batch) is not None}
    remarks = []
    if len(batches) > 1:
        remarks.append(
            f"{len(batches):,} micro-batches of a stream reported, each an action of its own: the figures are of one, run.actions lists all"
        )
    if {batch.partition("/")[0] for batch in batches} & import_module("sparkinfer.spark.runs").active_streams(session):
        remarks.append("the stream still runs: what it scores from here on is in no figure. Wait for it inside, with awaitTermination()")
    return tuple(remarks)


def _of_optimize(executions: list[Execution]) -> tuple[str, ...]:
    """Say what became of ``optimize="auto"``, where not the first engine runs the model."""
    known = import_module("sparkinfer.spark.calls").known_calls()
    call = next((one for one in known if executions and one.id == executions[0].call), None)
    made = call.plan.model.optimized if call is not None else None
    if made is None or not made.why:
        return ()
    runs = "the model runs as it is" if made.engine is None else f"{made.engine} runs the model"
    return (f"optimize={made.asked!r}: {runs}. {made.why}",)


def _of_label(run: Remarked, executions: list[Execution]) -> tuple[str, ...]:
    """Say why the label was not compared, where there were rows to compare."""
    scored = executions[0].partitions if executions else ()
    if run.label is None or not any(record.rows for record in scored) or merged_quality(scored) is not None:
        return ()
    if run.over_connect and all(record.run is None for record in scored):
        advice = f"Use a classic session with predict(..., road='map', keep=[{run.label!r}, ...])"
        return (
            f"label={run.label!r} was not compared: this Spark Connect server hands no tags on to the workers, so they do not know its name. {advice}",
        )
    known = import_module("sparkinfer.spark.calls").known_calls()
    call = next((one for one in known if one.id == executions[0].call), None)
    if call is None:
        return ()
    why: str = import_module("sparkinfer.engine.quality").not_compared(
        run.label, road=call.road, keep=call.plan.keep, outputs=call.plan.outputs
    )
    return (why,)
