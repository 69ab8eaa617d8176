"""A run's report: one HTML file that opens anywhere, offline, and is read in a minute.

Runs on: driver; needs matplotlib.

Invariant: the page fetches nothing, holds under 5 MB whatever the run was, escapes all that came from data, and every number of
``run.summary`` in it carries ``data-metric`` and, exactly, ``data-value``.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sparkinfer.metrics import CONSUMER_STAGES, Execution, RunMetrics, summarise
from sparkinfer.reporting.confusion_table import confusion_table
from sparkinfer.reporting.drawing import PAPERS, svg
from sparkinfer.reporting.figures import draw
from sparkinfer.reporting.markup import Html, tag, trusted
from sparkinfer.reporting.page_style import SCRIPT, STYLE
from sparkinfer.reporting.partition_table import partition_table
from sparkinfer.reporting.words import STAGE_COLOURS, STAGE_WORDS, count, duration, plain, rate, readable

__all__ = ["page_of", "render", "save_report"]

_HEADLINES = {
    "input-bound": "The model waits for its input",
    "compute-bound": "The model sets the pace",
    "transfer-bound": "Moving data sets the pace",
    "balanced": "Input and model keep pace with each other",
    "serial": "Input and model take turns instead of working side by side",
    "skewed": "A few partitions take far longer than the rest",
    "start-up-bound": "Much of the time goes into starting up",
    "bursty": "The input comes in bursts",
    "inconclusive": "Too little was measured for a verdict",
}
_WORDS = {
    **STAGE_WORDS,
    "steady": "time after warm-up",
    "steady_input_wait": "of that, the model waits for input",
    "steady_producer_blocked": "and the input for the model",
    "producer_blocked": "the input waits for the model",
}
_LISTED = 100  # remarks, settings, later executions: more are counted


def save_report(run: RunMetrics, path: str | Path, verdict: Any = None) -> Path:
    """Write the report; folders that are missing are made.

    Args:
        run: any.
        path: the file to write, such as ``report.html``.
        verdict: what ``render`` takes.

    Returns:
        The path.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(path)
    page = render(run, verdict)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def render(run: RunMetrics, verdict: Any = None) -> str:
    """Write the report as text.

    Args:
        run: any; one without partitions says so.
        verdict: has ``kind``, ``cause``, ``evidence`` (by name), ``advice`` and ``gain`` (low, high: how many times the rows/s);
            without one the page says where the time went.
    """
    summary = run.summary
    heading = run.name or "inference run"
    body = tag(
        "main",
        _head(run, summary, verdict, heading),
        _figures(run, summary),
        confusion_table(run.quality),
        _later(run.executions[1:]),
        _caveats(run),
        _facts(run),
        _all_figures(summary),
    )
    return page_of(heading, body)


def page_of(heading: str, body: Html) -> str:
    """Make a page of its body: one that fetches nothing, and runs no script but its own."""
    script = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{script}'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        trusted(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),  # else a server is asked for one
        tag("title", f"{plain(heading, 80)}: sparkinfer report"),
        trusted(f"<style>{STYLE}</style>"),
    )
    page = tag("html", head, tag("body", body, trusted(f"<script>{SCRIPT}</script>")), lang="en")
    return f"<!doctype html>\n{page}\n"


def _metric(name: str, value: float, element: str = "span", said: str | None = None) -> Html:
    """Show a figure of the summary, so that a test or a reader's script finds the exact one."""
    return tag(element, said or readable(name, value), data_metric=name, data_value=repr(value))


# ------------------------------------------------------------------------------------------------------------------ top


def _head(run: RunMetrics, summary: Mapping[str, float], verdict: Any, heading: str) -> Html:
    hosts = len({record.host for record in run.partitions})
    line: list[Any] = [f"{plain(heading, 120)} · {_moment(run.started_unix)}"]
    if run.partitions:
        line += [" · ", _metric("inference/partitions_total", summary["inference/partitions_total"])]
        line += [f" partition{'s' * (summary['inference/partitions_total'] != 1)} on {hosts} host{'s' * (hosts != 1)}"]
        if "inference/elapsed_seconds" in summary:
            line += [" in ", _metric("inference/elapsed_seconds", summary["inference/elapsed_seconds"])]
    remarks = run.remarks[:_LISTED]
    return tag(
        "header",
        tag("p", *line, class_="kicker"),
        _verdict(run, summary, verdict),
        _numbers(summary),
        _strip(summary),
        tag("div", tag("b", "Read with care"), tag("ul", *(tag("li", remark) for remark in remarks)), class_="care") if remarks else None,
    )


