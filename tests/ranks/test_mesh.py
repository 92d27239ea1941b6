"""The mesh on real ranks: groups of each axis are those that the dims name, and they talk."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import dtlab
from dtlab.parallel.dims import AXES, ParallelDims
from dtlab.parallel.mesh import build_mesh


def groups_by_mesh(dims: ParallelDims) -> dict[str, Any]:
    with dtlab.world() as w:
        mesh = build_mesh(dims)
        found: dict[str, Any] = {"names": mesh.mesh_dim_names, "shape": tuple(mesh.shape)}
        for axis in AXES:
            group = mesh[axis].get_group()
            total = torch.tensor(float(w.rank))
            dist.all_reduce(total, group=group)
            found[axis] = (dist.get_process_group_ranks(group), mesh[axis].get_local_rank(), float(total))
        return found


def test_every_rank_stands_in_the_groups_that_the_dims_name() -> None:
    dims = ParallelDims(dp_replicate=-1, tp=2)
    full = dims.of(4)
    for rank, found in enumerate(dtlab.launch(groups_by_mesh, 4, dims, timeout=90, echo=False)):
        assert found["names"] == AXES
        assert found["shape"] == full.shape
        for axis in AXES:
            ranks, index, total = found[axis]
            assert ranks == next(group for group in full.groups(axis) if rank in group)
            assert index == getattr(full.place(rank), axis)
            assert total == sum(ranks)


def test_degrees_for_another_number_of_ranks_fail_on_the_ranks_with_the_numbers() -> None:
    with pytest.raises(dtlab.RankError, match=r"tp 3 = 3, but there are 2 ranks"):
        dtlab.launch(groups_by_mesh, 2, ParallelDims(tp=3), timeout=90, echo=False)


def test_a_mesh_without_ranks_is_refused() -> None:
    with pytest.raises(dtlab.UserError, match="no process group"):
        build_mesh(ParallelDims())
