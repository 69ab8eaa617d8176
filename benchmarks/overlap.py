"""Does preparing overlap with predicting? Preprocess and model each wait 10 ms a batch, 200 batches: 4 s in turn, 2 s side by side.

Waits, not work: so the figures say what the loop does and not what the cores can. Through ``predict_local``, the loop that the workers run.
Each way runs once to start its processes, then the rounds are interleaved; printed are medians, beside the serial way of the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import pyarrow as pa

import sparkinfer as si

BATCHES, ROWS, WAIT = 200, 4, 0.010


def prepare(x: np.ndarray) -> np.ndarray:
    """Wait as a decoder would."""
    time.sleep(WAIT)
    return x.astype("float32")


def make_torch() -> object:
    """Make a PyTorch model that waits as an accelerator would."""
    import torch

    class Waits(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(WAIT)
            return x * 2

    return Waits()


def make_keras() -> object:
    """Make a Keras model that waits likewise."""
    import keras
    import tensorflow as tf

    def wait(x: np.ndarray) -> np.ndarray:
        time.sleep(WAIT)
        return x * 2

    @keras.saving.register_keras_serializable("overlap")
    class Waits(keras.layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            made = tf.numpy_function(wait, [x], tf.float32)
            return tf.ensure_shape(made, x.shape)

    inputs = keras.Input((), name="x")
    return keras.Model(inputs, Waits()(inputs))


def traced() -> object:
    """Make a traceable preprocess that waits inside the graph."""
    import tensorflow as tf

    @tf.function(autograph=False)  # a plain graph: nothing in it to convert
    def graph_prepare(x: tf.Tensor) -> tf.Tensor:
        made = tf.numpy_function(prepare, [x], tf.float32)
        return tf.ensure_shape(made, x.shape)

    return graph_prepare


def main() -> None:
    """Run every way and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    table = pa.table({"x": np.arange(BATCHES * ROWS, dtype="float64")})
    torch_model, keras_model, graph = si.TorchModel(make_torch), si.TensorFlowModel(make_keras()), traced()
    ways = {
        "torch, in turn": (torch_model, {"prefetch_batches": 0}, prepare),
        "torch, read-ahead thread": (torch_model, {}, prepare),
        "torch, 2 loader processes": (torch_model, {"num_workers": 2}, prepare),
        "tensorflow, in turn": (keras_model, {"prefetch_batches": 0}, prepare),
        "tensorflow, tf.data thread": (keras_model, {}, prepare),
        "tensorflow, 2 loader processes": (keras_model, {"num_workers": 2}, prepare),
        "tensorflow, traced in tf.data": (keras_model, {"num_workers": 2}, graph),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (model, settings, function) in ways.items():
            begun = time.perf_counter()
            scored = si.predict_local(
                table, model, inputs="x", outputs="y float", preprocess_batch=function, batch_size=ROWS, keep=["x"], **settings
            )
            took = time.perf_counter() - begun
            assert scored["y"].to_pylist() == [2 * x for x in scored["x"].to_pylist()]
            if number:
                seconds[name].append(took)
    print(f"{BATCHES} batches, preprocess {WAIT * 1000:.0f} ms and model {WAIT * 1000:.0f} ms a batch, median of {rounds}")
    for name, took in seconds.items():
        serial = statistics.median(seconds[f"{name.split(',')[0]}, in turn"])
        print(f"{name:<32} {statistics.median(took):6.2f} s   {statistics.median(took) / serial:5.2f} of in turn")


if __name__ == "__main__":
    main()
