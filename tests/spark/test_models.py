"""Every kind of model through real Spark, on both roads; and what a worker keeps of models, and when it lets go of them."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import threading
import weakref
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.spark.ship import _zip
from sparkinfer.testing import EchoModel, Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Keras 3.15 saves its variables by a call that NumPy 2 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")

ROWS = 23


def table(spark: SparkSession) -> DataFrame:
    """Rows of three floats in three partitions."""
    return spark.range(0, ROWS, 1, 3).selectExpr("id", "array(cast(id as float), cast(id % 5 as float), 1f) as x").selectExpr("*", "x as z")


def arrays() -> np.ndarray:
    """The same rows as one array."""
    return np.array([[row, row % 5, 1] for row in range(ROWS)], dtype=np.float32)


def score(df: DataFrame, model: Any, road: str = "map", *, inputs: Any = "x", batch_size: int = 5) -> np.ndarray:
    """Run one action, and give the predictions by id."""
    return collected(si.predict(df, model, inputs=inputs, outputs="y array<float>", keep=["id"], road=road, batch_size=batch_size))


def collected(scored: DataFrame) -> np.ndarray:
    """Give the predictions by id, each id once."""
    rows = sorted(scored.collect())
    assert [row.id for row in rows] == list(range(ROWS))
    return np.array([row.y for row in rows], dtype=np.float32)


# --- every kind, on both roads


def torch_net() -> Any:
    """A small network of fixed weights, left in training mode; the answer depends on the mode."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
        )
        net[1].running_mean.uniform_()
    return net


def torch_answer(net: Any = None) -> np.ndarray:
    """Call the network directly, in evaluation mode."""
    import torch

    with torch.inference_mode():
        return (net if net is not None else torch_net()).eval()(torch.from_numpy(arrays())).numpy()


def net_class() -> Any:
    """A module class that only the driver knows."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*torch_net())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    return Net


def as_module(folder: Path) -> Any:
    """Make a module in memory."""
    return si.TorchModel(torch_net())


def as_factory(folder: Path) -> Any:
    """Make a factory, found by reference."""
    return si.TorchModel(torch_net)


def as_class_with_safetensors(folder: Path) -> Any:
    """Make a class by value, and safetensors."""
    from safetensors.torch import save_file

    net = net_class()
    save_file(net().state_dict(), folder / "net.safetensors")
    return si.TorchModel(net, weights=folder / "net.safetensors")


def as_factory_with_state_dict(folder: Path) -> Any:
    """Make a factory, and a file of torch.save."""
    import torch

    torch.save(torch_net().state_dict(), folder / "net.pt")
    return si.TorchModel(torch_net, weights=folder / "net.pt")


def exported() -> Any:
    """Export the network for any number of rows."""
    import torch

    return torch.export.export(torch_net().eval(), (torch.zeros(2, 3),), dynamic_shapes=({0: torch.export.Dim("rows")},))


def as_export_file(folder: Path) -> Any:
    """Make a .pt2 archive."""
    import torch

    torch.export.save(exported(), folder / "net.pt2")
    return si.TorchModel(folder / "net.pt2")


def as_exported_program(folder: Path) -> Any:
    """Make an exported program in memory."""
    return si.TorchModel(exported())


def as_script_file(folder: Path) -> Any:
    """Make a TorchScript file, saved in training mode."""
    import torch

    torch.jit.script(torch_net()).save(str(folder / "net.script"))
    return si.TorchModel(folder / "net.script")


def as_script(folder: Path) -> Any:
    """Make TorchScript in memory."""
    import torch

    return si.TorchModel(torch.jit.script(torch_net()))


def as_trusted_pickle(folder: Path) -> Any:
    """Make a whole module, pickled."""
    import torch

    torch.save(torch_net(), folder / "whole.pt")
    return si.TorchModel(folder / "whole.pt", trust_pickle=True)


TORCH = [
    as_module,
    as_factory,
    as_class_with_safetensors,
    as_factory_with_state_dict,
    as_export_file,
    as_exported_program,
    as_script_file,
    as_script,
    as_trusted_pickle,
]


@pytest.mark.parametrize("make", TORCH, ids=lambda make: make.__name__[3:])
def test_every_torch_model_gives_its_own_answers_on_both_roads(spark: SparkSession, tmp_path: Path, make: Callable[[Path], Any]) -> None:
    """Through Spark, row for row, what a direct call in evaluation mode gives."""
    model = make(tmp_path)
    expected = torch_answer()
    for road in ("map", "column"):
        np.testing.assert_allclose(score(table(spark), model, road), expected, atol=1e-6)


def plus_one(x: Any) -> Any:
    """On the model's device, where that is a tensor."""
    return x.float() + 1


