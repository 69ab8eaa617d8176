"""Runs come to a real MLflow server whole; and a server that is down, slow or refuses costs one warning and nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.exceptions import SparkInferWarning
from sparkinfer.metrics import CONSUMER_STAGES, Execution, Histogram, PartitionMetrics, RunMetrics, Series
from sparkinfer.reporting.mlflow import MlflowSink
from sparkinfer.reporting.mlflow_findings import log_page

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
mlflow = pytest.importorskip("mlflow", reason="the mlflow extra is not installed")

ROOT = Path(__file__).resolve().parents[2]
BEGUN = 1_700_000_000.0
QUICK = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real ``mlflow server`` over SQLite; ended, with its workers, however the block is left."""
    uri = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", uri.rpartition(":")[2]]
    log = (folder / "server.log").open("wb")
    server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not answers(f"{uri}/health"):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"mlflow server did not come up:\n{(folder / 'server.log').read_text()[-3000:]}")
            time.sleep(0.2)
        yield uri, server
    finally:
        end(server)
        log.close()


def end(server: subprocess.Popen[bytes]) -> None:
    """End the server's own session, its worker processes among it, if it is still there."""
    if server.poll() is None:
        os.killpg(server.pid, 9)
    server.wait(30)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - the test's own server
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for the module."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as (uri, _):
        yield uri


@pytest.fixture
def client(server: str, request: pytest.FixtureRequest) -> Iterator[mlflow.MlflowClient]:
    """A client of the server, where an experiment of the test's own is set; nothing is active before and after."""
    before = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(server)
    mlflow.set_experiment(request.node.name)
    yield mlflow.MlflowClient(server)
    while mlflow.active_run() is not None:
        mlflow.end_run()
    forget_address(before)
    forget_experiment()


def forget_experiment() -> None:
    """``set_experiment`` is the process's, and there is no way to take it back."""
    mlflow.tracking.fluent._active_experiment_id = None
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)


def forget_address(before: str | None) -> None:
    """``set_tracking_uri`` is the process's and the environment's, and only the latter can be set back."""
    mlflow.tracking._tracking_service.utils._tracking_uri = None
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if before is not None:
        os.environ["MLFLOW_TRACKING_URI"] = before


