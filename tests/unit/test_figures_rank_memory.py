"""The figure of memory by strategy shows the bills, whatever the model, and says them in words."""

import pytest

from dtlab.cost.rank_memory import fullest, rank_memory
from dtlab.cost.strategy import Strategy
from dtlab.errors import UserError
from dtlab.figures.rank_memory import WAYS, strategy_memory_figure
from dtlab.figures.style import alt_text, png


def test_each_bar_is_as_long_as_its_bill() -> None:
    figure = strategy_memory_figure("Llama 7B")
    (axes,) = figure.axes
    ends = [0.0] * len(WAYS)
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends[row], bar.get_x() + bar.get_width())
    bills = [fullest(rank_memory("Llama 7B", strategy))[1].total / 2**30 for strategy in WAYS.values()]
    assert ends == pytest.approx(bills, rel=1e-6)


def test_the_words_name_every_way_its_largest_item_and_its_verdict() -> None:
    words = alt_text(strategy_memory_figure("Llama 7B"))
    for label in WAYS:
        assert label in words
    assert "DDP, 8 ranks: " in words
    assert "most of it optimizer, does not fit" in words
    assert "most of it gradients" in words, "accumulation without sync"


def test_other_models_and_ways_are_drawn() -> None:
    ways = {"one card": Strategy(precision="fp32", micro_batch=64), "FSDP": Strategy(dp_shard=4, zero=3)}
    for model in ("ResNet-50", "S4 DeepFM 1M x 1024"):
        assert png(strategy_memory_figure(model, ways, card="T4 16 GiB")).startswith(b"\x89PNG")


def test_an_unknown_card_and_no_ways_are_refused() -> None:
    with pytest.raises(UserError, match="card = 'C64' is unknown"):
        strategy_memory_figure(card="C64")
    with pytest.raises(UserError, match="ways"):
        strategy_memory_figure(ways={})
    with pytest.raises(UserError, match="ResNet-50 has no equal layers"):
        strategy_memory_figure("ResNet-50")
