"""The Python worker's connection to the JVM, told to answer at once.

Runs on: worker.

Invariant: flags of the kernel are set and nothing else; where there is no such connection nothing happens, and nothing is raised.

The two talk in small messages over TCP. The kernel of the sender holds a small message back until the one before it is acknowledged (Nagle), and that of the
receiver keeps the acknowledgement back for up to 40 ms, in case that something goes the other way (delayed acknowledgement): together they let every task stand
still, most of all small ones. Spark sets no flag against it (seen up to 4.3). Over Unix sockets (``spark.python.unix.domain.socket.enabled``) there is no such wait.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["answer_at_once"]

_FLAGS = ("TCP_NODELAY", "TCP_QUICKACK")  # the second is Linux's, and falls off by itself: it is set for every task


def answer_at_once() -> None:
    """Set the flags on the connection over which the function that calls this was called by Spark."""
    descriptor = _descriptor()
    if descriptor is None:
        return
    with suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                for name in _FLAGS:
                    if hasattr(socket, name):
                        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), 1)
        finally:
            connection.detach()  # it stays Spark's


def _descriptor() -> int | None:
    """Find the stream in the frames of Spark's worker, which has no name for it elsewhere (``outfile`` from Spark 3.5 to 4.3)."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the interpreter's own road to a caller
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")) in ("pyspark.worker", "__main__") and hasattr(frame.f_locals.get("outfile"), "fileno"):
            with suppress(OSError, ValueError):
                return int(frame.f_locals["outfile"].fileno())
        frame = frame.f_back
    return None