@pytest.fixture
def point_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Point MLflow at another address for one test, with few retries of its own."""
    before = os.environ.get("MLFLOW_TRACKING_URI")
    forget_experiment()

    def point(uri: str, **environment: str) -> None:
        for name, value in {**QUICK, **environment}.items():
            monkeypatch.setenv(name, value)
        mlflow.set_tracking_uri(uri)

    yield point
    forget_address(before)


@dataclass(frozen=True)
class AVerdict:
    kind: str = "input-bound"
    advice: str = "raise num_workers"


def record(partition: int, **changed) -> PartitionMetrics:
    latency = Histogram()
    latency.add(0.01)
    plain = PartitionMetrics(
        call="c",
        execution="7",
        partition=partition,
        task_attempt=partition,
        host="worker-1",
        pid=1,
        started_unix=BEGUN + partition,
        wall_seconds=2.0,
        rows=250,
        scored_rows=250,
        batches=4,
        stages={**dict.fromkeys(CONSUMER_STAGES, 0.0), "compute": 1.5, "input_wait": 0.5},
        latency=latency,
        cpu_seconds=1.0,
        rss_peak_bytes=100_000_000,
        series=(Series("cpu_utilization_percentage", None, (BEGUN + partition, BEGUN + partition + 1), (40.0, 60.0)),),
    )
    return replace(plain, **changed)


def run_of(*executions: Execution, **changed) -> RunMetrics:
    if not executions:
        executions = (Execution("c", "7", tuple(record(i) for i in range(4)), 0),)
    plain = RunMetrics(
        id="run-1",
        name="nightly scoring",
        started_unix=BEGUN,
        ended_unix=BEGUN + 6,
        executions=executions,
        settings={"model": "tagger", "batch_size": 64, "data_name": "photos", "data_source": "/data/photos"},
        environment={"pyspark": "4.3.0"},
    )
    return replace(plain, **changed)


def runs_of(client: mlflow.MlflowClient, name: str) -> list[mlflow.entities.Run]:
    experiment = client.get_experiment_by_name(name)
    return list(client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"]))


def artifacts_of(client: mlflow.MlflowClient, run_id: str) -> list[str]:
    return sorted(found.path for found in client.list_artifacts(run_id, "sparkinfer"))


def test_a_run_is_logged_whole(client, request, tmp_path) -> None:
    """With nothing active a run of its own is begun and ended, and it has everything that was measured, at the time when it was."""
    target = MlflowSink().report(run_of(), AVerdict(), "<html>report</html>", complete=True)
    (logged,) = runs_of(client, request.node.name)
    assert logged.info.run_id == target
    assert (logged.info.status, logged.info.run_name) == ("FINISHED", "nightly scoring")
    assert (logged.info.start_time, logged.info.end_time) == (BEGUN * 1000, (BEGUN + 6) * 1000)
    assert mlflow.active_run() is None

    assert logged.data.metrics["inference/rows_total"] == 1000
    assert logged.data.metrics["inference/rows_per_second"] == 200
    assert logged.data.params == {"inference/model": "tagger", "inference/batch_size": "64", "environment/pyspark": "4.3.0"}
    ours = {name: value for name, value in logged.data.tags.items() if name.startswith("sparkinfer.")}
    assert ours.pop("sparkinfer.version")
    assert ours == {"sparkinfer.run_id": "run-1", "sparkinfer.verdict": "input-bound", "sparkinfer.complete": "true"}
    assert {"mlflow.user", "mlflow.source.name"} <= set(logged.data.tags)

    series = client.get_metric_history(target, "partition/rows_per_second")
    assert sorted((point.step, point.timestamp, point.value) for point in series) == [(i, (BEGUN + i + 2) * 1000, 125.0) for i in range(4)]
    assert sum(point.value for point in client.get_metric_history(target, "partition/rows")) == 1000
    load = client.get_metric_history(target, "system/worker-1/cpu_utilization_percentage")
    assert [(point.step, point.timestamp) for point in load] == [(i, (BEGUN + i) * 1000) for i in range(5)]

    assert artifacts_of(client, target) == ["sparkinfer/partitions.json", "sparkinfer/report.html", "sparkinfer/summary.json"]
    fetched = Path(client.download_artifacts(target, "sparkinfer", str(tmp_path)))
    assert (fetched / "report.html").read_text() == "<html>report</html>"
    summary = json.loads((fetched / "summary.json").read_text())
    assert summary["summary"] == run_of().summary
    assert summary["verdict"] == {"kind": "input-bound", "advice": "raise num_workers"}
    table = client.load_table(logged.info.experiment_id, "sparkinfer/partitions.json", [target])
    assert table["rows"].tolist() == [250] * 4
    assert table["compute_seconds"].tolist() == [1.5] * 4


def test_the_dataset_is_named_and_not_looked_at(client, request) -> None:
    """The input is there with source, context and the rows that were counted anyway."""
    MlflowSink().report(run_of())
    (scored,) = runs_of(client, request.node.name)[0].inputs.dataset_inputs
    assert (scored.dataset.name, json.loads(scored.dataset.source)) == ("photos", {"path": "/data/photos"})
    assert json.loads(scored.dataset.profile) == {"num_rows": 1000}
    assert [(tag.key, tag.value) for tag in scored.tags] == [("mlflow.data.context", "inference")]


def test_the_model_of_the_registry_is_linked(client, request) -> None:
    """A run whose settings have a logged model's id has it as an input."""
    model = mlflow.create_external_model(name="tagger")
    target = MlflowSink().report(run_of(settings={"model_id": model.model_id}))
    assert [linked.model_id for linked in client.get_run(target).inputs.model_inputs] == [model.model_id]


