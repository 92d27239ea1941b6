"""Useful, redone and lost steps are counted and drawn; the interval figure names its lowest point."""

import pytest

from dtlab.diagnose.work import Attempt, kinds, read_attempts, totals
from dtlab.figures.interruptions import interval_figure, work_figure
from dtlab.figures.style import alt_text, png

KILLED = [Attempt(0, 37, (10, 20, 30)), Attempt(30, 60, (40, 50, 60))]


@pytest.mark.parametrize(
    ("attempts", "useful", "redone", "lost"),
    [
        ([Attempt(0, 60)], 60, 0, 0),
        ([Attempt(0, 37)], 0, 0, 37),  # gone, and nothing saved
        ([Attempt(0, 37, (30,))], 30, 0, 7),  # gone, but it could go on
        ([Attempt(0, 37), Attempt(0, 60)], 23, 37, 37),
        (KILLED, 53, 7, 7),
        ([Attempt(0, 32, (32,)), Attempt(32, 60)], 60, 0, 0),  # told, saved, left
        # twice killed: steps 30 to 35 are made three times, lost twice and kept once
        ([Attempt(0, 37, (30,)), Attempt(30, 35), Attempt(30, 60)], 53, 7, 12),
    ],
)
def test_what_became_of_the_steps(attempts, useful, redone, lost):
    assert totals(attempts, 60) == {"useful": useful, "redone": redone, "lost": lost}
    made = sum(attempt.end - attempt.first for attempt in attempts)
    assert useful + redone + lost == made
    assert [len(steps) for steps in kinds(attempts, 60)] == [a.end - a.first for a in attempts]


def test_a_log_is_read_attempt_by_attempt_and_a_torn_line_is_left_out(tmp_path):
    log = tmp_path / "work.log"
    log.write_text("start 0\nstep 1\nstep 2\nsaved 2\nstep 3\nstart 2\nstep 3\nstep 4\nst")
    assert read_attempts(log) == [Attempt(0, 3, (2,)), Attempt(2, 4)]


def test_each_run_has_a_lane_and_the_title_says_what_was_lost():
    figure = work_figure({"anew": [Attempt(0, 37), Attempt(0, 60)], "saved": KILLED}, 60)
    words = alt_text(figure)
    assert words.startswith("anew: 37 steps lost; saved: 7 steps lost.")
    assert "steps 0 to 37, then steps 30 to 60, to the end; 53 steps useful, 7 redone, 7 lost, 6" in words
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["anew", "saved"]
    assert [text.get_text() for text in axes.texts] == ["0 to 37", "0 to 60", "0 to 37", "30 to 60"]


def test_a_run_that_never_ended_is_said_so():
    assert "and it never ended" in alt_text(work_figure({"gone": [Attempt(0, 37)]}, 60))


@pytest.mark.parametrize("runs", [{}, {"empty": []}, {"no step": [Attempt(0, 0)]}])
def test_nothing_to_draw_is_refused(runs):
    with pytest.raises(ValueError, match="at least one"):
        work_figure(runs, 60)


def test_the_title_names_the_best_interval_and_the_usual_one():
    words = alt_text(interval_figure(restart_minutes=0))
    assert words.startswith("Best: every 16 min, 4.1 % lost; every 30 min: 5.0 %.")
    assert "A save takes 19 s, an interruption comes every 6.7 h" in words


@pytest.mark.parametrize(
    "values",
    [
        {"state_gb": 1000.0, "write_gb_per_second": 0.05},  # a save takes 5.6 hours
        {"hosts": 64, "interruptions_per_hour": 1.0},
        {"state_gb": 0.5, "write_gb_per_second": 10.0, "interruptions_per_hour": 0.01},
    ],
)
def test_the_ends_of_the_controls_can_be_drawn(values):
    assert png(interval_figure(**values))


def test_the_same_values_give_the_same_picture():
    assert png(interval_figure()) == png(interval_figure())
    assert png(work_figure({"run": KILLED}, 60)) == png(work_figure({"run": KILLED}, 60))
