"""Thousands of small pictures, 37 of them broken in six ways; 100,000 of them are in benchmarks/hundred_thousand_pngs.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.hundred_thousand_pngs import BROKEN, WAYS, Pictures, check_null, check_raise, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 5000


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    """The pictures, and what is known of them."""
    return make(tmp_path_factory.mktemp("pictures"), ROWS)


def test_the_broken_ones_have_reasons_and_all_others_their_answers(spark: SparkSession, pictures: Pictures) -> None:
    """With on_error="null": 4,963 right answers and 37 reasons, each of the stage and the type that its way of being broken has."""
    found = check_null(spark, pictures)
    assert (found["right_answers"], found["reasons"]) == (ROWS - BROKEN, BROKEN)
    assert found["by_way"].keys() == WAYS.keys()


def test_the_first_broken_one_is_named(spark: SparkSession, pictures: Pictures) -> None:
    """With on_error="raise": the error has the row and the key of the first broken one."""
    assert check_raise(spark, pictures)["first_broken_id"] == min(pictures.broken)
