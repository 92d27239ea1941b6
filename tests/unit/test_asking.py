"""When a time is up, only ranks that all stand inside a collective are ended without a second to clean up."""

from types import SimpleNamespace

import torch.distributed.distributed_c10d as c10d

from dtlab.ranks.asking import deadlocked
from dtlab.ranks.rank_state import Frame, RankState

INSIDE = Frame(c10d.__file__, 1, "all_reduce", "work.wait()")
AT_WORK = Frame("train.py", 7, "step", "time.sleep(1)")


def a_rank(stack, completed=False, gone=False, returned_at=None):
    state = RankState(0, operation="all_reduce", sequence=1, completed=completed, stack=stack)
    return SimpleNamespace(state=state, gone=gone, returned_at=returned_at)


def test_ranks_that_all_stand_inside_a_collective_are_deadlocked():
    assert deadlocked([a_rank((AT_WORK, INSIDE)), a_rank((INSIDE,))])


def test_a_rank_at_work_while_its_collective_is_under_way_is_not():
    assert not deadlocked([a_rank((AT_WORK, INSIDE)), a_rank((AT_WORK,))])


def test_a_rank_whose_collective_is_over_or_that_did_not_answer_is_not():
    assert not deadlocked([a_rank((INSIDE,), completed=True)])
    silent = a_rank((INSIDE,))
    silent.state = None
    assert not deadlocked([a_rank((INSIDE,)), silent])


def test_ranks_that_have_ended_do_not_count():
    assert deadlocked([a_rank((INSIDE,)), a_rank((AT_WORK,), gone=True), a_rank((AT_WORK,), returned_at=1.0)])
