"""Tensor parallelism by hand: one matrix on several ranks, two communication operators (lesson 07).

``y = B(gelu(A(x)))`` with A cut by columns (of ``x @ A``: its outputs) and B by rows (its inputs). Each rank
holds 1/t of both, computes with its part alone, and the parts of y are summed once:

- ``f`` (``copy_to_ranks``) stands before A: identity forward, all-reduce backward. Every rank uses x, so the
  gradients of its parts add up.
- ``g`` (``sum_over_ranks``) stands behind B: all-reduce forward, identity backward.

So an MLP or an attention layer costs one all-reduce of [B, S, D] forward and one backward. Between A and B
anything that works on each output by itself may stand: gelu, or attention when A is cut by heads.

Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import UserError
from dtlab.parallel.sharded import mark_sharded
from dtlab.ranks import groups

__all__ = ["ColumnLinear", "RowLinear", "copy_to_ranks", "gather_last", "shard_of", "sum_over_ranks"]

Group = dist.ProcessGroup | None


def copy_to_ranks(x: Tensor, group: Group = None) -> Tensor:
    """``f``: ``x`` itself; in backward the sum of its gradients over the ranks."""
    return _Copy.apply(x, group)


def sum_over_ranks(x: Tensor, group: Group = None) -> Tensor:
    """``g``: the sum of ``x`` over the ranks; in backward the gradient itself."""
    return _Sum.apply(x, group)


def gather_last(x: Tensor, group: Group = None) -> Tensor:
    """[..., n] on each rank -> [..., n * ranks] on all; in backward each rank takes its own part."""
    return _Gather.apply(x, group)


class ColumnLinear(nn.Module):
    """The part of a linear layer that gives this rank's share of the outputs: [..., in] -> [..., out / t].

    Args:
        whole: the full layer, the same on all ranks; its numbers are copied.
        copy_input: put ``f`` before it. False when the input has passed ``f`` already, as for query, key and
            value, which share one.

    Raises:
        UserError: outputs that the ranks do not divide.

    >>> layer = ColumnLinear(nn.Linear(4, 6))  # a world of one
    >>> layer(torch.ones(2, 4)).shape
    torch.Size([2, 6])
    """

    def __init__(self, whole: nn.Linear, group: Group = None, *, copy_input: bool = True) -> None:
        super().__init__()
        self.group, self.copy_input = group, copy_input
        self.weight = shard_of(whole.weight, 0, group, "out_features")
        self.bias = None if whole.bias is None else shard_of(whole.bias, 0, group, "out_features")

    def forward(self, x: Tensor) -> Tensor:
        if self.copy_input:
            x = copy_to_ranks(x, self.group)
        return nn.functional.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """The part of a linear layer that takes this rank's share of the inputs: [..., in / t] -> [..., out].

    The bias is added once, behind the sum, and every rank holds all of it.

    Raises:
        UserError: inputs that the ranks do not divide.
    """

    def __init__(self, whole: nn.Linear, group: Group = None) -> None:
        super().__init__()
        self.group = group
        self.weight = shard_of(whole.weight, 1, group, "in_features")
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        total = sum_over_ranks(nn.functional.linear(x, self.weight), self.group)
        return total if self.bias is None else total + self.bias


def shard_of(whole: Tensor, dim: int, group: Group = None, name: str = "size") -> nn.Parameter:
    """This rank's equal part of ``whole`` along ``dim``, marked as sharded.

    Raises:
        UserError: a size that the ranks do not divide.
    """
    ranks, size = groups.world_size(group), whole.shape[dim]
    if size % ranks:
        raise UserError(f"{name} = {size} cannot be cut into {ranks} equal parts: take tp that divides it")
    part = whole.detach().chunk(ranks, dim)[groups.rank(group)].clone()
    parameter = nn.Parameter(part, requires_grad=getattr(whole, "requires_grad", True))
    mark_sharded(parameter, group)
    parameter.shard_dim = dim  # type: ignore[attr-defined]
    return parameter


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _all_reduced(gradient, ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return _all_reduced(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        ranks = groups.world_size(group)
        if ranks == 1:
            return x.view_as(x)
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(ranks)]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ranks = groups.world_size(ctx.group)
        return gradient.chunk(ranks, -1)[groups.rank(ctx.group)], None


def _all_reduced(x: Tensor, group: Group) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)  # autograd may still need x
    if groups.world_size(group) > 1:
        dist.all_reduce(total, group=group)
    return total
