"""Tensor and pipeline parallelism together: 2 stages of 2 tensor-parallel ranks train as one process."""

from typing import Any

import pytest
import torch
from torch import Tensor

import dtlab
from dtlab.models.gpt import GPT, token_loss
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.pipeline import pipeline
from dtlab.parallel.schedules import build_schedule
from dtlab.parallel.split import split
from dtlab.parallel.tensor_gpt import full_parameters, tensor_parallel

VOCAB, LENGTH, STEPS, BATCH = 12, 8, 4, 4
LAYOUTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "by hand": ({"engine": "by_hand"}, "1f1b", "by_hand"),
    "dtensor in torch's pipeline": ({"engine": "dtensor"}, "1f1b", "torch"),
    "dtensor by hand, cut backward": ({"engine": "dtensor"}, "zero_bubble", "by_hand"),
    "sequence parallel, interleaved": ({"sequence_parallel": True}, "interleaved", "by_hand"),
}


def gpt(seed: int) -> GPT:
    torch.manual_seed(seed)
    return GPT(VOCAB, LENGTH, dim=8, num_layers=3, num_heads=2).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return token_loss(logits, targets).total


def train_on_ranks() -> dict[str, Any]:
    found = {}
    with dtlab.world():
        mesh = build_mesh(ParallelDims(tp=2, pp=2))
        for name, (options, schedule_name, engine) in LAYOUTS.items():
            model = tensor_parallel(gpt(0), mesh["tp"], **options)
            schedule = build_schedule(schedule_name, 2, 2)
            parts = split(model, schedule.num_stages)
            group = mesh["pp"].get_group()
            pipe = pipeline(parts, schedule, loss, engine=engine, group=group)  # type: ignore[arg-type]
            optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.01)
            losses = []
            for step in range(STEPS):
                optimizer.zero_grad()
                losses.append(float(pipe.step(*batch(step), BATCH * LENGTH)))
                optimizer.step()
            state = {}
            for stage in pipe.stages.values():
                state |= full_parameters(stage)
            found[name] = {"losses": losses, "state": state}
    return found


def test_two_stages_of_two_tensor_parallel_ranks_train_as_one_process() -> None:
    model = gpt(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        tokens, targets = batch(step)
        optimizer.zero_grad()
        value = loss(model(tokens), targets) / (BATCH * LENGTH)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    expected = {**dict(model.named_parameters()), "head.output.weight": model.head.output.weight}
    for result in dtlab.launch(train_on_ranks, 4, timeout=240, echo=False):
        for name in LAYOUTS:
            assert result[name]["losses"] == pytest.approx(losses, abs=1e-10), name
            for key, tensor in result[name]["state"].items():
                torch.testing.assert_close(
                    tensor, expected[key].detach(), rtol=0, atol=1e-10, msg=f"{name} {key}"
                )
