"""The worker's connection to the JVM does not wait for acknowledgements, on any road."""

from __future__ import annotations

import socket
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.spark import prompt_socket
from sparkinfer.spark.prompt_socket import answer_at_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def flags_of(descriptor: int | None) -> tuple[int, int]:
    """Give a connection's family, and whether it sends at once."""
    assert descriptor is not None, "the stream is not in the frames of Spark's worker"
    connection = socket.socket(fileno=descriptor)
    try:
        inet = connection.family in (socket.AF_INET, socket.AF_INET6)
        return int(connection.family), connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) if inet else -1
    finally:
        connection.detach()


def looks() -> Any:
    """A model that says how its process is connected to the JVM; it runs on the task's thread, below Spark's worker."""

    def predict(x: np.ndarray) -> np.ndarray:
        return np.tile(np.array(flags_of(prompt_socket._descriptor()), np.int64), (len(x), 1))

    return predict


@pytest.mark.parametrize("road", ["map", "column"])
def test_small_messages_are_sent_at_once(spark: SparkSession, road: str) -> None:
    """Spark's own connection is TCP, with the flag off; in our tasks it is on, and answers are what they were."""
    df = spark.range(0, 40, 1, 2).selectExpr("id", "cast(id as double) as x")
    scored = si.predict(df, si.PythonModel(looks), inputs="x", outputs="seen array<long>", keep=["id"], road=road)
    found = {tuple(row.seen) for row in scored.collect()}
    assert len(found) == 1
    ((family, at_once),) = found
    assert (family, at_once) in [(int(socket.AF_INET), 1), (int(socket.AF_INET6), 1), (int(socket.AF_UNIX), -1)]


def main(outfile: Any) -> None:
    answer_at_once()


def called_by(module: str, outfile: Any) -> None:
    """Call ``main`` as if it were of another module."""
    FunctionType(main.__code__, {"__name__": module, "answer_at_once": answer_at_once})(outfile)


def test_only_sparks_own_connection_is_touched() -> None:
    """A function of another module, a file, a Unix socket, a closed stream: nothing happens, and the connection stays open."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        stream = connection.makefile("wb")
        called_by("user.code", stream)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
        called_by("pyspark.worker", stream)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        stream.close()
        called_by("pyspark.worker", stream)
        assert connection.fileno() >= 0
    ours, theirs = socket.socketpair()
    with ours, theirs, Path("/dev/null").open("wb") as nothing:
        called_by("pyspark.worker", ours.makefile("wb"))
        called_by("pyspark.worker", nothing)
        ours.sendall(b"still there")
        assert theirs.recv(11) == b"still there"
    answer_at_once()
