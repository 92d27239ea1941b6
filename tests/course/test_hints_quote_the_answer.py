"""A check names a line of the reader's own function, never one of dtlab that the reader has not written."""

import math

import pytest
import torch.distributed as dist

from dtlab import launch
from dtlab.course import CheckFailed, check, clinic, exercise
from dtlab.course.checks import _EXERCISES
from dtlab.course.lessons.on_ranks import SAME_CALLS, stuck
from dtlab.ranks import leaving
from dtlab.ranks.rank_state import Frame, RankState
from dtlab.ranks.report import RankError, RankReport


def refused(name, answer):
    with pytest.raises(CheckFailed) as caught:
        check(name, answer)
    return str(caught.value)


def skips_alone(w, weight, loss, gradient):
    if not math.isfinite(loss):
        return
    dist.all_reduce(gradient)
    weight -= 0.5 * gradient / w.size


def test_a_collective_that_one_rank_left_out_is_told_with_both_ranks():
    said = refused("12-skip", skips_alone)
    assert said.startswith(
        "rank 0 left out a collective that rank 1 made: rank 1 waits in all_reduce #4, at line "
    )
    assert "`dist.all_reduce(gradient)`" in said
    assert "loop" not in said
    assert "let the ranks agree outside of it" in said


LEAVING = Frame(leaving.__file__, 60, "wait_for_all", "time.sleep(pause)")
TRAINER = Frame(clinic.__file__, 64, "skips_a_batch", "with world(timeout=patience) as w:")
STEP = Frame("/home/reader/cell.py", 3, "step", "dist.all_reduce(gradient)")


def standing(*states):
    reports = [RankReport(rank, "stopped", state=state) for rank, state in enumerate(states)]
    error = RankError("told", rank=0, world_size=2, message="told", reports=reports)
    return stuck(error, 8, SAME_CALLS)


def test_a_rank_that_has_left_is_told_when_time_runs_out_first():
    said = standing(
        RankState(0, "all_reduce", 3, True, stack=(TRAINER, LEAVING)),
        RankState(1, "all_gather", 4, False, stack=(TRAINER, STEP)),
    )
    assert said.startswith("rank 0 left out a collective that rank 1 made: rank 1 waits in all_gather #4")
    assert "line 64" not in said


def test_a_message_that_nobody_sent_is_no_collective():
    said = standing(
        RankState(0, stack=(TRAINER, LEAVING)), RankState(1, "recv", None, False, stack=(TRAINER, STEP))
    )
    assert said.startswith("the ranks wait for each other: rank 1 in recv, at")


def test_a_rank_that_is_slow_to_begin_left_nothing_out():
    said = standing(
        RankState(0, stack=(TRAINER,)), RankState(1, "all_reduce", 1, False, stack=(TRAINER, STEP))
    )
    assert said.startswith("the ranks wait for each other: rank 1 in all_reduce, at `dist.all_reduce")
    assert "line 64" not in said


@pytest.fixture
def on_a_trainer():
    """A check that hands the answer to a trainer of lesson 12, and says whatever the ranks fail with."""

    @exercise("99-quotes", todo="return the items", hints=("a", "b"))
    def _check(checks, answer):
        launch(clinic.own_vocabulary, 2, answer, timeout=60, echo=False)

    yield
    _EXERCISES.pop("99-quotes")


@pytest.mark.usefixtures("on_a_trainer")
def test_a_value_that_the_check_cannot_use_is_told_without_the_checks_own_line():
    said = refused("99-quotes", lambda rows: 7)
    assert said.startswith("rank 0 of 2 failed: TypeError: object of type 'int' has no len()")
    assert "what the answer returns" in said
    assert "clinic.py" not in said
    assert "-->" not in said


def wrong_key(rows):
    return rows["tea"]


@pytest.mark.usefixtures("on_a_trainer")
def test_an_error_in_the_answer_shows_the_answers_line_alone():
    said = refused("99-quotes", wrong_key)
    (marked,) = [line for line in said.split("\n") if line.strip().startswith("-->")]
    assert marked.endswith('return rows["tea"]')
    assert "clinic.py" not in said
