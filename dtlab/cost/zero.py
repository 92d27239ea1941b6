"""Bytes on one of n data-parallel ranks under ZeRO 0 to 3, item by item, to the byte (lesson 09). No torch.

A rank holds all of the states, or its n-th of them; what is cut has to be whole while it is used:

====  =============================  ===========================================
zero  divided by n                   whole for a moment, one unit at a time
====  =============================  ===========================================
0     nothing (DDP)                  nothing
1     optimizer                      nothing
2     optimizer, gradients           a unit's gradient, until it is reduced
3     optimizer, gradients, weights  a unit's weights and its gradient (FSDP)
====  =============================  ===========================================

A unit is what is gathered together: a block of a transformer. Each is cut by itself into equal parts, the
last ones padded. Activations, the units that a library gathers ahead of need and its message buffers come on
top.

Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 5; Zhao et al., "PyTorch FSDP", arXiv 2304.11277, s. 4.
"""

from collections.abc import Sequence
from typing import Literal

from dtlab.cost.memory import MemoryBill, Optimizer, Precision, state_bytes
from dtlab.errors import UserError

ZeroStage = Literal[0, 1, 2, 3]


def zero_bytes(
    units: Sequence[int],
    ranks: int,
    zero: ZeroStage,
    *,
    precision: Precision = "bf16-mixed",
    optimizer: Optimizer = "adam",
    fp32_gradients: bool = False,
) -> MemoryBill:
    """What each of `ranks` holds of a model whose units have `units` parameters.

    Args:
        units: parameters of each unit; one unit with all of them is a model that is wrapped as a whole.
        zero: see the table above.
        precision, optimizer, fp32_gradients: as for `dtlab.cost.memory.state_bytes`.

    Raises:
        UserError: no unit, a size or a number of ranks below 1, another stage.

    >>> bill = zero_bytes([1000, 1000], ranks=4, zero=3)
    >>> bill.items
    {'parameters': 1000, 'gradients': 1000, 'optimizer': 6000, 'in use': 4000}
    >>> zero_bytes([2000], ranks=4, zero=3).items["in use"]
    8000
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UserError(f"ranks = {ranks!r} is not a number of ranks: give a whole number of 1 or more")
    if zero not in (0, 1, 2, 3):
        raise UserError(f"zero = {zero!r} is not a sharding stage: use 0, 1, 2 or 3")
    if not units or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in units):
        raise UserError("units: give the number of parameters of each unit, at least one, all above 0")
    each = state_bytes(precision, optimizer, fp32_gradients=fp32_gradients)
    whole, part, largest = sum(units), sum(-(-size // ranks) for size in units), max(units)
    items = {
        "parameters": each.parameters * (part if zero >= 3 else whole),
        "gradients": each.gradients * (part if zero >= 2 else whole),
        "optimizer": each.optimizer * (part if zero >= 1 else whole),
    }
    in_use = largest * ((each.gradients if zero >= 2 else 0) + (each.parameters if zero >= 3 else 0))
    if in_use and ranks > 1:
        items["in use"] = in_use
    return MemoryBill(items)