def test_a_function_before_the_model_travels_with_it(spark: SparkSession) -> None:
    """``preprocess_on_device`` on both roads, as a column, and in SQL; the model without it is another one in the same workers."""
    import torch

    model, df = si.TorchModel(torch.nn.Identity()), table(spark)
    said: dict[str, Any] = {"inputs": "x", "preprocess_on_device": plus_one, "batch_size": 5}
    for road in ("map", "column"):
        scored = si.predict(df, model, outputs="y array<float>", keep=["id"], road=road, **said)
        np.testing.assert_array_equal(collected(scored), arrays() + 1)
        np.testing.assert_array_equal(score(df, model, road), arrays())
    column = si.register(spark, "plus_one", model, returns="array<float>", **said)
    df.createOrReplaceTempView("plus_one_rows")
    for made in (df.select("id", column("x").alias("y")), spark.sql("SELECT id, plus_one(x) AS y FROM plus_one_rows")):
        np.testing.assert_array_equal(collected(made), arrays() + 1)


def keras_net() -> Any:
    """A small Keras model whose answer depends on the mode."""
    import keras

    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,), name="x")
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(4, activation="relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dropout(0.5)(hidden)))
    model.layers[2].moving_mean.assign([0.5, -0.5, 0.25, 1.0])
    return model


def keras_object(folder: Path) -> tuple[Any, np.ndarray]:
    """Make a Keras model in memory."""
    net = keras_net()
    return si.TensorFlowModel(net), np.asarray(net(arrays(), training=False))


def keras_object_without_names(folder: Path) -> tuple[Any, np.ndarray]:
    """Make one whose inputs Keras has named itself."""
    import keras

    first, second = keras.Input((3,)), keras.Input((3,))
    net = keras.Model([first, second], keras.layers.Subtract()([first * 3.0, second]))
    return si.TensorFlowModel(net), arrays() * 2


def keras_archive(folder: Path) -> tuple[Any, np.ndarray]:
    """Make a .keras archive."""
    net = keras_net()
    net.save(folder / "net.keras")
    return si.TensorFlowModel(folder / "net.keras"), np.asarray(net(arrays(), training=False))


def keras_h5(folder: Path) -> tuple[Any, np.ndarray]:
    """Make a legacy .h5 file."""
    net = keras_net()
    with pytest.MonkeyPatch.context() as patch:
        import absl.logging

        patch.setattr(absl.logging, "warning", lambda *_: None)  # Keras says that the format is an old one
        net.save(folder / "net.h5")
    return si.TensorFlowModel(folder / "net.h5"), np.asarray(net(arrays(), training=False))


def write_saved_model(folder: Path, factor: float = 1.0) -> np.ndarray:
    """Write a SavedModel with a default signature and another; give the default's answer."""
    import tensorflow as tf

    module = tf.Module()
    module.weight = tf.Variable(tf.constant([[1.0, 0.0], [2.0, 1.0], [3.0, -1.0]]) * factor)
    spec = tf.TensorSpec((None, 3), tf.float32, name="x")
    module.plain = tf.function(lambda x: {"out": x @ module.weight}, input_signature=[spec])
    module.negative = tf.function(lambda x: {"out": -(x @ module.weight)}, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.plain, "negative": module.negative})
    return arrays() @ module.weight.numpy()


def saved_model(folder: Path) -> tuple[Any, np.ndarray]:
    """Make a SavedModel directory."""
    expected = write_saved_model(folder / "saved")
    return si.TensorFlowModel(folder / "saved"), expected


def named_signature(folder: Path) -> tuple[Any, np.ndarray]:
    """Make a SavedModel, of which another signature is called."""
    expected = write_saved_model(folder / "saved")
    return si.TensorFlowModel(folder / "saved", signature="negative"), -expected


TENSORFLOW = [keras_object, keras_object_without_names, keras_archive, keras_h5, saved_model, named_signature]


@pytest.mark.parametrize("make", TENSORFLOW, ids=lambda make: make.__name__)
def test_every_tensorflow_model_gives_its_own_answers_on_both_roads(
    spark: SparkSession, tmp_path: Path, make: Callable[[Path], tuple[Any, np.ndarray]]
) -> None:
    """Through Spark, row for row, what a direct call in inference mode gives."""
    model, expected = make(tmp_path)
    inputs = ["x", "z"] if make is keras_object_without_names else "x"
    for road in ("map", "column"):
        np.testing.assert_allclose(score(table(spark), model, road, inputs=inputs), expected, atol=1e-5)


