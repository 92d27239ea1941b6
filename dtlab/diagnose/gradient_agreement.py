"""Do the replicas hold one gradient, and is it the right one? (lessons 03 and 12)

S0 prints parts of the gradients on each rank and compares them by eye. This compares all bits with one number
per parameter, and on request with the gradient that one process would have for the joined batch. Call it in a
loop of your own, after the backward that shares gradients and before the optimizer moves the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.diagnose.checks import FAIL, OK, WARN, Line
from dtlab.diagnose.parity import LIMIT, ROUNDING, relative_difference, require_limits
from dtlab.errors import UserError, require_number
from dtlab.parallel.ddp import unwrap
from dtlab.parallel.desync import differing_tensors
from dtlab.ranks import agreement
from dtlab.train.losses import require_sum

__all__ = ["GradientAgreement", "gradient_agreement"]


@dataclass(frozen=True)
class GradientAgreement:
    """What was found; the same on every rank.

    Attributes:
        differing: parameters whose gradients are not the same bits everywhere, with the ranks that differ.
        difference: largest relative difference of a parameter's gradient from that of one process for the
            joined batch; None when that was not asked for.
        worst: its name.
        factor: the gradient as a multiple of that one.
        lines: findings.
    """

    differing: dict[str, list[int]]
    difference: float | None
    worst: str
    factor: float | None
    lines: tuple[Line, ...]

    @property
    def failed(self) -> bool:
        return any(line.status == FAIL for line in self.lines)


def gradient_agreement(
    model: nn.Module,
    *,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    batch: Any = None,
    divisor: float | None = None,
    group: dist.ProcessGroup | None = None,
    limit: float = LIMIT,
    rounding: float = ROUNDING,
) -> GradientAgreement:
    """Compare the gradients in ``model`` over the ranks (collective); they stay as they are.

    Args:
        model: with gradients, unscaled (in fp16 unscale first).
        loss: with ``batch``: rank 0 computes the gradient of the joined batch by itself, one rank's batch
            after the other. ``loss(model, batch)`` is the SUM of the rows' losses. Without dropout; a
            BatchNorm sees each rank's batch by itself, as it does in training.
        batch: this rank's batch, anything that can be pickled and has a length.
        divisor: what the sum of the losses is divided by; default: the rows of all batches.
        limit, rounding: relative differences that fail, and that are still rounding;
            0 < rounding <= limit < 1.

    Raises:
        UserError: on every rank, when no rank holds a gradient, only one of loss and batch is given, or a
            number is out of range; on rank 0, when loss returns no sum.

    >>> model = nn.Linear(2, 1)
    >>> rows = torch.ones(4, 2)
    >>> model(rows).mean().backward()
    >>> found = gradient_agreement(model, loss=lambda m, x: m(x).sum(), batch=rows)
    >>> found.failed, found.differing, round(found.factor, 3)
    (False, {}, 1.0)
    """
    if (loss is None) != (batch is None):
        raise UserError("loss and batch go together: give both, or none to compare the ranks only")
    require_limits(rounding, limit)
    if divisor is not None:
        require_number("divisor", divisor, lambda x: x > 0, "what the losses' sum is divided by, above 0")
    named = [(name, p.grad) for name, p in unwrap(model).named_parameters() if p.requires_grad]
    if not agreement.all_agree(any(grad is not None for _, grad in named), "any", group):
        raise UserError("no parameter holds a gradient: call it after backward and before zero_grad")
    differing = differing_tensors(named, group)
    lines = [_ranks_line(differing, agreement.world_size(group))]
    measured: tuple[float, str, float] | None = None
    if loss is not None:
        batches = agreement.gather(batch, dst=0, group=group)
        if batches is not None:
            measured = _against_one_process(unwrap(model), loss, batches, divisor)
        measured = agreement.broadcast(measured, group=group)
        assert measured is not None
        lines.append(_joined_line(*measured, limit=limit, rounding=rounding))
    difference, worst, factor = measured if measured is not None else (None, "", None)
    return GradientAgreement(differing, difference, worst, factor, tuple(lines))


def _ranks_line(differing: dict[str, list[int]], size: int) -> Line:
    if not differing:
        return Line(OK, "gradients", f"the same bits on {size} rank{'s' if size > 1 else ''}")
    name, ranks = next(iter(differing.items()))
    who = f"rank {', '.join(map(str, ranks))}"
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    fix = (
        "train what data_parallel returned and not the model inside it; share gradients in the last "
        "micro-batch, outside no_sync(); clip only after that"
    )
    return Line(FAIL, "gradients", f"{name}{more}: {who} differ{'s' if len(ranks) == 1 else ''}", fix)


def _joined_line(difference: float, worst: str, factor: float, *, limit: float, rounding: float) -> Line:
    value = f"largest difference from one process {difference:.2g} ({worst}), {factor:.3g} times its size"
    if difference <= rounding:
        return Line(OK, "joined batch", value)
    fix = (
        "divide the loss sum by the rows of the global batch and multiply by world_size, because the ranks' "
        "gradients are averaged; weigh an uneven batch by its rows"
    )
    return Line(WARN if difference <= limit else FAIL, "joined batch", value, fix)


def _against_one_process(
    model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], batches: list[Any], divisor: float | None
) -> tuple[float, str, float]:
    """Largest relative difference, the parameter that has it, and the best factor; on rank 0."""
    rows = float(sum(len(each) for each in batches)) if divisor is None else divisor
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    wanted = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in named.items()}
    for each in batches:
        if not len(each):
            continue
        # Not backward: that would add to the gradients that are looked at, and set off a sync.
        total: Any = loss(model, each)
        require_sum(total)
        parts = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        for name, part in zip(named, parts, strict=True):
            if part is not None:
                wanted[name] += (part.to_dense() if part.is_sparse else part).double() / rows
    whole = float(torch.stack([value.square().sum() for value in wanted.values()]).sum().sqrt())
    differences, product = {}, 0.0
    for name, value in wanted.items():
        grad = named[name].grad
        found = torch.zeros_like(value) if grad is None else grad.detach()
        found = (found.to_dense() if found.is_sparse else found).double()
        differences[name] = relative_difference(value, found, whole)
        product += float((value * found).sum())
    worst = max(differences, key=differences.__getitem__)
    return differences[worst], worst, product / whole**2 if whole else 1.0
