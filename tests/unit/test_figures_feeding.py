"""The figures of feeding: what the titles say is what was read, alt text, refusals."""

import pytest

from dtlab.figures.feeding import finding, rates_figure, readers_figure, rows_by_rank
from dtlab.figures.style import alt_text, png

FILES = [[100, 50], [100]]
ROWS = [100, 50, 100]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({(0, 0): [0], (1, 0): [1, 2]}, "every group read once; 100 to 150 rows a rank"),
        ({(0, 0): [0, 1, 2], (0, 1): [0, 1, 2]}, "every group read 2 times; 500 rows a rank"),
        ({(0, 0): [0, 1], (1, 0): []}, "0 groups read again, 1 never; 0 to 150 rows a rank"),
        ({(0, 0): [0, 0, 1], (1, 0): [1]}, "2 groups read again, 1 never; 50 to 250 rows a rank"),
    ],
)
def test_the_title_of_a_run_says_what_was_read_again_and_never(groups, said):
    assert finding(groups, ROWS) == said
    alone = readers_figure({"a run": groups}, FILES)
    assert alt_text(alone).startswith(f"a run: {said}. rank 0 worker 0: groups 0")
    two = readers_figure({"a run": groups, "another": {(0, 0): []}}, FILES)
    assert two.axes[0].get_title(loc="left") == f"a run: {said}"
    assert f"a run: {said}. rank 0 worker 0: groups 0" in alt_text(two)
    once = "a run" if "read once" in said else "in none of these runs"
    assert alt_text(two).startswith(f"Every row group read once: {once}. ")


def test_rows_of_the_workers_of_a_rank_are_added_up():
    assert rows_by_rank({(1, 0): [2], (0, 1): [1], (0, 0): [0]}, ROWS) == {0: 150, 1: 100}


def test_alt_text_names_the_groups_of_every_reader():
    words = alt_text(readers_figure({"a": {(0, 0): [0, 1, 2], (1, 0): []}}, FILES))
    assert "rank 0 worker 0: groups 0 to 2; rank 1 worker 0: nothing." in words
    assert "groups 0, 2." in alt_text(readers_figure({"a": {(0, 0): [2, 0]}}, FILES))


def test_there_is_a_box_for_every_group_of_a_reader_and_one_for_all_together():
    (axes,) = readers_figure({"a": {(0, 0): [0, 2, 2], (0, 1): []}}, FILES).axes
    assert len(axes.patches) == 2 + 3
    assert [text.get_text() for text in axes.texts] == ["2", "2"]  # group 2, in its line and in that of all
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["rank 0 worker 0", "rank 0 worker 1", "all"]
    (axes,) = readers_figure({"a": {(0, 0): [0], (1, 0): [1, 2]}}, FILES).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1", "all"]


@pytest.mark.parametrize("runs", [{}, {"empty": {}}])
def test_a_run_without_readers_is_refused(runs):
    with pytest.raises(ValueError, match="at least one run with one reader"):
        readers_figure(runs, FILES)


def test_a_group_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="a: row group 3 is not among the 3 given"):
        readers_figure({"a": {(0, 0): [0, 3]}}, FILES)
    with pytest.raises(ValueError, match="at least one row group"):
        readers_figure({"a": {(0, 0): []}}, [])


def test_rates_are_compared_with_the_first():
    figure = rates_figure({"as printed": 1000.0, "sampler": 1900.0, "pinning": 990.0}, cores=2)
    assert alt_text(figure).startswith("sampler: 1.9x the rows per second, on 2 cores. ")
    assert "as printed 1,000 (1.00x); sampler 1,900 (1.90x); pinning 990 (0.99x)." in alt_text(figure)
    (axes,) = figure.axes
    assert [text.get_text().strip() for text in axes.texts] == ["1.00x", "1.90x", "0.99x"]


def test_the_best_change_is_named_also_when_nothing_helped():
    assert alt_text(rates_figure({"a": 100.0, "b": 90.0, "c": 80.0}, cores=1)).startswith("b: 0.9x")


@pytest.mark.parametrize("rates", [{"a": 1.0}, {"a": 1.0, "b": 0.0}])
def test_rates_that_cannot_be_compared_are_refused(rates):
    with pytest.raises(ValueError, match="give two or more, each above 0"):
        rates_figure(rates, cores=2)


def test_the_same_reads_give_the_same_picture():
    def draw(groups):
        return png(readers_figure({"a": groups}, FILES))

    assert draw({(0, 0): [0, 1]}) == draw({(0, 0): [1, 0]})
    assert draw({(0, 0): [0, 1]}) != draw({(0, 0): [0]})
