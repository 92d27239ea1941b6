"""The learning rate on real ranks: one table for every world size, one decision per validation."""

from typing import Any

import pytest
import torch
from torch import nn

import dtlab
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.errors import UserError
from dtlab.parallel import data_parallel
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.schedule import Schedule

SAMPLES, GLOBAL_BATCH, EPOCHS = 75, 8, 2
STEPS = 2 * 10


def launch(function: Any, nproc: int, *args: Any) -> list[Any]:
    return list(dtlab.launch(function, nproc, *args, timeout=60, echo=False))


def train() -> dict[str, list[float]]:
    """Two epochs of a small model; what rate did each optimizer step use?"""
    with dtlab.world() as w:
        torch.manual_seed(0)
        data = torch.randn(SAMPLES, 3)
        model = data_parallel(nn.Linear(3, 1), w)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sampler = GlobalBatchSampler(SAMPLES, GLOBAL_BATCH)
        config = ScheduleConfig(kind="cosine", warmup=0.5, unit="epoch", min_lr=0.001)
        per_epoch = sampler.steps_per_epoch
        schedule = Schedule(config, 0.1, EPOCHS * per_epoch, steps_per_epoch=per_epoch)
        used: list[float] = []
        optimizer.register_step_pre_hook(lambda opt, *_: used.append(opt.param_groups[0]["lr"]))
        for _ in range(EPOCHS):
            for rows in sampler:
                schedule.apply(optimizer)
                optimizer.zero_grad()
                (model(data[rows]).square().sum() * w.size / sampler.last_size).backward()
                optimizer.step()
                schedule.advance()
        assert schedule.check_finished()
        return {"used": used, "table": [schedule.lr_at(step) for step in range(STEPS)]}


def test_every_world_size_trains_with_the_same_rate_at_every_optimizer_step():
    results = [result for size in (1, 2, 4) for result in launch(train, size)]
    first = results[0]
    assert len(first["used"]) == STEPS
    assert max(first["used"]) == 0.1
    assert first["used"][-1] == 0.001
    for result in results:
        assert result == first
        assert result["used"] == result["table"]


def validate() -> dict[str, Any]:
    with dtlab.world() as w:
        schedule = Schedule(ScheduleConfig(kind="plateau"), 0.1, 100)
        rates = []
        for loss in (1.0, 1.5, 1.5, 1.5):
            schedule.observe(w.mean(loss + w.rank))
            rates.append(schedule.lr_at(0))
        with pytest.raises(UserError, match="reduce the metric") as caught:
            schedule.observe(float(w.rank))
        return {"rates": rates, "error": str(caught.value)}


def test_a_plateau_on_four_ranks_takes_one_decision_per_validation_and_refuses_local_metrics():
    for result in launch(validate, 4):
        assert result["rates"] == [0.1, 0.1, 0.1, 0.05]
        assert "{0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}" in result["error"]
