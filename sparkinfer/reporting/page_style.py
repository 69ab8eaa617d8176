"""How the report looks, and the few lines that sort its table.

Runs on: a browser.

Invariant: nothing here is fetched from anywhere, and the page is complete without the script.
"""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fbfbfa; --card: #ffffff; --ink: #1d2129; --ink-soft: #5c636f; --line: #e3e5e9; --accent: #2a69ad; --care: #fff6e3; --care-line: #ecd9a8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14161a; --card: #1b1e24; --ink: #e7e9ed; --ink-soft: #a0a7b3; --line: #2d323b; --accent: #79b2ec; --care: #292417; --care-line: #4d432a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 68rem; margin: 0 auto; padding: 2.2rem 2rem 4rem; }
h1 { font-size: 2rem; line-height: 1.2; letter-spacing: -0.015em; font-weight: 650; margin: 0.35rem 0 0.6rem; text-wrap: balance; }
h2 { font-size: 1.15rem; line-height: 1.3; font-weight: 620; margin: 0 0 0.15rem; }
p { margin: 0 0 0.6rem; }
section { margin-top: 2.6rem; }
.soft, .caption, dt, th { color: var(--ink-soft); }
.kicker { color: var(--ink-soft); font-size: 0.88rem; overflow-wrap: anywhere; margin: 0; }
.caption { max-width: 46rem; margin-bottom: 0.9rem; font-size: 0.92rem; }
.kind {
  display: inline-block; font-size: 0.8rem; font-weight: 600; color: var(--accent); border: 1px solid currentColor; border-radius: 99px;
  padding: 0.05rem 0.65rem; margin: 0 0.4rem 0 0;
}
.advice { font-size: 1.06rem; max-width: 46rem; overflow-wrap: anywhere; }
.evidence { color: var(--ink-soft); font-size: 0.92rem; display: flex; flex-wrap: wrap; gap: 0 1.2rem; }
.numbers { display: grid; grid-auto-columns: 1fr; grid-auto-flow: column; gap: 1rem; margin: 1.5rem 0 1.1rem; }
.numbers > div, .care, .scroll, .facts { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.numbers > div { padding: 0.8rem 1.1rem 0.9rem; }
.numbers b { display: block; font-size: 1.9rem; line-height: 1.25; font-weight: 620; letter-spacing: -0.02em; font-variant-numeric: tabular-nums; }
.numbers span { color: var(--ink-soft); font-size: 0.92rem; }
.strip { display: flex; height: 14px; border-radius: 5px; overflow: hidden; gap: 1px; }
.strip i { flex-basis: 0; min-width: 1px; }
.key { display: flex; flex-wrap: wrap; gap: 0.15rem 1.15rem; list-style: none; padding: 0; margin: 0.55rem 0 0; font-size: 0.88rem; }
.key i { display: inline-block; width: 0.68em; height: 0.68em; border-radius: 2px; margin-right: 0.45em; }
.care { background: var(--care); border-color: var(--care-line); padding: 0.7rem 1.1rem; margin-top: 1.6rem; }
.care ul, .plain { margin: 0.2rem 0 0; padding-left: 1.1rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg g[id*="-partition"] path { pointer-events: all; }
svg g[id*="-partition"]:hover path { stroke: var(--ink) !important; stroke-width: 1 !important; opacity: 1 !important; }
figure { margin: 0; }
.narrow { display: none; }
.scroll { overflow: auto; max-height: 32rem; margin-top: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 0.34rem 0.7rem; white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; }
th { position: sticky; top: 0; white-space: normal; vertical-align: bottom; line-height: 1.3; background: var(--card); font-weight: 550; }
th.text, td.text { text-align: left; }
td.told { white-space: normal; min-width: 18rem; }
th.sorts { cursor: pointer; user-select: none; }
th.sorts:hover, th[aria-sort] { color: var(--ink); }
th[aria-sort="ascending"]::after { content: " \\2191"; }
th[aria-sort="descending"]::after { content: " \\2193"; }
.percentiles { width: auto; margin-top: 0.6rem; }
.percentiles th { background: none; }
.columns { display: grid; grid-template-columns: 1fr 1fr; gap: 1.2rem; align-items: start; }
.facts { padding: 0.7rem 1.1rem; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: 0.15rem 1.2rem; margin: 0.4rem 0 0; font-size: 0.92rem; }
dd { margin: 0; overflow-wrap: anywhere; }
details { margin-top: 1.6rem; }
summary { cursor: pointer; color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 760px) {
  main { padding: 1.3rem 1.05rem 3rem; }
  h1 { font-size: 1.55rem; }
  .wide { display: none; }
  .narrow { display: block; max-width: 30rem; }
  .numbers { grid-auto-flow: row; grid-template-columns: 1fr 1fr; gap: 0.7rem; }
  .numbers > div { padding: 0.6rem 0.85rem 0.7rem; }
  .numbers > div:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .numbers b { font-size: 1.55rem; }
  .columns { grid-template-columns: 1fr; }
  section { margin-top: 2.1rem; }
}
@media print { .scroll { max-height: none; overflow: visible; } details { display: none; } section { break-inside: avoid; } }
"""

SCRIPT = """
(function () {
  var table = document.getElementById("partitions");
  if (!table) { return; }
  var heads = Array.prototype.slice.call(table.tHead.rows[0].cells);
  var body = table.tBodies[0];
  function sort(column) {
    var head = heads[column];
    var falling = head.getAttribute("aria-sort") !== "descending";
    var rows = Array.prototype.slice.call(body.rows);
    rows.sort(function (one, other) {
      var a = one.cells[column].dataset.sort, b = other.cells[column].dataset.sort;
      if (a === undefined || b === undefined) { return (a === undefined) - (b === undefined); }
      var order = head.classList.contains("text") ? a.localeCompare(b, undefined, {numeric: true}) : a - b;
      return falling ? -order : order;
    });
    heads.forEach(function (one) { one.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    rows.forEach(function (row) { body.appendChild(row); });
  }
  heads.forEach(function (head, column) {
    head.classList.add("sorts");
    head.tabIndex = 0;
    head.addEventListener("click", function () { sort(column); });
    head.addEventListener("keydown", function (event) {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(column); }
    });
  });
})();
"""
