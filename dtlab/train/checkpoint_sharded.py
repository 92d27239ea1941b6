"""Sharded tensors (DTensors) in a checkpoint, through torch.distributed.checkpoint (lesson 13).

DCP plans who writes and who reads what, so that a checkpoint of 2 ranks loads on 1, 3 or 4. Only its
safetensors storage is used; its default storage unpickles.

Replicated tensors do not go this way; rank 0 writes them with the safetensors library itself. DCP would share
them out over the ranks, so that each rank had to hold a copy of everything, and so that a buffer that differs
between ranks (BatchNorm's statistics) would come from whichever rank drew it instead of rank 0. And its
storage builds the whole file in memory while it holds the interpreter: for 160 MB in one process 1.0 s
instead of 0.2 s, during which a training thread stood still for up to 0.4 s.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from dtlab.errors import UserError
from dtlab.train.state import flatten

__all__ = [
    "is_known",
    "is_sharded",
    "lay_out",
    "like",
    "load_sharded",
    "save_sharded",
    "stage_sharded",
    "targets",
    "templates",
]


def _dcp() -> Any:
    """torch.distributed.checkpoint, loaded when the first sharded tensor is met: it takes about a second."""
    import torch.distributed.checkpoint as dcp

    warnings.filterwarnings(
        "ignore", message="torch.distributed is disabled, unavailable or uninitialized", module="torch"
    )
    return dcp


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")  # not loaded: nobody can have made one
    return module is not None and isinstance(tensor, module.DTensor)


def stage_sharded(stager: Any, tensors: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
    """``(stager for the next call, copies on the CPU)``; pass None first."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    stager = stager or DefaultStager(StagingOptions(False, False, False, False))
    return stager, stager.stage(dict(tensors))


def save_sharded(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Write every rank's shards to ``folder``, through to the disk (collective).

    Raises:
        UserError: a rank could not write; the same on every rank.
    """
    dcp = _dcp()
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        dcp.save(_apart(tensors), storage_writer=writer, process_group=group, no_dist=group is None)
    except dcp.CheckpointException as error:  # a BaseException: `except Exception` would not see it
        raise _first_failure(error) from None


def _apart(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors, each with memory of its own as the format wants it: tied weights share theirs."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        address = tensor.to_local().untyped_storage().data_ptr()
        apart[name] = tensor.clone() if address in seen else tensor
        if address:  # an empty shard has none
            seen.add(address)
    return apart


def targets(folder: Path, names: list[str], live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Memory for the saved sharded tensors: laid out like ``live``, or whole where ``live`` has no such name.

    Raises:
        UserError: a live tensor has another shape.
    """
    if not names:
        return {}
    saved = _dcp().HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    made: dict[str, Tensor] = {}
    for name in names:
        if name not in saved:
            raise UserError(f"tensor {name!r} is missing in {folder.name}")
        entry: Any = saved[name]
        if name in live and live[name].shape != entry.size:
            raise UserError(
                f"{name} was saved with shape {list(entry.size)}, here it has {list(live[name].shape)}"
            )
        template = like(live, name, entry.size)
        dtype = entry.properties.dtype
        if template is None:
            made[name] = torch.empty(entry.size, dtype=dtype)
        else:
            made[name] = torch.empty_like(template, dtype=dtype)
    return made


def load_sharded(folder: Path, into: dict[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Fill what :func:`targets` made (collective); the ranks may want different ones.

    Raises:
        UserError: a rank could not read; the same on every rank.
    """
    dcp = _dcp()
    reader = dcp.HuggingFaceStorageReader(str(folder))
    try:
        dcp.load(dict(into), storage_reader=reader, process_group=group, no_dist=group is None)
    except dcp.CheckpointException as error:
        raise _first_failure(error) from None


def templates(name: str, part: Any, state: Any) -> dict[str, Tensor]:
    """The sharded tensors of a live part by path; an optimizer's moments are laid out as its parameters.

    What a part says in ``layouts()`` counts too.
    """
    flat, _ = flatten(state, name)
    live = {path: tensor for path, tensor in flat.items() if is_sharded(tensor)}
    if isinstance(part, Optimizer):
        parameters = [p for group in part.param_groups for p in group["params"]]
        for number, parameter in enumerate(parameters):
            if is_sharded(parameter):
                live[f"{name}/state/{number}/"] = parameter.detach()
    if hasattr(part, "layouts"):
        live |= {f"{name}/{path}": tensor for path, tensor in part.layouts().items()}
    return live


def is_known(live: Mapping[str, Tensor], path: str) -> bool:
    """Whether a live part has a place for the tensor at ``path``."""
    return path in live or path[: path.rfind("/") + 1] in live


def like(live: Mapping[str, Tensor], path: str, shape: torch.Size) -> Tensor | None:
    """What of ``live`` has the layout for the tensor at ``path``; None when it is whole on each rank."""
    found = live.get(path, live.get(path[: path.rfind("/") + 1]))
    return found if found is not None and found.shape == shape else None


def lay_out(tensor: Tensor, template: Tensor | None) -> Tensor:
    """A whole tensor as the template's kind: itself, or this rank's shard of it."""
    if template is None:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    target: Any = template
    laid: Tensor = distribute_tensor(
        tensor.to(target.device), target.device_mesh, target.placements, src_data_rank=None
    )
    return laid


def _first_failure(error: Any) -> UserError:
    number, (cause, _) = next(iter(error.failures.items()))
    line = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    failure = UserError(f"rank {number}: {type(cause).__name__}: {line}")
    failure.__cause__ = cause
    return failure
