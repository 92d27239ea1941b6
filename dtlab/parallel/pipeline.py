"""Pipeline parallelism behind one call, by hand or by torch (lesson 08).

``pipeline(parts, schedule, loss)`` keeps the stages of this rank and returns a ``Pipeline``. Its ``step``
runs the forwards and backwards of one optimizer step in the order of the schedule.

- The loss is a sum over samples or tokens, divided once by their number in the whole batch, so unequal
  micro-batches weigh right. Every rank gets it.
- All ranks of one pipeline give the same inputs and targets. Copies of the pipeline (``replicas``) give their
  own; gradients and losses are summed over them.
- Optimizer, learning rate and clipping stay outside: a rank's optimizer takes ``Pipeline.parameters()``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.errors import UserError
from dtlab.parallel.actions import Action, Kind, Schedule
from dtlab.parallel.hand_pipeline import Clock, HandPipeline, SumLoss
from dtlab.parallel.legality import check_schedule
from dtlab.parallel.replica_sums import Replicas
from dtlab.parallel.same_batch import SameBatch
from dtlab.parallel.sharded import mark_stage
from dtlab.parallel.simulate import PipelineTimeline, Span
from dtlab.parallel.split import PipelineParts
from dtlab.parallel.tied import TiedCopies
from dtlab.ranks import groups

if TYPE_CHECKING:
    from dtlab.parallel.torch_pipeline import TorchPipeline

__all__ = ["Pipeline", "pipeline"]


def pipeline(
    model_parts: PipelineParts | Sequence[nn.Module],
    schedule: Schedule,
    loss: SumLoss,
    *,
    engine: Literal["by_hand", "torch"] = "by_hand",
    group: dist.ProcessGroup | None = None,
    replicas: DeviceMesh | None = None,
    clock: Clock = time.perf_counter,
) -> Pipeline:
    """This rank's part of a pipeline; every rank of ``group`` calls it.

    Args:
        model_parts: all stages, as ``split`` gives them; those of other ranks are not kept.
        schedule: from ``build_schedule``, or your own (it is checked).
        loss: (output of the last stage, targets) -> SUM of the losses of the samples or tokens.
        engine: "by_hand" runs any legal schedule and unequal micro-batches, on gloo; "torch" runs torch's own
            schedules with equal micro-batches, on gloo or NCCL.
        group: the ranks of this pipeline, ``mesh["pp"].get_group()``; default: all ranks.
        replicas: the ranks with the same stages and other samples, ``mesh["dp_replicate", "dp_shard"]``.
            Stages that are ``fully_sharded`` reduce their gradients themselves.
        clock: what ``timeline()`` reads around each action; with ``time.thread_time``, which leaves out the
            time in which another process had the core, the timeline is for ``replay`` alone.

    Raises:
        UserError: an illegal schedule, stages and ranks that are not those of the schedule, FSDP with a
            schedule that takes the gradients of weights apart from those of inputs.

    >>> from dtlab.parallel.schedules import gpipe
    >>> parts = (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)),)
    >>> pipe = pipeline(parts, gpipe(1, 2), nn.MSELoss(reduction="sum"))  # a world of one
    >>> pipe.step(torch.ones(4, 3), torch.ones(4, 1)).shape
    torch.Size([])
    """
    parts = model_parts if isinstance(model_parts, PipelineParts) else PipelineParts(tuple(model_parts))
    check_schedule(schedule)
    ranks = groups.world_size(group)
    if schedule.num_ranks != ranks:
        raise UserError(
            f"the schedule is for {schedule.num_ranks} ranks, the group has {ranks}: build it for {ranks}"
        )
    if len(parts.stages) != schedule.num_stages:
        raise UserError(
            f"model_parts has {len(parts.stages)} stages, the schedule runs {schedule.num_stages} "
            f"({ranks} ranks x {schedule.stages_per_rank}): split the model into {schedule.num_stages}"
        )
    if engine not in ("by_hand", "torch"):
        raise UserError(f"engine = {engine!r}: choose 'by_hand' or 'torch'")
    if engine == "torch" and not groups.has_group():
        raise UserError("engine = 'torch': no process group; call it inside `with dtlab.world():` on ranks")
    _refuse_split_backward_of_fsdp(parts, schedule)
    device = next((p.device for stage in parts.stages for p in stage.parameters()), torch.device("cpu"))
    if engine == "by_hand" and device.type != "cpu":
        raise UserError(
            f"engine = 'by_hand' sends CPU tensors over gloo, the model is on {device}: take 'torch'"
        )
    return Pipeline(parts, schedule, loss, engine, group, replicas, clock)


class Pipeline:
    """The stages of this rank, ready to train. Made by ``pipeline``.

    Attributes:
        stages: number -> module of this rank's stages, first to last.
        schedule: what is run.
        tied: copies of tied parameters on this rank that another rank counts (see ``TiedCopies.names``).
    """

    def __init__(
        self,
        parts: PipelineParts,
        schedule: Schedule,
        loss: SumLoss,
        engine: str,
        group: dist.ProcessGroup | None,
        replicas: DeviceMesh | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.schedule, self._group, self._rank = schedule, group, groups.rank(group)
        self.stages = {number: parts.stages[number] for number in schedule.stages_of(self._rank)}
        self._tied = TiedCopies(parts.tied, self.stages, schedule, self._rank, group)
        self.tied = self._tied.names
        self._replicas = Replicas(self.stages.values(), replicas)
        self._same = SameBatch(group, "pipeline")
        if groups.has_group() and groups.world_size(group) > 1:
            copies = {(number, name) for number, name in self.tied}
            for number, stage in self.stages.items():
                for name, parameter in stage.named_parameters():
                    mark_stage(parameter, group or dist.group.WORLD, is_copy=(number, name) in copies)
        self._hand = HandPipeline(self.stages, schedule, loss, self._rank, group, clock)
        self._engine: HandPipeline | TorchPipeline = self._hand
        if engine == "torch":
            from dtlab.parallel.torch_pipeline import TorchPipeline  # importing it takes a second

            self._engine = TorchPipeline(self.stages, schedule, loss, self._rank, group, clock)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of this rank, each once: for its optimizer."""
        return nn.ModuleList(self.stages.values()).parameters()

    def step(self, inputs: Tensor, targets: Tensor, divide_by: float | None = None) -> Tensor:
        """Forward and backward of one batch; gradients are added to ``.grad``, the loss goes to every rank.

        Args:
            inputs, targets: the whole batch, [B, ...] each, the same on all ranks of the pipeline.
            divide_by: samples or tokens of the global batch; default: B, summed over the replicas.

        Returns:
            The loss of the global batch, summed over micro-batches and replicas, and divided; 0-dimensional,
            float64, CPU.

        Raises:
            UserError: fewer samples than micro-batches; unequal micro-batches with torch's engine; ranks of
                the pipeline that were given different batches (compared at the first step and every 100th).
        """
        self._same.check(inputs, targets)
        divide_by = self._check(inputs, targets, divide_by)
        held = self._replicas.set_aside()
        before = self._tied.set_aside()
        total = self._engine.step(inputs, targets, divide_by)
        self._tied.sum_gradients(before)
        self._replicas.sum_gradients(held)
        return self._told_to_all(total)

    def evaluate(self, inputs: Tensor, targets: Tensor, divide_by: float | None = None) -> Tensor:
        """The loss of one batch, forwards only: no gradients, and the modules' mode is left as it is."""
        divide_by = self._check(inputs, targets, divide_by)
        engine = self._hand if inputs.device.type == "cpu" else self._engine  # by hand: any batch size
        return self._told_to_all(engine.evaluate(inputs, targets, divide_by))

    @property
    def spans(self) -> list[Span]:
        """What this rank ran in the last ``step``, in order, with ``clock`` around it."""
        return self._engine.spans

    def timeline(self) -> PipelineTimeline:
        """The last ``step`` of all ranks, for the figure; every rank calls it.

        The clocks of ranks on one host agree; over several hosts they do not.
        """
        most = max(map(len, self.schedule.ranks))
        rows = torch.zeros(most, 5, dtype=torch.float64)  # numbers, not objects: nothing is unpickled
        for row, ((stage, kind, i), start, end) in zip(rows, self.spans, strict=False):
            row.copy_(torch.tensor([stage, _KINDS.index(kind), i, start, end], dtype=torch.float64))
        told = [rows]
        if groups.world_size(self._group) > 1:
            rows = rows.to(groups.wire_device(self._group))
            told = [torch.zeros_like(rows) for _ in self.schedule.ranks]
            dist.all_gather(told, rows, group=self._group)
        ranks = []
        for actions, table in zip(self.schedule.ranks, told, strict=True):
            ranks.append(tuple(_span(row) for row in table[: len(actions)].tolist()))
        return PipelineTimeline(f"{self.schedule.name}, measured", tuple(ranks))

    def _check(self, inputs: Tensor, targets: Tensor, divide_by: float | None) -> float:
        if len(inputs) != len(targets):
            raise UserError(f"{len(inputs)} inputs, {len(targets)} targets: give one target for each sample")
        if len(inputs) < self.schedule.num_micro_batches:
            raise UserError(
                f"batch of {len(inputs)} samples cannot be cut into {self.schedule.num_micro_batches} "
                "micro-batches: take fewer micro-batches or a larger batch"
            )
        divide_by = self._replicas.total(len(inputs)) if divide_by is None else float(divide_by)
        if not divide_by > 0:
            raise UserError(f"divide_by = {divide_by}: give the number of samples or tokens, above 0")
        return divide_by

    def _told_to_all(self, total: Tensor) -> Tensor:
        if groups.world_size(self._group) > 1:
            last = self.schedule.rank_of(self.schedule.num_stages - 1)
            wire = total.to(groups.wire_device(self._group))
            dist.broadcast(wire, group=self._group, group_src=last)
            total = wire.cpu()
        return self._replicas.summed(total)


def _refuse_split_backward_of_fsdp(parts: PipelineParts, schedule: Schedule) -> None:
    """FSDP reduces a stage's gradients when that of its input is there; those of weights come later then."""
    is_split = any(action.kind is Kind.BACKWARD_WEIGHT for rank in schedule.ranks for action in rank)
    if is_split and any(hasattr(stage, "set_requires_gradient_sync") for stage in parts.stages):
        raise UserError(
            f"schedule = {schedule.name!r} takes the gradients of weights apart from those of inputs, and "
            "FSDP would reduce them before they are there: take '1f1b' or 'interleaved', or dp_replicate "
            "instead of dp_shard"
        )


_KINDS = list(Kind)


def _span(row: list[float]) -> Span:
    stage, kind, micro_batch, start, end = row
    return Span(Action(int(stage), _KINDS[int(kind)], int(micro_batch)), start, end)
