"""A profile as a page: where a model's time goes, operator by operator.

Runs on: driver (standard library only).

Invariant: the page fetches nothing, and escapes all that came from data; each model of a run has a section of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkinfer.profiles import OTHERS, Operator
from sparkinfer.reporting.flame import flame_graph
from sparkinfer.reporting.markup import Html, tag
from sparkinfer.reporting.words import count, plain

if TYPE_CHECKING:
    from sparkinfer.reporting.profile import CallProfile, Profile

__all__ = ["cell", "render"]

_ROWS = 40
_CELL_ROWS = 10
_NAMED = {"torch": "PyTorch's profiler", "tensorflow": "TensorFlow's profiler", "python": "Python's profiler"}


def render(profile: Profile) -> str:
    """Write the page as text."""
    from sparkinfer.reporting.html import page_of  # noqa: PLC0415 - brings matplotlib, which a notebook's cell does without

    heading = profile.metrics.name or "profile"
    sections = [_section(call) for call in profile.calls] or [tag("p", "No partition was watched.")]
    remarks = profile.remarks
    care = tag("div", tag("b", "Read with care"), tag("ul", *(tag("li", remark) for remark in remarks)), class_="care") if remarks else None
    return page_of(heading, tag("main", _head(profile, heading), care, *sections))


def cell(profile: Profile) -> str:
    """Show the slowest operators."""
    if not profile.calls:
        return str(tag("div", "No partition was watched."))
    return "".join(tag("div", tag("p", _sentence(call)), _table(call, _CELL_ROWS)) for call in profile.calls)


def _head(profile: Profile, heading: str) -> Html:
    found = [_slowest(call) for call in profile.calls if call.operators]
    return tag(
        "header",
        tag("p", f"{plain(heading, 120)} · profile", class_="kicker"),
        tag("h1", found[0] if found else "Nothing was profiled"),
        tag("p", plain(profile.memory, 300), class_="advice") if profile.memory is not None else None,
    )


def _slowest(call: CallProfile) -> str:
    taken: dict[str, float] = {}  # whatever the shapes
    for row in call.operators:
        taken[row.name] = taken.get(row.name, 0.0) + row.self_us
    whole = sum(taken.values()) or 1.0
    name = max(taken, key=lambda name: (name != OTHERS, taken[name]))
    return f"{plain(name, 60)} takes {taken[name] / whole * 100:.0f} % of the model's own time"


def _sentence(call: CallProfile) -> str:
    partitions = len(call.records)
    each = f", {call.seconds / call.batches * 1000:.1f} ms each under the profiler" if call.batches else ""
    return (
        f"{_NAMED.get(call.profiler, call.profiler)} watched {count(call.batches)} model calls in {count(partitions)} "
        f"partition{'s' * (partitions != 1)}{each}. A profiler slows small operators most: read shares, not speeds."
    )


def _section(call: CallProfile) -> Html:
    graph = flame_graph(call.stacks)
    flame = (
        tag(
            "div",
            tag("h2", "Who called whom"),
            tag("p", "As wide as its share of the time; callees lie below their callers.", class_="caption"),
            graph,
        )
        if graph is not None
        else None
    )
    table = tag("div", _table(call, _ROWS), class_="scroll")
    return tag("section", tag("h2", f"Operators of {plain(call.model, 60)}"), tag("p", _sentence(call), class_="caption"), table, flame)


def _table(call: CallProfile, rows: int) -> Html:
    on_device = any(row.self_device_us is not None for row in call.operators)
    memory = any(row.self_cpu_bytes or row.self_device_bytes for row in call.operators)
    whole = sum(row.self_us for row in call.operators) or 1.0
    heads = ["operator", "share", "calls", "host self ms", "host total ms"]
    heads += ["device self ms", "device total ms"] if on_device else []
    heads += ["host MB", *(["device MB"] if on_device else [])] if memory else []
    lines = [_line(row, whole, on_device=on_device, memory=memory) for row in call.operators[:rows]]
    head = tag("tr", *(tag("th", name, class_="text" if name == "operator" else None) for name in heads))
    return tag("table", tag("thead", head), tag("tbody", *lines))


def _line(row: Operator, whole: float, *, on_device: bool, memory: bool) -> Html:
    name = plain(row.name, 90)
    cells = [
        tag("td", name, tag("span", f" {plain(row.shapes, 60)}", class_="soft") if row.shapes else None, class_="text"),
        tag("td", f"{row.self_us / whole * 100:.1f} %"),
        tag("td", count(row.calls)),
        *(_milliseconds(us) for us in (row.self_cpu_us, row.total_cpu_us)),
    ]
    if on_device:
        cells += [_milliseconds(us) for us in (row.self_device_us, row.total_device_us)]
    if memory:
        cells += [_megabytes(row.self_cpu_bytes), *([_megabytes(row.self_device_bytes)] if on_device else [])]
    return tag("tr", *cells)


def _milliseconds(us: float | None) -> Html:
    return tag("td", "" if us is None else f"{us / 1000:.2f}")


def _megabytes(size: float | None) -> Html:
    return tag("td", "" if size is None else f"{size / 1e6:.2f}")
