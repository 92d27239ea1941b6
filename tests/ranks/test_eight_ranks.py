"""Data, tensor and pipeline parallelism at once, on eight ranks that share the cores."""

from typing import Any

import pytest

import dtlab
from dtlab.diagnose.layouts import (
    Layout,
    LayoutRun,
    Task,
    compare_layout,
    predicted_activation_bytes,
    train_alone,
    train_in_layout,
)
from dtlab.parallel.dims import ParallelDims

pytestmark = pytest.mark.eight_ranks

TASK = Task(steps=4, batch=8, clip=0.5)
LAYOUTS = {
    "dp 2 x tp 2 x pp 2": Layout(ParallelDims(dp_replicate=2, tp=2, pp=2)),
    "fsdp 2 x tp 2 x pp 2": Layout(ParallelDims(dp_shard=2, tp=2, pp=2)),
}


def train_all() -> dict[str, Any]:
    with dtlab.world():
        return {name: train_in_layout(layout, TASK) for name, layout in LAYOUTS.items()}


def test_eight_ranks_in_three_kinds_of_parallelism_train_as_one_process() -> None:
    alone = train_alone(TASK)
    results = dtlab.launch(train_all, 8, timeout=300, echo=False)
    for name, layout in LAYOUTS.items():
        runs: list[LayoutRun] = [result[name] for result in results]
        losses, parameters, norms = compare_layout(runs, alone)
        assert losses <= 1e-10, name
        assert parameters <= 1e-10, name
        assert norms <= 1e-6, name
        for rank, run in enumerate(runs):
            assert run.activation_bytes == predicted_activation_bytes(layout, TASK, rank), (name, rank)