def test_the_users_run_is_used_and_left_open(client, request) -> None:
    """An active run gets the figures beside its own, keeps its parameters, and is still active."""
    with mlflow.start_run() as theirs:
        mlflow.log_params({"batch_size": 1, "inference/batch_size": 99})
        mlflow.log_metric("loss", 0.5)
        assert MlflowSink().report(run_of()) == theirs.info.run_id
        assert mlflow.active_run().info.run_id == theirs.info.run_id
        assert client.get_run(theirs.info.run_id).info.status == "RUNNING"
        mlflow.log_metric("after", 1.0)
    (logged,) = runs_of(client, request.node.name)
    assert (logged.data.metrics["loss"], logged.data.metrics["after"], logged.data.metrics["inference/rows_total"]) == (0.5, 1.0, 1000)
    assert logged.data.params["batch_size"] == "1"
    assert logged.data.params["inference/batch_size"] == "99"
    assert logged.data.params["inference/model"] == "tagger"


def test_a_second_report_in_one_active_run_writes_nothing_over(client, request) -> None:
    """The first is in the user's run, the second in a child of it, with its own parameters and report."""
    with mlflow.start_run() as theirs:
        first = MlflowSink().report(run_of(), report_html="one")
        second = MlflowSink().report(run_of(id="run-2", name="second", settings={"batch_size": 8}), report_html="two")
    assert first == theirs.info.run_id != second
    child = client.get_run(second)
    assert child.data.tags["mlflow.parentRunId"] == theirs.info.run_id
    assert child.data.params["inference/batch_size"] == "8"
    assert client.get_run(first).data.params["inference/batch_size"] == "64"
    assert mlflow.artifacts.load_text(f"runs:/{first}/sparkinfer/report.html") == "one"
    assert mlflow.artifacts.load_text(f"runs:/{second}/sparkinfer/report.html") == "two"


def test_a_run_can_be_named_by_its_id(client, request) -> None:
    """An id wins over the active run."""
    wanted = client.create_run(client.get_experiment_by_name(request.node.name).experiment_id)
    with mlflow.start_run() as active:
        assert MlflowSink(run_id=wanted.info.run_id).report(run_of()) == wanted.info.run_id
    assert client.get_run(wanted.info.run_id).data.metrics["inference/rows_total"] == 1000
    assert client.get_run(active.info.run_id).data.metrics == {}


def test_later_executions_are_children(client, request) -> None:
    """The first execution is the run, each later one a finished child with its own rows, times, series and table."""
    first = Execution("c", "7", (record(0),), 0)
    later = [Execution("c", str(8 + i), (record(0, rows=10 + i, started_unix=BEGUN + 100), record(1, rows=1)), 1) for i in range(2)]
    target = MlflowSink().report(run_of(first, *later))
    runs = {run.info.run_name: run for run in runs_of(client, request.node.name)}
    assert set(runs) == {"nightly scoring", "execution 8", "execution 9"}
    assert runs["nightly scoring"].data.metrics["inference/rows_total"] == 250
    for i in range(2):
        child = runs[f"execution {8 + i}"]
        assert child.data.tags["mlflow.parentRunId"] == target
        assert child.data.tags["sparkinfer.duplicates_dropped"] == "1"
        assert child.data.metrics["inference/rows_total"] == 11 + i
        assert (child.info.status, child.info.end_time) == ("FINISHED", (BEGUN + 102) * 1000)
        assert len(client.get_metric_history(child.info.run_id, "partition/rows")) == 2
        assert artifacts_of(client, child.info.run_id) == ["sparkinfer/partitions.json"]


