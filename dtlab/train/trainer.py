"""The training step and the loop around it, on any number of ranks (lesson 03).

The arithmetic is exact: the gradient of one step is the gradient of the sum of losses over the global
batch divided by its row count, whatever the number of ranks and however unevenly a tail is shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dtlab.data.batch import Batch
from dtlab.data.loader import Loader
from dtlab.parallel.communication import AllReduceClock
from dtlab.parallel.ddp import data_parallel, unwrap
from dtlab.ranks import agreement
from dtlab.train.losses import Loss, MeanLoss, binary_cross_entropy
from dtlab.train.meter import Meter, Reading
from dtlab.train.metrics import Metrics, evaluate
from dtlab.train.progress import Progress


@dataclass(frozen=True)
class EpochResult:
    """One pass over the training rows, equal on every rank."""

    epoch: int
    steps: int
    loss: float
    """Mean loss per row over all ranks."""
    seconds: float
    samples_per_second: float
    wait_share: float
    """Share of the time spent waiting for data on this rank."""
    communication_share: float
    """Share of the time spent in gradient all-reduces, the wait for the slower rank included."""


class Trainer:
    """Trains ``model`` with ``optimizer`` on the ranks of the current world.

    Args:
        model: a plain module; it is replicated over the ranks by :func:`dtlab.data_parallel`.
        optimizer: built on ``model.parameters()``.
        loss: takes model and batch, returns the SUM of the rows' losses.
        engine: ``"torch"`` (DDP) or ``"by_hand"``.
        on_batch: called with every batch that reaches the model (sample coverage uses it).

    >>> trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3))  # doctest: +SKIP
    >>> for batch, rows in global_steps(loader):                                  # doctest: +SKIP
    ...     trainer.step(batch, rows)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        loss: Loss = binary_cross_entropy,
        engine: Literal["torch", "by_hand"] = "torch",
        log_every: int = 100,
        on_batch: Callable[[Batch], None] | None = None,
        on_reading: Callable[[Reading], None] | None = None,
        show_progress: bool | None = None,
    ) -> None:
        self.model = data_parallel(model, engine=engine)
        self.clock = AllReduceClock(self.model)
        self.optimizer = optimizer
        self.rank, self.world_size = agreement.rank(), agreement.world_size()
        self.steps_done = 0
        self._loss = loss
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self._parameters[0].device
        self._dtype = self._parameters[0].dtype
        self._scales: dict[int, Tensor] = {}
        self._on_batch, self._on_reading, self._log_every = on_batch, on_reading, log_every
        self._show = self.rank == 0 if show_progress is None else show_progress

    def step(self, batch: Batch, rows: int) -> Tensor:
        """One optimizer step; ``rows`` is the row count of the GLOBAL batch. Returns this rank's loss sum.

        ``batch`` holds this rank's rows, possibly none of them.
        """
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._loss(self.model, batch)
        # The ranks' gradients are averaged, so each rank's sum is scaled by world_size / rows. Handing the
        # factor to backward costs no extra operation in the graph.
        loss.backward(self._scales.get(rows) if rows in self._scales else self._scale(rows))
        self.optimizer.step()
        self.steps_done += 1
        return loss.detach()

    def _scale(self, rows: int) -> Tensor:
        if rows < 1:
            raise ValueError(f"rows = {rows}: a step needs at least one row over all ranks")
        scale = torch.tensor(self.world_size / rows, device=self._device, dtype=self._dtype)
        self._scales[rows] = scale
        return scale

    def train_epoch(self, loader: Loader, *, label: str = "", max_steps: int | None = None) -> EpochResult:
        """Run from the loader's position to the end of its epoch, or for ``max_steps`` steps."""
        epoch = loader.sampler.epoch
        total = loader.sampler.steps_left if max_steps is None else min(loader.sampler.steps_left, max_steps)
        meter = Meter(self.clock, loader)
        progress = Progress(total, label or f"epoch {epoch + 1}", show=self._show)
        losses, steps, started = MeanLoss(), 0, time.perf_counter()
        self.model.train()
        for batch, rows in global_steps(loader, total):
            if self._on_batch is not None:
                self._on_batch(batch)
            losses.add(self.step(batch, rows), len(batch))
            steps += 1
            meter.add(rows)
            if steps % self._log_every == 0:
                reading = meter.read(self.steps_done)
                if self._on_reading is not None:
                    self._on_reading(reading)
            if progress.active:
                progress.update(steps, meter.samples_per_second)
        progress.close()
        seconds = time.perf_counter() - started
        loss_sum, rows_seen = losses.read()
        totals = agreement.mean(
            {"loss": loss_sum, "rows": float(rows_seen), "communication": meter.communication_seconds}
        )
        all_rows = totals["rows"] * self.world_size
        return EpochResult(
            epoch=epoch + 1,
            steps=steps,
            loss=totals["loss"] * self.world_size / max(1.0, all_rows),
            seconds=seconds,
            samples_per_second=all_rows / seconds,
            wait_share=meter.wait_seconds / seconds,
            communication_share=totals["communication"] / seconds,
        )

    def evaluate(self, table: Batch, *, batch: int = 16384) -> Metrics:
        """Metrics of the model on ``table``; each row counts once."""
        return evaluate(unwrap(self.model), table, batch=batch)


def global_steps(loader: Loader, steps: int | None = None) -> Iterator[tuple[Batch, int]]:
    """``(this rank's batch, rows of the global batch)`` for each step; the count comes from the sampler.

    Stops after ``steps`` steps if given, leaving the loader at the position of the next one.
    """
    sampler = loader.sampler
    for number, batch in enumerate(loader, start=1):
        yield batch, sampler.last_size
        if number == steps:
            return
