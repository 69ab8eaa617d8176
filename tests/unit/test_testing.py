"""The test kit: a ledger that every process can write to, and models with a known behaviour."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest

from sparkinfer.testing import EchoModel, Event, Ledger, RaisingModel, ShortModel


def write_many(ledger: Ledger, lines: int) -> None:
    for number in range(lines):
        ledger.write("many", rows=number)


def write_and_die(ledger: Ledger) -> None:
    ledger.write("last words", partition=5)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_ledger_tells_what_was_written(ledger: Ledger) -> None:
    """In order, by kind, with this process; rows only where any were told, 0 among them."""
    assert (ledger.events(), ledger.count("load"), ledger.rows("load"), ledger.pids("load")) == ([], 0, [], set())
    ledger.write("load")
    ledger.write("predict", rows=64, partition=0)
    ledger.write("predict", rows=0)
    me = os.getpid()
    assert ledger.events() == [Event("load", me), Event("predict", me, 64, 0), Event("predict", me, 0)]
    assert ledger.events("predict") == ledger.events()[1:]
    assert (ledger.count("predict"), ledger.rows("predict"), ledger.pids("predict")) == (2, [64, 0], {me})
    assert (ledger.count("load"), ledger.rows("load")) == (1, [])


def test_a_ledger_makes_its_folder_and_two_do_not_mix(tmp_path: Path) -> None:
    """At the first line, however deep."""
    one, other = Ledger(str(tmp_path / "a" / "b")), Ledger(str(tmp_path / "c"))
    one.write("load")
    assert (one.count("load"), other.count("load")) == (1, 0)
    assert not (tmp_path / "c").exists()


def test_a_ledger_pickles_as_its_path(ledger: Ledger) -> None:
    """A copy in another process writes to the same file."""
    pickle.loads(pickle.dumps(ledger)).write("load")
    assert ledger.count("load") == 1


def test_no_line_is_torn_or_lost_by_processes_that_write_at_a_time(ledger: Ledger) -> None:
    """Four processes with 200 lines each."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_many, args=(ledger, 200)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert sorted(ledger.rows("many")) == sorted([*range(200)] * 4)
    assert ledger.pids("many") == {process.pid for process in processes}


def test_a_line_outlives_a_process_that_is_killed_right_after(ledger: Ledger) -> None:
    """What was written is in the file, and in no buffer."""
    process = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(ledger,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert ledger.events() == [Event("last words", process.pid, None, 5)]


def test_an_echo_model_gives_back_what_it_gets_and_notes_it(ledger: Ledger) -> None:
    """One array, several, or named ones."""
    predict = pickle.loads(pickle.dumps(EchoModel(ledger)))()
    x, z = np.arange(3), np.arange(3) * 2
    assert predict(x) is x
    assert predict(x, z) == (x, z)
    assert predict(a=x, b=z) == {"a": x, "b": z}
    assert (ledger.count("load"), ledger.rows("predict")) == (1, [3, 3, 3])


def test_a_short_model_loses_the_last_row_of_each_output() -> None:
    """Of one array, of several, and of named ones."""
    predict = ShortModel()()
    x = np.arange(3)
    assert predict(x).tolist() == [0, 1]
    assert [part.tolist() for part in predict(x, x)] == [[0, 1], [0, 1]]
    assert predict(a=x)["a"].tolist() == [0, 1]


def test_a_raising_model_raises_at_its_trigger_only(ledger: Ledger) -> None:
    """With the error and the words that it was given; a batch without the trigger passes."""
    predict = RaisingModel(ledger, trigger=7, error=KeyError, message="seven")()
    assert predict(np.array([1, 2])).tolist() == [1, 2]
    with pytest.raises(KeyError, match="seven"):
        predict(np.array([6, 7]))
    with pytest.raises(RuntimeError, match="as it was told to"):
        RaisingModel()()(np.array([13.0]))
    assert ledger.rows("predict") == [2]
