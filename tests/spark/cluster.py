"""A standalone cluster on loopback: a master and two workers of Spark's own, for jobs by spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # short-lived JVMs on a small machine
SETTINGS = f"""
spark.executor.cores 1
spark.executor.memory 512m
spark.driver.memory 512m
spark.cores.max 4
spark.ui.enabled false
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.executor.extraJavaOptions {_QUICK}
spark.driver.extraJavaOptions {_QUICK}
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        master: its address.
        environment: what a shell needs to submit to it; ``MASTER`` is the address.
    """

    master: str
    environment: dict[str, str]

    def shell(self, commands: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
        """Start commands in a shell whose ``python`` and ``spark-submit`` are this environment's."""
        return subprocess.Popen(
            ["/bin/bash", "-euc", commands],
            cwd=cwd,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, commands: str, cwd: Path, **variables: str) -> str:
        """Run commands to their end, and give what they printed."""
        with self.shell(commands, cwd, **variables) as process:
            out, err = process.communicate(timeout=400)
        assert process.returncode == 0, f"{out}\n{err[-4000:]}"
        return out


def wait_for(there: Callable[[], bool], what: str, seconds: float = 200) -> None:
    """Wait until something is there."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.1)


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a master and two workers of two cores each, which makes four executors on two hosts; stop them at the end.

    The hosts are two addresses of loopback: Spark starts no speculative copy on the host of the first (up to 4.3).
    """
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(SETTINGS, encoding="utf-8")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "SPARK_HOME": str(HOME),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
        **{name: value for name, value in os.environ.items() if name == "JAVA_HOME"},
    }
    with ExitStack() as running:
        log = _daemon(running, folder / "master.log", environment, "master.Master", "127.0.0.1")
        wait_for(lambda: "Starting Spark master at " in log.read_text(encoding="utf-8"), "the master")
        master = log.read_text(encoding="utf-8").partition("Starting Spark master at ")[2].split()[0]
        for number in (1, 2):
            more = ("--cores", "2", "--memory", "2g", "--work-dir", str(folder / f"work-{number}"), master)
            _daemon(running, folder / f"worker-{number}.log", environment, "worker.Worker", f"127.0.0.{number}", *more)
        wait_for(lambda: log.read_text(encoding="utf-8").count("Registering worker ") == 2, "two workers")
        yield Cluster(master, {**environment, "MASTER": master})


def _daemon(running: ExitStack, log: Path, environment: dict[str, str], name: str, host: str, *more: str) -> Path:
    command = [
        str(HOME / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{name}",
        "--host",
        host,
        "--port",
        "0",
        "--webui-port",
        "0",
        *more,
    ]
    out = running.enter_context(log.open("w"))
    process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    running.callback(_stop, process)
    return log


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=30)
