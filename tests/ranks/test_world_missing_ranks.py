"""Ranks that do not come, come twice or cannot be: named within seconds."""

import pytest
from world_scripts import by_hand, free_port, run_ranks, write

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
    script = write(tmp_path, JOIN)
    port = free_port()
    ended = run_ranks(script, [by_hand(rank, size, port) for rank in ranks])
    doubled = max(ranks, key=ranks.count)
    assert [process.code != 0 for process in ended] == [True] * len(ranks)
    for process in ended:
        assert f"rank {doubled} was started twice" in process.err


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
    with dtlab.world(timeout=10):
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
