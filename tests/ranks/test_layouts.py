"""Sharded, hybrid and pipelined layouts train as one process: losses, parameters and gradient norms."""

from typing import Any

import pytest
import torch

import dtlab
from dtlab.cost.parameters import decoder_units
from dtlab.diagnose.layouts import (
    Layout,
    Task,
    compare_layout,
    predicted_activation_bytes,
    train_alone,
    train_in_layout,
)
from dtlab.parallel.dims import ParallelDims

TASK = Task(steps=5, batch=8, clip=0.5)
# torch adds gradients of fp32 in another way than those of float64. AdamW would amplify the order of a sum.
SINGLE = Task(steps=5, batch=8, clip=0.5, optimizer="SGD", lr=1e-1, dtype=torch.float32)
LAYOUTS = {
    "fsdp 2": Layout(ParallelDims(dp_shard=2)),
    "zero-1 on 2": Layout(ParallelDims(dp_replicate=2), zero=True),
    "fsdp 4": Layout(ParallelDims(dp_shard=4)),
    "fsdp 4, kept on 2": Layout(ParallelDims(dp_shard=4), options={"reshard_after_forward": 2}),
    "hsdp 2 x 2": Layout(ParallelDims(dp_replicate=2, dp_shard=2)),
    "dp 2 x tp 2": Layout(ParallelDims(dp_replicate=2, tp=2)),
    "dp 2 x tp 2 by hand": Layout(ParallelDims(dp_replicate=2, tp=2), options={"engine": "by_hand"}),
    "fsdp 2 x tp 2": Layout(ParallelDims(dp_shard=2, tp=2), options={"sequence_parallel": True}),
    "dp 2 x pp 2": Layout(ParallelDims(dp_replicate=2, pp=2)),
    "fsdp 2 x pp 2": Layout(ParallelDims(dp_shard=2, pp=2), engine="torch"),
    "fsdp 2 x pp 2 by hand": Layout(ParallelDims(dp_shard=2, pp=2)),
}


def run_all(names: list[str]) -> list[dict[str, Any]]:
    with dtlab.world():
        return [{name: train_in_layout(LAYOUTS[name], task) for name in names} for task in (TASK, SINGLE)]


@pytest.fixture(scope="module")
def both() -> list[dict[str, list[Any]]]:
    """For each task: name of a layout -> what each rank has after training; a launch for each world size."""
    found: list[dict[str, list[Any]]] = [{}, {}]
    for size in (2, 4):
        names = [name for name, layout in LAYOUTS.items() if layout.dims.size == size]
        results = dtlab.launch(run_all, size, names, timeout=600, echo=False)
        for number, of_task in enumerate(found):
            of_task |= {name: [result[number][name] for result in results] for name in names}
    return found


@pytest.fixture(scope="module")
def runs(both: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    return both[0]


@pytest.fixture(scope="module")
def alone() -> Any:
    return train_alone(TASK)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_trains_as_one_process_with_the_same_gradient_norm(name: str, runs: Any, alone: Any) -> None:
    losses, parameters, norms = compare_layout(runs[name], alone)
    assert losses <= 1e-10
    assert parameters <= 1e-10
    assert norms <= 1e-6


def test_every_layout_trains_as_one_process_in_single_precision_too(both: Any) -> None:
    alone = train_alone(SINGLE)
    for name, ranks in both[1].items():
        losses, parameters, norms = compare_layout(ranks, alone)
        assert (name, losses <= 1e-5, parameters <= 1e-5, norms <= 1e-6) == (name, True, True, True)


@pytest.mark.parametrize("name", LAYOUTS)
def test_saved_activations_equal_the_closed_form_to_the_byte_on_every_rank(name: str, runs: Any) -> None:
    measured = [run.activation_bytes for run in runs[name]]
    ranks = range(len(measured))
    assert measured == [predicted_activation_bytes(LAYOUTS[name], TASK, rank) for rank in ranks]


def test_a_rank_holds_its_share_of_the_parameters(runs: Any, alone: Any) -> None:
    held = {name: [run.num_parameters for run in ranks] for name, ranks in runs.items()}
    whole = alone.num_parameters
    assert held["fsdp 4"] == [whole // 4] * 4
    assert held["hsdp 2 x 2"] == [whole // 2] * 4
    assert held["zero-1 on 2"] == [whole] * 2
    sizes = TASK.model
    first, *blocks, last = decoder_units(2, sizes["dim"], sizes["vocab_size"], sizes["sequence"], tp=2)
    tied = sizes["vocab_size"] * sizes["dim"] // 2
    assert held["dp 2 x tp 2"] == [first + sum(blocks) + last - tied] * 4
    assert (
        sum(held["fsdp 2 x pp 2"]) == whole + sizes["vocab_size"] * sizes["dim"]
    )  # both ends hold the table


def test_clipping_had_something_to_do(alone: Any) -> None:
    assert max(alone.norms) > TASK.clip
