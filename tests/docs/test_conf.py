"""The Spark settings under conf/ are ones that Spark takes, and a job runs under them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = sorted((ROOT / "conf").glob("*.conf"))

JOB = """
import sparkinfer as si
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
doubled = si.predict(spark.range(10), si.PythonModel(lambda: lambda x: 2 * x), inputs="id", outputs="y long")
print("records", spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"), "sum", sum(row.y for row in doubled.collect()))
spark.stop()
"""


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda path: path.name)
def test_a_job_runs_under_the_settings(settings: Path, tmp_path: Path) -> None:
    """spark-submit takes the file, the settings are in force, and the predictions are right."""
    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(submit), "--properties-file", str(settings), "--conf", f"spark.pyspark.python={sys.executable}", str(job)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
    )
    assert "records 10000 sum 90" in done.stdout, done.stderr[-3000:]
