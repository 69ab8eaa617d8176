"""What holds for any input: each property is a Hypothesis function, run for a moment by ``test_fuzz.py`` and for minutes by ``benchmarks/fuzz.py``."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import sparkinfer as si
from sparkinfer.cli.job import parse_job
from sparkinfer.cli.read import read_job
from sparkinfer.engine.columns import decode as decode_column
from sparkinfer.exceptions import ConfigError

__all__ = ["PROPERTIES", "examples"]

examples: dict[str, int] = {}
"""How many examples each property has had in this process."""

SECRET = "hunter2-0f9c"


def seen(name: str) -> None:
    examples[name] = examples.get(name, 0) + 1


# --- job files -----------------------------------------------------------------------------------------------------------

JOB = """version: 1
source: {format: csv, path: in.csv, schema: x double, options: {password: '${env:SECRET}'}}
model: {python: {load: 'scoring:load', version: '${env:SECRET}'}}
predict: {inputs: x, outputs: y double, on_error: 'null', key: [x]}
config: {batch_size: 8, max_errors: 3}
sink: {format: parquet, path: out, mode: overwrite}
run: {name: nightly, report: r.html}
"""
PIECES = [
    *JOB.split(),
    "!!python/object/apply:os.system [x]",
    "&a",
    "*a",
    "<<: *a",
    "${env:SECRET}",
    "${env:}",
    "\0",
    "\ud7ff",
    "- -",
    "? ",
    "|\n",
    "9" * 400,
    "1e999",
    "[" * 50,
]


@given(data=st.data())
def job_files(data: st.DataObject) -> None:
    """A job file that was cut and spliced anywhere is read or refused, in a message of bounded length that shows no secret."""
    text = JOB
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        stop = min(len(text), start + data.draw(st.integers(0, 12)))
        piece = data.draw(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)))
        text = text[:start] + piece + text[stop:]
    seen("job files")
    path = _folder() / "job.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        parse_job(read_job(path, (), {"SECRET": SECRET}))
    except ConfigError as error:
        message = str(error)
        assert SECRET not in message
        assert len(message) < 20_000


@lru_cache(maxsize=1)
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="sparkinfer-fuzz-"))


# --- columns -------------------------------------------------------------------------------------------------------------

NUMBERS: dict[str, tuple[pa.DataType, str, st.SearchStrategy[Any]]] = {
    "tinyint": (pa.int8(), "tinyint", st.integers(-(2**7), 2**7 - 1)),
    "smallint": (pa.int16(), "smallint", st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), "int", st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), "bigint", st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), "float", st.floats(width=32)),
    "double": (pa.float64(), "double", st.floats()),
    "boolean": (pa.bool_(), "boolean", st.booleans()),
    "string": (pa.string(), "string", st.text(max_size=5)),
    "binary": (pa.binary(), "binary", st.binary(max_size=5)),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, str]:
    """A column of any type, its arrays of one length at each level, and the type as DDL."""
    arrow, ddl, values = NUMBERS[draw(st.sampled_from(sorted(NUMBERS)))]
    for _ in range(draw(st.integers(0, 2 if ddl not in ("string", "binary") else 0))):
        length = draw(st.integers(1, 3))
        arrow, ddl, values = pa.list_(arrow), f"array<{ddl}>", st.lists(values, min_size=length, max_size=length)
    return pa.array(draw(st.lists(values, max_size=12)), arrow), ddl


def cut(draw: Callable[..., Any], table: pa.Table) -> list[pa.RecordBatch]:
    """Slice a table anywhere, empty chunks among them."""
    borders = sorted(draw(st.lists(st.integers(0, table.num_rows), max_size=4)))
    whole = table.combine_chunks().to_batches()
    batch = whole[0] if whole else pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)
    return [batch.slice(start, stop - start) for start, stop in zip([0, *borders], [*borders, table.num_rows], strict=True)]


def same(made: pa.Table, name: str, wanted: pa.Array) -> bool:
    """Compare exactly: NaN is NaN, and nothing else."""
    return repr(made[name].to_pylist()) == repr(wanted.to_pylist())


def truth(values: pa.Array) -> np.ndarray:
    """What NumPy makes of the values, one by one."""
    leaf, depth = values.type, 1
    while pa.types.is_list(leaf):
        leaf, depth = leaf.value_type, depth + 1
    made = np.array(values.to_pylist(), dtype=leaf.to_pandas_dtype())
    return made if len(values) else made.reshape((0,) * depth)


@given(data=st.data(), column=columns(), batch_size=st.integers(1, 7), ahead=st.integers(0, 2))
def columns_there_and_back(data: st.DataObject, column: tuple[pa.Array, str], batch_size: int, ahead: int) -> None:
    """A model that gives back what it gets gives back the very column, whatever its type, its chunks and the batches; the array is NumPy's own."""
    values, ddl = column
    seen("columns there and back")
    ids = pa.array(range(len(values)), pa.int64())
    chunks = cut(data.draw, pa.table({"id": ids, "x": values}))
    if values.type.num_fields or pa.types.is_primitive(values.type):
        np.testing.assert_array_equal(decode_column(values, "x"), truth(values))
    made = si.predict_local(
        pa.Table.from_batches(chunks),
        si.PythonModel(lambda: lambda x: x),
        inputs="x",
        outputs=f"y {ddl}",
        batch_size=batch_size,
        prefetch_batches=ahead,
    )
    assert same(made, "id", ids)
    assert same(made, "x", values)
    assert same(made, "y", values)


