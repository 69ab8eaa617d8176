"""Figures are drawn of whatever was measured, at any number of partitions, and leave matplotlib as it was."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from sparkinfer.metrics import CONSUMER_STAGES, Histogram, Series
from sparkinfer.reporting.capacity import capacities
from sparkinfer.reporting.drawing import PAPERS, svg
from sparkinfer.reporting.figures import draw, figures
from sparkinfer.reporting.lanes import busy, lanes, stage_seconds
from sparkinfer.reporting.series import lines
from sparkinfer.reporting.words import short_names
from tests.unit.reporting import kit

ALL = ["timeline", "machines", "capacity", "partitions", "latency"]


def words(drawing) -> list[str]:
    """Give every text that a figure shows."""
    return [text.get_text() for text in drawing.figure.findobj(lambda one: hasattr(one, "get_text")) if text.get_text()]


@pytest.mark.parametrize("partitions", [1, 4, 200, 5000])
@pytest.mark.parametrize("paper", PAPERS)
def test_any_number_of_partitions_is_drawn_small(partitions: int, paper: str) -> None:
    """Each figure is there, is no taller than a screen or so, and takes under 400 kB of a page."""
    run = kit.run_with(partitions, hosts=min(4, partitions), series=True)
    drawings = draw(run, PAPERS[paper])
    assert list(drawings) == ALL
    for name, drawing in drawings.items():
        assert drawing.figure.get_size_inches()[1] < 11
        assert len(svg(drawing, name)) < 400_000


def test_what_is_grouped_is_said() -> None:
    """At 200 partitions each is drawn; at 201 the captions tell that they no longer are."""
    few, many = (draw(kit.run_with(number), PAPERS["wide"]) for number in (200, 201))
    assert "each column a partition" in few["partitions"].caption
    assert "the mean of 3 partitions" in many["partitions"].caption
    assert "too many to draw singly" not in few["timeline"].caption
    assert "201 partitions are too many to draw singly" in many["timeline"].caption


def test_many_hosts_are_drawn_together() -> None:
    """200 hosts of one partition each are one panel, not 200."""
    drawings = draw(kit.run_with(200, hosts=200, slots=1), PAPERS["wide"])
    assert "all 200 hosts: partitions running" in words(drawings["timeline"])


def test_only_what_was_measured_is_drawn() -> None:
    """No series, no machines; no producer, no input side; no batches, no histogram; no partition, nothing."""
    bare = kit.run_of([kit.partition(0, producer={}, latency=Histogram())])
    drawn = draw(bare, PAPERS["wide"])
    assert list(drawn) == ["timeline", "capacity", "partitions"]
    assert "input side" not in words(drawn["capacity"])
    assert figures(kit.run_of([])) == {}


def test_figures_are_plain_matplotlib_figures_that_notebooks_show() -> None:
    """Each has its title, can be saved by its user, and gives a notebook its picture without pyplot."""
    made = figures(kit.run_with(4, cards=1))
    assert list(made) == ALL
    for figure in made.values():
        assert isinstance(figure, Figure)
        assert figure._suptitle.get_text()  # get_suptitle() is there from matplotlib 3.8 on
        assert figure._repr_png_().startswith(b"\x89PNG")
    made["timeline"].savefig(io.BytesIO(), format="svg")


def test_nothing_of_matplotlib_is_left_changed() -> None:
    """Neither pyplot nor a backend is loaded, and the user's style is neither taken nor touched."""
    program = """
import sys, matplotlib
matplotlib.rcParams["axes.facecolor"] = "pink"
def style():  # asking for the backend would load pyplot
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = style()
from sparkinfer.reporting.figures import figures
from tests.unit.reporting import kit
made = figures(kit.run_with(4))
assert "matplotlib.pyplot" not in sys.modules
assert style() == before
assert made["latency"].axes[0].get_facecolor()[3] == 0, "pink"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_missing_matplotlib_names_the_extra() -> None:
    """Whoever asks for figures without matplotlib reads what to install."""
    program = """
import sys
sys.modules["matplotlib"] = None
from sparkinfer.exceptions import MissingDependencyError
import sparkinfer.reporting
for module in ("figures", "html"):
    try:
        __import__(f"sparkinfer.reporting.{module}")
    except MissingDependencyError as error:
        assert "sparkinfer[report]" in str(error)
    else:
        raise AssertionError(module)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_names_from_data_are_text_in_every_figure() -> None:
    """A host called like a script, a formula or nonsense is shown, warned about by nobody, and is no markup."""
    run = kit.run_of([kit.partition(number, host=f"{number}{kit.NASTY}", series=kit.host_series(10.0)) for number in range(2)])
    for name, drawing in draw(run, PAPERS["wide"]).items():
        markup = svg(drawing, name)
        assert "<script" not in markup
        assert "\x00" not in markup
        markup.encode("utf-8")
    assert "&lt;script&gt;" in svg(draw(run, PAPERS["wide"])["timeline"], "t")
    assert mpl.rcParams["text.parse_math"] is True


def test_ids_are_the_pages_own() -> None:
    """Two figures of one page share no id, and what refers to an id refers to one that is there."""
    import re

    run = kit.run_with(4, cards=1)
    seen: set[str] = set()
    for name, drawing in draw(run, PAPERS["wide"]).items():
        markup = svg(drawing, f"w-{name}")
        ids = re.findall(r' id="([^"]*)"', markup)
        assert len(ids) == len(set(ids))
        assert not seen & set(ids)
        assert {*re.findall(r"url\(#([^)]*)\)", markup), *re.findall(r'href="#([^"]*)"', markup)} <= set(ids)
        seen |= set(ids)


