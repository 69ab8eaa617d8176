"""In which numbers a Keras model computes.

Runs on: worker; ``computes`` on the driver.

Invariant: a precision that the device or the model cannot have is an error and not another precision; weights stay what they are.

``bf16`` and ``fp16`` are Keras' own mixed policies, laid on the layers of a model that has been loaded: products in half width, weights and the
sums of normalisations in float32. A SavedModel is a graph with its types written into it, and stays what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from sparkinfer.exceptions import ConfigError

if TYPE_CHECKING:
    import keras

__all__ = ["checked_precision", "compute_in", "computes", "widened"]

_POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_AMPERE = (8, 0)


def computes(model: keras.Model) -> tuple[str, ...]:
    """Name the types in which the layers with weights compute: what a precision could change."""
    layers = list(model._flatten_layers())  # noqa: SLF001 - no public way sees the layers of a subclassed model at any depth
    return tuple(sorted({str(layer.compute_dtype) for layer in layers if layer.weights and len(list(layer._flatten_layers())) == 1}))  # noqa: SLF001


def checked_precision(precision: str, device: str) -> str:
    """Give the precision, where the device has it.

    Raises:
        ConfigError: it has not.
    """
    on_card = device.startswith("cuda")
    if precision == "fp16" and not on_card:
        msg = f"precision is 'fp16', and the model runs on {device!r}, expected a CUDA card: take 'bf16' there"
        raise ConfigError(msg)
    if precision == "bf16" and on_card:
        cards = tf.config.list_physical_devices("GPU")
        capability = tf.config.experimental.get_device_details(cards[int(device.partition(":")[2])]).get("compute_capability")
        if capability is not None and tuple(capability) < _AMPERE:
            msg = f"precision is 'bf16', but the card {device!r} is older than Ampere, the first to have it: take 'fp16'"
            raise ConfigError(msg)
    return precision


def compute_in(model: keras.Model, precision: str) -> None:
    """Have the layers that compute in float32 compute in half width; those with numbers of their own keep them."""
    if precision not in _POLICIES:
        return
    for layer in model._flatten_layers():  # noqa: SLF001
        if (layer.compute_dtype, layer.variable_dtype) == ("float32", "float32") and layer.quantization_mode is None:
            layer.dtype_policy = _POLICIES[precision]


def widened(result: Any) -> Any:
    """Give half-width results as float32, as PyTorch's are given."""
    return tf.nest.map_structure(lambda tensor: tf.cast(tensor, tf.float32) if _is_half(tensor) else tensor, result)


def _is_half(tensor: Any) -> bool:
    return getattr(tensor, "dtype", None) in (tf.bfloat16, tf.float16)
