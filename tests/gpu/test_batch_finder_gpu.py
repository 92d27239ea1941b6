"""The batch finder on a card: real out-of-memory errors, and what others hold counts."""

import pytest
import torch
from torch import nn

from dtlab.data.batch import Batch
from dtlab.diagnose.batch_finder import find_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]
WIDTH = 4096


def rows(count: int) -> Batch:
    return Batch(
        ids=torch.arange(count, device="cuda"),
        categorical=torch.zeros(count, 0, dtype=torch.int64, device="cuda"),
        dense=torch.rand(count, WIDTH, device="cuda"),
        labels=torch.arange(count, device="cuda").remainder(2).float(),
    )


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(
        model(batch.dense).squeeze(1), batch.labels, reduction="sum"
    )


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.ReLU(), nn.Linear(WIDTH, 1)).to("cuda")
    return net, torch.optim.AdamW(net.parameters())


def test_a_full_card_ends_the_doubling_and_leaves_everything_as_it_was() -> None:
    net, optimizer = parts()
    before = [value.clone() for value in net.state_dict().values()]
    draws = torch.cuda.get_rng_state()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(4e9 / total)
    try:
        found = find_batch(net, optimizer, rows, loss=loss, start=1024)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found.tried[-1].verdict == "out of memory"
    assert found.batch == found.tried[-2].batch >= 1024
    sizes = [one.bytes for one in found.tried[:-1]]
    assert sizes == sorted(sizes)
    assert {one.limit for one in found.tried} == {total}
    assert all(torch.equal(a, b) for a, b in zip(before, net.state_dict().values(), strict=True))
    assert torch.equal(draws, torch.cuda.get_rng_state())
    assert not optimizer.state


def test_memory_that_others_hold_counts() -> None:
    net, optimizer = parts()
    alone = find_batch(net, optimizer, rows, loss=loss, start=64, most=64).tried[0].bytes
    held = torch.empty(10**9, dtype=torch.uint8, device="cuda")
    beside = find_batch(net, optimizer, rows, loss=loss, start=64, most=64).tried[0].bytes
    assert beside - alone >= 0.9 * held.nbytes
