"""The tf.data feed keeps order, bounds what is ahead, loses no error, and pulls nothing once it is left."""

from __future__ import annotations

import gc
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("tensorflow", reason="the TensorFlow backend needs TensorFlow")

import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.backends.tensorflow import BACKEND
from sparkinfer.backends.tensorflow_feed import _pipeline, _Reader
from sparkinfer.config import InferenceConfig
from sparkinfer.engine.batch import Batch, Failure, Fault, Fed, Inputs
from sparkinfer.engine.prefetch import Gate
from sparkinfer.engine.prepare import Binding, Prepare
from sparkinfer.engine.room import fed_bytes
from sparkinfer.exceptions import PreprocessError, SchemaError
from sparkinfer.pickling import dumps


def batches(*columns: Any, names: str = "x") -> Iterator[Batch]:
    """One batch for each column of values; several columns are tuples of values."""
    first = 0
    for index, values in enumerate(columns):
        arrays = values if isinstance(values, tuple) else (values,)
        data = pa.RecordBatch.from_arrays(
            [pa.array(array, **({} if len(array) else {"type": pa.float64()})) for array in arrays], names=list(names)
        )
        yield Batch(index, data, range(first, first + data.num_rows))
        first += data.num_rows


def prepare(function: Any = None, *, style: str = "single", names: str = "x", **settings: Any) -> Prepare:
    """The real step over the columns x (and y)."""
    bindings = tuple(Binding(name, name) for name in names)
    return Prepare(style=style, bindings=bindings, function=dumps(function, "preprocess") if function else b"", **settings)


def traced(function: Any, *, per_row: bool = False, **settings: Any) -> Prepare:
    """A step whose function runs inside tf.data."""
    return prepare(function, traceable=True, per_row=per_row, **settings)


def feed(source: Iterable[Batch], step: Any, **settings: Any) -> Any:
    """Open the feed as the loop does."""
    return BACKEND.feed(iter(source), step, InferenceConfig(**settings), "cpu")


def run(source: Iterable[Batch], step: Any, **settings: Any) -> list[Fed]:
    """Take all that the feed gives."""
    with feed(source, step, **settings) as fed:
        return list(fed)


def values(fed: Fed, name: str = "x") -> Any:
    """One input of a batch, as Python values."""
    assert isinstance(fed.inputs, Inputs), fed.inputs
    return fed.inputs.arrays[name].numpy().tolist()


@dataclass(frozen=True)
class Step:
    """A stand-in whose function gets the batch's own columns, and may give anything."""

    make: Callable[[pa.RecordBatch], Inputs | Failure]
    traceable: bool = False
    plain: bool = False
    tolerant: bool = False
    only_column: str | None = None
    fingerprint: str = "step"

    def __call__(self, data: pa.RecordBatch) -> Inputs | Failure:
        """Make what the test asked for."""
        return self.make(data)


# Order and content


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 4), max_size=8), ahead=st.integers(0, 3))
def test_every_batch_comes_once_in_order_with_its_own_rows(sizes: list[int], ahead: int) -> None:
    """Whatever the sizes (none at all among them) and the depth, a batch comes with the tensors made of it."""
    columns = [[float(10 * index + row) for row in range(size)] for index, size in enumerate(sizes)]
    fed = run(batches(*columns), prepare(), prefetch_batches=ahead)
    assert [item.batch.index for item in fed] == list(range(len(sizes)))
    for item, column in zip(fed, columns, strict=True):
        assert values(item) == column if column else not item.inputs.arrays


def test_inputs_are_tensors_of_their_own_dtype() -> None:
    """Numbers keep their type, text becomes tf.string, times become integers."""
    for array, dtype in [
        (pa.array([1, 2], pa.int8()), tf.int8),
        (pa.array([True, False]), tf.bool),
        (pa.array([1.5, 2.5], pa.float32()), tf.float32),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64())), tf.int64),
        (pa.array(["a", "ü"]), tf.string),
        (pa.array([b"\xff\x00", b""]), tf.string),
        (pa.array([0, 1], pa.timestamp("us")), tf.int64),
    ]:
        (fed,) = run([Batch(0, pa.RecordBatch.from_arrays([array], names=["x"]), range(2))], prepare())
        assert fed.inputs.arrays["x"].dtype == dtype
    assert values(run(batches(["a", "ü"]), prepare())[0]) == [b"a", "ü".encode()]


