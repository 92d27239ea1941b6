"""One optimizer step with everything: micro-batches, number format, clipping, schedule (lessons 05, 06).

- This rank's part of the global batch is cut into micro-batches of at most ``micro_batch`` rows. All ranks
  make the same number of them; in the tail of an epoch some may be empty.
- Gradients travel once, with the last micro-batch. The price: until then a rank holds its own sum beside the
  buckets, 4 bytes per parameter in float32. The gain: only one micro-batch's activations exist at a time.
- The divisor is the number of rows, or of tokens if they are counted, over all ranks and micro-batches. So
  the result is that of one big batch, also for a window that is only partly filled.
- A step that is skipped does not count in the schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dtlab.data.batch import Batch
from dtlab.data.rows import rows_of, split_rows
from dtlab.errors import UserError
from dtlab.parallel.ddp import no_sync, unwrap
from dtlab.ranks.seeds import mix
from dtlab.train.flags import Flags
from dtlab.train.losses import CheckedLoss, Loss
from dtlab.train.non_finite import NonFinite
from dtlab.train.precision import Precision, StepOutcome
from dtlab.train.schedule import Schedule

__all__ = ["FullStep", "micro_sizes"]


def micro_sizes(mine: int, rows: int, world_size: int, micro_batch: int | None) -> list[int]:
    """Rows of each micro-batch of one step, for a rank that holds ``mine`` of ``rows`` rows.

    The number of micro-batches is the same on every rank: that of a rank with the most rows.

    >>> micro_sizes(5, 10, 2, 2), micro_sizes(4, 9, 2, 2)
    ([2, 2, 1], [2, 2, 0])
    """
    if micro_batch is None:
        return [mine]
    most = -(-rows // world_size)
    if mine > most:
        raise UserError(
            f"batch of {mine} rows: with {rows} rows on {world_size} ranks a rank holds at most {most}; "
            "share the rows evenly, as GlobalBatchSampler does"
        )
    number = max(1, -(-most // micro_batch))
    return [max(0, min(micro_batch, mine - start * micro_batch)) for start in range(number)]


class FullStep:
    """Called with this rank's batch and the row count of the global batch; returns this rank's loss sum.

    Arguments as for :class:`dtlab.Trainer`, which makes it; ``rank`` of ``world_size``: which part of the
    samples is this rank's.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Loss,
        *,
        precision: Precision,
        clip: float | None,
        schedule: Schedule | None,
        micro_batch: int | None,
        count: Callable[[Any], float | Tensor] | None,
        flags: Flags,
        non_finite: NonFinite,
        seed: int | None,
        rank: int,
        world_size: int,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.precision, self.clip, self.schedule, self.micro_batch = precision, clip, schedule, micro_batch
        self.counted = 0.0
        """Tokens of this rank in the last step, when they are counted."""
        self.outcome: StepOutcome | None = None
        """What became of the last step; its norm is that before clipping."""
        self._loss, self._count, self._flags, self._non_finite = loss, count, flags, non_finite
        self._seed, self._rank, self._world_size = seed, rank, world_size
        names = {id(parameter): name for name, parameter in unwrap(model).named_parameters()}
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._named = [(names.get(id(parameter), ""), parameter) for parameter in parameters]
        self._parameters = parameters
        self._factors: dict[tuple[float, torch.dtype], Tensor] = {}
        self.check = CheckedLoss()

    @property
    def applied(self) -> bool:
        """Whether the last step moved the weights."""
        return self.outcome is not None and self.outcome.applied

    def __call__(self, batch: Batch, rows: int, step: int) -> Tensor:
        self._non_finite.before(step)
        if self._count is not None:
            self.counted = float(self._count(batch))
            self._flags.start(self.counted, steps=1)
        if self._seed is not None:
            draw_from(self._seed, step, self._rank)
        for parameter in self._parameters:
            parameter.grad = None
        total = self._forward_backward(batch, rows, step)
        self._finish(step)
        return total

    def _forward_backward(self, batch: Batch, rows: int, step: int) -> Tensor:
        """Gradients of the global batch's mean loss, on every rank; returns this rank's loss sum."""
        sizes = micro_sizes(rows_of(batch), rows, self._world_size, self.micro_batch)
        pieces = [batch] if len(sizes) == 1 else split_rows(batch, sizes)
        total: Tensor | None = None
        factor: Tensor | None = None
        for number, piece in enumerate(pieces, start=1):
            with nullcontext() if number == len(pieces) else no_sync(self.model):
                with self.precision.autocast():
                    loss = self.check(self._loss(self.model, piece), sizes[number - 1])
                if factor is None:
                    factor = self._factor(rows, step, loss)
                self.precision.scale(loss).backward(factor)
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    def _factor(self, rows: int, step: int, loss: Tensor) -> Tensor:
        """Ranks' gradients are averaged: each sum is scaled by world_size / all rows (or tokens)."""
        divisor = float(rows)
        if self._count is not None:
            divisor = self._flags.finish()
            if not divisor > 0:
                raise UserError(f"step {step}: {divisor:g} tokens over all ranks; a step needs at least one")
        key = (divisor, loss.dtype)
        if key not in self._factors:
            if len(self._factors) > 64:  # token counts differ from step to step
                self._factors.clear()
            self._factors[key] = loss.new_tensor(self._world_size / divisor)
        return self._factors[key]

    def _finish(self, step: int) -> None:
        if self.schedule is not None:
            self.schedule.apply(self.optimizer)
        self.outcome = self.precision.optimizer_step(self.optimizer, self._named, self.clip)
        if self.outcome.applied:
            self._non_finite.applied()
            if self.schedule is not None:
                self.schedule.advance()
        else:
            self._non_finite.skipped(
                self.outcome,
                step,
                in_a_row=self.precision.skipped_in_a_row,
                scaled=self.precision.uses_scaler,
            )


def draw_from(seed: int, step: int, rank: int) -> None:
    """Seed torch's generators for one step: dropout depends on (seed, step, rank) and not on the past."""
    mixed = mix("step", seed, step, rank)
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.manual_seed(mixed)
