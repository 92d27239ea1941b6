"""All ranks take the same batch, also when one has less memory; and training goes on as if untried."""

import pytest
import torch
from torch import nn

import dtlab
from dtlab.data.batch import Batch
from dtlab.diagnose.batch_finder import find_batch

ROOMY, TIGHT = 10**7, 300_000


def rows(count: int) -> Batch:
    generator = torch.Generator().manual_seed(count)
    return Batch(
        ids=torch.arange(count),
        categorical=torch.zeros(count, 0, dtype=torch.int64),
        dense=torch.rand(count, 32, generator=generator),
        labels=torch.arange(count).remainder(2).float(),
    )


def trainer(engine: str) -> dtlab.Trainer:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    return dtlab.Trainer(net, adam, loss=loss, engine=engine, show_progress=False)


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(batch.dense), batch.labels, reduction="sum")


def find(*limits, starts=(8, 8)):
    """What this rank is told, for each pair of limits."""
    with dtlab.world() as w:
        t = trainer("torch")
        return [
            find_batch(
                t.model,
                t.optimizer,
                rows,
                loss=loss,
                start=starts[w.rank],
                most=4096,
                limit_bytes=own[w.rank],
            )
            for own in limits
        ]


def test_both_ranks_take_the_batch_of_the_rank_that_is_short_of_memory() -> None:
    limits = (ROOMY, ROOMY), (TIGHT, TIGHT), (ROOMY, TIGHT)
    one, other = dtlab.launch(find, 2, *limits, timeout=60, echo=False)
    assert one == other
    roomy, tight, mixed = one
    assert roomy.batch > tight.batch == mixed.batch > 0
    assert mixed.tried[-1].rank == 1
    assert "on rank 1" in mixed.stopped
    assert {trial.limit for trial in mixed.tried} == {TIGHT}


def test_ranks_that_start_differently_are_told_so() -> None:
    with pytest.raises(dtlab.RankError, match="give the same on every rank"):
        dtlab.launch(find, 2, (ROOMY, ROOMY), starts=(8, 16), timeout=60, echo=False)


def train(engine: str, tries: bool) -> list[torch.Tensor]:
    with dtlab.world(seed=0) as w:
        t = trainer(engine)
        whole = rows(48)
        own = whole.take(torch.arange(48)[w.rank :: 3])
        for _ in range(3):
            t.step(own, 48)
            if tries:  # between two steps, and with a rank that runs out of memory
                find_batch(
                    t.model, t.optimizer, rows, loss=loss, start=8, limit_bytes=ROOMY if w.rank else TIGHT
                )
        return [value.clone() for value in t.model.state_dict().values()]


@pytest.mark.parametrize("engine", ["torch", "by_hand"])
def test_training_goes_on_bit_for_bit_as_without_the_finder(engine: str) -> None:
    plain = dtlab.launch(train, 3, engine, False, timeout=60, echo=False)
    tried = dtlab.launch(train, 3, engine, True, timeout=60, echo=False)
    for one, other in zip(plain, tried, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def sharded_or_synchronised() -> str:
    with dtlab.world():
        net = nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4))
        try:
            find_batch(net, torch.optim.SGD(net.parameters(), lr=0.1), rows, start=2)
        except dtlab.UserError as error:
            return str(error)
    return "not refused"


def test_a_model_that_talks_within_a_step_is_refused_before_it_can_hang() -> None:
    for line in dtlab.launch(sharded_or_synchronised, 2, timeout=60, echo=False):
        assert "SyncBatchNorm" in line
