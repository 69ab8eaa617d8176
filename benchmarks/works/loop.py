"""What the loop itself costs a row, in PyTorch and in TensorFlow.

No Spark: the loop that the workers run gets the same Arrow chunks as a bare loop over the same model with the same batches; the difference of the
two is the engine's own. One process, so that Spark's transport, which is the same for both, does not hide it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.data import WIDTH
from benchmarks.models import as_lists, keras_mlp, mlp
from benchmarks.work import Contestant, Ready, Work

BATCH = 1024
CHUNK = 10_240


def _chunks(rows: int) -> Iterator[pa.RecordBatch]:
    values = np.random.default_rng(0).standard_normal((CHUNK, WIDTH), dtype=np.float32)
    chunk = pa.RecordBatch.from_arrays([pa.array(np.arange(CHUNK)), as_lists(values)], names=["id", "x"])
    for _ in range(rows // CHUNK):
        yield chunk


def _bare_torch() -> Callable[[np.ndarray], np.ndarray]:
    import torch

    model = mlp()

    def call(values: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(values)).numpy()

    return call


def _bare_tensorflow() -> Callable[[np.ndarray], np.ndarray]:
    import tensorflow as tf

    model = keras_mlp()
    traced = tf.function(lambda x: model(x, training=False), input_signature=[tf.TensorSpec((None, WIDTH))])
    return lambda values: traced(tf.constant(values)).numpy()


def _engine(make: Callable[[], Any]) -> Callable[[Mapping[str, Any]], Any]:
    def prepare() -> Any:
        import sparkinfer as si
        from sparkinfer.arguments import parse_outputs
        from sparkinfer.config import InferenceConfig
        from sparkinfer.engine.partition import run_partition
        from sparkinfer.local import local_files
        from sparkinfer.planning import Functions, plan_partition

        model = make()
        wrapped = si.TensorFlowModel(model) if "keras" in type(model).__module__ else si.TorchModel(model)
        plan = plan_partition(
            wrapped,
            inputs="x",
            outputs=parse_outputs("y array<float>"),
            keep=("id",),
            key=None,
            functions=Functions(),
            on_null="raise",
            on_error="raise",
            config=InferenceConfig(batch_size=BATCH, threads=1),
        )
        return lambda chunks: run_partition(plan, chunks, files=lambda: local_files(plan.model))

    return prepare


def _raced(bare: Callable[[], Any], engine: Callable[[], Any]) -> Callable[[Mapping[str, Any]], Ready]:
    """Run both ways in turns, several times, and give their CPU seconds a row and the difference."""

    def ready(scale: Mapping[str, Any]) -> Ready:
        call, run = bare(), engine()
        rows = scale["rows"] // CHUNK * CHUNK

        def by_hand() -> float:
            total = 0.0
            for chunk in _chunks(rows):
                values = chunk["x"].flatten().to_numpy().reshape(-1, WIDTH)
                made = pa.concat_arrays([as_lists(call(values[at : at + BATCH])) for at in range(0, len(values), BATCH)])
                total += float(made.values.to_numpy().sum(dtype=np.float64))
            return total

        def by_engine() -> float:
            return sum(float(chunk["y"].values.to_numpy().sum(dtype=np.float64)) for chunk in run(_chunks(rows)))

        def cost(way: Callable[[], float]) -> float:
            begun = time.process_time()
            way()
            return (time.process_time() - begun) / rows * 1e6

        def once() -> dict[str, float]:
            pairs = [(cost(by_hand), cost(by_engine)) for _ in range(3)]
            low_bare, low_engine = min(one for one, _ in pairs), min(other for _, other in pairs)
            return {
                "rows": rows * 6,
                "bare_microseconds": low_bare,
                "engine_microseconds": low_engine,
                "own_microseconds": low_engine - low_bare,
            }

        return Ready(run=once, check=lambda: (rows, by_engine()))

    return ready


WORK = Work(
    name="loop",
    title="the loop's own CPU time, without Spark",
    unit="rows",
    scales={"quick": {"rows": 102_400}, "full": {"rows": 409_600}},
    contestants=(
        Contestant(name="ours_torch", label="sparkinfer, PyTorch", make=_raced(_bare_torch, _engine(mlp))),
        Contestant(name="ours_tensorflow", label="sparkinfer, TensorFlow", make=_raced(_bare_tensorflow, _engine(keras_mlp))),
    ),
    notes=(
        "`own_microseconds` in the JSON is the CPU time of a row in the loop less that of a bare loop over the same model and batches.",
    ),
)
