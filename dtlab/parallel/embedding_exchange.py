"""The two messages that a sharded table is made of, with their backward (lesson 07).

- ``exchange``: rows to the ranks that want them. Its backward sends each row's gradient back the same way.
- ``gather_counts``: how many rows each rank will send to each other, which both sides must know before.

The gradient that arrives is divided by the number of ranks, so that it adds up to the mean over the ranks, as
:func:`dtlab.parallel.data_parallel` gives it to all other parameters.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["all_to_all", "exchange", "gather_counts"]


def gather_counts(counts: Tensor, group: dist.ProcessGroup | None) -> list[int]:
    """``counts`` [n] int64, what this rank will send to each -> what each will send to this rank."""
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group)
    return received.tolist()


def all_to_all(
    tensor: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup | None
) -> Tensor:
    """``tensor`` [sum of sent, ...] -> [sum of received, ...]: its first ``sent[0]`` entries go to rank 0."""
    output = tensor.new_empty(sum(received), *tensor.shape[1:])
    dist.all_to_all_single(output, tensor.contiguous(), list(received), list(sent), group=group)
    return output


def exchange(
    tensor: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup | None
) -> Tensor:
    """:func:`all_to_all` that autograd can go back through: gradients return to the sender, divided by n."""
    return _Exchange.apply(tensor, sent, received, group)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sent: Any, received: Any, group: Any) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return all_to_all(tensor, sent, received, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        back = all_to_all(gradient, ctx.received, ctx.sent, ctx.group)
        return back.div_(dist.get_world_size(ctx.group)), None, None, None
