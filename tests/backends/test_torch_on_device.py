"""``preprocess_on_device`` for PyTorch, models that take one batch size, and a card's calls as far as they can be run without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import sparkinfer as si
from sparkinfer.artifacts import local_files
from sparkinfer.backends import torch as backend
from sparkinfer.backends.torch_model import TorchLoaded
from sparkinfer.backends.torch_streams import TorchOnCard
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.batch import Inputs
from sparkinfer.engine.partition import run_partition
from sparkinfer.engine.recorder import Recorder
from sparkinfer.local import open_local, planned

if TYPE_CHECKING:
    from pathlib import Path

PIXELS = np.arange(10 * 12, dtype=np.uint8).reshape(10, 12)
PICTURES = pa.table({"x": list(PIXELS)})
BYTES = ("x", si.TensorSpec("uint8", (12,)))
calls: list[tuple[torch.dtype, int]] = []


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(12, 2)


def scale(x: torch.Tensor) -> torch.Tensor:
    calls.append((x.dtype, len(x)))
    return x.float() / 255


def by_hand(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / 255


def score(table: pa.Table = PICTURES, model: Any = None, **said: Any) -> pa.Table:
    arguments = {"inputs": BYTES, "outputs": "y array<float>", "batch_size": 4, "device": "cpu", "keep": [], **said}
    return si.predict_local(table, model or si.TorchModel(net()), **arguments)


def test_bytes_stay_bytes_until_they_are_there() -> None:
    """The function gets what the column holds, and the model what the function gives: the answers of a preprocess on the host."""
    calls.clear()
    there = score(preprocess_on_device=scale)
    assert calls == [(torch.uint8, 4), (torch.uint8, 4), (torch.uint8, 2)]
    here = score(inputs="x", preprocess_batch=by_hand)
    np.testing.assert_allclose(np.array(there["y"].to_pylist()), np.array(here["y"].to_pylist()), atol=1e-6)


def stacked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    calls.append((a.dtype, len(b)))
    return torch.stack([a, b], 1)


def test_it_may_make_one_input_of_several_columns() -> None:
    """The model takes one tensor; floats come in the model's own type, integers as they are."""
    calls.clear()
    table = pa.table({"a": [1.0, 2.0], "b": [3, 4]})
    scored = score(table, si.TorchModel(nn.Linear(2, 1)), inputs=["a", "b"], outputs="y array<float>", preprocess_on_device=stacked)
    assert (len(scored), calls) == (2, [(torch.float32, 2)])


def no_thirteen(x: torch.Tensor) -> torch.Tensor:
    if (x[:, 0] == 36).any():
        raise ValueError("36 is not for me")
    return x.float()


def test_a_row_that_it_does_not_bear_is_told_in_its_name() -> None:
    """As an error with the batch's place, or as a bad row of a stage of its own; its neighbours have their answers."""
    with pytest.raises(si.PreprocessError, match=r"preprocess_on_device raised ValueError: 36 is not for me.*\(rows 0 to 3\)"):
        score(preprocess_on_device=no_thirteen)
    scored = score(preprocess_on_device=no_thirteen, on_error="null").to_pylist()
    assert [row["error"] and (row["error"]["stage"], row["error"]["type"]) for row in scored] == [
        ("preprocess_on_device", "ValueError") if number == 3 else None for number in range(10)
    ]
    assert all((row["y"] is None) == (number == 3) for number, row in enumerate(scored))


def in_place(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def test_a_function_that_writes_in_place_writes_into_no_data() -> None:
    """A CPU's tensors share Spark's memory: the column is what it was, and a second run answers the same."""
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(24, dtype=np.float32)), 12)})
    spec = ("x", si.TensorSpec("float32", (12,)))
    first, second = (score(table, inputs=spec, preprocess_on_device=in_place) for _ in range(2))
    assert table["x"].combine_chunks().flatten().to_pylist() == list(range(24))
    assert first == second


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_an_engine_that_would_leave_it_out_is_refused(engine: Any) -> None:
    """It would score without what stands before the model."""
    with pytest.raises(si.ConfigError, match=rf"optimize='{engine}' does not go with preprocess_on_device: that function runs in torch"):
        score(model=si.TorchModel(net(), optimize=engine), preprocess_on_device=scale)


