"""The frameworks' own profilers: the operators of planted models are found, and viewers open what comes back."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import numpy as np
import pandas as pd
import pytest

import sparkinfer as si

# Keras saves its weights by an __array__ that NumPy 2 finds old-fashioned
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")

ROWS = pd.DataFrame({"x": [np.ones(16, "float32")] * 48})


def profiled(model: Any) -> si.Profile:
    return si.profile(ROWS, model, inputs="x", outputs="y array<float>", batch_size=8)


@pytest.fixture(scope="module")
def of_torch() -> si.Profile:
    import torch

    class Planted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = torch.nn.Linear(16, 4)
            self.large = torch.ones(800, 800)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.small(x) + (self.large @ self.large)[0, 0] * 0

    return profiled(si.TorchModel(Planted()))


@pytest.fixture(scope="module")
def of_tensorflow() -> si.Profile:
    keras = pytest.importorskip("keras", reason="TensorFlow is not installed")

    layers = [
        keras.Input((16,)),
        keras.layers.Dense(2048, name="wide"),
        keras.layers.Dense(1024, name="large"),
        keras.layers.Dense(2, name="small"),
    ]
    return profiled(si.TensorFlowModel(keras.Sequential(layers)))


def test_bytes_that_are_no_text_cost_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's trace now and then has some: its operators and a trace that viewers read come back all the same."""
    import torch

    export = torch.profiler.profile.export_chrome_trace

    def with_others(self: Any, path: str) -> None:
        export(self, path)
        whole = Path(path).read_bytes()
        Path(path).write_bytes(whole.replace(b'"traceEvents": [', b'"odd": "\xae", "traceEvents": [', 1))
        assert b"\xae" in Path(path).read_bytes()

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", with_others)
    seen = profiled(si.TorchModel(torch.nn.Linear(16, 4)))
    assert seen.remarks == ()
    assert len(seen.operators)
    (trace,) = seen.traces.values()
    assert json.loads(gzip.decompress(trace))["odd"] == "\ufffd"


def test_torchs_slowest_operator_is_the_planted_one(of_torch: si.Profile) -> None:
    """800 x 800 times itself, once in each of 3 calls; the table has no function of Python."""
    table = of_torch.operators
    assert (table["name"][0], table["shapes"][0], table["calls"][0]) == ("aten::mm", "800x800 800x800", 3)
    assert table["self_cpu_bytes"][0] == 3 * 800 * 800 * 4
    assert not table["name"].str.contains(r"\.py|built-in").any()
    assert (table["total_cpu_us"] >= table["self_cpu_us"]).all()


def test_torchs_stacks_lead_from_the_model_to_the_operator(of_torch: si.Profile) -> None:
    """Through the user's own forward; nothing of the loop around it is there."""
    heaviest = max(of_torch.stacks, key=lambda stack: of_torch.stacks[stack])
    assert heaviest.split(";")[-1] == "aten::mm"
    assert "forward" in heaviest
    assert "run_partition" not in heaviest


def test_torchs_trace_is_in_the_trace_of_the_run(of_torch: si.Profile, tmp_path: Path) -> None:
    """Its own is Chrome's format; in the run's the operators lie within the partition."""
    own = json.loads(gzip.decompress(of_torch.traces["p0-t0"]))["traceEvents"]
    assert sum(event.get("name") == "sparkinfer batch 0" for event in own) >= 1
    path = of_torch.save_trace(tmp_path / "run.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    whole = next(event for event in events if event.get("cat") == "partition")
    shown = [event for event in events if event["name"] == "aten::mm"]
    assert len(shown) == 3
    assert all(whole["ts"] <= event["ts"] <= whole["ts"] + whole["dur"] for event in shown)


def test_tensorflows_operators_have_their_layers_names(of_tensorflow: si.Profile) -> None:
    """The largest matrix is slowest; each operator is named with its place in the model, and ran once a call."""
    table = of_tensorflow.operators
    assert "large" in table["name"][0]
    assert "MatMul" in table["name"][0]
    assert table["calls"][0] == 3
    assert any("small" in name for name in table["name"])
    assert "self_cpu_bytes" not in table


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_the_page_has_table_and_flame_graph(request: pytest.FixtureRequest, framework: str, tmp_path: Path) -> None:
    """One file of less than 1 MB, from a real profile."""
    made: si.Profile = request.getfixturevalue(f"of_{framework}")
    page = made.save_report(tmp_path / "profile.html").read_text(encoding="utf-8")
    assert "of the model&#x27;s own time" in page
    assert 'aria-label="flame graph"' in page
    assert len(page) < 1_000_000


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_the_record_of_a_watched_partition_stays_small(request: pytest.FixtureRequest, framework: str) -> None:
    """Trace included: what a driver holds for each watched partition."""
    made: si.Profile = request.getfixturevalue(f"of_{framework}")
    assert len(made.metrics.partitions[0].to_json()) < 400_000


@pytest.mark.skipif(
    "SPARKINFER_XPROF" not in os.environ,
    reason="xprof brings 340 MB of Google Cloud's clients and a protobuf of its own: SPARKINFER_XPROF names its command in an environment apart",
)
def test_tensorboards_plugin_opens_the_planes(of_tensorflow: si.Profile, tmp_path: Path) -> None:
    """xprof's own server lists the partition as a run, and its table of operators has the model's."""
    of_tensorflow.save_tensorboard(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [os.environ["SPARKINFER_XPROF"], "--logdir", str(tmp_path), "--port", str(port)], stderr=subprocess.DEVNULL
    ) as server:
        try:
            base = f"http://127.0.0.1:{port}/data/plugin/profile"
            assert json.loads(fetched(f"{base}/runs")) == ["p0-t0"]
            host = next(tmp_path.rglob("*.xplane.pb")).name.removesuffix(".xplane.pb")
            table = fetched(f"{base}/data?run=p0-t0&tag=framework_op_stats&host={host}")
            assert "large" in table
            assert "MatMul" in table
        finally:
            server.terminate()


def fetched(url: str) -> str:
    """Ask until the server is up."""
    opener = build_opener(ProxyHandler({}))
    ended = time.monotonic() + 60
    while True:
        try:
            with opener.open(url, timeout=30) as answer:
                content = answer.read()
                return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
        except OSError:
            if time.monotonic() > ended:
                raise
            time.sleep(0.5)
