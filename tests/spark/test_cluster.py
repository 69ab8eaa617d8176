"""On a real standalone cluster, jobs by spark-submit give the answers that they give here, also when an executor dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import sparkinfer as si
from sparkinfer.demo import faces
from tests.spark.cluster import SETTINGS, Cluster, standalone_cluster, wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)

FACES_BY_TORCH = """
version: 1
source: {format: parquet, path: patches.parquet, repartition: 4}
model:
  torch:
    factory: sparkinfer.demo.faces:make_torch_onet
    weights: "${env:ONET}"
predict:
  inputs: patch
  outputs: torch_probability float
  preprocess: sparkinfer.demo.faces:to_channels_first
  postprocess: sparkinfer.demo.faces:face_probability
config: {batch_size: 50}
sink: {format: parquet, path: by_torch.parquet}
run: {mlflow: false}
"""

FACES_BY_KERAS = """
version: 1
source: {format: parquet, path: patches.parquet}
model:
  tensorflow: {factory: "onet:make"}
predict:
  inputs: patch
  outputs: tensorflow_probability float, python string
  keep: row
  preprocess: sparkinfer.demo.faces:to_channels_last
  postprocess: onet:probability_and_python
config: {batch_size: 50}
spark:
  conf: {spark.cores.max: 1}
sink: {format: parquet, path: by_keras.parquet}
run: {mlflow: false}
"""

ONET = '''
"""Beside the job file, and nowhere else."""
import sys

import numpy as np

from sparkinfer.demo.faces import face_probability, keras_onet


def make():
    return keras_onet().source


def probability_and_python(outputs):
    probability = face_probability(outputs)
    return {"tensorflow_probability": probability, "python": np.array([sys.prefix] * len(probability), dtype=object)}
'''

HELD = """
version: 1
source: {query: "SELECT id FROM range(0, 400, 1, 8)"}
model: {python: {load: "held:load"}}
predict: {inputs: id, outputs: y long, road: map}
config: {batch_size: 10}
sink: {format: parquet, path: held.parquet}
run: {mlflow: false}
"""

HELD_MODULE = """
import os
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def load():
    def predict(ids):
        if 225 in ids:
            with (FOLDER / "attempts").open("a") as attempts:
                attempts.write(f"{os.getpid()}\\n")
            while not (FOLDER / "go on").exists():  # until the test has killed this worker's executor
                time.sleep(0.05)
        return ids * 2

    return predict
"""

RETRIED = """
import json
import os
import signal
import sys
import time
from pathlib import Path

import pyspark
from pyspark import TaskContext
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

import sparkinfer as si

SESSION = SparkSession.builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"]).config("spark.speculation", "true")
SESSION = SESSION.config("spark.speculation.quantile", "0.5").config("spark.speculation.interval", "200ms")
SESSION = SESSION.config("spark.executor.cores", "2")


def cpus():
    return lambda ids: ids * 0 + TaskContext.get().cpus()


def load():
    def predict(ids):
        context = TaskContext.get()
        if context.attemptNumber() == 0 and 225 in ids:
            with open(f"{folder}/{fault}", "a") as file:
                file.write(f"{os.getpid()}\\n")
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return ids * 2

    return predict


folder = str(Path.cwd())
with SESSION.getOrCreate() as spark:
    if pyspark.__version__ >= "4":
        whole = ResourceProfileBuilder().require(TaskResourceRequests().cpus(2)).build
        scored = si.predict(spark.range(0, 8, 1, 4), si.PythonModel(cpus), inputs="id", outputs="cpus long", resource_profile=whole)
        print(json.dumps(["profile", sorted({row.cpus for row in scored.collect()})]))
    for fault in ("killed", "slow"):
        scored = si.predict(spark.range(0, 400, 1, 8), si.PythonModel(load), inputs="id", outputs="y long", road="map", batch_size=10)
        with si.inference_run(mlflow=False) as run:
            rows = scored.collect()
        right = sorted((row.id, row.y) for row in rows) == [(number, 2 * number) for number in range(400)]
        (first,) = (Path(folder) / fault).read_text().split()
        until = time.monotonic() + 30
        while Path(f"/proc/{first}").exists() and time.monotonic() < until:
            time.sleep(0.1)
        gone = not Path(f"/proc/{first}").exists()
        print(json.dumps([fault, right, run.summary["inference/rows_total"], run.summary["inference/partitions_total"], gone]))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for the module."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the faces lie, and what is made of them."""
    made = tmp_path_factory.mktemp("faces")
    rows = {
        "row": pa.array(range(200), pa.int32()),
        "patch": pa.array([patch.ravel() for patch in faces.patches()], pa.list_(pa.float64())),
    }
    pq.write_table(pa.table(rows), made / "patches.parquet")
    return made


def commands(mark: str) -> str:
    """The block of docs/jobs.md that has a text."""
    (block,) = [block for block in COMMANDS if mark in block]
    return block


