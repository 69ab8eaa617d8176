"""Places on cards: spread, bounded, freed by the kernel, and given up by those that idle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sparkinfer.engine import berths
from sparkinfer.engine.berths import Berths, NoPlaceKept

pytestmark = pytest.mark.skipif(berths.fcntl is None, reason="places are kept by flock, which this system does not have")

CARDS = ("GPU-aa", "GPU-bb")
HOLDER = """
import sys
from pathlib import Path
from sparkinfer.engine.berths import Berths
with Berths(lambda: Path(sys.argv[1])).hold(sys.argv[2:]) as berth:
    print(berth.card, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., Berths]]:
    """What another process would hold: locks are the open files', so that one object's are refused to the other."""
    made: list[Berths] = []

    def make(folder: Path = tmp_path) -> Berths:
        made.append(Berths(lambda: folder, look_every=0.01))
        return made[-1]

    yield make
    for one in made:
        one.release()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A real other process that holds a place on one of the cards until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path), *CARDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            yield holder
        finally:
            holder.kill()


def test_eight_tasks_on_two_cards_are_four_and_four(process: Callable[..., Berths]) -> None:
    """Each takes the card that the fewest hold."""
    with ExitStack() as stack:
        held = [stack.enter_context(process().hold(CARDS)) for _ in range(8)]
    assert Counter(berth.card for berth in held) == {"GPU-aa": 4, "GPU-bb": 4}
    assert sorted(berth.place for berth in held) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_two_applications_do_not_meet_and_a_killed_holder_frees_its_place(
    process: Callable[..., Berths], other: subprocess.Popen[str]
) -> None:
    """The first is on one card, so this process takes the other one; after a kill -9 nobody is left on the first."""
    assert other.stdout is not None
    assert other.stdout.readline().strip() == "GPU-aa"
    mine = process()
    with mine.hold(CARDS) as berth:
        assert berth.card == "GPU-bb"
        assert (mine.holders("GPU-aa"), mine.holders("GPU-bb")) == (1, 1)
        other.send_signal(signal.SIGKILL)
        other.wait(10)
        assert mine.holders("GPU-aa") == 0


def test_a_full_card_makes_the_next_one_wait(process: Callable[..., Berths]) -> None:
    """Eight tasks, two places: never more than two at once, and all come in."""
    inside, most, lock = 0, 0, threading.Lock()

    def task() -> None:
        nonlocal inside, most
        with process().hold(CARDS[:1], lambda _: 2, keep=False):
            with lock:
                inside += 1
                most = max(most, inside)
            threading.Event().wait(0.02)
            with lock:
                inside -= 1

    tasks = [threading.Thread(target=task) for _ in range(8)]
    for one in tasks:
        one.start()
    for one in tasks:
        one.join(30)
    assert (inside, most) == (0, 2)


def test_an_idle_holder_gives_way_and_lets_its_model_go_first(process: Callable[..., Berths]) -> None:
    """A worker between two tasks keeps its place and its model, until another process waits for that card."""
    evicted: list[str] = []
    idle, other = process(), process()
    with idle.hold(CARDS[:1], lambda _: 1, evict=evicted.append):
        pass
    assert (other.holders("GPU-aa"), evicted) == (1, [])
    with other.hold(CARDS[:1], lambda _: 1) as berth:
        assert evicted == ["GPU-aa"]
        assert berth.waited_seconds is not None
        assert berth.waited_seconds > 0
    idle.release()
    other.release()
    assert process().holders("GPU-aa") == 0


def test_idle_holders_that_nobody_waits_for_keep_what_they_have(process: Callable[..., Berths]) -> None:
    """Two that look at the same time do not take each other for one that waits."""
    evicted: list[str] = []
    idle = [process() for _ in range(4)]
    for one in idle:
        with one.hold(CARDS[:1], evict=evicted.append):
            pass
    threading.Event().wait(0.2)
    assert (evicted, idle[0].holders("GPU-aa")) == ([], 4)


def test_a_process_keeps_its_card_and_one_place(process: Callable[..., Berths]) -> None:
    """The next task, and one beside it, run where the model is loaded, though another card is empty."""
    mine = process()
    with mine.hold(CARDS):
        pass
    with mine.hold(CARDS) as one, mine.hold(CARDS) as two:
        assert (one.card, two.card, mine.holders("GPU-aa"), mine.holders("GPU-bb")) == ("GPU-aa", "GPU-aa", 1, 0)


def test_a_limit_that_rises_lets_the_waiting_in(process: Callable[..., Berths]) -> None:
    """tasks_per_gpu="auto" knows more once the first model has run."""
    limits = iter([1, 1, 1])
    with process().hold(CARDS[:1]), process().hold(CARDS[:1], lambda _: next(limits, 2)) as berth:
        assert berth.place == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_holds_nothing_of_its_parents(process: Callable[..., Berths]) -> None:
    """A loader process that outlives its killed parent does not keep the place: it closes its copies."""
    mine = process()
    ready, tell = os.pipe()
    wait, end = os.pipe()
    with mine.hold(CARDS[:1]):
        child = os.fork()
        if not child:  # pragma: no cover - in the child
            mine.forget()
            os.write(tell, b"x")
            os.close(end)
            os.read(wait, 1)
            os._exit(0)
        os.read(ready, 1)
        assert process().holders("GPU-aa") == 1
        os.close(mine._held.pop("GPU-aa").descriptor)  # all that the kernel does for a killed parent
        assert process().holders("GPU-aa") == 0
    os.close(end)
    os.waitpid(child, 0)
    for one in (ready, tell, wait):
        os.close(one)


def test_a_folder_of_somebody_elses_is_refused(tmp_path: Path, process: Callable[..., Berths]) -> None:
    """A link, or what is no folder, may be anybody's."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name, told in (("link", "no folder of this user's"), ("file", "File exists")):
        with pytest.raises(NoPlaceKept, match=f"{told}.*set SPARKINFER_RUNTIME_FOLDER"), process(tmp_path / name).hold(CARDS):
            pass
