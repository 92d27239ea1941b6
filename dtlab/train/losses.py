"""Losses as sums over rows, so that the mean over all ranks can be taken exactly.

A loss function takes the model and a batch and returns the SUM of the rows' losses. The trainer divides
by the number of rows of the global batch. Means of means would weigh the rows of a small batch more.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.data.batch import Batch
from dtlab.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")
Loss = Callable[[nn.Module, Batch], Tensor]


class _Shown:
    """A default as help shows it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def defaults_by_name(function: Callable[P, R]) -> Callable[P, R]:
    """Let help show a default that is a function by its name, and not by its address.

    >>> @defaults_by_name
    ... def fit(loss=math.sqrt, best=max, steps=3): ...
    >>> import inspect
    >>> str(inspect.signature(fit))
    '(loss=sqrt, best=max, steps=3)'
    """
    signature = inspect.signature(function)
    shown = [
        each.replace(default=_Shown(each.default.__name__)) if inspect.isroutine(each.default) else each
        for each in signature.parameters.values()
    ]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def binary_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Sum of the log losses of ``model(categorical, dense) -> logits [B]`` against ``labels [B]``.

    Row weights, when the batch has them, multiply the rows' losses; the divisor stays the row count.
    """
    if batch.labels is None:
        raise UserError("labels = None: training needs a labelled table")
    logits = model(batch.categorical, batch.dense)
    if batch.weights is None:
        return F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
    return F.binary_cross_entropy_with_logits(logits, batch.labels, weight=batch.weights, reduction="sum")


def require_sum(loss: object) -> None:
    """Refuse what a loss function may return by mistake: a float, one loss for each row, a detached sum.

    Raises:
        UserError: no tensor of one number from which a backward can start.

    >>> require_sum(torch.ones(2, requires_grad=True).sum())
    """
    fix = "return the sum of the rows' losses as a tensor"
    if not isinstance(loss, Tensor):
        raise UserError(f"loss returned a {type(loss).__name__}: {fix}, without .item() or float()")
    if loss.numel() != 1:
        raise UserError(f"loss returned a tensor of shape {list(loss.shape)}: {fix}, for example with .sum()")
    if not loss.requires_grad:
        raise UserError(
            f"loss returned a tensor without a graph: {fix} that no detach() or no_grad() cut off"
        )


def require_no_mean(loss: Tensor) -> None:
    """Refuse a mean over the rows, which the trainer would divide by the rows once more.

    It looks at how the loss was made and costs nothing: ``loss.mean() * len(batch)``, a sum again, passes.

    Raises:
        UserError: the loss, or a term of it, is a mean.

    >>> require_no_mean(torch.ones(2, requires_grad=True).sum())
    """
    open_nodes = [(loss.grad_fn, 0)]
    while open_nodes:
        node, depth = open_nodes.pop()
        if node is None or depth > _MOST_TERMS:
            continue
        kind = type(node).__name__
        if kind.startswith("MeanBackward") or getattr(node, "_saved_reduction", None) == _MEAN:
            raise UserError(
                f"loss returned a mean over the rows ({kind}): return their sum, for example with "
                "reduction='sum'; the trainer divides by the rows of the global batch"
            )
        if kind.startswith(_TERMS):
            open_nodes += [(inner, depth + 1) for inner, _ in node.next_functions]


class CheckedLoss:
    """The loss sum of every micro-batch on its way to backward: what is none is refused."""

    def __init__(self) -> None:
        self._is_known = False

    def __call__(self, loss: Any, rows: int) -> Tensor:
        """``loss`` with the shape [], for a batch of ``rows`` rows.

        Raises:
            UserError: see :func:`require_sum` and :func:`require_no_mean`.
        """
        require_sum(loss)
        if not self._is_known and rows > 1:  # of one row the mean is the sum
            require_no_mean(loss)
            self._is_known = True
        checked: Tensor = loss if loss.dim() == 0 else loss.reshape(())
        return checked


_MEAN = 1  # torch's number for reduction="mean"
_MOST_TERMS = 8
# What adds terms up, or changes only how a number is held.
_TERMS = ("AddBackward", "SubBackward", "ToCopyBackward", "ViewBackward", "ReshapeAlias", "SqueezeBackward")


class MeanLoss:
    """Collects detached loss sums without waiting for the device; one division when it is read."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._total = 0.0
        self._folded = 0
        self.rows: float = 0
        self.first_bad: int | None = None
        """Which of the sums since the last read was the first that is not finite (0-based), once folded."""

    def add(self, loss_sum: Tensor, rows: float) -> None:
        self._sums.append(loss_sum)
        self.rows += rows
        if len(self._sums) >= 1024:
            self._fold()

    def _fold(self) -> None:
        if not self._sums:
            return
        sums = torch.stack(self._sums)
        part = float(sums.sum(dtype=torch.float64))
        if not math.isfinite(part) and self.first_bad is None:
            bad = (~sums.isfinite()).nonzero().flatten().tolist()
            self.first_bad = self._folded + bad[0] if bad else None
        self._total += part
        self._folded += len(self._sums)
        self._sums.clear()

    def total(self) -> float:
        """Sum of losses of this rank so far (waits for the device)."""
        self._fold()
        return self._total

    def read(self) -> tuple[float, float]:
        """``(sum of losses, rows)`` of this rank since the last read; starts again from zero."""
        self._fold()
        total, rows = self._total, self.rows
        self._total, self.rows, self._folded, self.first_bad = 0.0, 0, 0, None
        return total, rows