@pytest.mark.parametrize(("style", "form"), [("positional", "positional"), ("named", "named")])
def test_several_inputs_keep_their_style_and_names(style: str, form: str) -> None:
    """Two columns arrive as two tensors, called as the user said."""
    (fed,) = run(batches(([1, 2], ["a", "b"]), names="xy"), prepare(style=style, names="xy"))
    assert (fed.inputs.style, list(fed.inputs.arrays)) == (form, ["x", "y"])
    assert (values(fed), values(fed, "y")) == ([1, 2], [b"a", b"b"])


def test_a_python_preprocess_runs_ahead_on_one_thread() -> None:
    """With num_workers=0 it runs on tf.data's thread, except for the first batch, which tells the dtypes."""
    threads: set[int] = set()

    def note(data: pa.RecordBatch) -> Inputs:
        threads.add(threading.get_ident())
        return Inputs("single", {"x": np.asarray(data.column(0)) * 2})

    fed = run(batches([1], [2], [3], [4]), Step(note))
    assert [values(item) for item in fed] == [[2], [4], [6], [8]]
    assert threading.get_ident() in threads
    assert len(threads) >= 2


def test_loader_processes_prepare_in_order() -> None:
    """With num_workers=2 the function runs in other processes; order and rows are the source's."""

    def number(x: float) -> np.ndarray:
        import os

        return np.array([x, os.getpid()])

    fed = run(batches(*([float(index)] for index in range(12))), prepare(number, per_row=True), num_workers=2)
    rows = [values(item)[0] for item in fed]
    assert [row[0] for row in rows] == list(range(12))
    import os

    assert os.getpid() not in {int(row[1]) for row in rows}


def test_a_batch_that_ends_its_loader_process_comes_as_a_failure() -> None:
    """In its place, as every other; the error is no text of tf.data's."""

    def leave(x: float) -> float:
        import os

        if x == 3:
            os._exit(9)
        return x

    with feed(batches(*([float(i)] for i in range(6))), prepare(leave, per_row=True), num_workers=2) as fed:
        found = list(fed)
    failure = found.pop(3).inputs
    assert isinstance(failure, Failure)
    assert failure.text == "the loader process that prepared this row ended with exit code 9"
    assert [values(item) for item in found] == [[0.0], [1.0], [2.0], [4.0], [5.0]]


def test_shapes_and_dtypes_may_change_between_batches() -> None:
    """Padding to each batch's longest row, and a function that gives floats for some batches, are both legal."""
    fed = run(batches([[1, 2]], [[1, 2, 3]], [[1]], [1.5], [7], ["a"]), prepare())
    assert [values(item) for item in fed] == [[[1, 2]], [[1, 2, 3]], [[1]], [1.5], [7], [b"a"]]


# What is in flight


def test_bytes_bound_what_waits_ready() -> None:
    """C41: eight batches might wait; of 8 kB each, two fit under 20 kB. All come, and leaving in between is no hang."""
    pulled: list[int] = []

    def source() -> Any:
        for item in batches(*([[float(number)] * 1000] for number in range(12))):
            pulled.append(item.index)
            yield item

    with feed(source(), prepare(), prefetch_batches=8, max_in_flight_bytes=20_000) as fed:
        next(fed)
        time.sleep(0.2)  # a feed that runs away has the time to
        assert len(pulled) <= 4
        assert len(list(fed)) == 11
    with feed(source(), prepare(), prefetch_batches=8, max_in_flight_bytes=20_000) as fed:
        next(fed)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_source_is_never_further_ahead_than_asked(ahead: int) -> None:
    """While the consumer holds the first batch, exactly those that wait ready were pulled beside it."""
    pulled: list[int] = []
    full = threading.Event()

    def source() -> Iterator[Batch]:
        for batch in batches(*([float(index)] for index in range(50))):
            pulled.append(batch.index)
            if len(pulled) == ahead + 1:
                full.set()
            yield batch

    with feed(source(), Step(lambda data: Inputs("single", {"x": np.asarray(data.column(0))})), prefetch_batches=ahead) as fed:
        assert pulled == []
        next(fed)
        assert full.wait(10)
        time.sleep(0.05)  # time enough for one too many
        assert len(pulled) == ahead + 1


