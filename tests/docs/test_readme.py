"""What the README shows works: its example runs, its commands exist, and its names are the library's own."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import sparkinfer as si
from sparkinfer.arguments import parse_inputs
from tests.docs.kit import broken_links, fenced

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    """A page's fenced blocks of one language."""
    return fenced(text, language)


def complete_programs() -> list[str]:
    """Blocks that import what they use, and so can be pasted."""
    return [block for block in blocks("python") if "import sparkinfer" in block]


def test_the_example_runs_when_it_is_pasted(tmp_path: Path) -> None:
    """As a program of its own, in a folder of its own; Spark's table, the UDF's and the local frame are printed."""
    (program,) = complete_programs()
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\| *id\|.*x\|label\| *score\|", done.stdout)
    assert re.search(r"\|id *\|x *\|logits *\|", done.stdout)
    assert re.search(r"x +logits", done.stdout)
    assert "SparkInferWarning" not in done.stderr


def test_the_run_that_is_shown_measures(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block on where the time went, with a DataFrame of the test's own: the rows are written, and the report lies where it says."""
    (block,) = [block for block in blocks("python") if "inference_run" in block]
    monkeypatch.chdir(tmp_path)
    scored = si.predict(spark.range(10), si.PythonModel(load), inputs="id", outputs="y long")
    program = block.replace('"scored/"', repr(str(tmp_path / "scored")))  # Spark's own working directory is another
    exec(program, told := {"si": si, "scored": scored})  # noqa: S102
    assert told["run"].summary["inference/rows_total"] == 10
    assert spark.read.parquet(str(tmp_path / "scored")).count() == 10
    assert (tmp_path / "report.html").exists()


def load() -> Any:
    """A loader, as the README names one."""
    return lambda x: x


def models() -> list[str]:
    """The lines of the block that shows how models are described."""
    (block,) = [block for block in blocks("python") if block.startswith("si.TorchModel(net)")]
    return [line.partition("#")[0].strip() for line in block.splitlines()]


@pytest.mark.parametrize("line", models())
def test_every_model_line_makes_a_model(line: str) -> None:
    """Making one reads nothing, so the paths may be made up."""
    torch = pytest.importorskip("torch")
    made = eval(line, {"si": si, "net": torch.nn.Linear(3, 2), "make_net": lambda: torch.nn.Linear(3, 2), "load": load})  # noqa: S307
    assert isinstance(made, (si.TorchModel, si.TensorFlowModel, si.MlflowModel, si.PythonModel))


def inputs_told() -> list[str]:
    """The left column of the table of inputs."""
    return list(re.findall(r"^\| `inputs=(.+?)`", README, flags=re.MULTILINE))


def test_every_line_of_the_inputs_table_is_read_as_it_says() -> None:
    """One array, positional, named, and with a TensorSpec."""
    styles = [parse_inputs(eval(told, {"si": si}))[0] for told in inputs_told()]  # noqa: S307
    assert styles == ["single", "positional", "named", "single", "single", "single"]


def test_every_keyword_that_is_shown_exists() -> None:
    """Each ``name=`` in code is an argument or a setting of something public, or a variable of the Makefile."""
    known = {field.name for field in fields(si.InferenceConfig)} | {"PHOTOS"}
    for public in (getattr(si, name) for name in si.__all__):
        if not (isinstance(public, type) and issubclass(public, BaseException)):
            known |= set(inspect.signature(public).parameters)
    prose = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    code = [*re.findall(r"`([^`\n]+)`", prose), *models()]
    shown = {name for text in code for name in re.findall(r"\b([a-z_]+)=", text)} - {"ids"}  # model(ids=...): a model's own argument
    assert len(shown) > 10
    assert {name for name in shown if name not in known and name != "mask"} == set()
    public_names = {name for text in [*code, *blocks("python")] for name in re.findall(r"\bsi\.(\w+)", text)}
    assert {name for name in public_names if not hasattr(si, name)} == set()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^make (\w+)", "\n".join(blocks("bash")), flags=re.MULTILINE))))
def test_every_command_that_is_shown_is_a_target(target: str) -> None:
    """make knows what it would do."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)  # noqa: S607
    assert done.returncode == 0, done.stderr


def test_make_demo_hands_the_folder_of_photos_on() -> None:
    """Also one whose name has a space."""
    command = ["make", "-n", "demo", "PHOTOS=/my pictures"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "-m sparkinfer demo --photos '/my pictures'" in done.stdout


@pytest.mark.parametrize("text", [README, ARCHITECTURE], ids=["README.md", "ARCHITECTURE.md"])
def test_every_link_leads_somewhere(text: str) -> None:
    """The relative ones, to files of the repository."""
    assert broken_links(text, ROOT) == []


def test_every_module_that_the_architecture_names_exists() -> None:
    """A renamed file takes its line along."""
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", ARCHITECTURE))
    assert len(named) > 8
    homes = [
        ROOT / "sparkinfer",
        *(ROOT / "sparkinfer" / folder for folder in ("engine", "spark", "spark/resume", "backends", "analysis", "reporting", "cli")),
    ]
    assert sorted(name for name in named if not any((home / name).exists() for home in homes)) == []
