"""A partition's device: the task's own card, a fair share, a place on it, and errors before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkinfer.config import InferenceConfig
from sparkinfer.engine import berths
from sparkinfer.engine.admission import Footprints, admitted, task_devices
from sparkinfer.engine.berths import Berths
from sparkinfer.exceptions import ConfigError

pytestmark = pytest.mark.skipif(berths.fcntl is None, reason="places are kept by flock, which this system does not have")
GIGABYTE = 10**9


@dataclass
class Fake:
    """A framework that sees some cards of 24 GB."""

    cards: int

    def resolve_device(self, device: str) -> str:
        if device == "auto":
            return "cuda:0" if self.cards else "cpu"
        number = re.fullmatch(r"cuda(?::(\d+))?", device)
        if device == "cpu" or number is None:
            return device
        if int(number[1] or 0) >= self.cards:
            msg = f"device is {device!r}, but there are {self.cards}"
            raise ConfigError(msg)
        return f"cuda:{number[1] or 0}"

    def card_count(self) -> int:
        return self.cards

    def card_memory_bytes(self, device: str) -> int | None:
        return 24 * GIGABYTE


@pytest.fixture
def admit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """What another process would be given, on a host of its own."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("sparkinfer.engine.admission._uuids_of_host", lambda: ("GPU-aa", "GPU-bb", "GPU-cc", "GPU-dd"))

    made: list[Berths] = []

    def given(cards: int, addresses: list[str] | None = None, **said: Any) -> Any:
        backend: Any = Fake(cards)
        made.append(Berths(lambda: tmp_path, look_every=0.01))
        return admitted(backend, InferenceConfig(**said), addresses, model="m", berths=made[-1], folder=lambda: tmp_path)

    yield given
    for one in made:
        one.release()


def test_a_cpu_takes_no_lock_file(admit: Callable[..., Any], tmp_path: Path) -> None:
    """No card, no place, no wait."""
    with admit(0) as admission:
        assert (admission.device, admission.waited_seconds, admission.sharing()) == ("cpu", None, None)
    assert list(tmp_path.iterdir()) == []


def test_tasks_to_which_spark_gave_no_card_share_them_fairly(admit: Callable[..., Any]) -> None:
    """Local mode: eight tasks, two cards."""
    with ExitStack() as stack:
        given = [stack.enter_context(admit(2)) for _ in range(8)]
        assert sorted(admission.device for admission in given) == ["cuda:0"] * 4 + ["cuda:1"] * 4
        assert given[0].sharing() == 4


def test_sparks_cards_are_the_tasks(admit: Callable[..., Any]) -> None:
    """Two addresses: the model is loaded on the first, and its factory can ask for both."""
    with admit(4, ["3", "GPU-bb"]) as admission:
        assert (admission.device, admission.devices) == ("cuda:3", ("cuda:3", "cuda:1"))
        with admission.loading():
            assert task_devices() == ("cuda:3", "cuda:1")
        assert task_devices() == ()


def test_one_card_has_one_gate_however_it_is_called(admit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sees card 2 as its only one, and one that sees all four, count each other."""
    with admit(4, device="cuda:2") as one:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-cc")
        with admit(1) as two:
            assert (one.device, two.device, two.sharing()) == ("cuda:2", "cuda:0", 2)


@pytest.mark.parametrize(
    ("cards", "addresses", "device", "told"),
    [
        (0, None, "cuda", "device is 'cuda', but there are 0"),
        (2, None, "cuda:5", "device is 'cuda:5', but there are 2"),
        (2, ["GPU-zz"], "auto", "Spark assigned the card 'GPU-zz' to this task, expected one of the 2"),
    ],
)
def test_a_device_that_is_missing_is_an_error(
    admit: Callable[..., Any], tmp_path: Path, cards: int, addresses: list[str] | None, device: str, told: str
) -> None:
    """Before a place is taken, let alone a model loaded."""
    with pytest.raises(ConfigError, match=told), admit(cards, addresses, device=device):
        pass
    assert list(tmp_path.iterdir()) == []


def test_auto_lets_one_measure_and_then_as_many_in_as_fit(admit: Callable[..., Any], tmp_path: Path) -> None:
    """5 GB and the context's 0.6 on a card of 24: three, and what has been measured is known to the next application."""
    with admit(1, tasks_per_gpu="auto") as first:
        first.measured(5 * GIGABYTE)
        with admit(1, tasks_per_gpu="auto") as second, admit(1, tasks_per_gpu="auto") as third:
            assert (second.sharing(), third.device) == (3, "cuda:0")
    kept = Footprints("m-64-fp32", lambda: tmp_path)
    assert (kept.get(), kept.fits(24 * GIGABYTE), kept.fits(GIGABYTE), kept.fits(None)) == (5 * GIGABYTE, 3, 1, 1)


def test_a_limit_that_cannot_be_kept_is_an_error_and_a_share_goes_without(tmp_path: Path) -> None:
    """A read-only host: tasks_per_gpu must not be ignored silently; the rest runs on the first card."""
    (tmp_path / "file").touch()
    process = Berths(lambda: tmp_path / "file")
    backend: Any = Fake(2)
    with (
        pytest.raises(ConfigError, match="tasks_per_gpu=2 needs lock files"),
        admitted(backend, InferenceConfig(tasks_per_gpu=2), None, berths=process),
    ):
        pass
    with admitted(backend, InferenceConfig(), None, berths=process) as admission:
        assert (admission.device, admission.waited_seconds, admission.sharing()) == ("cuda:0", None, None)
