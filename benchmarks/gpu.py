"""How much of a bare loop's rate on a card does the engine reach? ``predict_local`` beside a hand-written loop, in one process, without Spark.

The loop is what a careful user writes: pinned batches, copies that do not wait, one fetch at the end of each batch; where rows are prepared, by a
``DataLoader`` with as many processes as the engine has. ``model alone`` runs over inputs that are on the card already: the engine's rate over its rate is the
share of the time in which the card is busy with the model. Rounds are interleaved; printed are medians in rows a second. With a card the results go into
``benchmarks/results/gpu.json``, with its name.

- ``heavy``: layers that keep a card busy for milliseconds a batch.
- ``w1``: vectors of 256 floats, a small MLP: the engine's own cost.
- ``w3``: JPEGs, EfficientNet-Lite0 (needs the demo's packages).
- ``w4``: the heavy layers beside preparing of about the same cost, in turn in the bare loop.
- ``transformer``: 128 tokens, an encoder of the size of BERT base, weights at random.

``python -m benchmarks.gpu [heavy w1 ...] [--precision bf16]``; ``--device cpu --rows 64`` tries it without a card.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import sparkinfer as si
from benchmarks.data import photos
from benchmarks.machine import describe_machine
from benchmarks.models import decode_photo, efficientnet, mlp

RESULT = Path(__file__).parent / "results" / "gpu.json"
WIDTH, HIDDEN = 1024, 8192
TOKENS, WORDS = 128, 30_000
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class GpuWork:
    """One work.

    Attributes:
        rows: how many, and in a batch.
        table: makes so many rows, in the column ``x``.
        model: makes the module.
        spec: of a row, as the model gets it.
        width: of an answer.
        arguments: of ``predict_local``: functions and settings.
        prepare: what the bare loop's processes do with a value; ``None``: nothing.
        prepare_batch: what the bare loop does with a batch, in turn.
    """

    rows: int
    batch: int
    table: Callable[[int], pa.Table]
    model: Callable[[], Any]
    spec: si.TensorSpec
    width: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Any], np.ndarray] | None = None
    prepare_batch: Callable[[np.ndarray], np.ndarray] | None = None


def heavy() -> Any:
    """Make layers that keep a card busy for milliseconds a batch."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Linear(HIDDEN, 16)
    ).eval()


