"""Bytes of each rank of a pipeline, item by item (lesson 08). No torch.

- States follow the parameters of the stage; a tied matrix is stored by both ends.
- Activations: the blocks of the stage times the micro-batches in flight (`live_activations`): m under GPipe,
  at most p - rank under 1F1B. That is why 1F1B, not the split, makes room for more micro-batches.
- Logits stand on the last rank, once for each micro-batch in flight there.
- Not counted: what the embedding keeps, and the tensors that travel between stages.
"""

from typing import Literal

from dtlab.cost.activations import Recompute, activation_bytes, logit_bytes
from dtlab.cost.memory import MemoryBill, Optimizer, Precision, state_bytes
from dtlab.cost.pipeline import ScheduleName, balanced_cuts, live_activations, unit_parameters
from dtlab.cost.presets import Preset, preset
from dtlab.errors import UserError


def pipeline_bytes(
    model: str | Preset,
    num_ranks: int,
    num_micro_batches: int,
    micro_batch: int,
    *,
    schedule: ScheduleName = "1f1b",
    precision: Precision = "fp32",
    optimizer: Optimizer = "adam",
    seq_len: int | None = None,
    recompute: Recompute = "none",
) -> list[MemoryBill]:
    """What each rank needs for training a decoder that is cut by parameters, one stage a rank.

    Args:
        micro_batch: samples in one micro-batch; `num_micro_batches` of them make a step.
        schedule: "gpipe", "1f1b" or "zero_bubble".

    Raises:
        UserError: a preset without stages by formula, a schedule with several stages a rank.

    >>> bills = pipeline_bytes("GPT 320M", 2, num_micro_batches=4, micro_batch=8)
    >>> [round(bill.total / 1e9, 1) for bill in bills]
    [16.0, 10.7]
    >>> [round(bill.items["activations"] / 1e9, 1) for bill in bills]
    [13.3, 6.6]
    """
    if schedule not in ("gpipe", "1f1b", "zero_bubble"):
        raise UserError(
            f"schedule = {schedule!r}: memory is counted for one stage a rank: gpipe, 1f1b or zero_bubble"
        )
    found = model if isinstance(model, Preset) else preset(model)
    weights = unit_parameters(found)
    each = state_bytes(precision, optimizer)
    element: Literal[2, 4] = 4 if precision == "fp32" else 2
    block = activation_bytes(
        found, micro_batch, element_bytes=element, seq_len=seq_len, recompute=recompute
    ) / (found.layers)
    bills = []
    for rank, (start, end) in enumerate(balanced_cuts(weights, num_ranks)):
        live = live_activations(schedule, num_ranks, num_micro_batches, rank)
        parameters = sum(weights[start:end])
        blocks = end - start - (start == 0) - (end == len(weights))  # less embedding and head
        items = {
            "parameters": parameters * each.parameters,
            "gradients": parameters * each.gradients,
            "optimizer": parameters * each.optimizer,
            "activations": round(blocks * block * live),
        }
        if end == len(weights):
            items["logits"] = live * logit_bytes(found, micro_batch, seq_len=seq_len)
        bills.append(MemoryBill(items))
    return bills
