"""The global order, its tails, its weights and its state: no processes."""

import numpy as np
import pytest

from dtlab.data.order import global_order, local_rows
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.errors import DtlabWarning, UserError


def epoch_of(sampler):
    return [batch.tolist() for batch in sampler]


def flat(batches):
    return [index for batch in batches for index in batch]


@pytest.mark.parametrize("tail", ["keep", "drop"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_interleaved_ranks_give_one_order_on_every_world_size(world_size, tail):
    alone = GlobalBatchSampler(103, 10, rank=0, world_size=1, seed=5, tail=tail)
    ranks = [
        GlobalBatchSampler(103, 10, rank=rank, world_size=world_size, seed=5, tail=tail)
        for rank in range(world_size)
    ]
    for _ in range(2):
        for whole, *parts in zip(alone, *ranks, strict=True):
            joined = np.empty_like(whole)
            for rank, part in enumerate(parts):
                joined[rank::world_size] = part
            assert joined.tolist() == whole.tolist()


@pytest.mark.parametrize("num_samples", [0, 1, 3, 10, 21, 24])
def test_an_uneven_tail_is_kept_without_padding_and_step_counts_agree(num_samples):
    ranks = [GlobalBatchSampler(num_samples, 8, rank=rank, world_size=4, seed=1) for rank in range(4)]
    epochs = [epoch_of(sampler) for sampler in ranks]
    assert sorted(flat(flat(epochs))) == list(range(num_samples))
    assert {len(batches) for batches in epochs} == {-(-num_samples // 8)} == {len(ranks[0])}
    for step in range(len(ranks[0])):
        assert ranks[0].counts(step) == [len(batches[step]) for batches in epochs]


def test_a_dropped_tail_is_counted_on_the_whole_set_and_not_per_rank():
    ranks = [GlobalBatchSampler(22, 4, rank=rank, world_size=2, tail="drop") for rank in range(2)]
    assert [sampler.dropped for sampler in ranks] == [2, 2]
    seen = flat(flat([epoch_of(sampler) for sampler in ranks]))
    assert len(seen) == len(set(seen)) == 20
    # Which samples are dropped changes from epoch to epoch.
    again = flat(flat([epoch_of(sampler) for sampler in ranks]))
    assert set(range(22)) - set(seen) != set(range(22)) - set(again)


def test_epochs_differ_and_repeat_with_the_seed():
    first, second = GlobalBatchSampler(22, 4, seed=3), GlobalBatchSampler(22, 4, seed=3)
    orders = [flat(epoch_of(first)) for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert orders == [flat(epoch_of(second)) for _ in range(3)]
    assert orders[1] != flat(epoch_of(GlobalBatchSampler(22, 4, seed=4)))


def test_seed_and_epoch_are_not_added():
    one = global_order(50, seed=0, epoch=1)
    assert one.tolist() != global_order(50, seed=1, epoch=0).tolist()


def test_skipped_batches_are_skipped_once_after_a_resume_in_mid_epoch():
    run = GlobalBatchSampler(20, 4, seed=2)
    walk = iter(run)
    for _ in range(3):
        next(walk)
    resumed = GlobalBatchSampler(20, 4, seed=99)
    resumed.load_state_dict(run.state_dict())
    assert resumed.steps_left == 2
    assert [len(epoch_of(resumed)) for _ in range(3)] == [2, 5, 5]


@pytest.mark.parametrize("stop", [0, 1, 3, 5])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (4, 1), (1, 4)])
def test_the_epoch_after_a_resume_is_that_of_the_uninterrupted_run(stop, before, after):
    def orders(sampler, epochs):
        return [[global_batch.tolist() for global_batch in one_epoch(sampler)] for _ in range(epochs)]

    def one_epoch(sampler):
        batches = list(sampler.global_batches())
        for _ in sampler:
            pass
        return batches

    whole = orders(GlobalBatchSampler(23, 5, seed=7), 3)
    first = GlobalBatchSampler(23, 5, rank=before - 1, world_size=before, seed=7)
    for _, _ in zip(range(stop), first, strict=False):
        pass
    second = GlobalBatchSampler(23, 5, rank=0, world_size=after)
    second.load_state_dict(first.state_dict())
    if stop == 5:  # the state after the last batch is the start of the next epoch
        assert second.state_dict() == {"seed": 7, "epoch": 1, "position": 0}
        assert orders(second, 2) == whole[1:]
    else:
        assert orders(second, 3) == [whole[0][stop:], *whole[1:]]
    assert whole[0] != whole[1]


def test_resuming_with_another_global_batch_goes_on_with_the_next_sample():
    run = GlobalBatchSampler(30, 8, seed=1)
    walk = iter(run)
    seen = next(walk).tolist() + next(walk).tolist()
    other = GlobalBatchSampler(30, 5)
    other.load_state_dict(run.state_dict())
    assert other.steps_left == 3
    assert sorted(seen + flat(epoch_of(other))) == list(range(30))


def test_set_epoch_with_the_current_epoch_keeps_the_position():
    sampler = GlobalBatchSampler(20, 4)
    sampler.load_state_dict({"seed": 0, "epoch": 2, "position": 12})
    sampler.set_epoch(2)
    assert sampler.steps_left == 2
    sampler.set_epoch(3)
    assert sampler.steps_left == 5


def test_the_number_of_samples_of_a_step_is_known_without_a_message():
    sampler = GlobalBatchSampler(10, 4, rank=1, world_size=4)
    sizes = [(sampler.last_size, sampler.last_counts) for _ in sampler]
    assert sizes == [(4, [1, 1, 1, 1]), (4, [1, 1, 1, 1]), (2, [1, 1, 0, 0])]
    with pytest.raises(UserError, match="step 3 is outside the epoch's 3 steps"):
        sampler.counts(3)


def test_weights_draw_with_replacement_in_proportion():
    weights = np.array([0.0, 1.0, 3.0] + [0.0] * 3997)
    drawn = np.array(flat(epoch_of(GlobalBatchSampler(4000, 100, seed=1, weights=weights))))
    counts = np.bincount(drawn, minlength=4000)
    assert len(drawn) == 4000
    assert counts[1] + counts[2] == 4000
    assert abs(counts[2] / 4000 - 0.75) < 0.05  # seven standard deviations


def test_weighted_order_is_the_same_on_every_world_size():
    weights = np.arange(40) % 5
    alone = GlobalBatchSampler(40, 8, rank=0, world_size=1, weights=weights)
    third = GlobalBatchSampler(40, 8, rank=2, world_size=3, weights=weights)
    assert [batch[2::3].tolist() for batch in alone] == epoch_of(third)


def test_a_second_loop_over_one_sampler_is_refused_instead_of_sharing_its_position():
    sampler = GlobalBatchSampler(20, 4)
    first = iter(sampler)
    next(first)
    second = iter(sampler)
    next(second)
    with pytest.raises(UserError, match="a second loop"):
        next(first)
    sampler.set_epoch(5)
    with pytest.raises(UserError, match="set_epoch"):
        next(second)


def test_leaving_a_loop_early_goes_on_at_the_next_batch():
    sampler = GlobalBatchSampler(20, 4, shuffle=False)
    for batch in sampler:
        if batch[0] == 4:
            break
    assert epoch_of(sampler) == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]


def test_local_rows_of_many_steps_are_those_of_each_step():
    order = np.random.default_rng(0).permutation(37)
    for world_size in (1, 2, 3, 5):
        for rank in range(world_size):
            rows, sizes = local_rows(order, 8, rank, world_size)
            parts = [order[start : start + 8][rank::world_size] for start in range(0, 37, 8)]
            assert sizes == [len(part) for part in parts]
            assert rows.tolist() == np.concatenate(parts).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": -1}, "num_samples is -1"),
        ({"global_batch": 0}, "global_batch is 0"),
        ({"global_batch": 2.5}, "global_batch is 2.5"),
        ({"seed": -1}, "seed is -1"),
        ({"rank": 2, "world_size": 2}, "rank 2 is not below world_size 2"),
        ({"rank": 1}, "give both"),
        ({"tail": "pad"}, "tail is 'pad'"),
        ({"global_batch": 50, "tail": "drop"}, "leaves nothing of 20 samples"),
        ({"weights": [1.0] * 19}, r"weights has the shape \(19,\)"),
        ({"weights": [1.0] * 19 + [-1.0]}, r"weights\[19\] is -1.0"),
        ({"weights": [float("nan")] * 20}, r"weights\[0\] is nan"),
        ({"weights": [0.0] * 20}, "weights are all 0"),
        ({"weights": [1.0] * 20, "shuffle": False}, "shuffle is False"),
    ],
)
def test_bad_arguments_are_named_in_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        GlobalBatchSampler(**{"num_samples": 20, "global_batch": 4, **arguments})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"seed": 0, "epoch": 0}, "needs exactly"),
        ({"seed": 0, "epoch": 0, "position": 4, "batch": 1}, "needs exactly"),
        ({"seed": 0, "epoch": 0, "position": 21}, "past the end of 20 samples"),
        ({"seed": 0, "epoch": "1", "position": 0}, "epoch is '1'"),
    ],
)
def test_a_state_that_cannot_be_right_is_refused_and_changes_nothing(state, message):
    sampler = GlobalBatchSampler(20, 4, seed=6)
    before = sampler.state_dict()
    with pytest.raises(UserError, match=message):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == before


def test_a_global_batch_below_the_world_size_warns_of_idle_ranks():
    with pytest.warns(DtlabWarning, match="2 ranks get nothing"):
        GlobalBatchSampler(20, 2, rank=0, world_size=4)


@pytest.mark.parametrize("global_batch", [11, 2**31, 2**62])
def test_global_batch_far_above_the_samples_is_one_batch_of_them_all(global_batch):
    rows, sizes = local_rows(np.arange(11), global_batch, rank=1, world_size=2)
    assert (rows.tolist(), sizes) == ([1, 3, 5, 7, 9], [5])
    assert [batch.tolist() for batch in GlobalBatchSampler(3, global_batch, shuffle=False)] == [[0, 1, 2]]


def test_weights_whose_sum_overflows_still_draw_in_proportion():
    counts = np.bincount(
        np.concatenate(list(GlobalBatchSampler(2000, 2000, weights=[1e308] * 1000 + [0.0] * 1000))),
        minlength=2000,
    )
    assert counts[1000:].sum() == 0
    assert (counts[:1000] > 0).sum() > 500


def test_weights_that_are_no_numbers_are_refused():
    with pytest.raises(UserError, match="weights are no numbers"):
        GlobalBatchSampler(2, 2, weights=["a", "b"])
