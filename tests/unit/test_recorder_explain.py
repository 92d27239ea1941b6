"""What a set of rank states says about who is late."""

from dtlab.ranks.explain import explain
from dtlab.ranks.rank_state import Frame, RankState, own_frame
from dtlab.ranks.seeds import mix
from dtlab.ranks.versions import differences

SLEEP = (Frame("/home/me/train.py", 12, "train", "time.sleep(60)"),)


def in_op(rank, operation, number, group="0", members=(), **more):
    return RankState(rank, operation, number, False, group, members, {"0": 0, group: number}, **more)


def after(rank, operation, number, **more):
    return RankState(rank, operation, number, True, groups={"0": number}, **more)


def test_lowest_sequence_is_late_and_its_line_is_shown():
    story = explain([in_op(0, "all_reduce", 4), after(1, "all_reduce", 3, stack=SLEEP)])
    assert story.late == (1,)
    assert str(story) == (
        "rank 1 of 2 is late: last operation all_reduce #3, at train.py:12 in train: time.sleep(60); "
        "rank 0 waits in all_reduce #4"
    )


def test_a_late_rank_may_itself_wait_in_another_operation():
    story = explain([in_op(0, "all_reduce", 9), in_op(1, "broadcast", 7), in_op(2, "all_reduce", 9)])
    assert story.late == (1,)
    assert "rank 1 of 3 is late: waits in broadcast #7" in story.text


def test_several_late_ranks_and_only_the_last_of_a_chain():
    states = [in_op(0, "barrier", 5), after(1, "barrier", 3), after(2, "barrier", 4), after(3, "barrier", 3)]
    assert explain(states).late == (1, 3)


def test_different_operations_under_one_number_are_a_mismatch():
    story = explain([in_op(0, "all_reduce", 4), in_op(1, "barrier", 4)])
    assert story.late == ()
    assert "different operations as number 4" in story.text


def test_same_operation_with_other_sizes_is_a_mismatch():
    story = explain([in_op(0, "all_reduce", 4, sizes=((3,),)), in_op(1, "all_reduce", 4, sizes=((5,),))])
    assert "different sizes" in story.text


def test_a_rank_that_got_through_with_other_sizes_is_not_late():
    through = after(0, "all_reduce", 4, sizes=((3,),))
    story = explain(
        [through, in_op(1, "all_reduce", 4, sizes=((5,),)), in_op(2, "all_reduce", 4, sizes=((5,),))]
    )
    assert story.late == ()
    assert "all_reduce #4 with different sizes (rank 0: [3]; rank 1: [5]; rank 2: [5])" in story.text


def test_other_sizes_in_an_operation_that_allows_them_are_no_mismatch():
    story = explain([in_op(0, "scatter", 4, sizes=((3,), (3,))), in_op(1, "scatter", 4, sizes=())])
    assert "different sizes" not in story.text


def test_only_members_of_the_group_can_be_late():
    waits = in_op(0, "all_reduce", 2, group="1", members=(0, 1))
    states = [waits, RankState(1, "barrier", 1, True, groups={"0": 1, "1": 1}), after(2, "barrier", 1)]
    story = explain(states)
    assert story.late == (1,)
    assert "rank 0 waits in all_reduce #2 of group 1" in story.text


def test_send_and_recv_have_no_number_so_who_does_not_wait_is_late():
    states = [RankState(0, "recv", None, False), after(1, "broadcast", 3, stack=SLEEP)]
    story = explain(states)
    assert story.late == (1,)
    assert "rank 0 waits in recv" in story.text


def test_everyone_in_send_is_a_standstill_without_a_late_rank():
    story = explain([RankState(rank, "send", None, False) for rank in range(2)])
    assert story.late == ()
    assert "every rank waits for another" in story.text


def test_rank_that_does_not_answer():
    story = explain([in_op(0, "all_reduce", 4), None])
    assert story.late == (1,)
    assert "rank 1 of 2 did not answer" in story.text


def test_nobody_waits():
    story = explain([after(0, "all_reduce", 4), after(1, "all_reduce", 4)])
    assert story.late == ()
    assert "no rank waits in a collective" in story.text


def test_rank_without_any_collective():
    story = explain([in_op(0, "all_reduce", 1), RankState(1, stack=SLEEP)])
    assert story.late == (1,)
    assert "no collective yet" in story.text


def test_state_survives_the_journey():
    state = in_op(1, "all_reduce", 2, members=(0, 1), sizes=((3, 4),), stack=SLEEP, seconds=1.5)
    assert RankState.from_json(state.to_json()) == state


def test_own_frame_skips_torch_and_import_machinery():
    stack = (
        *SLEEP,
        Frame("/venv/site-packages/torch/distributed/distributed_c10d.py", 3000, "all_reduce"),
        Frame("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"),
    )
    assert own_frame(stack) == SLEEP[0]
    assert own_frame(()) is None


def test_neighbouring_seeds_and_ranks_do_not_share_a_stream():
    values = {mix("rank", seed, rank) for seed in range(20) for rank in range(20)}
    assert len(values) == 400


def test_other_versions_name_the_rank_and_what_differs():
    base = {"torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.3"}
    assert differences([base, base]) is None
    story = differences([base, {**base, "nccl": "2.18.3"}, base])
    assert story == "rank 1 has nccl 2.18.3, the other ranks have 2.27.3"
    assert "rank 1 has cuda none, rank 0 has 12.8" in differences([base, {**base, "cuda": None}])