def test_a_program_for_one_batch_size_gets_full_batches(tmp_path: Path) -> None:
    """Exported as torch.export does by itself, for the example's rows: ten rows in batches of four, the last one filled up."""
    module = net().eval()
    path = tmp_path / "fixed.pt2"
    torch.export.save(torch.export.export(module, (torch.zeros(4, 12),)), path)
    scored = score(model=si.TorchModel(str(path)), inputs="x", preprocess_batch=by_hand)
    with torch.inference_mode():
        expected = module(torch.from_numpy(by_hand(PIXELS))).numpy()
    np.testing.assert_allclose(np.array(scored["y"].to_pylist()), expected, atol=1e-6)


def test_a_compiled_module_is_known() -> None:
    """Its last batch is filled up; nothing is compiled to know it."""
    assert [TorchLoaded(made, torch.device("cpu"), 1).retraces for made in (torch.compile(net()), net(), torch.relu)] == [
        True,
        False,
        False,
    ]


# --- a card's calls, with a stand-in for torch.cuda ---------------------------------------------------------------------


class Stream:
    """Takes down who waits for it."""

    def __init__(self, cuda: Cuda, name: str) -> None:
        self._cuda = cuda
        self.name = name

    def wait_stream(self, other: Stream) -> None:
        self._cuda.log.append(f"{self.name} waits for {other.name}")


class Event:
    """Is stamped when it is recorded: each stamp a millisecond after the last."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.stamp = 0

    def record(self, stream: Stream) -> None:
        self._cuda.now += 1
        self.stamp = self._cuda.now
        self._cuda.log.append(f"event in {stream.name}")

    def elapsed_time(self, end_event: Event) -> float:
        return float(end_event.stamp - self.stamp)

    def synchronize(self) -> None:
        self._cuda.log.append("the host waits")


class Cuda:
    """What the card's model asks of torch.cuda."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now = 0
        self._names = iter(["in", "out"])
        self._main = Stream(self, "main")

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802 - torch's name
        return Stream(self, next(self._names))

    def Event(self, *, enable_timing: bool = False) -> Event:  # noqa: N802
        return Event(self)

    def current_stream(self, device: torch.device) -> Stream:
        return self._main

    def device(self, device: torch.device) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        yield


def test_a_started_call_copies_computes_and_copies_back_in_order() -> None:
    """Each stream waits for the one before it, the host for none of them until the results are asked for; then they are the ordinary call's."""
    cuda = Cuda()
    loaded = TorchOnCard(net(), torch.device("cpu"), 1, cuda=cuda, on_device=scale)
    inputs = Inputs("single", {"x": PIXELS})
    wait = loaded.start(inputs)
    assert cuda.log == [
        *["event in in"] * 2,
        "main waits for in",
        *["event in main"] * 4,
        "out waits for main",
        *["event in out"] * 3,
    ]
    assert loaded.device_seconds() == {}
    np.testing.assert_array_equal(wait(), loaded.predict(inputs))
    assert cuda.log[-1] == "the host waits"
    assert loaded.device_seconds() == dict.fromkeys(("copy_in", "preprocess", "compute", "copy_out"), 0.001)


def test_the_loop_keeps_calls_under_way_and_tells_the_cards_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows in three batches, each row with its own answer; the partition's record has the card's seconds."""
    expected = score(inputs="x", preprocess_batch=by_hand)
    monkeypatch.setattr(backend, "TorchLoaded", partial(TorchOnCard, cuda=Cuda()))
    schema, batches = open_local(PICTURES)
    config = InferenceConfig(batch_size=4, device="cpu", models_per_worker=0, pad_tail=True)
    said = {"inputs": BYTES, "outputs": "y array<float>", "preprocess_on_device": scale}
    plan = planned(si.TorchModel(net()), schema, lambda plan: next(batches), config=config, **said)
    recorder = Recorder()
    scored = list(run_partition(plan, batches, files=lambda: local_files(plan.model), recorder=recorder))
    found = [row for chunk in scored for row in chunk.column("y").to_pylist()]
    np.testing.assert_allclose(np.array(found), np.array(expected["y"].to_pylist()), atol=1e-6)
    told = recorder.figures()["device_seconds"]
    assert {stage: round(seconds, 6) for stage, seconds in told.items()} == dict.fromkeys(
        ("copy_in", "preprocess", "compute", "copy_out"), 0.003
    )
