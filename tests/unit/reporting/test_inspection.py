"""What was seen inside a model, to look at: the picture, the histograms, the page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import sparkinfer as si
from sparkinfer.insides import GraphNode, Insides, Labels, LayerSeen, ModelGraph, Values, packed
from sparkinfer.reporting.histogram import histogram
from sparkinfer.reporting.model_picture import model_picture

HOSTILE = "<script>alert(1)</script>"


def chain(length: int, how: str = "torch.export") -> ModelGraph:
    nodes = [GraphNode(name=f"layer{place}", kind="Linear", after=(place - 1,) if place else ()) for place in range(length)]
    return ModelGraph(how=how, nodes=tuple(nodes))


def inspection() -> si.ModelInspection:
    rng = np.random.default_rng(1)
    layer = LayerSeen(
        name=HOSTILE,
        kind="Linear",
        number=1,
        shape="8",
        calls=2,
        rows=64,
        values=Values.of(rng.normal(size=512)),
        units=8,
        alive=packed(np.arange(8) < 6),
        weights={"weight": Values.of(rng.normal(size=64))},
        timed=2,
        seconds=0.75,
    )
    block = LayerSeen(name="(model)", kind="Sequential", timed=2, seconds=0.25)
    graph = ModelGraph(how="torch.export", nodes=(GraphNode(name="x", kind="input"), GraphNode(name=HOSTILE, kind="Linear", after=(0,))))
    outputs = {"y": Values.of(rng.normal(size=64)), "label": Labels(counts={HOSTILE: 40, "dog": 24})}
    seen = Insides(
        layers=(block, layer), inputs={"x": Values.of(rng.normal(size=64))}, outputs=outputs, rows=64, batches=2, partitions=1, graph=graph
    )
    before = replace(seen, outputs={**outputs, "y": Values.of(rng.normal(5.0, size=64))}, rows=640)
    return si.ModelInspection(seen, "TorchModel('m.pt')", "abc", before, "abc")


def test_no_box_lies_above_one_that_it_takes_from() -> None:
    """A diamond with a long side: each line goes down."""
    nodes = (
        GraphNode(name="x", kind="input"),
        GraphNode(name="a", kind="Linear", after=(0,)),
        GraphNode(name="b", kind="Linear", after=(1,)),
        GraphNode(name="c", kind="Linear", after=(0,)),
        GraphNode(name="sum", kind="add", after=(2, 3)),
    )
    drawn = str(model_picture(ModelGraph(how="torch.export", nodes=nodes), {"a": 0.5}))
    ET.fromstring(drawn)  # noqa: S314 - our own
    lines = [tuple(map(float, one)) for one in re.findall(r'd="M[\d.]+ ([\d.]+) C[^"]* ([\d.]+)"', drawn)]
    assert len(lines) == 5
    assert all(begin < end for begin, end in lines)
    assert "a: Linear, 50.0 % of the time" in drawn
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)"', drawn)
    assert len(set(boxes)) == len(boxes) == 5


def test_a_large_model_is_cut_and_says_so() -> None:
    """Of 1,000 boxes 240 are drawn; of none nothing is; a tree is drawn downwards."""
    drawn = str(model_picture(chain(1000), {}))
    assert "760 more boxes are not drawn" in drawn
    assert len(drawn) < 300_000
    assert model_picture(chain(0), {}) is None
    ET.fromstring(str(model_picture(chain(3, how="tree"), {})))  # noqa: S314


def test_bars_add_up_and_the_baseline_is_a_line() -> None:
    """All numbers are in the bars; of a constant there is no picture."""
    values = Values.of(np.random.default_rng(1).normal(size=1000))
    drawn = str(histogram(values, Values.of(np.random.default_rng(2).normal(3.0, size=1000))))
    ET.fromstring(drawn)  # noqa: S314 - our own
    assert "the line is the baseline" in drawn
    heights = [float(one) for one in re.findall(r"v-([\d.]+)h", str(histogram(values)))]
    assert max(heights) == 36.0
    assert 150 < sum(heights) < 600  # of a bell of 32 bars
    assert histogram(Values.of(np.ones(9))) is None
    assert histogram(Values()) is None


def test_the_page_has_all_of_it_and_escapes_names(tmp_path: Path) -> None:
    """Findings, picture, tables, drift; a name that is markup stays text."""
    pytest.importorskip("matplotlib", reason="the page's frame comes with matplotlib's figures")
    page = inspection().save_report(tmp_path / "made" / "inside.html").read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for expected in (
        "2 of 8",
        "75.0 %",
        "the model&#x27;s picture",
        "Against the baseline",
        "2 findings inside the model",
        "What came out",
    ):
        assert expected in page, expected
    assert "http://www.w3.org" in page
    assert re.findall(r'(?:src|href)="(?!data:)[^"]*"', page) == []
    assert len(page) < 100_000


def test_the_cell_and_the_text_need_no_matplotlib() -> None:
    """Findings first, tables below; names are escaped here too."""
    seen = inspection()
    shown = seen._repr_html_()
    assert HOSTILE not in shown
    assert "dead units of 8" in shown
    assert str(seen).splitlines()[0] == "TorchModel('m.pt'): 1 layers on 64 rows in 2 batches of 1 partitions"
    assert "drift: output 'y' is not distributed as in the baseline" in str(seen)
