"""The step on ranks: one sync per step, tokens weighted over ranks and micro-batches, common decisions."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import dtlab
from dtlab.collectives.traffic_counter import traffic
from dtlab.data.batch import Batch
from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.parallel.ddp import unwrap
from dtlab.parallel.desync import DesyncError, check_replicas, differing_parameters
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.flags import Flags
from dtlab.train.non_finite import NonFiniteError
from dtlab.train.schedule import Schedule
from dtlab.train.stopping import EarlyStopping
from dtlab.train.trainer import Trainer, global_steps


def launch(function, nproc, *args):
    return dtlab.launch(function, nproc, *args, timeout=60, echo=False)


@dataclass(frozen=True)
class Tokens:
    """Rows of tokens of unequal length; ``values`` [B, S], nan where there is no token."""

    values: Tensor

    def __len__(self):
        return len(self.values)

    def split(self, sizes):
        return [Tokens(part) for part in self.values.split(sizes)]


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, values):
        return self.w * values


def token_weighted(engine):
    with dtlab.world() as w:
        ragged = [[[1.0, 2.0, 3.0], [10.0]], [[2.0, 2.0], [1.0] * 10]][w.rank]
        values = torch.full((2, 10), float("nan"), dtype=torch.float64)
        for row, numbers in enumerate(ragged):
            values[row, : len(numbers)] = torch.tensor(numbers)
        model = Weight()
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            loss=lambda m, batch: m(batch.values.nan_to_num()).sum(),
            count=lambda batch: batch.values.isfinite().sum(),
            micro_batch=1,
            engine=engine,
        )
        trainer.step(Tokens(values), 4)
        return model.w.item()


@pytest.mark.parametrize("engine", ["torch", "by_hand"])
def test_gradient_is_weighted_by_tokens_over_ranks_and_micro_batches(engine):
    assert launch(token_weighted, 2, engine) == pytest.approx([-1.875, -1.875], abs=1e-12)


def table(rows=96):
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(rows, 6, dtype=torch.float64, generator=generator)
    return Batch(
        torch.arange(rows), torch.zeros(rows, 0, dtype=torch.int64), dense, (dense[:, 0] > 0).double()
    )


def net():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def squares(model, batch):
    return (model(batch.dense)[:, 0] - batch.labels).square().sum()


def trained(micro_batch, engine="torch"):
    with dtlab.world():
        model, data = net(), table(90)
        schedule = Schedule(ScheduleConfig(kind="linear", warmup=2), 0.1, 8)
        trainer = Trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.1), loss=squares, micro_batch=micro_batch,
            clip=0.5, schedule=schedule, engine=engine,
        )  # fmt: skip
        trainer.settle(data.split([2, 88])[0])
        loader = Loader(data, GlobalBatchSampler(len(data), 24))
        rates, counts = [], []
        for _ in range(2):
            for batch, rows in global_steps(loader):
                with traffic() as seen:
                    trainer.step(batch, rows)
                rates.append(trainer.optimizer.param_groups[0]["lr"])
                counts.append(seen.collectives)
        return [p.detach().clone() for p in model.parameters()], rates, counts


def test_accumulation_on_ranks_equals_one_process_with_one_all_reduce_a_step():
    ((one, rates, _),) = launch(trained, 1, None)
    for nproc, micro_batch, engine in ((2, 3, "torch"), (4, 2, "torch"), (2, 5, "by_hand")):
        for parameters, their_rates, counts in launch(trained, nproc, micro_batch, engine):
            assert their_rates == rates
            assert counts == [1] * 8
            for mine, theirs in zip(one, parameters, strict=True):
                torch.testing.assert_close(theirs, mine, rtol=0, atol=1e-10)


def decisions():
    with dtlab.world() as w:
        out = {}
        flags = Flags(seconds=0.2)
        out["before"] = flags.exchange()
        if w.rank == 1:
            flags.raise_("checkpoint")
        flags.watch("budget", lambda: w.rank == 0)
        out["raised"] = flags.exchange(steps=4)
        flags.lower("checkpoint")
        out["lowered"] = flags.exchange(steps=4)
        out["every"] = w.gather(flags.every, dst=None)

        stop = EarlyStopping(100, mode="max")
        first = stop.update(0.9 if w.rank == 0 else 0.5, 100)
        rank_0_only = [stop.update(0.1 if w.rank == 0 else None, samples) for samples in (150, 200)]
        out["stopping"] = (first, stop.best, rank_0_only)

        model = net()
        trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=squares, clip=1.0)
        batch = table(4)
        check_replicas(trainer.model, 0)
        with torch.no_grad():
            if w.rank == 1:
                unwrap(trainer.model)[2].bias.add_(1e-12)
        out["differs"] = differing_parameters(trainer.model)
        try:
            check_replicas(trainer.model, 7)
        except DesyncError as error:
            out["desync"] = str(error)
        dense = batch.dense.clone()
        dense[0, 0] = float("nan") if w.rank == 1 else 0.0
        try:
            trainer.step(Batch(batch.ids, batch.categorical, dense, batch.labels), 8)
        except NonFiniteError as error:
            out["nan"] = str(error)
        return out


def test_what_one_rank_knows_all_ranks_do():
    one, two = launch(decisions, 2)
    assert one == two
    assert one["before"] == frozenset()
    assert one["raised"] == {"checkpoint", "budget"}
    assert one["lowered"] == {"budget"}
    assert len(set(one["every"])) == 1
    assert one["stopping"] == (False, 0.7, [False, True])
    assert list(one["differs"]) == ["2.bias"]
    assert one["differs"]["2.bias"] == [1]
    assert "step 7: the replicas differ in 2.bias; rank 1 left the others" in one["desync"]
    assert one["nan"].startswith("step 0: the gradient is not finite (norm nan) in 0.weight")


def refused_stops():
    with dtlab.world() as w:
        said = {}
        for name, own, value, samples in (
            ("samples", EarlyStopping(300), 0.7, (100, 150)[w.rank]),
            ("patience", EarlyStopping((300, 500)[w.rank]), 0.7, 100),
            ("metric", EarlyStopping(300), (0.7, "0.9")[w.rank], 100),
            ("metrics", EarlyStopping(300), (torch.ones(2), 0.7)[w.rank], 100),
            ("state", EarlyStopping(300), 0.7, 200),
        ):
            if name == "state" and w.rank == 0:  # the saved state is loaded by one rank only
                own.load_state_dict({**own.state_dict(), "best": 0.8, "best_epoch": 1, "best_samples": 100})
            try:
                own.update(value, samples)
            except dtlab.UserError as error:
                said[name] = str(error)
        return said


def test_ranks_that_would_stop_apart_are_told_so_together():
    one, two = launch(refused_stops, 2)
    assert one == two
    assert "samples differs between the ranks, {0: 100, 1: 150}" in one["samples"]
    assert "patience differs between the ranks, {0: 300, 1: 500}" in one["patience"]
    assert "metric = '0.9' on rank 1" in one["metric"]
    assert "on rank 0: give one number" in one["metrics"]
    assert "best differs between the ranks, {0: 0.8, 1: -inf}" in one["state"]
