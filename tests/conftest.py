"""What every test may ask for: a real local Spark session, and a ledger that its workers can write to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from sparkinfer.testing import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
SPARK = tuple(int(part) for part in version("pyspark").split(".")[:2]) if find_spec("pyspark") else (0, 0)

# Two busy cores are no place for deadlines: an example may wait for its turn.
settings.register_profile("sparkinfer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sparkinfer")


def pytest_configure(config: pytest.Config) -> None:
    """Let pass what pyspark 3.5 itself does: it compares versions by distutils, and leaves the sockets of collect() to the collector."""
    if SPARK < (4, 0):
        config.addinivalue_line("filterwarnings", "ignore:distutils Version classes are deprecated:DeprecationWarning")
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this Spark does not have, or has only had before: ``@pytest.mark.spark(since=(4, 1), why="arrow_udf")``."""
    for mark in item.iter_markers("spark"):
        since, before, why = mark.kwargs.get("since"), mark.kwargs.get("before"), mark.kwargs["why"]
        here = ".".join(map(str, SPARK))
        if since is not None and since > SPARK:
            pytest.skip(f"needs Spark {'.'.join(map(str, since))} or newer, this is {here}: {why}")
        if before is not None and before <= SPARK:
            pytest.skip(f"needs a Spark before {'.'.join(map(str, before))}, this is {here}: {why}")


@pytest.fixture(scope="session")
def mlflow_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MLflow's default store and artifacts lie in the working directory: the tests' runs go elsewhere."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        if find_spec("mlflow"):
            environment.setenv("MLFLOW_EXPERIMENT_NAME", "tests")
            code = f"import mlflow; mlflow.create_experiment('tests', artifact_location={(folder / 'artifacts').as_uri()!r})"
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
        yield


@pytest.fixture(scope="module")
def spark(mlflow_apart: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two task slots for one test module, stopped after it."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)  # read when the context starts: else the workers run "python3"
        session = (
            SparkSession.builder.master("local[2]")
            .appName("sparkinfer tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "2g")
            .config("spark.executorEnv.PYTHONPATH", str(ROOT))  # the workers find functions of test modules by reference
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty record of what happens in which process."""
    return Ledger(str(tmp_path / "ledger"))
