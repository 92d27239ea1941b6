"""A copy of a parameter that drifts is named with its rank in each layout; parts and stages are none."""

from typing import Any

import pytest
import torch

import dtlab
from dtlab.diagnose.layouts import Layout, LayoutTrainer, Task
from dtlab.parallel.copies import check_copies, differing_copies
from dtlab.parallel.desync import DesyncError
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.pipeline import Pipeline
from dtlab.parallel.pipelined_model import PipelinedModel
from dtlab.parallel.sharded import local_part

# Degrees, what drifts on rank 3, and the ranks that are then named: of two that differ the second.
DRIFTS = {
    "dp 2 x pp 2": (Layout(ParallelDims(dp_replicate=2, pp=2)), "blocks.1.mlp.input.weight", [3]),
    "dp 2 x tp 2": (Layout(ParallelDims(dp_replicate=2, tp=2)), "blocks.0.mlp.input.weight", [3]),
    "fsdp 2 x tp 2": (Layout(ParallelDims(dp_shard=2, tp=2)), "blocks.0.mlp_norm.weight", [3]),
    "tp 2 x pp 2": (Layout(ParallelDims(tp=2, pp=2)), "head.norm.weight", [3]),
    "hsdp 2 x 2": (Layout(ParallelDims(dp_replicate=2, dp_shard=2)), "head.norm.weight", [3]),
    "fsdp 4": (Layout(ParallelDims(dp_shard=4)), "head.norm.weight", []),
}


def drift() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with dtlab.world() as w:
        for name, (layout, parameter, _) in DRIFTS.items():
            trainer = LayoutTrainer(layout, Task())
            trainer.step(0)
            mesh = build_mesh(layout.dims)
            pipe = trainer.model
            model = PipelinedModel(pipe) if isinstance(pipe, Pipeline) else pipe
            before = differing_copies(model, mesh)
            if w.rank == 3:
                with torch.no_grad():
                    local_part(dict(model.named_parameters())[parameter]).flatten()[0] += 1e-12
            error = ""
            try:
                check_copies(model, mesh, step=7)
            except DesyncError as raised:
                error = str(raised)
            found[name] = before, differing_copies(model, mesh), error
    return found


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return dtlab.launch(drift, 4, timeout=400, echo=False)


@pytest.mark.parametrize("name", DRIFTS)
def test_a_drifting_copy_is_named_on_every_rank(name: str, found: Any) -> None:
    _, parameter, ranks = DRIFTS[name]
    for before, after, error in (rank[name] for rank in found):
        assert before == {}
        assert after == ({parameter: ranks} if ranks else {})
        assert (f"step 7: the replicas differ in {parameter}; rank 3 left" in error) == bool(ranks)
