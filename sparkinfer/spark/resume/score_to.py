"""``score_to``: a table of predictions that can be stopped anywhere, run again, and ends with each key exactly once.

Runs on: driver.

Invariant: a row whose key is in the table is not scored again; the call returns only when each key of the data is there once.

::

    1 census    which keys are missing? (key columns alone)          nothing: done, and no model is loaded
    2 remove    the rows that failed, where they are to be retried   they are missing now
    3 append    predict over the missing rows; each finished task's file stays, whatever becomes of the driver
    4 census    again: each key once, or an error
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

from sparkinfer.arguments import column_names, parse_outputs
from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError
from sparkinfer.planning import Functions, plan_partition
from sparkinfer.spark.files import is_source, source_of
from sparkinfer.spark.predict import predict
from sparkinfer.spark.resume.census import apart, check_data_keys, check_ended, check_key_types, keys_of, matching, take_census
from sparkinfer.spark.resume.folders import folder_of
from sparkinfer.spark.resume.manifest import manifest_of
from sparkinfer.spark.resume.tables import ParquetTable
from sparkinfer.spark.udf import quoted

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import DataFrame

    from sparkinfer.engine.contracts import Describable
    from sparkinfer.engine.partition import PartitionPlan
    from sparkinfer.spark.files import FileSource
    from sparkinfer.spark.resume.census import Census
    from sparkinfer.spark.resume.tables import ResumableTable

__all__ = ["Scored", "score_to"]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What ``score_to`` ended with.

    Attributes:
        path: of the table, as Spark takes it.
        rows: of the data, each there once.
        rows_written: by this call; the other ones were there.
        rows_failed: those of ``rows`` that have a reason and no prediction (``on_error="null"``).
        rows_beyond: rows of the table whose keys the data does not have, from calls with other data; they are left as they are.
    """

    path: str
    rows: int
    rows_written: int
    rows_failed: int
    rows_beyond: int


def score_to(
    data: DataFrame | FileSource | str | PathLike[str],
    path: str | PathLike[str],
    model: Describable,
    *,
    key: str | Sequence[str],
    retry_errors: bool = False,
    **arguments: Any,
) -> Scored:
    """Score into a folder of Parquet, in parts that stay; called again, score what is missing.

    Each finished task adds its file to the folder. Whatever ends the run (a driver that is killed, a row that fails, a cluster that is gone), the same call
    goes on from there. A call with another model, other functions or other columns is refused. Not lazy: it returns when all is written.

    Args:
        data: as in ``predict``; batch only. Its key columns are read twice more, before and after.
        path: a folder that does not exist yet, is empty, or was written by this function; any file system that Spark writes to. Over Spark Connect one
            that this process sees too.
        model: as in ``predict``.
        key: the column or columns that name a row: integers, text, bytes, dates, timestamps, decimals; no null, no two rows with the same.
        retry_errors: score the rows again that failed before (``on_error="null"``); they leave the table first.
        **arguments: ``predict``'s keywords. Settings that change no answer (``batch_size``, ``num_workers``) may be others from call to call.

    Returns:
        How many rows are there, and how many of them this call wrote.

    Raises:
        ConfigError: an argument is wrong; the folder holds something else, or rows that were scored otherwise; another run is at work on it.
        SchemaError: a column is wrong, a key is null or there twice. What goes wrong in a row ends the run as it ends ``predict``'s job.
    """
    names = column_names(key, "key")
    first = predict(data, model, key=names, **arguments)
    source, keyed = _opened(data, names)
    plan = _plan(source, model, names, arguments)
    _check(plan, first, arguments, retry_errors=retry_errors)
    check_key_types(first.schema, names)
    columns = {field.name: field.dataType.simpleString() for field in first.schema}
    session = first.sparkSession
    folder = folder_of(session, path)
    table: ResumableTable = ParquetTable(session, folder, first.schema)
    with table.opened(manifest_of(plan, model, columns)):
        before = take_census(keyed, table.rows(), names, plan.error_column)
        check_data_keys(before, keyed, names)
        left = _cleared(table, before, keyed, names, plan.error_column if retry_errors else None)
        if left.missing:
            # the files are read by the workers themselves only where all of them are to be scored
            again = arguments if left.there == 0 else {**arguments, "scan": "spark"}
            rows = first if left.there == 0 else predict(apart(source, table.rows(), names, left), model, key=names, **again)
            table.append(rows)
        table.settle()
        after = take_census(keyed, table.rows(), names, plan.error_column) if left != before or left.missing else before
        check_ended(after, folder.url)
    return Scored(path=folder.url, rows=after.rows, rows_written=left.missing, rows_failed=after.failed, rows_beyond=after.beyond)


def _cleared(table: ResumableTable, census: Census, keyed: DataFrame, key: Sequence[str], retried: str | None) -> Census:
    """Take out what a run is to score again, and what is there twice, and give the census as it is then."""
    if census.doubled:  # a task of a dead driver that committed after all, or two runs at once
        table.keep_one(key)
        census = take_census(keyed, table.rows(), key, retried)
    if retried is None or not census.failed:
        return census
    failed = keys_of(table.rows().where(F.col(quoted(retried)).isNotNull()), key)
    table.remove(matching(failed, keys_of(keyed, key), failed.columns, how="left_semi"), key)
    return take_census(keyed, table.rows(), key, retried)


def _opened(data: Any, key: Sequence[str]) -> tuple[DataFrame, DataFrame]:
    """Give the data as a DataFrame, and as one of which the key columns alone will be read."""
    if not is_source(data):
        return data, data
    source = source_of(data)
    return source.to_dataframe(), replace(source, columns=tuple(key)).to_dataframe()


def _plan(data: DataFrame, model: Any, key: tuple[str, ...], arguments: Mapping[str, Any]) -> PartitionPlan:
    """Make the plan that ``predict`` makes, as it is before a model is optimised."""
    known = {name: one.default for name, one in inspect.signature(predict).parameters.items() if one.kind is one.KEYWORD_ONLY}
    said = {name: arguments.get(name, default) for name, default in known.items()}
    overrides = {name: value for name, value in arguments.items() if name not in known}
    functions = Functions(**{name: said[name] for name in ("preprocess", "preprocess_batch", "preprocess_on_device", "postprocess")})
    return plan_partition(
        model,
        inputs=said["inputs"],
        outputs=None if said["outputs"] is None else parse_outputs(said["outputs"]),
        keep=data.columns if said["keep"] is None else column_names(said["keep"], "keep"),
        key=key,
        functions=functions,
        on_null=said["on_null"],
        on_error=said["on_error"],
        error_column=said["error_column"],
        config=InferenceConfig.build(said["config"], overrides),
        there=data.columns,
    )


def _check(plan: PartitionPlan, scored: DataFrame, arguments: Mapping[str, Any], *, retry_errors: bool) -> None:
    if scored.isStreaming:
        msg = "data is a stream, which remembers by its own checkpoint what it has written: take predict(...) and writeStream"
        raise ConfigError(msg)
    if not plan.key:
        msg = "key is empty: name the column, or the columns, that tell one row from another"
        raise ConfigError(msg)
    if left_out := [name for name in plan.key if name not in plan.keep]:
        msg = f"keep= leaves out the key column {left_out[0]!r}, by which the rows that are there are found again: name it in keep= too"
        raise ConfigError(msg)
    if retry_errors and plan.error_column is None:
        came = arguments.get("on_error", "raise")
        msg = f"retry_errors=True scores the rows again whose error column is not null, but with on_error={came!r} there is none: say on_error='null'"
        raise ConfigError(msg)