@given(data=st.data(), rows=st.integers(0, 25), batch_size=st.integers(1, 9), nulls=st.sampled_from(["null", "raise"]))
def rows_keep_their_places(data: st.DataObject, rows: int, batch_size: int, nulls: str) -> None:
    """Under any borders, with nulls and rows that the model refuses, every row has its own prediction or its own reason."""
    kinds = data.draw(st.lists(st.sampled_from(["good", "bad", "null"]), min_size=rows, max_size=rows))
    seen("rows keep their places")
    values = pa.array(
        [None if kind == "null" else (-1.0 if kind == "bad" else 1.0) * (row + 1) for row, kind in enumerate(kinds)], pa.float64()
    )
    made = si.predict_local(
        pa.Table.from_batches(cut(data.draw, pa.table({"id": pa.array(range(rows), pa.int64()), "x": values}))),
        si.PythonModel(lambda: _refuse_negative),
        inputs="x",
        outputs="y double",
        batch_size=batch_size,
        on_null=nulls,
        on_error="null",
    )
    assert made["id"].to_pylist() == list(range(rows))
    assert made["y"].to_pylist() == [10.0 * (row + 1) if kind == "good" else None for row, kind in enumerate(kinds)]
    reasons = [reason and reason["type"] for reason in made["error"].to_pylist()]
    of_null = "SchemaError" if nulls == "raise" else None
    assert reasons == [{"good": None, "bad": "ValueError", "null": of_null}[kind] for kind in kinds]


def _refuse_negative(x: np.ndarray) -> np.ndarray:
    if (x < 0).any():
        msg = "negative"
        raise ValueError(msg)
    return x * 10


# --- pictures ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def pictures() -> list[bytes]:
    """Small pictures of every kind that Pillow writes without further libraries."""
    from PIL import Image

    pixels = Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3))
    kinds = {
        "PNG": ["RGB", "RGBA", "L", "P", "1", "I;16"],
        "JPEG": ["RGB", "L", "CMYK"],
        "GIF": ["P"],
        "BMP": ["RGB"],
        "TIFF": ["RGB", "I;16"],
    }
    made = []
    for kind, modes in kinds.items():
        for mode in modes:
            buffer = io.BytesIO()
            image = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000) if mode == "I;16" else pixels.convert(mode)
            image.save(buffer, kind)
            made.append(buffer.getvalue())
    return made


def decode(content: bytes) -> np.ndarray:
    """Decode as docs/images.md does."""
    from PIL import Image

    image = Image.open(io.BytesIO(content))
    if image.width * image.height > 1_000_000:
        msg = f"{image.width} x {image.height} pixels"
        raise ValueError(msg)
    return np.asarray(image.convert("RGB").resize((8, 8)), dtype=np.float32)


@given(data=st.data())
def pictures_that_were_damaged(data: st.DataObject) -> None:
    """Cut, spliced and bent pictures are decoded or are bad rows with a reason, and the good ones among them keep their answers."""
    good = pictures()
    contents = [data.draw(st.sampled_from(good)) for _ in range(data.draw(st.integers(1, 5)))]
    damaged = [data.draw(st.booleans()) for _ in contents]
    for number, content in enumerate(contents):
        if damaged[number]:
            bent = bytearray(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
            for _ in range(data.draw(st.integers(0, 4))):
                if bent:
                    bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
            contents[number] = bytes(bent)
    seen("pictures that were damaged")
    made = si.predict_local(
        pa.table({"content": pa.array(contents, pa.binary())}),
        si.PythonModel(lambda: lambda x: x.mean(axis=(1, 2, 3))),
        inputs="content",
        outputs="y float",
        preprocess=decode,
        on_error="null",
        batch_size=3,
    )
    for content, was_damaged, value, reason in zip(contents, damaged, made["y"].to_pylist(), made["error"].to_pylist(), strict=True):
        assert (value is None) == (reason is not None)
        if not was_damaged:
            assert value == np.float32(decode(content).mean(dtype=np.float32)) or abs(value - decode(content).mean()) < 1e-3
        if reason is not None:
            assert reason["type"]
            assert reason["message"]


PROPERTIES: dict[str, Callable[[], None]] = {
    "job files": job_files,
    "columns there and back": columns_there_and_back,
    "rows keep their places": rows_keep_their_places,
    "pictures that were damaged": pictures_that_were_damaged,
}
