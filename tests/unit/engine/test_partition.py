"""The loop: rows in = rows out with the chunks' borders, or an error that says where; and nothing of it is left behind."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparkinfer as si
from sparkinfer.arguments import parse_outputs
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.partition import PartitionPlan, run_partition
from sparkinfer.exceptions import ModelLoadError, OutputError, PredictError, PreprocessError, SchemaError
from sparkinfer.planning import Functions, plan_partition
from sparkinfer.testing import EchoModel, Ledger, RaisingModel, ShortModel

PREFETCH = pytest.mark.parametrize("prefetch_batches", [0, 1, 4])


def plan(load: Callable[[], Any], *, inputs: Any = "x", outputs: str = "y double", on_null: str = "raise", **said: Any) -> PartitionPlan:
    """A plan over the columns id and x, both kept."""
    functions = Functions(**{name: said.pop(name) for name in ("preprocess", "preprocess_batch", "postprocess") if name in said})
    return plan_partition(
        si.PythonModel(load),
        inputs=inputs,
        outputs=parse_outputs(outputs),
        keep=said.pop("keep", ("id", "x")),
        key=said.pop("key", None),
        functions=functions,
        on_null=on_null,
        on_error=said.pop("on_error", "raise"),
        config=InferenceConfig(**said),
    )


def chunks(*sizes: int) -> Iterator[pa.RecordBatch]:
    """Chunks of these sizes; id counts from 0, x is its half."""
    start = 0
    for size in sizes:
        ids = np.arange(start, start + size)
        yield pa.RecordBatch.from_pydict({"id": ids, "x": ids * 0.5})
        start += size


def run(made: PartitionPlan, source: Iterator[pa.RecordBatch], partition: int | None = 3) -> list[pa.RecordBatch]:
    return list(run_partition(made, source, files=dict, partition=partition))


def live_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sparkinfer")]


# --- rows --------------------------------------------------------------------------------------------------------------


@PREFETCH
@pytest.mark.parametrize("batch_size", [1, 4, 7, 100])
def test_every_row_comes_back_with_its_chunks_border(prefetch_batches: int, batch_size: int, ledger: Ledger) -> None:
    """Batches are carried over the borders; what comes out has the chunks' sizes, the kept columns and the declared types."""
    made = plan(EchoModel(ledger), batch_size=batch_size, prefetch_batches=prefetch_batches, outputs="y float")
    scored = run(made, chunks(5, 0, 1, 9))
    assert [chunk.num_rows for chunk in scored] == [5, 0, 1, 9]
    assert {str(chunk.schema.field("y").type) for chunk in scored} == {"float"}
    assert [row for chunk in scored for row in chunk.to_pylist()] == [{"id": i, "x": i / 2, "y": i / 2} for i in range(15)]
    full, rest = divmod(15, batch_size)
    assert ledger.rows("predict") == [batch_size] * full + [rest] * (rest > 0)
    assert live_threads() == []


@pytest.mark.parametrize("sizes", [(), (0,), (0, 0)])
def test_a_partition_without_rows_loads_no_model(sizes: tuple[int, ...], ledger: Ledger) -> None:
    """C02: its chunks come back, with the schema, and the loader is never called."""
    scored = run(plan(EchoModel(ledger)), chunks(*sizes))
    assert [chunk.schema.names for chunk in scored] == [["id", "x", "y"]] * len(sizes)
    assert ledger.count("load") == 0


def test_a_partition_of_nothing_but_nulls_calls_no_model(ledger: Ledger) -> None:
    """C04: all its predictions are null."""
    source = iter([pa.RecordBatch.from_pydict({"id": [1, 2], "x": pa.array([None, None], pa.float64())})])
    (scored,) = run(plan(EchoModel(ledger), on_null="null"), source)
    assert scored.column("y").to_pylist() == [None, None]
    assert ledger.count("predict") == 0


def test_a_model_is_loaded_once_for_all_partitions_of_a_process(ledger: Ledger) -> None:
    """Two plans made apart from the same model share it."""
    for _ in range(2):
        run(plan(EchoModel(ledger)), chunks(3))
    assert ledger.count("load") == 1


# --- row counts (C18) --------------------------------------------------------------------------------------------------


def model_of_sizes(*sizes: int) -> Callable[[], Any]:
    """A model whose calls give back as many rows as are named here."""

    def load() -> Any:
        left = list(sizes)
        return lambda x: np.zeros(left.pop(0))

    return load