def _verdict(run: RunMetrics, summary: Mapping[str, float], verdict: Any) -> Html:
    if not run.partitions:
        return tag("h1", "No partition has reported")
    if verdict is None:
        return tag("h1", "Where the time went")
    kind, cause, advice = (getattr(verdict, name, None) for name in ("kind", "cause", "advice"))
    evidence = getattr(verdict, "evidence", None) or {}
    told = [tag("span", f"{_label(name)} ", _evidence(str(name), value, summary)) for name, value in list(evidence.items())[:_LISTED]]
    gain = _gain(getattr(verdict, "gain", None))
    return tag(
        "div",
        tag("h1", _HEADLINES.get(str(kind), kind)),
        tag("p", tag("span", kind, class_="kind"), tag("span", f"cause: {cause}", class_="soft") if cause else None),
        tag("p", tag("b", "To try: "), advice, f" {gain}" if gain else None, class_="advice") if advice else None,
        tag("p", *told, class_="evidence") if told else None,
    )


def _evidence(name: str, value: Any, summary: Mapping[str, float]) -> Any:
    if summary.get(name) == value:
        return _metric(name, summary[name])
    if isinstance(value, float | int) and not isinstance(value, bool):
        return readable(name, value) if math.isfinite(value) else "not known"
    return plain(value)


def _gain(gain: Any) -> str:
    try:
        low, high = (float(end) for end in gain)
    except (TypeError, ValueError):
        return ""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= 1:
        return ""
    span = f"{low:.1f} to {high:.1f}" if f"{low:.1f}" != f"{high:.1f}" else f"{high:.2f}"
    return f"To expect: {span} times the rows/s."


def _numbers(summary: Mapping[str, float]) -> Html:
    cells = [tag("div", _metric("inference/rows_total", summary.get("inference/rows_total", 0), "b"), tag("span", "rows"))]
    if "inference/rows_per_second" in summary:
        cells.append(tag("div", _metric("inference/rows_per_second", summary["inference/rows_per_second"], "b"), tag("span", "rows/s")))
    shares = {stage: summary[name] for stage in CONSUMER_STAGES if (name := f"stage/{stage}_fraction") in summary}
    if shares:
        most = max(shares, key=lambda stage: shares[stage])
        cells.append(
            tag(
                "div",
                _metric(f"stage/{most}_fraction", shares[most], "b"),
                tag("span", f"of the partitions' time: {'the model itself' if most == 'compute' else STAGE_WORDS[most]}"),
            )
        )
    for name, words in (("quality/accuracy", "right against the label"), ("quality/mean_absolute_error", "mean absolute error")):
        if name in summary:
            said = f"{summary[name] * 100:.1f} %" if name == "quality/accuracy" else None
            cells.append(tag("div", _metric(name, summary[name], "b", said), tag("span", words)))
    return tag("div", *cells, class_="numbers")


def _strip(summary: Mapping[str, float]) -> Html | None:
    shares = {stage: summary[name] for stage in CONSUMER_STAGES if (name := f"stage/{stage}_fraction") in summary}
    if not any(shares.values()):
        return None
    parts = [
        tag("i", style=f"flex-grow:{share:.4f};background:{STAGE_COLOURS[stage]}", title=STAGE_WORDS[stage])
        for stage, share in shares.items()
        if share > 0
    ]
    keys = [
        tag(
            "li",
            tag("i", style=f"background:{STAGE_COLOURS[stage]}"),
            f"{STAGE_WORDS[stage]} ",
            _metric(f"stage/{stage}_fraction", share),
        )
        for stage, share in shares.items()
    ]
    return tag("div", tag("div", *parts, class_="strip", aria_hidden="true"), tag("ul", *keys, class_="key"))


# -------------------------------------------------------------------------------------------------------------- figures


def _figures(run: RunMetrics, summary: Mapping[str, float]) -> Html:
    drawn = {width: draw(run, paper) for width, paper in PAPERS.items()}
    after = {"partitions": partition_table(run.partitions), "latency": _percentiles(summary)}
    sections = [
        tag(
            "section",
            tag("h2", drawing.title),
            tag("p", drawing.caption, class_="caption"),
            *(tag("figure", trusted(svg(drawn[width][name], f"{width}-{name}")), class_=width) for width in PAPERS),
            after.get(name),
        )
        for name, drawing in drawn["wide"].items()
    ]
    return trusted("".join(sections))


