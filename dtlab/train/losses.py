"""Losses as sums over rows, so that the mean over all ranks can be taken exactly.

A loss function takes the model and a batch and returns the SUM of the rows' losses. The trainer divides
by the number of rows of the global batch. Means of means would weigh the rows of a small batch more.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.data.batch import Batch
from dtlab.errors import UserError

Loss = Callable[[nn.Module, Batch], Tensor]


def binary_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Sum of the log losses of ``model(categorical, dense) -> logits [B]`` against ``labels [B]``.

    Row weights, when the batch has them, multiply the rows' losses; the divisor stays the row count.
    """
    if batch.labels is None:
        raise UserError("labels = None: training needs a labelled table")
    logits = model(batch.categorical, batch.dense)
    if batch.weights is None:
        return F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
    return F.binary_cross_entropy_with_logits(logits, batch.labels, weight=batch.weights, reduction="sum")


def require_sum(loss: object) -> None:
    """Refuse what a loss function may return by mistake: a float, one loss for each row, a detached sum.

    Raises:
        UserError: no tensor of one number from which a backward can start.

    >>> require_sum(torch.ones(2, requires_grad=True).sum())
    """
    fix = "return the sum of the rows' losses as a tensor"
    if not isinstance(loss, Tensor):
        raise UserError(f"loss returned a {type(loss).__name__}: {fix}, without .item() or float()")
    if loss.numel() != 1:
        raise UserError(f"loss returned a tensor of shape {list(loss.shape)}: {fix}, for example with .sum()")
    if not loss.requires_grad:
        raise UserError(
            f"loss returned a tensor without a graph: {fix} that no detach() or no_grad() cut off"
        )


class MeanLoss:
    """Collects detached loss sums without waiting for the device; one division when it is read."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._total = 0.0
        self._folded = 0
        self.rows: float = 0
        self.first_bad: int | None = None
        """Which of the sums since the last read was the first that is not finite (0-based), once folded."""

    def add(self, loss_sum: Tensor, rows: float) -> None:
        self._sums.append(loss_sum)
        self.rows += rows
        if len(self._sums) >= 1024:
            self._fold()

    def _fold(self) -> None:
        if not self._sums:
            return
        sums = torch.stack(self._sums)
        part = float(sums.sum(dtype=torch.float64))
        if not math.isfinite(part) and self.first_bad is None:
            bad = (~sums.isfinite()).nonzero().flatten().tolist()
            self.first_bad = self._folded + bad[0] if bad else None
        self._total += part
        self._folded += len(self._sums)
        self._sums.clear()

    def total(self) -> float:
        """Sum of losses of this rank so far (waits for the device)."""
        self._fold()
        return self._total

    def read(self) -> tuple[float, float]:
        """``(sum of losses, rows)`` of this rank since the last read; starts again from zero."""
        self._fold()
        total, rows = self._total, self.rows
        self._total, self.rows, self._folded, self.first_bad = 0.0, 0, 0, None
        return total, rows
