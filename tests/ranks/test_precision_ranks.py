"""Skipped steps on real ranks: one rank's overflow is everybody's, decided without a message."""

from typing import Any

import torch
from torch import nn

import dtlab
from dtlab.collectives import traffic
from dtlab.parallel import data_parallel, unwrap
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.precision import Precision
from dtlab.train.schedule import Schedule


def train(wanted: str) -> dict[str, Any]:
    """Six steps; in step 2 rank 1 alone meets a nan, in step 4 rank 0 alone a gradient beyond every range."""
    with dtlab.world() as w:
        torch.manual_seed(w.rank)
        data = torch.randn(6, 8, 3)
        model = data_parallel(nn.Linear(3, 1), w)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        precision = Precision(wanted, init_scale=256)
        schedule = Schedule(ScheduleConfig(kind="linear"), 0.1, 6)
        outcomes, collectives = [], 0
        for step in range(6):
            batch = data[step].clone()
            if step == 2 and w.rank == 1:
                batch[0, 0] = float("nan")
            if step == 4 and w.rank == 0:
                batch[0, 0] = float("inf")
            schedule.apply(optimizer)
            optimizer.zero_grad()
            with precision.autocast():
                loss = model(batch).square().mean()
            precision.scale(loss).backward()
            with traffic() as counted:
                outcome = precision.optimizer_step(optimizer, unwrap(model).named_parameters(), clip=1.0)
            collectives += counted.messages + counted.collectives
            if outcome.applied:
                schedule.advance()
            outcomes.append((outcome.applied, str(float(outcome.norm)), outcome.reason))
        return {
            "outcomes": outcomes,
            "collectives": collectives,
            "weights": [parameter.detach().clone() for parameter in unwrap(model).parameters()],
            "schedule": schedule.step,
            "precision": precision.state_dict(),
        }


def test_one_ranks_bad_gradient_skips_the_step_on_every_rank_without_a_message():
    for wanted in ("fp32", "fp16"):
        one, other = dtlab.launch(train, 2, wanted, timeout=60, echo=False)
        assert [applied for applied, _, _ in one["outcomes"]] == [True, True, False, True, False, True]
        assert "weight" in one["outcomes"][2][2]
        assert one["outcomes"] == other["outcomes"]
        assert one["precision"] == other["precision"]
        assert one["precision"]["skipped"] == 2
        assert one["schedule"] == other["schedule"] == 4
        assert one["collectives"] == other["collectives"] == 0
        for mine, theirs in zip(one["weights"], other["weights"], strict=True):
            assert torch.equal(mine, theirs)
            assert mine.isfinite().all()