def here(folder: Path, model: object, name: str, preprocess: object) -> np.ndarray:
    """The same rows by the same loop in this process."""
    table = pq.read_table(folder / "patches.parquet")
    arguments = {
        "inputs": "patch",
        "outputs": f"{name} float",
        "preprocess": preprocess,
        "postprocess": faces.face_probability,
        "batch_size": 50,
    }
    return si.predict_local(table, model, **arguments).column(name).to_numpy()


def test_the_demos_faces_by_py_files(cluster: Cluster, folder: Path) -> None:
    """The documented commands with --py-files: four executors give the probabilities that this process gives."""
    (folder / "job.yaml").write_text(FACES_BY_TORCH, encoding="utf-8")
    weights = faces.torch_onet().weights
    printed = cluster.run(commands("--py-files"), folder, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT), ONET=str(weights))
    assert "200 rows in " in printed
    scored = pq.read_table(folder / "by_torch.parquet").sort_by("row")
    assert scored.column("row").to_pylist() == list(range(200))
    expected = here(folder, faces.torch_onet(), "torch_probability", faces.to_channels_first)
    np.testing.assert_allclose(scored.column("torch_probability").to_numpy(), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # h5py's, when Keras saves under NumPy 2
def test_the_demos_faces_by_archives(cluster: Cluster, folder: Path) -> None:
    """The documented commands with --archives: Keras scores the same patches in the Python of the archive, by functions beside the job file."""
    (folder / "job.yaml").write_text(FACES_BY_KERAS, encoding="utf-8")
    (folder / "onet.py").write_text(ONET, encoding="utf-8")
    pack_thin_environment(folder)
    cluster.run(commands("--archives"), folder, PYTHONPATH=str(ROOT))
    scored = pq.read_table(folder / "by_keras.parquet").sort_by("row")
    assert scored.column_names == ["row", "tensorflow_probability", "python"]
    expected = here(folder, faces.keras_onet(), "tensorflow_probability", faces.to_channels_last)
    np.testing.assert_allclose(scored.column("tensorflow_probability").to_numpy(), expected, atol=1e-5)
    (used,) = set(scored.column("python").to_pylist())
    assert re.search(r"/work-[12]/app-[^/]+/\d+/env$", used), used


def pack_thin_environment(folder: Path) -> None:
    """Make env.tar.gz: an environment of its own that finds its packages where this one has them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "thin")], check=True, timeout=120)
    (site,) = (folder / "thin" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{ROOT}\n{Path(pa.__file__).parents[1]}\n", encoding="utf-8")
    with tarfile.open(folder / "env.tar.gz", "w:gz") as archive:
        archive.add(folder / "thin", arcname=".")


def test_an_executor_that_is_killed_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """kill -9 in the middle of a partition: Spark scores it again elsewhere, each row is there once, and is counted once."""
    (tmp_path / "job.yaml").write_text(HELD, encoding="utf-8")
    (tmp_path / "held.py").write_text(HELD_MODULE, encoding="utf-8")
    attempts = tmp_path / "attempts"
    (tmp_path / "settings.conf").write_text(
        f"{SETTINGS}\nspark.executorEnv.PYTHONPATH {ROOT}\n", encoding="utf-8"
    )  # "installed" on the workers
    with cluster.shell(commands("--properties-file"), tmp_path, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT)) as process:
        try:
            wait_for(lambda: process.poll() is not None or (attempts.exists() and attempts.read_text().endswith("\n")), "the partition")
            if process.poll() is None:
                os.kill(executor_of(int(attempts.read_text())), signal.SIGKILL)
        finally:
            (tmp_path / "go on").touch()
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-4000:]
    scored = pq.read_table(tmp_path / "held.parquet").sort_by("id")
    assert scored.column("id").to_pylist() == list(range(400))
    assert scored.column("y").to_pylist() == [2 * number for number in range(400)]
    assert len(set(attempts.read_text().split())) == 2
    assert out.startswith("400 rows in "), out


def test_a_worker_that_is_killed_and_a_task_that_hangs_are_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    """kill -9 of the Python worker: a retry; a task that hangs: a speculative copy. Each row is there once and counted once; the first attempt's worker is gone.

    In the same session, before: a stage with a resource profile has its tasks alone in executors of two cores, and the model both.
    """
    (tmp_path / "retried.py").write_text(RETRIED, encoding="utf-8")
    printed = cluster.run("python retried.py", tmp_path, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT), MASTER=cluster.master)
    told = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    profile = [["profile", [2]]] if pyspark.__version__ >= "4" else []
    assert told == [*profile, ["killed", True, 400, 8, True], ["slow", True, 400, 8, True]]


def executor_of(worker: int) -> int:
    """The JVM above a Python worker and its daemon."""
    (jvm,) = [one for one in psutil.Process(worker).parents() if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]
    return int(jvm.pid)
