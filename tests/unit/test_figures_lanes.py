"""Lanes of ranks: the title of a panel names the late rank, gaps are drawn, alt text says the same."""

import pytest

from dtlab.figures.lanes import finding, lanes_figure
from dtlab.figures.style import alt_text, png
from dtlab.ranks.rank_state import Frame, RankState


def at(rank, operation, number, waits=True):
    stack = (Frame("train.py", 7, "step", "dist.all_reduce(x)"),)
    return RankState(rank, operation, number, completed=not waits, groups={"0": number}, stack=stack)


BEHIND = [at(0, "all_reduce", 3, waits=False), at(1, "all_reduce", 4)]
CROSSED = [at(0, "barrier", 2), at(1, "all_reduce", 2)]


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (BEHIND, "rank 0 is late"),
        (
            [at(0, "all_reduce", 1, waits=False), *BEHIND[1:], at(2, "all_reduce", 1, waits=False)],
            "ranks 0, 2 are late",
        ),
        (CROSSED, "ranks call different operations as number 2"),
        ([None, at(1, "all_reduce", 1)], "rank 0 is late"),
    ],
)
def test_the_finding_names_the_late_rank_or_the_disagreement(states, words):
    assert finding(states) == words


def test_a_panel_for_each_run_with_a_box_for_each_collective_and_each_gap():
    figure = lanes_figure({"one": BEHIND, "two": CROSSED})
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "one: rank 0 is late",
        "two: ranks call different operations as number 2",
    ]
    assert [len(axes.patches) for axes in figure.axes] == [2 * 4, 2 * 2]
    words = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert words[0].count("missing") == 1
    assert "missing" not in words[1]
    assert "waits in all_reduce #4" in words[0]
    assert "at train.py:7 in step" in words[0]


def test_alt_text_says_what_each_rank_is_in():
    words = alt_text(lanes_figure({"one": BEHIND}))
    assert "one: rank 0 is late (rank 0 last: all_reduce #3 at train.py:7 in step; rank 1 waits in" in words


def test_a_long_run_shows_its_last_collectives():
    (axes,) = lanes_figure({"long": [at(0, "all_reduce", 500), at(1, "all_reduce", 499, waits=False)]}).axes
    texts = [text.get_text() for text in axes.texts]
    assert "#500" in texts
    assert "#400" not in texts
    assert len(axes.patches) == 2 * 12


def test_the_same_states_give_the_same_picture():
    assert png(lanes_figure({"one": BEHIND})) == png(lanes_figure({"one": BEHIND}))


@pytest.mark.parametrize("runs", [{}, {"empty": []}])
def test_nothing_to_draw_is_refused(runs):
    with pytest.raises(ValueError, match="at least one run"):
        lanes_figure(runs)
