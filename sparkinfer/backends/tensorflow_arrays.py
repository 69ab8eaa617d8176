"""NumPy arrays to tensors and back, with nothing lost on the way.

Runs on: both.

Invariant: a number reaches the model as the value that it is or, where the model computes in floats, as the nearest float; text
stays text; anything else is a ``Fault``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from sparkinfer.engine.batch import Fault
from sparkinfer.exceptions import OutputError, SchemaError

if TYPE_CHECKING:
    from sparkinfer.engine.contracts import TensorInfo

__all__ = ["float_dtype", "from_tensors", "portable", "to_tensor"]


def float_dtype(inputs: tuple[TensorInfo, ...]) -> str | None:
    """Give the one dtype of all floating inputs, if there is one."""
    dtypes = {info.dtype for info in inputs if tf.as_dtype(info.dtype).is_floating}
    return dtypes.pop() if len(dtypes) == 1 else None


def portable(name: str, array: Any) -> np.ndarray:
    """Give ``array`` in a form that TensorFlow takes: text as an object array of bytes, dates and times as int64.

    Raises:
        Fault: text with a null in it, rows of different shapes, or a type that TensorFlow does not have.
    """
    values: np.ndarray = np.asarray(array)
    if values.dtype.kind in "mM":
        return values.view(np.int64)
    if values.dtype.kind in "US":
        values = values.astype(object)
    if values.dtype != object:
        return _known(name, values)
    encoded = np.empty(values.size, dtype=object)
    encoded[:] = [_encoded(name, value, place, values) for place, value in enumerate(values.flat)]
    return encoded.reshape(values.shape)


def _known(name: str, values: np.ndarray) -> np.ndarray:
    try:
        tf.as_dtype(values.dtype)
    except TypeError as error:
        text = f"input {name!r} is {values.dtype}, which TensorFlow does not have: cast it in preprocess"
        raise Fault(SchemaError, text) from error
    return values


def _encoded(name: str, value: object, place: int, array: np.ndarray) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    row = place // max(1, array[0].size if array.ndim > 1 else 1)
    if value is None:
        text = f"input {name!r} is text with a null in it, and TensorFlow has no null: fill it before, or say on_null='null'"
    elif isinstance(value, (list, np.ndarray)):
        text = f"input {name!r} has rows of different lengths, and a tensor needs one shape: ask for padding with TensorSpec(..., pad=0)"
    else:
        text = f"input {name!r} holds {type(value).__name__}, expected numbers, str or bytes: convert it in preprocess"
    raise Fault(SchemaError, text, row=row)


def to_tensor(name: str, array: Any, info: TensorInfo | None, float_dtype: str | None) -> tf.Tensor:
    """Give the tensor that the model's input ``name`` gets: of the dtype and shape that the model says, if it says any.

    Args:
        name: the model's input, for messages.
        array: ``(rows, *shape)``, NumPy or a tensor.
        info: what the model says of the input.
        float_dtype: floating values are cast to it where ``info`` says nothing.

    Raises:
        Fault: the values cannot be handed over without loss, or the shape is another one.
    """
    if info is None:
        return _free(name, array, float_dtype)
    wanted = tf.as_dtype(info.dtype)
    if isinstance(array, tf.Tensor) and wanted.is_floating and (array.dtype.is_floating or array.dtype.is_integer or array.dtype.is_bool):
        array = tf.cast(array, wanted)  # where it lies: pictures that came to a card as bytes become floats there
    elif not (isinstance(array, tf.Tensor) and array.dtype == wanted):
        values = array.numpy() if isinstance(array, tf.Tensor) else portable(name, array)
        array = tf.convert_to_tensor(_cast(name, values, wanted), dtype=wanted)
    return _shaped(array, info)


def _free(name: str, array: Any, float_dtype: str | None) -> tf.Tensor:
    tensor = array if isinstance(array, tf.Tensor) else tf.convert_to_tensor(portable(name, array))
    return tf.cast(tensor, float_dtype) if float_dtype is not None and tensor.dtype.is_floating else tensor


def _cast(name: str, array: np.ndarray, wanted: tf.DType) -> np.ndarray:
    came = tf.as_dtype(array.dtype) if array.dtype != object else tf.string
    if came == wanted:
        return array
    target = wanted.as_numpy_dtype
    if wanted.is_floating and (came.is_floating or came.is_integer or came.is_bool):
        return array.astype(target)
    if wanted.is_integer and (came.is_integer or came.is_bool):
        made = array.astype(target)
        wrong = (made != array) | ((made < 0) != (array < 0))  # uint64 compares as a wrapped or rounded value with int64
        if wrong.any():
            place = tuple(int(axis[0]) for axis in np.nonzero(wrong))
            text = f"the model's input {name!r} is {wanted.name}, which cannot hold {array[place]} ({came.name})"
            raise Fault(SchemaError, f"{text}: change the value, or the model's input type", row=place[0])
        return made
    if tf.string not in (came, wanted) and np.can_cast(array.dtype, target, "safe"):
        return array.astype(target)
    text = f"the model's input {name!r} takes {wanted.name}, but {came.name} came"
    raise Fault(SchemaError, f"{text}: cast the column, or declare TensorSpec({wanted.name!r}) beside it")


def _shaped(tensor: tf.Tensor, info: TensorInfo) -> tf.Tensor:
    if info.shape is None:
        return tensor
    came = tuple(tensor.shape[1:])
    if len(came) == len(info.shape) and all(want in (None, have) for want, have in zip(info.shape, came, strict=True)):
        return tensor
    if {came, info.shape} <= {(), (1,), (None,)} and came != (None,):  # a column of numbers, for one feature a row
        return tf.reshape(tensor, (-1, *(1 for _ in info.shape)))
    text = f"the model's input {info.name!r} takes the shape {_told(info.shape)}, but {_told(came)} came"
    raise Fault(SchemaError, f"{text}: change preprocess, or declare the shape with a TensorSpec beside the column")


def _told(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join(('rows', *('?' if size is None else str(size) for size in shape)))})"


def from_tensors(result: Any) -> Any:
    """Give what a model returned as NumPy arrays: one, a tuple, or a dict; bfloat16 as float32, text as bytes.

    Raises:
        Fault: a part of it is no dense tensor.
    """
    if isinstance(result, Mapping):
        return {str(name): from_tensors(value) for name, value in result.items() if value is not None}
    if isinstance(result, (list, tuple)):
        return tuple(from_tensors(value) for value in result)
    if isinstance(result, (tf.Tensor, tf.Variable)):
        dense = tf.cast(result, tf.float32) if result.dtype == tf.bfloat16 else result
        return cast("np.ndarray", dense.numpy())
    if isinstance(result, np.ndarray):
        return result
    text = f"the model gave {type(result).__name__}, expected dense tensors"
    raise Fault(OutputError, f"{text}: make it dense in the model (.to_tensor(), tf.sparse.to_dense)")
