"""Settle DDP's buckets before the first step, so that a resumed run adds in the same order (lesson 13).

torch's DDP fills its buckets anew after the first backward, in the order in which gradients arrived. A
parameter's place in its bucket decides in which order gloo adds the ranks, and floating-point addition
depends on the order. So on three or more ranks the first step after a start differs in its last bits from a
later one: an interrupted run and an uninterrupted one part there. Two backwards with weight zero before the
first step put every step, of every run, behind that change.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dtlab.data.draws import preserved
from dtlab.train.modes import kept_modes

__all__ = ["settle_buckets"]


def settle_buckets(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> None:
    """Two zero-weighted backwards through ``model`` (collective); its state and the generators stay.

    Call it on every rank after wrapping the model and before loading a checkpoint, in fresh runs as well: a
    run that settles and one that does not differ in their first step.

    Args:
        model: what ``data_parallel`` returned. Anything but torch's DDP is left alone.
        loss: computes a loss from a batch like those of training; the number of rows does not matter and may
            be zero.

    >>> settle_buckets(nn.Linear(2, 1), lambda model: model(torch.ones(1, 2)).sum())  # not DDP: nothing to do
    """
    if not isinstance(model, DistributedDataParallel):
        return
    kept = [(buffer, buffer.detach().clone()) for buffer in model.module.buffers()]
    cards = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with preserved(), kept_modes(model), torch.random.fork_rng(devices=cards, enabled=bool(cards)):
        model.train()
        # The first backward notes the order of arrival, the second forward builds the buckets.
        for _ in range(2):
            (loss(model) * 0.0).backward()  # type: ignore[no-untyped-call]
            model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in kept:
            buffer.copy_(before)
