"""A branch that an earlier micro-batch used and the synchronised one did not: its gradient is there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtlab
from dtlab.parallel import data_parallel, no_sync, parameter_hash

ENGINES = ["torch", "by_hand"]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head_a = nn.Linear(3, 1)
        self.head_b = nn.Linear(3, 1)

    def forward(self, x: Tensor, heads: str) -> Tensor:
        hidden = self.body(x)
        return sum(getattr(self, f"head_{head}")(hidden) for head in heads).sum()


def accumulate(engine: str, heads: list[str], find_unused: bool, steps: int) -> tuple[str, float]:
    """One micro-batch for each text of heads, the last one synchronised; the ranks' rows differ."""
    with dtlab.world() as w:
        torch.manual_seed(0)
        model = TwoHeads()
        parallel = data_parallel(model, engine=engine, find_unused=find_unused)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = torch.ones(2, 3) * (w.rank + 1)
        for _ in range(steps):
            optimizer.zero_grad()
            for used in heads[:-1]:
                with no_sync(parallel):
                    parallel(rows, used).backward()
            parallel(rows, heads[-1]).backward()
            optimizer.step()
        return parameter_hash(model), model.head_b.bias.grad.item()


def launch(*arguments: Any) -> list[Any]:
    return dtlab.launch(accumulate, 2, *arguments, timeout=60, echo=False)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_branch_that_only_an_earlier_micro_batch_used_is_named_before_the_step(engine: str) -> None:
    with pytest.raises(dtlab.RankError, match=r"no gradient reached head_b\.weight, head_b\.bias"):
        launch(engine, ["ab", "a"], False, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_find_unused_averages_what_an_earlier_micro_batch_left(engine: str) -> None:
    (first, gradient), (second, _) = launch(engine, ["ab", "a"], True, 2)
    assert first == second
    assert gradient == 2.0  # two rows on each rank, once


@pytest.mark.parametrize("engine", ENGINES)
def test_micro_batches_that_all_reach_every_parameter_are_not_refused(engine: str) -> None:
    (first, _), (second, _) = launch(engine, ["a", "b", "ab"], False, 4)
    assert first == second
