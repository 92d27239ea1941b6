"""Fully sharded data parallelism: every rank keeps a part of each parameter (lesson 09).

``fully_sharded(model, mesh)`` cuts parameters, gradients and optimizer state over ``dp_shard`` ranks with
torch's ``fully_shard``. A block's parameters come together shortly before it computes and go again.

- Each block is a group of its own, so at most about two blocks are whole at a time. What no block holds
  (embedding, head, and a matrix that they share) is one more group.
- With ``dp_replicate`` > 1 the shards have copies (HSDP): all-gather and reduce-scatter stay among the
  ``dp_shard`` ranks of a host, one all-reduce of a shard crosses to the others.
- It goes over tensor parallelism: parameters that are cut by ``tp`` already are cut once more. With
  ``dp_shard`` = 1 it is the data parallelism of a tensor-parallel model, which torch's DDP does not offer.
- Gradients are the mean over the data-parallel ranks, as those of ``data_parallel``.

Rajbhandari et al., "ZeRO", arXiv 1910.02054; Zhao et al., "PyTorch FSDP", arXiv 2304.11277.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.errors import UserError
from dtlab.parallel.by_hand_ddp import broadcast_state
from dtlab.parallel.checks import sparse_parameters
from dtlab.parallel.same_model import check_same_model

__all__ = ["fully_sharded", "sum_gradients"]

_DATA_AXES = ("dp_replicate", "dp_shard")


def fully_sharded(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    blocks: Sequence[str] | None = None,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    reshard_after_forward: bool | int = True,
) -> nn.Module:
    """``model`` cut over the data-parallel ranks of ``mesh``, in place; every rank calls it.

    All ranks start from the parameters of the first data-parallel rank. Build the optimizer afterwards. A
    model on the meta device is cut as it is: ``model.to_empty(device=...)``, then ``scatter_state``, fill it.

    Args:
        mesh: from ``build_mesh``; its axes ``dp_replicate`` and ``dp_shard`` are used.
        blocks: names of the submodules that become groups; default: the members of ``model.blocks``, or the
            whole model as one group where there are none.
        param_dtype: computes forward and backward in this dtype, ``torch.bfloat16`` for example; parameters
            and optimizer state keep theirs. Default: the parameters' own.
        reduce_dtype: sums gradients in this dtype. Default: float32 when ``param_dtype`` has half the bits,
            since a sum of many ranks in bfloat16 loses small ones.
        reshard_after_forward: True gives a block's parameters away after forward and gathers them again for
            backward (least memory, ZeRO-3); False keeps them (a third less traffic, ZeRO-2); a number keeps
            them cut over that many neighbouring ranks, a divisor of ``dp_shard``: those of one host.

    Raises:
        UserError: a block that is not there, a parameter that two groups share, sparse gradients, a dtype
            that is not floating point, a number of ranks that does not divide ``dp_shard``, other models on
            other ranks.

    Example::

        mesh = build_mesh(ParallelDims(dp_shard=-1))
        model = fully_sharded(GPT(), mesh, param_dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes a second to import

    for name, dtype in (("param_dtype", param_dtype), ("reduce_dtype", reduce_dtype)):
        if dtype is not None and not dtype.is_floating_point:
            raise UserError(f"{name} = {dtype}: choose a floating-point dtype, such as torch.bfloat16")
    if param_dtype is not None and reduce_dtype is None and param_dtype.itemsize < 4:
        reduce_dtype = torch.float32
    reshard_after_forward = _checked_reshard(reshard_after_forward, mesh["dp_shard"].size())
    sparse = sparse_parameters(model)
    if sparse:
        raise UserError(f"{sparse[0]}: FSDP has no sparse gradients; take shard_embeddings, or sparse=False")
    groups = _groups(model, blocks)
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "shard_group"):
            raise UserError(
                f"{name}: its parts do not say what they are part of, so FSDP would mix them up; cut it with "
                "engine='dtensor', or take data_parallel"
            )
    for axis in reversed(_DATA_AXES):
        if mesh[axis].size() > 1 and not any(p.is_meta for p in model.parameters()):
            check_same_model(model, mesh[axis].get_group())
            broadcast_state(model, mesh[axis].get_group())
    data = mesh[_DATA_AXES] if mesh["dp_replicate"].size() > 1 else mesh["dp_shard"]
    options: dict[str, Any] = {
        "mesh": data,
        "mp_policy": MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype),
    }
    for block in groups:
        fully_shard(block, reshard_after_forward=reshard_after_forward, **options)
    # The last group is needed first in backward: torch keeps it whole unless it is the only one.
    last = reshard_after_forward if not groups else None if reshard_after_forward else False
    fully_shard(model, reshard_after_forward=last, **options)
    return model


def sum_gradients(model: nn.Module) -> nn.Module:
    """Let a ``fully_sharded`` model sum gradients over the ranks instead of taking their mean; returns it.

    For losses that are divided by the samples of all ranks already, as a pipeline's are.
    """
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)  # type: ignore[operator]
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                # In fp32 and bf16 torch would scale inside the collective, which only NCCL can.
                module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    return model


def _groups(model: nn.Module, blocks: Sequence[str] | None) -> list[nn.Module]:
    """The submodules that become groups. UserError: an unknown name, a parameter that two groups share."""
    if blocks is None:
        holder = getattr(model, "blocks", None)
        blocks = [f"blocks.{n}" for n, _ in holder.named_children()] if isinstance(holder, nn.Module) else []
    known = dict(model.named_modules())
    home: dict[nn.Parameter, str] = {}
    for block in blocks:
        if block not in known or not block:
            raise UserError(f"blocks: {type(model).__name__} has no submodule {block!r}")
        for name, parameter in known[block].named_parameters():
            other = home.setdefault(parameter, block)
            if other != block:
                raise UserError(
                    f"{block}.{name} is also a parameter of {other}: name a block that holds both"
                )
    for name, parameter in model.named_parameters(remove_duplicate=False):
        block = home.get(parameter, "")
        if block and not name.startswith(f"{block}."):
            raise UserError(f"{name} is also a parameter of {block}: leave {block} out of blocks")
    return [known[block] for block in blocks]


def _checked_reshard(reshard: bool | int, ranks: int) -> bool | int:
    if isinstance(reshard, bool):
        return reshard
    if reshard < 1 or ranks % reshard:
        fitting = ", ".join(str(number) for number in range(1, ranks + 1) if ranks % number == 0)
        raise UserError(
            f"reshard_after_forward = {reshard} does not divide dp_shard = {ranks}: give True, False, or one "
            f"of {fitting}"
        )
    return {1: False, ranks: True}.get(reshard, reshard)  # torch takes the numbers between alone