@PREFETCH
@pytest.mark.parametrize("sizes", [(4, 3, 4), (4, 3, 5)])
def test_a_short_batch_is_found_at_its_own_call(sizes: tuple[int, ...], prefetch_batches: int) -> None:
    """C18 a, b: also where a later batch makes the total right again; no row of it is given out."""
    made = plan(
        model_of_sizes(*sizes), batch_size=4, prefetch_batches=prefetch_batches, models_per_worker=0
    )  # its next user gets a fresh one
    scored = run_partition(made, chunks(4, 4, 4), files=dict, partition=3)
    assert next(scored).num_rows == 4
    with pytest.raises(PredictError, match=r"expected 4 rows, found 3: give one for each row. At partition 3, batch 1 \(rows 4 to 7\)"):
        next(scored)
    assert live_threads() == []


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (1.5, r"a scalar \(float\)"),
        (np.float32(1.5), r"a scalar \(float32 of shape \(\)\)"),
        (np.zeros((1, 4)), "1"),
        (None, "None"),
        ("four", r"a scalar \(str\)"),
        ([], "0"),
    ],
)
def test_what_has_no_row_for_each_row_is_refused(result: Any, found: str) -> None:
    """C18 c, d: a scalar and None are told as what they are."""
    with pytest.raises(PredictError, match=rf"expected 4 rows, found {found}"):
        run(plan(lambda: lambda x: result, batch_size=4), chunks(4))


def test_a_column_of_one_is_a_scalar_a_row() -> None:
    """C18 e: (rows, 1) fills a declared scalar."""
    (scored,) = run(plan(lambda: lambda x: x[:, None] * 4, batch_size=4), chunks(4))
    assert scored.column("y").to_pylist() == [0.0, 2.0, 4.0, 6.0]


def test_each_of_several_outputs_is_counted() -> None:
    """By its name or its position."""
    with pytest.raises(PredictError, match="output 'b': expected 4 rows, found 3"):
        run(plan(lambda: lambda x: {"a": x, "b": x[1:]}, outputs="a double, b double", keep=("id",)), chunks(4))
    with pytest.raises(PredictError, match="output 1: expected 4 rows, found 3"):
        run(plan(lambda: lambda x: (x, x[1:]), outputs="a double, b double", keep=("id",)), chunks(4))


def test_a_postprocess_is_counted_too() -> None:
    """A function that drops a row is not the model's fault, and is found all the same."""
    with pytest.raises(PredictError, match=r"expected 4 rows, found 3.* At partition 3, batch 0"):
        run(plan(EchoModel(), postprocess=lambda y: y[:-1]), chunks(4))


def test_the_test_kits_short_model_is_found() -> None:
    """What loses its last row never gets through."""
    with pytest.raises(PredictError, match="expected 4 rows, found 3"):
        run(plan(ShortModel(), batch_size=4), chunks(4))


# --- errors and their place --------------------------------------------------------------------------------------------


def with_key(*values: Any) -> Iterator[pa.RecordBatch]:
    """Two chunks; the second holds the values."""
    yield pa.RecordBatch.from_pydict({"id": [100, 101], "x": [0.0, 0.5]})
    yield pa.RecordBatch.from_pydict({"id": list(range(len(values))), "x": pa.array(values, pa.float64())})


@PREFETCH
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_bad_row_is_named_with_column_partition_batch_row_and_key(prefetch_batches: int, num_workers: int) -> None:
    """The row counts in the partition, whatever the chunks and batches are; the cause is chained with its traceback."""

    def choke(x: float) -> float:
        if x == 13.0:
            raise ValueError("bad 13")
        return x

    made = plan(EchoModel(), preprocess=choke, key=["id"], batch_size=3, prefetch_batches=prefetch_batches, num_workers=num_workers)
    with pytest.raises(PreprocessError) as caught:
        run(made, with_key(1.0, 2.0, 13.0))
    place, _, raised_in = str(caught.value).partition(". Raised in ")
    assert place == "preprocess raised ValueError: bad 13. At column 'x', partition 3, batch 1, row 4 (id=2)"
    assert re.fullmatch(r"choke \((line |test_partition\.py:)\d+\)", raised_in)
    assert "in choke" in str(caught.value.__cause__)
    assert "ValueError: bad 13" in str(caught.value.__cause__)
    assert live_threads() == []


