"""The figures of a model cut over ranks: findings computed from what is drawn, words for all, refusals."""

import pytest

from dtlab.figures.sharding import cut_figure, shard_load_figure, table_bytes_figure
from dtlab.figures.style import alt_text, png


def test_a_pair_is_drawn_with_a_part_for_each_rank_and_its_two_messages() -> None:
    figure = cut_figure(3)
    words = alt_text(figure)
    assert "A, cut by columns into 3 parts" in words
    assert "B, cut by rows into 3 parts" in words
    (ax,) = figure.axes
    drawn = [text.get_text() for text in ax.texts]
    assert [drawn.count(str(part)) for part in range(4)] == [3, 3, 3, 0]  # in A, in the hidden values, in B
    assert drawn.count("forward:\nall-reduce") == drawn.count("backward:\nall-reduce") == 1


def test_parts_of_b_are_one_above_the_other_and_parts_of_a_side_by_side() -> None:
    (ax,) = cut_figure(2).axes
    filled = [patch for patch in ax.patches if getattr(patch, "get_fill", lambda: False)()]
    first, second, third = (filled[start : start + 2] for start in (1, 3, 5))  # A, hidden values, B; x is 0
    for left, right in (first, second):
        assert left.get_y() == right.get_y()
        assert left.get_x() < right.get_x()
    upper, lower = third
    assert upper.get_x() == lower.get_x()
    assert upper.get_y() > lower.get_y()


def test_the_bytes_of_a_table_are_the_plans_and_measured_ones_are_marked() -> None:
    figure = table_bytes_figure(measured={"row_wise": 52_248, "data_parallel, dense": 96_000_000})
    words = alt_text(figure)
    assert words.startswith("data_parallel, dense: 1,838 times the bytes of row_wise. ")
    assert "data_parallel, dense 96 MB, measured 96 MB" in words
    assert "row_wise_cyclic 52.2 kB;" in words
    (ax,) = figure.axes
    assert ax.get_xscale() == "log"
    assert [line.get_xdata()[0] for line in ax.lines] == [52_248, 96_000_000]


def test_a_small_table_is_best_replicated_and_the_title_says_so() -> None:
    words = alt_text(table_bytes_figure(rows=100, samples=4096))
    assert " times the bytes of data_parallel, dense. " in words


def test_loads_are_compared_with_their_own_mean() -> None:
    words = alt_text(shard_load_figure({"blocks": [90, 10, 10, 10], "every n-th row": [30, 30, 31, 29]}))
    assert words.startswith("Busiest rank over mean: blocks 3.0, every n-th row 1.0. ")
    assert "blocks: 90, 10, 10, 10; busiest 3.00 times the mean." in words


def test_the_same_values_give_the_same_picture() -> None:
    assert png(cut_figure(2)) == png(cut_figure(2))
    assert png(cut_figure(2)) != png(cut_figure(4))
    assert png(shard_load_figure({"a": [1, 2]})) != png(shard_load_figure({"a": [2, 1]}))


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="ranks is 1"):
        cut_figure(1)
    with pytest.raises(ValueError, match="the plan has no such way"):
        table_bytes_figure(measured={"rows": 1})
    with pytest.raises(ValueError, match="at least one layout"):
        shard_load_figure({})
    with pytest.raises(ValueError, match="at least one layout"):
        shard_load_figure({"blocks": [0, 0]})