def test_what_tune_tried_are_children(client, request) -> None:
    """One for each setting, with what it changed, its gain and how it ended; the user's run is theirs, and still open."""

    def load():
        def predict(x):
            time.sleep(0.002)
            return x

        return predict

    rows = pa.table({"x": [float(row) for row in range(400)]})
    with mlflow.start_run(run_name="tuning") as theirs:
        found = si.tune(rows, si.PythonModel(load), inputs="x", outputs="y double", batch_size=4, max_batch_size=32, seconds=1)
        assert mlflow.active_run().info.run_id == theirs.info.run_id
    parent, *children = runs_of(client, request.node.name)
    assert parent.info.run_id == theirs.info.run_id
    assert {child.data.tags["mlflow.parentRunId"] for child in children} == {theirs.info.run_id}
    assert {child.info.status for child in children} == {"FINISHED"}
    told = {child.info.run_name: (child.data.params, child.data.metrics, child.data.tags["sparkinfer.ended"]) for child in children}
    assert len(told) == len(found.tried) >= 2
    assert told["start"][0] == {}
    assert [params for params, _, ended in told.values() if ended == "chosen"] == [
        {f"sparkinfer.{name}": str(value) for name, value in found.overrides.items()}
    ]
    for one in found.tried:
        name = ", ".join(f"{setting}={value}" for setting, value in one.overrides.items()) or "start"
        assert told[name][1].get("tune.gain") == (None if one.gain is None else pytest.approx(one.gain.middle))


def test_pages_of_what_was_found_are_artifacts(client, request) -> None:
    """Of an open run, each by its name, a second one beside the first; a page that cannot be written is a warning; without a run nothing is logged."""
    rows = pa.table({"x": np.arange(64, dtype=np.float32)})
    told = {"inputs": "x", "outputs": "y float", "batch_size": 8}
    model = si.TorchModel(torch.nn.Sequential(torch.nn.Unflatten(0, (-1, 1)), torch.nn.Linear(1, 1)))
    with mlflow.start_run() as theirs:
        for _ in range(2):
            si.diagnose(rows, model, seconds=0.5, **told)
        si.profile(rows, model, **told)
        si.inspect_model(rows, model, **told)
        si.compare_precision(rows, model, "bf16", seconds=0.5, **told)
    names = ("diagnosis", "diagnosis-2", "inspection", "precision", "profile")
    assert artifacts_of(client, theirs.info.run_id) == sorted(f"sparkinfer/{name}.html" for name in names)
    for name in names:
        page = mlflow.artifacts.load_text(f"runs:/{theirs.info.run_id}/sparkinfer/{name}.html")
        assert page.startswith("<!doctype html>")
        assert "sparkinfer report</title>" in page
    with mlflow.start_run() as theirs, pytest.warns(SparkInferWarning, match=r"MLflow does not have the page of the profile: \w+Error: "):
        log_page("profile", object())
    si.diagnose(rows, model, seconds=0.5, **told)
    assert len(runs_of(client, request.node.name)) == 2
    assert artifacts_of(client, theirs.info.run_id) == []


def test_more_than_a_batch_comes_whole(client, request) -> None:
    """2,500 metrics and 150 parameters are more than the server takes at once: all are there, none twice, and it is quick."""
    series = tuple(Series(f"gpu_{i}_power_usage_watts", f"GPU-{i}", tuple(BEGUN + j for j in range(50)), (1.0,) * 50) for i in range(48))
    settings = {f"setting_{i}": i for i in range(150)}
    run = run_of(Execution("c", "7", (record(0, series=series),), 0), settings=settings)
    target = MlflowSink().report(run)
    logged = client.get_run(target)
    assert len([name for name in logged.data.metrics if name.startswith("system/worker-1/gpu_")]) == 48
    assert len(client.get_metric_history(target, "system/worker-1/gpu_47_power_usage_watts")) == 50
    assert {name for name in logged.data.params if name.startswith("inference/")} == {f"inference/setting_{i}" for i in range(150)}