class Encoder(torch.nn.Module):
    """Words, twelve layers, the mean of the last."""

    def __init__(self) -> None:
        """Make it with the weights of one seed."""
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(WORDS, 768)
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = torch.nn.Linear(768, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Give (rows, 16) of (rows, tokens)."""
        answer: torch.Tensor = self.head(self.layers(self.words(tokens)).mean(1))
        return answer


def smoothed(x: np.ndarray) -> np.ndarray:
    """Prepare a batch on the host, for about as long as a card takes for it."""
    for _ in range(4):
        x = np.tanh(x)
    return x


def _floats(width: int) -> Callable[[int], pa.Table]:
    def table(rows: int) -> pa.Table:
        values = np.random.default_rng(0).normal(size=(rows, width)).astype("float32")
        return pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), width)})

    return table


def _tokens(rows: int) -> pa.Table:
    values = np.random.default_rng(0).integers(0, WORDS, rows * TOKENS)
    return pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values), TOKENS)})


def _photos(rows: int) -> pa.Table:
    return pq.read_table(photos(rows // 4 * 4), columns=["content"]).rename_columns(["x"])


_WORKERS = max(1, (os.cpu_count() or 2) - 1)
_WIDE = si.TensorSpec("float32", (WIDTH,))
WORKS = {
    "heavy": GpuWork(1 << 16, 1024, _floats(WIDTH), heavy, _WIDE, 16),
    "w1": GpuWork(1 << 20, 8192, _floats(256), mlp, si.TensorSpec("float32", (256,)), 10),
    "w3": GpuWork(
        4096,
        128,
        _photos,
        efficientnet,
        si.TensorSpec("float32", (3, 224, 224)),
        1000,
        {"preprocess": decode_photo, "num_workers": _WORKERS},
        prepare=decode_photo,
    ),
    "w4": GpuWork(1 << 16, 1024, _floats(WIDTH), heavy, _WIDE, 16, {"preprocess_batch": smoothed}, prepare_batch=smoothed),
    "transformer": GpuWork(1 << 13, 128, _tokens, Encoder, si.TensorSpec("int64", (TOKENS,)), 16),
}


def bare_loop(work: GpuWork, table: pa.Table, device: str, precision: str) -> Callable[[], np.ndarray]:
    """Give the hand-written loop over a model that is loaded already."""
    module = work.model().eval().to(device)
    half, card = _DTYPES.get(precision), device.startswith("cuda")

    def batches() -> Iterator[torch.Tensor]:
        if work.prepare is not None:
            contents = [table["x"].slice(at, work.batch).to_pylist() for at in range(0, len(table), work.batch)]
            loaded = torch.utils.data.DataLoader(
                _Prepared(contents, work.prepare), batch_size=None, num_workers=_WORKERS, pin_memory=card, prefetch_factor=2
            )
            yield from loaded
            return
        values = torch.from_numpy(_values(work, table))
        values = values.pin_memory() if card and work.prepare_batch is None else values
        for at in range(0, len(values), work.batch):
            one = values[at : at + work.batch]
            yield one if work.prepare_batch is None else torch.from_numpy(work.prepare_batch(one.numpy()))

    def run() -> np.ndarray:
        with torch.inference_mode(), torch.autocast(device.partition(":")[0], dtype=half, enabled=half is not None):
            return np.concatenate([module(one.to(device, non_blocking=True)).float().cpu().numpy() for one in batches()])

    return run


class _Prepared(torch.utils.data.Dataset[torch.Tensor]):
    """Batches, prepared by whoever asks for them."""

    def __init__(self, contents: list[list[Any]], prepare: Callable[[Any], np.ndarray]) -> None:
        self.contents, self.prepare = contents, prepare

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.from_numpy(np.stack([self.prepare(one) for one in self.contents[at]]))


def model_alone(work: GpuWork, table: pa.Table, device: str, precision: str) -> Callable[[], None]:
    """Give the model over one batch that is on the card, as often as there are batches."""
    module = work.model().eval().to(device)
    half = _DTYPES.get(precision)
    first = table.slice(0, work.batch)
    values = np.stack([work.prepare(one) for one in first["x"].to_pylist()]) if work.prepare is not None else _values(work, first)
    there = torch.from_numpy(values).to(device)

    def run() -> None:
        with torch.inference_mode(), torch.autocast(device.partition(":")[0], dtype=half, enabled=half is not None):
            for _ in range(0, len(table), work.batch):
                last = module(there)
            last.float().cpu()

    return run


def _values(work: GpuWork, table: pa.Table) -> np.ndarray:
    flat: np.ndarray = table["x"].combine_chunks().flatten().to_numpy()
    return flat.reshape(-1, *(work.spec.shape or ())).copy()


def engine(work: GpuWork, table: pa.Table, device: str, precision: str) -> Callable[[], np.ndarray]:
    """Give the same by the engine; the model is loaded in the first call."""
    model = si.TorchModel(work.model)  # a factory: a module would be read and compared in every call
    settings = {"batch_size": work.batch, "device": device, "precision": precision, **work.arguments}

    def run() -> np.ndarray:
        scored = si.predict_local(table, model, inputs=("x", work.spec), outputs="y array<float>", keep=[], **settings)
        flat: np.ndarray = scored["y"].combine_chunks().flatten().to_numpy()
        return flat.reshape(-1, work.width)

    return run


def compare(name: str, rows: int, rounds: int, device: str, precision: str) -> dict[str, list[float]]:
    """Give each way's rows a second, by round; both must give the same answers."""
    work = WORKS[name]
    table = work.table(rows or work.rows)
    ways: dict[str, Callable[[], Any]] = {
        "bare loop": bare_loop(work, table, device, precision),
        "sparkinfer": engine(work, table, device, precision),
        "model alone": model_alone(work, table, device, precision),
    }
    answers = {way: run() for way, run in ways.items()}  # warm
    np.testing.assert_allclose(answers["sparkinfer"], answers["bare loop"], rtol=0.05, atol=0.05)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            begun = time.perf_counter()
            run()
            rates[way].append(len(table) / (time.perf_counter() - begun))
    return rates


def main() -> None:
    """Run, print, and keep what a card gave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", help=f"of {', '.join(WORKS)}; all by default")
    parser.add_argument("--rows", type=int, default=0, help="instead of each work's own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16", "fp16"))
    said = parser.parse_args()
    card = torch.cuda.get_device_name(said.device) if said.device.startswith("cuda") else None
    kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    for name in said.works or WORKS:
        rates = compare(name, said.rows, said.rounds, said.device, said.precision)
        middle = {way: statistics.median(found) for way, found in rates.items()}
        print(f"{name}, {said.precision}, {card or said.device}")
        for way, rate in middle.items():
            print(f"  {way:<12} {rate:12,.0f} rows/s   {rate / middle['bare loop']:5.2f} of the bare loop")
        print(f"  the device is busy with the model for {middle['sparkinfer'] / middle['model alone']:.2f} of the time", flush=True)
        if card is not None:
            told = {"card": card, "machine": describe_machine(), "rows_per_second": rates}
            kept[f"{name} {said.precision}"] = told
            RESULT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
