"""A pipeline by hand: run the actions of any legal schedule, one after the other (lesson 08).

A backward in two parts goes through the stage twice here (first for the input, then for the weights); torch's
engine cuts the graph between them. Both give the same gradients.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.parallel.actions import Action, Kind, Schedule
from dtlab.parallel.simulate import Span
from dtlab.parallel.stage_messages import StageMessages

__all__ = ["Clock", "HandPipeline", "SumLoss"]

Clock = Callable[[], float]
"""Seconds, as ``time.perf_counter`` or ``time.thread_time``."""

SumLoss = Callable[[Tensor, Tensor], Tensor]
"""(output of the last stage, targets) -> the sum of the samples' losses, 0-dimensional."""


@dataclass
class _Kept:
    """What the backward of one stage and one micro-batch needs."""

    input: Tensor
    output: Tensor  # on the last stage: the loss
    gradient: Tensor | None = None  # of the output, once it has come


class HandPipeline:
    """The stages of one rank and the loop over its actions; made by ``pipeline(..., engine="by_hand")``.

    Args:
        stages: number -> module of this rank's stages.
        schedule: a legal one.
        rank: this rank in ``group``.
        clock: what the spans are timed by, in seconds.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        schedule: Schedule,
        loss: SumLoss,
        rank: int,
        group: dist.ProcessGroup | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._stages, self._schedule, self._loss, self._rank = stages, schedule, loss, rank
        self._messages = StageMessages(schedule, rank, group)
        self._last = schedule.num_stages - 1
        self.spans: list[Span] = []
        """What ran in the last step, and when by ``clock``."""

    def step(self, inputs: Tensor, targets: Tensor, divide_by: float) -> Tensor:
        """All micro-batches through this rank's stages; gradients are added to ``.grad``.

        Returns the loss over the micro-batches, divided by ``divide_by``; 0 on ranks without the last stage.
        """
        self.spans = []
        return self._run(inputs, targets, divide_by, backward=True)

    def evaluate(self, inputs: Tensor, targets: Tensor, divide_by: float) -> Tensor:
        """As ``step``, but forwards only and without gradients."""
        return self._run(inputs, targets, divide_by, backward=False)

    def _run(self, inputs: Tensor, targets: Tensor, divide_by: float, *, backward: bool) -> Tensor:
        m = self._schedule.num_micro_batches
        self._inputs, self._targets = inputs.tensor_split(m), targets.tensor_split(m)
        self._divide_by = divide_by
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._total = torch.zeros((), dtype=torch.float64)
        for action in self._schedule.ranks[self._rank]:
            if action.kind is Kind.FORWARD:
                self._forward(action, backward)
            elif backward:
                self._backward(action)
        self._messages.finish({micro_batch.shape for micro_batch in self._inputs})
        return self._total

    def _forward(self, action: Action, keep: bool) -> None:
        stage, _, i = action
        shape = self._inputs[i].shape
        x = self._inputs[i] if stage == 0 else self._messages.receive_activation(stage, i, shape)
        start = self._clock()
        with torch.set_grad_enabled(keep):
            if stage > 0:
                x.requires_grad_(keep)
            output = self._stages[stage](x)
            if not isinstance(output, Tensor):
                raise UserError(f"stage {stage} gave a {type(output).__name__}: a stage hands on one tensor")
            if stage == self._last:
                output = self._loss(output, self._targets[i]) / self._divide_by
                self._total += output.detach()
        if keep:
            self.spans.append(Span(action, start, self._clock()))
            self._kept[stage, i] = _Kept(x, output)
        if stage < self._last:
            self._messages.send_activation(stage + 1, i, output.detach(), shape)

    def _backward(self, action: Action) -> None:
        stage, kind, i = action
        kept = self._kept[stage, i]
        if kind is not Kind.BACKWARD_WEIGHT and stage < self._last:
            kept.gradient = self._messages.receive_gradient(stage, i, kept.output)
        start = self._clock()
        if kept.output.requires_grad:
            self._differentiate(kept, stage, kind)
        self.spans.append(Span(action, start, self._clock()))
        if kind is not Kind.BACKWARD_WEIGHT and stage > 0:
            gradient, kept.input.grad = kept.input.grad, None
            self._messages.send_gradient(
                stage, i, torch.zeros_like(kept.input) if gradient is None else gradient
            )
        if kind is not Kind.BACKWARD_INPUT:
            del self._kept[stage, i]

    def _differentiate(self, kept: _Kept, stage: int, kind: Kind) -> None:
        if kind is Kind.BACKWARD:
            torch.autograd.backward(kept.output, kept.gradient)
        elif kind is Kind.BACKWARD_INPUT:
            if stage > 0:
                (kept.input.grad,) = torch.autograd.grad(
                    kept.output, kept.input, kept.gradient, retain_graph=True, allow_unused=True
                )
        else:
            weights = [weight for weight in self._stages[stage].parameters() if weight.requires_grad]
            if weights:
                torch.autograd.backward(kept.output, kept.gradient, inputs=weights)
