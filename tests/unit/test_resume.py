"""What ``score_to`` keeps beside a table: digests of code, the manifest, the journal, the lease."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkinfer.exceptions import ConfigError
from sparkinfer.pickling import dumps
from sparkinfer.planning import Functions
from sparkinfer.spark.resume import journal, lease
from sparkinfer.spark.resume.code import code_digest
from sparkinfer.spark.resume.folders import ArrowFolder
from sparkinfer.spark.resume.lease import LEASE, Owner, leased
from sparkinfer.spark.resume.manifest import Manifest, Part, manifest_of, refuse_mixture
from tests.unit.test_planning import Known
from tests.unit.test_planning import plan as plan_of

PROGRAM = """
import sys
from sparkinfer.pickling import dumps
from sparkinfer.spark.resume.code import code_digest

class Scale:
    __slots__ = ("by",)
    def __init__(self, by): self.by = by
    def __call__(self, x): return x * self.by if x in {"a", "b", "c"} else super().__hash__()

NAMES = {"one", "two", "three"}
scale = Scale(int(sys.argv[1]))

def score(x, *, flags=frozenset({"p", "q", "r"})):
    def inner(y):
        return [scale(name) for name in NAMES] + [y]
    return inner(x) or score(x)

print(code_digest(dumps(score, "score")))
"""


def digest_in_a_process(folder: Path, seed: int, by: int, before: str = "") -> str:
    """Run the program as a script of its own, since a script's functions travel by value."""
    script = folder / f"program_{seed}.py"
    script.write_text(before + PROGRAM)
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script, str(by)], env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def test_code_has_the_same_digest_in_another_process(tmp_path) -> None:
    """Another order of sets, another file, other line numbers change nothing; a value that a global holds does."""
    first = digest_in_a_process(tmp_path, 1, 2)
    assert first == digest_in_a_process(tmp_path, 2, 2, before="# a line more\n\n")
    assert first != digest_in_a_process(tmp_path, 3, 3)


@pytest.mark.parametrize("other", [lambda x: x + 2, lambda x, y=1: x + 1, lambda x: x - 1, lambda y: y + 1])
def test_code_that_answers_otherwise_has_another_digest(other) -> None:
    """Constants, defaults, operations, names of arguments."""
    assert code_digest(dumps(lambda x: x + 1, "f")) != code_digest(dumps(other, "f"))


def test_closures_count() -> None:
    """The same code over another value is another function; over the same it is the same."""

    def made(by: Any) -> Any:
        return lambda x: x * by

    assert code_digest(dumps(made({"a": [1, 2]}), "f")) == code_digest(dumps(made({"a": [1, 2]}), "f"))
    assert code_digest(dumps(made({"a": [1, 2]}), "f")) != code_digest(dumps(made({"a": [1, 3]}), "f"))
    assert code_digest(b"") == ""


def manifest(**digests: str) -> Manifest:
    return Manifest({name: Part(digest, f"{name} {digest}") for name, digest in digests.items()})


def test_a_manifest_is_read_as_it_was_written() -> None:
    """As text, with its parts and versions; what is none is refused with the place."""
    there = manifest(model="a", key="b")
    assert Manifest.read(there.text(), "here") == there
    for text in ("", "[]", '{"version": 1}', "{"):
        with pytest.raises(ConfigError, match=r"m.json is no manifest"):
            Manifest.read(text, "m.json")
    with pytest.raises(ConfigError, match=r"m.json has the version 2, expected 1"):
        Manifest.read(there.text().replace('"version": 1', '"version": 2'), "m.json")


def test_a_mixture_is_refused_part_by_part() -> None:
    """Every part that differs is named with both of its values, and versions where they may be the reason."""
    there = manifest(model="a", key="b", inputs="c")
    refuse_mixture(there, manifest(model="a", key="b", inputs="c"), "t")
    with pytest.raises(
        ConfigError, match=r"What differs: key \(there: key b; asked for: key B\); inputs \(there: inputs c; asked for: inputs C\)\. Score"
    ):
        refuse_mixture(there, manifest(model="a", key="B", inputs="C"), "t")
    older = replace(there, made_with={**there.made_with, "python": "3.1"})
    with pytest.raises(ConfigError, match=r"versions count: python 3\.1 then, 3"):
        refuse_mixture(older, manifest(model="x", key="b", inputs="c"), "t")