def test_strange_names_and_values_come_as_far_as_they_can(client, request) -> None:
    """Hosts, settings and samples that no server takes: names are mended, what is not finite is left out and counted."""
    strange = Series("cpu (%)", None, (BEGUN, BEGUN + 1), (float("nan"), 5.0))
    run = run_of(
        Execution("c", "7", (record(0, host="fe80::1%eth0/ü", series=(strange,), gauges={"a//b": float("inf"), "c": 2.0}),), 0),
        name="a name: with / everything ü\n",
        settings={"model": "m" * 10_000, "odd:name%": "\x00?", "": 1},
    )
    target = MlflowSink().report(run)
    logged = client.get_run(target)
    assert logged.data.metrics["system/fe80__1_eth0__/cpu ___"] == 5.0
    assert logged.data.metrics["system/fe80__1_eth0__/c"] == 2.0
    assert logged.data.tags["sparkinfer.values_left_out"] == "2 that are not finite"
    assert logged.data.params["inference/odd_name_"] == "\x00?"


def test_an_empty_run_is_logged(client, request) -> None:
    """No partition reported: rows are 0, no table, no series, no failure."""
    target = MlflowSink().report(run_of(executions=()), complete=False)
    logged = client.get_run(target)
    assert logged.data.metrics == {"inference/rows_total": 0, "inference/partitions_total": 0}
    assert logged.data.tags["sparkinfer.complete"] == "false"
    assert artifacts_of(client, target) == ["sparkinfer/summary.json"]


def test_what_one_step_cannot_log_costs_no_other(client, request, server) -> None:
    """A table that cannot be written, a report that is no text: the rest is there, and one warning names both."""
    unwritable = record(0, gauges={"gpu_0_energy_joules": 1.0}, device="\udc80")  # half a character: no JSON file can hold it
    with pytest.warns(SparkInferWarning) as told:
        target = MlflowSink().report(run_of(Execution("c", "7", (unwritable,), 0)), report_html="\udc80")
    assert len(told) == 1
    assert "the report" in str(told[0].message)
    logged = client.get_run(target)
    assert logged.data.metrics["inference/rows_total"] == 250
    assert logged.data.metrics["system/worker-1/cpu_utilization_percentage"] == 60
    assert logged.info.status == "FAILED"


def only_warning(sink: MlflowSink, run: RunMetrics | None = None) -> tuple[str, float]:
    """Report, and give the one warning and the seconds."""
    begun = time.monotonic()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sink.report(run or run_of())
    ours = [str(one.message) for one in told if issubclass(one.category, SparkInferWarning)]
    assert len(ours) == 1, ours
    return ours[0], time.monotonic() - begun


def test_no_server_is_one_quick_warning(point_at) -> None:
    """Nobody listens at the address: that is told at once, although MLflow itself would try for four minutes."""
    point_at(f"http://127.0.0.1:{free_port()}", MLFLOW_HTTP_REQUEST_MAX_RETRIES="7")
    message, seconds = only_warning(MlflowSink())
    assert "no server answers at http://127.0.0.1:" in message
    assert "predictions" in message
    assert seconds < 20


@pytest.mark.slow
def test_a_server_that_is_killed_is_one_warning_in_bounded_time(tmp_path, point_at) -> None:
    """A server that goes away while the user's run is open costs one warning; the run object is as it was."""
    with mlflow_server(tmp_path) as (uri, process):
        point_at(uri)
        with mlflow.start_run() as theirs:
            end(process)
            message, seconds = only_warning(MlflowSink(timeout_seconds=20))
            assert mlflow.active_run().info.run_id == theirs.info.run_id
            mlflow.tracking.fluent._active_run_stack.get().clear()  # its end could not be told to anybody
    assert "MLflow does not have all" in message
    assert seconds < 25


class Answer(BaseHTTPRequestHandler):
    """Answers every request with the server's status, or not before it is let go."""

    def answer(self) -> None:
        self.server.asked.append(self.path)
        if self.server.status is None:
            self.server.let_go.wait(60)
            return
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        body = b'{"error_code": "PERMISSION_DENIED", "message": "not you"}'
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - http.server's own names

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def answering(status: int | None) -> Iterator[ThreadingHTTPServer]:
    """A server that answers everything with one status; ``None`` never answers."""
    web = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    web.status, web.asked, web.let_go = status, [], threading.Event()
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        yield web
    finally:
        web.let_go.set()
        web.shutdown()
        thread.join()
        web.server_close()


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_refuses_is_one_warning(status, point_at) -> None:
    """No rights, or nothing but errors: one warning with the server's own words, and no run is left."""
    with answering(status) as web:
        point_at(f"http://127.0.0.1:{web.server_port}")
        message, seconds = only_warning(MlflowSink(timeout_seconds=30))
    assert web.asked
    assert str(status) in message or "not you" in message
    assert seconds < 35


