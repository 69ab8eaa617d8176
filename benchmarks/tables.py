"""From rounds to results: medians and ratios as JSON, a Markdown table, a chart; and the README's table from those.

``python -m benchmarks.tables`` writes the README's table again from the committed results.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.work import WORKS, Reach, Work, work_named

__all__ = ["RESULTS", "judge", "write_results"]

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
_BEGIN, _END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"
_T95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262, 12: 2.201, 15: 2.145, 20: 2.093}


def write_results(work: Work, scale: str, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Read the raw rounds of a work, check the answers against each other, and write JSON, Markdown and the chart."""
    journal = RESULTS / "raw" / f"{work.name}.{scale}.jsonl"
    notes = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    contestants = {one.name: _contestant(one.name, one.label, notes) for one in work.at(scale)}
    contestants = {name: found for name, found in contestants.items() if found["rounds"]}
    results = {
        "work": work.name,
        "scale": scale,
        "title": work.title,
        "unit": work.unit,
        "settings": dict(work.scales[scale]),
        "machine": dict(machine),
        "contestants": contestants,
        "reaches": [judge(reach, contestants) for reach in work.reaches if reach.scale == scale and reach.names <= set(contestants)],
        "notes": list(work.notes),
    }
    _check_answers(work, contestants)
    (RESULTS / f"{work.name}.{scale}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (RESULTS / f"{work.name}.{scale}.md").write_text(_markdown(results), encoding="utf-8")
    _chart(results, RESULTS / f"{work.name}.{scale}.svg")
    print(_markdown(results))
    return results


def judge(reach: Reach, contestants: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two contestants round by round."""
    pairs = _paired(reach, contestants)
    ratio = statistics.median(pairs)
    return {
        "ours": reach.ours,
        "of": reach.of,
        "figure": reach.figure,
        "bound": reach.bound,
        "below": reach.below,
        "less": reach.less,
        "ratio": ratio,
        "interval": _interval(pairs),
        "met": ratio <= reach.bound if reach.below else ratio >= reach.bound,
        "floor": judge(replace(reach, ours=reach.floor, floor=None), contestants) if reach.floor in contestants else None,
    }


def _contestant(name: str, label: str, notes: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [one for one in notes if one["contestant"] == name]
    rounds = {one["round"]: one for one in mine if "round" in one}  # the newest of each number
    figures: dict[str, Any] = {"label": label, "rounds": [rounds[number] for number in sorted(rounds)]}
    figures["checked"] = next((one["checked"] for one in reversed(mine) if one.get("checked")), None)
    figures["memory"] = next((one["memory"] for one in reversed(mine) if "memory" in one), None)
    if rounds:
        for key, of in (("rate", "wall_seconds"), ("cpu_rate", "cpu_seconds")):
            rates = [one["rows"] / one[of] if one[of] else math.inf for one in figures["rounds"]]
            figures[key] = statistics.median(rates)
            figures[f"{key}_range"] = [min(rates), max(rates)]
    return figures


def _paired(reach: Reach, contestants: Mapping[str, Any]) -> list[float]:
    if reach.figure.endswith("_megabytes_over"):  # memory: one round, and a difference
        kind = reach.figure.removesuffix("_megabytes_over")
        return [(contestants[reach.ours]["memory"][kind] - contestants[reach.of]["memory"][kind]) / 1e6]
    figures = {name: {one["round"]: _of_round(reach.figure, one) for one in contestants[name]["rounds"]} for name in reach.names}
    rounds = sorted(set.intersection(*(set(found) for found in figures.values())))
    ours, of = ([figures[name][number] for number in rounds] for name in (reach.ours, reach.of))
    if reach.less is not None:
        less_ours, less_of = ([figures[name][number] for number in rounds] for name in reach.less)
        ours, of = ([one - other for one, other in zip(*pair, strict=True)] for pair in ((ours, less_ours), (of, less_of)))
    return [one / other for one, other in zip(ours, of, strict=True)]


def _of_round(figure: str, one: Mapping[str, Any]) -> float:
    if figure == "rate":
        return float(one["rows"] / one["wall_seconds"])
    if figure == "cpu_rate":
        return float(one["rows"] / one["cpu_seconds"])
    if figure == "cpu_per_row":
        return float(one["cpu_seconds"] / one["rows"])
    return float(one[figure])


def _interval(pairs: list[float]) -> list[float] | None:
    """Give the 95 % interval of the ratios' geometric mean; nothing of a single one."""
    if len(pairs) < 2:
        return None
    logs = [math.log(pair) for pair in pairs]
    t = _T95[max(number for number in _T95 if number <= len(pairs))]
    middle, half = statistics.mean(logs), t * statistics.stdev(logs) / math.sqrt(len(logs))
    return [math.exp(middle - half), math.exp(middle + half)]


def _check_answers(work: Work, contestants: Mapping[str, Any]) -> None:
    """Refuse to publish a race in which not all did the same."""
    checked = {name: found["checked"] for name, found in contestants.items() if found["checked"]}
    for name, (rows, total) in checked.items():
        first, (wanted_rows, wanted) = next(iter(checked.items()))
        if rows != wanted_rows or abs(total - wanted) > work.tolerance * max(1.0, abs(wanted)):
            msg = f"{work.name}: {name} gave {rows} rows with the sum {total}, but {first} gave {wanted_rows} with {wanted}"
            raise ValueError(msg)


def _markdown(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    packages = ", ".join(f"{name} {found}" for name, found in machine["packages"].items())
    lines = [
        f"# {results['work'].upper()}, {results['scale']}: {results['title']}",
        "",
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}; {packages}.",
        "",
        f"| way | {results['unit']} a second | lowest to highest | {results['unit']} a CPU second | peak memory, GB | of it Python workers |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for found in sorted(results["contestants"].values(), key=lambda one: -one["rate"]):
        low, high = found["rate_range"]
        held = found["memory"] or {}
        gigabytes = [f"{held[kind] / 1e9:.2f}" if kind in held else "" for kind in ("all", "workers")]
        lines.append(
            f"| {found['label']} | {_number(found['rate'])} | {_number(low)} to {_number(high)} | {_number(found['cpu_rate'])} | {gigabytes[0]} | {gigabytes[1]} |"
        )
    if results["reaches"]:
        lines += ["", "| of two ways | figure | ratio | 95 % interval | reach | |", "|---|---|---:|---:|---:|---|"]
    for one in results["reaches"]:
        names = [results["contestants"][one[which]]["label"] for which in ("ours", "of")]
        interval = "" if one["interval"] is None else f"{one['interval'][0]:.2f} to {one['interval'][1]:.2f}"
        bound = f"{'at most' if one['below'] else 'at least'} {one['bound']:g}"
        lines.append(
            f"| {names[0]} / {names[1]} | {one['figure'].replace('_', ' ')} | {one['ratio']:.2f} | {interval} | {bound} | {_said(one, results)} |"
        )
    return "\n".join([*lines, *(f"\n{note}" for note in results["notes"])]) + "\n"


def _said(one: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Say whether a reach is met; and of one that is not, what the floor is."""
    if one["met"] or not one.get("floor"):
        return "met" if one["met"] else "not met"
    return f"not met; {results['contestants'][one['floor']['ours']]['label']}: {one['floor']['ratio']:.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _chart(results: Mapping[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "sparkinfer"
    from matplotlib import pyplot as plt

    found = sorted(results["contestants"].items(), key=lambda item: item[1]["rate"])
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.42 * len(found)), layout="constrained")
    rates = [one["rate"] for _, one in found]
    spread = [[one["rate"] - one["rate_range"][0] for _, one in found], [one["rate_range"][1] - one["rate"] for _, one in found]]
    colours = ["#1b6ca8" if name.startswith("ours") else "#9fb3c1" for name, _ in found]
    axes.barh([one["label"] for _, one in found], rates, xerr=spread, color=colours, error_kw={"ecolor": "#444444", "lw": 1})
    for place, rate in enumerate(rates):
        axes.annotate(f" {_number(rate)}", (max(rate, found[place][1]["rate_range"][1]), place), va="center", fontsize=9)
    axes.set_xlabel(f"{results['unit']} a second: median of {max(len(one['rounds']) for _, one in found)} rounds, lowest to highest")
    axes.set_title(results["title"], loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def readme_block() -> str:
    """Make the README's tables from the committed results: one for each kind of machine."""
    rows: dict[str, list[str]] = {}
    dates: dict[str, set[str]] = {}
    for name in WORKS:
        work = work_named(name)
        for scale, settings in work.scales.items():
            path = RESULTS / f"{name}.{scale}.json"
            if scale == "quick" or not path.exists():
                continue
            results = json.loads(path.read_text(encoding="utf-8"))
            machine = results["machine"]
            packages = machine["packages"]
            versions = ", ".join(f"{package} {packages[package]}" for package in ("pyspark", "torch", "ray", "daft") if package in packages)
            here = f"{machine['cores']} cores of {machine['cpu']}, {versions}"
            dates.setdefault(here, set()).add(machine["date"])
            count = f", {settings['rows']:,} {work.unit}" if "rows" in settings else ""
            for one in results["reaches"]:
                ours, of = (results["contestants"][one[which]]["label"] for which in ("ours", "of"))
                interval = "" if one["interval"] is None else f" ({one['interval'][0]:.2f} to {one['interval'][1]:.2f})"
                rows.setdefault(here, []).append(
                    f"| [{results['title']}{count}](benchmarks/results/{name}.{scale}.md) | {ours} / {of} | {one['figure'].replace('_', ' ')} | {one['ratio']:.2f}{interval} |"
                )
    if not rows:
        return "No results are committed yet."
    tables = []
    for here, lines in rows.items():
        days = " to ".join(sorted({min(dates[here]), max(dates[here])}))
        head = f"{days}, {here}; ratios of one run, with their 95 % intervals:"
        tables.append("\n".join([head, "", "| work | of two ways | figure | ratio |", "|---|---|---|---:|", *lines]))
    return "\n\n".join(tables)


def write_readme() -> None:
    """Put the table between the README's two marks."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    README.write_text(f"{before}{_BEGIN}\n{readme_block()}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_readme()
