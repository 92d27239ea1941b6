"""Mean and variance of a feature over all samples of all ranks, however unequal their batches (lesson 03).

The mean of the ranks' means is wrong as soon as one rank has more samples: 4 samples of 1 on rank 0 and 2 of
4 on rank 1 have the mean 2, not 2.5.

Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983 (merging of partial moments).
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Statistics", "weighted_statistics"]


class Statistics(NamedTuple):
    """``mean`` and ``variance`` (biased: divided by the count) of each feature, and the number of samples."""

    mean: Tensor
    variance: Tensor
    num_samples: int


def weighted_statistics(samples: Tensor, group: dist.ProcessGroup | None = None) -> Statistics:
    """Exact statistics of ``samples`` [B, ...] over the ranks; B may differ and may be 0.

    Every rank gets the same. One all-gather of 2 numbers per feature; the merge runs in float64 and in rank
    order. Without any sample mean and variance are NaN. No gradient flows through it.

    >>> weighted_statistics(torch.tensor([[1.0], [3.0]]))
    Statistics(mean=tensor([2.]), variance=tensor([1.]), num_samples=2)
    """
    values = samples.detach().double()
    own_mean = values.mean(0) if len(values) else values.new_zeros(values.shape[1:])
    own_squares = (values - own_mean).square().sum(0)
    own = torch.cat([values.new_tensor([len(values)]), own_mean.flatten(), own_squares.flatten()])
    every = [own]
    if dist.is_initialized():
        every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, own, group=group)
    counts = torch.stack([moments[0] for moments in every])
    means, squares = torch.stack([moments[1:] for moments in every]).chunk(2, dim=1)
    total = counts.sum()
    mean = (counts.unsqueeze(1) * means).sum(0) / total
    between = counts.unsqueeze(1) * (means - mean).square()
    variance = (squares + between).sum(0) / total
    shape = samples.shape[1:]
    kind = samples.dtype if samples.is_floating_point() else torch.float64
    return Statistics(mean.view(shape).to(kind), variance.view(shape).to(kind), int(total))
