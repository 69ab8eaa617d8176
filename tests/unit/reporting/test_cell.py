"""What a notebook shows of a run, a verdict and a column function: small, escaped, and readable."""

from __future__ import annotations

from html.parser import HTMLParser

from sparkinfer.analysis.verdict import Verdict, judge
from sparkinfer.reporting.cell import cell
from sparkinfer.run import InferenceRun
from tests.unit.reporting import kit


class Text(HTMLParser):
    """The elements and the words of some markup."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def shown(run: object, **changes: object) -> str:
    told = {"ended": True, "actions": 1, "mlflow_run_id": None, **changes}
    return cell(run, str(judge(run)), **told)


def test_a_run_shows_its_figures_its_verdict_and_where_there_is_more() -> None:
    """In units for people, with the remarks and the MLflow run."""
    run = kit.run_of([kit.partition(number) for number in range(4)], remarks=("no card was found",))
    page = Text(shown(run, actions=3, mlflow_run_id="abc"))
    for words in (
        "nightly scoring",
        "one of 3 actions",
        "20,000",
        "2,000",
        "rows/s",
        "10 s",
        "input-bound",
        "no card was found",
        "run abc",
    ):
        assert words in page.text
    assert "run.save_report" in page.text


def test_nothing_of_the_data_becomes_markup_and_the_cell_stays_small() -> None:
    """Names, remarks and ids that want out; a hundred remarks are counted."""
    run = kit.run_of([kit.partition(0)], name=kit.NASTY, remarks=(kit.NASTY,) * 100)
    markup = cell(run, kit.NASTY, ended=False, actions=1, mlflow_run_id=kit.NASTY)
    page = Text(markup)
    assert "script" not in page.tags
    assert "alert('x')" in page.text
    assert "and 95 more in run.remarks" in page.text
    assert "still open" in page.text
    assert len(markup.encode()) < 10_000


def test_a_run_that_measured_nothing_says_so() -> None:
    """No table of zeros, no verdict."""
    page = Text(shown(kit.run_of([], remarks=("not measured",))))
    assert "no partition has reported" in page.text
    assert "not measured" in page.text
    assert "table" not in page.tags


def test_an_open_run_can_be_shown() -> None:
    """Before anything was measured, with no session at all."""
    page = Text(InferenceRun("mine <b>", measured=False)._repr_html_())
    assert "mine <b>" in page.text
    assert "still open" in page.text


def test_a_verdict_shows_its_evidence() -> None:
    """A sentence, and the figures that it rests on, escaped."""
    page = Text(Verdict("input-bound", "preprocess", {"<i>": 0.51234}, "set num_workers=4 <now>", (1.2, 2.0))._repr_html_())
    assert "input-bound (preprocess). set num_workers=4 <now>" in page.text
    assert "<i> 0.512" in page.text
    assert "i" not in page.tags
