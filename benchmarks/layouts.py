"""Does every layout of ranks train as one process does, and hold what the closed forms say?

The small GPT on one process and in each layout, 20 steps from the same weights on the same data: AdamW in
float64, and SGD in float32 (AdamW divides by the root of tiny moments and so amplifies the order of a sum).
A row per layout, the worst of its ranks:

[layout, max_loss_difference, max_parameter_difference, parameters_per_rank, activation_bytes_measured,
activation_bytes_predicted]

Parameters are those of the rank that holds most; activations are the peak that autograd kept in a step of the
float64 run, on the rank that kept most, beside the closed form of `dtlab.cost.decoder_activations` for it.
"""

from typing import Any

import torch

import dtlab
from benchmarks.common import machine, report, say, wants_json
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

LAYOUTS = {
    "dp 2": Layout(ParallelDims(dp_replicate=2)),
    "zero-1 on 2": Layout(ParallelDims(dp_replicate=2), zero=True),
    "fsdp 2": Layout(ParallelDims(dp_shard=2)),
    "tp 2": Layout(ParallelDims(tp=2)),
    "tp 2 by hand": Layout(ParallelDims(tp=2), options={"engine": "by_hand"}),
    "tp 2, sequence parallel": Layout(ParallelDims(tp=2), options={"sequence_parallel": True}),
    "pp 2": Layout(ParallelDims(pp=2)),
    "dp 4": Layout(ParallelDims(dp_replicate=4)),
    "fsdp 4": Layout(ParallelDims(dp_shard=4)),
    "fsdp 4, parameters kept": Layout(ParallelDims(dp_shard=4), options={"reshard_after_forward": False}),
    "hsdp 2 x 2": Layout(ParallelDims(dp_replicate=2, dp_shard=2)),
    "dp 2 x tp 2": Layout(ParallelDims(dp_replicate=2, tp=2)),
    "fsdp 2 x tp 2": Layout(ParallelDims(dp_shard=2, tp=2)),
    "dp 2 x pp 2": Layout(ParallelDims(dp_replicate=2, pp=2)),
    "fsdp 2 x pp 2": Layout(ParallelDims(dp_shard=2, pp=2)),
    "tp 2 x pp 2": Layout(ParallelDims(tp=2, pp=2)),
    "dp 2 x tp 2 x pp 2": Layout(ParallelDims(dp_replicate=2, tp=2, pp=2)),
}
DOUBLE = Task(steps=20, optimizer="AdamW", lr=1e-2)
SINGLE = Task(steps=20, optimizer="SGD", lr=1e-1, dtype=torch.float32)
NAMES = (
    "max_loss_difference", "max_parameter_difference", "parameters_per_rank", "activation_bytes_measured",
    "activation_bytes_predicted",
)  # fmt: skip


def train_all(names: list[str]) -> dict[str, tuple[LayoutRun, LayoutRun]]:
    """On each rank, for each layout: the run in float64 and the one in float32."""
    with dtlab.world():
        return {
            name: (train_in_layout(LAYOUTS[name], DOUBLE), train_in_layout(LAYOUTS[name], SINGLE))
            for name in names
        }


def row(name: str, runs: list[LayoutRun], alone: LayoutRun) -> list[Any]:
    """The columns of NAMES for one layout."""
    losses, parameters, _ = compare_layout(runs, alone)
    rank = max(range(len(runs)), key=lambda number: runs[number].activation_bytes)
    return [
        losses,
        parameters,
        max(run.num_parameters for run in runs),
        runs[rank].activation_bytes,
        predicted_activation_bytes(LAYOUTS[name], DOUBLE, rank),
    ]


def main() -> None:
    alone = train_alone(DOUBLE), train_alone(SINGLE)
    figures: dict[str, Any] = {}
    rows: dict[str, list[Any]] = {}
    worst_norm, all_equal = 0.0, True
    for size in (2, 4, 8):
        names = [name for name, layout in LAYOUTS.items() if layout.dims.size == size]
        results = dtlab.launch(train_all, size, names, timeout=900, echo=False)
        for name in names:
            double, single = ([result[name][kind] for result in results] for kind in (0, 1))
            rows[name] = row(name, double, alone[0])
            slug = name.replace(",", "").replace("-", "_").replace(" ", "_")
            figures |= {f"{slug}_{key}": value for key, value in zip(NAMES, rows[name], strict=True)}
            losses, parameters, _ = compare_layout(single, alone[1])
            figures[f"{slug}_float32_max_loss_difference"] = losses
            figures[f"{slug}_float32_max_parameter_difference"] = parameters
            worst_norm = max(worst_norm, compare_layout(double, alone[0])[2])
            for rank, run in enumerate(double):
                all_equal &= run.activation_bytes == predicted_activation_bytes(LAYOUTS[name], DOUBLE, rank)
            say(f"  {name}: {rows[name]}")
    figures["worst_relative_norm_difference"] = worst_norm
    figures["activation_bytes_equal_on_every_rank"] = all_equal
    if wants_json():
        report("", figures)
        return
    print(f"One process: {alone[0].num_parameters} parameters, {alone[0].activation_bytes} bytes saved")
    print(f"{'layout':<26}{''.join(f'{name:>28}' for name in NAMES)}")
    for name, values in rows.items():
        cells = (f"{value:.2e}" if isinstance(value, float) else f"{value:,}" for value in values)
        print(f"{name:<26}{''.join(f'{cell:>28}' for cell in cells)}")
    for kind in ("loss", "parameter"):
        worst = max(v for key, v in figures.items() if key.endswith(f"float32_max_{kind}_difference"))
        print(f"float32 with SGD, worst {kind} difference of all layouts: {worst:.2e} (at most 1e-5)")
    print(f"worst relative difference of a gradient norm: {worst_norm:.2e} (at most 1e-6)")
    print(f"activation bytes equal the closed form on every rank: {all_equal}")
    print(f"machine: {machine()}")


if __name__ == "__main__":
    main()
