"""One optimizer step through a pipeline: its micro-batches are the accumulation (lessons 08, 09).

Everything around forward and backward is that of :class:`dtlab.train.step.FullStep`: the schedule, clipping
by the norm over all stages, the look at gradients that are not finite, which that norm decides for all.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dtlab.errors import UserError
from dtlab.models.gpt import IGNORED
from dtlab.parallel.pipelined_model import PipelinedModel, padded
from dtlab.train.step import FullStep

__all__ = ["PipelinedStep"]


class PipelinedStep(FullStep):
    """Called as ``FullStep``, with batches that have ``tokens`` and ``targets``, the same on all stages.

    In the tail of an epoch a batch is filled up with rows that count nothing: each micro-batch has one.

    Raises:
        UserError: tokens are to be counted; the pipeline's loss is a sum over rows.
    """

    model: PipelinedModel

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self._count is not None:
            raise UserError("count: a pipeline's step divides by rows; leave it out")

    def _forward_backward(self, batch: Any, rows: int, step: int) -> Tensor:
        pipe = self.model.pipe
        inputs, targets = padded(batch.tokens, batch.targets, pipe.schedule.num_micro_batches, IGNORED)
        with self.precision.autocast():
            mean = pipe.step(inputs, targets, rows)
        # The pipeline gives the mean over the global batch to all; each part of the samples counts its share.
        return mean * (rows / self._world_size)
