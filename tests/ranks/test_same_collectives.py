"""Collective calls that differ between ranks are named before they give a wrong number."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dtlab
from dtlab.collectives.same_collectives import same_collectives


def calls(rank: int, size: int):
    one = rank == 1
    kind, op = (torch.int32, dist.ReduceOp.MAX) if one else (torch.float32, dist.ReduceOp.SUM)
    return {
        "reduction": lambda: dist.all_reduce(torch.ones(4), op=op),
        "dtype": lambda: dist.all_reduce(torch.ones(4, dtype=kind)),
        "size": lambda: dist.all_reduce(torch.ones(4 + rank)),
        "root": lambda: dist.broadcast(torch.ones(4), src=rank),
        "operation": lambda: dist.all_reduce(torch.ones(4)) if one else dist.broadcast(torch.ones(4), src=0),
        "reduce": lambda: dist.reduce(torch.ones(2), dst=rank),
        "gather": lambda: dist.all_gather([torch.ones(2, dtype=kind)] * size, torch.ones(2, dtype=kind)),
    }


def faults() -> dict[str, str]:
    found = {}
    with dtlab.world() as world:
        for name in calls(0, 2):
            with pytest.raises(dtlab.UserError) as refused, same_collectives():
                calls(world.rank, world.size)[name]()
            found[name] = str(refused.value)
    return found


def test_calls_that_would_pair_up_to_a_wrong_number_are_refused_on_every_rank():
    first, second = dtlab.launch(faults, 2, timeout=120)
    assert first == second
    assert "rank 0 calls all_reduce(SUM, float32 [4])" in first["reduction"]
    assert "rank 1 calls all_reduce(MAX, float32 [4])" in first["reduction"]
    assert "rank 1 calls all_reduce(SUM, int32 [4])" in first["dtype"]
    assert "float32 [5]" in first["size"]
    assert "rank 1 calls broadcast(root 1, float32 [4])" in first["root"]
    assert "rank 0 calls broadcast(root 0" in first["operation"]
    assert "rank 1 calls all_reduce(" in first["operation"]
    assert "root 1" in first["reduce"]
    assert "int32 [2]" in first["gather"]
    assert all("of test_same_collectives.py" in line for line in first.values()), first


def alike() -> list[float]:
    with dtlab.world(seed=0) as world, same_collectives():
        x = torch.ones(3) * (world.rank + 1)
        dist.all_reduce(x)
        dist.barrier()
        model = dtlab.data_parallel(nn.Linear(2, 1))
        model(torch.ones(1, 2) * world.rank).sum().backward()
        pair = dist.new_group([0, 1])
        y = torch.ones(1)
        if world.rank < 2:
            dist.all_reduce(y, group=pair)
        out = [torch.empty(1) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(torch.ones(1), out, dst=0)
        weight = next(p for name, p in model.named_parameters() if name.endswith("weight"))
        return [x[0].item(), y.item(), weight.grad.sum().item(), dtlab.mean(float(world.rank))]


def test_calls_that_are_alike_pass_with_their_results():
    assert [list(found) for found in dtlab.launch(alike, 3, timeout=120)] == [
        [6.0, 2.0, 2.0, 1.0],
        [6.0, 2.0, 2.0, 1.0],
        [6.0, 1.0, 2.0, 1.0],
    ]
