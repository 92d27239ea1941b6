"""Parameters of which every rank holds another part: data parallelism has to leave them alone (lesson 07).

Broadcasting or averaging them would put rank 0's rows in everybody's place. ``data_parallel`` asks here, and
so does whoever needs a norm over the whole model. The stages of a pipeline say here what they are part of.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import UserError

__all__ = [
    "check_whole",
    "is_sharded",
    "is_tied_copy",
    "laid_out_gradient",
    "local_part",
    "mark_sharded",
    "mark_stage",
    "shard_group",
    "shard_table",
    "sharded_names",
    "stage_group",
]


def mark_sharded(parameter: Tensor, group: dist.ProcessGroup | None) -> None:
    """Say that ``parameter`` is this rank's part of a tensor that the ranks of ``group`` hold together."""
    parameter.shard_group = group  # type: ignore[attr-defined]


def shard_table(parameter: Tensor) -> Any:
    """The table of which ``parameter`` is this rank's part, which can put it together; None for others."""
    return getattr(parameter, "shard_table", None)


def is_sharded(parameter: Tensor, group: dist.ProcessGroup | None = None) -> bool:
    """Whether other ranks hold other parts of this parameter: marked so, or a DTensor.

    ``group``: asks for these ranks alone. A matrix cut by tensor parallelism is whole for the ranks that have
    the same part of it, so data parallelism averages it over them.

    >>> weight = nn.Parameter(nn.Linear(2, 1).weight)
    >>> is_sharded(weight), mark_sharded(weight, None), is_sharded(weight)
    (False, None, True)
    """
    if not (hasattr(parameter, "shard_group") or hasattr(parameter, "full_tensor")):
        return False
    if group is None or not dist.is_initialized():
        return True
    return len(_holders(parameter) & set(dist.get_process_group_ranks(group))) > 1


def _holders(parameter: Any) -> set[int]:
    """The ranks that hold a sharded parameter together."""
    if hasattr(parameter, "full_tensor"):
        return set(parameter.device_mesh.mesh.flatten().tolist())
    return set(dist.get_process_group_ranks(parameter.shard_group or dist.group.WORLD))


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds: a DTensor's part, sharing its memory, or the tensor itself.

    >>> local_part(nn.Linear(2, 1).weight).shape
    torch.Size([1, 2])
    """
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def laid_out_gradient(parameter: Tensor) -> Tensor:
    """``parameter.grad`` cut as the parameter is, which it is from then on (a collective where it was not).

    A DTensor's gradient may come whole while its parameter is cut, or as a sum that is still due.
    """
    gradient: Any = parameter.grad
    placements = getattr(parameter, "placements", None)
    if placements is not None and getattr(gradient, "placements", placements) != placements:
        parameter.grad = gradient = gradient.redistribute(placements=placements)
    return gradient


def mark_stage(parameter: Tensor, group: dist.ProcessGroup | None, *, is_copy: bool = False) -> None:
    """Say that the ranks of ``group`` hold the other stages of the pipeline that ``parameter`` belongs to.

    ``is_copy``: a tied parameter that an earlier stage counts.
    """
    parameter.stage_group = group  # type: ignore[attr-defined]
    parameter.is_tied_copy = is_copy  # type: ignore[attr-defined]


def stage_group(parameter: Tensor) -> dist.ProcessGroup | None:
    """The ranks of the pipeline that holds this parameter; None when there is none."""
    return getattr(parameter, "stage_group", None)


def is_tied_copy(parameter: Tensor) -> bool:
    """Whether an earlier stage of a pipeline counts this parameter."""
    return getattr(parameter, "is_tied_copy", False)


def shard_group(parameter: Tensor) -> dist.ProcessGroup | None:
    """The ranks that hold the parts of a marked parameter; None for the default group."""
    return parameter.shard_group  # type: ignore[attr-defined]


def check_whole(model: nn.Module) -> None:
    """``UserError`` when the state dict of ``model`` would hold this rank's part under the name of the whole.

    A DTensor says what it is part of; a marked parameter does not, and another rank's part is lost. So are
    the stages of the others.
    """
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "shard_group"):
            raise UserError(
                f"{name}: every rank holds another part of it, of which a saved file would keep one; "
                "save dtlab.parallel.embedding.full_state(model), which all ranks call, or "
                "dtlab.train.whole_state.WholeState(model, optimizer)"
            )
        if stage_group(parameter) is not None:
            raise UserError(
                f"{name} belongs to one stage of a pipeline, and a file would keep rank 0's stages alone; "
                "save dtlab.train.full_state.gather_state(pipeline, optimizer), which all ranks call"
            )


def sharded_names(model: nn.Module, group: dist.ProcessGroup | None = None) -> list[str]:
    """Names of the parameters of ``model`` that are sharded (over the ranks of ``group``)."""
    return [name for name, parameter in model.named_parameters() if is_sharded(parameter, group)]
