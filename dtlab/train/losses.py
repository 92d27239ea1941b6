"""Losses as sums over rows, so that the mean over all ranks can be taken exactly.

A loss function takes the model and a batch and returns the SUM of the rows' losses. The trainer divides
by the number of rows of the global batch. Means of means would weigh the rows of a small batch more.
"""

from __future__ import annotations

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


class MeanLoss:
    """Collects detached loss sums without waiting for the device; one division when it is read."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._total = 0.0
        self.rows = 0

    def add(self, loss_sum: Tensor, rows: int) -> None:
        self._sums.append(loss_sum)
        self.rows += rows
        if len(self._sums) >= 1024:
            self._fold()

    def _fold(self) -> None:
        if self._sums:
            self._total += float(torch.stack(self._sums).sum(dtype=torch.float64))
            self._sums.clear()

    def read(self) -> tuple[float, int]:
        """``(sum of losses, rows)`` of this rank since the last read; starts again from zero."""
        self._fold()
        total, rows = self._total, self.rows
        self._total, self.rows = 0.0, 0
        return total, rows
