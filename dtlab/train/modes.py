"""Train and eval mode, module by module: a part that the user froze by ``eval()`` stays frozen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["kept_modes"]


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Whatever mode the block sets, every module comes out in the one it had.

    ``model.train(was_training)`` would wake a BatchNorm whose statistics are to stay.

    >>> model = nn.Sequential(nn.BatchNorm1d(2))
    >>> _ = model[0].eval()
    >>> with kept_modes(model):
    ...     _ = model.train()
    >>> model.training, model[0].training
    (True, False)
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training
