"""The rows that everybody scores: made once, from fixed seeds, below ``benchmarks/.data``."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["blobs", "photos", "small_vectors", "vectors", "wide"]

DATA = Path(__file__).parent / ".data"
WIDTH = 256
_IN_A_FILE = 100_000


def vectors(rows: int) -> Path:
    """Make ``id long, x array<float>`` of 256 values: files of 100,000 rows; from the fifth on they are links to the first four."""
    return _made(f"vectors-{rows}", lambda folder: _write_vectors(folder, rows))


def small_vectors(rows: int, files: int = 1) -> Path:
    """Make ``id long, x array<float>`` of 16 values."""
    return _made(f"small-{rows}-{files}", lambda folder: _write_small(folder, rows, files))


def photos(rows: int) -> Path:
    """Make ``id long, content binary``: JPEGs of 400 x 400 pixels, crops of photographs that scikit-image and scikit-learn ship, in 4 files."""
    return _made(f"photos-{rows}", lambda folder: _write_photos(folder, rows))


def blobs(rows: int, size: int) -> Path:
    """Make ``id long, content binary`` of ``size`` random bytes, 20 rows a row group."""
    return _made(f"blobs-{rows}-{size}", lambda folder: _write_blobs(folder, rows, size))


def wide(rows: int, columns: int, texts: int) -> Path:
    """Make ``id, x`` as ``vectors`` does with 64 values, and ``columns`` others beside them, ``texts`` of them text."""
    return _made(f"wide-{rows}-{columns}-{texts}", lambda folder: _write_wide(folder, rows, columns, texts))


def _made(name: str, write: Callable[[Path], None]) -> Path:
    folder = DATA / name
    if folder.exists():
        return folder
    DATA.mkdir(parents=True, exist_ok=True)
    with (DATA / f"{name}.lock").open("w") as lock:  # contestants set themselves up side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = DATA / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            write(unfinished)
            unfinished.rename(folder)
    return folder


def _lists(values: np.ndarray) -> pa.Array:
    rows, width = values.shape
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), pa.array(values.ravel()))


def _write_vectors(folder: Path, rows: int) -> None:
    files = max(1, rows // _IN_A_FILE)
    rng = np.random.default_rng(0)
    for number in range(files):
        path = folder / f"part-{number:03}.parquet"
        if number >= 4:
            os.link(folder / f"part-{number % 4:03}.parquet", path)
            continue
        here = rows // files
        values = rng.standard_normal((here, WIDTH), dtype=np.float32)
        table = pa.table({"id": np.arange(number * here, (number + 1) * here), "x": _lists(values)})
        pq.write_table(table, path, row_group_size=20_000, compression="zstd", use_dictionary=False)


def _write_small(folder: Path, rows: int, files: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(files):
        here = rows // files
        table = pa.table(
            {"id": np.arange(number * here, (number + 1) * here), "x": _lists(rng.standard_normal((here, 16), dtype=np.float32))}
        )
        pq.write_table(table, folder / f"part-{number:03}.parquet", row_group_size=1 << 17, use_dictionary=False)


def _write_photos(folder: Path, rows: int) -> None:
    from PIL import Image

    places = [Path(_home("skimage")) / "data", Path(_home("sklearn")) / "datasets" / "images"]
    names = ["astronaut.png", "camera.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg", "china.jpg", "flower.jpg"]
    found = [next(place / name for place in places if (place / name).exists()) for name in names]
    sources = [Image.open(path).convert("RGB") for path in found]
    rng = np.random.default_rng(0)
    contents = []
    for number in range(rows):
        source = sources[number % len(sources)]
        side = int(min(source.size) * rng.uniform(0.7, 1))
        left, top = (int(rng.integers(0, length - side + 1)) for length in source.size)
        made = io.BytesIO()
        source.crop((left, top, left + side, top + side)).resize((400, 400)).save(made, "JPEG", quality=90)
        contents.append(made.getvalue())
    here = rows // 4
    for number in range(4):
        span = slice(number * here, (number + 1) * here)
        pq.write_table(pa.table({"id": np.arange(span.start, span.stop), "content": contents[span]}), folder / f"part-{number}.parquet")


def _write_blobs(folder: Path, rows: int, size: int) -> None:
    rng = np.random.default_rng(0)
    schema = pa.schema([("id", pa.int64()), ("content", pa.binary())])
    with pq.ParquetWriter(folder / "part-0.parquet", schema, compression="none") as writer:
        for start in range(0, rows, 20):
            contents = [rng.bytes(size) for _ in range(20)]
            writer.write_table(pa.table({"id": np.arange(start, start + 20), "content": contents}, schema=schema))


def _write_wide(folder: Path, rows: int, columns: int, texts: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(4):
        here = rows // 4
        made = {
            "id": pa.array(np.arange(number * here, (number + 1) * here)),
            "x": _lists(rng.standard_normal((here, 64), dtype=np.float32)),
        }
        words = np.array([f"word {word} of a vocabulary" for word in range(1000)])
        for column in range(columns):
            values = words[rng.integers(0, 1000, here)] if column < texts else rng.standard_normal(here)
            made[f"c{column}"] = pa.array(values)
        pq.write_table(pa.table(made), folder / f"part-{number}.parquet", row_group_size=50_000)


def _home(package: str) -> str:
    found = find_spec(package)
    assert found is not None, f"{package} is not installed: make .venv-bench"
    assert found.submodule_search_locations
    return found.submodule_search_locations[0]
