"""``si.diagnose``: which part holds a pipeline back, measured part by part on a sample.

Runs on: driver.

Invariant: the arms run in turn, round after round, so that a slow moment of the machine is in all of them; nothing is written anywhere, and no more
time is spent than was given, but for the round that is under way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from sparkinfer.analysis.conclude import Found, conclude
from sparkinfer.analysis.costs import Layout, Shape
from sparkinfer.analysis.rounds import Arm, ModelTimes, Round
from sparkinfer.config import InferenceConfig
from sparkinfer.exceptions import ConfigError, PredictError

if TYPE_CHECKING:
    from sparkinfer.analysis.diagnosis import Diagnosis
    from sparkinfer.engine.contracts import Describable
    from sparkinfer.engine.partition import PartitionPlan
    from sparkinfer.engine.probe import Called

__all__ = ["Arms", "diagnose", "measure", "opened"]

_MOST_BYTES = 256_000_000
_LEAST_ROUNDS, _USUAL_ROUNDS, _MOST_ROUNDS = 3, 5, 12  # the most where fewer do not tell
_LEAST_BATCHES = 12  # of an arm: fewer are mostly beginning and end
_ARMS = 4.5  # that share a round's time: source, trivial, everything and the model alone, and what surrounds them
_THREADLESS = ("numpy", "pyfunc", "tensorflow")  # which set no threads, or once a process


class Arms(Protocol):
    """What runs the parts: in this process, or on Spark."""

    slots: int
    cpus: int
    cores: int
    apart: bool
    job_rows: tuple[int, ...]
    remarks: list[str]

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk of the job, at most; 0 where it is not known."""
        ...

    @property
    def plan(self) -> PartitionPlan:
        """What is done."""
        ...

    def sample(self, rows: int, most_bytes: int, seconds: float) -> int:
        """Keep some rows, spread over the data; give how many."""
        ...

    def limit(self, rows: int) -> None:
        """Let each arm go through about so many rows."""
        ...

    def source(self, seconds: float) -> Arm:
        """Read by the user's own plan, and nothing else."""
        ...

    def identity(self) -> Arm | None:
        """Let the sample travel to Python and back."""
        ...

    def trivial(self, config: InferenceConfig) -> Arm:
        """Everything but the model, over the sample."""
        ...

    def everything(self, config: InferenceConfig) -> Arm:
        """The pipeline as it is."""
        ...

    def synthetic(self, config: InferenceConfig, sizes: Sequence[int], seconds: float) -> list[Called]:
        """The model on one batch again and again."""
        ...

    def close(self) -> None:
        """Let go of the sample."""
        ...


def diagnose(
    data: Any,
    model: Describable,
    *,
    rows: int = 20_000,
    seconds: float = 60.0,
    slots: int | None = None,
    config: InferenceConfig | None = None,
    **arguments: Any,
) -> Diagnosis:
    """Say which part of a pipeline holds it back, and what each change would give.

    A sample is measured in rounds, in each of which four parts run one after the other: reading alone, by the data's own plan; everything but the
    model, which repeats its first answers; the model alone, on one batch again and again; and everything together. On Spark a fifth lets the rows travel
    to Python and back. No sink is written.

    Args:
        data: a Spark DataFrame or files, as in ``predict``; or a pandas DataFrame, an Arrow table, or anything that gives record batches each time it is
            iterated; a list of tables is taken for partitions.
        model: as in ``predict``.
        rows: of the sample, at most; spread over the partitions (on Spark the first rows of each), or over a table.
        seconds: to spend, in about.
        slots: tasks that run at once; Spark's own by default, 1 without Spark.
        config: settings; single ones by name beat it, as in ``predict``.
        **arguments: ``predict``'s keywords.

    Returns:
        A ``Diagnosis``: print it, end a notebook's cell with it, or ``save`` it as a page. In an open MLflow run the page is among the artifacts.

    Raises:
        ConfigError, SchemaError, ModelLoadError: as in ``predict``; or there are no rows.
        PredictError: the sample cannot be scored.

    Example:
        >>> import numpy as np, pandas as pd, sparkinfer as si
        >>> double = si.PythonModel(lambda: lambda x: 2 * x)
        >>> table = pd.DataFrame({"x": np.arange(5000.0)})
        >>> found = si.diagnose(table, double, inputs="x", outputs="y double", seconds=1)
        >>> [ceiling.name for ceiling in found.ceilings]
        ['source', 'everything but the model', 'model', 'everything']
    """
    with opened(data, model, slots=slots, config=config, arguments=arguments, rows=rows, seconds=seconds) as (arms, settings):
        found = measure(arms, settings, rows=rows, seconds=seconds)
    import_module("sparkinfer.reporting.mlflow_findings").log_page("diagnosis", found)
    return found


@contextmanager
def opened(
    data: Any,
    model: Describable,
    *,
    slots: int | None,
    config: InferenceConfig | None,
    arguments: dict[str, Any],
    rows: int,
    seconds: float,
) -> Iterator[tuple[Arms, InferenceConfig]]:
    """Check the arguments, and give what runs the arms."""
    if rows < 1 or seconds <= 0:
        msg = f"rows is {rows} and seconds is {seconds}, expected at least 1 row and more than 0 s"
        raise ConfigError(msg)
    names = InferenceConfig.__dataclass_fields__
    overrides = {name: arguments.pop(name) for name in list(arguments) if name in names}
    settings = InferenceConfig.build(config, overrides)
    settings = replace(settings, batch_size=settings.batch_rows)  # what is measured has one size
    spark = hasattr(data, "mapInArrow") or isinstance(data, str) or hasattr(data, "__fspath__") or type(data).__name__ == "FileSource"
    home = "sparkinfer.spark.arms" if spark else "sparkinfer.local_arms"
    kind = import_module(home).SparkArms if spark else import_module(home).LocalArms
    arms: Arms = kind(data, model, arguments, settings, slots)
    try:
        yield arms, settings
    finally:
        arms.close()