class Twice:
    """A model that is an object."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Double."""
        return x * 2


def load_function() -> Callable[..., Any]:
    """Load, found by reference."""
    return lambda x: x * 2


def test_every_python_model_gives_its_own_answers_on_both_roads(spark: SparkSession) -> None:
    """A function by reference, a lambda by value, a class, and an object with predict, all the same."""
    factor = 2
    for load in (load_function, lambda: lambda x: x * factor, Twice, lambda: Twice().predict):
        for road in ("map", "column"):
            np.testing.assert_array_equal(score(table(spark), si.PythonModel(load), road), arrays() * 2)


# --- C28: what cannot travel


class Locked:
    """A model with a lock, as live sessions of runtimes have one."""

    def __init__(self) -> None:
        self.guard = threading.Lock()

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Double, one at a time."""
        with self.guard:
            return x * 2


def jobs(spark: SparkSession) -> int:
    """Count the jobs that were started outside any group."""
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def holding(live: Any) -> Callable[[], Any]:
    """Give a loader that closes over something."""
    return lambda: live


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (lambda spark: Locked(), ["Locked", "loader"]),
        (lambda spark: Locked().__call__, ["__call__", "loader"]),
        (lambda spark: holding(Locked()), ["'live'", "'guard'", "lock", "loader"]),
        (holding, ["'live'", "session cannot be used on workers"]),
        (lambda spark: holding(spark.range(3)), ["'live'", "session cannot be used on workers"]),
    ],
    ids=["the model itself", "its method", "a loader that holds one", "a loader that holds the session", "a loader that holds a DataFrame"],
)
def test_what_cannot_travel_is_refused_before_any_job(spark: SparkSession, load: Callable[[Any], Any], words: list[str]) -> None:
    """C28: the text names what cannot travel and the way out; no job was started."""
    before = jobs(spark)
    with pytest.raises(si.ConfigError) as caught:
        score(table(spark), si.PythonModel(load(spark)))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert jobs(spark) == before


def test_a_torch_module_with_a_lock_is_refused_by_its_attribute(spark: SparkSession) -> None:
    """C28: so is a module that holds what cannot be pickled."""
    net = torch_net()
    net.guard = threading.Lock()
    with pytest.raises(si.ConfigError, match=r"attribute 'guard'.*loader"):
        score(table(spark), si.TorchModel(net))


def test_a_loader_makes_what_cannot_travel(spark: SparkSession) -> None:
    """C28: a loading function is the way out, and works."""
    np.testing.assert_array_equal(score(table(spark), si.PythonModel(lambda: Locked())), arrays() * 2)  # noqa: PLW0108 - as the case writes it


# --- C29: once a worker


@dataclass(frozen=True)
class NotedNet:
    """A factory that writes each call down."""

    ledger: Ledger

    def __call__(self) -> Any:
        """Make the network."""
        self.ledger.write("load")
        return torch_net()


def noted_torch(ledger: Ledger, folder: Path) -> Any:
    """Make a torch model whose loads are written down."""
    return si.TorchModel(NotedNet(ledger))


def noted_torch_with_weights(ledger: Ledger, folder: Path) -> Any:
    """Make one with weights, which the driver checks by building it too."""
    import torch

    torch.save(torch_net().state_dict(), folder / "net.pt")
    return si.TorchModel(NotedNet(ledger), weights=folder / "net.pt")


@lru_cache
def noted_layer() -> Any:
    """Give a layer that writes down that it is built again from its settings."""
    import keras

    class Noted(keras.layers.Layer):
        def __init__(self, folder: str, **more: Any) -> None:
            super().__init__(**more)
            self.folder = folder

        def call(self, x: Any) -> Any:
            return x

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "folder": self.folder}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            Ledger(config["folder"]).write("load")
            return cls(**config)

    return Noted


def noted_keras(ledger: Ledger, folder: Path) -> Any:
    """Make a Keras model whose loads are written down, by names of our own: those that Keras gives count up, and make another model."""
    import keras

    inputs = keras.Input((3,), name="x")
    return si.TensorFlowModel(keras.Model(inputs, noted_layer()(ledger.folder, name="noted")(inputs), name="net"))


def noted_python(ledger: Ledger, folder: Path) -> Any:
    """Make a Python model whose loads are written down."""
    return si.PythonModel(EchoModel(ledger))


@pytest.mark.parametrize("make", [noted_torch, noted_torch_with_weights, noted_keras, noted_python])
def test_a_model_is_loaded_once_a_worker_over_three_calls_and_actions(
    spark: SparkSession, ledger: Ledger, tmp_path: Path, make: Callable[[Ledger, Path], Any]
) -> None:
    """C29: eight partitions of small chunks, three predict calls of equal models, both roads: one load in each process."""
    df = table(spark).repartition(8)
    with si.inference_run(max_records_per_batch=2):
        for road in ("map", "column", "map"):
            score(df, make(ledger, tmp_path), road)
    loads = [event.pid for event in ledger.events("load") if event.pid != os.getpid()]
    assert 1 <= len(loads) <= 2
    assert len(set(loads)) == len(loads)


def test_an_empty_partition_loads_no_model(spark: SparkSession, ledger: Ledger) -> None:
    """C02: of eight partitions one has a row, so one process loads; a frame without rows loads nothing."""
    one = spark.range(0, 8, 1, 8).where("id = 5").selectExpr("id", "array(1f, 2f, 3f) as x")
    scored = si.predict(one, noted_python(ledger, Path()), inputs="x", outputs="y array<float>", road="map")
    assert len(scored.collect()) == 1
    assert ledger.count("load") == 1
    assert scored.where("false").collect() == []


def count_frozen() -> Any:
    """A model that tells how many objects the garbage collector of its process passes over."""
    return lambda x: np.full(len(x), gc.get_freeze_count())


def test_what_a_worker_keeps_is_frozen_from_its_second_task_on(spark: SparkSession) -> None:
    """pyspark collects garbage after every task, and would look at all of a framework's objects each time."""
    rows = spark.range(0, 12, 1, 12)
    frozen = [row.n for row in si.predict(rows, si.PythonModel(count_frozen), inputs="id", outputs="n long", road="map").collect()]
    assert sum(n > 10_000 for n in frozen) >= 10  # two workers, whose first task may have found nothing frozen


