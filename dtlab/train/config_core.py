"""Precision, checkpoints and stopping: the tables of a configuration that keep a run safe (lesson 12)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from dtlab.errors import UserError
from dtlab.settings_types import settle_types

Format = Literal["auto", "fp32", "bf16", "fp16"]
Policy = Literal["stop", "skip", "roll_back"]


def _require(fine: bool, name: str, value: Any, fix: str) -> None:
    if not fine:
        raise UserError(f"{name} = {value!r}: {fix}")


_EXAMPLE = "http://127.0.0.1:1338/notice"


def _is_address(text: str) -> bool:
    """Whether somebody can be asked there: what cannot be reached would be taken for "no notice"."""
    try:
        parts = urlsplit(text)
        return text == "ec2" or (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        )
    except ValueError:  # a port above 65535, a bracket that is not closed
        return False


def _positive(table: str, values: Any, names: tuple[str, ...], example: str) -> None:
    for name in names:
        value = getattr(values, name)
        if value is not None:
            fine = isinstance(value, int | float) and math.isfinite(value) and value > 0
            _require(fine, f"{table}.{name}", value, f"must be positive, for example {example}")


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """What is computed in which number format, and what is kept for backward (lesson 06)."""

    name: Format = "auto"
    """fp32, bf16, fp16, or auto: bf16 on cards that compute in it, fp16 on older ones, fp32 on a CPU."""
    checkpoint_activations: bool = False
    """Keep only the inputs of the model's blocks and compute the rest again in backward."""
    compile: bool = False
    """Compile the model with torch.compile; the first step takes long, later ones less."""

    def __post_init__(self) -> None:
        settle_types(self, "precision")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the whole state is saved, and how a run ends on a signal (lesson 12)."""

    every_steps: int | None = None
    """Optimizer steps between two checkpoints."""
    every_seconds: float | None = 600.0
    """Seconds between two checkpoints."""
    keep: int = 2
    """Complete checkpoints that stay."""
    asynchronous: bool = True
    """Write in the background: training stops for a copy in memory only."""
    on_failure: Literal["raise", "warn"] = "raise"
    """What a failed save does to the run; warn goes on and says how many steps would be lost."""
    grace_seconds: float = 60.0
    """Time that the ranks get to save after SIGTERM or Ctrl-C before they are ended. torchrun has its own: 30
    seconds, or its --shutdown-timeout."""
    spot_notice: str | None = None
    """Address asked every 5 seconds for the notice of a spot host; ec2 stands for EC2's own."""

    def __post_init__(self) -> None:
        settle_types(self, "checkpoint")
        _positive("checkpoint", self, ("every_steps", "every_seconds", "grace_seconds"), "60")
        _require(self.keep >= 1, "checkpoint.keep", self.keep, "must be at least 1")
        if self.spot_notice is not None:
            fix = f"give ec2, or an address such as {_EXAMPLE}"
            _require(_is_address(self.spot_notice), "checkpoint.spot_notice", self.spot_notice, fix)


@dataclass(frozen=True, kw_only=True)
class StoppingConfig:
    """When a run ends before its last epoch (lessons 05, 12)."""

    patience_samples: int | None = None
    """Training samples without a better validation before training stops; without it optim.patience epochs
    are counted."""
    min_delta: float = 0.0
    """How much better a validation must be to count."""
    max_seconds: float | None = None
    """Save and stop after this time, restarts included."""
    max_usd: float | None = None
    """Save and stop when run.instance has cost this much, restarts included."""
    non_finite: Policy = "stop"
    """What a gradient that is not finite does: stop, skip the step, or roll_back to weights of before."""

    def __post_init__(self) -> None:
        settle_types(self, "stopping")
        _positive("stopping", self, ("patience_samples", "max_seconds", "max_usd"), "100")
        fine = isinstance(self.min_delta, int | float) and math.isfinite(self.min_delta)
        _require(fine and self.min_delta >= 0, "stopping.min_delta", self.min_delta, "must be 0 or more")
