"""What happens first when a task arrives on a worker: is the library there, and is it the driver's version?

Runs on: driver (``travelling``), worker (what it gives).

Invariant: what Spark pickles is a function by value that uses nothing but the standard library, so that it also runs where this
library is missing, or where it is another version whose classes have another shape. The task itself travels inside it, as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, get_type_hints

import sparkinfer
from sparkinfer.pickling import dumps

__all__ = ["travelling"]


def travelling(method: Any) -> Callable[[Any], Any]:
    """Make the function that Spark gets for a bound method of ``PartitionTask``; it has the method's name and type hints.

    Spark pickles a bound method by reference to its class, so a worker without the class would say ``No module named 'sparkinfer'`` from
    deep inside pickle.

    Args:
        method: such as ``task.map_arrow``.

    Raises:
        ConfigError: the task cannot be pickled.
    """
    library, task, arrive = sparkinfer.__version__, dumps(method, "the partition's task"), _arrive

    def run(chunks: Any) -> Any:
        return arrive(library, task)(chunks)

    run.__name__ = run.__qualname__ = method.__name__  # Spark shows it in plans
    run.__annotations__ = get_type_hints(method)  # Spark reads a UDF's kind from them
    return run


def _arrive(library: str, task: bytes) -> Any:
    """Make the task's method again, or say in one sentence why that cannot be."""
    try:
        there = import_module("sparkinfer").__version__
        if there == library:
            return import_module("sparkinfer.pickling").loads(task, "the partition's task")
    except ModuleNotFoundError as error:
        if error.name == "sparkinfer":
            msg = (
                f"this worker has no sparkinfer, and the driver has {library}: call si.ship_library(spark) before the action, or install "
                f"sparkinfer=={library} on the workers"
            )
        else:
            msg = (
                f"sparkinfer on this worker needs the package {error.name!r}, which is not there: install it on the workers, since "
                "si.ship_library brings sparkinfer alone"
            )
        raise ModuleNotFoundError(msg, name=error.name) from None
    msg = (
        f"this worker has sparkinfer {there}, the driver has {library}: install the same version on both, or call si.ship_library(spark) in a "
        "new session before its first action, since a living worker keeps the code that it imported"
    )
    raise ImportError(msg, name="sparkinfer")


_arrive.__module__ = "__main__"  # so cloudpickle, which is what Spark uses, takes it by value and not by reference