def _percentiles(summary: Mapping[str, float]) -> Html | None:
    names = {percent: f"inference/batch_latency_seconds_p{percent}" for percent in (50, 90, 95, 99)}
    found = {percent: name for percent, name in names.items() if name in summary}
    if not found:
        return None
    heads = [tag("th", f"p{percent}") for percent in found]
    cells = [_metric(name, summary[name], "td") for name in found.values()]
    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", tag("tr", *cells)), class_="percentiles")


# --------------------------------------------------------------------------------------------------------------- bottom


def _later(executions: Iterable[Execution]) -> Html | None:
    items = [tag("li", _sentence(execution)) for execution in executions]
    if not items:
        return None
    more = tag("li", f"and {count(len(items) - _LISTED)} more") if len(items) > _LISTED else None
    caption = tag("p", "Later actions inside the same run; all figures above are those of the first.", class_="caption")
    return tag("section", tag("h2", "Later executions"), caption, tag("ul", *items[:_LISTED], more, class_="plain"))


def _sentence(execution: Execution) -> str:
    figures = summarise(execution.partitions)
    name = (
        f"execution {plain(execution.execution, 40)} of {plain(execution.call, 60)}" if execution.execution else plain(execution.call, 60)
    )
    partitions = figures["inference/partitions_total"]
    speed = f", {rate(figures['inference/rows_per_second'])} rows/s" if "inference/rows_per_second" in figures else ""
    took = f" in {duration(figures['inference/elapsed_seconds'])}" if "inference/elapsed_seconds" in figures else ""
    return f"{name}: {count(figures['inference/rows_total'])} rows from {count(partitions)} partition{'s' * (partitions != 1)}{took}{speed}"


def _caveats(run: RunMetrics) -> Html | None:
    said = Counter(remark for record in run.partitions for remark in dict.fromkeys(record.remarks))
    items = [f"{remark} (in {count(times)} partition{'s' * (times != 1)})" for remark, times in said.most_common(_LISTED)]
    if len(said) > _LISTED:
        items.append(f"and {count(len(said) - _LISTED)} more of the partitions' remarks")
    if len(run.remarks) > _LISTED:
        items.append(f"and {count(len(run.remarks) - _LISTED)} more of the run's remarks")
    duplicates = sum(execution.duplicates for execution in run.executions)
    if duplicates:
        items.append(f"{count(duplicates)} record{'s' * (duplicates != 1)} of earlier attempts at the same partitions are not counted")
    if len({record.host for record in run.partitions}) > 1:
        items.append("each host's times are by its own clock: where clocks differ, its bars are shifted, and durations stay right")
    return tag("section", tag("h2", "Caveats"), tag("ul", *(tag("li", item) for item in items), class_="plain")) if items else None


def _facts(run: RunMetrics) -> Html | None:
    cards = [
        tag("div", tag("h2", title), tag("dl", *_pairs(facts)), class_="facts")
        for title, facts in (("Settings", run.settings), ("Environment", run.environment))
        if facts
    ]
    return tag("section", tag("div", *cards, class_="columns")) if cards else None


def _pairs(facts: Mapping[str, Any]) -> list[Html]:
    pairs = [(tag("dt", plain(name, 80)), tag("dd", plain(value, 400))) for name, value in list(facts.items())[:_LISTED]]
    return [element for pair in pairs for element in pair]


def _all_figures(summary: Mapping[str, float]) -> Html:
    rows = [
        tag("tr", tag("td", name, class_="text"), _metric(name, value, "td"), tag("td", repr(value), class_="soft"))
        for name, value in summary.items()
    ]
    heads = tag("tr", tag("th", "name", class_="text"), tag("th", "value"), tag("th", "exactly"))
    table = tag("table", tag("thead", heads), tag("tbody", *rows))
    return tag("details", tag("summary", f"All {count(len(rows))} figures by name"), tag("div", table, class_="scroll"))


def _label(name: str) -> str:
    """Say a metric's name in words: ``stage/input_wait_fraction`` is ``input wait``."""
    words = plain(name, 80).rpartition("/")[2].removesuffix("_fraction").removesuffix("_seconds")
    return _WORDS.get(words, words.replace("_", " "))


def _moment(unix: float) -> str:
    try:
        return datetime.fromtimestamp(unix, timezone.utc).strftime("%d %B %Y, %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"
