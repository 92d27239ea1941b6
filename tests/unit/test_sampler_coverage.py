"""Counting which samples were seen, without a group."""

import numpy as np
import pytest
import torch

from dtlab.data.coverage import Coverage, seen
from dtlab.data.evaluate import gather_by_id
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.errors import UserError


def test_seen_tells_who_saw_what_twice_and_never():
    epoch = seen([[0, 1, 2], np.array([2, 5]), torch.tensor([], dtype=torch.int64)], universe=[5, 0, 1, 2, 9])
    assert epoch.ids.tolist() == [0, 1, 2, 5, 9]
    assert epoch.counts.tolist() == [[1, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0]]
    assert epoch.times.tolist() == [1, 1, 2, 1, 0]
    assert (epoch.twice.tolist(), epoch.never.tolist(), epoch.once) == ([2], [9], False)
    assert (epoch.unique_rows, epoch.duplicate_rows) == (4, 1)
    assert epoch.ranks_of(2) == [0, 1]
    assert str(epoch) == "4 of 5 samples seen by 3 ranks, 1 more than once, 1 never"


def test_every_sample_once_is_seen_as_such_and_a_padded_epoch_is_not():
    ranks = [GlobalBatchSampler(10, 4, rank=rank, world_size=3) for rank in range(3)]
    assert seen([np.concatenate(list(sampler)) for sampler in ranks], range(10)).once
    padded = [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    assert seen(padded, range(10)).twice.tolist() == [0, 1]


def test_an_id_from_elsewhere_is_an_error():
    with pytest.raises(UserError, match="rank 1 saw id 7"):
        seen([[0], [7]], range(3))
    coverage = Coverage(range(3))
    coverage.add(torch.tensor([0, 3, -1]))
    with pytest.raises(UserError, match="2 rows reached the model"):
        coverage.end_epoch()
    with pytest.raises(UserError, match="id 4 stands for two rows"):
        Coverage([4, 1, 4])


def test_coverage_counts_duplicates_within_an_epoch_only():
    coverage = Coverage(torch.tensor([30, 10, 20, 40]))
    for ids in ([10, 20], [30, 40]):
        coverage.add(torch.tensor(ids))
    assert coverage.end_epoch() == 0
    for ids in ([10, 20], [], [10, 10]):
        coverage.add(torch.tensor(ids, dtype=torch.int64))
    assert coverage.end_epoch() == 2
    assert coverage.end_epoch() == 0
    assert (coverage.unique, coverage.duplicates, coverage.rows, coverage.epochs) == (4, 2, 8, 3)
    assert coverage.missed == [0, 2, 4]


def test_gathering_by_id_orders_and_refuses_a_sample_counted_twice():
    got = gather_by_id(torch.tensor([4, 2, 3]), num_samples=3, score=torch.tensor([0.4, 0.2, 0.3]))
    assert got.ids.tolist() == [2, 3, 4]
    assert torch.equal(got["score"], torch.tensor([0.2, 0.3, 0.4]))
    with pytest.raises(UserError, match="1 of 2 samples were evaluated more than once, first id 2"):
        gather_by_id(torch.tensor([2, 3, 2]))
    with pytest.raises(UserError, match="3 samples were evaluated, 4 expected"):
        gather_by_id(torch.tensor([2, 3, 1]), num_samples=4)
    with pytest.raises(UserError, match="score has 2 rows for 3 ids"):
        gather_by_id(torch.tensor([2, 3, 1]), score=torch.zeros(2))
