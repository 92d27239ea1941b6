"""The norm of all gradients together, and clipping by it (lessons 06 and 09).

Dense and sparse gradients count alike. Under data parallelism the gradients are already the mean over the
ranks, so every rank computes the same norm and no message is needed. Every number of the model counts once:

- squares of parts are summed over the ranks that hold the parts, those of replicas are not;
- squares of stages are summed over the pipeline, and of a tied parameter one copy counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from dtlab.errors import UserError
from dtlab.parallel.sharded import (
    is_sharded,
    is_tied_copy,
    laid_out_gradient,
    local_part,
    shard_group,
    stage_group,
)


@torch.no_grad()
def total_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The 2-norm of all gradients, a 0-dimensional tensor; not finite as soon as one entry is not.

    Rows that a sparse gradient lists twice are added up first (in place of ``.grad``). Parameters without a
    gradient do not count; without any gradient the norm is 0. With sharded parameters, or those of a
    pipeline, it is a collective.

    >>> weight = torch.zeros(2, requires_grad=True)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> float(total_norm([weight]))
    5.0
    """
    # Gradients by the groups over which their squares are summed. Every rank of a group meets the kinds in
    # the same order, also a rank whose parts have no gradient.
    kinds: dict[tuple[dist.ProcessGroup | None, ...], list[Tensor]] = {}
    stages: list[dist.ProcessGroup] = []
    device = torch.device("cpu")
    for parameter in parameters:
        device = parameter.device
        pipeline = stage_group(parameter)
        if pipeline is not None and pipeline not in stages:
            stages.append(pipeline)
        found = kinds.setdefault(_shared_by(parameter), [])
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            gradient = parameter.grad.values()
        else:
            gradient = local_part(laid_out_gradient(parameter))
        if not is_tied_copy(parameter):
            found.append(gradient)
    norms = []
    for groups, gradients in kinds.items():
        norm = get_total_norm(gradients) if gradients else torch.zeros((), device=device)
        norms.append(_summed(norm, groups))
    total = norms[0] if len(norms) == 1 else get_total_norm(norms)
    return _summed(total, stages)


def _shared_by(parameter: Any) -> tuple[dist.ProcessGroup | None, ...]:
    """The groups over which a parameter is cut; () for a whole one."""
    if hasattr(parameter, "full_tensor"):
        mesh = parameter.device_mesh
        return tuple(
            mesh.get_group(axis)
            for axis, placement in enumerate(parameter.placements)
            if not placement.is_replicate() and mesh.size(axis) > 1
        )
    return (shard_group(parameter),) if is_sharded(parameter) else ()


def _summed(norm: Tensor, groups: Sequence[dist.ProcessGroup | None]) -> Tensor:
    if not groups:
        return norm
    squares = norm.double().square()
    for group in groups:
        dist.all_reduce(squares, group=group)
    return squares.sqrt().to(norm.dtype)


@torch.no_grad()
def clip_by_norm(parameters: Iterable[Tensor], max_norm: float, norm: Tensor) -> None:
    """Scale all gradients by ``max_norm / (norm + 1e-6)`` where that is below 1, as torch does.

    >>> weight = torch.zeros(2, requires_grad=True)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_by_norm([weight], 1.0, total_norm([weight]))
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    sparse = [parameter for parameter in with_gradient if parameter.grad.is_sparse]  # type: ignore[union-attr]
    dense = [parameter for parameter in with_gradient if not parameter.grad.is_sparse]  # type: ignore[union-attr]
    kinds: dict[Any, list[Tensor]] = {}  # torch does not scale those of several meshes in one call
    for parameter in dense:
        kinds.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    for kind in kinds.values():
        torch.nn.utils.clip_grads_with_norm_(kind, max_norm, norm)
    if sparse:
        factor = min(1.0, max_norm / (float(norm) + 1e-6))
        for parameter in sparse:
            assert parameter.grad is not None
            parameter.grad.mul_(factor)


def not_finite(named_parameters: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Names of the parameters whose gradient holds a nan or an infinity, in this rank's part of it."""
    names = []
    for name, parameter in named_parameters:
        if parameter.grad is not None:
            sparse = parameter.grad.is_sparse
            entries = parameter.grad.coalesce().values() if sparse else local_part(parameter.grad)
            if not bool(entries.isfinite().all()):
                names.append(name)
    return names


def has_gradient(optimizer: Optimizer) -> bool:
    """Whether any parameter of the optimizer has a gradient."""
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def named_parameters_of(
    optimizers: list[Optimizer], parameters: Iterable[Tensor] | Iterable[tuple[str, Tensor]] | None
) -> list[tuple[str, Tensor]]:
    """Pairs of name and parameter; the name is empty where nobody gave one.

    ``parameters`` None means those of the optimizers, which know the names when they were built on them.

    Raises:
        UserError: ``parameters`` leave out some of the optimizers'.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if parameters is None:
        return [
            (name, parameter)
            for group in groups
            for name, parameter in zip(
                group.get("param_names", [""] * len(group["params"])), group["params"], strict=True
            )
        ]
    named = [("", entry) if isinstance(entry, Tensor) else entry for entry in parameters]
    given = {id(parameter) for _, parameter in named}
    missing = sum(id(parameter) not in given for group in groups for parameter in group["params"])
    if missing:
        raise UserError(
            f"parameters: {missing} of the optimizer's are left out, so their gradients would be neither "
            "checked nor clipped; give model.named_parameters()"
        )
    return named
