"""Stopping at the best epoch: the decision rests on a metric that every rank already shares."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class BestEpoch:
    """Keeps the best value of a metric that should grow, and says when to stop.

    ``patience`` epochs in a row without a better value end training. A nan counts as not better.

    >>> stop = BestEpoch(patience=1)
    >>> [stop.update(value) for value in (0.70, 0.73, 0.72)]
    [False, False, True]
    >>> stop.best, stop.best_epoch
    (0.73, 2)
    """

    patience: int
    best: float = -math.inf
    best_epoch: int = 0
    epoch: int = 0
    bad_epochs: int = 0
    improved: bool = False

    def update(self, value: float) -> bool:
        """Take the metric of the epoch that ended; True means stop now. Epochs are counted from 1."""
        self.epoch += 1
        self.improved = not math.isnan(value) and value > self.best
        if self.improved:
            self.best, self.best_epoch, self.bad_epochs = value, self.epoch, 0
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience
