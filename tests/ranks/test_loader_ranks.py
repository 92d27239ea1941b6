"""Loaders on real ranks: a worker process that dies ends the launch with its name."""

import os
import re
import time

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import dtlab
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.torch_adapter import data_loader


class DiesOnFive(Dataset):
    def __init__(self, wait: float = 0.0) -> None:
        self.wait = wait

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 5:
            time.sleep(self.wait)
            os._exit(1)
        return index


def train(busy):
    with dtlab.world():
        sampler = GlobalBatchSampler(16, 4, shuffle=False)
        for batch in data_loader(DiesOnFive(0.3 if busy else 0.0), sampler, num_workers=2):
            total = batch.sum()
            dist.all_reduce(total)
            if busy:  # the main thread is in the training step when the worker dies
                end = time.monotonic() + 1.0
                while time.monotonic() < end:
                    torch.ones(100).sum()


@pytest.mark.parametrize("busy", [False, True])
def test_a_dead_loader_worker_ends_the_launch_naming_rank_worker_and_exit_code(busy):
    started = time.monotonic()
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(train, 2, busy, timeout=60, echo=False)
    assert time.monotonic() - started < 30
    first_line = str(caught.value).splitlines()[0]
    # Item 5 belongs to rank 1 (5 mod 2), in the second batch, which worker 1 makes.
    assert re.search(
        r"rank 1 of 2 failed: .*data loader worker 1 of 2 on rank 1 of 2 exited with exit code 1", first_line
    )
    assert caught.value.rank == 1
