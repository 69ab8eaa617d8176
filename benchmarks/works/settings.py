"""Spark's own settings, each switched alone, on W1's map and column roads: what helps is in ``conf/``."""

from __future__ import annotations

from benchmarks.spark import on_spark
from benchmarks.work import Contestant, Work
from benchmarks.works import w1

_SWITCHED = {
    "as_it_is": {},
    "unix_sockets": {"spark.python.unix.domain.socket.enabled": "true"},
    "pipelined": {"spark.python.udf.pipelined.enabled": "true"},
    "large_buffer": {"spark.sql.execution.pandas.udf.buffer.size": str(1 << 20)},
    "lz4": {"spark.sql.execution.arrow.compression.codec": "lz4"},
    "chunks_of_2000": {"spark.sql.execution.arrow.maxRecordsPerBatch": "2000"},
    "chunks_of_40000": {"spark.sql.execution.arrow.maxRecordsPerBatch": "40000", "spark.sql.execution.arrow.maxBytesPerBatch": "256m"},
    "parallel_collector": {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"},
}
_COLUMN = {"column_as_it_is": {}, "column_no_columnar_input": {"spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false"}}


def _label(name: str, switched: dict[str, str]) -> str:
    said = ", ".join(f"{key.removeprefix('spark.')}={value}" for key, value in switched.items())
    return f"{'column' if name.startswith('column') else 'map'} road, {said or 'as it is'}"


WORK = Work(
    name="settings",
    title="Spark's settings, each alone, on W1",
    unit="rows",
    scales={"full": {"rows": 400_000}},
    contestants=(
        *(
            Contestant(name=name, label=_label(name, switched), make=on_spark(w1.ours_map, settings=switched))
            for name, switched in _SWITCHED.items()
        ),
        *(
            Contestant(name=name, label=_label(name, switched), make=on_spark(w1.ours_column, settings=switched))
            for name, switched in _COLUMN.items()
        ),
    ),
)
