"""The verdict on which rows were seen: from a job that counts, and from what ranks returned."""

import torch

from dtlab.data.coverage import Coverage, seen
from dtlab.diagnose.checks import FAIL, OK
from dtlab.diagnose.sample_coverage import sample_coverage


def counted(*epochs):
    coverage = Coverage(range(6))
    for ids in epochs:
        coverage.add(torch.tensor(ids))
        coverage.end_epoch()
    return sample_coverage(coverage)


def test_rows_seen_once_in_each_epoch_are_fine():
    line = counted([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0])
    assert (line.status, line.fix) == (OK, "")
    assert line.value == "6 of 6 rows seen, each once in each epoch"


def test_rows_seen_again_or_never_fail_with_their_number():
    line = counted([0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3])
    assert line.status == FAIL
    assert line.value == "6 of 6 rows seen, 1 of them again, 2 never over 2 epochs"
    assert "GlobalBatchSampler" in line.fix


def test_dropped_tail_is_told_from_a_missing_sampler():
    dropped = counted([0, 1, 2, 3])
    assert (dropped.status, dropped.fix.startswith("keep the tail")) == (FAIL, True)
    every_rank_all = sample_coverage(seen([range(6), range(6)], universe=range(6)))
    assert every_rank_all.status == FAIL
    assert every_rank_all.value == "6 of 6 rows seen, 6 of them again, 0 never"
    assert sample_coverage(seen([[0, 2, 4], [1, 3, 5]], universe=range(6))).status == OK
