"""Ranks that do not come, come twice or cannot be: named within seconds."""

import os
import re
import sys
import time

import pytest
import torch
from world_scripts import by_hand, free_port, run_ranks, write

import dtlab

JOIN = """
    import dtlab
    with dtlab.world(timeout=3) as w:
        print("joined", w.rank, w.size, w.mean(w.rank))
"""


def test_one_process_of_four_names_missing_ranks_and_world_size(tmp_path):
    script = write(tmp_path, JOIN)
    (alone,) = run_ranks(script, [by_hand(0, 4, free_port())])
    assert alone.code != 0
    last = alone.err.strip().splitlines()[-1]
    assert "1 of 4 ranks joined" in last
    assert "missing rank 1, 2, 3" in last
    assert "WORLD_SIZE=4" in last


@pytest.mark.parametrize(("ranks", "size"), [((0, 0), 2), ((0, 1, 1), 3)])
def test_rank_started_twice_stops_all_processes_and_is_named(tmp_path, ranks, size):
    script = write(tmp_path, JOIN.replace("timeout=3", "timeout=50"))  # the second may come late
    port = free_port()
    ended = run_ranks(script, [by_hand(rank, size, port) for rank in ranks])
    doubled = max(ranks, key=ranks.count)
    assert [process.code != 0 for process in ended] == [True] * len(ranks)
    for process in ended:
        assert f"rank {doubled} was started twice" in process.err
        assert not re.search(r"\b_\w+Error", process.err), "a private name in what the user reads"


def all_rank_0():
    os.environ["RANK"] = "0"
    with dtlab.world(timeout=30) as w:
        return w.rank


def test_ranks_that_are_the_same_one_are_told_alike_whoever_came_first():
    for _ in range(5):
        with pytest.raises(dtlab.RankError) as caught:
            dtlab.launch(all_rank_0, 2, timeout=60, echo=False)
        assert str(caught.value).startswith("rank 0 of 2 failed: UserError: rank 0 was started twice")
        assert "rank 1 failed in the same way" in str(caught.value)


def test_rank_beyond_world_size_is_refused_and_the_other_stops(tmp_path):
    script = write(tmp_path, JOIN)
    port = free_port()
    zero, two = run_ranks(script, [by_hand(0, 2, port), by_hand(2, 2, port)])
    assert zero.code != 0
    assert "1 of 2 ranks joined" in zero.err
    assert two.code != 0
    assert "rank 2 is not < world size 2" in two.err


def test_busy_port_is_named(tmp_path):
    import socket

    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        script = write(tmp_path, JOIN)
        (zero,) = run_ranks(script, [by_hand(0, 2, port)])
    assert zero.code != 0
    assert f"MASTER_PORT={port}" in zero.err.strip().splitlines()[-1]


def test_nobody_at_the_master_address_is_named(tmp_path):
    port = free_port()
    script = write(tmp_path, JOIN.replace("timeout=3", "timeout=1"))
    (one,) = run_ranks(script, [by_hand(1, 2, port)])
    assert one.code != 0
    assert f"MASTER_PORT={port}" in one.err.strip().splitlines()[-1]


OTHER_VERSION = """
    import os
    import dtlab
    from dtlab.ranks import versions
    if os.environ["RANK"] == "1":
        mine = versions.local_versions()
        versions.local_versions = lambda: {**mine, "nccl": "2.18.3", "torch": "2.9.1"}
    with dtlab.world(timeout=50):
        print("joined")
"""


def test_rank_with_other_versions_is_named_by_every_rank(tmp_path):
    port = free_port()
    for process in run_ranks(write(tmp_path, OTHER_VERSION), [by_hand(rank, 2, port) for rank in (0, 1)]):
        assert process.code != 0
        assert "joined" not in process.out
        assert "rank 1 has nccl 2.18.3, rank 0 has none" in process.err
        assert "rank 1 has torch 2.9.1" in process.err


