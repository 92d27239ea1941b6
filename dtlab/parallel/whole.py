"""The whole of a tensor that ranks hold in parts, and back: what full state dicts are made of (lesson 09)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.parallel.sharded import shard_group, shard_table
from dtlab.ranks import groups

__all__ = ["part_of", "whole"]


def whole(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """``tensor`` as one process would hold it, on every rank that has a part; detached. A collective.

    ``like``: the parameter that says how ``tensor`` is cut, for what does not say it itself, such as an
    optimizer's moments; default: ``tensor``. What is not cut, or has another shape, comes back as it is.

    >>> whole(torch.ones(2))
    tensor([1., 1.])
    """
    layout: Any = tensor if like is None else like
    if hasattr(tensor, "full_tensor"):
        return _of_all_axes(tensor)
    if shard_table(layout) is not None:
        found: Tensor = shard_table(layout).whole_of(tensor.detach())
        return found
    if not hasattr(layout, "shard_dim") or tensor.shape != layout.shape:
        return tensor.detach()
    group, part = shard_group(layout), tensor.detach().contiguous()
    parts = [part]
    if groups.world_size(group) > 1:
        parts = [torch.empty_like(part) for _ in range(groups.world_size(group))]
        dist.all_gather(parts, part, group=group)
    joined = torch.cat(parts, layout.shard_dim)
    return joined[: getattr(layout, "whole_size", len(joined))]


def _of_all_axes(tensor: Any) -> Tensor:
    """A DTensor's whole, mesh axis by axis: ``full_tensor`` warns where two axes cut one dimension."""
    from torch.distributed.tensor import Replicate

    placements = list(tensor.placements)
    for axis in range(len(placements)):
        placements[axis] = Replicate()
        tensor = tensor.redistribute(placements=tuple(placements))
    found: Tensor = tensor.to_local().detach()
    return found


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """This rank's part of the whole ``value``, cut as the parameter ``like`` is; no message is sent.

    A value of another shape than the whole parameter (an optimizer's step count) comes back as it is.

    >>> part_of(torch.ones(2), torch.zeros(2))
    tensor([1., 1.])
    """
    layout: Any = like
    value = value.to(like.device)
    if hasattr(like, "full_tensor"):
        if value.shape != like.shape:
            return value
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, layout.device_mesh, layout.placements, src_data_rank=None)
    if shard_table(layout) is not None:
        part: Tensor = shard_table(layout).part_of(value)
        return part
    if not hasattr(layout, "shard_dim") or value.dim() != like.dim():
        return value
    group, dim = shard_group(layout), layout.shard_dim
    size = like.shape[dim]
    missing = size * groups.world_size(group) - value.shape[dim]
    if missing > 0:  # rows that only pad
        value = torch.cat([value, value.new_zeros(missing, *value.shape[1:])])
    return value.narrow(dim, groups.rank(group) * size, size).contiguous()