def test_the_next_batch_is_prepared_while_the_model_works() -> None:
    """The consumer waits until the batch after the one it holds was prepared: without overlap that never happens."""
    prepared = [threading.Event() for _ in range(5)]

    def note(data: pa.RecordBatch) -> Inputs:
        prepared[data.column(0)[0].as_py()].set()
        return Inputs("single", {"x": np.asarray(data.column(0))})

    with feed(batches([0], [1], [2], [3], [4]), Step(note)) as fed:
        for number, _ in enumerate(fed):
            assert all(event.wait(10) for event in prepared[: number + 2])


def test_a_hundred_partitions_leave_nothing_behind() -> None:
    """No thread stays after a feed, whether it was emptied or left after the first batch, and all share one dataset."""
    run(batches([1.0]), prepare())
    before, made = threading.active_count(), _pipeline.cache_info().misses
    for number in range(100):
        with feed(batches([1.0], [2.0], [3.0]), prepare()) as fed:
            if number % 2:
                next(fed)
            else:
                assert len(list(fed)) == 3
    assert threading.active_count() <= before
    assert _pipeline.cache_info().misses == made


def test_a_feed_keeps_nothing_of_its_source() -> None:
    """tf.data holds the generator for as long as the dataset lives, and that ends with the feed."""
    step = Step(lambda data: Inputs("single", {"x": np.asarray(data.column(0))}))
    alive = weakref.ref(step)
    run(batches([1.0], [2.0]), step)
    with feed(batches([1.0], [2.0], [3.0]), step) as fed:
        next(fed)
    del step, fed
    gc.collect()
    assert alive() is None


# Leaving


def test_nothing_is_pulled_once_the_feed_is_left() -> None:
    """A consumer that stops after one batch (Spark's limit): the count stands still, though the source has no end."""
    pulled = 0

    def endless() -> Iterator[Batch]:
        nonlocal pulled
        while True:
            pulled += 1
            yield from batches([1.0])

    with feed(endless(), prepare(), prefetch_batches=4) as fed:
        next(fed)
    after = pulled
    time.sleep(0.1)
    assert pulled == after


@pytest.mark.parametrize("step", ["python", "traced"])
def test_leaving_waits_for_a_pull_that_is_under_way(step: str) -> None:
    """Spark's iterator must not be in use after its task: a source that blocks is waited for, and its item dropped."""
    entered, release = threading.Event(), threading.Event()
    inside = False

    def slow() -> Iterator[Batch]:
        nonlocal inside
        yield from batches([1.0])
        inside = True
        entered.set()
        release.wait(10)
        inside = False
        yield from batches([2.0])

    with feed(slow(), prepare() if step == "python" else traced(doubled), num_workers=0 if step == "python" else 2) as fed:
        next(fed)
        assert entered.wait(10)
        threading.Timer(0.1, release.set).start()
    assert not inside


def test_a_reader_is_left_only_when_nobody_pulls() -> None:
    """This holds whatever tf.data does with its threads: leaving returns after the pull, and a later pull gives nothing."""
    entered, release = threading.Event(), threading.Event()

    def slow() -> Iterator[Fed]:
        entered.set()
        release.wait(10)
        yield Fed(next(batches([1.0])), Inputs("single", {"x": np.ones(1)}))
        pytest.fail("pulled after it was left")

    reader = _Reader(slow(), Gate(2**30, fed_bytes))
    puller = threading.Thread(target=reader.pull)
    leaver = threading.Thread(target=reader.leave)
    puller.start()
    assert entered.wait(10)
    leaver.start()
    leaver.join(0.1)
    assert leaver.is_alive()
    release.set()
    leaver.join(10)
    puller.join(10)
    assert reader.pull() is None


