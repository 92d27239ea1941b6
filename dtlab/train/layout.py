"""Where a rank stands in a run's layout: which samples are its own, what it holds of the model (lesson 09).

- Ranks that differ in ``tp`` or ``pp`` alone work on the same samples: sampler, loader and evaluation share
  rows out over ``data_size`` parts, not over all ranks.
- What is counted over samples (rows, losses) is counted by one rank of those that share them.
- ``lay_out`` turns the model into this rank's part of it. Plain data parallelism stays with the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.errors import UserError
from dtlab.models.gpt import GPT
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.hand_pipeline import SumLoss
from dtlab.ranks import agreement
from dtlab.train.config import TrainConfig
from dtlab.train.layout_check import check_layout, describe_layout, is_plain, micro_batches
from dtlab.train.recompute import recompute_blocks

__all__ = ["RunLayout", "lay_out", "layout_of", "plain_layout"]


@dataclass(frozen=True)
class RunLayout:
    """The degrees, this rank's place, and the groups that go with it; made by :func:`layout_of`."""

    dims: ParallelDims
    words: str
    """The layout for people: ``pp 2 x tp 2, 1f1b with 4 micro-batches``."""
    mesh: DeviceMesh | None = None
    """None for plain data parallelism."""
    rank: int = 0
    data_rank: int = 0
    """Which part of the samples is this rank's."""
    data_group: dist.ProcessGroup | None = None
    """The ranks with the other parts; None: all ranks."""

    @property
    def data_size(self) -> int:
        """Parts that the samples are shared out in."""
        return self.dims.dp

    @property
    def counts_samples(self) -> bool:
        """Whether this rank counts its samples, for the ranks that work on them too."""
        place = self.dims.place(self.rank)
        return place.pp == 0 and place.tp == 0

    @property
    def draw_rank(self) -> int:
        """What dropout depends on beside seed and step: equal over tp, another for each part and stage."""
        return self.data_rank + self.data_size * self.dims.place(self.rank).pp

    @property
    def loss_rank(self) -> int:
        """The lowest rank that has the model's output: of a pipeline, on its last stage."""
        return (self.dims.pp - 1) * self.dims.dp * self.dims.tp

    @property
    def sampler(self) -> dict[str, Any]:
        """What a sampler must know of it."""
        if self.data_group is None:
            return {}
        return {"rank": self.data_rank, "world_size": self.data_size, "group": self.data_group}


def plain_layout() -> RunLayout:
    """Every rank holds the whole model and has samples of its own."""
    rank, size = agreement.rank(), agreement.world_size()
    return RunLayout(ParallelDims(dp_replicate=size), f"dp_replicate {size}", None, rank, rank)


def layout_of(config: TrainConfig) -> RunLayout:
    """The layout of ``config`` on the ranks of this world (collective).

    Raises:
        UserError: see :func:`dtlab.train.layout_check.check_layout`.
    """
    rank = agreement.rank()
    dims = check_layout(config, agreement.world_size())
    words = describe_layout(config, dims)
    if is_plain(dims):
        return RunLayout(dims, words, None, rank, rank)
    from dtlab.parallel.mesh import build_mesh

    place = dims.place(rank)
    data_rank = place.dp_replicate * dims.dp_shard + place.dp_shard
    return RunLayout(dims, words, build_mesh(dims), rank, data_rank, _data_group(dims, rank))


def _data_group(dims: ParallelDims, rank: int) -> dist.ProcessGroup | None:
    """The ranks of the same tp and pp place; every rank makes all of these groups, as torch asks."""
    if dims.dp == dims.size:
        return None
    groups: dict[tuple[int, int], list[int]] = {}
    for other in range(dims.size):
        place = dims.place(other)
        groups.setdefault((place.pp, place.tp), []).append(other)
    mine = None
    for ranks in groups.values():
        group = dist.new_group(ranks)
        if rank in ranks:
            mine = group
    return mine


def lay_out(model: nn.Module, layout: RunLayout, config: TrainConfig, loss: SumLoss | None) -> nn.Module:
    """This rank's part of ``model`` (collective): cut by tp, then by stages or dp, as the layout says.

    Args:
        model: the whole, the same on every rank.
        loss: of a pipeline's last stage.

    Raises:
        UserError: from the parts: a model that cannot be cut.
    """
    from dtlab.parallel.parallelize import parallelize

    mesh, parallel = layout.mesh, config.parallel
    assert mesh is not None, "plain data parallelism is the trainer's"
    if config.precision.checkpoint_activations:
        recompute_blocks(model)
    if layout.dims.pp == 1:
        return parallelize(model, mesh, engine=parallel.engine, sequence_parallel=parallel.sequence_parallel)
    assert loss is not None
    return _pipelined(model, layout, config, loss)


def _pipelined(model: nn.Module, layout: RunLayout, config: TrainConfig, loss: SumLoss) -> nn.Module:
    from dtlab.parallel.parallelize import parallelize_stages
    from dtlab.parallel.pipeline import pipeline
    from dtlab.parallel.pipelined_model import PipelinedModel
    from dtlab.parallel.schedules import build_schedule
    from dtlab.parallel.split import split
    from dtlab.parallel.tensor_gpt import tensor_parallel

    mesh, parallel, dims = layout.mesh, config.parallel, layout.dims
    assert mesh is not None
    if dims.tp > 1:
        if not isinstance(model, GPT):
            raise UserError(f"parallel.tp = {dims.tp}: there is no plan for {type(model).__name__}")
        tensor_parallel(model, mesh["tp"], engine=parallel.engine)
    schedule = build_schedule(parallel.schedule, dims.pp, micro_batches(config, dims))
    parts = split(model, schedule.num_stages)
    parallelize_stages(parts, mesh, schedule.stages_of(mesh["pp"].get_local_rank()))
    device = next(model.parameters()).device
    return PipelinedModel(
        pipeline(
            parts,
            schedule,
            loss,
            engine="by_hand" if device.type == "cpu" else "torch",
            group=mesh["pp"].get_group(),
            replicas=mesh["dp_replicate", "dp_shard"],
        )
    )
