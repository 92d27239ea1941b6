"""The same pipeline on ``torch.distributed.pipelining``: torch's stages and schedules (lesson 08).

Only torch's public classes are used. Each computation is recorded on its way, so the order in which torch
really executes can be compared with ours: its own listing of single-stage 1F1B is off by one in torch 2.13.
"""

import inspect
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from dtlab.errors import UserError
from dtlab.parallel.actions import Action, Kind, Schedule
from dtlab.parallel.hand_pipeline import Clock, SumLoss
from dtlab.parallel.schedules import SCHEDULES, build_schedule
from dtlab.parallel.simulate import Span

__all__ = ["TorchPipeline"]

_CLASSES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero_bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
}


class TorchPipeline:
    """This rank's part of a pipeline run by torch; made by ``pipeline(..., engine="torch")``.

    Raises:
        UserError: a schedule that torch does not have, or whose numbers torch refuses.
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
        self.clock = clock
        p, m, v = schedule.num_ranks, schedule.num_micro_batches, schedule.stages_per_rank
        if schedule.name not in SCHEDULES or build_schedule(schedule.name, p, m, v) != schedule:
            raise UserError(
                f"schedule {schedule.name!r} is none of torch's ({', '.join(SCHEDULES)}): run it with "
                "engine='by_hand'"
            )
        if schedule.name == "1f1b" and m < p:
            raise UserError(
                f"num_micro_batches = {m} is below the {p} ranks: torch's 1F1B takes {p} or more; "
                "engine='by_hand' runs fewer"
            )
        self._modules, self._schedule, self._loss, self._group = stages, schedule, loss, group
        self._built: tuple[torch.Size, torch.dtype] | None = None
        self._divide_by = 1.0
        self.spans: list[Span] = []

    def step(self, inputs: Tensor, targets: Tensor, divide_by: float) -> Tensor:
        """As ``HandPipeline.step``; the micro-batches must be of equal size.

        Raises:
            UserError: a batch that the micro-batches do not divide.
        """
        self._ready_for(inputs, divide_by)
        self.spans = []
        return self._run(self._engine.step, inputs, targets)

    def evaluate(self, inputs: Tensor, targets: Tensor, divide_by: float) -> Tensor:
        """As ``step``, but forwards only and without gradients.

        Raises:
            UserError: also for "zbv", and for a torch before its schedules had ``eval``.
        """
        if self._schedule.name == "zbv":
            raise UserError("torch's zbv runs no forwards alone: evaluate with another schedule")
        self._ready_for(inputs, divide_by)
        if not hasattr(self._engine, "eval"):
            raise UserError(f"torch {torch.__version__}: its pipeline cannot evaluate; take a newer torch")
        spans, self.spans = self.spans, []
        with torch.no_grad():
            total = self._run(self._engine.eval, inputs, targets)
        self.spans = spans
        return total

    def _ready_for(self, inputs: Tensor, divide_by: float) -> None:
        m = self._schedule.num_micro_batches
        if len(inputs) % m:
            raise UserError(
                f"batch of {len(inputs)} samples, {m} micro-batches: torch's pipeline takes equal ones, and "
                f"{m} does not divide {len(inputs)}; engine='by_hand' takes unequal ones"
            )
        shape = inputs[: len(inputs) // m].shape, inputs.dtype
        if self._built != shape:
            self._build(inputs.device)  # torch's receive buffers are made for one shape
            self._built = shape
        self._divide_by = divide_by

    def _run(self, run: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        arguments = (inputs,) if 0 in self._modules else ()
        options: dict[str, Any] = {}
        if self._schedule.num_stages - 1 in self._modules:
            options = {"target": targets, "losses": losses}
        if "return_outputs" in inspect.signature(run).parameters:
            options["return_outputs"] = False  # outputs would be kept to the end of the step for nobody
        run(*arguments, **options)
        return sum((loss.detach().double().cpu() for loss in losses), torch.zeros((), dtype=torch.float64))

    def _build(self, device: torch.device) -> None:
        stages = [
            _RecordedStage(module, number, self._schedule.num_stages, device, group=self._group, spans=self)
            for number, module in self._modules.items()
        ]
        single = self._schedule.name in ("gpipe", "1f1b")
        self._engine: Any = _CLASSES[self._schedule.name](
            stages[0] if single else stages,  # type: ignore[arg-type]
            self._schedule.num_micro_batches,
            loss_fn=lambda output, targets: self._loss(output, targets) / self._divide_by,
            scale_grads=False,  # the loss is a sum that is divided by the samples already
        )


class _RecordedStage(PipelineStage):
    """A stage that notes what it computes and when."""

    def __init__(self, *args: Any, spans: TorchPipeline, **options: Any) -> None:
        super().__init__(*args, **options)
        self._recorder = spans

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        start = self._recorder.clock()
        output = super().forward_one_chunk(fwd_chunk_id, *args, **options)
        self._note(Kind.FORWARD, fwd_chunk_id, start)
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        start = self._recorder.clock()
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self._note(Kind.BACKWARD if full_backward else Kind.BACKWARD_INPUT, bwd_chunk_id, start)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        start = self._recorder.clock()
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **options)
        self._note(Kind.BACKWARD_WEIGHT, bwd_chunk_id, start)

    def _note(self, kind: Kind, micro_batch: int, start: float) -> None:
        span = Span(Action(self.stage_index, kind, micro_batch), start, self._recorder.clock())
        self._recorder.spans.append(span)
