"""Parameters of which every rank holds another part: data parallelism has to leave them alone (lesson 07).

Broadcasting or averaging them would put rank 0's rows in everybody's place. ``data_parallel`` asks here, and
so does whoever needs a norm over the whole model.
"""

import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import UserError

__all__ = ["check_whole", "is_sharded", "mark_sharded", "shard_group", "sharded_names"]


def mark_sharded(parameter: Tensor, group: dist.ProcessGroup | None) -> None:
    """Say that ``parameter`` is this rank's part of a tensor that the ranks of ``group`` hold together."""
    parameter.shard_group = group  # type: ignore[attr-defined]


def is_sharded(parameter: Tensor) -> bool:
    """Whether other ranks hold other parts of this parameter: marked so, or a DTensor.

    >>> weight = nn.Parameter(nn.Linear(2, 1).weight)
    >>> is_sharded(weight), mark_sharded(weight, None), is_sharded(weight)
    (False, None, True)
    """
    return hasattr(parameter, "shard_group") or hasattr(parameter, "full_tensor")


def shard_group(parameter: Tensor) -> dist.ProcessGroup | None:
    """The ranks that hold the parts of a marked parameter; None for the default group."""
    return parameter.shard_group  # type: ignore[attr-defined]


def check_whole(model: nn.Module) -> None:
    """``UserError`` when the state dict of ``model`` would hold this rank's part under the name of the whole.

    A DTensor says what it is part of; a marked parameter does not, and another rank's part is lost.
    """
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "shard_group"):
            raise UserError(
                f"{name}: every rank holds another part of it, of which a saved file would keep one; "
                "save dtlab.parallel.embedding.full_state(model), which all ranks call"
            )


def sharded_names(model: nn.Module) -> list[str]:
    """Names of the parameters of ``model`` that are sharded."""
    return [name for name, parameter in model.named_parameters() if is_sharded(parameter)]