# --- C34: what a worker keeps


alive: weakref.WeakSet[Any] = weakref.WeakSet()  # of one Python worker


class Adds:
    """A model that adds a number, and tells how many of its kind live in its process."""

    def __init__(self, number: int, ledger: Ledger) -> None:
        self.number = number
        self.ledger = ledger
        alive.add(self)
        ledger.write("load")

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add."""
        return x.sum(axis=1) + self.number, np.full(len(x), len(alive))

    def close(self) -> None:
        """Be let go."""
        self.ledger.write("close")


def run_adds(spark: SparkSession, ledger: Ledger, number: int, keep: int) -> int:
    """Score by one model, check its answers, and give the most that lived at once."""
    model = si.PythonModel(lambda: Adds(number, ledger))
    scored = si.predict(table(spark).coalesce(2), model, inputs="x", outputs="y float, alive int", models_per_worker=keep, road="map")
    rows = sorted(scored.collect())
    np.testing.assert_allclose([row.y for row in rows], arrays().sum(axis=1) + number)
    return max(row.alive for row in rows)


def test_twenty_models_one_after_another_leave_a_bounded_number_alive(spark: SparkSession, ledger: Ledger) -> None:
    """C34: each gives its own answers; at most two live in a process, and those that were let go were closed."""
    assert max(run_adds(spark, ledger, number, keep=2) for number in range(20)) <= 2
    loads, closes = ledger.events("load"), ledger.events("close")
    for pid in ledger.pids("load"):
        loaded, closed = (sum(event.pid == pid for event in events) for events in (loads, closes))
        assert loaded - closed == min(2, loaded)


def test_no_model_is_kept_when_none_is_asked_for(spark: SparkSession, ledger: Ledger) -> None:
    """C34: with models_per_worker=0 every load is closed after its task."""
    for number in range(2):
        assert run_adds(spark, ledger, number, keep=0) == 1
    assert ledger.count("load") == ledger.count("close") >= 2


# --- files that change


def write_weights(path: Path, factor: float) -> np.ndarray:
    """Overwrite the file in place with other weights of the same size; give the new answer."""
    import torch

    net = torch_net()
    with torch.no_grad():
        net[4].weight.mul_(factor)
    torch.save(net.state_dict(), path)
    return torch_answer(net)


def overwrite_torch(path: Path, factor: float) -> np.ndarray:
    """Write weights."""
    return write_weights(path, factor)


def overwrite_saved_model(path: Path, factor: float) -> np.ndarray:
    """Write a SavedModel over the one that is there."""
    return write_saved_model(path, factor)


FILES = {
    "torch": (overwrite_torch, lambda path, **more: si.TorchModel(torch_net, weights=path, **more)),
    "tensorflow": (overwrite_saved_model, si.TensorFlowModel),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("ship", ["path", "files"])
def test_a_file_overwritten_in_place_is_a_new_model(spark: SparkSession, tmp_path: Path, kind: str, ship: str) -> None:
    """C34: the next predict call gives the new answers, though the same workers hold the old model."""
    write, model = FILES[kind]
    for factor in (1.0, 2.0, -1.0):
        expected = write(tmp_path / "model", factor)
        np.testing.assert_allclose(score(table(spark), model(tmp_path / "model", ship=ship)), expected, atol=1e-5)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("warm", [False, True], ids=["not loaded yet", "loaded before"])
def test_a_file_that_changes_between_predict_and_the_action_is_an_error(spark: SparkSession, tmp_path: Path, kind: str, warm: bool) -> None:
    """Neither the new answers nor a mixture: the action says to call predict again (torch maps the file's memory, so a loaded model too)."""
    write, model = FILES[kind]
    expected = write(tmp_path / "model", 3.0)
    scored = si.predict(table(spark), model(tmp_path / "model", ship="path"), inputs="x", outputs="y array<float>", road="map")
    if warm:
        np.testing.assert_allclose(collected(scored), expected, atol=1e-5)
    write(tmp_path / "model", 4.0)
    with pytest.raises(Exception, match="changed after predict was called: call it again"):
        scored.collect()


@pytest.mark.parametrize("kind", FILES)
def test_a_shipped_file_stays_what_it_was_when_it_was_shipped(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """What travels is a copy: the user's file may be overwritten, or removed, between predict and the action."""
    write, model = FILES[kind]
    path = tmp_path / "model"
    expected = write(path, 5.0)
    scored = si.predict(table(spark), model(path, ship="files"), inputs="x", outputs="y array<float>", road="map")
    write(path, 6.0)
    np.testing.assert_allclose(collected(scored), expected, atol=1e-5)
    expected = write(path, 7.0)
    scored = si.predict(table(spark), model(path, ship="files"), inputs="x", outputs="y array<float>", road="map")
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    np.testing.assert_allclose(collected(scored), expected, atol=1e-5)


def test_a_file_sent_by_value_is_not_read_by_the_workers(spark: SparkSession, tmp_path: Path) -> None:
    """With ship="value" the bytes are in the task: the file may be gone."""
    expected = write_weights(tmp_path / "net.pt", 8.0)
    model = si.TorchModel(torch_net, weights=tmp_path / "net.pt", ship="value")
    scored = si.predict(table(spark), model, inputs="x", outputs="y array<float>", road="column")
    (tmp_path / "net.pt").unlink()
    np.testing.assert_allclose(collected(scored), expected, atol=1e-5)


def test_a_path_that_a_worker_does_not_see_says_how_to_send_it(spark: SparkSession, tmp_path: Path) -> None:
    """With ship="path" a file that is not there names itself and ship="files"."""
    write_weights(tmp_path / "net.pt", 9.0)
    model = si.TorchModel(torch_net, weights=tmp_path / "net.pt", ship="path")
    scored = si.predict(table(spark), model, inputs="x", outputs="y array<float>", road="map")
    (tmp_path / "net.pt").unlink()
    with pytest.raises(Exception, match=r"net\.pt is not on this worker: say ship='files'"):
        scored.collect()


def test_a_directory_cannot_go_by_value(spark: SparkSession, tmp_path: Path) -> None:
    """The refusal comes from the driver and names the other ways."""
    write_saved_model(tmp_path / "saved")
    with pytest.raises(si.ConfigError, match=r"directory: use ship='files' or ship='path'"):
        score(table(spark), si.TensorFlowModel(tmp_path / "saved", ship="value"))


def shipped(spark: SparkSession) -> list[str]:
    """Name the files of this library that the SparkContext carries."""
    return [Path(url).name for url in spark.sparkContext.listFiles if "sparkinfer-" in Path(url).name]


@pytest.mark.parametrize("kind", FILES)
def test_the_same_content_travels_once(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Under whatever path it lies: its name is made of its content."""
    write, model = FILES[kind]
    write(tmp_path / "one", 10.0)
    copy = shutil.copytree if (tmp_path / "one").is_dir() else shutil.copyfile
    copy(tmp_path / "one", tmp_path / "two")
    before = shipped(spark)
    answers = [score(table(spark), model(tmp_path / name, ship="files"), road) for name in ("one", "two") for road in ("map", "column")]
    assert len(set(shipped(spark)) - set(before)) == 1
    assert all(np.array_equal(answers[0], answer) for answer in answers)


def test_files_older_than_1980_can_be_shipped(spark: SparkSession, tmp_path: Path) -> None:
    """Reproducible packages date their files at 1970, before a zip's calendar begins."""
    expected = write_saved_model(tmp_path / "saved", 11.0)
    for path in (tmp_path / "saved").rglob("*"):
        os.utime(path, (0, 0))
    np.testing.assert_allclose(score(table(spark), si.TensorFlowModel(tmp_path / "saved", ship="files")), expected, atol=1e-5)


def test_a_large_module_in_memory_reaches_the_workers(spark: SparkSession) -> None:
    """Beyond a mebibyte its tensors do not travel in the task, but as a file that the workers map."""
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(3, 100_000), torch.nn.Linear(100_000, 2))
    for ship in ("auto", "files"):
        # sums of 100,000 products in another order differ by more than a few units of the last place
        np.testing.assert_allclose(score(table(spark), si.TorchModel(net, ship=ship)), torch_answer(net), atol=1e-3)


# --- C31: unsafe files


def test_a_pickled_module_is_refused_with_the_ways_out_before_any_job(spark: SparkSession, tmp_path: Path) -> None:
    """C31: the text names the file, the two safe ways and the option to trust it."""
    import torch

    torch.save(torch_net(), tmp_path / "whole.pt")
    before = jobs(spark)
    with pytest.raises(si.ModelLoadError) as caught:
        score(table(spark), si.TorchModel(tmp_path / "whole.pt"))
    assert all(word in str(caught.value) for word in ("whole.pt", "weights=", "torch.export", "trust_pickle=True"))
    assert jobs(spark) == before


def test_garbage_is_no_torch_file(spark: SparkSession, tmp_path: Path) -> None:
    """C31: the text says so, on the driver, and no job starts."""
    (tmp_path / "net.pt").write_bytes(hashlib.sha256(b"garbage").digest() * 9)
    before = jobs(spark)
    with pytest.raises(si.ModelLoadError, match=r"net\.pt' is not a torch file"):
        score(table(spark), si.TorchModel(tmp_path / "net.pt"))
    assert jobs(spark) == before


# --- C35: the mode


@pytest.mark.parametrize("make", [as_module, as_factory, as_script_file, as_trusted_pickle])
def test_dropout_and_batch_statistics_are_off_whatever_the_batch(spark: SparkSession, tmp_path: Path, make: Callable[[Path], Any]) -> None:
    """C35: two runs, and batches of 1 and of 64 rows, give the same as a direct call in evaluation mode."""
    model = make(tmp_path)
    for batch_size in (1, 64, 64):
        np.testing.assert_allclose(score(table(spark), model, batch_size=batch_size), torch_answer(), atol=1e-6)


def test_the_users_own_module_is_not_changed(spark: SparkSession) -> None:
    """C35: it stays in training mode, with its statistics and its gradients as they were."""
    net = torch_net()
    mean = net[1].running_mean.clone()
    score(table(spark), si.TorchModel(net))
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert (net[1].running_mean == mean).all()


def test_a_keras_model_is_called_with_training_off(spark: SparkSession) -> None:
    """C35: a layer that gives its own training flag back says 0 in every batch."""
    import keras

    class Tells(keras.layers.Layer):
        def call(self, x: Any, training: bool | None = None) -> Any:
            return keras.ops.zeros_like(x) + (1.0 if training is None else 2.0 if training else 0.0)

    inputs = keras.Input((3,))
    net = keras.Model(inputs, Tells()(inputs))
    assert not score(table(spark), si.TensorFlowModel(net)).any()


def test_what_is_sent_of_a_directory_is_what_its_hash_is_made_of(tmp_path: Path) -> None:
    """What Python writes beside code that it imports from there is no part of the model."""
    for name in ("model.txt", "code/net.py", "code/__pycache__/net.pyc"):
        (tmp_path / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / name).write_text(name, encoding="utf-8")
    _zip(str(tmp_path / "m"), str(tmp_path / "m.zip"))
    with zipfile.ZipFile(tmp_path / "m.zip") as archive:
        assert archive.namelist() == ["code/net.py", "model.txt"]