def test_a_server_that_hangs_costs_the_timeout_and_no_more(point_at) -> None:
    """It takes the connection and never answers: after the timeout the user's code goes on, and the thread stops when it can."""
    with answering(None) as web:
        point_at(f"http://127.0.0.1:{web.server_port}", MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
        message, seconds = only_warning(MlflowSink(timeout_seconds=1.0))
        assert "longer than 1 s" in message
        assert seconds < 5
        assert web.asked
        (logger,) = (thread for thread in threading.enumerate() if thread.name == "sparkinfer-mlflow")
        assert logger.daemon
        web.let_go.set()
        logger.join(30)
        assert not logger.is_alive()
    assert len(set(web.asked)) == 1  # nothing was begun after it had been given up


def test_a_client_that_raises_is_one_warning(client, monkeypatch) -> None:
    """Whatever MLflow's client raises, on every call: one warning (C45)."""

    def broken(*_: object, **__: object) -> None:
        msg = "the client is broken"
        raise ZeroDivisionError(msg)

    for name in ("create_run", "get_run", "log_batch", "log_text", "log_table", "log_inputs", "set_terminated"):
        monkeypatch.setattr(mlflow.MlflowClient, name, broken)
    message, _ = only_warning(MlflowSink())
    assert "ZeroDivisionError: the client is broken" in message


WITHOUT_MLFLOW = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
sys.modules["mlflow"] = None  # as if it were not installed

from sparkinfer.metrics import RunMetrics
from sparkinfer.reporting.mlflow import MlflowSink

run = RunMetrics(id="r", name=None, started_unix=0.0, ended_unix=1.0)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert MlflowSink().report(run) is None
assert len(told) == 1, told
print(told[0].category.__name__, told[0].message)
"""

LAZY = """
import sys
sys.path.insert(0, sys.argv[1])
import sparkinfer.reporting.mlflow, sparkinfer.spark.worker, sparkinfer.spark.predict
sparkinfer.reporting.mlflow.MlflowSink()
assert "mlflow" not in sys.modules
print("not imported")
"""


def python(code: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_no_mlflow_is_one_warning(tmp_path) -> None:
    """Where it is not installed the warning names the extra, and nothing is written."""
    told = python(WITHOUT_MLFLOW, tmp_path)
    assert "SparkInferWarning" in told
    assert "sparkinfer[mlflow]" in told
    assert list(tmp_path.iterdir()) == []


def test_workers_and_bare_runs_never_import_mlflow(tmp_path) -> None:
    """Neither what runs on the workers, nor the sink itself without autolog, imports MLflow or writes a file (C45)."""
    assert "not imported" in python(LAZY, tmp_path)
    assert list(tmp_path.iterdir()) == []


ENDS = """
import sys, time, warnings
sys.path.insert(0, sys.argv[1])
from sparkinfer.metrics import RunMetrics
from sparkinfer.reporting.mlflow import MlflowSink
warnings.simplefilter("always")
MlflowSink(timeout_seconds=5.0).report(RunMetrics(id="r", name=None, started_unix=0.0, ended_unix=1.0))
print("scored at", time.time())
"""


def test_a_hanging_server_does_not_keep_the_process(tmp_path) -> None:
    """The abandoned thread does not outlive the user's script: it ends at once after its last line."""
    with answering(None) as web:
        told = python(ENDS, tmp_path, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{web.server_port}")
    assert "longer than 5 s" in told
    scored = float(told.partition("scored at ")[2].split()[0])
    assert time.time() - scored < 10
