"""Run W1, W4, W5 and W9 in quick form, and compare their ratios with the committed ones: ``make bench-check``.

A ratio that is worse by more than a fifth fails. Ratios of one run, never seconds: those are the machine's.
"""

from __future__ import annotations

import json
import sys

from benchmarks.run import run
from benchmarks.tables import RESULTS
from benchmarks.work import work_named

CHECKED = ("w1", "w4", "w5", "w9")
LOSS = 0.20
_NEEDS = {"w5": ["by_hand", "ours"]}  # the others are raced whole


def main() -> None:
    """Compare, print, and exit with 1 where something was lost."""
    lost = []
    for name in CHECKED:
        path = RESULTS / f"{name}.quick.json"
        if not path.exists():
            print(f"{name}: no quick results are committed to compare with (make bench-quick makes them)")
            continue
        committed = {_key(one): one for one in json.loads(path.read_text(encoding="utf-8"))["reaches"]}
        before = (
            path.read_text(encoding="utf-8"),
            path.with_suffix(".md").read_text(encoding="utf-8"),
            path.with_suffix(".svg").read_bytes(),
        )
        try:
            now = run(work_named(name), "quick", rounds=3, only=_NEEDS.get(name, []), fresh=True)
        finally:  # a check measures, and publishes nothing
            path.write_text(before[0], encoding="utf-8")
            path.with_suffix(".md").write_text(before[1], encoding="utf-8")
            path.with_suffix(".svg").write_bytes(before[2])
        for one in now["reaches"]:
            then = committed.get(_key(one))
            if then is None:
                continue
            share = then["ratio"] / one["ratio"] if one["below"] else one["ratio"] / then["ratio"]
            told = f"{name}: {one['ours']} / {one['of']} ({one['figure']}): {one['ratio']:.2f}, committed {then['ratio']:.2f}"
            print(told)
            if share < 1 - LOSS:
                lost.append(told)
    sys.exit("lost more than a fifth:\n" + "\n".join(lost) if lost else 0)


def _key(one: dict[str, object]) -> tuple[object, ...]:
    return one["ours"], one["of"], one["figure"]


if __name__ == "__main__":
    main()
