"""How the learning rate moves: the ``[schedule]`` table of a configuration, light enough for ``--help``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dtlab.errors import UserError
from dtlab.settings_types import settle_types

_MOST = 1e15  # steps, epochs and rates end far below
Kind = Literal["constant", "cosine", "linear", "step", "plateau"]
Rule = Literal["none", "linear", "sqrt"]
Unit = Literal["step", "epoch"]


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """A warm-up, then what ``kind`` says, in optimizer steps of the whole run (lesson 05).

    >>> ScheduleConfig(kind="cosine", warmup=0.5, unit="epoch").warmup
    0.5
    """

    kind: Kind = "constant"
    """constant; cosine or linear down to min_lr at the end of the run; step (times gamma every so often);
    plateau (times plateau_factor when validation stops getting better)."""
    warmup: float = 0
    """Length of the linear warm-up, in unit; its last step uses the full rate."""
    unit: Unit = "step"
    """What warmup and step_every count: optimizer steps, or epochs."""
    min_lr: float = 0.0
    """Floor of cosine, linear, step and plateau, as a rate; not scaled, and below it only in the warm-up."""
    step_every: float | None = None
    """kind step: how long each rate is kept, in unit."""
    gamma: float = 0.1
    """kind step: factor from one rate to the next."""
    plateau_factor: float = 0.5
    """kind plateau: factor of each cut."""
    plateau_patience: int = 2
    """kind plateau: validations in a row without a better value that are forgiven; the next one cuts."""
    plateau_mode: Literal["min", "max"] = "min"
    """kind plateau: min when a smaller metric is better (loss), max when a larger one is (AUC)."""
    scaling: Rule = "none"
    """How the rate follows the global batch: none, linear (argued for SGD) or sqrt (for Adam)."""
    base_batch: int | None = None
    """Global batch for which the rate was chosen; scaling needs it."""

    def __post_init__(self) -> None:
        settle_types(self, "schedule")
        _require(
            _finite(self.warmup) and self.warmup >= 0,
            "warmup",
            self.warmup,
            "must be 0 or more, at most 1e15",
        )
        _require(
            _finite(self.min_lr) and self.min_lr >= 0,
            "min_lr",
            self.min_lr,
            "must be 0 or more, at most 1e15",
        )
        if self.step_every is not None:
            fine = _finite(self.step_every) and self.step_every > 0
            _require(fine, "step_every", self.step_every, "must be above 0, at most 1e15, for example 30")
            fix = f"kind = {self.kind!r} does not use it; set kind = 'step', or leave it out"
            _require(self.kind == "step", "step_every", self.step_every, fix)
        for name in ("warmup", "step_every"):
            value = getattr(self, name)
            if self.unit == "step" and value is not None:
                _require(
                    value == math.floor(value), name, value, "steps are whole numbers; or set unit = 'epoch'"
                )
        if self.kind == "step":
            _require(
                self.step_every is not None,
                "step_every",
                self.step_every,
                f"kind = 'step' needs how many {self.unit}s each rate is kept, for example 30",
            )
        _require(
            _finite(self.gamma) and 0 < self.gamma <= 1, "gamma", self.gamma, "must be above 0, at most 1"
        )
        _require(
            _finite(self.plateau_factor) and 0 < self.plateau_factor < 1,
            "plateau_factor",
            self.plateau_factor,
            "must lie between 0 and 1, for example 0.5",
        )
        _require(self.plateau_patience >= 0, "plateau_patience", self.plateau_patience, "must be 0 or more")
        if self.base_batch is not None:
            _require(self.base_batch >= 1, "base_batch", self.base_batch, "must be at least 1 sample")
        if self.scaling != "none":
            _require(
                self.base_batch is not None,
                "base_batch",
                self.base_batch,
                f"scaling = {self.scaling!r} needs the global batch for which the rate was chosen",
            )


def _finite(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= _MOST


def _require(fine: bool, name: str, value: object, fix: str) -> None:
    if not fine:
        raise UserError(f"schedule.{name} = {value!r}: {fix}")