@pytest.mark.parametrize(
    "step", [prepare(), Step(lambda data: Inputs("single", {"x": np.asarray(data.column(0))}))], ids=["plain", "tf.data"]
)
def test_a_feed_that_nobody_asks_pulls_nothing(step: Any) -> None:
    """Entering and leaving, as when the model cannot be loaded."""
    pulled: list[int] = []

    def source() -> Iterator[Batch]:
        for batch in batches([1.0], [2.0]):
            pulled.append(batch.index)
            yield batch

    with feed(source(), step):
        time.sleep(0.05)  # time enough for one too many
    assert pulled == []


def test_an_error_of_the_consumer_goes_through() -> None:
    """The model raises in the middle: its own error comes out, and the source is left alone."""

    def score() -> None:
        with feed(batches([1.0], [2.0], [3.0]), prepare()) as fed:
            next(fed)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        score()


# Errors and failures


def test_an_error_of_the_source_arrives_as_itself_after_the_batches_before_it() -> None:
    """Not as tf.data's UnknownError: the same object, with its own traceback."""
    error = OSError("disk gone")

    def source() -> Iterator[Batch]:
        yield from batches([1.0], [2.0])
        raise error

    got: list[Fed] = []
    with pytest.raises(OSError, match="disk gone") as caught, feed(source(), prepare()) as fed:
        got.extend(fed)
    assert [item.batch.index for item in got] == [0, 1]
    assert caught.value is error
    assert caught.traceback[-1].name == "source"


def test_a_failure_arrives_in_its_place_and_the_rest_follows() -> None:
    """Preprocess raises at one row of the middle batch: row and first cause are told, and later batches still come."""

    def fussy(x: float) -> float:
        if x == 17:
            raise ValueError("bad 17")
        return x

    fed = run(batches([1.0, 2.0], [], [3.0, 17.0], [5.0], []), prepare(fussy, per_row=True))
    assert [item.batch.index for item in fed] == [0, 1, 2, 3, 4]
    failure = fed[2].inputs
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.row, "ValueError: bad 17" in failure.text) == (PreprocessError, 1, True)
    assert "fussy" in failure.cause
    assert (values(fed[0]), values(fed[3])) == ([1.0, 2.0], [5.0])


def test_a_failure_at_the_first_batch_is_a_failure_too() -> None:
    """Nothing has told the dtypes yet."""
    fed = run(
        batches([1.0], [2.0]),
        Step(lambda data: Failure(PreprocessError, "no") if data.column(0)[0].as_py() == 1 else Inputs("single", {"x": np.ones(1)})),
    )
    assert isinstance(fed[0].inputs, Failure)
    assert values(fed[1]) == [1.0]


def test_a_failure_does_not_wait_for_the_batch_after_it() -> None:
    """It is given before the source is asked again: the next batch may be long in coming."""

    def source() -> Iterator[Batch]:
        yield from batches(["a"], ["b"])
        pytest.fail("asked again")

    def second_fails(data: pa.RecordBatch) -> Inputs | Failure:
        return Failure(PreprocessError, "no") if data.column(0)[0].as_py() == "b" else Inputs("single", {"x": np.ones(1)})

    with feed(source(), Step(second_fails)) as fed:
        assert isinstance(next(fed).inputs, Inputs)
        assert isinstance(next(fed).inputs, Failure)


def test_a_null_in_text_is_a_failure_with_its_row() -> None:
    """TensorFlow has no null string."""
    (fed,) = run(batches(["a", None]), prepare(nulls="pass"))
    assert isinstance(fed.inputs, Failure)
    assert (fed.inputs.kind, fed.inputs.row) == (SchemaError, 1)


def test_rows_of_different_lengths_are_a_failure_that_names_padding() -> None:
    """A ragged object array has no tensor form."""
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.ones(1), np.ones(2)]
    (fed,) = run(batches([1.0, 2.0]), Step(lambda data: Inputs("single", {"x": ragged})))
    assert isinstance(fed.inputs, Failure)
    assert "TensorSpec(..., pad=0)" in fed.inputs.text