def test_a_null_is_named_before_the_model_sees_its_batch(ledger: Ledger) -> None:
    """With the ways out."""
    with pytest.raises(SchemaError) as caught:
        run(plan(EchoModel(ledger), key="id", prefetch_batches=0), with_key(1.0, None, 2.0))
    assert str(caught.value).startswith("the value is null, at column 'x', partition 3, row 3 (id=1). The model takes no null here")
    assert "on_null='null'" in str(caught.value)
    assert ledger.count("predict") == 0
    with pytest.raises(SchemaError, match=r"partition 3, row 3\b"):
        run(plan(EchoModel(ledger), batch_size=2), with_key(1.0, None))
    assert ledger.rows("predict") == [2]  # rows 0 and 1; the null would have been with row 2


@PREFETCH
@pytest.mark.parametrize("num_workers", [0, 2])
def test_of_a_bad_row_and_a_null_behind_it_the_first_is_named(prefetch_batches: int, num_workers: int) -> None:
    """Nulls are looked for in a whole chunk, before its rows are prepared; the row that is told is the first all the same."""

    def choke(x: float) -> float:
        if x == 13.0:
            raise ValueError("bad 13")
        return x

    made = plan(EchoModel(), preprocess=choke, batch_size=2, prefetch_batches=prefetch_batches, num_workers=num_workers)
    with pytest.raises(PreprocessError, match=r"bad 13\. At column 'x', partition 3, batch 1, row 3\b"):
        run(made, with_key(1.0, 13.0, 2.0, None, 13.0))
    with pytest.raises(SchemaError, match=r"partition 3, row 3\b"):
        run(made, with_key(1.0, None, 13.0))
    assert live_threads() == []


def test_a_skipped_null_does_not_shift_the_rows_that_are_named() -> None:
    """on_null='null' takes rows out of the batches, not out of the count."""
    made = plan(EchoModel(), preprocess=lambda x: 1 / (x - 13), on_null="null", batch_size=2)
    with pytest.raises(
        PreprocessError, match=r"column 'x', partition 3, batch 1, row 5\. Raised in <lambda> \((line |test_partition\.py:)\d+\)\Z"
    ):
        run(made, with_key(None, 1.0, None, 13.0))


def test_without_a_partition_id_none_is_told() -> None:
    """In a process that is no Spark task."""
    with pytest.raises(PredictError, match=r"At batch 0 \(rows 0 to 1\)\Z"):
        run(plan(lambda: lambda x: None), chunks(2), partition=None)


@PREFETCH
def test_what_the_model_raises_is_told_with_the_batch(prefetch_batches: int) -> None:
    """C43 c: type and words of the first cause, which is chained; the reading thread is gone."""
    load = RaisingModel(trigger=4.0, error=ArithmeticError, message="4 is not for me")
    made = plan(load, batch_size=4, prefetch_batches=prefetch_batches)
    with pytest.raises(
        PredictError, match=r"the model raised ArithmeticError: 4 is not for me. At partition 3, batch 2 \(rows 8 to 11\)"
    ) as caught:
        run(made, chunks(100))
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert live_threads() == []


@PREFETCH
def test_stop_iteration_from_user_code_is_an_error_and_no_end(prefetch_batches: int) -> None:
    """It would end the loop's generators without a word, and rows would be missing."""

    def exhausted(*_: Any) -> Any:
        return next(iter(()))

    for said, error, told in [
        ({"load": lambda: exhausted}, PredictError, "the model raised StopIteration"),
        ({"load": EchoModel(), "preprocess": exhausted}, PreprocessError, "preprocess raised StopIteration"),
        ({"load": EchoModel(), "preprocess_batch": exhausted}, PreprocessError, "preprocess_batch raised StopIteration"),
        ({"load": EchoModel(), "postprocess": exhausted}, OutputError, "postprocess raised StopIteration"),
        ({"load": exhausted}, ModelLoadError, r"the loader of PythonModel\(exhausted\) raised StopIteration"),
    ]:
        with pytest.raises(error, match=told):
            run(plan(**said, prefetch_batches=prefetch_batches), chunks(3))


def test_what_postprocess_raises_is_told_with_the_batch() -> None:
    """As an OutputError, with the first cause."""
    made = plan(EchoModel(), postprocess=lambda y: y["label"], batch_size=2)
    with pytest.raises(OutputError, match=r"postprocess raised IndexError: .*\. At partition 3, batch 0 \(rows 0 to 1\)") as caught:
        run(made, chunks(3))
    assert isinstance(caught.value.__cause__, IndexError)


