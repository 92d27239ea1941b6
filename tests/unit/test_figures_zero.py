"""The bars of ZeRO 0 to 3 and the panels of a mesh show what they are given, also in words."""

from typing import Any

import pytest

from dtlab.cost.zero import zero_bytes
from dtlab.errors import UserError
from dtlab.figures.rank_grid import mesh_figure
from dtlab.figures.style import alt_text, png
from dtlab.figures.zero import SHAPES, decoder_of, zero_bars, zero_figure
from dtlab.parallel.dims import ParallelDims


def test_bars_are_stacked_to_the_bytes_of_each_stage() -> None:
    units = [500_000_000, 700_000_000]
    figure = zero_bars(units, 4, "two units")
    patches: list[Any] = list(figure.axes[0].patches)
    bars = [bar for bar in patches if bar.get_height() > 0]
    for place in range(4):
        wanted = zero_bytes(units, 4, place)  # type: ignore[arg-type]
        own = [bar for bar in bars if abs(bar.get_x() + bar.get_width() / 2 - place) < 0.01]
        assert sum(bar.get_height() for bar in own) == pytest.approx(wanted.total / 1e9)
        assert len(own) == len(wanted.items)


def test_words_name_every_item_and_say_what_fits() -> None:
    words = alt_text(zero_figure(6.7, ranks=8, card="A100 40 GiB"))
    assert words.startswith("6.7B parameters on 8 ranks: 106.5 GB on each under DDP, 14.2 under FSDP")
    assert "ZeRO-1: parameters 13.32, gradients 13.32, optimizer 9.99, together 36.62, does not fit" in words
    assert "ZeRO-3 (FSDP): parameters 1.66, gradients 1.66, optimizer 9.99, in use 0.86" in words


def test_a_model_wrapped_as_a_whole_is_whole_while_it_is_used() -> None:
    words = alt_text(zero_figure(1.3, ranks=8, per_block=False))
    assert words.startswith("1.3B, wrapped as a whole on 8 ranks")
    assert "in use 5.26" in words


@pytest.mark.parametrize("billions", SHAPES)
def test_every_choice_of_the_explorer_can_be_drawn(billions: float) -> None:
    assert sum(decoder_of(billions)) == pytest.approx(billions * 1e9, rel=0.02)
    for ranks in (1, 256):
        assert png(zero_figure(billions, ranks, "fp32", False, "T4 16 GiB"))


def test_a_panel_for_each_axis_groups_the_same_ranks() -> None:
    figure = mesh_figure(ParallelDims(dp_replicate=2, dp_shard=2))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "dp_replicate: AB | AB",
        "dp_shard: AA | BB",
    ]
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert texts == ["0\nA", "1\nA", "2\nB", "3\nB"]
    assert "dp_replicate: groups [0, 2], [1, 3], all-reduce" in alt_text(figure)


def test_all_four_axes_of_a_mesh_fit_into_one_figure() -> None:
    figure = mesh_figure(ParallelDims(pp=2, dp_replicate=2, dp_shard=2, tp=2))
    assert [axes.get_title(loc="left").split(":")[0] for axes in figure.axes] == [
        "pp", "dp_replicate", "dp_shard", "tp",
    ]  # fmt: skip
    assert all(len(axes.texts) == 16 for axes in figure.axes)


def test_one_rank_has_no_mesh_to_draw() -> None:
    with pytest.raises(UserError, match="one rank talks to nobody"):
        mesh_figure(ParallelDims())
