"""The report is one file that fetches nothing, escapes everything, and shows exactly the summary's numbers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.metrics import Execution, RunMetrics
from sparkinfer.quality import Quality
from sparkinfer.reporting.html import render, save_report
from sparkinfer.reporting.markup import tag
from tests.unit.reporting import kit

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """What a browser would find in a page: elements, numbers, text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.metrics: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(markup)
        assert self._open == []

    def handle_starttag(self, name, attributes):
        found = dict(attributes)
        self.elements.append((name, found))
        if "data-metric" in found:
            self.metrics.append((found["data-metric"], found["data-value"]))
        if name not in VOID:
            self._open.append(name)

    def handle_startendtag(self, name, attributes):
        self.elements.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self._open.pop() == name

    def handle_data(self, data):
        if self._open and self._open[-1] not in {"script", "style"}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def count(self, name: str) -> int:
        return sum(element == name for element, _ in self.elements)


def test_every_number_is_the_summarys_own() -> None:
    """Each figure of the summary is in the page, and none differs from it."""
    run = kit.run_with(12, hosts=2, series=True, cards=1)
    page = Page(render(run, kit.verdict()))
    assert dict(page.metrics) == {name: repr(value) for name, value in run.summary.items()}
    assert all(value == repr(run.summary[name]) for name, value in page.metrics)


def test_the_first_lines_answer() -> None:
    """Verdict, cause, advice, gain, rows, rows/s and where the time went come before the first figure."""
    run = kit.run_with(4)
    markup = render(run, kit.verdict())
    top = Page(markup[: markup.index("<section")] + "</main></body></html>").text
    told = (
        "The model waits for its input",
        "input-bound",
        "cause: preprocess",
        "Set num_workers=2",
        "1.4 to 1.9 times the rows/s",
        "20,000 rows",
        "55 % of the partitions' time: waiting for input",
    )
    assert [words for words in told if words not in top] == []


def test_the_label_is_the_fourth_number_and_has_a_table() -> None:
    """Accuracy or the mean error stands at the top; the table has the classes up to 20, escaped, and the rows that were left out."""
    pairs = {("cat", "cat"): 1, ("cat", kit.NASTY): 1, (kit.NASTY, kit.NASTY): 4321}
    page = Page(render(kit.run_of([kit.partition(0, quality=Quality.of_classes("truth", "said", pairs, left_out=7))])))
    assert "100.0 % right against the label" in page.text
    assert "Rows by label (truth, down) and prediction (said, across); 7 rows were left out" in page.text
    assert "4,321" in page.text
    many = Quality.of_classes("truth", "said", {(number, 0): 1 for number in range(21)})
    assert "Rows by label" not in render(kit.run_of([kit.partition(0, quality=many)]))
    numbers = Page(render(kit.run_of([kit.partition(0, quality=Quality(label="t", output="y", compared=4, absolute_error=10.0))])))
    assert "2.5 mean absolute error" in numbers.text


def test_a_page_of_5000_partitions_is_small_and_says_what_it_cut() -> None:
    """Under 5 MB with series of 24 cards; 500 rows of 5,000, the slowest among them."""
    run = kit.run_with(5000, hosts=6, slots=8, skew=True, series=True, cards=4)
    markup = render(run, kit.verdict())
    assert len(markup.encode("utf-8")) < 5_000_000
    page = Page(markup)
    assert "The 500 slowest of 5,000 partitions; 4,500 are not in this table." in page.text
    table = markup[markup.index('<table id="partitions">') :].split("</table>")[0]
    assert table.count("<tr>") == 501
    slowest = max(run.partitions, key=lambda record: record.wall_seconds)
    assert f'<tbody><tr><td data-sort="{slowest.partition}">' in table


def test_everything_from_data_is_escaped() -> None:
    """Names, hosts, devices, settings, versions, remarks, verdicts: all text, nothing markup, and the page can be written."""
    nasty = kit.NASTY
    record = kit.partition(0, host=nasty, device=nasty, call=nasty, remarks=(nasty,), series=kit.host_series(9.0))
    later = Execution(nasty, nasty, (kit.partition(1, host=nasty),), 1)
    run = kit.run_of(
        [record, kit.partition(1, host="other")], name=nasty, remarks=(nasty,), settings={nasty: nasty}, environment={nasty: nasty}
    )
    run = replace(run, executions=(*run.executions, later))
    plain = Page(render(kit.run_of([kit.partition(0), kit.partition(1, host="other")]), kit.verdict()))
    markup = render(run, kit.verdict(kind=nasty, cause=nasty, advice=nasty, evidence={nasty: nasty}))
    markup.encode("utf-8")
    page = Page(markup)
    assert page.count("script") == plain.count("script") == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert page.text.count("<script>alert('x')</script>") > 10
    assert not set(markup) & {"\x00", "\x1b", "\u202e"}