def test_a_value_that_the_declared_type_cannot_hold_is_named_with_its_row() -> None:
    """3.5 is no bigint, and 300 no tinyint."""
    with pytest.raises(OutputError, match=r"output column 'y' is declared bigint, found 0.5 .* At partition 3, batch 0, row 1 \(id=1\)"):
        run(plan(EchoModel(), outputs="y bigint", key="id"), chunks(3))
    with pytest.raises(OutputError, match="declared tinyint, found 300"):
        run(plan(lambda: lambda x: np.full(len(x), 300), outputs="y tinyint"), chunks(1))


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (lambda: 1 / 0, r"the loader of PythonModel\(<lambda>\) raised ZeroDivisionError: division by zero"),
        (lambda: 5, "gave a int, expected a function of arrays, or an object with predict"),
        (lambda: None, "gave a NoneType, expected a function"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_told(load: Any, told: str) -> None:
    """And nothing of the failed load is kept: the next partition tries again."""
    for _ in range(2):
        with pytest.raises(ModelLoadError, match=told):
            run(plan(load), chunks(1))
    assert live_threads() == []


# --- reading ahead (C43) -----------------------------------------------------------------------------------------------


@PREFETCH
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_the_source_arrives_with_its_own_type(prefetch_batches: int, num_workers: int) -> None:
    """C43 b: Spark's own failure of a chunk is raised in the task as it is."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield from chunks(10)
        raise OSError("shuffle block lost")

    made = plan(EchoModel(), batch_size=5, prefetch_batches=prefetch_batches, num_workers=num_workers, preprocess=abs)
    with pytest.raises(OSError, match="shuffle block lost"):
        run(made, broken())
    assert live_threads() == []
    assert sum(chunk.num_rows for chunk in run(made, chunks(12))) == 12  # the next partition of the process is whole


@PREFETCH
def test_a_loop_that_is_left_early_reads_no_more_and_leaves_no_thread(prefetch_batches: int) -> None:
    """Spark closes the generator at a limit; the source is not pulled afterwards."""
    pulled: list[int] = []

    def endless() -> Iterator[pa.RecordBatch]:
        for number in range(10**9):
            pulled.append(number)
            yield pa.RecordBatch.from_pydict({"id": [number], "x": [0.5]})

    scored = run_partition(plan(EchoModel(), batch_size=1, prefetch_batches=prefetch_batches), endless(), files=dict)
    next(scored)
    scored.close()
    seen = len(pulled)
    assert seen <= prefetch_batches + 4
    assert live_threads() == []
    assert len(pulled) == seen


_threads: set[str] = set()


def note_thread(x: Any) -> Any:
    """Note which thread this runs on."""
    _threads.add(threading.current_thread().name)
    return x


@pytest.mark.parametrize(("prefetch_batches", "prepares_on"), [(0, "MainThread"), (2, "sparkinfer-read-ahead")])
def test_preparing_runs_on_the_read_ahead_thread_if_there_is_one(prefetch_batches: int, prepares_on: str) -> None:
    """prefetch_batches=0 reads, prepares and predicts in turn, on one thread."""
    _threads.clear()
    run(plan(EchoModel(), preprocess_batch=note_thread, batch_size=2, prefetch_batches=prefetch_batches), chunks(6))
    assert _threads == {prepares_on}


# --- memory (C41) ------------------------------------------------------------------------------------------------------

_live = 0
_most = 0


class Picture(np.ndarray):
    """A decoded row that is counted while it lives."""


def decode_counted(content: bytes) -> np.ndarray:
    """Decode a row, and note how many decoded ones are alive."""
    global _live, _most  # noqa: PLW0603 - what the finalizers count
    picture = np.frombuffer(content, np.uint8).view(Picture)
    _live += 1
    _most = max(_most, _live)
    weakref.finalize(picture, _gone)
    return picture


def _gone() -> None:
    global _live  # noqa: PLW0603
    _live -= 1


def test_what_is_held_decoded_is_bounded_by_batches_and_not_by_the_chunk() -> None:
    """C41: of a chunk of 64 rows at most (prefetch + 1) batches of 4, and the one in hand, are decoded at a time."""
    global _live, _most  # noqa: PLW0603
    gc.collect()
    _live = _most = 0
    content = [bytes([row]) * 1000 for row in range(64)]
    source = iter([pa.RecordBatch.from_pydict({"id": range(64), "x": content})])
    made = plan(lambda: lambda x: x[:, 0], outputs="y int", preprocess=decode_counted, batch_size=4, prefetch_batches=1, keep=("id",))
    (scored,) = run(made, source)
    assert scored.column("y").to_pylist() == list(range(64))
    assert 4 <= _most <= 12