def test_a_type_that_tensorflow_does_not_have_is_a_failure() -> None:
    """It is told with its name, whether it comes first or later."""
    odd = np.zeros(1, dtype=[("a", "i4")])
    step = Step(lambda data: Inputs("single", {"x": odd if data.column(0)[0].as_py() == "odd" else np.ones(1)}))
    fed = run(batches(["odd"], ["even"], ["odd"]), step)
    assert [isinstance(item.inputs, Failure) for item in fed] == [True, False, True]
    assert "which TensorFlow does not have" in fed[2].inputs.text


def test_other_names_than_those_of_the_first_batch_are_a_failure() -> None:
    """Both lists are told, and the batches around it come."""
    fed = run(batches(["a"], ["b"], ["a"]), Step(lambda data: Inputs("named", {data.column(0)[0].as_py(): np.ones(1)})))
    assert isinstance(fed[1].inputs, Failure)
    assert "expected the inputs ['a'], as in the first batch, but ['b'] came" in fed[1].inputs.text
    assert values(fed[2], "a") == [1.0]


# Functions that run inside tf.data


@tf.function
def doubled(x: tf.Tensor) -> tf.Tensor:
    """A traced function of a batch or of a row."""
    return x * 2


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"num_workers": 2}, {"prefetch_batches": 0}])
def test_a_traced_function_runs_inside_the_pipeline(per_row: bool, settings: dict[str, int]) -> None:
    """By row and by batch, alone and in parallel: in order, batches without rows in their places."""
    columns: list[Any] = [[[1.0, 2.0]], [], *([[float(index), 0.0]] * 2 for index in range(20))]
    fed = run(batches(*columns), traced(doubled, per_row=per_row), **settings)
    assert [item.batch.index for item in fed] == list(range(22))
    assert [values(item) for item in fed if item.batch.data.num_rows] == [
        [[2 * a, 2 * b] for a, b in column] for column in columns if column
    ]


@pytest.mark.parametrize(
    ("style", "function", "form", "arrays"),
    [
        ("positional", lambda x, y: x - y, "single", {"input": [3, 5]}),
        ("positional", lambda x, y: (y, x), "positional", {"x": [1, 1], "y": [4, 6]}),
        ("positional", lambda x, y: (x, y, x), "positional", {"input_0": [4, 6], "input_1": [1, 1], "input_2": [4, 6]}),
        ("named", lambda y, x: {"difference": x - y, "x": x}, "named", {"difference": [3, 5], "x": [4, 6]}),
    ],
)
@pytest.mark.parametrize("per_row", [False, True])
def test_a_traced_function_takes_and_gives_what_a_python_one_would(
    style: str, function: Any, form: str, arrays: dict[str, Any], per_row: bool
) -> None:
    """Arguments by the inputs' style, and the inputs of the model by the style of what it gives."""
    (fed,) = run(batches(([4, 6], [1, 1]), names="xy"), traced(tf.function(function), per_row=per_row, style=style, names="xy"))
    assert fed.inputs.style == form
    assert {name: values(fed, name) for name in fed.inputs.arrays} == arrays


@pytest.mark.parametrize("per_row", [False, True])
def test_a_traced_function_may_decode_pictures(per_row: bool) -> None:
    """Bytes in, pixels out: what tf.data does in parallel, without Python."""
    pictures = [tf.io.encode_png(np.full((2, 3, 1), shade, np.uint8)).numpy() for shade in (7, 9)]

    @tf.function
    def decode(content: tf.Tensor) -> tf.Tensor:
        one = lambda data: tf.image.resize(tf.io.decode_png(data, channels=1), (4, 4))  # noqa: E731 - used twice below
        return one(content) if per_row else tf.map_fn(one, content, fn_output_signature=tf.float32)

    (fed,) = run(batches(pictures), traced(decode, per_row=per_row), num_workers=2)
    tensor = fed.inputs.arrays["x"]
    assert (tuple(tensor.shape), tensor.dtype) == ((2, 4, 4, 1), tf.float32)
    assert [float(tf.reduce_mean(picture)) for picture in tensor] == [7.0, 9.0]


