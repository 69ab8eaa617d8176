"""C37: how many Python workers share a card follows from Spark's settings, and is told before anything runs."""

from __future__ import annotations

import pytest

from sparkinfer.config import InferenceConfig
from sparkinfer.spark.sharing import check_sharing, crowding, workers_per_gpu

CARD = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "0.0625", "spark.executor.cores": "16"}


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ({"spark.task.cpus": "1"}, 16),
        ({"spark.task.resource.gpu.amount": "1"}, 1),
        ({"spark.task.resource.gpu.amount": "2", "spark.executor.resource.gpu.amount": "4"}, 1),
        ({"spark.executor.cores": "4"}, 4),
        ({"spark.task.cpus": "8"}, 2),
        ({"spark.task.resource.gpu.amount": "0.3333333333"}, 3),
        ({"spark.executor.cores": ""}, 16),  # not told: the share alone
        ({"spark.executor.resource.gpu.amount": ""}, 0),
        ({"spark.task.resource.gpu.amount": ""}, 0),
        ({"spark.task.resource.gpu.amount": "half"}, 0),
    ],
)
def test_workers_on_a_card_follow_from_the_settings(changes: dict[str, str], workers: int) -> None:
    """The share of a card, bounded by the cores' task slots."""
    assert workers_per_gpu({**CARD, **changes}) == workers


def test_no_card_settings_are_no_workers_on_cards() -> None:
    """Spark is not told of cards: the number is 0, not a guess."""
    assert workers_per_gpu({}) == 0


def test_more_workers_than_places_are_told() -> None:
    """With both numbers, and the setting that would bring them together."""
    told = crowding(CARD, InferenceConfig(tasks_per_gpu=4))
    assert told is not None
    assert "let 16 Python workers on a card, and tasks_per_gpu=4: 12 of them" in told
    assert told.endswith("gpu.amount=0.25")


def test_nothing_is_told_where_all_have_a_place() -> None:
    """Nor where nobody said how many."""
    assert [crowding(CARD, InferenceConfig(tasks_per_gpu=said)) for said in (None, "auto", 16)] == [None] * 3
    assert crowding({}, InferenceConfig(tasks_per_gpu=1)) is None


def test_a_session_is_asked_before_the_job(spark) -> None:
    """A local session has no cards, and two task slots."""
    assert check_sharing(spark, InferenceConfig(tasks_per_gpu=1)) == 2
