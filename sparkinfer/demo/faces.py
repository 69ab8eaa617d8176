"""Face or no face: MTCNN's O-Net in PyTorch and in Keras, the same weights in both, on the 200 patches of ``lfw_subset``.

Runs on: driver (``faces_job``), worker (the rest).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

import sparkinfer as si
from sparkinfer.demo.job import DemoJob
from sparkinfer.demo.packages import folder_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "face_probability",
    "faces_job",
    "find_faces",
    "keras_onet",
    "make_torch_onet",
    "patches",
    "to_channels_first",
    "to_channels_last",
    "torch_onet",
]

_SIDE = 48  # pixels


def patches() -> np.ndarray:
    """Give the patches: float64 (200, 25, 25) in 0..1; the first 100 are faces, the others are not."""
    return np.asarray(np.load(folder_of("skimage") / "data" / "lfw_subset.npy"))


def make_torch_onet() -> Any:
    """Make O-Net in PyTorch, without its weights: images (rows, 3, 48, 48) -> box (rows, 4), landmarks (rows, 10), face (rows, 2)."""
    from torch import nn  # noqa: PLC0415 - only the torch half needs torch

    class ONet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            channels = (3, 32, 64, 64)
            for number, (before, after) in enumerate(pairwise(channels), start=1):
                setattr(self, f"conv{number}", nn.Conv2d(before, after, 3))
                setattr(self, f"prelu{number}", nn.PReLU(after))
            self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
            self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
            self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)
            self.pools = nn.ModuleList(
                [nn.MaxPool2d(3, 2, ceil_mode=True), nn.MaxPool2d(3, 2, ceil_mode=True), nn.MaxPool2d(2, 2, ceil_mode=True)]
            )

        def forward(self, images: Any) -> dict[str, Any]:
            x = images
            for number, pool in enumerate(self.pools, start=1):
                x = pool(getattr(self, f"prelu{number}")(getattr(self, f"conv{number}")(x)))
            x = self.prelu4(self.conv4(x)).permute(0, 3, 2, 1).flatten(1)  # the weights were made for this order
            x = self.prelu5(self.dense5(x))
            return {"box": self.dense6_2(x), "landmarks": self.dense6_3(x), "face": self.dense6_1(x).softmax(1)}

    return ONet()


def torch_onet() -> si.TorchModel:
    """Describe O-Net in PyTorch."""
    return si.TorchModel(make_torch_onet, weights=str(folder_of("facenet_pytorch") / "data" / "onet.pt"))


def keras_onet() -> si.TensorFlowModel:
    """Describe O-Net in Keras, as a model object with its weights set."""
    from mtcnn.network.onet import ONet  # noqa: PLC0415 - brings TensorFlow
    from mtcnn.utils.tensorflow import load_weights  # noqa: PLC0415

    onet = ONet()
    onet.build()
    onet.set_weights(load_weights("onet.lz4"))
    return si.TensorFlowModel(onet)


def to_channels_last(patch: np.ndarray) -> np.ndarray:
    """Make the network's input of a patch (625,): float32 (48, 48, 3), about -1 to 1."""
    grey = Image.fromarray((patch.reshape(25, 25) * 255).round().astype("uint8"))
    resized = grey.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR).convert("RGB")
    return (np.asarray(resized, dtype=np.float32) - 127.5) / 128


def to_channels_first(patch: np.ndarray) -> np.ndarray:
    """Make the same, with the channels first: float32 (3, 48, 48)."""
    return to_channels_last(patch).transpose(2, 0, 1)


def face_probability(outputs: Any) -> np.ndarray:
    """Take P(face) of the outputs: ``face`` by name (PyTorch), or the last of three (Keras)."""
    face = outputs["face"] if isinstance(outputs, dict) else outputs[-1]
    return np.asarray(face)[:, 1]


def find_faces(spark: SparkSession) -> DataFrame:
    """Score every patch by both frameworks: columns ``row``, ``torch_probability``, ``tensorflow_probability``."""
    return faces_job(spark).predict()


def faces_job(spark: SparkSession) -> DemoJob:
    """Give the job of ``find_faces``: what TensorFlow adds to the DataFrame that PyTorch has scored."""
    rows = [(number, patch.ravel().tolist()) for number, patch in enumerate(patches())]
    data = spark.createDataFrame(rows, "row int, patch array<double>").repartition(2)
    by_torch = si.predict(
        data,
        torch_onet(),
        inputs="patch",
        outputs="torch_probability float",
        preprocess=to_channels_first,
        postprocess=face_probability,
        batch_size=50,
    )
    return DemoJob(
        by_torch,
        keras_onet(),
        {
            "inputs": "patch",
            "outputs": "tensorflow_probability float",
            "keep": ["row", "torch_probability"],
            "preprocess": to_channels_last,
            "postprocess": face_probability,
            "batch_size": 50,
        },
    )
