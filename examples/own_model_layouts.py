"""A model of your own in any layout of ranks, with checkpoints that another layout goes on from.

    torchrun --nproc-per-node 2 examples/own_model_layouts.py --dp-shard 2            # FSDP
    torchrun --nproc-per-node 2 examples/own_model_layouts.py --pp 2 --steps 40       # goes on, as a pipeline
    python examples/own_model_layouts.py --nproc 4 --dp-shard 2 --steps 60            # hybrid; no torchrun

Put your own model, data and loss in the place of the first three functions. A pipeline needs an
``nn.Sequential``, or stages of yours: ``PipelineParts((first, second))``. Tensor parallelism has a plan for
``dtlab.models.gpt.GPT`` alone.
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dtlab
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.parallelize import data_rank, parallelize, parallelize_stages
from dtlab.parallel.pipeline import pipeline
from dtlab.parallel.schedules import build_schedule
from dtlab.parallel.split import split
from dtlab.train.whole_state import WholeState

GLOBAL_BATCH = 64  # samples of one step over all ranks together, so the loss is the same in every layout
MICRO_BATCHES = 4  # of a pipeline's step


def own_model() -> nn.Module:
    """Your model; the same weights on every rank."""
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(6)]
    return nn.Sequential(nn.Linear(8, 32), *hidden, nn.Linear(32, 1))


def own_data() -> tuple[Tensor, Tensor]:
    """Your data: inputs [N, 8] and targets [N, 1]."""
    inputs = torch.randn(4096, 8, generator=torch.Generator().manual_seed(1))
    return inputs, inputs.square().mean(1, keepdim=True)


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The SUM over the samples; it is divided by the global batch, once."""
    return F.mse_loss(outputs, targets, reduction="sum")


def train(dims: ParallelDims, folder: str, steps: int) -> float:
    """Train up to ``steps`` optimizer steps in all; returns the loss of the last."""
    with dtlab.world(seed=0) as world:
        mesh = build_mesh(dims)
        part, parts = data_rank(mesh)  # ranks of one pipeline see the same samples
        model, (inputs, targets) = own_model().to(world.device), own_data()
        if dims.pp > 1:
            schedule = build_schedule("1f1b", dims.pp, MICRO_BATCHES)
            stages, kept = split(model, dims.pp), schedule.stages_of(mesh["pp"].get_local_rank())
            pipe = pipeline(
                parallelize_stages(stages, mesh, kept),  # cut over dp_shard as well, if that is above 1
                schedule,
                own_loss,
                engine="by_hand" if world.device.type == "cpu" else "torch",
                group=mesh["pp"].get_group(),
                replicas=mesh["dp_replicate", "dp_shard"],
            )
        else:
            pipe, model = None, parallelize(model, mesh)
        trained = model if pipe is None else pipe
        optimizer = torch.optim.AdamW(trained.parameters(), lr=3e-3, foreach=False)
        sampler = dtlab.GlobalBatchSampler(
            len(inputs), GLOBAL_BATCH, rank=part, world_size=parts, tail="drop"
        )

        done = {"steps": 0}
        state = {"done": done, "sampler": sampler, "whole": WholeState(trained, optimizer)}
        loss = torch.tensor(torch.nan)
        with dtlab.Checkpointer(folder) as checkpoints:
            found = checkpoints.load(state)  # None in a new folder
            if found is not None and world.is_main:
                print(f"goes on from step {found.step}, saved by {found.world_size} ranks")
            while done["steps"] < steps:
                for rows in sampler:
                    x, y = inputs[rows].to(world.device), targets[rows].to(world.device)
                    optimizer.zero_grad()
                    if pipe is not None:
                        loss = pipe.step(x, y, divide_by=GLOBAL_BATCH)
                    else:  # the gradients become the mean over the `parts`, so each loss is of its share
                        mine = own_loss(model(x), y) * parts / GLOBAL_BATCH
                        mine.backward()
                        loss = mine.detach()
                    optimizer.step()
                    done["steps"] += 1
                    if done["steps"] == steps:
                        break
            checkpoints.save(state, done["steps"], samples=done["steps"] * GLOBAL_BATCH, reason="end")
        return float(dtlab.mean(float(loss)))  # the pipeline's is the global loss on every rank already


def main() -> None:
    flags = argparse.ArgumentParser(description="A model of your own in any layout of ranks.")
    flags.add_argument("--dp-replicate", type=int, default=-1, help="copies of the model; default: the rest")
    flags.add_argument("--dp-shard", type=int, default=1, help="ranks that share out parameters (FSDP)")
    flags.add_argument("--pp", type=int, default=1, help="ranks that share out the layers")
    flags.add_argument("--steps", type=int, default=20, help="optimizer steps in all, resumed ones too")
    flags.add_argument("--folder", default="runs/own_model", help="of the checkpoints")
    flags.add_argument("--nproc", type=int, default=2, help="ranks to start here, where torchrun has not")
    given = flags.parse_args()
    dims = ParallelDims(dp_replicate=given.dp_replicate, dp_shard=given.dp_shard, pp=given.pp)
    if "WORLD_SIZE" in os.environ:
        loss = train(dims, given.folder, given.steps)
    else:
        loss = dtlab.launch(train, given.nproc, dims, given.folder, given.steps)[0]
    if os.environ.get("RANK", "0") == "0":
        print(f"step {given.steps}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
