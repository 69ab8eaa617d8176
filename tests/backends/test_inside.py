"""A look inside real models: planted faults are named by their layer, the picture has the layers, the model stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import sparkinfer as si

# Keras saves its weights by an __array__ that NumPy 2 finds old-fashioned
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")

X = np.random.default_rng(7).normal(size=(96, 6)).astype(np.float32)
TABLE = pa.table({"x": list(X)})


class Logarithm(nn.Module):
    """Gives NaN for what is below zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


class Dead(nn.Module):
    """A ReLU whose input is always negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(-x.abs() - 1)


class Residual(nn.Module):
    """Takes its input past two layers; its one ReLU is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.act = nn.ReLU()
        self.second = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.second(self.act(self.first(x))) + x)


class Branching(nn.Module):
    """Its way depends on the data, which no exporter follows; it divides nothing by nothing by its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 1e9:
            return self.linear(x) * 2
        y = self.linear(x)
        return (y - y) / (y - y)


def inspected(model: Any, **said: Any) -> si.ModelInspection:
    torch.manual_seed(3)
    wrapped = si.TorchModel(model) if isinstance(model, nn.Module) else model
    settings = {"inputs": "x", "outputs": "y array<float>", "batch_size": 16, "batches": 4, "device": "cpu"}
    return si.inspect_model(TABLE, wrapped, **{**settings, **said})


def sequential(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Linear(8, 3))


def test_a_planted_nan_layer_is_named_and_what_follows_is_not() -> None:
    """The logarithm of a layer's output; the last layer only hands the NaN on."""
    seen = inspected(sequential(nn.Tanh(), Logarithm()))
    first, *others = seen.findings
    assert first.startswith("layer 3 '2' (Logarithm) gives NaN in ")
    assert first.endswith(" of its values, from the first sampled batch on; what comes into it has none")
    assert others == ["the output 'y' holds NaN in 100% of its values"]
    table = seen.layers.set_index("name")
    assert 0.3 < table["nan"]["2"] < 0.7
    assert table["nan"].to_dict() == {"(model)": 0.0, "0": 0.0, "1": 0.0, "2": table["nan"]["2"], "3": 1.0}


def test_a_planted_dead_layer_is_named() -> None:
    """All eight units, in all rows; the other layers live."""
    seen = inspected(sequential(Dead()))
    assert seen.findings[0] == "layer 2 '1' (Dead) is dead: each of its 8 units was 0 in all 64 sampled rows"
    table = seen.layers.set_index("name")
    assert table["dead"].dropna().to_dict() == {"0": 0, "1": 8, "2": 0}
    assert table["zeros"]["1"] == 1.0


def test_a_sound_model_has_figures_and_no_findings() -> None:
    """Mean and spread are those of the layer computed by hand; times are shares of one."""
    model = sequential(nn.ReLU())
    seen = inspected(model, batches=6)
    assert seen.findings == ()
    table = seen.layers.set_index("name")
    with torch.inference_mode():
        expected = model[0](torch.from_numpy(X)).numpy()
    assert table["mean"]["0"] == pytest.approx(float(expected.mean()), rel=1e-4)
    assert table["spread"]["0"] == pytest.approx(float(expected.std()), rel=1e-4)
    assert table["zeros"]["1"] == pytest.approx(float((expected <= 0).mean()), abs=0.001)
    assert table["time"].sum() == pytest.approx(1.0)
    assert seen.weights["name"].tolist() == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert seen.outputs["name"].tolist() == ["y", "argmax of y"]
    assert seen.seen.rows == 96


def test_nothing_stays_on_the_model() -> None:
    """The loaded model of the process gives the same answers without hooks, and its answers were the same with them."""
    model = sequential(nn.ReLU())
    settings = {"inputs": "x", "outputs": "y array<float>", "batch_size": 16, "device": "cpu"}
    before = si.predict_local(TABLE, si.TorchModel(model), **settings)["y"]
    inspected(model)
    from sparkinfer.engine.model_cache import process_models

    loaded = [entry.model for entry in process_models._entries.values() if hasattr(entry.model, "module")]
    assert loaded
    assert not any(module._forward_hooks or module._forward_pre_hooks for one in loaded for module in one.module.modules())
    assert si.predict_local(TABLE, si.TorchModel(model), **settings)["y"].equals(before)


def test_the_picture_follows_the_data() -> None:
    """By torch.export: the ReLU's two uses are two boxes, and the addition takes from the input and the second layer."""
    seen = inspected(Residual())
    graph = seen.seen.graph
    assert graph.how == "torch.export"
    names = [node.name for node in graph.nodes]
    assert [name for name in names if name in ("first", "act", "second", "act (2)")] == ["first", "act", "second", "act (2)"]
    added = next(node for node in graph.nodes if node.kind == "add")
    assert {names[place] for place in added.after} == {"x", "second"}
    assert {layer.name for layer in seen.seen.layers} >= {"first", "act", "second", "act (2)"}


def test_what_cannot_be_exported_is_drawn_as_a_tree_and_its_own_code_is_blamed() -> None:
    """The reason is told; a NaN that no layer gave arose between them."""
    seen = inspected(Branching())
    graph = seen.seen.graph
    assert (graph.how, [(node.name, node.after) for node in graph.nodes]) == ("tree", [("(model)", ()), ("linear", (0,))])
    assert graph.why.startswith("torch.export cannot follow it (")
    assert seen.findings[0].startswith("the model's own code between its layers gives NaN in 100% of its values")


