"""The task's own cards, by the numbers that CUDA gives them in this process, and by their names on the host."""

from __future__ import annotations

import pytest

from sparkinfer.engine.placement import card_of, cards_of, host_names
from sparkinfer.exceptions import ConfigError

UUIDS = ("GPU-aa11", "GPU-bb22", "GPU-cc33")
SLICES = ("MIG-aa11", "MIG-bb22")


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


@pytest.mark.parametrize(
    ("address", "visible", "uuids", "card"),
    [
        ("GPU-bb22", None, UUIDS, 1),
        ("GPU-bb22", "2,1", UUIDS, 1),
        ("2", "GPU-cc33,GPU-aa11", UUIDS, 0),
        ("1", "GPU-cc33,GPU-aa11", UUIDS, 1),  # card 1 is hidden: then it is a place in the list
        ("GPU-b", "0,1", UUIDS, 1),  # CUDA takes the beginning of a UUID, too
        ("GPU-zz", "0,1", UUIDS, None),
        ("MIG-bb22", "MIG-aa11,MIG-bb22", SLICES, 1),
        ("MIG-bb22", "MIG-aa11", SLICES, None),
        ("MIG-GPU-aa11/1/0", "MIG-GPU-aa11/1/0", UUIDS, 0),
    ],
)
def test_an_index_and_a_uuid_may_mean_the_same_card(address: str, visible: str | None, uuids: tuple[str, ...], card: int | None) -> None:
    """What names a card in two ways is compared by the host's UUIDs; MIG slices go by their names."""
    assert card_of([address], visible, uuids) == card


def test_a_task_of_several_cards_gets_them_all_in_order() -> None:
    """Two addresses are two numbers, the first of which the model is loaded on."""
    assert cards_of(["3", "2"], "2,3", 2) == (1, 0)


@pytest.mark.parametrize(
    ("addresses", "visible", "told"),
    [
        (["GPU-zz"], "0,1", r"assigned the card 'GPU-zz' to this task, expected one of the 2 .*CUDA_VISIBLE_DEVICES='0,1'"),
        (["5"], None, r"assigned the card '5' to this task, expected one of the 2 .*CUDA_VISIBLE_DEVICES not set"),
    ],
)
def test_an_assigned_card_that_is_not_seen_is_an_error_and_no_other_card(addresses: list[str], visible: str | None, told: str) -> None:
    """Never the first card for want of the right one."""
    with pytest.raises(ConfigError, match=told):
        cards_of(addresses, visible, 2)


def test_a_container_that_shows_one_card_has_no_other() -> None:
    """A pod's only card may be called 5 outside."""
    assert cards_of(["5"], None, 1) == (0,)


@pytest.mark.parametrize(
    ("visible", "uuids", "names"),
    [
        (None, (), ("0", "1")),
        (None, UUIDS, ("GPU-aa11", "GPU-bb22")),
        ("2,0", UUIDS, ("GPU-cc33", "GPU-aa11")),
        ("2,0", (), ("2", "0")),
        ("GPU-bb,MIG-x", UUIDS, ("GPU-bb22", "MIG-x")),
    ],
)
def test_a_card_has_one_name_on_its_host(visible: str | None, uuids: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Two processes that number cards differently mean the same lock files."""
    assert host_names(2, visible, uuids) == names
