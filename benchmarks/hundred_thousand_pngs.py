"""100,000 small PNGs, 37 of them broken in six ways: does every other one get its answer, and each of the 37 its own reason?

The model is the mean of the pixels, so every answer is known. With ``on_error="null"`` all rows are written and compared one by one; with
``on_error="raise"`` (one partition, so that there is a first row) the error must name the first broken one by its key. Prints what it found, and
writes it to ``benchmarks/results/pngs.json``; ``tests/faults/test_pngs.py`` holds a smaller number of rows to the same.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import sparkinfer as si

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT = Path(__file__).parent / "results" / "pngs.json"
SIDE = 8
BROKEN = 37


def png(pixels: np.ndarray) -> bytes:
    """Encode ``(SIDE, SIDE, 3)`` bytes."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def with_wrong_checksum(good: bytes) -> bytes:
    """Change the checksum of the pixels: what a flipped bit on a disk looks like."""
    at = good.index(b"IDAT")
    checksum = at + 4 + struct.unpack(">I", good[at - 4 : at])[0]
    return good[:checksum] + bytes([good[checksum] ^ 255]) + good[checksum + 1 :]


def with_huge_header(good: bytes) -> bytes:
    """Claim 100,000 x 100,000 pixels, with the right checksum: a decoder that believes it asks for 30 GB."""
    header = good[12:16] + struct.pack(">II", 100_000, 100_000) + good[24:29]
    return good[:12] + header + struct.pack(">I", zlib.crc32(header)) + good[33:]


@dataclass(frozen=True)
class Way:
    """A way of being broken, and the reason that it is to have.

    Attributes:
        spoil: makes a good PNG a broken one.
        reason: stage and type.
    """

    spoil: Callable[[bytes], bytes | None]
    reason: tuple[str, str]


WAYS = {
    "empty": Way(lambda _: b"", ("preprocess", "UnidentifiedImageError")),
    "truncated": Way(lambda good: good[:-24], ("preprocess", "OSError")),
    "no PNG": Way(lambda _: b"<html>404 Not Found</html>", ("preprocess", "UnidentifiedImageError")),
    "wrong checksum": Way(with_wrong_checksum, ("preprocess", "SyntaxError")),
    "huge header": Way(with_huge_header, ("preprocess", "DecompressionBombError")),
    "null": Way(lambda _: None, ("decode", "SchemaError")),
}


@dataclass(frozen=True)
class Pictures:
    """What is in the file: the right answer of each row, and how the broken ones are broken.

    Attributes:
        path: a Parquet file of ``id`` and ``content``.
        means: the answers, by id.
        broken: ids and their ways.
    """

    path: str
    means: np.ndarray
    broken: dict[int, str]


def make(folder: Path, rows: int) -> Pictures:
    """Write the pictures; the same ones every time."""
    pixels = np.random.default_rng(6).integers(0, 256, (rows, SIDE, SIDE, 3), np.uint8)
    chosen = sorted(random.Random(6).sample(range(rows), BROKEN))  # noqa: S311 - sample data
    broken = {row: list(WAYS)[number % len(WAYS)] for number, row in enumerate(chosen)}
    contents = [WAYS[broken[row]].spoil(png(one)) if row in broken else png(one) for row, one in enumerate(pixels)]
    path = str(folder / "pictures.parquet")
    pq.write_table(pa.table({"id": range(rows), "content": pa.array(contents, pa.binary())}), path, row_group_size=rows // 4)
    return Pictures(path, pixels.mean(axis=(1, 2, 3), dtype=np.float64).astype(np.float32), broken)


def decode(content: bytes) -> np.ndarray:
    """Decode strictly: without ``verify`` Pillow passes over a wrong checksum of the pixels."""
    with Image.open(io.BytesIO(content)) as picture:
        picture.verify()
    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture, dtype=np.float32)


def load() -> Any:
    """Load the model."""
    return lambda pixels: pixels.mean(axis=(1, 2, 3))


def predict(spark: SparkSession, pictures: Pictures, *, partitions: int = 4, **arguments: Any) -> Any:
    """Score them."""
    read = spark.read.parquet(pictures.path)
    df = read.coalesce(1) if partitions == 1 else read.repartition(partitions)
    told = {"inputs": "content", "outputs": "mean float", "keep": ["id"], "key": "id", "preprocess": decode, "batch_size": 256}
    return si.predict(df, si.PythonModel(load), **told, **arguments)


def check_null(spark: SparkSession, pictures: Pictures, **arguments: Any) -> dict[str, Any]:
    """Score with ``on_error="null"``, compare each row, and count."""
    begun = time.perf_counter()
    table = predict(spark, pictures, on_error="null", **arguments).toArrow().sort_by("id")
    seconds = time.perf_counter() - begun
    assert table.column("id").to_pylist() == list(range(len(pictures.means)))
    errors = {row: error for row, error in enumerate(table.column("error").to_pylist()) if error is not None}
    reasons = {row: (error["stage"], error["type"]) for row, error in errors.items()}
    assert reasons == {row: WAYS[way].reason for row, way in pictures.broken.items()}
    means = table.column("mean").to_numpy(zero_copy_only=False)
    good = np.delete(np.arange(len(means)), list(errors))
    np.testing.assert_allclose(means[good], pictures.means[good], rtol=1e-5)
    assert np.isnan(means[list(errors)]).all()
    return {
        "rows": len(means),
        "right_answers": len(good),
        "reasons": len(errors),
        "by_way": dict(Counter(pictures.broken.values())),
        "seconds": round(seconds, 1),
    }


def check_raise(spark: SparkSession, pictures: Pictures, **arguments: Any) -> dict[str, Any]:
    """Score with ``on_error="raise"``, and see that the error names the first broken row."""
    first = min(pictures.broken)
    begun = time.perf_counter()
    try:
        predict(spark, pictures, partitions=1, on_error="raise", **arguments).collect()
    except Exception as error:  # noqa: BLE001 - Spark's, with ours in its words
        told = str(error)
    else:
        told = "nothing"
    named = re.search(r"row (\d+) \(id=(\d+)\)", told)
    assert named is not None, told[:2000]
    assert (int(named[1]), int(named[2])) == (first, first), told[:2000]
    return {"first_broken_id": first, "way": pictures.broken[first], "named": named[0], "seconds": round(time.perf_counter() - begun, 1)}


def main() -> None:
    """Run both ways, without and with loader processes."""
    from pyspark.sql import SparkSession

    from benchmarks.machine import describe_machine

    os.environ["PYSPARK_PYTHON"] = sys.executable
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.executorEnv.PYTHONPATH", str(Path(__file__).resolve().parents[1])).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as folder:
        pictures = make(Path(folder), rows)
        found = {
            f"num_workers={number}": {
                "null": check_null(spark, pictures, num_workers=number),
                "raise": check_raise(spark, pictures, num_workers=number),
            }
            for number in (0, 2)
        }
    spark.stop()
    told = {"machine": describe_machine(), "rows": rows, "broken": BROKEN, **found}
    RESULT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
