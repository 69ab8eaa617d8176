"""The report in a real browser: no script error, no request, the summary's numbers, legible on wide and narrow screens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkinfer.metrics import Execution, RunMetrics
from sparkinfer.reporting.html import save_report
from tests.end_to_end.browser import CHROMIUM, DRIVER, Browser, chromium
from tests.unit.reporting import kit

pytestmark = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()),
    reason=f"{CHROMIUM} or {DRIVER} is missing: apt-get install chromium chromium-driver",
)

METRICS = """return Array.from(document.querySelectorAll("[data-metric]")).map(e => [e.dataset.metric, e.dataset.value])"""
SIZES = """return [document.documentElement.scrollWidth, window.innerWidth]"""
FIRST = """return Array.from(document.querySelectorAll("#partitions tbody tr")).map(row => Number(row.cells[0].textContent))"""
SMALLEST = """
  const shown = Array.from(document.querySelectorAll("figure svg")).filter(svg => svg.getBoundingClientRect().width > 0);
  const texts = shown.flatMap(svg => Array.from(svg.querySelectorAll("text")));
  return [shown.length, Math.min(...texts.map(text => text.getBoundingClientRect().height))];
"""
OUTSIDE = """
  return Array.from(document.querySelectorAll("figure svg")).filter(svg => svg.getBoundingClientRect().width > 0).flatMap(svg => {
    const whole = svg.getBoundingClientRect();
    return Array.from(svg.querySelectorAll("text")).filter(text => {
      const box = text.getBoundingClientRect();
      return box.left < whole.left - 2 || box.right > whole.right + 2 || box.top < whole.top - 2 || box.bottom > whole.bottom + 2;
    }).map(text => text.textContent);
  });
"""
CONTRAST = """
  function light(colour) {
    const parts = colour.match(/[0-9.]+/g).slice(0, 3).map(Number).map(c => c / 255).map(c => c <= 0.04 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  }
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const texts = Array.from(document.querySelectorAll("svg text")).map(text => light(getComputedStyle(text).fill));
  texts.push(light(getComputedStyle(document.querySelector("h1")).color), light(getComputedStyle(document.querySelector(".caption")).color));
  return Math.min(...texts.map(ink => (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05)));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this module."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def run() -> RunMetrics:
    """Sixty partitions on three hosts with skew, cards, remarks and a later action."""
    made = kit.run_with(60, hosts=3, skew=True, series=True, cards=2)
    later = Execution("tag", "7", (kit.partition(0, started=90.0, wall=2.0, rows=20),), 1)
    remarks = ("20 of 1,000 rows of execution 7 were recorded: it stopped early, as show() does",)
    return replace(made, executions=(*made.executions, later), remarks=remarks)


@pytest.fixture(scope="module")
def report(run: RunMetrics, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's report."""
    return save_report(run, tmp_path_factory.mktemp("report") / "report.html", kit.verdict())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_is_quiet_and_legible(browser: Browser, report: Path, tmp_path: Path, width: int, scheme: str) -> None:
    """No error, no request but for the file itself, nothing wider than the screen, every text in its figure and large enough to read."""
    browser.resize(width)
    browser.prefer(scheme)
    browser.errors()
    browser.requests()
    browser.open(report)
    folder = Path(os.environ.get("SPARKINFER_SCREENSHOTS", tmp_path))
    picture = browser.screenshot(folder / f"report-{width}-{scheme}.png")
    assert picture.stat().st_size > 50_000
    assert browser.errors() == []
    assert {url for url in browser.requests() if not url.startswith("data:")} == {report.as_uri()}
    page, screen = browser.run(SIZES)
    assert (page, screen) == (width, width)
    figures, smallest = browser.run(SMALLEST)
    assert figures == 5
    assert smallest >= 8
    assert browser.run(OUTSIDE) == []
    assert browser.run(CONTRAST) >= 4.5


def test_the_numbers_are_the_summarys(browser: Browser, report: Path, run: RunMetrics) -> None:
    """Every figure of the summary is in the page, exactly, and no other value is called by its name."""
    browser.open(report)
    shown = browser.run(METRICS)
    assert dict(shown) == {name: repr(value) for name, value in run.summary.items()}
    assert all(value == repr(run.summary[name]) for name, value in shown)


def test_a_head_sorts_the_table(browser: Browser, report: Path, run: RunMetrics) -> None:
    """As it comes the slowest is first; a click on the first head sorts by number, another turns it round."""
    browser.open(report)
    slowest = max(run.partitions, key=lambda record: record.wall_seconds).partition
    assert browser.run(FIRST)[0] == slowest
    browser.run("""document.querySelector("#partitions th").click()""")
    assert browser.run(FIRST) == sorted(range(60), reverse=True)
    browser.run("""document.querySelector("#partitions th").click()""")
    assert browser.run(FIRST) == list(range(60))
    assert browser.errors() == []


def test_the_page_works_inside_mlflows_sandbox(browser: Browser, report: Path, tmp_path: Path) -> None:
    """MLflow shows artifacts in a frame with ``sandbox="allow-scripts"``: no storage, no origin, and the page says nothing of it."""
    frame = tmp_path / "frame.html"
    frame.write_text(f"""<iframe sandbox="allow-scripts" width="1100" height="900" src="{report.as_uri()}"></iframe>""", encoding="utf-8")
    browser.errors()
    browser.open(frame)
    browser.call("/frame", id=0)
    assert len(browser.run(FIRST)) == 60
    browser.run("""document.querySelector("#partitions th").click()""")
    assert browser.run(FIRST) == sorted(range(60), reverse=True)
    browser.call("/frame", id=None)
    assert browser.errors() == []


def test_names_from_data_run_nothing(browser: Browser, tmp_path: Path) -> None:
    """Hosts, names, remarks and advice that hold a script are read as text, in the page and in its drawings."""
    attack = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    records = [kit.partition(number, host=f"{number}{attack}", device=attack, remarks=(attack,)) for number in range(3)]
    run = kit.run_of(records, name=attack, settings={attack: attack}, environment={attack: attack}, remarks=(attack,))
    browser.errors()
    browser.open(save_report(run, tmp_path / "attack.html", kit.verdict(advice=attack, cause=attack)))
    assert "taken" not in browser.run("return document.title").replace(attack[:40], "").split("sparkinfer")[-1]
    assert browser.run("return document.title").endswith("sparkinfer report")
    assert browser.run("return [document.scripts.length, document.images.length]") == [1, 0]
    assert browser.errors() == []


def test_the_page_stands_without_javascript(browser: Browser, report: Path, run: RunMetrics) -> None:
    """With scripts switched off the same numbers, figures and rows are there."""
    browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report)
    finally:
        browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
    assert len(browser.run(FIRST)) == 60
    assert browser.run("""return document.querySelector("#partitions th").classList.contains("sorts")""") is False
    assert dict(browser.run(METRICS))["inference/rows_total"] == repr(run.summary["inference/rows_total"])
