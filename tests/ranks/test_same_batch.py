"""Ranks that share a model and are given different batches are told so, by number."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtlab
from dtlab.models.gpt import GPT
from dtlab.parallel.dims import ParallelDims
from dtlab.parallel.mesh import build_mesh
from dtlab.parallel.parallelize import parallelize
from dtlab.parallel.pipeline import pipeline
from dtlab.parallel.schedules import build_schedule
from dtlab.parallel.split import split


def tokens(seed: int, rows: int = 4) -> Tensor:
    return torch.randint(16, (rows, 8), generator=torch.Generator().manual_seed(seed))


def in_turn(batch: Tensor, rank: int) -> Tensor:
    """The same rows in another order: still another batch."""
    return batch if rank == 0 else batch.flip(0)


def told(fn: Any) -> str:
    try:
        fn()
    except dtlab.UserError as error:
        return str(error)
    return ""


def tensor_parallel_ranks(engine: str) -> dict[str, str]:
    with dtlab.world() as w:
        mesh = build_mesh(ParallelDims(tp=2))

        def model() -> nn.Module:
            return parallelize(GPT(16, 8, dim=8, num_layers=1, num_heads=2), mesh, engine=engine)

        late = model()
        for _ in range(100):
            late(tokens(0, rows=1))
        return {
            "same": told(lambda: model()(tokens(0))),
            "own": told(lambda: model()(tokens(w.rank))),
            "order": told(lambda: model()(in_turn(tokens(0), w.rank))),
            "length": told(lambda: model()(tokens(0)[:, : 4 + w.rank])),
            "later": told(lambda: late(tokens(w.rank))),
        }


@pytest.mark.parametrize("engine", ["by_hand", "dtensor"])
def test_tensor_parallel_ranks_with_different_batches_are_named(engine: str) -> None:
    for found in dtlab.launch(tensor_parallel_ranks, 2, engine, timeout=120, echo=False):
        assert found.pop("same") == ""
        assert "(call 101;" in found["later"]
        for text in found.values():
            assert "the ranks of one tensor-parallel group were given different batches" in text
            assert "equal among: rank 0; rank 1" in text
            assert "data_rank(mesh)" in text


def pipelines() -> dict[str, str]:
    with dtlab.world() as w:
        mesh = build_mesh(ParallelDims(dp_replicate=2, pp=2))
        part = mesh["dp_replicate"].get_local_rank()

        def step(inputs: Tensor, targets: Tensor) -> Tensor:
            model = GPT(16, 8, dim=8, num_layers=2, num_heads=2)
            schedule = build_schedule("1f1b", 2, 2)
            loss = nn.CrossEntropyLoss(reduction="sum")
            pipe = pipeline(
                split(model, 2),
                schedule,
                lambda logits, wanted: loss(logits.flatten(0, 1), wanted.flatten()),
                group=mesh["pp"].get_group(),
                replicas=mesh["dp_replicate", "dp_shard"],
            )
            return pipe.step(inputs, targets)

        return {
            "of each copy": told(lambda: step(tokens(part), tokens(part))),
            "of each rank": told(lambda: step(tokens(w.rank), tokens(w.rank))),
            "targets": told(lambda: step(tokens(part), tokens(w.rank))),
        }


def test_ranks_of_a_pipeline_with_different_batches_are_named_and_copies_may_differ() -> None:
    for rank, found in enumerate(dtlab.launch(pipelines, 4, timeout=120, echo=False)):
        assert found["of each copy"] == ""
        pair = "rank 0; rank 2" if rank % 2 == 0 else "rank 1; rank 3"
        for name in ("of each rank", "targets"):
            assert "the ranks of one pipeline were given different batches" in found[name]
            assert f"equal among: {pair}" in found[name]
