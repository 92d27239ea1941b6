"""The loss of windows of text, also where a pipeline's last stage computes it (lesson 09).

A window counts once, whatever its number of tokens: its loss is the mean over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor

from dtlab.models.gpt import IGNORED

__all__ = ["WindowLoss", "window_losses"]


def window_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """[B]: each window's mean cross-entropy in nats, of logits [B, S, V] against targets [B, S].

    A window whose targets are all -100 has the loss 0.

    >>> import torch
    >>> window_losses(torch.zeros(2, 1, 4), torch.tensor([[3], [-100]]))
    tensor([1.3863, 0.0000])
    """
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(targets.shape).mean(dim=1)


class WindowLoss:
    """What a pipeline's last stage calls: the sum of the windows' losses, which :meth:`kept` collects."""

    def __init__(self) -> None:
        self._kept: list[Tensor] | None = None

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = window_losses(logits, targets)
        if self._kept is not None:
            self._kept.append(losses.detach())
        return losses.sum()

    @contextmanager
    def kept(self) -> Iterator[list[Tensor]]:
        """Inside, each window's loss is kept: a tensor [b] for each micro-batch, in their order."""
        self._kept = []
        try:
            yield self._kept
        finally:
            self._kept = None
