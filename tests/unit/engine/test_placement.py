"""The task's own card, by the number that CUDA gives it in this process."""

from __future__ import annotations

import pytest

from sparkinfer.engine.placement import card_of


@pytest.mark.parametrize(
    ("addresses", "visible", "card"),
    [
        (None, None, None),
        ([], "0", None),
        (["0"], None, 0),
        (["3", "5"], None, 3),
        (["3"], "2,3", 1),
        (["0"], "2, 3", 0),  # numbered by a discovery script that sees what is visible
        (["7"], "2,3", None),
        (["GPU-1"], "GPU-0,GPU-1", 1),
        (["GPU-1"], None, None),
        (["1"], "", 1),
    ],
)
def test_an_address_is_the_number_that_cuda_gives_it(addresses: list[str] | None, visible: str | None, card: int | None) -> None:
    """Numbers and UUIDs, with and without CUDA_VISIBLE_DEVICES; what cannot be known is None."""
    assert card_of(addresses, visible) == card
