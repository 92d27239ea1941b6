"""The figures of learning rates and losses: their titles say what was measured, alt text, refusals."""

import math

import pytest

from dtlab.figures.schedules import (
    jumps,
    losses_figure,
    losses_finding,
    rates_figure,
    rates_finding,
    raw_loss_figure,
)
from dtlab.figures.style import alt_text, png
from dtlab.widgets.schedules import rates_explorer


@pytest.mark.parametrize(
    ("used", "finding"),
    [
        ({1: [0.1, 0.2], 4: [0.1, 0.2]}, "the same on 1 and 4 ranks, and right"),
        ({1: [0.1, 0.1], 2: [0.1, 0.1]}, "the same on 1 and 2 ranks; 0.50x right at step 1"),
        (
            {1: [0.1, 0.2], 2: [0.1, 0.15]},
            "differs by ranks; on 2 ranks 0.75x right at step 1",
        ),
        ({2: [0.05, 0.2]}, "the same on 2 ranks; 0.50x right at step 0"),
    ],
)
def test_the_title_says_whether_ranks_matter_and_where_the_rate_is_most_wrong(used, finding):
    assert rates_finding(used, [0.1, 0.2]) == finding
    assert alt_text(rates_figure("Cosine", used, [0.1, 0.2])).startswith(f"Cosine: {finding}. ")


def test_the_legend_stands_outside_the_curves():
    waves = {n: [0.1 * (1 + math.cos(math.pi * n * step / 50)) for step in range(51)] for n in (1, 2, 4)}
    figure = rates_figure("Cosine", waves, waves[1])
    png(figure)  # lays the figure out
    (axes,), (legend,) = figure.axes, figure.legends
    assert axes.get_legend() is None
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_a_rate_where_none_was_meant_is_not_a_ratio():
    assert "far too high at step 1" in rates_finding({4: [0.1, 0.1]}, [0.1, 0.0])


@pytest.mark.parametrize(("used", "right"), [({}, [0.1]), ({1: [0.1]}, [0.1, 0.2]), ({1: []}, [])])
def test_rates_that_cannot_be_compared_are_refused(used, right):
    with pytest.raises(ValueError, match="at least one world size"):
        rates_figure("Cosine", used, right)


def test_a_slow_trend_is_no_jump():
    assert jumps([1.0, 2.0, 1.0, 2.0]) == 1.0
    assert jumps([3.0, 2.999, 2.998]) == pytest.approx(0.001)
    with pytest.raises(ValueError, match="1 losses"):
        jumps([1.0])


def test_the_raw_loss_is_compared_with_the_mean_of_all_ranks():
    by_rank = [[1.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]]
    words = alt_text(raw_loss_figure(by_rank))
    assert words.startswith("Rank 0's own loss jumps 2.0x as far as the mean of 2 ranks. ")
    assert "between 1.00 and 3.00; the mean of 2 ranks, thick, between 1.50 and 2.50" in words
    with pytest.raises(ValueError, match="1 ranks"):
        raw_loss_figure(by_rank[:1])


@pytest.mark.parametrize(("bad", "end"), [(math.nan, "NaN"), (math.inf, "inf"), (1e9, "1e+09")])
def test_a_run_that_leaves_the_chart_is_marked_with_its_step(bad, end):
    figure = losses_figure({"without": [0.7, 0.8, bad, bad], "with": [0.7, 0.6, 0.5, 0.4]}, 0.6)
    words = alt_text(figure)
    assert f"without: 0.70 at first, leaves the chart at step 2 and ends as {end}." in words
    assert "with: 0.70 at first, highest 0.70 at step 0, 0.40 at the end." in words
    assert [text.get_text() for text in figure.axes[0].texts] == [f"without: {end}"]


def test_the_title_names_unstable_runs_and_how_far_they_go():
    hump, stable = [0.5, 4.0, 0.5], [0.5, 0.7, 0.5]
    assert losses_finding({"hump": hump, "stable": stable}, 0.5) == "hump reaches 8x the guess"
    assert losses_finding({"lost": [0.5, 9.0, math.nan]}, 0.5) == "lost ends as NaN"
    assert losses_finding({"stable": stable}, 0.5) == "Every run stays below 1.6x the guess"


def test_runs_are_needed():
    with pytest.raises(ValueError, match="at least one"):
        losses_figure({}, 1.0)


def test_a_run_that_starts_off_the_chart_is_drawn():
    assert "leaves the chart at step 0" in alt_text(losses_figure({"lost": [99.0, 99.0]}, 0.6))


def test_the_same_numbers_give_the_same_picture():
    def draw(rate):
        return png(rates_figure("Cosine", {1: [0.1, rate], 2: [0.1, rate]}, [0.1, 0.2]))

    assert draw(0.2) == draw(0.2)
    assert draw(0.2) != draw(0.1)


def test_the_explorer_starts_where_it_is_told_without_a_front_end(capsys):
    runs = {"good": {1: [0.1, 0.2]}, "halved": {1: [0.1, 0.1]}}
    rates_explorer(runs, {name: [0.1, 0.2] for name in runs}, start="halved")
    assert "halved: the same on 1 rank; 0.50x right at step 1." in capsys.readouterr().out
    rates_explorer(runs, {name: [0.1, 0.2] for name in runs})
    assert "good: the same on 1 rank, and right." in capsys.readouterr().out
