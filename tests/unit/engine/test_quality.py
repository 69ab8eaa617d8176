"""An output is compared with the label by their kinds, and what cannot be compared is left out and counted."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkinfer.engine.encode import OutputColumn
from sparkinfer.engine.quality import Comparison, not_compared
from sparkinfer.engine.recorder import Recorder


def compare(label: pa.Array, *outputs: pa.Array) -> Any:
    """Compare in two chunks; outputs are y0, y1, ..."""
    names = [f"y{number}" for number in range(len(outputs))]
    chunk = pa.RecordBatch.from_arrays([label, *outputs], names=["truth", *names])
    comparison = Comparison("truth", [OutputColumn(name, column.type) for name, column in zip(names, outputs, strict=True)])
    comparison.add(chunk.slice(0, 1))
    comparison.add(chunk.slice(1))
    return comparison.quality


@pytest.mark.parametrize(
    ("label", "prediction"),
    [
        (pa.array(["a", "b", None, "a"]), pa.array(["a", "a", "a", None])),
        (pa.array([True, False, None, True]), pa.array([True, True, True, None])),
        (pa.array([7, 8, None, 7], pa.int8()), pa.array([7, 7, 7, None], pa.int64())),
    ],
)
def test_classes_are_counted_in_pairs(label: pa.Array, prediction: pa.Array) -> None:
    """Texts, booleans and integers of any width; a null on either side is left out and counted."""
    quality = compare(label, prediction)
    same, other = label[0].as_py(), label[1].as_py()
    assert quality.pairs == {(same, same): 1, (other, same): 1}
    assert (quality.compared, quality.right, quality.left_out, quality.absolute_error) == (2, 1, 2, None)


@pytest.mark.parametrize(
    ("label", "prediction"),
    [
        (pa.array([1.0, 2.0, None, 3.0, 4.0]), pa.array([1.5, 4.0, 1.0, None, float("nan")], pa.float32())),
        (pa.array([1, 2, None, 3, 4]), pa.array([1.5, 4.0, 1.0, None, float("inf")])),
        (pa.array([Decimal("1.5"), Decimal("4.0"), None, Decimal("3.0"), None]), pa.array([1, 2, 3, None, 4])),
    ],
)
def test_numbers_are_compared_by_their_distance(label: pa.Array, prediction: pa.Array) -> None:
    """Where one side is no integer; a null, a NaN and an infinity are left out and counted."""
    quality = compare(label, prediction)
    assert (quality.compared, quality.left_out, quality.right, quality.pairs) == (2, 3, None, None)
    assert quality.absolute_error == pytest.approx(2.5)


def test_an_output_of_the_same_kind_goes_first() -> None:
    """A class is compared with the class beside its score, a text with no number."""
    classes, scores, texts = pa.array([1, 2]), pa.array([0.1, 0.2]), pa.array(["1", "2"])
    assert compare(classes, texts, scores, classes).output == "y2"
    assert compare(classes, texts, scores).output == "y1"
    assert compare(texts, scores, classes) is None


def test_a_chunk_of_endless_classes_keeps_only_totals() -> None:
    """Ten thousand distinct pairs in a chunk: the rows that are right are counted, the pairs let go."""
    quality = compare(pa.array(range(10_002)), pa.array([*range(10_001), 0]))
    assert (quality.compared, quality.right, quality.pairs) == (10_002, 10_001, None)


def test_a_comparison_that_fails_costs_no_rows() -> None:
    """The chunk has no such column: the recorder goes on without."""
    recorder = Recorder(comparison=Comparison("truth", [OutputColumn("y", pa.int64())]))
    recorder.put_out(pa.RecordBatch.from_arrays([pa.array([1, 2])], names=["y"]))
    assert recorder.figures()["quality"] is None
    assert recorder.figures()["rows"] == 2


def test_why_a_label_was_not_compared_names_what_is_there() -> None:
    """The kept columns, or the outputs with their types."""
    outputs = [OutputColumn("y", pa.int64())]
    assert "There is none" in not_compared("truth", road="map", keep=(), outputs=outputs)
    assert "(y int64)" in not_compared("truth", road="map", keep=("truth",), outputs=outputs)