def test_a_function_on_the_device_is_a_part_of_its_own() -> None:
    """Another one is refused by its name, the same one is the same in another pickle, and tables without one know nothing of it."""

    def made(by: float) -> Manifest:
        plan = plan_of(Known(backend="torch"), functions=Functions(preprocess_on_device=lambda x: x * by))
        return manifest_of(plan, None, {"y": "double"})

    refuse_mixture(made(2.0), made(2.0), "t")
    with pytest.raises(ConfigError, match=r"What differs: preprocess on device \(preprocess_on_device: its content is another\)\."):
        refuse_mixture(made(2.0), made(3.0), "t")
    without = manifest_of(plan_of(Known(backend="torch")), None, {"y": "double"})
    assert set(made(2.0).parts) - set(without.parts) == {"preprocess on device"}
    with pytest.raises(ConfigError, match=r"What differs: preprocess on device \(there: nothing; asked for: preprocess_on_device\)\."):
        refuse_mixture(without, made(2.0), "t")


class DeadError(Exception):
    """The process is gone."""


class Dying(ArrowFolder):
    """A folder that answers so many changes, and then no more."""

    left = 1 << 30

    def _step(self) -> None:
        if self.left == 0:
            raise DeadError
        self.left -= 1

    def create(self, path: str, text: str) -> bool:
        self._step()
        return super().create(path, text)

    def move(self, source: str, target: str) -> None:
        self._step()
        super().move(source, target)

    def delete(self, path: str) -> None:
        self._step()
        super().delete(path)


@pytest.mark.parametrize("steps", range(14))
def test_an_exchange_of_files_that_is_stopped_anywhere_is_finished_or_never_was(tmp_path, steps) -> None:
    """After each number of steps: a next call leaves the old files alone, or the new ones alone, and nothing staged."""
    for name in ("old-1", "old-2", "kept"):
        (tmp_path / name).write_text(name)
    stage = journal.new_stage()
    for name in ("new-1", "new-2", "_SUCCESS"):
        (tmp_path / stage).mkdir(parents=True, exist_ok=True)
        (tmp_path / stage / name).write_text(name)
    folder = Dying(str(tmp_path))
    folder.left = steps
    try:
        journal.commit(folder, stage, ["old-1", "old-2"])
        decided = True
        journal.finish(folder)
    except DeadError:
        decided = (tmp_path / journal.JOURNAL).exists() or (tmp_path / "new-1").exists()
    folder.left = 1 << 30
    journal.finish(folder)
    assert journal.finish(folder) is False
    expected = {"kept", "new-1", "new-2"} if decided else {"kept", "old-1", "old-2"}
    assert {one.name for one in tmp_path.iterdir()} == {*expected, "_sparkinfer"}
    assert [one.name for one in (tmp_path / "_sparkinfer").iterdir() if not one.name.endswith(".tmp")] == []


def test_a_second_run_is_refused_by_the_first_ones_name(tmp_path) -> None:
    """With its process and what to do; the lease goes with its block."""
    folder = ArrowFolder(str(tmp_path))
    with leased(folder) as first:
        with pytest.raises(ConfigError, match=f"the run {first.owner.run} .process {os.getpid()} on .* is at work"), leased(folder):
            pass
        first.check()
    assert list((tmp_path / "_sparkinfer").iterdir()) == []


@pytest.mark.parametrize("gone", [{"pid": 2**22 + 7}, {"born": "0"}])
def test_the_lease_of_a_dead_process_is_taken_at_once(tmp_path, gone) -> None:
    """Its number belongs to nobody, or to a process that began later."""
    folder = ArrowFolder(str(tmp_path))
    folder.create(LEASE, json.dumps(vars(replace(Owner.here(), **gone))))
    with leased(folder) as mine:
        assert json.loads(folder.read(LEASE) or "")["run"] == mine.owner.run


