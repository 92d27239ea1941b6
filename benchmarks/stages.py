"""What does each pipeline stage of a GPT hold: parameters, counted on the meta device, and bytes of training?

`python -m benchmarks.stages` for the shape of 320M parameters; a row per stage:

[stages, stage, parameters, share, counted_by_formula, states_GB, activations_GB, logits_GB, total_GB]

The share is of the whole model's parameters; the stages' sum is above 100 %, because the last one has a copy
of the embedding for the head. Bytes are those of `dtlab.cost.pipeline_memory`: fp32 with Adam, 1F1B, 8
micro-batches of 4.
"""

from typing import Any

import torch

from benchmarks.common import report, wants_json
from dtlab.cost.pipeline import stage_parameters
from dtlab.cost.pipeline_memory import pipeline_bytes
from dtlab.cost.presets import preset
from dtlab.models.gpt import GPT
from dtlab.parallel.split import split

MODEL, MICRO_BATCHES, MICRO_BATCH = "GPT 320M", 8, 4
NAMES = (
    "stages", "stage", "parameters", "share", "counted_by_formula", "states_GB", "activations_GB",
    "logits_GB", "total_GB",
)  # fmt: skip


def rows(stages: int) -> list[list[Any]]:
    """The columns of NAMES for each stage; nothing is allocated."""
    shape = preset(MODEL)
    with torch.device("meta"):
        model = GPT(shape.vocab, shape.seq_len, shape.hidden, shape.layers, shape.heads, hidden=shape.ffn)
    counts, formula = split(model, stages).num_parameters, stage_parameters(MODEL, stages)
    bills = pipeline_bytes(MODEL, stages, MICRO_BATCHES, MICRO_BATCH)
    found = []
    for stage, (count, expected, bill) in enumerate(zip(counts, formula, bills, strict=True)):
        states = sum(bill.items[name] for name in ("parameters", "gradients", "optimizer"))
        parts = (states, bill.items["activations"], bill.items.get("logits", 0), bill.total)
        share = count / shape.parameters
        found.append([stages, stage, count, share, count == expected, *(part / 1e9 for part in parts)])
    return found


def main() -> None:
    table = [row for stages in (2, 4, 8) for row in rows(stages)]
    figures = {
        f"{stages}_stages_{stage}_{name}": value
        for stages, stage, *values in table
        for name, value in zip(NAMES[2:], values, strict=True)
    }
    if wants_json():
        report("", figures)
        return
    print(f"{MODEL}, fp32 with Adam, 1F1B, {MICRO_BATCHES} micro-batches of {MICRO_BATCH}")
    print("  ".join(NAMES))
    for stages, stage, count, share, is_equal, *sizes in table:
        cells = (f"{stages:>6}", f"{stage:>5}", f"{count:>11,}", f"{share:>5.1%}", f"{is_equal!s:>18}")
        print("  ".join((*cells, *(f"{v:>{len(n)}.2f}" for n, v in zip(NAMES[5:], sizes, strict=True)))))
    largest = max(row[3] for row in table if row[0] == 2)
    print(f"two stages: at most {largest:.1%} of the parameters each (at most 55 %)")


if __name__ == "__main__":
    main()
