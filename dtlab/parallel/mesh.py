"""The ranks as torch sees them: one ``DeviceMesh`` with an axis for each kind of parallelism (lesson 09)."""

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtlab.errors import UserError
from dtlab.parallel.dims import AXES, ParallelDims

__all__ = ["build_mesh"]


def build_mesh(dims: ParallelDims, device_type: str | None = None) -> DeviceMesh:
    """A mesh [pp, dp_replicate, dp_shard, tp] over all ranks; every rank calls it.

    ``mesh["tp"]`` is the part that a rank shares with its tensor-parallel peers, ``mesh["tp"].get_group()``
    their process group. ``device_type``: "cpu" or "cuda"; default: what the group's backend is for.

    Raises:
        UserError: degrees that do not give the number of ranks, or no process group.

    Example::

        with dtlab.world():
            mesh = build_mesh(ParallelDims(dp_replicate=-1, tp=2))
            mesh["tp"].get_local_rank()
    """
    if not dist.is_initialized():
        raise UserError(
            "build_mesh: there is no process group; start ranks (torchrun or dtlab.launch) and call it "
            "inside `with dtlab.world():`; one process alone needs no mesh"
        )
    full = dims.of(dist.get_world_size())
    if device_type is None:
        device_type = "cuda" if "nccl" in dist.get_backend_config() else "cpu"
    return init_device_mesh(device_type, full.shape, mesh_dim_names=AXES)
