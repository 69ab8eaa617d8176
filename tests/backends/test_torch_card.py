"""On a real card: calls under way give the CPU's answers, in order, and half width stays near them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

import sparkinfer as si
from sparkinfer.artifacts import local_files
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.partition import run_partition
from sparkinfer.engine.recorder import Recorder
from sparkinfer.local import open_local, planned

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card")]


@pytest.mark.parametrize(("precision", "apart"), [("fp32", 1e-2), ("tf32", 1e-2), ("bf16", 0.2), ("fp16", 0.05)])
def test_a_card_answers_as_the_cpu_does(precision: str, apart: float) -> None:
    """Forty batches and a short one, through the streams."""
    torch.manual_seed(0)
    model = si.TorchModel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4)))
    table = pa.table({"x": list(np.random.default_rng(0).normal(size=(645, 64)).astype("float32"))})
    on_card, on_cpu = (
        np.array(
            si.predict_local(table, model, inputs="x", outputs="y array<float>", keep=[], batch_size=16, device=device, precision=said)[
                "y"
            ].to_pylist()
        )
        for device, said in (("cuda:0", precision), ("cpu", "fp32"))
    )
    assert np.abs(on_card - on_cpu).max() < apart


def scale(x: torch.Tensor) -> torch.Tensor:
    """On the card, where the pictures came as bytes."""
    assert (x.dtype, x.device.type) == (torch.uint8, "cuda")
    return x.float() / 255


def test_bytes_are_scaled_on_the_card_and_its_events_tell_the_time() -> None:
    """The answers of a preprocess on the host, and the card's seconds by stage, less than the partition took."""
    torch.manual_seed(0)
    module = torch.nn.Linear(3072, 10)
    pixels = np.random.default_rng(0).integers(0, 256, size=(1000, 3072)).astype("uint8")
    schema, batches = open_local(pa.table({"x": list(pixels)}))
    config = InferenceConfig(batch_size=64, device="cuda:0")
    said = {"inputs": ("x", si.TensorSpec("uint8", (3072,))), "outputs": "y array<float>", "preprocess_on_device": scale}
    plan = planned(si.TorchModel(module), schema, lambda plan: next(batches), config=config, **said)
    recorder = Recorder()
    scored = [
        row
        for chunk in run_partition(plan, batches, files=lambda: local_files(plan.model), recorder=recorder)
        for row in chunk.column("y").to_pylist()
    ]
    with torch.inference_mode():
        expected = module(torch.from_numpy(pixels).float() / 255).numpy()
    assert np.abs(np.array(scored) - expected).max() < 1e-2
    figures = recorder.figures()
    seconds = figures["device_seconds"]
    assert set(seconds) == {"copy_in", "preprocess", "compute", "copy_out"}
    assert all(0 < one < figures["wall_seconds"] for one in seconds.values())