def test_times_and_values_that_are_not_finite_break_nothing() -> None:
    """A NaN sample is left out, an infinite stage counts as nothing, a partition without an end is not drawn."""
    series = (Series("cpu_utilization_percentage", None, (kit.BEGUN, kit.BEGUN + 1, math.nan), (math.nan, 5.0, 1.0)),)
    odd = kit.partition(0, series=series, stages={"compute": math.inf, "input_wait": math.nan, "encode": 1.0})
    run = kit.run_of([odd, kit.partition(1)])
    run = replace(run, executions=(replace(run.executions[0], partitions=(odd, kit.partition(1), kit.partition(2, wall=math.nan))),))
    for name, drawing in draw(run, PAPERS["wide"]).items():
        assert "nan" not in svg(drawing, name).lower().replace("nanum", "")


def test_a_partition_of_no_time_is_drawn() -> None:
    """An empty partition took nothing: no division by its duration."""
    assert "timeline" in figures(kit.run_of([kit.partition(0, wall=0.0, rows=0, latency=Histogram())]))


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), min_size=1, max_size=60))
def test_lanes_hold_each_partition_once_and_none_overlap(spans: list[tuple[int, int]]) -> None:
    """And there are as many lanes as ever ran at once."""
    records = [kit.partition(number, started=begun, wall=wall, latency=Histogram()) for number, (begun, wall) in enumerate(spans)]
    laid = lanes(records)
    assert sorted(record.partition for lane in laid for record in lane) == list(range(len(records)))
    for lane in laid:
        for earlier, later in pairwise(lane):
            assert earlier.started_unix + earlier.wall_seconds <= later.started_unix
    begun = [record.started_unix for record in records]
    at_once = max(sum(one.started_unix <= when < one.started_unix + one.wall_seconds for one in records) for when in begun)
    assert len(laid) == at_once


def test_counted_partitions_keep_their_seconds() -> None:
    """Over all bins the counted partitions add up to the seconds of each stage."""
    records = kit.run_with(30, hosts=2).partitions
    edges = np.linspace(kit.BEGUN - 1, kit.BEGUN + 200, 77)
    seconds = busy(records, edges) @ np.diff(edges)
    expected = [sum(stage_seconds(record)[stage] for record in records) for stage in CONSUMER_STAGES]
    np.testing.assert_allclose(seconds, expected, rtol=1e-6)


def test_workers_of_one_card_give_one_line() -> None:
    """Two workers sent the same samples of a card, and a third those of another host's card of the same number."""
    shared = kit.card_series(10.0, 0, seed=1)
    records = [
        kit.partition(0, host="a", series=shared),
        kit.partition(1, host="a", series=shared),
        kit.partition(2, host="b", series=kit.card_series(10.0, 0, seed=2)),
    ]
    found = [line for line in lines(records) if line.quantity == "gpu_utilization_percentage"]
    assert [(line.host, line.card, len(line.times)) for line in found] == [("a", 0, 64), ("b", 0, 64)]


def test_samples_are_thinned_to_their_mean() -> None:
    """A thousand samples become 160 points with the same mean and the same range of time."""
    times = tuple(kit.BEGUN + tick for tick in range(1600))
    (line,) = lines([kit.partition(0, series=(Series("cpu_utilization_percentage", None, times, tuple(map(float, range(1600)))),))])
    assert len(line.times) == 160
    assert np.mean(line.values) == pytest.approx(799.5)
    assert np.all(np.diff(line.times) > 0)


def test_a_stage_that_fills_all_slots_could_do_what_the_run_did() -> None:
    """Two slots at the model all the time: its capacity is the measured rate; one tenth of the time: ten times that."""
    stages = {"compute": 10.0}
    producer = {"read": 1.0, "preprocess": 8.0}
    run = kit.run_of([kit.partition(number, stages=stages, producer=producer) for number in range(2)])
    measured = run.summary["inference/rows_per_second"]
    found = {(one.side, one.stage): one.rows_per_second / measured for one in capacities(run)}
    assert found == pytest.approx(
        {("input", None): 10 / 9, ("input", "read"): 10, ("input", "preprocess"): 10 / 8, ("model", None): 1, ("model", "compute"): 1}
    )


def test_loader_processes_share_their_stages() -> None:
    """With four loader processes preprocess could do four times as much, and the reading thread runs beside them."""
    run = kit.run_of([kit.partition(0, producer={"read": 1.0, "preprocess": 8.0})], settings={"num_workers": 4})
    measured = run.summary["inference/rows_per_second"]
    found = {one.stage: one.rows_per_second / measured for one in capacities(run) if one.side == "input"}
    assert found == pytest.approx({None: 10 / 2, "read": 10, "preprocess": 10 / 2})


def test_the_limit_is_named() -> None:
    """The caption names the stage that could do least."""
    assert "here preprocess with" in draw(kit.run_with(4), PAPERS["wide"])["capacity"].caption


@given(st.lists(st.text(max_size=60), max_size=12))
def test_short_names_stay_apart(hosts: list[str]) -> None:
    """However alike the hosts, each keeps a name of its own or a number behind it."""
    short = short_names(hosts, limit=12)
    assert set(short) == set(hosts)
    assert len(set(short.values())) == len(set(hosts))
