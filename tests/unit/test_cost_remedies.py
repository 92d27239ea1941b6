"""The first remedy is for the largest item, saves what it says, and is never one that cannot help."""

import pytest

from dtlab.cost.presets import PRESETS, preset
from dtlab.cost.rank_memory import peak_bytes
from dtlab.cost.remedies import remedies
from dtlab.cost.strategy import Strategy

STATES = ("parameters", "gradients", "optimizer")


@pytest.mark.parametrize(
    ("model", "strategy", "item", "word"),
    [
        ("Llama 7B", Strategy(dp_replicate=8), "optimizer", "zero = 3"),
        ("Llama 7B", Strategy(dp_shard=8, zero=3, micro_batch=4), "activations", "recompute"),
        ("BERT-large", Strategy(precision="fp32", micro_batch=8), "activations", "recompute"),
        ("ResNet-50", Strategy(precision="fp32", micro_batch=256), "activations", "micro_batch = 128"),
        ("S4 DeepFM 1M x 1024", Strategy(precision="fp32"), "gradients", "sparse gradients"),
        (
            "Llama 70B",
            Strategy(
                dp_shard=64, zero=3, num_micro_batches=4, sync_every_micro_batch=False, recompute="full"
            ),
            "gradients",
            "sync_every_micro_batch = True",
        ),
        (
            "Llama 7B",
            Strategy(pp=4, num_micro_batches=64, schedule="gpipe", recompute="full"),
            "logits",
            "1f1b",
        ),
    ],
)  # fmt: skip
def test_the_first_remedy_is_for_the_largest_item(
    model: str, strategy: Strategy, item: str, word: str
) -> None:
    first = remedies(model, strategy)[0]
    assert first.item == item
    assert word in first.change


def test_a_remedy_saves_what_it_says() -> None:
    for name in ("Llama 7B", "BERT-large", "GPT 320M", "ResNet-50"):
        for strategy in (
            Strategy(dp_replicate=4, micro_batch=2),
            Strategy(dp_shard=4, zero=3, micro_batch=8),
        ):
            now = peak_bytes(preset(name), strategy)
            for one in remedies(name, strategy):
                assert one.strategy is not None
                assert now - peak_bytes(preset(name), one.strategy) == pytest.approx(one.saves, abs=16)
                assert one.saves > 0


def test_a_table_is_never_told_to_recompute_and_sharding_comes_last() -> None:
    listed = remedies("S4 DeepFM 1M x 1024", Strategy(dp_replicate=8, precision="fp32", micro_batch=256))
    for_table = [one.change for one in listed if one.strategy is None]
    assert for_table == [
        "sparse gradients of the table",
        "row-wise Adagrad: one number a row",
        "half the dimension or half the rows (hashing)",
        "deal the rows of the table out to the data-parallel ranks",
    ]
    assert [one.change for one in listed[:4]] == for_table
    assert not any("recompute" in one.change for one in listed)
    amp = next((one for one in listed if '"amp"' in one.change), None)
    assert amp is None or amp.item not in STATES, "autocast leaves weights, gradients and moments in fp32"


def test_half_precision_by_autocast_is_no_remedy_for_states() -> None:
    for one in remedies("Llama 7B", Strategy(precision="fp32")):
        assert one.item in ("activations", "logits") or '"amp"' not in one.change


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_gets_remedies(name: str) -> None:
    assert remedies(name, Strategy(dp_replicate=8, micro_batch=4, precision="fp32"))


@pytest.mark.parametrize("micro_batch", [2, 3, 7, 9, 12])
def test_no_remedy_changes_the_global_batch_but_by_more_ranks(micro_batch: int) -> None:
    strategy = Strategy(dp_shard=8, zero=3, micro_batch=micro_batch, recompute="full")
    found = [one.strategy for one in remedies("Llama 7B", strategy) if "accumulated" in one.change]
    assert [one.global_batch for one in found if one] == [strategy.global_batch]
    for one in remedies("Llama 7B", strategy):
        if one.strategy and one.strategy.dp == strategy.dp:
            assert one.strategy.global_batch == strategy.global_batch
