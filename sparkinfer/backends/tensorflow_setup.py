"""TensorFlow's switches that count only before its first operation in a process: its threads, and cards that fill as they are needed.

Runs on: worker, driver.

Invariant: what comes too late is told when a model is loaded, and is no error.
"""

from __future__ import annotations

import os
import warnings

import tensorflow as tf

from sparkinfer.exceptions import SparkInferWarning

__all__ = ["let_cards_grow", "place_of", "set_threads", "tell_full_cards"]


def place_of(device: str) -> str:
    """Give TensorFlow's own word for a device.

    Example:
        >>> place_of("cuda:1"), place_of("cpu")
        ('/GPU:1', '/CPU:0')
    """
    return device.replace("cuda", "/GPU") if device.startswith("cuda") else "/CPU:0"


def let_cards_grow() -> None:
    """Have TensorFlow take of a card what it needs, and not all of it: else the first of several workers on a card leaves the others nothing.

    Called when the backend is imported, which is before the first operation wherever the user's own code has not used TensorFlow; asking for the
    cards is no operation.
    """
    for card in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(card, enable=True)
        except (RuntimeError, ValueError):  # too late; ValueError: the user has split the card into virtual devices, of fixed sizes
            continue


def tell_full_cards() -> None:
    """Warn of cards that TensorFlow was allowed to take whole before this library was asked."""
    for card in tf.config.list_physical_devices("GPU"):
        try:
            grows = tf.config.experimental.get_memory_growth(card)
        except ValueError:  # split by the user
            continue
        _warn_if_late(f"memory growth of {card.name}", "on", "on" if grows else "off")


def set_threads(threads: int) -> None:
    """Set the threads of an operation, and of operations beside each other."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        # at least two, since an operation that waits for rows would hold the only one
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    except RuntimeError:
        _warn_if_late("threads", threads, tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count())


def _warn_if_late(name: str, wanted: object, found: object) -> None:
    if wanted != found:
        told = f"TensorFlow has already run in this process with {name}={found}, so {name}={wanted} comes too late"
        warnings.warn(f"{told}: set it before TensorFlow is used, or use new Python workers", SparkInferWarning, stacklevel=4)
