"""One learning-rate schedule, counted in optimizer steps (lesson 05).

- The rate of a step is a pure function of the step's index (0 is the first optimizer step) and of the plan.
  World size, micro-batches and processes do not enter: the table is the same on any number of ranks.
- Warm-up of W steps: step s uses ``base * (s + 1) / W``, so the first step already moves and step W - 1 is
  the first to use exactly ``base``. What follows counts from there: no rate is used twice or left out.
- After the peak at step p (``max(W - 1, 0)``), with ``t = (s - p) / (total - W)``:
  cosine ``min + (base - min) (1 + cos(pi t)) / 2``, linear ``base + (min - base) t``. So with a warm-up the
  last planned step uses ``min_lr``; without one, ``min_lr`` is what a step after the last would use.
- step: ``base * gamma ** ((s - p) // every)``; plateau: ``base * factor ** (cuts so far)``.
- A step that the optimizer skipped does not count: call ``advance`` for applied steps only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from dtlab.errors import DtlabWarning, UserError, require_number, require_whole
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.plateau import Plateau

_PLAN = ("kind", "base_lr", "total_steps", "warmup_steps", "min_lr", "step_every", "gamma", "plateau_factor")


class Schedule:
    """The rate of every optimizer step of a run.

    Args:
        config: the shape.
        base_lr: the peak rate, after any scaling with the batch (:func:`dtlab.train.scaling.scaled_lr`).
        total_steps: optimizer steps that the run will really make.
        steps_per_epoch: optimizer steps of an epoch; needed when ``config.unit`` is "epoch".
        on_change: what to do when somebody else changed the rate: "error", or "warn" once and go on with the
            schedule's own rate.

    Raises:
        UserError: total_steps below 1, a warm-up longer than the run, or a minimum above ``base_lr``.

    In a loop: ``schedule.apply(optimizer)``, then the optimizer's step, then ``schedule.advance()`` if the
    step was applied.

    >>> schedule = Schedule(ScheduleConfig(kind="linear"), base_lr=0.1, total_steps=10)
    >>> [schedule.lr_at(step) for step in (0, 5, 10)]
    [0.1, 0.05, 0.0]
    """

    def __init__(
        self,
        config: ScheduleConfig,
        base_lr: float,
        total_steps: int,
        *,
        steps_per_epoch: int | None = None,
        on_change: Literal["error", "warn"] = "error",
    ) -> None:
        if not isinstance(config, ScheduleConfig):
            raise UserError(f"config = {config!r}: give a ScheduleConfig, for example with kind='cosine'")
        require_number("base_lr", base_lr, lambda lr: lr > 0, "a positive number, for example 1e-3")
        if total_steps != 0:  # the plan names it together with the warm-up
            require_whole("total_steps", total_steps, -(2**63), "optimizer steps")
        if steps_per_epoch is not None and steps_per_epoch != 0:
            require_whole("steps_per_epoch", steps_per_epoch, -(2**63), "optimizer steps of an epoch")
        if on_change not in ("error", "warn"):
            raise UserError(f"on_change = {on_change!r}: choose 'error' or 'warn'")
        self.config, self.base_lr, self.total_steps = config, float(base_lr), total_steps
        self.warmup_steps = _in_steps(config.warmup, config.unit, steps_per_epoch, "warmup")
        every = _in_steps(config.step_every or 0, config.unit, steps_per_epoch, "step_every")
        self.step_every = max(1, every)
        self.kind, self.min_lr, self.gamma = config.kind, float(config.min_lr), config.gamma
        self.plateau_factor = config.plateau_factor
        self._check_plan()
        self.step = 0
        """Optimizer steps applied so far, and so the index of the next one."""
        self._plateau = Plateau(config.plateau_patience, config.plateau_mode)
        self._cuts: list[int] = []  # the step from which each cut of the plateau holds
        self._ratios: list[float] | None = None  # rate of each param group over that of the first
        self._written: list[float] | None = None  # what apply() left in each param group
        self._on_change = on_change
        self._has_warned: set[str] = set()

    @property
    def peak_step(self) -> int:
        """Index of the first step that uses exactly ``base_lr``."""
        return max(self.warmup_steps - 1, 0)

    def lr_at(self, step: int) -> float:
        """The rate that optimizer step ``step`` (0-based) uses; ``min_lr`` onwards after the plan's end.

        For a plateau, steps to come use the rate after the cuts made so far.
        """
        require_whole("step", step, 0, "optimizer steps, which count from 0")
        base, low = self.base_lr, self.min_lr
        if step < self.peak_step:
            return base * (step + 1) / self.warmup_steps
        if self.kind == "plateau":
            return max(low, base * self.plateau_factor ** sum(cut <= step for cut in self._cuts))
        past = step - self.peak_step
        if past == 0 or self.kind == "constant":
            return base
        if self.kind == "step":
            return max(low, base * self.gamma ** (past // self.step_every))
        share = past / max(1, self.total_steps - self.warmup_steps)
        if share >= 1:
            return low
        if self.kind == "linear":
            return base + (low - base) * share
        return low + (base - low) * 0.5 * (1 + math.cos(math.pi * share))

    def apply(self, optimizer: Optimizer) -> float:
        """Set the rate of the next step in every param group, and return it.

        It is the rate of the first group; the others keep the ratio that they had to it when ``apply`` was
        first called.

        Raises:
            UserError: somebody else changed a rate since the last ``apply`` (unless ``on_change`` is "warn"),
                or groups were added or have the rate 0.
        """
        groups = optimizer.param_groups
        if self._ratios is None:
            self._ratios = _ratios(groups)
        if len(groups) != len(self._ratios):
            raise UserError(
                f"the optimizer has {len(groups)} param groups, the schedule began with {len(self._ratios)}: "
                "add all groups before the first step"
            )
        if self._written is not None:
            self._check_unchanged(groups)
        if self.step >= self.total_steps:
            self._warn(
                "past the end",
                f"planned {self.total_steps} steps, this is step {self.step + 1}: the rate stays at "
                f"{self.lr_at(self.step):g}; build the schedule for the steps that the loop makes",
            )
        lr = self.lr_at(self.step)
        self._written = [_set(group, lr * ratio) for group, ratio in zip(groups, self._ratios, strict=True)]
        return lr

    def advance(self) -> None:
        """Count one applied optimizer step. Leave it out when the step was skipped."""
        self.step += 1

    def observe(self, metric: float) -> bool:
        """Take the metric of one validation, already reduced over the ranks; True means the rate was cut.

        Collective: every rank calls it, once per validation. Other kinds than "plateau" only note the value.
        During the warm-up nothing is cut.

        Raises:
            UserError: on every rank, when the ranks bring different values.
        """
        cut = self._plateau.observe(metric, counts=self.step >= self.warmup_steps)
        if cut and self.kind == "plateau":
            self.cut()
            return True
        return False

    @property
    def num_cuts(self) -> int:
        """How often a plateau's rate was cut."""
        return len(self._cuts)

    def cut(self) -> None:
        """Cut a plateau's rate from the next step on: a decision of :meth:`observe`, here or in another run.

        Every rank calls it at the same step.
        """
        self._cuts.append(self.step)

    def check_finished(self) -> bool:
        """Whether the run made the planned number of steps; a DtlabWarning says so when it did not.

        For the end of a run that was not stopped on purpose. A schedule in optimizer steps that is advanced
        once per epoch shows up here.
        """
        if self.step != self.total_steps:
            warnings.warn(
                f"planned {self.total_steps} steps, stepped {self.step}: the last rate was "
                f"{self.lr_at(max(0, self.step - 1)):g}; advance the schedule once per optimizer step",
                DtlabWarning,
                stacklevel=2,
            )
        return self.step == self.total_steps

    # -- state -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position and the plan, as JSON values; equal on every rank."""
        return {
            "step": self.step,
            "cuts": list(self._cuts),
            "ratios": None if self._ratios is None else list(self._ratios),
            "plateau": self._plateau.state_dict(),
            "plan": {name: getattr(self, name) for name in _PLAN},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the saved step. A plan that differs from the saved one gives a DtlabWarning.

        The optimizer is not touched: it keeps the rates of its own state until the next ``apply``. So the
        order in which the two are loaded does not matter.

        Raises:
            UserError: the state is not that of a schedule.
        """
        expected = {"step", "cuts", "ratios", "plateau", "plan"}
        if set(state) != expected:
            raise UserError(
                f"schedule state has the keys {sorted(state)}; it needs exactly {sorted(expected)}"
            )
        try:
            step, cuts = int(state["step"]), [int(cut) for cut in state["cuts"]]
            ratios = None if state["ratios"] is None else [float(ratio) for ratio in state["ratios"]]
            dict(state["plan"])
            self._plateau.load_state_dict(state["plateau"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"schedule state holds values of another kind ({error}): load another") from None
        self.step, self._cuts, self._ratios = step, cuts, ratios
        self._written = None  # the optimizer's rates may be loaded before or after this
        changed = [
            f"{name} {state['plan'].get(name)!r} -> {getattr(self, name)!r}"
            for name in _PLAN
            if state["plan"].get(name) != getattr(self, name)
        ]
        if changed:
            warnings.warn(
                f"the schedule was saved with another plan ({', '.join(changed)}): step {self.step} now uses "
                f"{self.lr_at(self.step):g}; the plan of this run counts",
                DtlabWarning,
                stacklevel=2,
            )

    # -- checks ----------------------------------------------------------------------------------------------

    def _check_plan(self) -> None:
        warmup, total = self.warmup_steps, self.total_steps
        if total < 1:
            raise UserError(
                f"schedule.warmup = {warmup} steps, total_steps = {total}: the run must make at least 1 step"
            )
        if warmup > total:
            raise UserError(
                f"schedule.warmup = {warmup} steps, total_steps = {total}: the full rate would never be "
                "reached; make the warm-up shorter than the run"
            )
        if self.min_lr > self.base_lr:
            raise UserError(
                f"schedule.min_lr = {self.min_lr:g}: is above the full rate {self.base_lr:g}; lower it"
            )

    def _check_unchanged(self, groups: list[dict[str, Any]]) -> None:
        assert self._written is not None
        for number, (group, written) in enumerate(zip(groups, self._written, strict=True)):
            found = float(group["lr"])
            if found != written:
                message = (
                    f"lr was changed outside the schedule before step {self.step}: param group {number} has "
                    f"{found:g}, the schedule had set {written:g}; let one of the two set the rate"
                )
                if self._on_change == "error":
                    raise UserError(message)
                self._warn("changed", message)
                return

    def _warn(self, what: str, message: str) -> None:
        if what not in self._has_warned:
            self._has_warned.add(what)
            warnings.warn(message, DtlabWarning, stacklevel=3)


def _in_steps(length: float, unit: str, steps_per_epoch: int | None, name: str) -> int:
    if unit == "step" or length == 0:
        return int(length)
    if steps_per_epoch is None or steps_per_epoch < 1:
        raise UserError(
            f"schedule.{name} = {length:g} epochs: steps_per_epoch = {steps_per_epoch!r}, but an epoch in "
            "optimizer steps is needed; give steps_per_epoch, or unit = 'step'"
        )
    return max(1, round(length * steps_per_epoch))


def _ratios(groups: list[dict[str, Any]]) -> list[float]:
    rates = [float(group["lr"]) for group in groups]
    if rates[0] <= 0:
        raise UserError(
            f"lr = {rates[0]:g} in param group 0: the other groups' ratios to it need a positive rate"
        )
    return [rate / rates[0] for rate in rates]


def _set(group: dict[str, Any], lr: float) -> float:
    """Write the rate and return what reading it back gives (an optimizer may hold it as a float32 tensor)."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
        return float(group["lr"])
    group["lr"] = lr
    return lr