def test_channels_are_found_behind_a_convolution() -> None:
    """Also of the ReLU after a Conv1d, whose last axis are places: one filter of four is dead."""
    torch.manual_seed(2)
    conv = nn.Conv1d(1, 4, 3)
    with torch.no_grad():
        conv.weight[2], conv.bias[2] = 0.0, -1.0
    seen = inspected(nn.Sequential(nn.Unflatten(1, (1, 6)), conv, nn.ReLU(inplace=True), nn.Flatten()))
    table = seen.layers.set_index("name")
    assert table["shape"][["1", "2"]].tolist() == ["4x4", "4x4"]
    assert (table["dead"]["2"], table["units"]["2"]) == (1, 4)
    assert seen.findings[0] == "layer 3 '2' (ReLU) has 1 dead units of 4: they were 0 in all 64 sampled rows"


def test_an_exported_program_is_looked_at_node_by_node(tmp_path: Path) -> None:
    """It calls no modules; the node of the logarithm is named, with the module that it was exported from."""
    batch = torch.export.Dim("batch")
    program = torch.export.export(sequential(nn.Tanh(), Logarithm()).eval(), (torch.from_numpy(X[:4]),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    seen = inspected(si.TorchModel(tmp_path / "model.pt2"))
    assert "log" in seen.findings[0]
    assert " gives NaN in " in seen.findings[0]
    assert seen.layers["kind"].tolist() == ["ExportedProgram", "linear", "tanh", "log", "linear"]
    assert seen.seen.graph.how == "torch.export"
    assert {node.name for node in seen.seen.graph.nodes} >= {layer.name for layer in seen.seen.layers if layer.number}


def test_torchscript_is_looked_at_from_outside() -> None:
    """And a remark says so."""
    scripted = torch.jit.script(sequential(nn.ReLU()))
    seen = inspected(scripted)
    assert seen.layers.empty
    assert "TorchScript runs its layers where no hook is asked" in seen.remarks[0]
    assert seen.outputs["name"].tolist() == ["y", "argmax of y"]


def test_an_engine_is_left_out() -> None:
    """The model's own layers are there, nothing is compiled for it, and a remark says so."""
    seen = inspected(si.TorchModel(sequential(nn.ReLU()), optimize="compile"), graph=False)
    assert seen.layers["kind"].tolist() == ["Sequential", "Linear", "ReLU", "Linear"]
    assert seen.remarks == ("optimize='compile' is left out here: the model itself is looked at",)
    assert seen.seen.graph is None


def test_bf16_beside_fp32() -> None:
    """The answers differ a little, the labels hardly, and both speeds and the gain have their ends."""
    found = si.compare_precision(
        TABLE, si.TorchModel(sequential(nn.ReLU())), "bf16", inputs="x", outputs="y array<float>", batch_size=16, seconds=0.1, device="cpu"
    )
    (y,) = found.outputs
    assert 0 < y.max_abs < 0.1
    assert 0 < y.relative < 0.05
    assert y.changed <= 5
    assert (found.rows, found.precision) == (96, "bf16")
    assert found.rounds >= 3
    assert 0 < found.gain.low <= found.gain.middle <= found.gain.high
    assert "bf16 beside fp32, 96 rows" in str(found)


@pytest.fixture(scope="module")
def keras() -> Any:
    return pytest.importorskip("keras", reason="TensorFlow is not installed")


def test_a_functional_keras_model_is_looked_at(keras: Any, tmp_path: Path) -> None:
    """A layer that gives NaN and a dead one are named; the picture is Keras's own; the same model scores as before."""
    entry = keras.Input((6,), name="x")
    dead = keras.layers.Dense(5, activation="relu", name="dead", bias_initializer=keras.initializers.Constant(-1e6))(entry)
    root = keras.layers.Activation("log_softmax", name="fine")(keras.layers.Dense(5, name="wide")(entry))
    merged = keras.layers.Add(name="merged")([dead, root])
    broken = keras.layers.Normalization(axis=None, mean=0.0, variance=-1.0, name="broken")(merged)
    model = si.TensorFlowModel(keras.Model(entry, keras.layers.Dense(2, name="last")(broken)))
    settings = {"inputs": "x", "outputs": "y array<float>", "batch_size": 16}
    before = si.predict_local(TABLE, model, **settings)["y"].to_pylist()
    seen = inspected(model)
    table = seen.layers.set_index("name")
    assert table["dead"]["dead"] == 5
    assert any("'dead' (Dense) is dead: each of its 5 units" in one for one in seen.findings)
    assert any("'broken' (Normalization) gives NaN in 100% of its values, from the first sampled batch on" in one for one in seen.findings)
    assert not any("'last'" in one for one in seen.findings)
    graph = seen.seen.graph
    names = [node.name for node in graph.nodes]
    assert graph.how == "Keras"
    assert {names[place] for place in graph.nodes[names.index("merged")].after} == {"dead", "fine"}
    assert {name.partition(".")[0] for name in seen.weights["name"]} >= {"dead", "wide", "last"}
    np.testing.assert_array_equal(si.predict_local(TABLE, model, **settings)["y"].to_pylist(), before)


def test_a_saved_model_is_looked_at_from_outside(keras: Any, tmp_path: Path) -> None:
    """A remark says that its layers cannot be reached, and which file would do."""
    keras.Sequential([keras.Input((6,), name="x"), keras.layers.Dense(2)]).export(str(tmp_path / "saved"), verbose=False)
    seen = inspected(si.TensorFlowModel(tmp_path / "saved"))
    assert seen.layers.empty
    assert "a SavedModel is a graph of operations without layers" in seen.remarks[0]
    assert seen.seen.outputs["y"].count == 128