@pytest.mark.parametrize(("host", "waits"), [("", False), ("else-where", True)])
def test_a_lease_whose_writer_died_in_the_middle_is_told_by_its_claim(tmp_path, host, waits) -> None:
    """It has no name yet: it is taken at once if all who may have it are dead, and not while one of them, or nobody, is known."""
    folder = ArrowFolder(str(tmp_path))
    dead = replace(Owner.here(), born="0")
    folder.create(LEASE, "")
    with pytest.raises(ConfigError, match="a run that is just beginning"), leased(folder):
        pass
    for owner in (dead, replace(dead, run="b" * 12, host=host or dead.host)):
        assert Owner.of_claim(owner.claim) == owner
        folder.create(f"_sparkinfer/{owner.claim}", "")
    if waits:
        with pytest.raises(ConfigError, match="a run that is just beginning"), leased(folder):
            pass
        assert folder.read(LEASE) == ""
        return
    with leased(folder) as mine:
        mine.check()
    assert list((tmp_path / "_sparkinfer").iterdir()) == []


def test_what_killed_runs_left_is_cleared(tmp_path) -> None:
    """Signs of life, claims of the dead, files that were not finished; what a live run waits with, and the table's own files, stay."""
    folder = ArrowFolder(str(tmp_path))
    alive = replace(Owner.here(), run="a" * 12)
    kept = {"manifest.json", alive.claim}
    for name in (*kept, "beat-0123-4567", replace(alive, born="0").claim, "manifest.json.0123.tmp"):
        folder.create(f"_sparkinfer/{name}", "")
    with leased(folder):
        assert {entry.name for entry in folder.entries("_sparkinfer")} == {*kept, "lease.json"}


def test_a_clearing_that_fails_keeps_no_lease(tmp_path, monkeypatch) -> None:
    """Its error goes through, and the next run gets the lease."""
    folder = ArrowFolder(str(tmp_path))
    monkeypatch.setattr(lease, "_clear", lambda _: (_ for _ in ()).throw(OSError("away")))
    with pytest.raises(OSError, match="away"), leased(folder):
        pass
    monkeypatch.undo()
    with leased(folder) as mine:
        mine.check()
    assert list((tmp_path / "_sparkinfer").iterdir()) == []


def test_another_machines_lease_is_taken_when_it_gives_no_sign_of_life(tmp_path) -> None:
    """By the age of its last sign; a fresh one beside an old lease holds it."""
    folder = ArrowFolder(str(tmp_path))
    other = replace(Owner.here(), host="elsewhere")
    folder.create(LEASE, json.dumps(vars(other)))
    old = (tmp_path / LEASE).stat().st_mtime - 2 * lease.STALE_SECONDS
    os.utime(tmp_path / LEASE, (old, old))
    beat = f"_sparkinfer/beat-{other.run}-1"
    folder.create(beat, "")
    with pytest.raises(ConfigError, match="on elsewhere"), leased(folder):
        pass
    folder.delete(beat)
    with leased(folder) as mine:
        assert mine.owner.host != "elsewhere"


def test_a_lease_that_was_taken_is_noticed(tmp_path) -> None:
    """Before something is written that two runs must not write; and the other run's lease is left to it."""
    folder = ArrowFolder(str(tmp_path))
    with leased(folder) as mine:
        folder.delete(LEASE)
        folder.create(LEASE, json.dumps(vars(replace(Owner.here(), run="thief"))))
        with pytest.raises(ConfigError, match=r"lost its lease .* to the run thief"):
            mine.check()
    assert "thief" in (folder.read(LEASE) or "")


def test_signs_of_life_end_with_the_block(tmp_path) -> None:
    """They are written while it lasts, one at a time, and none is left."""
    folder = ArrowFolder(str(tmp_path))
    with leased(folder, beat_seconds=0.01) as mine:
        for _ in range(1000):
            if lease._beats(folder, mine.owner):
                break
            lease.Event().wait(0.01)
        else:
            pytest.fail("no sign of life came")
    assert list((tmp_path / "_sparkinfer").iterdir()) == []