LISTENS = """
    import os
    import dtlab, torch, torch.distributed as dist, psutil
    with dtlab.world() as w:
        dist.all_reduce(torch.ones(4))
        own = [c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
        everyone = w.gather(own)
        if w.is_main:
            print("listening", sorted({ip for one in everyone for ip in one}), len(everyone[0]))
"""


def test_on_one_host_nothing_listens_beyond_loopback(tmp_path):
    port = free_port()
    zero, one = run_ranks(write(tmp_path, LISTENS), [by_hand(rank, 2, port) for rank in (0, 1)])
    assert (zero.code, one.code) == (0, 0), zero.err + one.err
    addresses = zero.out.split("]")[0] + "]"
    assert addresses in ("listening ['127.0.0.1']", "listening ['127.0.0.1', '::ffff:127.0.0.1']")
    # the store's socket is among them, so the test did look at something
    assert int(zero.out.split()[-1]) >= 1


def returns_at_once():
    return None


def leaves_by_exit():
    sys.exit(0)


def joins_once():
    with dtlab.world() as w:
        w.barrier()


def rank_1_does(act):
    if os.environ["RANK"] == "1":
        return act()
    with dtlab.world() as w:
        w.barrier()
    with dtlab.world() as w:
        w.barrier()


@pytest.mark.parametrize("act", [returns_at_once, leaves_by_exit, joins_once])
def test_rank_that_ends_without_joining_is_named_to_those_who_wait_in_world(act):
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(rank_1_does, 2, act, timeout=50, echo=False)  # joining would wait for 60 seconds
    text = str(caught.value)
    assert "rank 1 of 2 returned without joining" in text.splitlines()[0]
    assert any("-->" in line and "dtlab.world()" in line for line in caught.value.cell_lines)
    assert "rank 1 had returned" in text


def waits_for_a_message(size):
    with dtlab.world() as w:
        if w.rank == size - 1:
            torch.distributed.recv(torch.ones(1), 0)


@pytest.mark.parametrize("size", [2, 3])
def test_rank_that_waits_for_a_message_of_one_that_has_left_is_named(size):
    with pytest.raises(dtlab.RankError, match=rf"has left after .* but rank {size - 1} waits in recv, at "):
        dtlab.launch(waits_for_a_message, size, size, timeout=60, echo=False)


def sends_late(seconds):
    with dtlab.world() as w:
        if w.rank == 0:
            time.sleep(seconds)  # longer than the first two questions of a rank that leaves
            torch.distributed.send(torch.ones(1), 1)
        if w.rank == 1:
            torch.distributed.recv(torch.ones(1), 0)


def test_rank_that_has_left_waits_for_messages_between_others():
    dtlab.launch(sends_late, 3, 2.5, timeout=60, echo=False)


def ends_its_process():
    os._exit(0)


def test_rank_that_ends_its_process_before_joining_is_named():
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(rank_1_does, 2, ends_its_process, timeout=50, echo=False)
    first = str(caught.value).splitlines()[0]
    assert first == "rank 1 of 2 exited with code 0 before its function returned"


def only_rank_0_makes_a_group(has_joined):
    import torch.distributed as dist

    if has_joined:
        dist.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        return
    dist.new_group([0, 1]) if has_joined else dist.init_process_group("gloo")


@pytest.mark.parametrize("has_joined", [False, True])
def test_group_made_by_plain_torch_without_a_rank_that_has_returned_is_an_error(monkeypatch, has_joined):
    monkeypatch.setattr("dtlab.ranks.supervise.EARLY_SECONDS", 1.0)
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(only_rank_0_makes_a_group, 2, has_joined, timeout=120, echo=False)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"rank 0 of 2 waits in {'new' if has_joined else 'init_process'}_group")
    assert "rank 1 had returned without joining" in first


def rank_0_is_slow_to_return():
    import time

    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        time.sleep(1.5)
    return dist.get_rank()


def test_rank_that_has_joined_may_return_before_another(monkeypatch):
    monkeypatch.setattr("dtlab.ranks.supervise.EARLY_SECONDS", 0.2)
    assert dtlab.launch(rank_0_is_slow_to_return, 2, timeout=60, echo=False) == [0, 1]
