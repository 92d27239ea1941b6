"""The figures of samplers: what their titles say is what was counted, alt text, refusals, the explorer."""

import pytest

from dtlab.data.coverage import seen
from dtlab.figures.samplers import coverage_figure, order_figure, repeats
from dtlab.figures.style import alt_text, png
from dtlab.widgets.samplers import coverage_explorer, seen_until


@pytest.mark.parametrize(
    ("ids_by_rank", "finding"),
    [
        ([[0, 2], [1, 3]], "every sample once"),
        ([[0, 1, 2, 3], [3, 2, 1, 0]], "every sample twice"),
        ([[0, 1, 2, 3]] * 3, "every sample 3 times"),
        ([[0, 1], [1, 2]], "1 of 4 samples more than once, 1 never"),
        ([[0, 0, 0], []], "1 of 4 samples more than once, 3 never"),
        ([[], []], "0 of 4 samples more than once, 4 never"),
    ],
)
def test_the_title_says_who_was_seen_twice_and_never(ids_by_rank, finding):
    figure = coverage_figure(seen(ids_by_rank, range(4)), "Two ranks", "step 1 of 2")
    assert alt_text(figure).startswith(f"Two ranks, step 1 of 2: {finding}. ")


def test_alt_text_names_samples_and_rows_of_each_rank():
    words = alt_text(coverage_figure(seen([[7, 7], [5]], [5, 6, 7]), "Run"))
    assert "rank 0 saw 2 rows, 1 different; rank 1 saw 1 rows, 1 different" in words
    assert "once: 5; more than once: 7; never: 6." in words


def test_the_grid_has_a_cell_for_every_rank_and_sample_and_a_row_for_all():
    (axes,) = coverage_figure(seen([[0, 1], [1, 1]], range(3)), "Run").axes
    assert len(axes.patches) == (2 + 1) * 3
    assert [text.get_text() for text in axes.texts] == ["2", "3"]  # rank 1 twice; all together three times
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1", "all ranks"]


@pytest.mark.parametrize("samples", [0, 101])
def test_a_grid_that_cannot_be_read_is_refused(samples):
    with pytest.raises(ValueError, match=f"{samples} samples: the grid shows 1 to 100"):
        coverage_figure(seen([[]], range(samples)), "Run")


def test_orders_that_repeat_are_told_from_new_ones():
    words = alt_text(order_figure({"alike": [[2, 0, 1], [2, 0, 1]], "new": [[2, 0, 1], [1, 0, 2]]}))
    assert words.startswith("alike: the order repeats; new: a new order. ")
    assert "new: epoch 0: 2, 0, 1; epoch 1: 1, 0, 2." in words
    assert repeats([[1, 2]])
    assert not repeats([[1, 2], [1, 2], [2, 1]])


@pytest.mark.parametrize("orders", [{}, {"none": []}, {"uneven": [[0, 1], [0]]}])
def test_orders_that_cannot_be_compared_are_refused(orders):
    with pytest.raises(ValueError, match="at least one"):
        order_figure(orders)


def test_the_same_counts_give_the_same_picture():
    def draw(ids_by_rank):
        return png(coverage_figure(seen(ids_by_rank, range(60)), "Run"))

    assert draw([[0, 1], [1]]) == draw([[1, 0], [1]])
    assert draw([[0, 1], [1]]) != draw([[0, 1], [2]])
    assert png(order_figure({"a": [list(range(70))]})) == png(order_figure({"a": [list(range(70))]}))


def test_steps_are_counted_from_the_start_of_each_rank():
    by_rank = [[[0, 1], [2]], [[3], []]]
    assert seen_until(by_rank, range(5), 1).never.tolist() == [2, 4]
    assert seen_until(by_rank, range(5), 9).never.tolist() == [4]


def test_the_explorer_shows_its_figure_still_without_a_front_end(capsys):
    runs = {"split": [[[0], [2]], [[1], [3]]], "alike": [[[0, 1], [2, 3]]] * 2}
    coverage_explorer(runs, range(4), start=1)
    assert "split, step 1 of 2: 0 of 4 samples more than once, 2 never." in capsys.readouterr().out
    coverage_explorer(runs, range(4))
    assert "split: every sample once." in capsys.readouterr().out
