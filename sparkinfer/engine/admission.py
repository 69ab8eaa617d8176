"""Where a partition's model runs: which card, and not before there is room on it.

Runs on: worker.

Invariant: a device that is missing is an error before anything is loaded; a CPU takes no lock file and no time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from sparkinfer.engine.berths import Berth, Berths, NoPlaceKept, process_berths, runtime_folder
from sparkinfer.engine.placement import cards_of, host_names
from sparkinfer.exceptions import ConfigError

if TYPE_CHECKING:
    from sparkinfer.config import InferenceConfig
    from sparkinfer.engine.contracts import Backend

__all__ = ["FILLED", "Admission", "Footprints", "admitted", "task_devices"]

_CONTEXT_BYTES = 600_000_000  # what a process costs on a card beside its allocator's peak: assumed, the drivers differ
FILLED = 0.9  # share of a card's memory that "auto" gives away

_devices: ContextVar[tuple[str, ...]] = ContextVar("sparkinfer_devices", default=())


def task_devices() -> tuple[str, ...]:
    """Name the devices of the task whose model is being loaded, for a model's own factory or loader that spreads it over several.

    Returns:
        Such as ``("cuda:2", "cuda:3")``, by the numbers that the framework knows in this process, or ``("cpu",)``; nothing outside of a
        load.

    Example:
        >>> task_devices()
        ()
    """
    return _devices.get()


@dataclass(frozen=True)
class Admission:
    """What a partition was given.

    Attributes:
        device: where its model runs.
        devices: all that are the task's, ``device`` first.
        waited_seconds: for a place on a card; ``None`` where no place is kept: on a CPU.
        sharing: counts the processes on the card, this one among them; ``None`` where that is not known.
        measured: takes the bytes that the model needed at most on the card.
    """

    device: str
    devices: tuple[str, ...]
    waited_seconds: float | None = None
    sharing: Callable[[], int | None] = lambda: None
    measured: Callable[[int | None], None] = lambda _: None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Have ``task_devices()`` answer while a model is loaded."""
        token = _devices.set(self.devices)
        try:
            yield
        finally:
            _devices.reset(token)


@dataclass(frozen=True)
class Footprints:
    """How many bytes a model needed on a card, kept beside the card's places for every process of the host.

    Attributes:
        model: the model's fingerprint and what else decides its memory.
        folder: of the lock files.
    """

    model: str
    folder: Callable[[], Path] = runtime_folder

    def put(self, bytes_used: int) -> None:
        """Keep the largest."""
        if bytes_used <= (self.get() or 0):
            return
        path = self._path
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(str(bytes_used))
        fresh.replace(path)

    def get(self) -> int | None:
        """Give it, where it was measured."""
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return None

    def fits(self, card_bytes: int | None) -> int:
        """Tell how many processes with this model fit on a card: one where either size is not known.

        Example:
            >>> Footprints("none", lambda: Path("/nowhere")).fits(80 * 10**9)
            1
        """
        used = self.get()
        return 1 if used is None or not card_bytes else max(1, int(FILLED * card_bytes / (used + _CONTEXT_BYTES)))

    @property
    def _path(self) -> Path:
        return self.folder() / "footprints" / self.model


@contextmanager
def admitted(
    backend: Backend,
    config: InferenceConfig,
    addresses: Sequence[str] | None,
    *,
    model: str = "",
    evict: Callable[[str], None] = lambda _: None,
    berths: Berths = process_berths,
    folder: Callable[[], Path] = runtime_folder,
) -> Iterator[Admission]:
    """Choose a partition's device, and hold a place on it while the block runs; wait where ``tasks_per_gpu`` lets no more on.

    Args:
        backend: knows what devices there are.
        config: ``device``, ``tasks_per_gpu``, and what decides a model's memory.
        addresses: Spark's, of the task's cards; ``None`` where Spark assigned none, and then a card is the one that the fewest processes hold.
        model: the fingerprint.
        evict: lets go of the models that idle on a device.
        berths: the process's places.
        folder: where lock files are.

    Raises:
        ConfigError: the device is missing; Spark's card is not seen here; or ``tasks_per_gpu`` cannot be kept.
    """
    device = backend.resolve_device(config.device)
    if not device.startswith("cuda"):
        yield Admission(device, (device,))
        return
    count, visible = backend.card_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    uuids = _uuids_of_host()
    chooses = config.device in ("auto", "cuda")
    assigned = cards_of(addresses, visible, count, uuids) if addresses and chooses else ()
    candidates = assigned[:1] or (tuple(range(count)) if chooses else (int(device.partition(":")[2] or 0),))
    names = host_names(count, visible, uuids)
    footprints = Footprints(f"{model[:32]}-{config.batch_size}-{config.precision}", folder)
    limit = _limit(config, backend, names, footprints)
    cards = [names[number] for number in candidates]
    with ExitStack() as stack:
        try:
            hold = berths.hold(cards, limit, evict=lambda card: evict(f"cuda:{names.index(card)}"), keep=config.models_per_worker > 0)
            berth = stack.enter_context(hold)
        except NoPlaceKept as error:
            if config.tasks_per_gpu is not None:
                msg = f"tasks_per_gpu={config.tasks_per_gpu!r} needs lock files, and {error}"
                raise ConfigError(msg) from error
            berth = Berth(cards[0], 0, 0, None)
        device = backend.resolve_device(f"cuda:{candidates[berth.position]}")
        devices = tuple(f"cuda:{one}" for one in assigned) or (device,)
        sharing, measured = partial(_holders, berths, berth.card), partial(_keep, footprints, config)
        yield Admission(device, devices, berth.waited_seconds, sharing, measured)


def _limit(config: InferenceConfig, backend: Backend, names: Sequence[str], footprints: Footprints) -> Callable[[str], int | None]:
    said = config.tasks_per_gpu
    if said != "auto":
        return lambda _: said
    return lambda card: footprints.fits(backend.card_memory_bytes(f"cuda:{names.index(card)}") if footprints.get() else None)


def _holders(berths: Berths, card: str) -> int | None:
    try:
        return berths.holders(card)
    except NoPlaceKept:
        return None


def _keep(footprints: Footprints, config: InferenceConfig, used: int | None) -> None:
    if used and config.tasks_per_gpu == "auto":
        with suppress(OSError):  # then the next ones go one by one
            footprints.put(used)


@lru_cache(maxsize=1)
def _uuids_of_host() -> tuple[str, ...]:
    """Ask NVML, which starts no thread and no context in this process; nothing where it is not there."""
    try:
        from sparkinfer.engine.nvml import Nvml  # noqa: PLC0415 - nvidia-ml-py may be missing

        nvml = Nvml()
        cards = nvml.cards()
        nvml.close()
    except Exception:  # noqa: BLE001 - Unreadable, ImportError, or a driver's own: then cards go by their entries
        return ()
    return tuple((card.slices[0] if card.slices else card).uuid for card in cards)
