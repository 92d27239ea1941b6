"""Joining ends for all ranks together: nobody can fail while another is still in its handshake."""

import os
import time
from pathlib import Path

import pytest
import torch.distributed as dist

import dtlab
from dtlab.ranks import meeting
from dtlab.ranks.membership import Membership


def join_after_a_slow_rank_1(marker: str) -> bool:
    if os.environ["RANK"] == "1":
        connect = dist.init_process_group

        def slowly(*args, **options):
            connect(*args, **options)
            time.sleep(0.5)
            Path(marker).touch()

        dist.init_process_group = slowly
    with dtlab.world():
        return Path(marker).exists()


def test_no_rank_goes_on_before_the_slowest_is_connected(tmp_path):
    assert dtlab.launch(join_after_a_slow_rank_1, 2, str(tmp_path / "connected"), timeout=60) == [True, True]


def test_rank_that_does_not_connect_is_named():
    store = dist.HashStore()
    store.set("world/1/connected/2", b"1")
    with pytest.raises(dtlab.UserError, match=r"rank 1 of 3 joined but was not connected .* 0\.05 s"):
        meeting.wait_until_connected(store, Membership(launcher="env", rank=0, size=3), "world/1", 0.05)
