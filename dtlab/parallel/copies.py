"""Which copies of a parameter differ, in a layout where ranks also hold parts (lessons 09 and 12).

A rank's part is compared with the same part on other ranks alone: over ``dp_replicate``; over ``tp`` what
tensor parallelism leaves whole. Parts of one matrix, and stages of a pipeline, are meant to differ.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.parallel.ddp import unwrap
from dtlab.parallel.desync import differing_tensors, refuse_differing
from dtlab.parallel.sharded import is_sharded, local_part
from dtlab.ranks import agreement

__all__ = ["check_copies", "differing_copies"]

_AXES = ("dp_replicate", "dp_shard", "tp")


def differing_copies(model: nn.Module, mesh: DeviceMesh) -> dict[str, list[int]]:
    """Parameters and buffers whose copies are not the same bits: name -> ranks that differ (collective).

    The same on every rank. ``mesh``: from ``build_mesh``.
    """
    inner = unwrap(model)
    named = [*inner.named_parameters(), *inner.named_buffers()]
    found: dict[str, list[int]] = {}
    for axis in _AXES:
        if mesh[axis].size() == 1:
            continue
        group = mesh[axis].get_group()
        copies = [
            (name, local_part(tensor))
            for name, tensor in named
            if not is_sharded(tensor, group) or _is_copied(tensor, axis)
        ]
        ranks = dist.get_process_group_ranks(group)
        for name, places in differing_tensors(copies, group).items():
            found.setdefault(name, []).extend(ranks[place] for place in places)
    together: dict[str, list[int]] = {}
    for theirs in agreement.gather(found, dst=None) or []:
        for name, ranks in theirs.items():
            together[name] = sorted({*together.get(name, []), *ranks})
    return together


def check_copies(model: nn.Module, mesh: DeviceMesh, step: int) -> None:
    """Compare the copies after ``step`` (collective).

    Raises:
        DesyncError: on every rank, with the names of the parameters and the ranks that differ.
    """
    refuse_differing(differing_copies(model, mesh), step)


def _is_copied(tensor: object, axis: str) -> bool:
    """Whether a DTensor says that it is whole along ``axis``: the outer axis of HSDP, a norm under tp."""
    mesh = getattr(tensor, "device_mesh", None)
    names = getattr(mesh, "mesh_dim_names", None) or ()
    return axis in names and tensor.placements[names.index(axis)].is_replicate()  # type: ignore[attr-defined]
