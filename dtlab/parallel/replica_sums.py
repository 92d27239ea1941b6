"""Copies of a pipeline that see other samples: gradients and losses are summed over them (lesson 09).

The pipeline's loss is divided by the samples of the global batch, so its gradients are parts of a sum. They
travel once a step, in one message for each dtype, after the copies of tied parameters have been summed:
partial sums of the two kinds never mix.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.parallel.by_hand_ddp import broadcast_state
from dtlab.parallel.same_model import check_same_model
from dtlab.parallel.sharded import is_sharded, laid_out_gradient, local_part
from dtlab.ranks.groups import wire_device

__all__ = ["Replicas"]


class Replicas:
    """The ranks that hold the same ``stages``; they start from the first one's parameters.

    ``mesh``: its axes are reduced over one after the other; None, or ranks for themselves: nothing is sent.
    Parameters that a group of it holds in parts (``fully_sharded``) are left to whoever cut them.

    Raises:
        UserError: the ranks hold different stages.
    """

    def __init__(self, stages: Iterable[nn.Module], mesh: DeviceMesh | None) -> None:
        axes = range(mesh.ndim) if mesh is not None else ()
        self._groups = [mesh.get_group(axis) for axis in axes if mesh is not None and mesh.size(axis) > 1]
        module = nn.ModuleList(stages)
        for group in reversed(self._groups):
            check_same_model(module, group)
            broadcast_state(module, group)
        self._parameters = [
            parameter
            for parameter in module.parameters()
            if parameter.requires_grad and not any(is_sharded(parameter, group) for group in self._groups)
        ]

    def set_aside(self) -> list[Tensor | None]:
        """Before a step: take away gradients of earlier steps, summed over the replicas already."""
        if not self._groups:
            return []
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return before

    def sum_gradients(self, before: list[Tensor | None]) -> None:
        """After a step: gradients become sums over the replicas, added to those from ``before``."""
        if not self._groups:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = local_part(laid_out_gradient(parameter))
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for gradients in by_dtype.values():
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            for group in self._groups:
                dist.all_reduce(flat, group=group)
            parts = flat.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        for parameter, earlier in zip(self._parameters, before, strict=True):
            if earlier is not None and parameter.grad is not None:
                parameter.grad += earlier

    def summed(self, value: Tensor) -> Tensor:
        """``value`` summed over the replicas; comes back on the CPU."""
        for group in self._groups:
            value = value.to(wire_device(group))
            dist.all_reduce(value, group=group)
        return value.cpu()

    def total(self, number: int) -> float:
        """``number`` summed over the replicas."""
        return float(self.summed(torch.tensor(float(number), dtype=torch.float64)))