def test_a_traced_function_sees_the_width_of_its_columns() -> None:
    """Axes that never change are static, as a dense layer needs them; one that changes becomes free."""
    seen: list[Any] = []

    @tf.function
    def note(x: tf.Tensor) -> tf.Tensor:
        seen.append(tuple(x.shape))
        return x

    columns = [[[1, 2]], [[3, 4]], [[1, 2, 3]], [[1]], [[5, 6]]]
    step = Traced(note)
    fed = run(batches(*columns), step)
    assert [values(item) for item in fed] == columns
    assert seen == [(None, 2), (None, None)]


@dataclass(frozen=True)
class Traced:
    """A stand-in that holds its function itself, so that a test can look into it."""

    traced_batch: Any
    traced_row: Any = None
    traceable: bool = True
    plain: bool = False
    tolerant: bool = False
    only_column: str | None = None
    fingerprint: str = field(default_factory=lambda: uuid.uuid4().hex)

    def columns(self, data: pa.RecordBatch) -> Inputs | Failure:
        """Decode as the real step does."""
        return prepare().columns(data)


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"num_workers": 2}, {"prefetch_batches": 0}])
def test_what_a_traced_function_raises_is_a_failure_of_its_batch(per_row: bool, settings: dict[str, int]) -> None:
    """The first cause's own words, without the names of nodes; the batches around it come."""

    @tf.function
    def fussy(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.Assert(tf.reduce_all(tf.not_equal(x, 3.0)), ["bad value", x])
        return x

    fed = run(batches([1.0], [2.0], [3.0], [], [4.0]), traced(fussy, per_row=per_row), **settings)
    assert [type(item.inputs) for item in fed] == [Inputs, Inputs, Failure, Inputs, Inputs]
    failure = fed[2].inputs
    what = "preprocess" if per_row else "preprocess_batch"
    assert failure.kind is PreprocessError
    assert failure.text.startswith(f"{what} raised InvalidArgumentError: assertion failed: [bad value]")
    assert "{{" not in failure.text
    assert values(fed[4]) == [4.0]


def test_a_function_that_cannot_be_traced_is_a_failure() -> None:
    """Its own error, for the first batch and every later one."""

    @tf.function
    def wrong(x: tf.Tensor) -> tf.Tensor:
        raise TypeError("not like this")

    fed = run(batches([1.0], [2.0]), traced(wrong))
    assert [isinstance(item.inputs, Failure) for item in fed] == [True, True]
    assert "preprocess_batch raised TypeError" in fed[0].inputs.text
    assert "not like this" in fed[0].inputs.text


def test_python_control_flow_in_a_function_without_its_source_is_explained() -> None:
    """TensorFlow rewrites if and for from the source, which a function that travelled by value has not."""

    @tf.function
    def branching(x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) > 1:
            return x
        return -x

    (fed,) = run(batches([1.0]), traced(branching))
    assert isinstance(fed.inputs, Failure)
    assert "use tf.where, tf.cond and tf.map_fn, or import the function from a module" in fed.inputs.text


@pytest.mark.parametrize(("function", "found"), [(lambda x: x[:1], "1 rows"), (lambda x: tf.reduce_sum(x) + 1.0, "a scalar")])
def test_a_traced_function_that_loses_rows_is_a_failure(function: Any, found: str) -> None:
    """The rows that went in and those that came out are told."""
    (fed,) = run(batches([1.0, 2.0]), traced(tf.function(function)))
    assert isinstance(fed.inputs, Failure)
    assert fed.inputs.text == f"preprocess_batch was given 2 rows and gave back {found} for input 'x'"


def test_an_error_of_the_source_comes_through_a_traced_function() -> None:
    """It is the source's, not the function's."""

    def source() -> Iterator[Batch]:
        yield from batches([1.0])
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"), feed(source(), traced(doubled)) as fed:
        list(fed)


def test_a_decoding_fault_goes_around_a_traced_function() -> None:
    """A column that has no tensor form is told with its row, and the function never sees it."""

    def ragged(data: pa.RecordBatch) -> Inputs | Failure:
        return Failure.of(Fault(SchemaError, "ragged", row=1))

    step = Traced(doubled)
    object.__setattr__(step, "columns", ragged)
    (fed,) = run(batches([1.0, 2.0]), step)
    assert isinstance(fed.inputs, Failure)
    assert fed.inputs.row == 1
