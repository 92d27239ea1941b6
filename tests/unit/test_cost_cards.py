"""Cards of the catalogue, and the smallest that holds a bill."""

import pytest

from dtlab.cost.cards import cards, smallest_card
from dtlab.cost.catalogue import instances
from dtlab.cost.memory import training_bytes
from dtlab.cost.presets import PRESETS


def test_every_gpu_of_the_catalogue_is_there_once_and_nothing_else() -> None:
    known = {
        (one.gpu, one.gpu_memory_bytes)
        for one in instances()
        if one.gpu and "Trainium" not in one.gpu and one.gpu_memory_gib
    }
    assert {(name.rsplit(" ", 2)[0], size) for name, size in cards().items()} == known
    assert list(cards().values()) == sorted(cards().values())


def test_the_smallest_card_is_one_on_which_the_bill_fits() -> None:
    for name in PRESETS:
        bill = training_bytes(name, 1)
        card = smallest_card(bill.total)
        smaller = [size for size in cards().values() if card is None or size < cards()[card]]
        assert card is None or bill.total < 0.8 * cards()[card]
        assert all(bill.total >= 0.8 * size for size in smaller)


def test_mixed_precision_makes_no_copy_of_an_embedding_table() -> None:
    bill = training_bytes("S4 DeepFM 1M x 1024", 256, precision="amp")
    rest = PRESETS["S4 DeepFM 1M x 1024"].parameters - 1_000_000 * 1025
    assert bill.items["cast copies"] == 2 * rest
    assert training_bytes("BERT-large", 4, precision="amp").items["cast copies"] == pytest.approx(
        0.67e9, rel=0.01
    )
