"""Layouts of the GPT in which torch would warn of what a user can do nothing about."""

import logging
import warnings

import torch

from dtlab import launch, world
from dtlab.models.gpt import GPT
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.parallelize import parallelize
from dtlab.parallel.whole import whole
from dtlab.train.safetensors_io import export_model

REDISTRIBUTE = "torch.distributed.tensor._redistribute"


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def said(path):
    """Whether parameters come together right; what torch said in a forward, then and in an export."""
    kept = Kept()
    logging.getLogger(REDISTRIBUTE).addHandler(kept)
    with world(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        model = GPT(64, 16, dim=32, num_layers=2, num_heads=4)
        alone = {name: value.clone() for name, value in model.state_dict().items()}
        model = parallelize(model, build_mesh(ParallelDims(dp_shard=2, tp=2)))
        model(torch.zeros(2, 16, dtype=torch.int64)).sum().backward()
        same = [torch.equal(whole(value), alone[name]) for name, value in model.state_dict().items()]
        export_model(model, path)
    return all(same), [*kept.lines, *(str(one.message) for one in caught if "FSDP2" in str(one.message))]


def test_fsdp_over_tensor_parallelism_trains_and_saves_without_warnings_of_torch(tmp_path):
    assert launch(said, 4, tmp_path / "model.safetensors", timeout=90, echo=False) == [(True, [])] * 4
