"""Has validation stopped getting better? One decision per validation, the same on every rank (lesson 05)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dtlab.errors import UserError
from dtlab.ranks import agreement


class Plateau:
    """Counts validations in a row that were not better than the best; a nan is not better.

    ``patience`` of them are forgiven, the next one cuts and starts the count again. The first validation is
    the best so far and never counts.

    >>> plateau = Plateau(patience=2)
    >>> [plateau.observe(loss) for loss in (1.0, 1.1, 1.2, 1.3, 1.4)]
    [False, False, False, True, False]
    """

    def __init__(self, patience: int, mode: str = "min") -> None:
        self.patience, self.mode = patience, mode
        self.best: float | None = None
        self.num_bad = 0

    def observe(self, metric: float, *, counts: bool = True) -> bool:
        """Take one validation's metric (collective); True means cut. ``counts=False`` only notes the best."""
        value = _same_on_every_rank(_number(metric))
        is_better = not math.isnan(value) and (
            self.best is None or (value < self.best if self.mode == "min" else value > self.best)
        )
        if is_better:
            self.best, self.num_bad = value, 0
        elif counts and self.best is not None:
            self.num_bad += 1
        if self.num_bad <= self.patience:
            return False
        self.num_bad = 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Best value and count, as JSON values."""
        return {"best": self.best, "num_bad": self.num_bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.best = None if state["best"] is None else float(state["best"])
        self.num_bad = int(state["num_bad"])


def _number(metric: Any) -> float:
    try:
        return float(metric)
    except (TypeError, ValueError, RuntimeError):  # the last: a tensor of several numbers
        raise UserError(f"metric = {metric!r}: give one number, the metric of a validation") from None


def _same_on_every_rank(value: float) -> float:
    """A rank that decides on its own value would train on with another rate than its peers."""
    values = agreement.gather(value, dst=None) or [value]
    if any(other != value and not (math.isnan(other) and math.isnan(value)) for other in values):
        raise UserError(
            f"the ranks bring different metrics {dict(enumerate(values))}: reduce the metric over the ranks "
            "before observe(), for example with dtlab.mean(value, weight=rows)"
        )
    return value
