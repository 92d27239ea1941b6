"""The norm of all gradients together, and clipping by it (lesson 06).

Dense and sparse gradients count alike. Under data parallelism the gradients are already the mean over the
ranks, so every rank computes the same norm and no message is needed. Of sharded parameters every rank holds
another part: their squares are summed over the ranks, those of replicas counted once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from dtlab.errors import UserError
from dtlab.parallel.sharded import is_sharded, shard_group


@torch.no_grad()
def total_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The 2-norm of all gradients, a 0-dimensional tensor; not finite as soon as one entry is not.

    Rows that a sparse gradient lists twice are added up first (in place of ``.grad``). Parameters without a
    gradient do not count; without any gradient the norm is 0. With sharded parameters it is a collective.

    >>> weight = torch.zeros(2, requires_grad=True)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> float(total_norm([weight]))
    5.0
    """
    replicated: list[Tensor] = []
    distributed: list[Tensor] = []  # DTensors
    # Parts by the group that shares them, with a zero of their kind for a rank whose part has no gradient.
    parts: dict[dist.ProcessGroup | None, list[Tensor]] = {}
    for parameter in parameters:
        found = replicated
        if hasattr(parameter, "full_tensor"):
            found = distributed
        elif is_sharded(parameter):
            found = parts.setdefault(shard_group(parameter), [parameter.new_zeros(1)])
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            found.append(parameter.grad.values())
        else:
            found.append(parameter.grad)
    norms = [get_total_norm(replicated)] if replicated or not (distributed or parts) else []
    if distributed:
        # A partial sum until it is asked for as a whole.
        norm = get_total_norm(distributed)
        norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
    for group, gradients in parts.items():
        squares = get_total_norm(gradients).square()
        dist.all_reduce(squares, group=group)
        norms.append(squares.sqrt())
    return norms[0] if len(norms) == 1 else get_total_norm(norms)


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
    for is_dtensor in (False, True):  # torch does not scale both kinds in one call
        kind = [parameter for parameter in dense if hasattr(parameter.grad, "full_tensor") == is_dtensor]
        if kind:
            torch.nn.utils.clip_grads_with_norm_(kind, max_norm, norm)
    if sparse:
        factor = min(1.0, max_norm / (float(norm) + 1e-6))
        for parameter in sparse:
            assert parameter.grad is not None
            parameter.grad.mul_(factor)


def not_finite(named_parameters: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Names of the parameters whose gradient holds a nan or an infinity."""
    names = []
    for name, parameter in named_parameters:
        if parameter.grad is not None:
            entries = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
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
