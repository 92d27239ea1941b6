"""ZeRO-1: every rank keeps the optimizer state of some parameters alone (lesson 09).

Parameters and gradients stay whole on every rank, so this goes over plain data parallelism. A rank steps its
own parameters and sends them to the others. Adam's two moments take 8 of 16 bytes a parameter in float32:
with n ranks 8 + 8 / n are left, for one broadcast of all parameters a step.

Torch's ``ZeroRedundancyOptimizer`` does the work; what is added here is a state dict by a call that every
rank makes, whole on rank 0 alone, and the same on any number of ranks.

Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 5.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from dtlab.errors import UserError
from dtlab.parallel.sharded import is_sharded
from dtlab.ranks import groups
from dtlab.ranks.agreement import broadcast

__all__ = ["ShardedOptimizer"]


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """``optimizer_class`` with its state dealt out over the ranks of ``group``.

    Args:
        params: as for any optimizer; whole parameters, the same on all ranks.
        optimizer_class: ``torch.optim.AdamW`` for example.
        group: the data-parallel ranks; default: all.
        defaults: what ``optimizer_class`` takes: ``lr=1e-3``.

    Raises:
        UserError: no process group; a parameter that is sharded already, so that its state is too.

    Example::

        model = data_parallel(GPT())
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        *,
        group: dist.ProcessGroup | None = None,
        **defaults: Any,
    ) -> None:
        if not groups.has_group():
            raise UserError(
                "ShardedOptimizer: no process group; make it inside `with dtlab.world():` on ranks"
            )
        given = list(params)
        for entry in given:
            for parameter in entry["params"] if isinstance(entry, dict) else [entry]:
                tensor = parameter[1] if isinstance(parameter, tuple) else parameter
                if is_sharded(tensor, group):
                    raise UserError(
                        "ShardedOptimizer: a parameter is sharded over these ranks, and so is its state: "
                        f"take {optimizer_class.__name__} itself"
                    )
        self._shared_by = group
        super().__init__(given, optimizer_class, process_group=group, **defaults)

    def state_dict(self) -> dict[str, Any]:
        """The whole state, as ``optimizer_class`` on one process has it (collective).

        The tensors are rank 0's copies; on the other ranks they have shapes but no numbers (meta device).
        """
        self.consolidate_state_dict(to=0)
        is_first = groups.rank(self._shared_by) == 0
        whole = super().state_dict() if is_first else None
        shape: dict[str, Any] = broadcast(_without_numbers(whole), group=self._shared_by)
        if whole is not None:
            return whole
        return _empty(shape)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a whole state; each rank keeps its part."""
        super().load_state_dict(
            {**state_dict, "state": dict(state_dict["state"])}
        )  # torch empties what it gets


def _without_numbers(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Shape(tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _without_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_numbers(item) for item in value)
    return value


class _Shape:
    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype


def _empty(value: Any) -> Any:
    if isinstance(value, _Shape):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, dict):
        return {key: _empty(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_empty(item) for item in value)
    return value
