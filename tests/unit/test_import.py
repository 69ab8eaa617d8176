"""Importing the library costs next to nothing, and what needs no framework runs without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sparkinfer.testing import Ledger

HEAVY = ["numpy", "pandas", "pyarrow", "pyspark", "torch", "tensorflow", "mlflow", "pynvml"]

MEASURE_IMPORT = """
import json, sys, time

start = time.perf_counter()
import sparkinfer
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""

TEN_BATCHES_WITHOUT_FRAMEWORKS = """
import sys

BLOCKED = {"torch", "tensorflow", "keras", "pyspark", "mlflow", "pynvml"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by the test)", name=name)

sys.meta_path.insert(0, Blocker())

import pyarrow as pa

import sparkinfer
from sparkinfer.testing import EchoModel, Ledger

table = pa.table({"x": pa.array([float(row) for row in range(37)])})
echo = EchoModel(Ledger(sys.argv[1]))

def load():
    predict = echo()
    return lambda x: predict(x) * 2

scored = sparkinfer.predict_local(table, sparkinfer.PythonModel(load), inputs="x", outputs="y double", batch_size=4)
assert scored.column("x").to_pylist() == table.column("x").to_pylist()
assert scored.column("y").to_pylist() == [2.0 * row for row in range(37)], scored
assert not BLOCKED & set(sys.modules), BLOCKED & set(sys.modules)
"""


def run_python(code: str, *arguments: str, cwd: Path) -> str:
    """Run code in a fresh interpreter and give what it printed; its own error is the test's."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_no_heavy_package(tmp_path: Path) -> None:
    """A fresh ``import sparkinfer`` leaves every heavy package unimported."""
    loaded = json.loads(run_python(MEASURE_IMPORT, cwd=tmp_path))["modules"]
    assert "sparkinfer" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_import_takes_under_a_tenth_of_a_second(tmp_path: Path) -> None:
    """The best of five fresh imports: the cost is the library's, not that of a busy machine or a cold disk."""
    seconds = [json.loads(run_python(MEASURE_IMPORT, cwd=tmp_path))["seconds"] for _ in range(5)]
    assert min(seconds) < 0.1, seconds


def test_ten_batches_run_where_no_framework_is_installed(tmp_path: Path) -> None:
    """Without torch, TensorFlow, pyspark, MLflow and pynvml a Python model scores 37 rows in ten batches, in order."""
    ledger = Ledger(str(tmp_path / "ledger"))
    run_python(TEN_BATCHES_WITHOUT_FRAMEWORKS, ledger.folder, cwd=tmp_path)
    assert ledger.count("load") == 1
    assert ledger.rows("predict") == [4] * 9 + [1]
