"""The rows that have a reason and no prediction.

Runs on: driver.

Invariant: nothing is run here; what comes back is a DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

from sparkinfer.engine.isolate import ERROR_TYPE
from sparkinfer.exceptions import SchemaError
from sparkinfer.schema import to_ddl
from sparkinfer.spark.types import to_spark
from sparkinfer.spark.udf import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["errors"]


def errors(data: DataFrame, error_column: str = "error") -> DataFrame:
    """List the rows of a prediction that are bad; ``errors(scored).select("path", "error.*")`` shows them.

    Running it runs what ``data`` is made of: the model too, unless ``data`` was written and is read back, or cached.

    Args:
        data: what ``predict(..., on_error="null")`` gave, or a table that it was written to.
        error_column: its error column.

    Returns:
        The rows of ``data`` whose error column is not null.

    Raises:
        SchemaError: ``data`` has no such column.
    """
    if error_column not in data.columns or data.schema[error_column].dataType.simpleString() != to_spark(ERROR_TYPE).simpleString():
        found = data.schema[error_column].dataType.simpleString() if error_column in data.columns else "nothing"
        msg = (
            f"the error column {error_column!r} is {found}, expected {to_ddl(ERROR_TYPE)}: score with predict(..., on_error='null'), which adds it "
            "(error_column= names it), and keep it when you select or write"
        )
        raise SchemaError(msg)
    return data.where(F.col(quoted(error_column)).isNotNull())
