"""The figures of data parallelism: titles computed from what is drawn, words for all of it, refusals."""

import pytest

from dtlab.figures.data_parallel import backward_figure, hash_figure, layers_of, models_per_step
from dtlab.figures.style import alt_text, png
from dtlab.parallel import BackwardLine, BucketTrip

APART = [["aaaa1", "b0001", "c0001"], ["aaaa1", "b0002", "c0002"]]
TOGETHER = [["aaaa1", "b0001", "c0001"]] * 2


def line(rank: int = 0, *, late: float = 0.0) -> BackwardLine:
    """Two layers, 10 ms each, and a bucket for each; the second starts when backward is over."""
    return BackwardLine(
        rank,
        start=5.0,
        end=5.03,
        gradients=[("1.bias", 5.009), ("1.weight", 5.010), ("0.bias", 5.019), ("0.weight", 5.020)],
        trips=[
            BucketTrip(("1.bias", "1.weight"), 2_000_000, 5.010, 5.014 + late),
            BucketTrip(("0.bias", "0.weight"), 1_000_000, 5.020, 5.027 + late),
        ],
    )


def test_the_title_says_how_many_models_there_are_and_since_when() -> None:
    words = alt_text(hash_figure({"no wrapper": APART, "averaged": TOGETHER}))
    assert words.startswith("No wrapper: 2 models from step 1 on; averaged: one model at every step. ")
    assert "no wrapper: rank 0: aaaa, b000, c000; rank 1: aaaa, b000, c000." in words
    other_start = [["a", "b"], ["c", "d"]]
    assert alt_text(hash_figure({"no broadcast": other_start})).startswith(
        "No broadcast: 2 models from the start."
    )
    uneven = [["a", "b", "d"], ["a", "b", "e"], ["a", "c", "f"]]
    assert models_per_step(uneven) == [1, 2, 3]
    assert alt_text(hash_figure({"x": uneven})).startswith("X: 2 to 3 models from step 1 on.")


def test_equal_hashes_have_one_colour_and_hatch_and_different_ones_do_not() -> None:
    (ax,) = hash_figure({"no wrapper": APART}).axes
    looks = [(patch.get_facecolor(), patch.get_hatch()) for patch in ax.patches]
    assert looks[0] == looks[1]  # step 0
    assert looks[2][0] != looks[3][0]  # step 1
    assert looks[2][1] != looks[3][1]
    assert [text.get_text() for text in ax.texts] == ["aaaa", "aaaa", "b000", "b000", "c000", "c000"]


def test_gradients_of_one_layer_are_one_stretch_of_backward() -> None:
    assert layers_of(line()) == [("1", 5.0, 5.010), ("0", 5.010, 5.020)]


def test_the_time_line_counts_what_begins_early_and_says_what_is_left() -> None:
    words = alt_text(backward_figure([line(), line(1, late=0.001)]))
    assert words.startswith("Rank 0: 1 of 2 all-reduces begin while backward still computes. ")
    assert "Rank 0, in ms: layers 1 0.0 to 10.0, 0 10.0 to 20.0; bucket 0 of 2.00 MB 10.0 to 14.0" in words
    assert "Left after the last gradient: rank 0 7.0 ms, rank 1 8.0 ms." in words


def test_the_same_values_give_the_same_picture() -> None:
    assert png(backward_figure([line()])) == png(backward_figure([line()]))
    assert png(hash_figure({"a": APART})) != png(hash_figure({"a": TOGETHER}))


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="runs is empty"):
        hash_figure({})
    with pytest.raises(ValueError, match="each with gradients and buckets"):
        backward_figure([BackwardLine(0, 1.0)])
