"""How far the checkpoints of a run lag behind its training, in one object (lesson 13)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SaveStatus"]


@dataclass(frozen=True)
class SaveStatus:
    """How far the checkpoints lag behind training."""

    last_good_step: int | None
    """Step of the newest complete save of this run, or of the one that it resumed from."""
    steps_since: int
    """Steps that would be lost now."""
    in_flight_step: int | None
    failures: int
    """Saves in a row that failed."""
    last_error: str | None

    def __str__(self) -> str:
        good = "none" if self.last_good_step is None else f"step {self.last_good_step}"
        error = f"; {self.last_error}" if self.last_error else ""
        return f"last good checkpoint: {good}, {self.steps_since} steps ago{error}"
