"""The traffic counter on real ranks: it sees what torch calls from C++, and the bytes follow the formulas."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dtlab
from dtlab.collectives import Traffic, in_steps, ring_all_reduce, traffic, wire_bytes


def run_torch_ddp() -> dict[str, Traffic]:
    with dtlab.world() as w:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 1)))
        seen = {}
        for step in range(3):
            loss = model(torch.full((4, 20), float(w.rank))).sum()
            with traffic() as counted:
                loss.backward()
            seen[f"backward {step}"] = counted
        with traffic() as counted, torch.no_grad():
            model(torch.ones(4, 20))
        seen["forward"] = counted
        with model.no_sync(), traffic() as counted:
            model(torch.ones(4, 20)).sum().backward()
        seen["no_sync"] = counted
        return seen


def test_the_all_reduces_of_torch_ddp_are_counted_in_its_backward() -> None:
    parameters = 20 * 30 + 30 + 30 + 1
    for seen in dtlab.launch(run_torch_ddp, 2, timeout=60, echo=False):
        for step in range(3):
            counted = seen[f"backward {step}"]
            assert counted.by_op["all_reduce"].calls > 0
            assert counted.by_op["all_reduce"].bytes == 4 * parameters, "2(N-1)/N x S with N = 2"
            assert counted.bytes == 4 * parameters
            assert counted.messages == 0
        assert seen["forward"].collectives == 0
        assert seen["no_sync"].by_op["all_reduce"].calls == 0


def every_collective() -> dict[str, Any]:
    with dtlab.world() as w:
        size, t = w.size, torch.ones(12)  # 48 bytes
        parts = [torch.empty(12) for _ in range(size)]
        root = w.rank == 1
        calls = {
            "all_reduce": lambda: dist.all_reduce(t),
            "async all_reduce": lambda: dist.all_reduce(t, async_op=True).wait(),
            "broadcast": lambda: dist.broadcast(t, src=1),
            "reduce": lambda: dist.reduce(t, dst=1),
            "all_gather": lambda: dist.all_gather(parts, t),
            "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.empty(12 * size), t),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty(3), t),
            "gather": lambda: dist.gather(t, parts if root else None, dst=1),
            "scatter": lambda: dist.scatter(torch.empty(12), parts if root else None, src=1),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty(12), t),
            "barrier": lambda: dist.barrier(),
        }
        seen = {}
        for name, call in calls.items():
            with traffic() as counted:
                call()
            seen[name] = counted
        # Rank r keeps 3 - r of its 6 rows and gives the rest to the next rank.
        splits = [0] * size
        splits[w.rank], splits[(w.rank + 1) % size] = 3, 3
        taken = [0] * size
        taken[w.rank], taken[(w.rank - 1) % size] = 3, 3
        with traffic() as counted:
            dist.all_to_all_single(torch.empty(6, 2), torch.ones(6, 2), taken, splits)
        seen["uneven all_to_all"] = counted
        from torch.distributed import _functional_collectives as functional

        with traffic() as counted:
            functional.all_reduce(t, "sum", dist.group.WORLD) + 1
        seen["functional all_reduce"] = counted
        half = dist.new_group([0, 1]), dist.new_group([2, 3])
        with traffic() as counted:
            dist.all_reduce(t, group=half[w.rank // 2])
        seen["half"] = counted
        sparse = torch.sparse_coo_tensor([[w.rank]], torch.ones(1, 2), (5, 2))
        with traffic() as counted:
            dist.all_reduce(sparse)
        seen["sparse"] = counted
        with traffic() as outer:
            with traffic() as inner:
                dist.all_reduce(t)
            dist.all_reduce(t)
        seen["outer"], seen["inner"] = outer, inner
        w.barrier()
        return seen


def test_bytes_of_every_collective_follow_its_formula() -> None:
    results = dtlab.launch(every_collective, 4, timeout=60, echo=False)
    expected = {
        "all_reduce": ("all_reduce", 72),
        "async all_reduce": ("all_reduce", 72),
        "functional all_reduce": ("all_reduce", 72),
        "broadcast": ("broadcast", 36),
        "reduce": ("reduce", 36),
        "all_gather": ("all_gather", 144),
        "all_gather_into_tensor": ("all_gather", 144),
        "reduce_scatter": ("reduce_scatter", 36),
        "all_to_all": ("all_to_all", 36),
        "uneven all_to_all": ("all_to_all", 24),
        "barrier": ("barrier", 0),
        "half": ("all_reduce", 48),
        # Each rank holds one index (8 bytes) and one row of two numbers (8 bytes), and sends it to 3.
        "sparse": ("sparse_all_reduce", 48),
    }
    for rank, seen in enumerate(results):
        for name, (op, sent) in expected.items():
            assert {o: (t.calls, t.bytes) for o, t in seen[name].by_op.items()} == {op: (1, sent)}, name
            assert seen[name].collectives == 1
        assert seen["gather"].bytes == (0 if rank == 1 else 48)
        assert seen["scatter"].bytes == (144 if rank == 1 else 0)
        assert seen["inner"].collectives == 1
        assert seen["outer"].collectives == 2


def swap_in_every_way() -> Traffic:
    with dtlab.world() as w:
        other, sent, received = 1 - w.rank, torch.ones(5), torch.empty(5)
        with traffic() as counted:
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]
            )
            for work in works:
                work.wait()
            if w.rank == 0:
                dist.send(sent, other)
                dist.recv(received)
            else:
                dist.recv(received, other)
                dist.send(sent, other)
            receiving = dist.irecv(received, other)
            dist.isend(sent, other).wait()
            receiving.wait()
        return counted


def test_send_receive_and_batches_are_counted_on_both_sides() -> None:
    first, second = dtlab.launch(swap_in_every_way, 2, timeout=60, echo=False)
    for counted in (first, second):
        assert (counted.messages, counted.received_messages) == (3, 3)
        assert (counted.bytes, counted.received_bytes, counted.moved_bytes) == (60, 60, 120)
    assert first.by_peer[1].sent_messages == 3
    assert first.by_peer[-1].received_messages == 1, "received from any rank"
    assert second.by_peer[0].received_messages == 3


def test_receives_posted_before_their_sends_do_not_stop_the_ordering() -> None:
    zero, one = Traffic(rank=0), Traffic(rank=1)
    for mine, peer in ((zero, 1), (one, 0)):
        mine.add_receive(peer, [torch.ones(1)], tag=0)
        mine.add_send(peer, [torch.ones(1)], tag=0)
    assert [(m.step, m.src, m.dst) for m in in_steps([zero, one])] == [(0, 0, 1), (0, 1, 0)]


def test_chunks_without_tags_are_numbered_by_their_place() -> None:
    counted = Traffic(rank=0)
    flat = torch.ones(9)
    for start in (6, 0, 3):
        counted.add_send(1, [flat[start : start + 3]], tag=0)
    assert [message.chunk for message in in_steps([counted, Traffic(rank=1)])] == [2, 0, 1]


def test_nothing_is_counted_outside_the_block_or_without_a_group() -> None:
    with traffic() as counted:
        ring_all_reduce(torch.ones(3))
    assert (counted.messages, counted.bytes, counted.collectives) == (0, 0, 0)
    assert counted.by_op["all_reduce"].calls == 0
    assert counted.by_peer[3].sent_bytes == 0
    assert not counted.by_op, "reading must not add entries"


def test_formulas_for_one_rank_cost_nothing_and_unknown_operations_are_an_error() -> None:
    assert all(wire_bytes(op, 100, 1) == 0 for op in ("all_reduce", "gather", "scatter", "all_to_all"))
    with pytest.raises(KeyError):
        wire_bytes("teleport", 100, 2)
