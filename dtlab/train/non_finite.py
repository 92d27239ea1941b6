"""What to do when a gradient is not finite: stop, skip the step, or roll back (lesson 05).

The decision rests on the gradient after it was reduced, which is the same on every rank, so all decide alike
without a message. In fp16 an overflow is part of the method: the scaler lowers the scale and the step is
skipped, whatever the policy, until that happens too often in a row.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn

from dtlab.errors import DtlabWarning, UserError
from dtlab.parallel.sharded import local_part
from dtlab.ranks import agreement
from dtlab.train.precision import StepOutcome
from dtlab.train.tally import Tally

__all__ = ["MOST_IN_A_ROW", "NonFinite", "NonFiniteError", "NonFinitePolicy", "check_losses"]

NonFinitePolicy = Literal["stop", "skip", "roll_back"]
MOST_IN_A_ROW = 20
"""Skipped steps, or rolls back without an applied step between, after which training stops all the same."""
SNAPSHOT_STEPS = 100
"""Applied steps between two copies that a roll-back can return to."""


class NonFiniteError(RuntimeError):
    """Training has left the finite numbers."""


class NonFinite:
    """The policy of one run.

    Args:
        policy: "stop": raise :class:`NonFiniteError`; "skip": leave the step out; "roll_back": go back to a
            copy of the state that is at most 100 steps old and go on with the next samples. The copies are
            kept where the weights are, and cost their memory once more.
        parts: what a roll-back restores, objects with ``state_dict``.
        tell: takes a line about each decision.
    """

    def __init__(
        self,
        policy: NonFinitePolicy,
        parts: Mapping[str, Any],
        *,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if policy not in get_args(NonFinitePolicy):
            raise UserError(f"non_finite = {policy!r}: choose stop, skip or roll_back")
        self.policy, self._parts = policy, parts
        self._tell = tell if tell is not None else _warn
        self._snapshot: tuple[int, dict[str, Any]] | None = None
        self._rolls_in_a_row = 0
        self.rolled_back = 0
        """Times that the state was put back."""

    def before(self, step: int) -> None:
        """Called before step ``step`` (0-based): take a copy when one is due."""
        if self.policy == "roll_back" and (
            self._snapshot is None or step - self._snapshot[0] >= SNAPSHOT_STEPS
        ):
            self._snapshot = (step, {name: _copied(part.state_dict()) for name, part in self._parts.items()})

    def applied(self) -> None:
        """Called after an applied step."""
        self._rolls_in_a_row = 0

    def skipped(self, outcome: StepOutcome, step: int, *, in_a_row: int, scaled: bool) -> None:
        """Called after a step that was not applied; ``scaled``: an fp16 loss scale explains it.

        Raises:
            NonFiniteError: the policy says stop, or this happens again and again.
        """
        line = f"step {step}: {outcome.reason}"
        if outcome.norm is None or math.isfinite(float(outcome.norm)):
            self._tell(f"{line}; skipped")
            return
        if (self.policy == "stop" and not scaled) or in_a_row > MOST_IN_A_ROW:
            again = f" ({in_a_row} steps in a row)" if in_a_row > 1 else ""
            raise NonFiniteError(f"{line}{again}; lower the rate, clip, or set non_finite = 'skip'")
        if self.policy == "roll_back" and not scaled and self._snapshot is not None:
            self._rolls_in_a_row += 1
            if self._rolls_in_a_row > MOST_IN_A_ROW:
                raise NonFiniteError(f"{line}; rolled back {MOST_IN_A_ROW} times without a good step between")
            taken, states = self._snapshot
            for name, part in self._parts.items():
                part.load_state_dict(copy.deepcopy(states[name]))
            self.rolled_back += 1
            self._tell(f"{line}; back to the weights of step {taken}, on with the next samples")
            return
        self._tell(f"{line}; skipped")


def _copied(state: Any) -> Any:
    return copy.deepcopy(state)


def _warn(line: str) -> None:
    warnings.warn(line, DtlabWarning, stacklevel=5)


def check_losses(tally: Tally, model: nn.Module, steps_done: int) -> None:
    """Stop when a loss since the last fold of ``tally`` was not finite, on any rank (collective).

    Raises:
        NonFiniteError: on every rank, with the step and the parameters that are not finite.
    """
    if agreement.all_agree(bool(torch.tensor(tally.losses.total()).isfinite())):
        return
    steps = agreement.gather(tally.losses.first_bad, dst=None) or []
    index = min((step for step in steps if step is not None), default=0)
    bad = [name for name, p in model.named_parameters() if not bool(local_part(p).isfinite().all())]
    where = f"; now {', '.join(bad[:3])}{', ...' if len(bad) > 3 else ''} not finite" if bad else ""
    step = steps_done - tally.steps + index
    raise NonFiniteError(
        f"step {step}: the loss is not finite{where}; lower the rate, clip, or set non_finite = 'skip'"
    )
