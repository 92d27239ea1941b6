"""Who goes on at a rung, what is paid, and what lesson 15's recorded curves say of grids and patience."""

import math

import pytest

from dtlab.course.recorded import LOOKS_PER_EPOCH, provenance, trials
from dtlab.errors import UserError
from dtlab.figures.tuning import stop_look
from dtlab.tune.rungs import brackets, halve
from dtlab.tune.space import Choice
from dtlab.tune.study import Judge, StudyPlan

CURVES = {one.name: one.auc for one in trials()}
BEST = max(CURVES, key=lambda name: max(CURVES[name]))


def at_look(look):
    return max(CURVES, key=lambda name: CURVES[name][look - 1])


def test_recorded_curves_say_how_they_were_made_and_are_whole():
    assert len(CURVES) == len(trials()) == 27
    assert all(len(one.auc) == len(one.samples) == 27 for one in trials())
    about = provenance()
    assert len(about["commit"]) == 40
    epoch = about["training rows"]
    for one in trials():
        assert all(
            abs(seen - epoch * look / LOOKS_PER_EPOCH) < epoch / 6 for look, seen in enumerate(one.samples, 1)
        )


def test_a_grid_of_short_trials_and_one_that_takes_last_weights_pick_another_run_than_the_best():
    assert at_look(1) != BEST
    assert at_look(27) != BEST
    assert max(CURVES[BEST]) > max(max(CURVES[at_look(1)]), max(CURVES[at_look(27)])) + 0.02


def test_a_ninth_of_the_looks_finds_the_best_of_the_grid():
    survivors, looks = halve(CURVES, (1, 3, 9))
    assert [len(names) for names in survivors] == [9, 3, 1]
    assert survivors[-1] == [BEST]
    assert sum(looks.values()) == 81 == sum(map(len, CURVES.values())) // 9


def test_patience_of_ten_ships_weights_that_are_far_from_the_best():
    values = CURVES[BEST]
    ends = {patience: values[stop_look(values, patience) - 1] for patience in (3, 10)}
    assert ends[10] < ends[3] < max(values) - 0.05


def test_a_lost_trial_is_last_and_equals_keep_their_order():
    curves = {"a": [0.9, math.nan], "b": [0.5, 0.6], "c": [0.6, 0.5], "d": [0.1, 0.2]}
    assert halve(curves, (2,), keep=2) == ([["b", "c"]], {"a": 2, "d": 2, "b": 2, "c": 2})


@pytest.mark.parametrize(
    ("rungs", "keep", "word"),
    [((), 3, "rungs"), ((3, 1), 3, "rungs"), ((0, 1), 3, "rungs"), ((28,), 3, "27"), ((1,), 1, "keep")],
)
def test_rungs_that_cannot_be_are_refused(rungs, keep, word):
    with pytest.raises(UserError, match=word):
        halve(CURVES, rungs, keep)


def test_brackets_follow_the_formula_of_hyperband():
    # By the formula of Li et al. 2018: ceil((s_max + 1) / (s + 1) * 3^s) trials, here for 81 looks.
    assert [next(count for count, _ in rungs) for rungs in brackets(81)] == [81, 34, 15, 8, 5]
    assert brackets(81)[0] == [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)]


def test_the_judge_holds_a_trials_best_against_the_others_also_after_a_restart(tmp_path):
    plan = StudyPlan(folder=tmp_path, space={"name": Choice(("a", "b"))}, rungs=9)
    study = plan.open()
    trial = study.ask()
    judge = Judge(plan, trial._trial_id, samples_per_rung=10)
    for samples, value in ((10, 0.6), (20, 0.8), (30, 0.7)):
        judge(samples, value)
    again = Judge(plan, trial._trial_id, samples_per_rung=10)
    again(40, 0.5)
    again(50, math.nan)
    reported = study.get_trials()[0].intermediate_values
    assert [reported[rung] for rung in (1, 2, 3, 4)] == [0.6, 0.8, 0.8, 0.8]
    assert math.isnan(reported[5])