def measure(arms: Arms, settings: InferenceConfig, *, rows: int, seconds: float) -> Diagnosis:
    """Run the rounds, and say what they say."""
    begun = time.perf_counter()
    until = begun + seconds
    sampled = arms.sample(rows, _MOST_BYTES, seconds / 6)
    if not sampled:
        msg = "the data has no rows, and a diagnosis needs some"
        raise ConfigError(msg)
    kept = replace(settings, models_per_worker=max(2, settings.models_per_worker))  # the model, and the one that repeats its answers
    fixed = arms.plan.model.options.get("rows") is not None
    sizes = (settings.batch_rows,) if fixed else (settings.batch_rows, 4 * settings.batch_rows)
    load = _warm_up(arms, kept, sampled, sizes, seconds)
    used, each = _rows_of_an_arm(arms, kept, sampled, until)
    share = max(0.05, min(each, seconds / 20))
    threads = _other_threads(arms, kept, share)
    shape = Shape(batch_size=settings.batch_rows, num_workers=settings.num_workers, prefetch_batches=settings.prefetch_batches)

    def found(rounds: Sequence[Round]) -> Diagnosis:
        return conclude(
            Found(
                rounds=rounds,
                shape=shape,
                layout=Layout(
                    rows=arms.job_rows, slots=arms.slots, loads_each=settings.models_per_worker == 0, chunk_rows=max(0, arms.chunk_rows)
                ),
                other_threads=threads,
                load=load,
                sample_rows=used,
                seconds=time.perf_counter() - begun,
                settings=asdict(settings),
                batch_is_fixed=fixed,
                cores=arms.cores / arms.slots,
                apart=arms.apart,
                remarks=arms.remarks,
            )
        )

    rounds: list[Round] = []
    while True:
        rounds.append(_round(arms, kept, sizes, share))
        now = time.perf_counter()
        if len(rounds) < _LEAST_ROUNDS and now < until + 2 * seconds:  # fewer rounds tell no spread
            continue
        told = found(rounds)
        enough = len(rounds) >= (_MOST_ROUNDS if told.verdict.kind == "inconclusive" else _USUAL_ROUNDS)
        if enough or now >= until:
            return told


def _warm_up(arms: Arms, config: InferenceConfig, sampled: int, sizes: Sequence[int], seconds: float) -> float:
    """Load both models where they will run, and give how long the real one's load took."""
    arms.limit(min(sampled, config.batch_rows))
    first = arms.everything(config)
    arms.trivial(config)
    called = arms.synthetic(config, sizes[:1], min(0.05, seconds / 50))
    return max(first.load, *(one.load for one in called))


def _rows_of_an_arm(arms: Arms, config: InferenceConfig, sampled: int, until: float) -> tuple[int, float]:
    """Choose how many rows an arm goes through, and give the seconds that its loop then takes: by a look at a few batches of them.

    What an action takes beside the loop (its start, on Spark Python workers that are lost) is not the rows': the loop gets the rest of an arm's time, and
    half as long as that at least.
    """
    few = min(sampled, 3 * config.batch_rows * arms.slots)
    arms.limit(few)
    begun = time.perf_counter()
    arm = arms.everything(config)
    took = time.perf_counter() - begun
    each = min(took / few, arm.each / (arms.slots if arms.apart else 1))
    beside = max(0.0, took - few * each)
    mean = max(0.0, until - time.perf_counter()) / _USUAL_ROUNDS / _ARMS
    wanted = max(int(max(mean - beside, beside / 2) / max(each, 1e-9)), _LEAST_BATCHES * config.batch_rows * arms.slots)
    used = min(sampled, wanted)
    arms.limit(used)
    return used, used * each


def _other_threads(arms: Arms, config: InferenceConfig, seconds: float) -> list[tuple[int, float]]:
    """Time the model with fewer threads, where a framework's own are in use on a CPU."""
    now = config.threads or arms.cpus
    if now < 2 or arms.plan.model.backend in _THREADLESS or (config.device != "auto" and not config.device.startswith("cpu")):
        return []
    size = (config.batch_rows,)
    shares = []
    usual = _median_call(arms.synthetic(config, size, seconds / 3), size[0])
    for threads in sorted({1, max(1, now // 2), min(arms.cpus, now)} - {now}):
        try:
            called = arms.synthetic(replace(config, threads=threads), size, seconds / 3)
        except PredictError:  # what runs as it is may not run so
            continue
        shares.append((threads, _median_call(called, size[0]) / usual))
    return shares


def _median_call(called: Sequence[Called], size: int) -> float:
    seconds = sorted(one.seconds[size] for one in called)
    return max(1e-9, seconds[len(seconds) // 2])


def _round(arms: Arms, config: InferenceConfig, sizes: Sequence[int], seconds: float) -> Round:
    called = arms.synthetic(config, sizes, seconds)
    both = [size for size in sizes if all(size in one.seconds for one in called)]
    return Round(
        synthetic=ModelTimes(
            calls={size: [one.seconds[size] for one in called] for size in both},
            postprocess=sum(one.postprocess for one in called) / len(called),
            encode=sum(one.encode for one in called) / len(called),
        ),
        source=arms.source(seconds * 2),
        identity=arms.identity(),
        trivial=arms.trivial(config),
        everything=arms.everything(config),
    )
