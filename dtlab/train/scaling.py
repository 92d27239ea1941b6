"""The learning rate and the global batch: none, linear and square-root rule (lesson 05).

The global batch of one optimizer step is micro-batch x data-parallel ranks x accumulated micro-batches, each
counted once. Ranks of one pipeline or tensor-parallel group share their samples and do not count.

- linear: rate x (global batch / base batch). Goyal et al., arXiv 1706.02677, section 2.1; argued for SGD.
- sqrt: rate x sqrt(global batch / base batch). Malladi et al., arXiv 2205.10287; for Adam and RMSprop.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from dtlab.errors import DtlabWarning, UserError, require_number, require_whole

MOST_RATE = 1e30  # float32 ends at 3e38, and an optimizer multiplies
RULES = ("none", "linear", "sqrt")
_ADAPTIVE = ("adam", "rmsprop", "adagrad")


def effective_batch(micro_batch: int, num_ranks: int = 1, accumulation: int = 1) -> int:
    """Samples of one optimizer step over all ranks: what the scaling rules call the global batch.

    Args:
        micro_batch: samples of one forward on one rank.
        num_ranks: data-parallel ranks.
        accumulation: micro-batches between two optimizer steps.

    Raises:
        UserError: one of them is no whole number of at least 1.

    >>> effective_batch(8, num_ranks=4, accumulation=2)
    64
    """
    for name, value, what in (
        ("micro_batch", micro_batch, "samples"),
        ("num_ranks", num_ranks, "data-parallel ranks"),
        ("accumulation", accumulation, "micro-batches"),
    ):
        require_whole(name, value, 1, what)
    return micro_batch * num_ranks * accumulation


def scaled_lr(
    base_lr: float, rule: str, base_batch: int | None, global_batch: int, optimizer: Any = "sgd"
) -> float:
    """The rate for ``global_batch`` when ``base_lr`` was chosen for ``base_batch``.

    Args:
        base_lr: a positive rate.
        rule: "none", "linear" or "sqrt".
        base_batch: samples per optimizer step for which ``base_lr`` is right; None is fine for "none".
        global_batch: samples per optimizer step now, see :func:`effective_batch`.
        optimizer: a name, an optimizer or its class. "linear" with an adaptive one gives a DtlabWarning.

    Raises:
        UserError: an unknown rule (the message lists the known ones), a batch or rate that is not positive.

    >>> scaled_lr(1e-3, "linear", 32, 128), scaled_lr(1e-3, "sqrt", 32, 128)
    (0.004, 0.002)
    """
    if rule not in RULES:
        raise UserError(f"scaling = {rule!r}: unknown rule; choose none, linear or sqrt")
    require_number("base_lr", base_lr, lambda lr: lr > 0, "a positive number, for example 1e-3")
    require_whole("global_batch", global_batch, 1, "samples per optimizer step")
    if rule == "none":
        return base_lr
    if base_batch is None:
        raise UserError(f"base_batch = None: scaling {rule!r} needs the batch for which the rate was chosen")
    require_whole("base_batch", base_batch, 1, "samples, for which the rate was chosen")
    name = _name_of(optimizer)
    if rule == "linear" and any(part in name.lower() for part in _ADAPTIVE):
        warnings.warn(
            f"scaling = 'linear' with {name}: the linear rule was argued for SGD; for {name} take 'sqrt', or "
            "say why not",
            DtlabWarning,
            stacklevel=2,
        )
    factor = global_batch / base_batch
    lr = base_lr * (factor if rule == "linear" else math.sqrt(factor))
    if not 0 < lr <= MOST_RATE:
        raise UserError(
            f"base_batch = {base_batch!r}: scaling {rule!r} makes {lr:g} of the rate {base_lr:g} for a "
            f"global batch of {global_batch}; give the batch for which the rate was chosen"
        )
    return lr


def largest_stable_lr(curvature: float, delay: int = 0) -> float:
    """The rate below which gradient descent is stable when each gradient is ``delay`` updates old.

    On a quadratic loss it is ``2 sin(pi / (2 (2 delay + 1))) / curvature`` (Levin and May 1976), or
    2 / curvature without delay. An asynchronous worker of n finds weights n - 1 updates old on average, so
    the rate falls about as 1 / n (lesson 03). How much delay a given deep network bears is not in it.

    Args:
        curvature: the largest eigenvalue of the Hessian, positive.
        delay: updates between reading the weights and applying the gradient, 0 when synchronous.

    Raises:
        UserError: a curvature that is not positive, or a delay below 0.

    >>> largest_stable_lr(4.0), round(largest_stable_lr(4.0, delay=3), 3)
    (0.5, 0.111)
    """
    require_number("curvature", curvature, lambda value: value > 0, "a positive number")
    require_whole("delay", delay, 0, "updates")
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / curvature


def _name_of(optimizer: Any) -> str:
    if isinstance(optimizer, str):
        return optimizer
    return optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