def test_nothing_is_fetched() -> None:
    """No element refers outside the page, and the page's own policy forbids it."""
    page = Page(render(kit.run_with(4, series=True), kit.verdict()))
    references = [
        value for _, attributes in page.elements for name, value in attributes.items() if name in {"src", "href", "action", "data"}
    ]
    assert [value for value in references if not value.startswith(("#", "data:"))] == []
    (policy,) = [attributes["content"] for _, attributes in page.elements if attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")


def test_a_run_without_partitions_says_so() -> None:
    """Nothing reported: a headline, the remarks, no figure, no table."""
    page = Page(render(kit.run_of([], remarks=("not measured: plain UDF columns on this Connect server",))))
    assert "No partition has reported" in page.text
    assert "not measured: plain UDF columns" in page.text
    assert page.count("svg") == 0
    assert dict(page.metrics) == {"inference/rows_total": "0", "inference/partitions_total": "0"}
    assert "<h1>" in render(RunMetrics(id="1", name=None, started_unix=math.nan, ended_unix=math.inf), kit.verdict())


def test_no_number_is_undefined() -> None:
    """What came out infinite or undefined is left out, in numbers and in drawings."""
    records = [kit.partition(0), kit.partition(1, cpu_seconds=math.nan, stages={"compute": math.inf, "input_wait": math.nan})]
    page = Page(render(kit.run_of(records), kit.verdict(gain=(math.nan, math.inf), evidence={"x": math.nan})))
    assert not re.search(r"\b(nan|inf)\b", page.text, re.IGNORECASE)
    assert not [value for _, attributes in page.elements for value in attributes.values() if value and re.search(r"\b(nan|inf)\b", value)]
    assert "inference/cpu_seconds_total" not in dict(page.metrics)


@pytest.mark.parametrize(
    ("gain", "told"), [((1.0, 1.02), "To expect: 1.02"), ((1.2, 2.0), "1.2 to 2.0"), (None, None), ((0.5, 1.0), None), ("soon", None)]
)
def test_the_gain_is_told_where_there_is_one(gain, told) -> None:
    """An interval, a single factor, or nothing."""
    text = Page(render(kit.run_with(1), kit.verdict(gain=gain))).text
    assert (told in text) if told else ("To expect" not in text)


def test_a_strange_verdict_is_shown_as_it_is() -> None:
    """A kind of a newer version is its own headline; what is missing is left out."""
    text = Page(render(kit.run_with(1), SimpleNamespace(kind="lunar-bound", cause=None, evidence={}, advice=None, gain=None))).text
    assert "lunar-bound" in text
    assert "cause:" not in text
    assert "None" not in text


def test_later_executions_and_dropped_records_are_told() -> None:
    """The children stand in a list of their own, with their own figures; a dropped attempt is a caveat."""
    run = kit.run_of([kit.partition(0), kit.partition(1)])
    later = Execution("tag", "7", (kit.partition(0, started=60.0, wall=2.0, rows=100, remarks=("no card was found",)),), 3)
    text = Page(render(replace(run, executions=(*run.executions, later)))).text
    assert "execution 7 of tag: 100 rows from 1 partition in 2.0 s, 50 rows/s" in text
    assert "3 records of earlier attempts at the same partitions are not counted" in text


def test_remarks_of_partitions_are_told_once() -> None:
    """The same remark of many partitions is one line with their number."""
    records = [kit.partition(number, remarks=("no NVML library",)) for number in range(3)]
    assert Page(render(kit.run_of(records))).text.count("no NVML library (in 3 partitions)") == 1


def test_the_file_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    """Folders are made, and the text is UTF-8 as the page says."""
    run = kit.run_of([kit.partition(0, host="обработчик-数据")])
    path = save_report(run, tmp_path / "new" / "report.html", kit.verdict())
    assert path == tmp_path / "new" / "report.html"
    assert path.read_text(encoding="utf-8") == render(run, kit.verdict())
    assert "обработчик-数据" in path.read_text(encoding="utf-8")


@given(st.text())
def test_text_never_becomes_markup(text: str) -> None:
    """Whatever a text or an attribute holds, a parser finds one element and the same printable text."""
    page = Page(tag("p", text, title=text))
    assert [name for name, _ in page.elements] == ["p"]
    assert not any(category in "".join(page.texts) for category in "\x00\x1b\u202e")
