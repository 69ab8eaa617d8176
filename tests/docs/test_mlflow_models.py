"""The page on MLflow's models does what it shows, from its first block to its last."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.test_readme import ROOT, blocks

pytest.importorskip("mlflow", reason="the mlflow extra is not installed")

from tests.backends import mlflow_kit as kit

PAGE = (ROOT / "docs" / "mlflow_models.md").read_text(encoding="utf-8")


def test_the_blocks_run_in_order(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With a Spark session and a store of the test's; every table that is shown has its column, and the rent is by its param."""
    told: dict[str, Any] = {"spark": spark}
    with kit.quiet():  # what MLflow says while it logs
        for block in blocks("python", PAGE):
            exec(compile(block, "docs/mlflow_models.md", "exec"), told)  # noqa: S102
    shown = capsys.readouterr().out
    assert "prediction|" in shown
    assert shown.count("price|") == 2
    assert "2000.0|" in shown  # four rooms
