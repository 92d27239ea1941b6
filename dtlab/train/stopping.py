"""Early stopping: one decision for all ranks, patience counted in samples seen (lesson 13).

Counted in optimizer steps, patience shrinks as ranks are added: with a global batch N times as large, the
same number of steps is N times as many samples. Counted in samples, a rule means the same on any world size.
Stopping is one half of it; the other is to go back to the best epoch, see :attr:`EarlyStopping.best_epoch`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, Literal

from dtlab.errors import UserError, require_number
from dtlab.ranks import agreement

__all__ = ["BestEpoch", "EarlyStopping"]


class EarlyStopping:
    """Keeps the best value of a validation metric and says when to stop.

    Args:
        patience: samples seen without a better value before training stops.
        mode: "max" when a larger metric is better (AUC), "min" when a smaller one is (loss).
        min_delta: a value counts as better only when it is better by more than this.

    The first number is an improvement over nothing. A nan is never better.

    >>> stop = EarlyStopping(patience=200, mode="min")
    >>> [stop.update(loss, samples) for loss, samples in ((1.0, 100), (0.5, 200), (0.6, 300), (0.7, 400))]
    [False, False, False, True]
    >>> stop.best, stop.best_epoch, stop.best_samples
    (0.5, 2, 200)
    """

    def __init__(
        self, patience: float, *, mode: Literal["max", "min"] = "max", min_delta: float = 0.0
    ) -> None:
        if patience != math.inf:
            fix = "samples above 0 (must be positive; leave early stopping out instead)"
            require_number("patience", patience, lambda samples: samples > 0, fix)
        if mode not in ("max", "min"):
            raise UserError(f"mode = {mode!r}: choose 'max' or 'min'")
        require_number("min_delta", min_delta, lambda delta: delta >= 0, "a number, 0 or more")
        self.patience, self.mode, self.min_delta = patience, mode, min_delta
        self.value = math.nan
        """The last value, as all ranks saw it."""
        self.best = -math.inf if mode == "max" else math.inf
        self.best_epoch = 0
        """Counted from 1; 0 until a value was better than nothing."""
        self.best_samples = 0
        self.epoch = 0
        """Validations so far."""
        self.bad_epochs = 0
        """Validations since the best one."""
        self.improved = False
        """Whether the last value was the best so far."""

    def update(self, value: float | None, samples: int) -> bool:
        """Take the metric of one validation after ``samples`` samples; True means stop now (collective).

        Ranks may bring different values, or None where the metric is not known: the decision rests on the
        mean of the values given, and is the same everywhere.

        ``samples`` counts from the start of the run over all ranks, so it never falls and is equal on all.

        Raises:
            UserError: on every rank: a value is no number, no rank gives one, ``samples`` falls, or the ranks
                differ in ``samples``, in the rule or in a state that was loaded.
        """
        alike = {
            name: getattr(self, name) for name in ("patience", "mode", "min_delta", "best", "best_samples")
        }
        brought = agreement.gather((_number(value), samples, alike), dst=None) or []
        for name in alike:
            self._require_alike(name, [their[name] for _, _, their in brought])
        for rank, (metric, now, _) in enumerate(brought):
            if isinstance(metric, str):
                raise UserError(
                    f"early stopping: metric = {metric} on rank {rank}: give one number, or None where it is "
                    "not known"
                )
            require_number(
                "samples", now, lambda now: now >= self.best_samples,
                "all samples since the start of the run: at the best validation they were "
                f"{self.best_samples:,}",
            )  # fmt: skip
        self._require_alike("samples", [now for _, now, _ in brought])
        given = [metric for metric, _, _ in brought if metric is not None]
        if not given:
            raise UserError("early stopping: no rank gave a metric; give it on one rank at least")
        self.value = value = sum(given) / len(given)
        self.epoch += 1
        # The first number only has to be one: inf - inf would be nan.
        gain = value - self.best if self.mode == "max" else self.best - value
        self.improved = math.isfinite(value) and (self.best_epoch == 0 or gain > self.min_delta)
        if self.improved:
            self.best, self.best_epoch, self.best_samples, self.bad_epochs = value, self.epoch, samples, 0
        else:
            self.bad_epochs += 1
        return samples - self.best_samples >= self.patience

    @staticmethod
    def _require_alike(name: str, of_ranks: list[Any]) -> None:
        if any(value != of_ranks[0] for value in of_ranks):
            raise UserError(
                f"early stopping: {name} differs between the ranks, {dict(enumerate(of_ranks))}: they would "
                "stop apart; give the same on every rank: samples and patience of all ranks together, and a "
                "saved state to all"
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything but the rule, as JSON values; equal on every rank."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the saved counts; the rule is this object's own.

        Raises:
            UserError: the state is not that of early stopping.
        """
        if set(state) != set(_STATE):
            raise UserError(f"stopping state has the keys {sorted(state)}; it needs exactly {sorted(_STATE)}")
        for name in _STATE:
            setattr(self, name, state[name])


def _number(metric: Any) -> float | str | None:
    """One number; what is none as its text, which every rank can then name."""
    if metric is None or isinstance(metric, str | bytes):
        return metric if metric is None else repr(metric)
    try:
        return float(metric)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several numbers
        return reprlib.repr(metric)


_STATE = ("value", "best", "best_epoch", "best_samples", "epoch", "bad_epochs", "improved")


class BestEpoch(EarlyStopping):
    """The same rule counted in validations, for a larger metric that is better.

    >>> stop = BestEpoch(patience=1)
    >>> [stop.update(value) for value in (0.70, 0.73, 0.72)]
    [False, False, True]
    >>> stop.best, stop.best_epoch
    (0.73, 2)
    """

    def update(self, value: float | None, samples: int | None = None) -> bool:
        """Take the metric of the epoch that ended; True means stop now (collective)."""
        return super().update(value, self.epoch + 1 if samples is None else samples)
